//! `gristmill bench`: the decode step is the unit of truth; its speed stands beside the machine's read bandwidth.

use crate::bandwidth;
use crate::failure::{Failure, Result, printable};
use crate::flags::{Common, optimisations};
use crate::measure::{Ids, Rivals, Work, seconds, shown};
use crate::model::{self, Model};
use crate::progress;
use crate::sequences::{self, Batches};
use clap::{Args, ValueHint};
use gristmill_backend::Opened;
use gristmill_llm::engine::Engine;
use gristmill_uop::target::{FLAGS, Flag};
use serde_json::json;
use std::io::{self, Write};
use std::time::Instant;

const NOTES: &str = "\
Depths are measured on a cache filled with numbers that mean nothing: the time of a step depends on how many rows it
reads, not on what is in them. Bytes per token are what must be read: the weights in use and the cache. For a prompt they
are those of one chunk, each expert that is expected to be hit counted once, divided by its tokens. Bandwidth is their
share of what this machine's memory delivers when it is only read.
--ablate compiles the model once for every optimisation, or for each that is named (--ablate=int8,merge), with it off, and measures it turn by turn with the base at depth 0.
Both read one copy of the weights. Those whose layout the optimisation decides (`int8` most of them) are loaded apart where memory
holds them twice; else the two are measured one after the other. `worth` is how much faster the model is with it.

Examples:
  gristmill bench glm-4.7-flash                                       512 tokens of a prompt, 128 that are generated
  gristmill bench MODEL.gguf -p 0 -n 64 -d 0,4096,16384               generation at three depths
  gristmill bench MODEL.gguf -p 256 -n 32 --batch 1,2,4,8             generation of several sequences together
  gristmill bench MODEL.gguf --threads 1 --json | jq .tokens_per_second
  gristmill bench synth:youtu-llm-2b:q4_0 --ablate -p 128 -n 32       what each optimisation is worth
  gristmill bench MODEL.gguf --ablate=int8,merge -p 0                 what two of them are, of generation";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    #[arg(value_hint = ValueHint::FilePath, help = model::HELP)]
    model: String,
    /// Tokens of the prompts measured; 0 for none
    #[arg(short, value_name = "N", default_value_t = 512)]
    p: usize,
    /// Tokens of the generations measured; 0 for none
    #[arg(short, value_name = "N", default_value_t = 128)]
    n: usize,
    /// Tokens in the cache before
    #[arg(short, value_name = "DEPTH", value_delimiter = ',', default_value = "0")]
    d: Vec<usize>,
    /// Repetitions
    #[arg(short, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    r: u16,
    /// What each optimisation is worth, or each of those that are named: the same with one after the other switched off
    #[arg(long, value_name = "NAME,…", num_args = 0.., require_equals = true, value_delimiter = ',', value_parser = optimisations(), hide_possible_values = true)]
    ablate: Option<Vec<String>>,
    /// Generation of so many sequences in one step, each behind -p tokens, instead
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=512), conflicts_with = "ablate")]
    batch: Vec<u16>,
    /// With --batch: all steps as those of the most sequences, which `serve` takes for answers with a seed or temperature 0
    #[arg(long, requires = "batch")]
    batch_invariant: bool,
    /// One JSON object a line instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    common: Common,
}

/// Tokens of the prompt whose first answer is timed.
const FIRST: usize = 32;
/// Above the rows of the table.
const HEADING: &str =
    "    test   depth              tok/s     ms/tok     MB/tok  bandwidth   launches";

pub fn run(options: Options) -> Result {
    if options.p == 0 && options.n == 0 {
        return Err(Failure::usage("-p 0 and -n 0 leave nothing to measure", "give tokens to one of them, -n 128 for example"));
    }
    let model = Model::open(Some(&options.model))?;
    let context = context(&options, model.describe()?.context())?;
    let opened = options.common.open()?;
    if !options.batch.is_empty() {
        let sequences: Vec<usize> = options.batch.iter().copied().map(usize::from).collect();
        let (prompt, tokens, times) = (options.p, options.n.max(1), options.r.into());
        let (invariant, json) = (options.batch_invariant, options.json);
        let batches = Batches { sequences: &sequences, prompt, tokens, times, invariant, json };
        return sequences::run(&batches, &model, opened, &options.common);
    }
    if let Some(names) = &options.ablate {
        return ablate(names, &options, &model, opened, context);
    }
    one_sequence(&options, &model, opened, context)
}

