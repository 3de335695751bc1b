//! Where templates run, and how a helper process is asked.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::Signal;

use super::error::ChatError;
use super::render;
use super::request::{Rendered, Request};

/// How long a helper may take by the clock, its start included. It ends by itself after two seconds of processor time; on a
/// machine that is busy with other work those take longer, and nobody should wait for five.
const DEADLINE: Duration = Duration::from_secs(4);
/// Bytes of an answer beside its text: the errors, which are cut to some kB.
const ANSWER: usize = 64 << 10;
/// Bytes of an answer for each byte of its text: six for an escaped control character, or one and two for a range.
const ANSWER_PER_BYTE: usize = 8;

/// The variable that names the folders in which the loader looks for libraries first.
const LIBRARIES: &str = if cfg!(target_os = "macos") { "DYLD_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };

/// Where a template runs.
#[derive(Debug, Clone)]
pub enum Isolation {
    /// In this process: for templates that are known to be harmless. A hostile one takes all memory, or overflows the stack
    /// and so ends the process.
    InProcess,
    /// In a process of its own for each conversation.
    Helper(Helper),
}

impl Isolation {
    pub(super) fn answer(&self, request: &Request) -> Result<Rendered, ChatError> {
        match self {
            Self::InProcess => render::answer(request),
            Self::Helper(helper) => helper.ask(request),
        }
    }
}

/// How to start a process that calls [`helper`](super::helper) and does nothing else.
#[derive(Debug, Clone)]
pub struct Helper {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Helper {
    /// A program by its absolute path, which with these arguments calls [`helper`](super::helper).
    pub fn new(program: impl Into<PathBuf>, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self { program: program.into(), arguments: arguments.into_iter().map(Into::into).collect() }
    }

    fn ask(&self, request: &Request) -> Result<Rendered, ChatError> {
        let deadline = Instant::now() + DEADLINE;
        let longest = request.conversation.as_ref().map_or(0, |conversation| conversation.longest);
        let most = ANSWER.saturating_add(longest.saturating_mul(ANSWER_PER_BYTE));
        let request = serde_json::to_vec(request).map_err(|e| ChatError::Helper(format!("cannot be asked: {e}")))?;
        let mut child = self.start().map_err(|e| ChatError::Helper(format!("cannot be started: {e}")))?;
        let ending = exchange(&mut child, &request, most, deadline);
        if !matches!(ending, Ok(Ending::Answered(_))) {
            // It may have ended by itself meanwhile.
            let _ = child.kill();
        }
        // Killed, or at its end: the other end of its output, which nothing but its end closes, is closed.
        let status = child.wait();
        let lost = |e: io::Error| ChatError::Helper(format!("was lost: {e}"));
        match ending.map_err(lost)? {
            // It holds itself to its limits: where those do not come first, this machine is at fault.
            Ending::TooSlow => {
                Err(ChatError::Helper(format!("did not answer in time, which is {} seconds", DEADLINE.as_secs())))
            }
            Ending::TooLong => Err(ChatError::OutputTooLarge(longest)),
            // There is no status where this program ignores SIGCHLD: the kernel keeps none then.
            Ending::Answered(answer) => {
                serde_json::from_slice(&answer).unwrap_or_else(|_| Err(status.map_or_else(lost, cause)))
            }
        }
    }

    fn start(&self) -> io::Result<Child> {
        // Where the program's libraries are found is the only thing of the environment that it needs.
        let libraries = std::env::var_os(LIBRARIES).map(|folders| (LIBRARIES, folders));
        Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .envs(libraries)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Ctrl-C on a terminal means whoever waits for the helper.
            .process_group(0)
            .spawn()
    }
}

/// How an exchange came to its end.
enum Ending {
    /// The helper closed its output; what it had written.
    Answered(Vec<u8>),
    TooLong,
    TooSlow,
}

/// Writes the request and reads the answer, both as the other side is ready for them: it may well write before it has read.
fn exchange(child: &mut Child, request: &[u8], most: usize, deadline: Instant) -> io::Result<Ending> {
    let (mut input, Some(mut output)) = (child.stdin.take(), child.stdout.take()) else {
        unreachable!("a helper is started with pipes");
    };
    input.iter().try_for_each(|input| ioctl_fionbio(input, true))?;
    ioctl_fionbio(&output, true)?;
    let (mut rest, mut answer, mut piece) = (request, Vec::new(), vec![0; 64 << 10]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Ending::TooSlow);
        }
        let mut ready: Vec<PollFd<'_>> = vec![PollFd::new(&output, PollFlags::IN)];
        ready.extend(input.iter().map(|input| PollFd::new(input, PollFlags::OUT)));
        match poll(&mut ready, Some(&Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ })) {
            Err(rustix::io::Errno::INTR) => continue,
            polled => polled?,
        };
        let is_ready = |i: usize| ready.get(i).is_some_and(|ready| !ready.revents().is_empty());
        let (reads, writes) = (is_ready(0), is_ready(1));
        if writes {
            feed(&mut input, &mut rest)?;
        }
        if reads {
            match output.read(&mut piece) {
                Ok(0) => return Ok(Ending::Answered(answer)),
                Ok(n) if answer.len() + n > most => return Ok(Ending::TooLong),
                Ok(n) => answer.extend_from_slice(&piece[..n]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(e) => return Err(e),
            }
        }
    }
}

/// Writes what goes, and closes the pipe behind the last byte.
fn feed(input: &mut Option<ChildStdin>, rest: &mut &[u8]) -> io::Result<()> {
    let Some(pipe) = input else { return Ok(()) };
    match pipe.write(rest) {
        Ok(n) => *rest = &rest[n..],
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
        // It ended before it had read all; its status says why.
        Err(e) if e.kind() == ErrorKind::BrokenPipe => *rest = &[],
        Err(e) => return Err(e),
    }
    if rest.is_empty() {
        *input = None;
    }
    Ok(())
}

/// What a helper died of that left no answer, by the signals that its limits bring about (`helper.rs`).
fn cause(status: ExitStatus) -> ChatError {
    match status.signal().and_then(Signal::from_named_raw) {
        // Memory that cannot be had makes Rust's allocator abort.
        Some(Signal::ABORT) => ChatError::OutOfMemory,
        Some(Signal::SEGV | Signal::BUS) => ChatError::OutOfStack,
        Some(Signal::XCPU) => ChatError::OutOfTime,
        _ => ChatError::Helper(format!("ended without an answer: {status}")),
    }
}
