//! Tests of the built binary on the demo model.

mod bad;
mod clients;
mod convert;
mod deploy;
mod grammars;
mod merge;
mod minutes;
mod names;
mod numbers;
mod profile;
mod quantize;
mod replicas;
mod router;
mod routers;
mod serve;
mod show;
mod templates;
mod terminal;
mod text;
mod train;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Once;

/// Path of the demo model.
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo-glm-Q4_0.gguf");

/// Path of a test data file.
fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

/// A command with a kernel cache of the tests, kept between runs.
fn gristmill(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gristmill"));
    command.args(arguments).stdin(Stdio::null());
    let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    command
        .env("GRISTMILL_CACHE", home.join("gristmill-cache"))
        .env("XDG_DATA_HOME", home.join("data"));
    command.env("XDG_STATE_HOME", home.join("state"));
    // Compiles kernels three times as fast as `-O2`.
    command.env("CC", "cc -Og");
    // The default device is the CPU, on machines with a GPU too.
    command.env("CUDA_VISIBLE_DEVICES", "");
    command
}

/// Exit code and output of a run.
struct Outcome {
    code: i32,
    stdout: String,
    stderr: String,
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Outcome {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        let outcome = Outcome {
            code: output.status.code().unwrap_or(-1),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        };
        assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
        outcome
    }
}

impl Outcome {
    /// Returns the standard output of a successful run.
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self.stdout
    }
    /// Returns the standard error of a failed run, with error and hint.
    #[track_caller]
    fn failed(self) -> String {
        assert_eq!(self.code, 1, "{}{}", self.stdout, self.stderr);
        assert!(
            self.stderr.contains("error: ") && self.stderr.contains("\nhint: "),
            "{}",
            self.stderr
        );
        self.stderr
    }
}

fn outcome(command: &mut Command) -> Outcome {
    command.output().expect("it runs").into()
}

/// Runs the program; the first call compiles the kernels, so that concurrent tests do not.
fn run(arguments: &[&str]) -> Outcome {
    static COMPILED: Once = Once::new();
    COMPILED.call_once(|| {
        outcome(&mut gristmill(&["run", "-p", "x", "-n", "1"])).ok();
    });
    outcome(&mut gristmill(arguments))
}

/// Runs the program with `input` on standard input.
fn piped(arguments: &[&str], input: &[u8]) -> Outcome {
    let mut command = gristmill(arguments);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    // The program may have failed before reading.
    let _ = child.stdin.take().expect("piped").write_all(input);
    child.wait_with_output().expect("it ends").into()
}