/// Tokens of context that the tests need, of `most` that the model has.
fn context(options: &Options, most: usize) -> Result<usize> {
    let longest = options.p.max(options.n).max(FIRST + 1).min(most);
    let together = if options.batch.is_empty() { 0 } else { options.p + options.n };
    let needed = options.d.iter().map(|d| d.saturating_add(options.p.max(options.n))).max().unwrap_or(0);
    let context = needed.max(longest).max(together);
    let given = options.common.ctx.map_or(most, |c| c as usize);
    if context <= given {
        return Ok(context);
    }
    Err(Failure::new(
        format_args!("the tests need {context} tokens of context, and there are {given}"),
        format!("choose -p, -n and -d so that the depth and either of the others make at most {given} together"),
    ))
}

/// Prompts and generation of one sequence, at each depth.
fn one_sequence(options: &Options, model: &Model, opened: Opened, context: usize) -> Result {
    // Before the model takes its memory.
    let of_device = bandwidth::of_device(&opened);
    let start = Instant::now();
    let mut engine = model.load_on(opened, &options.common, Some(context))?;
    let load = start.elapsed().as_secs_f64();
    let mut ids = Ids::for_engine(&engine);
    let start = Instant::now();
    let prompt = ids.some(FIRST.min(engine.context()));
    seconds(&mut engine, &prompt, true, 0)?;
    let first = start.elapsed().as_secs_f64();

    let read = |engine: &Engine| of_device.or_else(|| bandwidth::of_weights(engine, options.common.team()));
    let gb = engine.weights().bytes() as f64 / 1e9;
    let about = format!(
        "{}: {gb:.3} GB of weights in {load:.2} s (compilation included), first token of a {FIRST}-token prompt {:.0} ms, {}",
        printable(&model.name),
        first * 1e3,
        read(&engine).map_or("read bandwidth unknown".into(), |b| format!("read bandwidth {:.1} GB/s", b / 1e9)),
    );
    let mut out = io::stdout().lock();
    if options.json {
        say!("{about}");
    } else {
        writeln!(out, "{about}\n{HEADING}")?;
    }
    for &depth in &options.d {
        engine.fill_cache_for_bench(depth)?;
        for (prompt, tokens) in [(true, options.p), (false, options.n)] {
            if tokens == 0 {
                continue;
            }
            let before = read(&engine);
            let times = measure(&mut engine, &mut ids, prompt, tokens, depth, options.r)?;
            // Memory that others use too is not as fast from one minute to the next.
            let delivered = before.zip(read(&engine)).map(|(a, b)| a.max(b));
            let result = Measured::new(&mut engine, Test { prompt, tokens, depth }, &times, delivered);
            match options.json {
                true => writeln!(out, "{}", result.json(&engine, &model.name))?,
                false => writeln!(out, "{}", result.row())?,
            }
            out.flush()?;
        }
    }
    Ok(())
}

/// What is run.
struct Test {
    /// A prompt, or generation?
    prompt: bool,
    tokens: usize,
    /// Tokens that are in the cache before.
    depth: usize,
}

/// What a test came to.
struct Measured {
    test: Test,
    /// Tokens a second: their mean and deviation.
    mean: f64,
    deviation: f64,
    /// Bytes that a token reads.
    bytes: f64,
    /// The part of memory's speed that this is, where that is known.
    fraction: Option<f64>,
    /// Launches of a token.
    launches: f64,
}

