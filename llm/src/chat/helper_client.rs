//! The protocol with the helper process, on the side that starts it.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::Signal;
use serde::de::DeserializeOwned;

use super::error::ChatError;
use super::request::{ChatRequest, Rendered};

/// Wall-clock limit of a helper process, including its start. Its own limit is two seconds of
/// processor time, so only an overloaded machine reaches this one.
const DEADLINE: Duration = Duration::from_secs(20);
/// Time between two checks whether the caller left.
const CHECK_LEFT: Duration = Duration::from_millis(100);
/// Maximum bytes of an answer in addition to the text; errors are truncated to some kB.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Maximum bytes of an answer per byte of text: six for an escaped control character, or one and
/// two for a range; as many for the text that it is compared with.
const ANSWER_PER_BYTE: usize = 16;

/// Environment variable with the dynamic loader's search path.
const LIBRARIES: &str = if cfg!(target_os = "macos") {
    "DYLD_LIBRARY_PATH"
} else {
    "LD_LIBRARY_PATH"
};

/// Command line of a process that calls [`helper`](super::helper) and does nothing else.
#[derive(Debug, Clone)]
pub struct Helper {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Helper {
    /// Creates a helper from an absolute program path and arguments that make it
    /// call [`helper`](super::helper).
    pub fn new(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
        }
    }

    /// Returns the same program with other arguments, which make it another helper.
    #[must_use]
    pub fn with_arguments(&self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self::new(self.program.clone(), arguments)
    }

    pub(super) fn request(&self, request: &ChatRequest) -> Result<Rendered, ChatError> {
        let longest = request
            .conversation
            .as_ref()
            .map_or(0, |conversation| conversation.longest);
        let most = MAX_ANSWER_BYTES.saturating_add(longest.saturating_mul(ANSWER_PER_BYTE));
        let request = serde_json::to_vec(request)
            .map_err(|e| ChatError::Helper(format!("cannot be asked: {e}")))?;
        let answer: Result<Rendered, ChatError> =
            self.ask(&request, most, &|| false)
                .map_err(|failure| match failure {
                    HelperFailure::TooSlow(limit) => ChatError::HelperTimeout(limit),
                    HelperFailure::TooLong => ChatError::OutputTooLarge(longest),
                    HelperFailure::OutOfMemory => ChatError::OutOfMemory,
                    HelperFailure::OutOfStack => ChatError::OutOfStack,
                    HelperFailure::OutOfTime => ChatError::OutOfTime,
                    failure => ChatError::Helper(failure.to_string()),
                })?;
        answer
    }

    /// Starts a process, sends it a request and returns its answer of at most `most` bytes of JSON.
    /// The process is killed if the answer is too late or too long, or once `left` holds.
    ///
    /// # Errors
    /// When the process cannot be started or ends without an answer.
    pub fn ask<T: DeserializeOwned>(
        &self,
        request: &[u8],
        most: usize,
        left: &dyn Fn() -> bool,
    ) -> Result<T, HelperFailure> {
        let deadline = Instant::now() + DEADLINE;
        let mut child = self.start().map_err(HelperFailure::Start)?;
        let ending = exchange(&mut child, request, most, deadline, left);
        if !matches!(ending, Ok(Ending::Answered(_))) {
            // The process may already have exited.
            let _ = child.kill();
        }
        // `wait` cannot block: the process was killed, or its stdout, which only its
        // exit closes, is closed.
        let status = child.wait();
        match ending.map_err(HelperFailure::Lost)? {
            Ending::TooSlow => Err(HelperFailure::TooSlow(DEADLINE.as_secs())),
            Ending::TooLong => Err(HelperFailure::TooLong),
            Ending::Left => Err(HelperFailure::Left),
            // There is no status if this program ignores SIGCHLD, because the
            // kernel then keeps none.
            Ending::Answered(answer) => serde_json::from_slice(&answer)
                .map_err(|_| status.map_or_else(HelperFailure::Lost, cause)),
        }
    }

