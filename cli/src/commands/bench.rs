//! `gristmill bench`: prefill and decode throughput, next to the machine's read bandwidth.

use crate::ab_bench::{Ids, Variants, Work, seconds, shown};
use crate::bandwidth;
use crate::bench_batch::{self, Batches};
use crate::bench_drafts::{self, Drafts};
use crate::failure::{Failure, Result, printable};
use crate::flags::{Common, optimisations};
use crate::model::Model;
use crate::model_arg::ModelArg;
use crate::progress;
use crate::speculation::Speculation;
use crate::table::{Column, Format, Table};
use clap::Args;
use gristmill_backend::Opened;
use gristmill_llm::engine::Engine;
use gristmill_uop::target::{FLAGS, Flag};
use serde_json::json;
use std::io;
use std::time::Instant;

const NOTES: &str = "\
Each size of -p and -n is one row at each depth of -d, named as in llama-bench: pp512 is the
prefill of 512 tokens, tg128 the generation of 128. The KV cache before it holds arbitrary values,
since the time of a step depends on the number of cached rows only.

`MB/tok` is the memory that a token must read: the weights in use and the KV cache. For a prompt
it is that of one prefill chunk, each expert expected to be hit counted once, divided by its
tokens. `bandwidth` is the share of the read bandwidth that was measured on this machine.

--ablate compiles the model once for each optimisation with it disabled and alternates it
with the baseline, at depth 0. Both share weights; those in another layout are loaded twice if
memory allows, else the two are measured one after the other. `gain` is the speedup by the
optimisation.

Examples:
  gristmill bench glm-4.7-flash                                   prefill of 512, decode of 128
  gristmill bench MODEL.gguf -p 512,2048 -n 64,128                two prompt sizes, two generations
  gristmill bench MODEL.gguf -p 0 -n 64 -d 0,4096,16384           decode at three context depths
  gristmill bench MODEL.gguf -p 256 -n 32 --batch 1,2,4,8         batched decode
  gristmill bench MODEL.gguf -t 1 -o jsonl | jq .tokens_per_second
  gristmill bench synth:youtu-llm-2b:q4_0 --ablate -p 128 -n 32   gain of each optimisation
  gristmill bench MODEL.gguf --ablate=int8,merge -p 0             of two of them, decode only
  gristmill bench MODEL.gguf --speculate auto --batch 1,8         decode with drafts and without";

#[derive(Args)]
#[command(after_help = NOTES, override_usage = "gristmill bench [OPTIONS] <MODEL>")]
pub struct BenchArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Prompt sizes in tokens; 0 for none
    #[arg(short = 'p', long = "n-prompt", value_name = "N,…", value_delimiter = ',', default_value = "512")]
    prompts: Vec<usize>,
    /// Numbers of tokens to generate; 0 for none
    #[arg(short = 'n', long = "n-gen", value_name = "N,…", value_delimiter = ',', default_value = "128")]
    generations: Vec<usize>,
    /// -pg PP,TG: generation of TG tokens after a prompt of PP, as one test; repeatable
    #[arg(long = "prompt-gen", value_name = "PP,TG", value_parser = pair)]
    pairs: Vec<(usize, usize)>,
    /// Context depths: tokens already in the KV cache
    #[arg(short = 'd', long = "n-depth", value_name = "N,…", value_delimiter = ',', default_value = "0")]
    depths: Vec<usize>,
    /// Repetitions of each test
    #[arg(
        short, long, value_name = "N", default_value_t = 3,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    repetitions: u16,
    /// Output format: a Markdown table, a JSON array, JSON lines or CSV
    #[arg(short, long, value_name = "FORMAT", default_value = "md")]
    output: Format,
    /// The same as -o jsonl
    #[arg(long, conflicts_with = "output")]
    json: bool,
    /// Measure the gain of each optimisation, or of those named
    #[arg(
        long, value_name = "NAME,…", num_args = 0.., require_equals = true, value_delimiter = ',',
        value_parser = optimisations(), hide_possible_values = true, conflicts_with = "pairs"
    )]
    ablate: Option<Vec<String>>,
    /// Batched decode at these batch sizes, after a prompt of -p tokens
    #[arg(
        long, value_name = "N,…", value_delimiter = ',', conflicts_with_all = ["ablate", "pairs"],
        value_parser = clap::value_parser!(u16).range(1..=512)
    )]
    batch: Vec<u16>,
    /// With --batch: batch-invariant steps, which run the kernels of the largest batch
    #[arg(long, requires = "batch")]
    batch_invariant: bool,
    #[command(flatten)]
    speculation: Speculation,
    /// With --speculate: keep this share of drafts, whatever the model chooses
    #[arg(long, value_name = "SHARE", value_parser = share, requires = "speculate")]
    accept: Option<f64>,
    #[command(flatten)]
    common: Common,
}