impl Measured {
    /// Of repetitions that took so many seconds each, while memory delivered so many bytes a second.
    fn new(engine: &mut Engine, test: Test, times: &[f64], delivered: Option<f64>) -> Measured {
        let Test { prompt, tokens, depth } = test;
        let rates: Vec<f64> = times.iter().map(|t| tokens as f64 / t).collect();
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let deviation = (rates.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / rates.len() as f64).sqrt();
        let step = if prompt { tokens.min(engine.longest_step()) } else { 1 };
        // A prompt's chunks lie between its ends, a generation's steps too.
        let middle = depth + (tokens - step) / 2;
        let bytes = engine.traffic(step, middle).total() / step as f64;
        let launches = engine.step_launches(step, middle).len() as f64 / step as f64;
        Measured { test, mean, deviation, bytes, fraction: delivered.map(|d| bytes * mean / d), launches }
    }
    fn name(&self) -> String {
        format!("{}{}", if self.test.prompt { "pp" } else { "tg" }, self.test.tokens)
    }
    fn json(&self, engine: &Engine, model: &str) -> serde_json::Value {
        json!({
            "model": model,
            "device": engine.device().name(),
            "test": self.name(),
            "depth": self.test.depth,
            "tokens_per_second": self.mean,
            "ms_per_token": 1e3 / self.mean,
            "bytes_per_token": self.bytes.round() as u64,
            "bandwidth_fraction": self.fraction,
            "launches_per_token": self.launches,
        })
    }
    /// Its row of the table.
    fn row(&self) -> String {
        let share = self.fraction.map_or("?".into(), |f| format!("{:.1} %", f * 100.0));
        let rate = format!("{:.2} ± {:.2}", self.mean, self.deviation);
        format!(
            "{:>8} {:>7} {rate:>18} {:>10.3} {:>10.3} {share:>10} {:>10.2}",
            self.name(),
            self.test.depth,
            1e3 / self.mean,
            self.bytes / 1e6,
            self.launches
        )
    }
}

/// Seconds of each repetition.
fn measure(engine: &mut Engine, ids: &mut Ids, prompt: bool, tokens: usize, depth: usize, r: u16) -> Result<Vec<f64>> {
    let bar = progress::count(if prompt { "prompts" } else { "tokens" }, u64::from(r));
    // Once for what is only done once.
    seconds(engine, &ids.some(if prompt { tokens.min(engine.longest_step()) } else { 1 }), prompt, depth)?;
    let mut times = Vec::new();
    for _ in 0..r {
        times.push(seconds(engine, &ids.some(tokens), prompt, depth)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(times)
}

/// How much faster the model is with an optimisation, from the ratio of its speeds without and with it.
fn worth(ratio: Option<f64>) -> String {
    ratio.map_or("-".into(), |r| format!("{:+.1} %", 100.0 * (1.0 / r - 1.0)))
}

/// Each optimisation of these names off, or each there is, against all of them on.
fn ablate(names: &[String], options: &Options, model: &Model, opened: Opened, context: usize) -> Result {
    let work = Work { prompt: options.p, tokens: options.n, depth: 0, times: options.r.into() };
    let mut rivals = Rivals::new(model, &options.common, opened, context, work);
    let base = rivals.target().clone();
    let mut out = io::stdout().lock();
    let is_asked = |flag: &&Flag| names.is_empty() || names.iter().any(|name| name == flag.name);
    let without = |flag: &Flag| {
        let mut without = base.clone();
        (flag.off)(&mut without);
        without
    };
    // What the device does without anyway has no row.
    let acts = |flag: &&Flag| flag.acts_on(base.machine.kind) && without(flag) != base;
    let flags: Vec<&Flag> = FLAGS.iter().filter(is_asked).filter(acts).collect();
    if flags.is_empty() {
        let hint = "leave the names out to measure what does";
        return Err(Failure::new(format_args!("{} is without {} anyway", base.name, names.join(", ")), hint));
    }
    if !options.json {
        writeln!(
            out,
            "{:<12} {:>13} {:>9} {:>9} {:>14} {:>9} {:>9}  what is off",
            "without", "decode tok/s", "with", "worth", "prefill tok/s", "with", "worth"
        )?;
    }
    for flag in flags {
        let [with, off] = rivals.compare(&base, &without(flag))?.speeds;
        let ratio = off.over(&with);
        if options.json {
            let line = json!({
                "model": model.name,
                "device": base.name,
                "flag": flag.name,
                "does": flag.doc,
                "decode_tokens_per_second": off.decode,
                "decode_ratio": ratio.decode,
                "prefill_tokens_per_second": off.prefill,
                "prefill_ratio": ratio.prefill,
                "base_decode_tokens_per_second": with.decode,
                "base_prefill_tokens_per_second": with.prefill,
            });
            writeln!(out, "{line}")?;
        } else {
            writeln!(
                out,
                "{:<12} {:>13} {:>9} {:>9} {:>14} {:>9} {:>9}  {}",
                flag.name,
                shown(off.decode),
                shown(with.decode),
                worth(ratio.decode),
                shown(off.prefill),
                shown(with.prefill),
                worth(ratio.prefill),
                flag.doc
            )?;
        }
        out.flush()?;
    }
    Ok(())
}
