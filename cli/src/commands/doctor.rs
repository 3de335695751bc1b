//! `gristmill doctor`: correctness and speed of a device, as one JSON object for a bug report.

use gristmill_llm::arch::CacheType;
use crate::bandwidth;
use crate::failure::{Failure, Result};
use crate::flags::Common;
use crate::link;
use crate::ab_bench::{Ids, seconds};
use crate::model::Model;
use clap::{Args, ValueHint};
use gristmill_backend::Opened;
use gristmill_llm::arch::Logits;
use gristmill_llm::engine::{Engine, TokenRun, Settings, WholePool};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::Instant;

const NOTES: &str = "\
Compares the demo model's logits with those of the interpreter, in f32 and with int8 activations,
in prefill and in decode. Then measures copies between device and host, and a model, by default one
with random weights. Prints a JSON object; the exit code is 1 if a comparison fails.

Examples:
  gristmill doctor > report.json                the default device
  gristmill doctor --device wgpu --model demo   without a large model";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct DoctorArgs {
    /// Model to measure; `none` for none
    #[arg(short, long, value_name = "MODEL", value_hint = ValueHint::FilePath, default_value = "synth:youtu-llm-2b:q4_0")]
    model: String,
    /// Prompt size in tokens
    #[arg(
        short = 'p', long = "n-prompt", value_name = "N", default_value_t = 128,
        value_parser = clap::value_parser!(u16).range(1..=4096)
    )]
    prompt: u16,
    /// Number of tokens to generate
    #[arg(
        short = 'n', long = "n-gen", value_name = "N", default_value_t = 32,
        value_parser = clap::value_parser!(u16).range(1..=4096)
    )]
    tokens: u16,
    #[command(flatten)]
    common: Common,
}

/// Value of --model that skips the measurement.
const NONE: &str = "none";
/// Number of tokens in a comparison of logits.
const TOKENS: usize = 12;
/// Tokens per prefill chunk.
const CHUNK: usize = 7;
/// Context of the comparison, in tokens.
const CONTEXT: usize = 64;
/// Name, `--exact` and maximum RMS error of each check, in standard deviations of the logits. In
/// f32 only the order of sums differs; after random tokens, int8 activations and an f16 KV cache
/// move the demo's logits by 3 %.
const CHECKS: [(&str, bool, f64); 2] = [("f32 arithmetic", true, 1e-3), ("int8 activations", false, 0.05)];

pub fn run(options: DoctorArgs) -> Result {
    options.common.check_one_device()?;
    options.common.check_computes()?;
    let start = Instant::now();
    // An error in the name comes before the checks.
    let model = (options.model != NONE).then(|| Model::open(Some(&options.model))).transpose()?;
    let opened = options.common.open()?;
    let device = opened.device.clone();
    let expected = Oracle::new()?;
    let checks: Vec<Value> = CHECKS.iter().flat_map(|check| expected.compared(&options.common, check)).collect();
    let wrong = checks.iter().filter(|check| check["passed"] != true).count();
    say!("{} of {} comparisons passed", checks.len() - wrong, checks.len());
    let bandwidth = bandwidth::of_device(&opened);
    let (copies, slow) = link::report(&opened);
    let warnings = device.warnings().into_iter().map(Failure::from).chain(slow);
    let warnings: Vec<String> = warnings.map(|warning| warning.text()).collect();
    let measured = model.map_or(Value::Null, |model| measured(&options, &model).unwrap_or_else(error_value));
    let report = json!({
        "gristmill": env!("CARGO_PKG_VERSION"),
        "system": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "device": device.name(),
        "machine": opened.target.machine.name,
        "about": device.describe(),
        "warnings": warnings,
        "checks": checks,
        "read_gb_per_second": bandwidth.map(|bytes| (bytes / 1e8).round() / 10.0),
        "copies": copies,
        "measured": measured,
        "seconds": start.elapsed().as_secs(),
    });
    writeln!(io::stdout().lock(), "{report:#}")?;
    match wrong {
        0 => Ok(()),
        _ => Err(Failure::new(
            format_args!("{wrong} of {} comparisons on {} failed", checks.len(), device.name()),
            "please report this with the JSON output; `--device cpu` avoids the device",
        )),
    }
}

/// A failure as a JSON value.
fn error_value(failure: Failure) -> Value {
    json!({ "error": failure.text() })
}

