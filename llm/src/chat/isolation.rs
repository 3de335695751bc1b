//! Isolation of chat templates, and the protocol with the helper process.

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
use super::request::{ChatRequest, Rendered};

/// Wall-clock limit of a helper process, including its start. Its own limit is two seconds of
/// processor time, so only an overloaded machine reaches this one.
const DEADLINE: Duration = Duration::from_secs(20);
/// Maximum bytes of an answer in addition to the text; errors are truncated to some kB.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Maximum bytes of an answer per byte of text: six for an escaped control character, or one and
/// two for a range.
const ANSWER_PER_BYTE: usize = 8;

/// Environment variable with the dynamic loader's search path.
const LIBRARIES: &str = if cfg!(target_os = "macos") {
    "DYLD_LIBRARY_PATH"
} else {
    "LD_LIBRARY_PATH"
};

/// Process in which a template runs.
#[derive(Debug, Clone)]
pub enum Isolation {
    /// Runs in this process, for trusted templates only. A hostile template can exhaust memory, or
    /// overflow the stack and so end the process.
    InProcess,
    /// Runs in a new helper process for each conversation.
    Helper(Helper),
}

impl Isolation {
    pub(super) fn answer(&self, request: &ChatRequest) -> Result<Rendered, ChatError> {
        match self {
            Self::InProcess => render::answer(request),
            Self::Helper(helper) => helper.request(request),
        }
    }
}

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

    fn request(&self, request: &ChatRequest) -> Result<Rendered, ChatError> {
        let deadline = Instant::now() + DEADLINE;
        let longest = request
            .conversation
            .as_ref()
            .map_or(0, |conversation| conversation.longest);
        let most = MAX_ANSWER_BYTES.saturating_add(longest.saturating_mul(ANSWER_PER_BYTE));
        let request = serde_json::to_vec(request)
            .map_err(|e| ChatError::Helper(format!("cannot be asked: {e}")))?;
        let mut child = self
            .start()
            .map_err(|e| ChatError::Helper(format!("cannot be started: {e}")))?;
        let ending = exchange(&mut child, &request, most, deadline);
        if !matches!(ending, Ok(Ending::Answered(_))) {
            // The process may already have exited.
            let _ = child.kill();
        }
        // `wait` cannot block: the process was killed, or its stdout, which only its
        // exit closes, is closed.
        let status = child.wait();
        let lost = |e: io::Error| ChatError::Helper(format!("was lost: {e}"));
        match ending.map_err(lost)? {
            Ending::TooSlow => Err(ChatError::HelperTimeout(DEADLINE.as_secs())),
            Ending::TooLong => Err(ChatError::OutputTooLarge(longest)),
            // There is no status if this program ignores SIGCHLD, because the
            // kernel then keeps none.
            Ending::Answered(answer) => serde_json::from_slice(&answer)
                .unwrap_or_else(|_| Err(status.map_or_else(lost, cause))),
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

/// Outcome of an exchange with a helper.
enum Ending {
    /// The helper closed its output; holds the bytes it had written.
    Answered(Vec<u8>),
    TooLong,
    TooSlow,
}

/// Writes the request and reads the answer concurrently, because the helper may write before
/// it has read everything.
fn exchange(
    child: &mut Child,
    request: &[u8],
    most: usize,
    deadline: Instant,
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
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Ending::TooSlow);
        }
        let mut ready: Vec<PollFd<'_>> = vec![PollFd::new(&output, PollFlags::IN)];
        ready.extend(input.iter().map(|input| PollFd::new(input, PollFlags::OUT)));
        match poll(
            &mut ready,
            Some(&Timespec {
                tv_sec: left.as_secs() as _,
                tv_nsec: left.subsec_nanos() as _,
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

/// Returns the error for a helper that exited without an answer, from the signals of
/// its limits (`helper.rs`).
fn cause(status: ExitStatus) -> ChatError {
    match status.signal().and_then(Signal::from_named_raw) {
        // Rust aborts the process when an allocation fails.
        Some(Signal::ABORT) => ChatError::OutOfMemory,
        Some(Signal::SEGV | Signal::BUS) => ChatError::OutOfStack,
        Some(Signal::XCPU) => ChatError::OutOfTime,
        _ => ChatError::Helper(format!("ended without an answer: {status}")),
    }
}
