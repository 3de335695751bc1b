//! Helper process that renders one template: lowers its own limits, handles one request, and exits.

use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::error::ChatError;
use super::render;
use super::request::{ChatRequest, Rendered};

/// Limit of processor time in seconds. Known templates take milliseconds; the maximum number of
/// template instructions takes about one second.
const CPU_SECONDS: u64 = 2;
/// Limit of memory in bytes in addition to the process's own. Chosen with [`MEMORY_PER_BYTE`] by
/// measuring the longest conversations.
const BASE_MEMORY: u64 = 64 << 20;
/// Additional memory in bytes per byte of the request.
const MEMORY_PER_BYTE: u64 = 64;
/// Stack size in bytes, that of a main thread on Linux. Values and expressions within the limits of
/// `bounds.rs` take a tenth of it.
const STACK_BYTES: usize = 8 << 20;

type Answer = Result<Rendered, ChatError>;

/// Runs the helper process started by [`Helper`](super::Helper): reads a request from stdin and
/// writes the answer to stdout.
///
/// Must be called first, by a process that does nothing else, because it lowers the
/// limits of the process.
pub fn helper() -> ExitCode {
    match answer_one() {
        Ok(()) => ExitCode::SUCCESS,
        // The parent process detects the missing answer.
        Err(_) => ExitCode::FAILURE,
    }
}

fn answer_one() -> io::Result<()> {
    limit_process()?;
    let mut request = Vec::new();
    io::stdin().lock().read_to_end(&mut request)?;
    let renderer =
        thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn(move || -> io::Result<Vec<u8>> {
                limit_memory(request.len() as u64)?;
                Ok(serde_json::to_vec(&answer(&request))?)
            })?;
    let answer = match renderer.join() {
        Ok(answer) => answer?,
        Err(_) => serde_json::to_vec(&Answer::Err(ChatError::Panicked))?,
    };
    io::stdout().lock().write_all(&answer)
}

fn answer(request: &[u8]) -> Answer {
    let request: ChatRequest = serde_json::from_slice(request)
        .map_err(|e| ChatError::Helper(format!("cannot parse its request: {e}")))?;
    render::answer(&request)
}

/// Sets the limits that do not depend on the request.
fn limit_process() -> io::Result<()> {
    // The soft limit raises SIGXCPU, which identifies the cause; the hard limit raises
    // SIGKILL, which does not.
    lower_to(Resource::Cpu, CPU_SECONDS, CPU_SECONDS + 1)?;
    lower(Resource::Core, 0)?;
    lower(Resource::Fsize, 0)?;
    // The kernel ignores the core limit if its core pattern is a pipe.
    #[cfg(target_os = "linux")]
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    // SAFETY: the default action runs no code of this program, and nothing else in this process
    // waits for the signal. Rust's own handler would turn a stack overflow into an abort, which
    // means out of memory here.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    Ok(())
}

/// Sets the remaining limits: memory for a request of `bytes` bytes, no new
/// files, no new processes.
fn limit_memory(bytes: u64) -> io::Result<()> {
    // macOS accepts this limit but does not enforce it; there, time and instruction
    // limits bound the memory.
    #[cfg(target_os = "linux")]
    lower(
        Resource::As,
        mapped() + BASE_MEMORY + bytes.saturating_mul(MEMORY_PER_BYTE),
    )?;
    #[cfg(not(target_os = "linux"))]
    let _ = (bytes, BASE_MEMORY, MEMORY_PER_BYTE);
    lower(Resource::Nproc, 0)?;
    lower(Resource::Nofile, 0)
}

/// Returns the bytes of address space in use: program, libraries, stacks, and
/// the allocator's reserve.
#[cfg(target_os = "linux")]
fn mapped() -> u64 {
    /// Upper estimate if /proc is not available: a binary of 20 MiB, a stack, 64 MiB of reserve.
    const AT_MOST: u64 = 256 << 20;
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').next()?.parse().ok());
    pages.map_or(AT_MOST, |pages: u64| {
        pages * rustix::param::page_size() as u64
    })
}

fn lower(resource: Resource, limit: u64) -> io::Result<()> {
    lower_to(resource, limit, limit)
}

/// Lowers the soft limit to `limit` and the hard limit to `most`; never raises a limit.
fn lower_to(resource: Resource, limit: u64, most: u64) -> io::Result<()> {
    let Rlimit { current, maximum } = getrlimit(resource);
    let least = |old: Option<u64>, new: u64| Some(old.map_or(new, |old| old.min(new)));
    Ok(setrlimit(
        resource,
        Rlimit {
            current: least(current, limit),
            maximum: least(maximum, most),
        },
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_request_is_answered() {
        assert!(matches!(answer(b"{"), Err(ChatError::Helper(_))));
        assert!(answer(br#"{"source": "{{ 1 }}", "conversation": null}"#).is_ok());
    }
}
