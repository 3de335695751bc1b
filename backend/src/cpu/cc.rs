//! The C compiler of the machine: found, asked for its version, run.

use super::isa::Isa;
use gristmill_runtime::Error;
use gristmill_runtime::store::{Key, Temporary};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// What every kernel is compiled with.
///
/// `-nostdlib`: kernels use no library. The `memcpy`, `memset` and `sqrtf` that a compiler may put in are the process's own,
/// found when the library is loaded. No contraction, because `Fma` says where it is wanted; wrapping and no aliasing rules,
/// because that is what the IR's integers and buffers mean.
const FLAGS: &[&str] = &[
    "-std=gnu11",
    "-O2",
    "-shared",
    "-fPIC",
    "-nostdlib",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-w",
];
/// Part of every key: another way of compiling is another number.
const FORMAT: &str = "gristmill cpu kernels 1";
/// A compiler that is unhappy with a vector type can write megabytes.
const MESSAGE_BYTES: usize = 8 << 10;
/// The longest that a unit may take. The largest take gcc some ten seconds on a slow core; a hundred times that is a compiler that hangs.
const COMPILE_TIME: Duration = Duration::from_secs(300);
/// The longest that `--version` may take: some milliseconds, unless the machine is busy or the program lies on a network's disk.
const VERSION_TIME: Duration = Duration::from_secs(30);

/// A C compiler.
#[derive(Clone, Debug)]
pub struct Cc {
    /// Program and leading arguments, as they were given: `["gcc"]`, `["zig", "cc"]`.
    command: Vec<String>,
    /// The program, wherever it is run.
    program: PathBuf,
    /// The longest that it may take for a unit.
    limit: Duration,
    /// All that `--version` says.
    version: String,
}

impl Cc {
    /// `$CC` if it is set, else the first of `cc`, `gcc` and `clang` that runs.
    pub fn find() -> Result<Cc, Error> {
        match std::env::var("CC").ok().filter(|cc| !cc.trim().is_empty()) {
            Some(cc) => Cc::named(&cc).map_err(|e| Error::NoCompiler(format!("CC is `{cc}`, which {e}"))),
            None => ["cc", "gcc", "clang"]
                .iter()
                .find_map(|name| Cc::named(name).ok())
                .ok_or_else(|| Error::NoCompiler("none of cc, gcc and clang runs on this machine".into())),
        }
    }

    /// The compiler run by these words. The error says what it does instead of telling its version.
    pub fn named(words: &str) -> Result<Cc, String> {
        let command: Vec<String> = words.split_whitespace().map(String::from).collect();
        let Some((program, arguments)) = command.split_first() else { return Err("is empty".into()) };
        let program = located(program);
        let mut version = Command::new(&program);
        version.args(arguments).arg("--version").env("LC_ALL", "C").stdout(Stdio::piped());
        let ended = run(version, VERSION_TIME).map_err(|e| format!("does not run: {e}"))?;
        let Some(status) = ended.status else {
            return Err(format!("does not tell its version within {} s", VERSION_TIME.as_secs()));
        };
        let version = String::from_utf8_lossy(&ended.output).trim().to_owned();
        if !status.success() || version.is_empty() {
            return Err(format!("does not tell its version ({status})"));
        }
        Ok(Cc { command, program, version, limit: COMPILE_TIME })
    }

    /// With another limit to the time that a unit may take; five minutes unless said.
    pub fn with_limit(self, limit: Duration) -> Cc {
        Cc { limit, ..self }
    }

    /// Command and first line of its version, for people.
    pub fn describe(&self) -> String {
        format!("{}: {}", self.command.join(" "), self.version.lines().next().unwrap_or_default())
    }

