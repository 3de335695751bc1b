//! The C compiler of the machine: found, asked for its version, run.

use super::child::{MESSAGE_BYTES, run};
use super::isa::Isa;
use gristmill_runtime::Error;
use gristmill_runtime::store::{Key, Store, Temporary};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
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
/// The flag of a compiler that makes kernels in a third of the time of `-O2` (gcc 12, a unit of 390 kB: 1.3 s for 3.9), which take longer to run: for tests of what
/// stands above kernels.
pub const QUICK_FLAG: &str = "-Og";
/// Part of every key: another way of compiling is another number.
const KEY_VERSION: &str = "gristmill cpu kernels 1";
/// Under what the compiler of the latest kernels is noted.
const COMPILER_KEY: &str = "compiler 1";
/// What a machine lacks.
const NO_COMPILER: &str = "none of cc, gcc and clang runs on this machine";
/// The longest that a unit may take. The largest take gcc some ten seconds on a slow core; thirty times that is a compiler that hangs.
const COMPILE_TIME: Duration = Duration::from_secs(300);
/// The longest that `--version` may take: some milliseconds, unless the machine is busy or the program lies on a network's disk.
const VERSION_TIME: Duration = Duration::from_secs(30);

/// A C compiler.
#[derive(Clone, Debug)]
pub struct Cc {
    /// Program and arguments, as they were given: `["gcc", "-O1"]`, `["zig", "cc"]`.
    command: Vec<String>,
    /// The program, wherever it is run; none of a compiler that is no longer there, whose kernels still are.
    program: Option<PathBuf>,
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
                .ok_or_else(|| Error::NoCompiler(NO_COMPILER.into())),
        }
    }

    /// As [`Cc::find`]. Where no compiler is named and none is there, the one whose kernels this store has: what it compiled runs without it.
    pub fn find_or_remember(store: &Store) -> Result<Cc, Error> {
        Cc::find().or_else(|error| {
            let named = std::env::var("CC").is_ok_and(|cc| !cc.trim().is_empty());
            if named { Err(error) } else { Cc::remembered(store).ok_or(error) }
        })
    }

    /// What [`Cc::remember`] has noted.
    fn remembered(store: &Store) -> Option<Cc> {
        let note = String::from_utf8(store.get(&Key::of([COMPILER_KEY])).ok()??).ok()?;
        let (command, version) = note.split_once('\n')?;
        let command = command.split_whitespace().map(String::from).collect();
        Some(Cc { command, program: None, version: version.into(), limit: COMPILE_TIME })
    }

    /// Notes in that store that its latest kernels are this compiler's.
    pub fn remember(&self, store: &Store) {
        store.keep(&Key::of([COMPILER_KEY]), format!("{}\n{}", self.command.join(" "), self.version).as_bytes());
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
        Ok(Cc { command, program: Some(program), version, limit: COMPILE_TIME })
    }

    /// With another limit to the time that a unit may take; five minutes unless said.
    pub fn with_limit(self, limit: Duration) -> Cc {
        Cc { limit, ..self }
    }

    /// With this flag after all others: `-O0` compiles in a quarter of the time of `-O2`, for tests of many texts that run for a moment each.
    pub fn with_flag(mut self, flag: &str) -> Cc {
        self.command.push(flag.into());
        self
    }

    /// Command and first line of its version, for people.
    pub fn describe(&self) -> String {
        let gone = if self.program.is_none() { ", no longer here: what it compiled is used" } else { "" };
        format!("{}: {}{gone}", self.command.join(" "), self.version.lines().next().unwrap_or_default())
    }

    /// What is given with the program: words that belong to it, as the `cc` of `zig cc`, and flags, from the first that begins with `-`.
    fn given(&self) -> (&[String], &[String]) {
        let arguments = &self.command[1..];
        arguments.split_at(arguments.iter().position(|a| a.starts_with('-')).unwrap_or(arguments.len()))
    }

    /// All flags; those that were given come last, and may take one back.
    fn flags(&self, isa: Isa) -> Vec<&str> {
        // On macOS a library may leave symbols to the process only when told so.
        let platform: &[&str] = if cfg!(target_os = "macos") { &["-undefined", "dynamic_lookup"] } else { &[] };
        let mut flags: Vec<&str> = FLAGS.iter().chain(isa.flags()).chain(platform).copied().collect();
        flags.extend(self.given().1.iter().map(String::as_str));
        flags
    }

    /// Everything that the compiled form of `source` depends on.
    pub fn key(&self, source: &str, isa: Isa) -> Key {
        let command = self.command.join(" ");
        let mut parts: Vec<&str> = vec![KEY_VERSION, isa.name(), &command, &self.version, source];
        for flag in self.flags(isa) {
            parts.push(flag);
        }
        Key::of(parts)
    }

    /// A translation unit as the bytes of a shared library. `what` names it in errors; `place` is for files in between.
    pub fn compile(&self, what: &str, source: &str, isa: Isa, place: &Temporary) -> Result<Vec<u8>, Error> {
        let Some(program) = &self.program else {
            return Err(Error::NoCompiler(format!("{NO_COMPILER}, and {what} has not been compiled before")));
        };
        let directory = place.path();
        let io = |doing: &str| Error::io(format!("{doing} in {}", directory.display()));
        std::fs::write(directory.join("unit.c"), source).map_err(io("writing a kernel's source"))?;
        let mut command = Command::new(program);
        command.args(self.given().0).args(self.flags(isa)).args(["-o", "unit.so", "unit.c"]).current_dir(directory);
        // The compiler's own files go where they are private and get removed.
        command.env("TMPDIR", directory).env("LC_ALL", "C").stdout(Stdio::null());
        let useless = |how: String| Error::NoCompiler(format!("`{}` {how}", self.command.join(" ")));
        let ended = run(command, self.limit).map_err(|e| useless(format!("does not run any more: {e}")))?;
        match ended.status {
            Some(status) if status.success() => {
                std::fs::read(directory.join("unit.so")).map_err(|_| useless("ran, but made no library".into()))
            }
            Some(status) => {
                let message = complaint(&ended.errors, status);
                match self.compiles_anything(program, isa, directory) {
                    true => Err(Error::Compile { kernel: what.into(), message }),
                    false => Err(useless(format!("compiles nothing for this processor ({}):\n{message}", isa.name()))),
                }
            }
            None => {
                let limit = self.limit.as_secs_f64();
                let command = self.command.join(" ");
                Err(Error::CompilerHangs(format!(
                    "`{command}` was still at work on {what} after {limit} s, and was ended"
                )))
            }
        }
    }
}

impl Cc {
    /// Does it make a library of an empty unit? Where it does not, what it said of a kernel is not the kernel's fault.
    fn compiles_anything(&self, program: &Path, isa: Isa, directory: &Path) -> bool {
        let mut command = Command::new(program);
        command.args(self.given().0).args(self.flags(isa)).args(["-o", "empty.so", "empty.c"]).current_dir(directory);
        command.env("TMPDIR", directory).env("LC_ALL", "C").stdout(Stdio::null());
        let written = std::fs::write(directory.join("empty.c"), "int gristmill_is_here;\n");
        written.is_ok()
            && run(command, self.limit).is_ok_and(|ended| ended.status.is_some_and(|status| status.success()))
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
        let (command, program) = (vec!["cc".into()], Some(PathBuf::from("/usr/bin/cc")));
        let cc = Cc { command, program, version: "1".into(), limit: COMPILE_TIME };
        let newer = Cc { version: "2".into(), ..cc.clone() };
        let key = cc.key("x", Isa::Plain);
        assert_eq!(key, cc.key("x", Isa::Plain));
        assert!(![newer.key("x", Isa::Plain), cc.key("y", Isa::Plain), cc.key("x", Isa::Avx2)].contains(&key));
    }
}