    fn start(&self) -> io::Result<Child> {
        // The helper needs only the library path from the environment.
        let libraries = std::env::var_os(LIBRARIES).map(|folders| (LIBRARIES, folders));
        Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .envs(libraries)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Keeps Ctrl-C of a terminal from reaching the helper.
            .process_group(0)
            .spawn()
    }
}

/// Reason why a helper process gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum HelperFailure {
    /// It could not be started.
    #[error("cannot be started: {0}")]
    Start(io::Error),
    /// The exchange with it failed.
    #[error("was lost: {0}")]
    Lost(io::Error),
    /// It exceeded the wall-clock limit, given here in seconds.
    #[error("did not answer within {0} seconds")]
    TooSlow(u64),
    /// Its answer exceeded the length limit.
    #[error("answered at too great a length")]
    TooLong,
    /// It exceeded its memory limit.
    #[error("ran out of memory")]
    OutOfMemory,
    /// It exceeded its stack.
    #[error("ran out of stack")]
    OutOfStack,
    /// It exceeded its limit of processor time.
    #[error("ran out of time")]
    OutOfTime,
    /// The caller no longer wanted the answer.
    #[error("was ended as its caller left")]
    Left,
    /// It ended for another reason.
    #[error("ended without an answer: {0}")]
    Ended(ExitStatus),
}

/// Outcome of an exchange with a helper.
enum Ending {
    /// The helper closed its output; holds the bytes it had written.
    Answered(Vec<u8>),
    TooLong,
    TooSlow,
    Left,
}

/// Writes the request and reads the answer concurrently, because the helper may write before
/// it has read everything.
fn exchange(
    child: &mut Child,
    request: &[u8],
    most: usize,
    deadline: Instant,
    left: &dyn Fn() -> bool,
) -> io::Result<Ending> {
    let (mut input, Some(mut output)) = (child.stdin.take(), child.stdout.take()) else {
        unreachable!("a helper is started with pipes");
    };
    input
        .iter()
        .try_for_each(|input| ioctl_fionbio(input, true))?;
    ioctl_fionbio(&output, true)?;
    let (mut rest, mut answer, mut piece) = (request, Vec::new(), vec![0; 64 << 10]);
    loop {
        let wait = deadline
            .saturating_duration_since(Instant::now())
            .min(CHECK_LEFT);
        if wait.is_zero() {
            return Ok(Ending::TooSlow);
        }
        if left() {
            return Ok(Ending::Left);
        }
        let mut ready: Vec<PollFd<'_>> = vec![PollFd::new(&output, PollFlags::IN)];
        ready.extend(input.iter().map(|input| PollFd::new(input, PollFlags::OUT)));
        match poll(
            &mut ready,
            Some(&Timespec {
                tv_sec: wait.as_secs() as _,
                tv_nsec: wait.subsec_nanos() as _,
            }),
        ) {
            Err(rustix::io::Errno::INTR) => continue,
            polled => polled?,
        };
        let is_ready = |i: usize| {
            ready
                .get(i)
                .is_some_and(|ready| !ready.revents().is_empty())
        };
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

/// Writes part of the request, and closes the pipe after the last byte.
fn feed(input: &mut Option<ChildStdin>, rest: &mut &[u8]) -> io::Result<()> {
    let Some(pipe) = input else { return Ok(()) };
    match pipe.write(rest) {
        Ok(n) => *rest = &rest[n..],
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
        // The helper exited before it read everything; its exit status gives the reason.
        Err(e) if e.kind() == ErrorKind::BrokenPipe => *rest = &[],
        Err(e) => return Err(e),
    }
    if rest.is_empty() {
        *input = None;
    }
    Ok(())
}

/// Returns the failure of a helper that exited without an answer, from the signals of
/// its limits (`helper.rs`).
fn cause(status: ExitStatus) -> HelperFailure {
    match status.signal().and_then(Signal::from_named_raw) {
        // Rust aborts the process when an allocation fails.
        Some(Signal::ABORT) => HelperFailure::OutOfMemory,
        Some(Signal::SEGV | Signal::BUS) => HelperFailure::OutOfStack,
        Some(Signal::XCPU) => HelperFailure::OutOfTime,
        _ => HelperFailure::Ended(status),
    }
}
