//! The machine's C compiler: finds it, queries its version and runs it.

use super::child::{MESSAGE_BYTES, run};
use super::isa::Isa;
use crate::installation;
use gristmill_runtime::Error;
use gristmill_runtime::store::{Key, Store, Temporary};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// Compiler flags of all kernels.
///
/// `-nostdlib`: kernels use no library. A `memcpy`, `memset` or `sqrtf` that the compiler inserts
/// is resolved in the process when the library is loaded. No contraction, as `Fma` is explicit in
/// the IR; wrapping integers and no aliasing rules are the IR's semantics.
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
/// Flags of zig besides those of all compilers: its `-Og` would call a sanitizer's library.
const ZIG_FLAGS: &[&str] = &["-fno-sanitize=all"];
/// Folders that zig writes to, each set to the private directory of a compilation.
const ZIG_CACHES: [&str; 2] = ["ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"];
/// Flag that compiles in a third of the time of `-O2` (gcc 12, a unit of 390 kB: 1.3 s instead of
/// 3.9), with slower kernels, for tests of higher layers.
pub const QUICK_FLAG: &str = "-Og";
/// Version of the compilation scheme, part of each key.
const KEY_VERSION: &str = "gristmill cpu kernels 1";
/// Store key of the compiler that compiled the latest kernels.
const COMPILER_KEY: &str = "compiler 1";
/// Error message without a compiler.
const NO_COMPILER: &str =
    "none of cc, gcc and clang runs on this machine, and no zig lies beside the program";
/// Timeout of a unit. The largest take gcc some ten seconds on a slow core; 30 times
/// that is a hang.
const COMPILE_TIME: Duration = Duration::from_secs(300);
/// Timeout of `--version`, which takes milliseconds unless the machine is busy or
/// the file system remote.
const VERSION_TIME: Duration = Duration::from_secs(30);

/// A C compiler with its version.
#[derive(Clone, Debug)]
pub struct Cc {
    /// Program and arguments as given: `["gcc", "-O1"]`, `["zig", "cc"]`.
    command: Vec<String>,
    /// Absolute path of the program; None for a removed compiler with kernels in the store.
    program: Option<PathBuf>,
    /// Timeout of a unit.
    limit: Duration,
    /// Complete output of `--version`; of zig the number alone, as the rest names the kernel.
    version: String,
}

impl Cc {
    /// Finds `$CC` if it is set, else the first of `cc`, `gcc` and `clang` that runs, else the zig
    /// of the [installation].
    pub fn find() -> Result<Cc, Error> {
        if let Some(cc) = std::env::var("CC").ok().filter(|cc| !cc.trim().is_empty()) {
            return Cc::named(&cc)
                .map_err(|e| Error::NoCompiler(format!("CC is `{cc}`, which {e}")));
        }
        let usual = ["cc", "gcc", "clang"];
        if let Some(cc) = usual.iter().find_map(|name| Cc::named(name).ok()) {
            return Ok(cc);
        }
        let zig = installation::zig().ok_or_else(|| Error::NoCompiler(NO_COMPILER.into()))?;
        let named = zig.to_string_lossy().into_owned();
        Cc::from_command(vec![named.clone(), "cc".into()])
            .map_err(|e| Error::NoCompiler(format!("{NO_COMPILER} but `{named}`, which {e}")))
    }

    /// Finds a compiler as [`Cc::find`] does, else the one recorded in the store.
    ///
    /// Stored kernels run without their compiler. A compiler named by `$CC` is not replaced.
    pub fn find_or_remember(store: &Store) -> Result<Cc, Error> {
        Cc::find().or_else(|error| {
            let named = std::env::var("CC").is_ok_and(|cc| !cc.trim().is_empty());
            if named {
                Err(error)
            } else {
                Cc::remembered(store).ok_or(error)
            }
        })
    }

    /// Returns the compiler that [`Cc::remember`] recorded.
    fn remembered(store: &Store) -> Option<Cc> {
        let note = String::from_utf8(store.get(&Key::from_parts([COMPILER_KEY])).ok()??).ok()?;
        let (command, version) = note.split_once('\n')?;
        let command = command.split_whitespace().map(String::from).collect();
        Some(Cc {
            command,
            program: None,
            version: version.into(),
            limit: COMPILE_TIME,
        })
    }

