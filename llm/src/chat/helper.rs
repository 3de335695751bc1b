//! Helper process: lowers its own limits, handles one request, and exits. Renders one template, or
//! does other work on untrusted input ([`run_confined`]).

use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use super::error::ChatError;
use super::render;
use super::request::{ChatRequest, Rendered};

/// Limits of a helper process.
#[derive(Debug, Clone, Copy)]
pub struct HelperLimits {
    /// Processor time in seconds.
    pub cpu_seconds: u64,
    /// Memory in bytes in addition to the process's own.
    pub memory: u64,
    /// Additional memory in bytes per byte of the request.
    pub memory_per_byte: u64,
    /// Stack size in bytes.
    pub stack: usize,
}

/// Limits of a template. Known templates take milliseconds, and the maximum number of template
/// instructions about one second. The memory was chosen by measuring the longest conversations. The
/// stack is that of a main thread on Linux: values and expressions within the limits of `bounds.rs`
/// take a tenth of it.
const TEMPLATE: HelperLimits = HelperLimits {
    cpu_seconds: 2,
    memory: 64 << 20,
    memory_per_byte: 64,
    stack: 8 << 20,
};

type Answer = Result<Rendered, ChatError>;

/// Runs the helper process started by [`Helper`](super::Helper): reads a request from stdin and
/// writes the answer to stdout.
///
/// Must be called first, by a process that does nothing else, because it lowers the
/// limits of the process.
pub fn helper() -> ExitCode {
    run_confined(TEMPLATE, answer, &Answer::Err(ChatError::Panicked))
}

/// Lowers the limits of this process, reads a request from stdin, and writes the answer to stdout
/// as JSON; `panicked` is the answer if the work panics.
pub fn run_confined<T: Serialize + 'static>(
    limits: HelperLimits,
    answer: fn(&[u8]) -> T,
    panicked: &T,
) -> ExitCode {
    match answer_one(limits, answer, panicked) {
        Ok(()) => ExitCode::SUCCESS,
        // The parent process detects the missing answer.
        Err(_) => ExitCode::FAILURE,
    }
}

fn answer_one<T: Serialize + 'static>(
    limits: HelperLimits,
    answer: fn(&[u8]) -> T,
    panicked: &T,
) -> io::Result<()> {
    limit_process(limits.cpu_seconds)?;
    let mut request = Vec::new();
    io::stdin().lock().read_to_end(&mut request)?;
    let worker =
        thread::Builder::new()
            .stack_size(limits.stack)
            .spawn(move || -> io::Result<Vec<u8>> {
                let more = limits.memory_per_byte.saturating_mul(request.len() as u64);
                limit_memory(limits.memory.saturating_add(more))?;
                Ok(serde_json::to_vec(&answer(&request))?)
            })?;
    let answer = match worker.join() {
        Ok(answer) => answer?,
        Err(_) => serde_json::to_vec(panicked)?,
    };
    // In a module of another language nothing flushes at the end of the process.
    let mut out = io::stdout().lock();
    out.write_all(&answer)?;
    out.flush()
}

fn answer(request: &[u8]) -> Answer {
    let request: ChatRequest = serde_json::from_slice(request)
        .map_err(|e| ChatError::Helper(format!("cannot parse its request: {e}")))?;
    render::answer(&request)
}

/// Returns the processor time of this thread so far.
pub fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec of this frame, which the call fills in.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// Sets the limits that do not depend on the request.
fn limit_process(cpu_seconds: u64) -> io::Result<()> {
    // The soft limit raises SIGXCPU, which identifies the cause; the hard limit raises
    // SIGKILL, which does not.
    lower_to(Resource::Cpu, cpu_seconds, cpu_seconds + 1)?;
    lower(Resource::Core, 0)?;
    // The size of pages is read while files may grow: an emulator of another processor writes the
    // file that it is read from, and rustix keeps it for `mapped`.
    let _ = rustix::param::page_size();
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

/// Sets the remaining limits: `bytes` more of memory, no new files, no new processes.
fn limit_memory(bytes: u64) -> io::Result<()> {
    // macOS accepts this limit but does not enforce it; there, time and instruction
    // limits bound the memory.
    #[cfg(target_os = "linux")]
    lower(Resource::As, mapped().saturating_add(bytes))?;
    #[cfg(not(target_os = "linux"))]
    let _ = bytes;
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