/// Parses a share from 0 to 1.
fn share(text: &str) -> std::result::Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a share from 0 to 1, such as 0.85".into())
}

/// Parses the two positive sizes of `PP,TG`.
fn pair(text: &str) -> std::result::Result<(usize, usize), String> {
    let pair = text.split_once(',').and_then(|(p, n)| Some((p.parse().ok()?, n.parse().ok()?)));
    pair.filter(|&(p, n)| p > 0 && n > 0).ok_or_else(|| "two numbers of tokens above 0, such as 512,128".into())
}

/// Tokens of the prompt of the first measurement, which includes one-time work.
const FIRST: usize = 32;

/// Columns of the table of one sequence.
const COLUMNS: &[Column] = &[
    Column::text("model", 10),
    Column::text("device", 6),
    Column::text("test", 11),
    Column::number("depth", 6),
    Column::number("tok/s", 16),
    Column::number("ms/tok", 9),
    Column::number("MB/tok", 9),
    Column::number("bandwidth", 9),
    Column::number("launches", 8),
];

pub fn run(options: BenchArgs) -> Result {
    options.common.check()?;
    let tests = tests(&options);
    if tests.is_empty() {
        let hint = "give one of them a number of tokens, such as -n 128";
        return Err(Failure::usage("-p 0 and -n 0 leave nothing to measure", hint));
    }
    let is_single = !options.batch.is_empty() || options.ablate.is_some();
    if is_single && (options.prompts.len() > 1 || options.generations.len() > 1) {
        let hint = "give -p and -n one number each, or leave --batch and --ablate out";
        return Err(Failure::usage("--batch and --ablate take one prompt size and one generation", hint));
    }
    let model = options.speculation.attach(Model::open(options.model.name())?.with_adapters(&options.common.lora)?)?;
    let described = model.describe()?;
    let context = context(&options, &tests, described.context())?;
    let opened = options.common.open()?;
    let (prompt, tokens) = (first(&options.prompts), first(&options.generations));
    if options.speculation.is_on() {
        let sequences: Vec<usize> = options.batch.iter().copied().map(usize::from).collect();
        let drafts = Drafts {
            sequences: if sequences.is_empty() { &[1] } else { &sequences },
            prompt,
            tokens: tokens.max(2),
            times: options.repetitions.into(),
            accept: options.accept,
            format: options.format(),
        };
        return bench_drafts::run(&drafts, &options.speculation, &model, opened, &options.common);
    }
    if !options.batch.is_empty() {
        let batches = Batches {
            sequences: &options.batch.iter().copied().map(usize::from).collect::<Vec<_>>(),
            prompt,
            tokens: tokens.max(1),
            times: options.repetitions.into(),
            invariant: options.batch_invariant,
            format: options.format(),
        };
        return bench_batch::run(&batches, &model, opened, &options.common);
    }
    if let Some(names) = &options.ablate {
        let work = Work { prompt, tokens, depth: 0, times: options.repetitions.into() };
        return ablate(names, &options, &model, opened, (context, work));
    }
    one_sequence(&options, &tests, &model, opened, context)
}

fn first(sizes: &[usize]) -> usize {
    sizes.first().copied().unwrap_or(0)
}

impl BenchArgs {
    fn format(&self) -> Format {
        if self.json { Format::Jsonl } else { self.output }
    }
}

/// The tests of one sequence, depth by depth.
fn tests(options: &BenchArgs) -> Vec<Test> {
    let prompts = options.prompts.iter().map(|&prompt| (prompt, 0));
    let generations = options.generations.iter().map(|&tokens| (0, tokens));
    let sizes: Vec<_> = prompts.chain(generations).chain(options.pairs.iter().copied()).collect();
    let at = |depth| sizes.iter().map(move |&(prompt, tokens)| Test { prompt, tokens, depth });
    options.depths.iter().flat_map(|&depth| at(depth)).filter(|test| test.total() > 0).collect()
}

/// Tokens of context that the tests need, out of `most` that the model has.
fn context(options: &BenchArgs, tests: &[Test], most: usize) -> Result<usize> {
    let longest = tests.iter().map(Test::total).max().unwrap_or(0).max(FIRST + 1).min(most);
    let needed = tests.iter().map(|test| test.depth.saturating_add(test.total())).max().unwrap_or(0);
    let batched = match options.batch.is_empty() {
        true => 0,
        false => first(&options.prompts).saturating_add(first(&options.generations)),
    };
    let context = needed.max(longest).max(batched);
    let given = options.common.ctx().unwrap_or(most);
    if context <= given {
        return Ok(context);
    }
    Err(Failure::new(
        format_args!("the tests need a context of {context} tokens, and {given} is the limit"),
        format!("choose -d, -p and -n so that the depth and the tokens of a test sum to at most {given}"),
    ))
}