    /// Records in the store that its latest kernels are this compiler's.
    pub fn remember(&self, store: &Store) {
        store.put_or_warn(
            &Key::from_parts([COMPILER_KEY]),
            format!("{}\n{}", self.command.join(" "), self.version).as_bytes(),
        );
    }

    /// Runs the compiler with this command line; the error describes a failed version query.
    pub fn named(words: &str) -> Result<Cc, String> {
        Cc::from_command(words.split_whitespace().map(String::from).collect())
    }

    /// Runs the compiler with this program and arguments, as [`Cc::named`] does.
    fn from_command(command: Vec<String>) -> Result<Cc, String> {
        let Some(program) = command.first() else {
            return Err("is empty".into());
        };
        let mut cc = Cc {
            program: Some(located(program)),
            command,
            version: String::new(),
            limit: COMPILE_TIME,
        };
        cc.version = cc.query_version()?;
        Ok(cc)
    }

    /// Runs the compiler for its version.
    fn query_version(&self) -> Result<String, String> {
        let mut query = Command::new(self.program.as_deref().unwrap_or(Path::new("")));
        match self.zig_arguments() {
            Some(before) => query.args(before).arg("version"),
            None => query.args(&self.command[1..]).arg("--version"),
        };
        query.env("LC_ALL", "C").stdout(Stdio::piped());
        let ended = run(query, VERSION_TIME).map_err(|e| format!("does not run: {e}"))?;
        let Some(status) = ended.status else {
            return Err(format!(
                "does not print its version within {} s",
                VERSION_TIME.as_secs()
            ));
        };
        let version = String::from_utf8_lossy(&ended.output).trim().to_owned();
        if !status.success() || version.is_empty() {
            return Err(format!("does not print its version ({status})"));
        }
        Ok(match self.zig_arguments() {
            Some(_) => format!("zig {version}"),
            None => version,
        })
    }

    /// Returns the arguments before `cc` if the compiler is zig, the only one with that subcommand:
    /// none of `zig cc`, two of `python -m ziglang cc`.
    fn zig_arguments(&self) -> Option<&[String]> {
        let (last, before) = self.fixed_arguments().0.split_last()?;
        (last == "cc").then_some(before)
    }

    /// Sets the timeout of a unit, five minutes by default.
    pub fn with_limit(self, limit: Duration) -> Cc {
        Cc { limit, ..self }
    }

    /// Appends a flag: `-O0` compiles in a quarter of the time of `-O2`, for tests with
    /// many short-lived texts.
    pub fn with_flag(mut self, flag: &str) -> Cc {
        self.command.push(flag.into());
        self
    }

    /// Returns the command and the first line of its version, for display.
    pub fn describe(&self) -> String {
        let gone = if self.program.is_none() {
            ", no longer installed: its compiled kernels are used"
        } else {
            ""
        };
        format!(
            "{}: {}{gone}",
            self.command.join(" "),
            self.version.lines().next().unwrap_or_default()
        )
    }

    /// Splits the given arguments after the last subcommand, as the `cc` of `zig cc` and
    /// `python -m ziglang cc`; flags follow.
    fn fixed_arguments(&self) -> (&[String], &[String]) {
        let arguments = &self.command[1..];
        let subcommand = arguments.iter().position(|a| a == "cc");
        arguments.split_at(subcommand.map_or_else(
            || {
                let flag = arguments.iter().position(|a| a.starts_with('-'));
                flag.unwrap_or(arguments.len())
            },
            |place| place + 1,
        ))
    }

    /// Returns all flags; the given ones come last and may override others.
    fn flags(&self, isa: Isa) -> Vec<&str> {
        // On macOS, undefined symbols in a library must be allowed explicitly.
        let platform: &[&str] = if cfg!(target_os = "macos") {
            &["-undefined", "dynamic_lookup"]
        } else {
            &[]
        };
        let all = FLAGS.iter().chain(platform);
        let mut flags: Vec<&str> = match self.zig_arguments() {
            Some(_) => all
                .chain(ZIG_FLAGS)
                .copied()
                .chain(isa.zig_flags())
                .collect(),
            None => all.chain(isa.flags()).copied().collect(),
        };
        flags.extend(self.fixed_arguments().1.iter().map(String::as_str));
        flags
    }

    /// Returns a key of all inputs that determine the compiled form of `source`.
    pub fn key(&self, source: &str, isa: Isa) -> Key {
        let command = self.command.join(" ");
        let mut parts: Vec<&str> = vec![KEY_VERSION, isa.name(), &command, &self.version, source];
        for flag in self.flags(isa) {
            parts.push(flag);
        }
        Key::from_parts(parts)
    }