/// Reference logits of the demo model, computed by the interpreter.
struct Oracle {
    model: Model,
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

impl Oracle {
    fn new() -> Result<Oracle> {
        let model = Model::open(None)?;
        let options = gristmill_backend::Options { precision: gristmill_backend::Precision::Exact, ..Default::default() };
        let mut engine = engine(&model, gristmill_backend::open("interp", &options)?, true)?;
        let tokens = Ids::new(&engine).some(TOKENS);
        say!("computing reference logits on the interpreter");
        let logits = logits(&mut engine, &tokens, 0)?;
        Ok(Oracle { model, tokens, logits })
    }
    /// Compares the logits of a device in prefill chunks and in decode steps.
    fn compared(&self, common: &Common, &(name, exact, limit): &(&str, bool, f64)) -> Vec<Value> {
        let steps = [("prefill", CHUNK), ("decode", 1)];
        let row = |(how, tokens): (&str, usize)| {
            let name = format!("{name}, {how}");
            match self.off_by(common, exact, tokens) {
                Ok(rms) => json!({ "name": name, "rms": rms, "limit": limit, "passed": rms <= limit }),
                Err(failure) => json!({ "name": name, "passed": false, "error": failure.text() }),
            }
        };
        steps.into_iter().map(row).collect()
    }
    fn off_by(&self, common: &Common, exact: bool, step: usize) -> Result<f64> {
        let mut common = common.clone();
        common.exact = exact;
        let opened = common.open()?;
        let mut engine = engine(&self.model, opened, exact)?;
        let mut found = Vec::with_capacity(self.logits.len());
        for (i, tokens) in self.tokens.chunks(step).enumerate() {
            found.extend(logits(&mut engine, tokens, i * step)?);
        }
        Ok(rms(&found, &self.logits))
    }
}

/// Computes the logits of all `tokens`, the first of which is at `position`.
fn logits(engine: &mut Engine, tokens: &[u32], position: usize) -> Result<Vec<f32>> {
    let pool = WholePool::new(engine);
    Ok(engine.logits(TokenRun { tokens, position, pages: pool.pages(), contiguous: true }, Logits::All)?)
}

/// Loads a model on a device with a small context.
fn engine(model: &Model, opened: Opened, exact: bool) -> Result<Engine> {
    let cache = if exact { CacheType::F32 } else { CacheType::F16 };
    let settings = Settings { context: Some(CONTEXT), cache, chunk: CHUNK, ..Settings::default() };
    Ok(Engine::load(&model.file, opened, settings, &|_| ())?)
}

/// RMS error in standard deviations of the expected values; infinite if a value is NaN.
fn rms(found: &[f32], expected: &[f32]) -> f64 {
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / expected.len() as f64;
    let centre = mean(&mut expected.iter().map(|&x| f64::from(x)));
    let spread = mean(&mut expected.iter().map(|&x| (f64::from(x) - centre).powi(2)));
    let off = mean(&mut found.iter().zip(expected).map(|(&a, &b)| f64::from(a - b).powi(2)));
    let found = (off / spread).sqrt();
    if found.is_nan() { f64::INFINITY } else { found }
}

/// Measures prefill and decode of a model.
fn measured(options: &DoctorArgs, model: &Model) -> Result<Value> {
    let (p, n) = (usize::from(options.prompt), usize::from(options.tokens));
    say!("measuring {}", options.model);
    let start = Instant::now();
    let mut engine = model.load(&options.common, Some(p.max(n) + 1))?;
    let load = start.elapsed().as_secs_f64();
    let mut ids = Ids::new(&engine);
    let mut rate = |prompt: bool, tokens: usize| -> Result<f64> {
        // Warm-up.
        seconds(&mut engine, &ids.some(if prompt { tokens } else { 1 }), prompt, 0)?;
        Ok(tokens as f64 / seconds(&mut engine, &ids.some(tokens), prompt, 0)?)
    };
    let (prompt, generation) = (rate(true, p)?, rate(false, n)?);
    Ok(json!({
        "model": options.model,
        "load_seconds": load,
        "prompt_tokens": p,
        "prompt_tokens_per_second": prompt,
        "generated_tokens": n,
        "generated_tokens_per_second": generation,
        "launches_of_a_token": engine.step_launch_count(1, n / 2),
        "weight_bytes": engine.weights().bytes(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_far_off() {
        let expected = [1.0, 2.0, 4.0];
        assert_eq!(rms(&expected, &expected), 0.0);
        assert!(rms(&[1.0, 2.0, 4.1], &expected) < 0.1 && rms(&[1.0, 2.0, 5.0], &expected) > 0.1);
        assert_eq!(rms(&[1.0, f32::NAN, 4.0], &expected), f64::INFINITY);
    }
}