/// Measures prefill and decode of one sequence at each depth.
fn one_sequence(
    options: &BenchArgs,
    tests: &[Test],
    model: &Model,
    opened: Opened,
    context: usize,
) -> Result {
    // Before the model takes its memory.
    let of_device = bandwidth::of_device(&opened);
    let start = Instant::now();
    let mut engine = model.load_on(opened, &options.common, Some(context))?;
    let load = start.elapsed().as_secs_f64();
    let mut ids = Ids::new(&engine);
    let start = Instant::now();
    let prompt = ids.some(FIRST.min(engine.context()));
    seconds(&mut engine, &prompt, true, 0)?;
    let first = start.elapsed().as_secs_f64();

    let read = |engine: &Engine| of_device.or_else(|| bandwidth::of_weights(engine.weights(), options.common.team()));
    let mut out = io::stdout().lock();
    let mut table = Table::new(&mut out, options.format(), COLUMNS);
    table.about(&format!(
        "{}: {:.3} GB of weights loaded and compiled in {load:.2} s; time to first token of a {FIRST}-token prompt {:.0} ms; {}",
        printable(&model.name),
        engine.weights().bytes() as f64 / 1e9,
        first * 1e3,
        read(&engine).map_or("read bandwidth unknown".into(), |b| format!("read bandwidth {:.1} GB/s", b / 1e9)),
    ))?;
    let mut filled = None;
    for &test in tests {
        if filled.replace(test.depth) != Some(test.depth) {
            engine.fill_cache_for_bench(test.depth)?;
        }
        let before = read(&engine);
        let times = measure(&mut engine, &mut ids, test, options.repetitions)?;
        // Bandwidth of shared memory varies from minute to minute: the larger of two counts.
        let delivered = before.zip(read(&engine)).map(|(a, b)| a.max(b));
        let result = Measured::new(&mut engine, test, &times, delivered);
        table.row(&result.json(&engine, &model.name), &result.cells(&engine, &model.name))?;
    }
    table.finish()?;
    if let Some(experts) = engine.expert_cache() {
        eprintln!("note: {experts}");
    }
    Ok(())
}

/// One test: prefill of a prompt, then decode steps.
#[derive(Clone, Copy)]
struct Test {
    prompt: usize,
    tokens: usize,
    /// Tokens already in the KV cache.
    depth: usize,
}

impl Test {
    fn total(&self) -> usize {
        self.prompt.saturating_add(self.tokens)
    }
    /// The name that llama-bench gives it.
    fn name(&self) -> String {
        match (self.prompt, self.tokens) {
            (prompt, 0) => format!("pp{prompt}"),
            (0, tokens) => format!("tg{tokens}"),
            (prompt, tokens) => format!("pp{prompt}+tg{tokens}"),
        }
    }
    /// Bytes read and kernels launched per token.
    fn per_token(&self, engine: &mut Engine) -> [f64; 2] {
        let chunk = self.prompt.min(engine.longest_step());
        let mut sums = [0.0; 2];
        for (step, tokens, depth) in [(chunk, self.prompt, self.depth), (1, self.tokens, self.depth + self.prompt)] {
            if tokens == 0 {
                continue;
            }
            // The mean over steps is that of the step in the middle.
            let middle = depth + (tokens - step) / 2;
            let steps = tokens as f64 / step as f64;
            sums[0] += steps * engine.traffic(step, middle).total();
            sums[1] += steps * engine.step_launch_count(step, middle) as f64;
        }
        sums.map(|sum| sum / self.total() as f64)
    }
}

/// Result of a test.
struct Measured {
    test: Test,
    /// Mean and standard deviation of tokens per second.
    mean: f64,
    deviation: f64,
    bytes_per_token: f64,
    /// Share of the read bandwidth, if that is known.
    fraction: Option<f64>,
    launches_per_token: f64,
}

