//! Runs gristmill and llama-bench, and parses their output.

use crate::benchmarks::report::Test;
use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Hint for a peer that is missing or prints something unexpected.
pub const PEER_HINT: &str = "in llama.cpp's folder, `cmake -B build -DCMAKE_BUILD_TYPE=Release && cmake --build build \
    --target llama-bench`, then --peer build/bin/llama-bench";

const OUR_HINT: &str = "--gristmill needs a gristmill with a `bench --json` that prints one object per line; \
    leave it out to build this tree's";

/// One measurement: tokens/s, or seconds for the start-up test.
#[derive(Debug, PartialEq)]
pub struct Sample {
    pub value: f64,
    /// Bytes of weights and KV cache that are read per token.
    pub bytes_per_token: Option<f64>,
    /// Read bandwidth in bytes/s, as measured by this process.
    pub read_bandwidth: Option<f64>,
}

pub struct Gristmill {
    pub path: PathBuf,
    pub threads: usize,
    pub isa: Option<String>,
}

/// One line of `gristmill bench --json`; other fields are ignored.
#[derive(Deserialize)]
struct OurLine {
    test: String,
    depth: usize,
    tokens_per_second: f64,
    bytes_per_token: f64,
    bandwidth_fraction: Option<f64>,
}

impl Gristmill {
    pub fn sample(&self, model: &Path, test: Test, depth: usize) -> Result<Sample> {
        match test {
            Test::Start => self.start(model),
            Test::Prompt(p) => self.bench(model, test, p, 0, depth),
            Test::Generation(n) => self.bench(model, test, 0, n, depth),
        }
    }

    fn bench(&self, model: &Path, test: Test, p: usize, n: usize, depth: usize) -> Result<Sample> {
        let mut command = self.command("bench", model);
        command.args(["-r", "1", "--json", "-p", &p.to_string(), "-n", &n.to_string(), "-d", &depth.to_string()]);
        our_sample(&output(&mut command)?, test, depth)
            .with_context(|| format!("cannot read what {} printed", self.path.display()))
    }

    /// Measures the seconds of a process that loads the model and computes one token.
    fn start(&self, model: &Path) -> Result<Sample> {
        let file = std::env::temp_dir().join(format!("gristmill-start-{}.npy", std::process::id()));
        let mut command = self.command("logits", model);
        command.args(["--tokens", "1", "--step", "--ctx", "512", "-o"]).arg(&file);
        let start = Instant::now();
        let done = output(&mut command);
        let value = start.elapsed().as_secs_f64();
        // The file may not exist.
        let _ = std::fs::remove_file(&file);
        done.map(|_| Sample { value, bytes_per_token: None, read_bandwidth: None })
    }

    fn command(&self, name: &str, model: &Path) -> Command {
        let mut command = Command::new(&self.path);
        // The peer runs on the CPU, so gristmill does too, even on a machine with a GPU.
        command.arg(name).arg(model).args(["--device", "cpu", "--threads", &self.threads.to_string()]);
        if let Some(isa) = &self.isa {
            command.args(["--isa", isa]);
        }
        command
    }
}

fn our_sample(text: &str, test: Test, depth: usize) -> Result<Sample> {
    let lines: Vec<OurLine> = lines(text, OUR_HINT)?;
    let Some(line) = lines.iter().find(|l| l.test == test.to_string() && l.depth == depth) else {
        bail!("no line with test {test} and depth {depth}\nhint: {OUR_HINT}");
    };
    // bandwidth_fraction = speed × bytes / bandwidth.
    let read_bandwidth = line.bandwidth_fraction.filter(|f| *f > 0.0);
    Ok(Sample {
        value: positive(line.tokens_per_second)?,
        bytes_per_token: Some(line.bytes_per_token),
        read_bandwidth: read_bandwidth.map(|f| line.bytes_per_token * line.tokens_per_second / f),
    })
}

pub struct LlamaBench {
    pub path: PathBuf,
    pub threads: usize,
    /// Values of -fa to measure.
    pub flash: Vec<u8>,
}

/// One line of `llama-bench -o jsonl`; other fields are ignored.
#[derive(Deserialize)]
struct PeerLine {
    build_commit: String,
    build_number: u64,
    n_prompt: usize,
    n_gen: usize,
    n_depth: usize,
    flash_attn: i64,
    samples_ts: Vec<f64>,
}

/// One sample of llama-bench.
#[derive(Debug, PartialEq)]
pub struct PeerSample {
    pub value: f64,
    /// Value of -fa (flash attention).
    pub flash: u8,
    /// Build number and commit that llama-bench reports.
    pub build: String,
}

impl LlamaBench {
    /// Returns one sample for each value of -fa.
    pub fn samples(&self, model: &Path, test: Test, depth: usize) -> Result<Vec<PeerSample>> {
        let (p, n) = match test {
            Test::Start => return self.flash.iter().map(|&flash| self.start(model, flash)).collect(),
            Test::Prompt(p) => (p, 0),
            Test::Generation(n) => (0, n),
        };
        let flash: Vec<String> = self.flash.iter().map(|f| f.to_string()).collect();
        let text = output(self.command(model, p, n, depth, &flash.join(",")).args(["-r", "1"]))?;
        self.read(&text, p, n, depth)
    }

    fn start(&self, model: &Path, flash: u8) -> Result<PeerSample> {
        let mut command = self.command(model, 1, 0, 0, &flash.to_string());
        let start = Instant::now();
        let text = output(command.args(["-r", "1", "--no-warmup"]))?;
        let value = start.elapsed().as_secs_f64();
        let mut samples = self.read(&text, 1, 0, 0)?;
        samples.pop().map(|sample| PeerSample { value, ..sample }).context("it printed no sample")
    }