    fn flags(isa: Isa) -> impl Iterator<Item = &'static str> {
        // On macOS a library may leave symbols to the process only when told so.
        let platform: &[&str] = if cfg!(target_os = "macos") { &["-undefined", "dynamic_lookup"] } else { &[] };
        FLAGS.iter().chain(isa.flags()).chain(platform).copied()
    }

    /// Everything that the compiled form of `source` depends on.
    pub fn key(&self, source: &str, isa: Isa) -> Key {
        let command = self.command.join(" ");
        let mut parts: Vec<&str> = vec![FORMAT, isa.name(), &command, &self.version, source];
        for flag in Cc::flags(isa) {
            parts.push(flag);
        }
        Key::of(parts)
    }

    /// A translation unit as the bytes of a shared library. `what` names it in errors; `place` is for files in between.
    pub fn compile(&self, what: &str, source: &str, isa: Isa, place: &Temporary) -> Result<Vec<u8>, Error> {
        let directory = place.path();
        let io = |doing: &str| Error::io(format!("{doing} in {}", directory.display()));
        std::fs::write(directory.join("unit.c"), source).map_err(io("writing a kernel's source"))?;
        let mut command = Command::new(&self.program);
        command.args(&self.command[1..]).args(Cc::flags(isa)).args(["-o", "unit.so", "unit.c"]).current_dir(directory);
        // The compiler's own files go where they are private and get removed.
        command.env("TMPDIR", directory).env("LC_ALL", "C").stdout(Stdio::null());
        let useless = |how: String| Error::NoCompiler(format!("`{}` {how}", self.command.join(" ")));
        let ended = run(command, self.limit).map_err(|e| useless(format!("does not run any more: {e}")))?;
        match ended.status {
            Some(status) if status.success() => {
                std::fs::read(directory.join("unit.so")).map_err(|_| useless("ran, but made no library".into()))
            }
            Some(status) => Err(Error::Compile { kernel: what.into(), message: complaint(&ended.errors, status) }),
            None => {
                let limit = self.limit.as_secs_f64();
                Err(useless(format!("was still at work on {what} after {limit} s, and was ended")))
            }
        }
    }
}

/// The program of that name with its whole path: compilers are run in another directory, in which `./cc` or a relative part of `PATH` would be
/// something else. As it was given where it cannot be found.
fn located(program: &str) -> PathBuf {
    let given = Path::new(program);
    let found = |path: PathBuf| std::path::absolute(path).ok().filter(|path| path.is_file());
    if given.components().count() > 1 {
        return found(given.into()).unwrap_or_else(|| given.into());
    }
    let places = std::env::var_os("PATH").unwrap_or_default();
    let runs = |path: &PathBuf| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    std::env::split_paths(&places)
        .filter_map(|place| found(place.join(given)))
        .find(runs)
        .unwrap_or_else(|| given.into())
}

/// How a program ended, and what it said.
struct Ended {
    /// None if it took too long, and was killed.
    status: Option<ExitStatus>,
    output: Vec<u8>,
    errors: Vec<u8>,
}

/// Runs a program for at most so long. What it has started goes with it.
fn run(mut command: Command, limit: Duration) -> std::io::Result<Ended> {
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).process_group(0).spawn()?;
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let pid = Pid::from_child(&child);
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        let output = scope.spawn(|| beginning(output));
        let errors = scope.spawn(|| beginning(errors));
        scope.spawn(move || {
            // It stays a zombie, so that its number is nobody else's yet when its group is killed.
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            let _ = send.send(());
        });
        let in_time = receive.recv_timeout(limit).is_ok();
        // Also what it may have left behind: that holds the pipes.
        let _ = kill_process_group(pid, Signal::KILL);
        let status = child.wait()?;
        let said = |reader: std::thread::ScopedJoinHandle<Vec<u8>>| reader.join().unwrap_or_default();
        Ok(Ended { status: in_time.then_some(status), output: said(output), errors: said(errors) })
    })
}

/// The first bytes of a pipe, which is read to its end: a little more than is shown of them.
fn beginning(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        let _ = pipe.by_ref().take(MESSAGE_BYTES as u64 + 1).read_to_end(&mut bytes);
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
    }
    bytes
}

/// What a failed compiler said, or how it died.
fn complaint(errors: &[u8], status: ExitStatus) -> String {
    let said = String::from_utf8_lossy(errors);
    let mut end = said.len().min(MESSAGE_BYTES);
    while !said.is_char_boundary(end) {
        end -= 1;
    }
    let cut = if end < said.len() { "\n…" } else { "" };
    format!("{}{cut}\n({})", said[..end].trim_end(), status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_compiler_is_named() {
        assert!(Cc::named("/nonexistent/cc -x").unwrap_err().contains("does not run"));
        assert!(Cc::named("false").unwrap_err().contains("version"));
        assert!(Cc::named("  ").is_err());
    }

    #[test]
    fn keys_depend_on_compiler_flags_and_text() {
        let (command, program) = (vec!["cc".into()], PathBuf::from("/usr/bin/cc"));
        let cc = Cc { command, program, version: "1".into(), limit: COMPILE_TIME };
        let newer = Cc { version: "2".into(), ..cc.clone() };
        let key = cc.key("x", Isa::Plain);
        assert_eq!(key, cc.key("x", Isa::Plain));
        assert!(![newer.key("x", Isa::Plain), cc.key("y", Isa::Plain), cc.key("x", Isa::Avx2)].contains(&key));
    }
}