impl Measured {
    /// Evaluates repetitions of `times` seconds at a read bandwidth of `delivered` bytes per
    /// second.
    fn new(engine: &mut Engine, test: Test, times: &[f64], delivered: Option<f64>) -> Measured {
        let rates: Vec<f64> = times.iter().map(|t| test.total() as f64 / t).collect();
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let deviation = (rates.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / rates.len() as f64).sqrt();
        let [bytes_per_token, launches_per_token] = test.per_token(engine);
        let fraction = delivered.map(|d| bytes_per_token * mean / d);
        Measured { test, mean, deviation, bytes_per_token, fraction, launches_per_token }
    }
    fn json(&self, engine: &Engine, model: &str) -> serde_json::Value {
        json!({
            "model": model,
            "device": engine.device().name(),
            "test": self.test.name(),
            "depth": self.test.depth,
            "tokens_per_second": self.mean,
            "ms_per_token": 1e3 / self.mean,
            "bytes_per_token": self.bytes_per_token.round() as u64,
            "bandwidth_fraction": self.fraction,
            "launches_per_token": self.launches_per_token,
        })
    }
    fn cells(&self, engine: &Engine, model: &str) -> [String; 9] {
        [
            printable(model),
            engine.device().name().into(),
            self.test.name(),
            self.test.depth.to_string(),
            format!("{:.2} ± {:.2}", self.mean, self.deviation),
            format!("{:.3}", 1e3 / self.mean),
            format!("{:.3}", self.bytes_per_token / 1e6),
            self.fraction.map_or("?".into(), |f| format!("{:.1} %", f * 100.0)),
            format!("{:.2}", self.launches_per_token),
        ]
    }
}

/// Returns the seconds of each repetition, after an unmeasured one for one-time work.
fn measure(engine: &mut Engine, ids: &mut Ids, test: Test, repetitions: u16) -> Result<Vec<f64>> {
    let bar = progress::count(if test.tokens == 0 { "prefill" } else { "decode" }, u64::from(repetitions));
    let warm = Test { prompt: test.prompt.min(engine.longest_run()), tokens: test.tokens.min(1), ..test };
    once(engine, ids, warm)?;
    let mut times = Vec::new();
    for _ in 0..repetitions {
        times.push(once(engine, ids, test)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(times)
}

fn once(engine: &mut Engine, ids: &mut Ids, test: Test) -> Result<f64> {
    let mut sum = 0.0;
    for (prompt, tokens, depth) in [(true, test.prompt, test.depth), (false, test.tokens, test.depth + test.prompt)] {
        if tokens > 0 {
            sum += seconds(engine, &ids.some(tokens), prompt, depth)?;
        }
    }
    Ok(sum)
}

/// Speedup by an optimisation, from the ratio of the speeds without and with it.
fn gain(ratio: Option<f64>) -> String {
    ratio.map_or("-".into(), |r| format!("{:+.1} %", 100.0 * (1.0 / r - 1.0)))
}

/// Columns of the table of --ablate.
const ABLATION: &[Column] = &[
    Column::text("disabled", 12),
    Column::number("decode tok/s", 12),
    Column::number("baseline", 9),
    Column::number("gain", 9),
    Column::number("prefill tok/s", 13),
    Column::number("baseline", 9),
    Column::number("gain", 9),
    Column::text("optimisation", 20),
];

/// Measures the named optimisations, or all, one disabled at a time.
fn ablate(
    names: &[String],
    options: &BenchArgs,
    model: &Model,
    opened: Opened,
    (context, work): (usize, Work),
) -> Result {
    let mut variants = Variants::new(model, &options.common, opened, context, work);
    let base = variants.target().clone();
    let is_named = |flag: &&Flag| names.is_empty() || names.iter().any(|name| name == flag.name);
    let without = |flag: &Flag| {
        let mut without = base.clone();
        (flag.off)(&mut without);
        without
    };
    // An optimisation that the device does not use has no row.
    let acts = |flag: &&Flag| flag.acts_on(base.machine.kind) && without(flag) != base;
    let flags: Vec<&Flag> = FLAGS.iter().filter(is_named).filter(acts).collect();
    if flags.is_empty() {
        let hint = "--ablate without names measures every optimisation that the device uses";
        return Err(Failure::new(format_args!("{} does not use {}", base.name, names.join(", ")), hint));
    }
    let mut out = io::stdout().lock();
    let mut table = Table::new(&mut out, options.format(), ABLATION);
    for flag in flags {
        let [with, off] = variants.compare(&base, &without(flag))?.speeds;
        let ratio = off.over(&with);
        let record = json!({
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
        let cells = [
            flag.name.into(),
            shown(off.decode),
            shown(with.decode),
            gain(ratio.decode),
            shown(off.prefill),
            shown(with.prefill),
            gain(ratio.prefill),
            flag.doc.into(),
        ];
        table.row(&record, &cells)?;
    }
    table.finish()
}
