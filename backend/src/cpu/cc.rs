//! The C compiler of the machine: found, asked for its version, run.

use super::isa::Isa;
use gristmill_runtime::Error;
use gristmill_runtime::store::{Key, Temporary};
use std::process::{Command, Output, Stdio};

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

/// A C compiler.
#[derive(Clone, Debug)]
pub struct Cc {
    /// Program and leading arguments: `["gcc"]`, `["zig", "cc"]`.
    command: Vec<String>,
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
        let output = Command::new(program)
            .args(arguments)
            .arg("--version")
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("does not run: {e}"))?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !output.status.success() || version.is_empty() {
            return Err(format!("does not tell its version ({})", output.status));
        }
        Ok(Cc { command, version })
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
        let output = Command::new(&self.command[0])
            .args(&self.command[1..])
            .args(Cc::flags(isa))
            .args(["-o", "unit.so", "unit.c"])
            .current_dir(directory)
            // The compiler's own files go where they are private and get removed.
            .env("TMPDIR", directory)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .map_err(|e| Error::NoCompiler(format!("`{}` does not run any more: {e}", self.command.join(" "))))?;
        if !output.status.success() {
            return Err(Error::Compile { kernel: what.into(), message: complaint(&output) });
        }
        std::fs::read(directory.join("unit.so"))
            .map_err(|_| Error::NoCompiler(format!("`{}` ran, but made no library", self.command.join(" "))))
    }
}

/// What a failed compiler said, or how it died.
fn complaint(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let mut end = said.len().min(MESSAGE_BYTES);
    while !said.is_char_boundary(end) {
        end -= 1;
    }
    let cut = if end < said.len() { "\n…" } else { "" };
    format!("{}{cut}\n({})", said[..end].trim_end(), output.status)
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
        let cc = Cc { command: vec!["cc".into()], version: "1".into() };
        let newer = Cc { version: "2".into(), ..cc.clone() };
        let key = cc.key("x", Isa::Plain);
        assert_eq!(key, cc.key("x", Isa::Plain));
        assert!(![newer.key("x", Isa::Plain), cc.key("y", Isa::Plain), cc.key("x", Isa::Avx2)].contains(&key));
    }
}
