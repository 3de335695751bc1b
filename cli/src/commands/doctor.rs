//! `gristmill doctor`: does this machine's device compute what it should, and how fast: a report for whoever asks for one, as one JSON object.

use crate::bandwidth;
use crate::failure::{Failure, Result};
use crate::flags::Common;
use crate::measure::{Ids, seconds};
use crate::model::Model;
use clap::{Args, ValueHint};
use gristmill_backend::Opened;
use gristmill_llm::arch::Logits;
use gristmill_llm::engine::{Engine, TokenRun, Settings, WholePool};
use gristmill_uop::Scalar;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::Instant;

const NOTES: &str = "\
The demo model's logits are compared with those of the interpreter, in exact arithmetic and in that of every day, for a prompt and a token at a time. Then the
model is measured, whose weights are random unless a file is named. What is found is one JSON object on standard output; the exit code is 1 where something is wrong.

Examples:
  gristmill doctor > report.json                     of the device that `run` would take
  gristmill doctor --device wgpu --model demo        without a large model";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    /// The model that is measured; none is with `none`
    #[arg(long, value_name = "MODEL", value_hint = ValueHint::FilePath, default_value = "synth:youtu-llm-2b:q4_0")]
    model: String,
    /// Tokens of the prompt measured
    #[arg(short, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=4096))]
    p: u16,
    /// Tokens of the generation measured
    #[arg(short, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    n: u16,
    #[command(flatten)]
    common: Common,
}

/// The model that is measured by nobody.
const NONE: &str = "none";
/// Tokens whose logits are compared.
const TOKENS: usize = 12;
/// Tokens of a step that has several.
const CHUNK: usize = 7;
/// Context of the comparison.
const CONTEXT: usize = 64;
/// What a check may be off by, RMS in standard deviations of the logits: in exact arithmetic the order of sums alone differs (reference files keep to the same), and activations of
/// eight bits and a cache of halves move the demo's logits by 3 % behind tokens that make no text.
const CHECKS: [(&str, bool, f64); 2] = [("exact arithmetic", true, 1e-3), ("activations of eight bits", false, 0.05)];

pub fn run(options: Options) -> Result {
    options.common.check_computes()?;
    let start = Instant::now();
    // A slip in its name is told before anything takes time.
    let model = (options.model != NONE).then(|| Model::open(Some(&options.model))).transpose()?;
    let opened = options.common.open()?;
    let device = opened.device.clone();
    let expected = Oracle::new()?;
    let checks: Vec<Value> = CHECKS.iter().flat_map(|check| expected.compared(&options.common, check)).collect();
    let wrong = checks.iter().filter(|check| check["passed"] != true).count();
    say!("{} of {} comparisons are right", checks.len() - wrong, checks.len());
    let bandwidth = bandwidth::of_device(&opened);
    let measured = model.map_or(Value::Null, |model| measured(&options, &model).unwrap_or_else(said));
    let report = json!({
        "gristmill": env!("CARGO_PKG_VERSION"),
        "system": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "device": device.name(),
        "machine": opened.target.machine.name,
        "about": device.describe(),
        "warnings": device.warnings().into_iter().map(|error| Failure::from(error).text()).collect::<Vec<_>>(),
        "checks": checks,
        "read_gb_per_second": bandwidth.map(|bytes| (bytes / 1e8).round() / 10.0),
        "measured": measured,
        "seconds": start.elapsed().as_secs(),
    });
    writeln!(io::stdout().lock(), "{report:#}")?;
    match wrong {
        0 => Ok(()),
        _ => Err(Failure::new(
            format_args!("{wrong} of {} comparisons on {} are wrong", checks.len(), device.name()),
            "please report this with the JSON; `--device cpu` does without",
        )),
    }
}

/// A failure as a part of the report.
fn said(failure: Failure) -> Value {
    json!({ "error": failure.text() })
}

/// The demo model's logits as the interpreter computes them.
struct Oracle {
    model: Model,
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

impl Oracle {
    fn new() -> Result<Oracle> {
        let model = Model::open(None)?;
        let options = gristmill_backend::Options { exact: true, ..Default::default() };
        let mut engine = engine(&model, gristmill_backend::open("interp", &options)?, true)?;
        let tokens = Ids::for_engine(&engine).some(TOKENS);
        say!("the interpreter computes what is expected");
        let logits = logits(&mut engine, &tokens, 0)?;
        Ok(Oracle { model, tokens, logits })
    }
    /// What a device's logits are off by: of steps of several tokens, and of one.
    fn compared(&self, common: &Common, &(name, exact, limit): &(&str, bool, f64)) -> Vec<Value> {
        let steps = [("steps of several tokens", CHUNK), ("a token at a time", 1)];
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
        let opened = Common { exact, ..common.clone() }.open()?;
        let mut engine = engine(&self.model, opened, exact)?;
        let mut found = Vec::with_capacity(self.logits.len());
        for (i, tokens) in self.tokens.chunks(step).enumerate() {
            found.extend(logits(&mut engine, tokens, i * step)?);
        }
        Ok(rms(&found, &self.logits))
    }
}

/// Logits of all of these tokens at that position.
fn logits(engine: &mut Engine, tokens: &[u32], position: usize) -> Result<Vec<f32>> {
    let pool = WholePool::new(engine);
    Ok(engine.logits(TokenRun { tokens, position, pages: pool.pages(), contiguous: true }, Logits::All)?)
}

/// The model on a device, with little room.
fn engine(model: &Model, opened: Opened, exact: bool) -> Result<Engine> {
    let cache = if exact { Scalar::F32 } else { Scalar::F16 };
    let settings = Settings { context: Some(CONTEXT), cache, chunk: CHUNK, ..Settings::default() };
    Ok(Engine::load(&model.file, opened, settings, &|_| ())?)
}

/// RMS of the difference, in standard deviations of what is expected; infinite where something is no number.
fn rms(found: &[f32], expected: &[f32]) -> f64 {
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / expected.len() as f64;
    let centre = mean(&mut expected.iter().map(|&x| f64::from(x)));
    let spread = mean(&mut expected.iter().map(|&x| (f64::from(x) - centre).powi(2)));
    let off = mean(&mut found.iter().zip(expected).map(|(&a, &b)| f64::from(a - b).powi(2)));
    let found = (off / spread).sqrt();
    if found.is_nan() { f64::INFINITY } else { found }
}

/// Tokens a second of a model.
fn measured(options: &Options, model: &Model) -> Result<Value> {
    let (p, n) = (usize::from(options.p), usize::from(options.n));
    say!("measuring {}", options.model);
    let start = Instant::now();
    let mut engine = model.load(&options.common, Some(p.max(n) + 1))?;
    let load = start.elapsed().as_secs_f64();
    let mut ids = Ids::for_engine(&engine);
    let mut rate = |prompt: bool, tokens: usize| -> Result<f64> {
        // Once for what is only done once.
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
        "launches_of_a_token": engine.step_launches(1, n / 2).len(),
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