    /// Compiles a translation unit to the bytes of a shared library.
    ///
    /// `what` names it in errors; `place` is for temporary files.
    pub fn compile(
        &self,
        what: &str,
        source: &str,
        isa: Isa,
        place: &Temporary,
    ) -> Result<Vec<u8>, Error> {
        let Some(program) = &self.program else {
            return Err(Error::NoCompiler(format!(
                "{NO_COMPILER}, and {what} has not been compiled before"
            )));
        };
        let directory = place.path();
        let io = |doing: &str| Error::io(format!("{doing} in {}", directory.display()));
        std::fs::write(directory.join("unit.c"), source)
            .map_err(io("writing a kernel's source"))?;
        let command = self.command_in(program, isa, directory, "unit");
        let useless =
            |how: String| Error::NoCompiler(format!("`{}` {how}", self.command.join(" ")));
        let ended =
            run(command, self.limit).map_err(|e| useless(format!("does not run any more: {e}")))?;
        match ended.status {
            Some(status) if status.success() => std::fs::read(directory.join("unit.so"))
                .map_err(|_| useless("ran without writing a library".into())),
            Some(status) => {
                let message = complaint(&ended.errors, status);
                match self.compiles_anything(program, isa, directory) {
                    true => Err(Error::Compile {
                        kernel: what.into(),
                        message,
                    }),
                    false => Err(useless(format!(
                        "compiles nothing for this processor ({}):\n{message}",
                        isa.name()
                    ))),
                }
            }
            None => {
                let limit = self.limit.as_secs_f64();
                let command = self.command.join(" ");
                Err(Error::CompilerHangs(format!(
                    "`{command}` did not finish {what} within {limit} s and was ended"
                )))
            }
        }
    }
}

impl Cc {
    /// Returns the command that compiles `<unit>.c` in `directory` to `<unit>.so`.
    ///
    /// The compiler's temporary files and caches go to that directory, which is private and removed
    /// later.
    fn command_in(&self, program: &Path, isa: Isa, directory: &Path, unit: &str) -> Command {
        let mut command = Command::new(program);
        command
            .args(self.fixed_arguments().0)
            .args(self.flags(isa))
            .args(["-o", &format!("{unit}.so"), &format!("{unit}.c")])
            .current_dir(directory)
            .env("TMPDIR", directory)
            .env("LC_ALL", "C")
            .stdout(Stdio::null());
        if self.zig_arguments().is_some() {
            command.envs(ZIG_CACHES.map(|name| (name, directory)));
        }
        command
    }

    /// Returns whether an empty unit compiles. If not, an error about a kernel is not
    /// the kernel's fault.
    fn compiles_anything(&self, program: &Path, isa: Isa, directory: &Path) -> bool {
        let written = std::fs::write(directory.join("empty.c"), "int gristmill_is_here;\n");
        let command = self.command_in(program, isa, directory, "empty");
        written.is_ok()
            && run(command, self.limit)
                .is_ok_and(|ended| ended.status.is_some_and(|status| status.success()))
    }
}

/// Returns the absolute path of a program, or the argument if it is not found.
///
/// Compilers run in another directory, where `./cc` or a relative entry of `PATH` would differ.
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

/// Formats the error output of a failed compiler and its exit status.
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
        assert!(
            Cc::named("/nonexistent/cc -x")
                .unwrap_err()
                .contains("does not run")
        );
        assert!(Cc::named("false").unwrap_err().contains("version"));
        assert!(Cc::named("  ").is_err());
    }

    #[test]
    fn keys_depend_on_compiler_flags_and_text() {
        let (command, program) = (vec!["cc".into()], Some(PathBuf::from("/usr/bin/cc")));
        let cc = Cc {
            command,
            program,
            version: "1".into(),
            limit: COMPILE_TIME,
        };
        let newer = Cc {
            version: "2".into(),
            ..cc.clone()
        };
        let key = cc.key("x", Isa::Plain);
        assert_eq!(key, cc.key("x", Isa::Plain));
        assert!(
            ![
                newer.key("x", Isa::Plain),
                cc.key("y", Isa::Plain),
                cc.key("x", Isa::Avx2)
            ]
            .contains(&key)
        );
    }
}