    fn read(&self, text: &str, p: usize, n: usize, depth: usize) -> Result<Vec<PeerSample>> {
        peer_samples(text, p, n, depth).with_context(|| format!("cannot read what {} printed", self.path.display()))
    }

    fn command(&self, model: &Path, p: usize, n: usize, depth: usize, flash: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.arg("-m").arg(model).args(["-o", "jsonl", "-ctk", "f16", "-ctv", "f16", "-fa", flash]);
        command.args(["-t", &self.threads.to_string(), "-p", &p.to_string(), "-n", &n.to_string()]);
        command.args(["-d", &depth.to_string()]);
        command
    }
}

fn peer_samples(text: &str, p: usize, n: usize, depth: usize) -> Result<Vec<PeerSample>> {
    let lines: Vec<PeerLine> = lines(text, PEER_HINT)?;
    let mut samples = vec![];
    for line in lines.iter().filter(|l| (l.n_prompt, l.n_gen, l.n_depth) == (p, n, depth)) {
        let [value] = line.samples_ts[..] else {
            bail!("{} samples where one was asked for\nhint: {PEER_HINT}", line.samples_ts.len());
        };
        let build = format!("build {} ({})", line.build_number, line.build_commit);
        samples.push(PeerSample { value: positive(value)?, flash: u8::from(line.flash_attn > 0), build });
    }
    if samples.is_empty() {
        bail!("no line with n_prompt {p}, n_gen {n} and n_depth {depth}\nhint: {PEER_HINT}");
    }
    Ok(samples)
}

fn positive(value: f64) -> Result<f64> {
    if !(value.is_finite() && value > 0.0) {
        bail!("{value} tokens a second cannot be\nhint: measure again with more tokens (-p, -n)");
    }
    Ok(value)
}

/// Parses JSON objects, one per line.
fn lines<T: DeserializeOwned>(text: &str, hint: &str) -> Result<Vec<T>> {
    let parse = |line: &str| {
        serde_json::from_str(line).map_err(|e| anyhow!("not the JSON expected ({e}): {line}\nhint: {hint}"))
    };
    text.lines().filter(|line| !line.trim().is_empty()).map(parse).collect()
}

/// Lines of a failed program's standard error that
/// the message repeats; llama-bench prints hundreds.
const LOG_TAIL_LINES: usize = 12;

/// Returns standard output; a failure quotes the end of standard error.
fn output(command: &mut Command) -> Result<String> {
    let out = command.output().map_err(|e| {
        let program = command.get_program().to_string_lossy();
        anyhow!("cannot start {program}: {e}\nhint: check that it was built for this machine")
    })?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        let said: Vec<&str> = said.lines().collect();
        let said = said[said.len().saturating_sub(LOG_TAIL_LINES)..].join("\n");
        bail!("{command:?}: {}\n{said}\nhint: run this command by itself to see the cause", out.status);
    }
    String::from_utf8(out.stdout).with_context(|| format!("{command:?}: output is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = r#"{"model":"m","device":"cpu","test":"tg4","depth":64,"tokens_per_second":20.0,"ms_per_token":50.0,
"bytes_per_token":1000000000,"bandwidth_fraction":0.5,"launches_per_token":40.0}"#;

    fn peer(flash: i64, samples: &str) -> String {
        format!(
            "{{\"build_commit\":\"abc\",\"build_number\":7,\"cpu_info\":\"\",\"n_prompt\":0,\"n_gen\":4,\"n_depth\":64,\
             \"flash_attn\":{flash},\"samples_ns\":[1],\"samples_ts\":[{samples}]}}\n"
        )
    }

    #[test]
    fn ours_is_read() -> Result<()> {
        let text = OURS.replace('\n', "");
        let expected = Sample { value: 20.0, bytes_per_token: Some(1e9), read_bandwidth: Some(40e9) };
        assert_eq!(our_sample(&text, Test::Generation(4), 64)?, expected);
        let unknown = text.replace("0.5", "null");
        assert_eq!(our_sample(&unknown, Test::Generation(4), 64)?.read_bandwidth, None);
        let error = our_sample(&text, Test::Prompt(4), 64).unwrap_err().to_string();
        assert!(error.contains("pp4") && error.contains("hint:"), "{error}");
        assert!(our_sample(&text.replace("20.0", "0"), Test::Generation(4), 64).is_err());
        Ok(())
    }

    #[test]
    fn the_peer_is_read() -> Result<()> {
        let text = peer(0, "12.5") + &peer(1, "13.5");
        let sample = |value, flash| PeerSample { value, flash, build: "build 7 (abc)".to_owned() };
        assert_eq!(peer_samples(&text, 0, 4, 64)?, [sample(12.5, 0), sample(13.5, 1)]);
        for (text, part) in [("", "no line"), ("| model | size |", "hint:"), (&peer(0, "1, 2"), "2 samples")] {
            let error = format!("{:#}", peer_samples(text, 0, 4, 64).unwrap_err());
            assert!(error.contains(part) && error.contains("hint:"), "{error}");
        }
        Ok(())
    }

    #[test]
    fn a_program_that_fails_is_quoted() {
        let error = output(Command::new("git").arg("no-such-command")).unwrap_err().to_string();
        assert!(error.contains("no-such-command") && error.contains("hint:"), "{error}");
        let error = output(&mut Command::new("no/such/program")).unwrap_err().to_string();
        assert!(error.contains("no/such/program") && error.contains("hint:"), "{error}");
    }
}
