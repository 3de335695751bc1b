//! The helper process: it lowers its own limits, does what one request asks, and ends.

use std::any::Any;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::error::ChatError;
use super::render;
use super::request::{Rendered, Request};

/// Processor time in seconds, the kernel's unit. Honest templates take milliseconds, and the steps that a template may take
/// about one second.
const SECONDS: u64 = 2;
/// Bytes of memory beyond the process's own. [`PER_BYTE`] and this were chosen by what the longest conversations take.
const MEMORY: u64 = 64 << 20;
/// Bytes of memory for each byte of the request.
const PER_BYTE: u64 = 64;
/// Bytes of stack: that of a main thread on Linux. The values and expressions that `bounds.rs` lets through take a tenth.
const STACK: usize = 8 << 20;

type Answer = Result<Rendered, ChatError>;

/// What a process does that [`Helper`](super::Helper) starts: reads a request from standard input, answers on standard
/// output. To be called first of all by a process that does nothing else, for it limits the process.
pub fn helper() -> ExitCode {
    match answer_one() {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever asked sees that the answer is missing.
        Err(_) => ExitCode::FAILURE,
    }
}

fn answer_one() -> io::Result<()> {
    limit_process()?;
    let mut request = Vec::new();
    io::stdin().lock().read_to_end(&mut request)?;
    let renderer = thread::Builder::new().stack_size(STACK).spawn(move || -> io::Result<Vec<u8>> {
        limit_memory(request.len() as u64)?;
        Ok(serde_json::to_vec(&answer(&request))?)
    })?;
    let answer = match renderer.join() {
        Ok(answer) => answer?,
        Err(panic) => serde_json::to_vec(&Answer::Err(ChatError::Render(message(&*panic))))?,
    };
    io::stdout().lock().write_all(&answer)
}

fn answer(request: &[u8]) -> Answer {
    let request: Request = serde_json::from_slice(request)
        .map_err(|e| ChatError::Helper(format!("does not understand what it was asked: {e}")))?;
    render::answer(&request)
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("the renderer gave up: {}", text.unwrap_or("without a word"))
}

/// Limits that need not know the request.
fn limit_process() -> io::Result<()> {
    // At the lower of the two limits the signal says what it was, at the upper it is a kill like any other.
    lower_to(Resource::Cpu, SECONDS, SECONDS + 1)?;
    lower(Resource::Core, 0)?;
    lower(Resource::Fsize, 0)?;
    // A pattern of the kernel that pipes dumps into a program does not ask for the limit above.
    #[cfg(target_os = "linux")]
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    // SAFETY: the default action is no code of ours, and nothing else in this process waits for the signal.
    // Rust's own handler would turn an overflow of the stack into the abort that missing memory is, too.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    Ok(())
}

/// The rest: memory for a request of so many bytes, and nothing new to be opened or started.
fn limit_memory(bytes: u64) -> io::Result<()> {
    // macOS accepts this limit and does not hold it: there, time and steps bound what can be taken.
    #[cfg(target_os = "linux")]
    lower(Resource::As, mapped() + MEMORY + bytes.saturating_mul(PER_BYTE))?;
    #[cfg(not(target_os = "linux"))]
    let _ = (bytes, MEMORY, PER_BYTE);
    lower(Resource::Nproc, 0)?;
    lower(Resource::Nofile, 0)
}

/// Bytes of address space that this process has: its program, libraries, stacks, and what the allocator keeps in reserve.
#[cfg(target_os = "linux")]
fn mapped() -> u64 {
    /// More than it ever is, where there is no /proc to ask: a binary of 20 MiB, a stack, 64 MiB of reserve.
    const AT_MOST: u64 = 256 << 20;
    let pages = std::fs::read_to_string("/proc/self/statm").ok().and_then(|text| text.split(' ').next()?.parse().ok());
    pages.map_or(AT_MOST, |pages: u64| pages * rustix::param::page_size() as u64)
}

fn lower(resource: Resource, limit: u64) -> io::Result<()> {
    lower_to(resource, limit, limit)
}

/// Sets a limit, and how far it could be raised again; what is lower already stays.
fn lower_to(resource: Resource, limit: u64, most: u64) -> io::Result<()> {
    let Rlimit { current, maximum } = getrlimit(resource);
    let least = |old: Option<u64>, new: u64| Some(old.map_or(new, |old| old.min(new)));
    Ok(setrlimit(resource, Rlimit { current: least(current, limit), maximum: least(maximum, most) })?)
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
