//! Runs child processes with a timeout.

use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum bytes kept of a program's output; compiler errors about vector types can be megabytes.
pub const MESSAGE_BYTES: usize = 8 << 10;
/// Granularity of timeouts. A period with all processes stopped (Ctrl-Z, suspend) counts as one
/// slice.
const WAIT_SLICE: Duration = Duration::from_secs(1);
/// Time to read the pipes of a program that has ended. They stay open longer only if a process
/// left behind holds them.
const READ_TIME: Duration = Duration::from_secs(5);
/// Maximum searches for descendants of a killed program; a stopped process may
/// have forked just before.
const KILL_ROUNDS: usize = 100;

/// Exit status and output of a program.
pub struct ChildOutput {
    /// None after a timeout, when it was killed.
    pub status: Option<ExitStatus>,
    /// Beginning of its standard output.
    pub output: Vec<u8>,
    /// Beginning of its standard error.
    pub errors: Vec<u8>,
}

/// Runs a program with a timeout, after which its descendants are killed, too.
///
/// It stays in the caller's process group, so Ctrl-C ends both.
pub fn run(mut command: Command, limit: Duration) -> std::io::Result<ChildOutput> {
    let mut child = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let (output, errors) = (
        PipeReader::from_pipe(child.stdout.take()),
        PipeReader::from_pipe(child.stderr.take()),
    );
    let pid = Pid::from_child(&child);
    let (send, ended) = mpsc::channel();
    std::thread::spawn(move || {
        // It stays a zombie, so its PID is not reused before it may be killed.
        let _ = retry_on_intr(|| {
            waitid(
                WaitId::Pid(pid),
                WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
            )
        });
        let _ = send.send(());
    });
    let in_time = within(&ended, limit);
    if !in_time {
        end(pid);
    }
    let status = child.wait()?;
    // It may have ended by itself just before.
    let status = (in_time || status.success()).then_some(status);
    let until = Instant::now() + READ_TIME;
    Ok(ChildOutput {
        status,
        output: output.read(until),
        errors: errors.read(until),
    })
}

/// Waits for the end, up to a limit that is counted in slices. Returns whether it came.
fn within(ended: &Receiver<()>, limit: Duration) -> bool {
    let mut left = limit;
    while !left.is_zero() {
        let slice = left.min(WAIT_SLICE);
        match ended.recv_timeout(slice) {
            Err(RecvTimeoutError::Timeout) => left -= slice,
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return true,
        }
    }
    false
}

/// Kills a child and its descendants.
///
/// All are stopped first: a running one could fork unseen, and the PID of one that
/// ended could be reused.
fn end(child: Pid) {
    let mut tree = vec![child];
    let _ = kill_process(child, Signal::STOP);
    for _ in 0..KILL_ROUNDS {
        let found: Vec<Pid> = tree
            .iter()
            .flat_map(|&pid| children(pid))
            .filter(|pid| !tree.contains(pid))
            .collect();
        if found.is_empty() {
            break;
        }
        for &pid in &found {
            let _ = kill_process(pid, Signal::STOP);
        }
        tree.extend(found);
    }
    for pid in tree {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Returns the children of all threads of a process; empty where the system does not list them.
#[cfg(target_os = "linux")]
fn children(pid: Pid) -> Vec<Pid> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()))
        .into_iter()
        .flatten()
        .flatten();
    let listed =
        threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    listed
        .flat_map(|list| {
            list.split_whitespace()
                .filter_map(|n| Pid::from_raw(n.parse().ok()?))
                .collect::<Vec<_>>()
        })
        .collect()
}
#[cfg(not(target_os = "linux"))]
fn children(_: Pid) -> Vec<Pid> {
    Vec::new()
}

/// Output of a program, read to its end on a separate thread.
struct PipeReader {
    /// First bytes, one more than the limit so that truncation is visible.
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Disconnected at the end of the output.
    ended: Receiver<()>,
}

impl PipeReader {
    fn from_pipe(pipe: Option<impl Read + Send + 'static>) -> PipeReader {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (send, ended) = mpsc::channel();
        let kept = bytes.clone();
        std::thread::spawn(move || {
            let _open: mpsc::Sender<()> = send;
            let (mut pipe, mut part) = (pipe, [0; 4096]);
            while let Some(pipe) = &mut pipe {
                match pipe.read(&mut part) {
                    Ok(0) => break,
                    Ok(n) => {
                        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                        let room = (MESSAGE_BYTES + 1).saturating_sub(kept.len());
                        kept.extend_from_slice(&part[..n.min(room)]);
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
        });
        PipeReader { bytes, ended }
    }
    /// Returns the output at its end, or at `until` if a process left behind keeps the pipe open.
    fn read(self, until: Instant) -> Vec<u8> {
        let _ = self
            .ended
            .recv_timeout(until.saturating_duration_since(Instant::now()));
        std::mem::take(&mut self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        command
    }

    #[test]
    fn a_grandchild_that_holds_the_pipes_is_not_waited_for() {
        let begin = Instant::now();
        let ended = run(
            shell("sleep 120 & echo said; echo $!"),
            Duration::from_secs(60),
        )
        .unwrap();
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "{:?}",
            begin.elapsed()
        );
        assert!(ended.status.unwrap().success());
        let said = String::from_utf8(ended.output).unwrap();
        let left = said.strip_prefix("said\n").unwrap().trim().parse().unwrap();
        kill_process(Pid::from_raw(left).unwrap(), Signal::KILL).unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_program_is_of_its_callers_group() {
        let ended = run(
            shell("cut -d ' ' -f 5 /proc/$$/stat"),
            Duration::from_secs(60),
        )
        .unwrap();
        let group = rustix::process::getpgrp().as_raw_nonzero().to_string();
        assert_eq!(String::from_utf8(ended.output).unwrap().trim(), group);
    }
}
