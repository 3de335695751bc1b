//! `gristmill profile`: the time of a step, kernel by kernel.

use crate::bandwidth;
use crate::failure::{Failure, Result, printable};
use crate::flags::Common;
use crate::ab_bench::{Ids, seconds};
use crate::model::Model;
use crate::model_arg::ModelArg;
use crate::output;
use crate::progress;
use crate::stages::{self, computes};
use clap::Args;
use gristmill_compiler::{Cheapest, compile};
use gristmill_llm::arch;
use gristmill_llm::engine::{Engine, Settings, TokenSource, Step as StepInput, WholePool};
use gristmill_llm::traffic;
use gristmill_profile::{WHY_ABOVE, ProfiledKernel, KernelLaunch, Limits, Recording, Report, StageText, StepRun, page, text, trace};
use gristmill_runtime::Span;
use gristmill_tensor::jit::Ready;
use gristmill_uop::function::{SlotKind, Storage};
use gristmill_uop::program::{Access, Param, Program};
use gristmill_uop::target::Target;
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

const NOTES: &str = "\
On a CPU, each worker is timed in each launch; on a GPU, a launch lasts from its turn to that of
the next one. Times are means over the faster half of the runs, and sum to the step: time in which
workers run several launches is divided among them. `limit` is the roofline time (read bandwidth,
or operations per second of the cost model if that is slower) as a share of the measured time;
data in a cache can exceed 100 %. `between kernels` is time without a running kernel: barriers,
copies of logits, and the timers, whose overhead the last line shows.

Examples:
  gristmill profile glm-4.7-flash                         a decode step
  gristmill profile MODEL.gguf -d 4096                    at a context depth of 4096 tokens
  gristmill profile MODEL.gguf -p 512                     a prefill chunk of 512 tokens
  gristmill profile MODEL.gguf --batch 8 -d 256           batched decode of eight sequences
  gristmill profile MODEL.gguf --html profile.html        a page: timeline, roofline, sources
  gristmill profile MODEL.gguf --trace trace.json         for Perfetto and chrome://tracing
  gristmill profile MODEL.gguf --kernel r_01ab --source   kernels by name prefix, with source code";

#[derive(Args)]
#[command(after_help = NOTES, override_usage = "gristmill profile [OPTIONS] <MODEL>")]
pub struct ProfileArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Number of runs
    #[arg(
        short = 'n', long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    runs: u16,
    /// Profile a prefill chunk of N tokens instead of a decode step
    #[arg(
        short = 'p', long = "n-prompt", value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    prompt: Option<u16>,
    /// Profile batched decode of N sequences
    #[arg(long, value_name = "N", conflicts_with = "prompt", value_parser = clap::value_parser!(u16).range(1..))]
    batch: Option<u16>,
    /// Context depth: tokens already in the KV cache of each sequence
    #[arg(short = 'd', long = "n-depth", value_name = "N", default_value_t = 0)]
    depth: usize,
    /// Show all kernels, not only the slowest
    #[arg(long)]
    all: bool,
    /// Write a page with timeline, roofline and the stages of each kernel; - for standard output
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write a Chrome trace; - for standard output
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Only kernels with names that start with NAME
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// With --kernel: print the source code
    #[arg(long, requires = "kernel")]
    source: bool,
    #[command(flatten)]
    common: Common,
}

pub fn run(options: ProfileArgs) -> Result {
    options.common.check()?;
    let on_stdout = check_outputs(&options)?;
    let model = Model::open(options.model.name())?.with_adapters(&options.common.lora)?;
    let (subject, context) = subject(&options, &model)?;
    let opened = options.common.open()?;
    // Before the model takes its memory.
    let of_device = bandwidth::of_device(&opened);
    let target = opened.target.clone();
    let parallel = if subject.of_several { subject.tokens } else { 1 };
    let mut engine = model.load_with(opened, Settings { parallel, contexts: parallel, ..options.common.settings(Some(context)) })?;
    subject.prepare(&mut engine)?;
    let bandwidth = of_device.or_else(|| bandwidth::of_weights(&engine, options.common.team()));
    let (steps, plain) = steps(&mut engine, &subject, options.runs)?;
    // The cost model counts all cores; --threads may use fewer. Other devices are one worker.
    let (workers, part) = match engine.device().name() {
        "cpu" => {
            let team = options.common.team();
            (team, team.min(target.machine.units) as f64 / target.machine.units.max(1) as f64)
        }
        _ => (1, 1.0),
    };
    let operations = target.machine.operations * part;
    let mut recording = Recording {
        model: printable(&model.name),
        device: format!("{} ({})", engine.device().name(), target.name),
        what: subject.to_string(),
        tokens: subject.tokens,
        limits: Limits { bandwidth, operations, workers },
        kernels: vec![],
        launches: vec![],
        decisions: vec![],
        steps,
        plain,
    };
    let functions = describe(subject.launches(&engine), &target, &subject, subject.most(&engine), &mut recording);
    if options.html.is_some() {
        recording.decisions = functions.into_iter().map(|(ready, name)| (name, explanations(ready, &target))).collect();
    }
    let report = Report::new(&recording);
    // Tables go to standard error if a page or trace goes to standard output.
    let mut out: Box<dyn Write> = if on_stdout > 0 { Box::new(io::stderr().lock()) } else { Box::new(io::stdout().lock()) };
    match &options.kernel {
        Some(name) => kernels(&recording, &report, name, options.source, &mut out)?,
        None => out.write_all(text::tables(&recording, &report, options.all).as_bytes())?,
    }
    if let Some(path) = &options.html {
        output::write(path, &page::html(&recording, &report))?;
    }
    if let Some(path) = &options.trace {
        output::write(path, &trace::chrome(&recording, &report).to_string())?;
    }
    Ok(())
}

/// Checks the output files; returns how many of them are standard output.
fn check_outputs(options: &ProfileArgs) -> Result<usize> {
    let standard = |path: &&PathBuf| path.as_os_str() == "-";
    let on_stdout = options.html.iter().chain(&options.trace).filter(standard).count();
    if on_stdout > 1 {
        return Err(Failure::usage("--html and --trace cannot both be standard output", "give one of them a file"));
    }
    for path in options.html.iter().chain(&options.trace) {
        output::check(path)?;
    }
    Ok(on_stdout)
}

/// Returns the step to profile, and the context that it needs.
fn subject(options: &ProfileArgs, model: &Model) -> Result<(Subject, usize)> {
    let described = model.describe()?;
    let subject = Subject {
        tokens: options.batch.or(options.prompt).map_or(1, usize::from),
        depth: options.depth,
        of_several: options.batch.is_some(),
    };
    let most = options.common.ctx().unwrap_or(described.context());
    let needed = options.depth.saturating_add(if subject.of_several { 1 } else { subject.tokens });
    if needed > most {
        return Err(Failure::new(
            format_args!("the step needs a context of {needed} tokens, and {most} is the limit"),
            format!("choose -d and -p so that they sum to at most {most}"),
        ));
    }
    Ok((subject, needed.max(512).min(most)))
}

/// The step that is profiled.
struct Subject {
    tokens: usize,
    /// Context depth of each sequence.
    depth: usize,
    /// Whether each token belongs to another sequence.
    of_several: bool,
}

impl Subject {
    /// Fills the KV cache, or refuses a step that does not fit.
    fn prepare(&self, engine: &mut Engine) -> Result {
        if !self.of_several && self.tokens > engine.longest_step() {
            return Err(Failure::usage(
                format_args!("a step takes at most {} tokens", engine.longest_step()),
                format!("try -p {}", engine.longest_step()),
            ));
        }
        let (pages, taken) = (engine.cache().pages(), engine.max_sequences());
        if self.of_several && (taken < self.tokens || pages < self.tokens * self.pages()) {
            let message = format!("{} sequences need {} KV pages, and {pages} fit", self.tokens, self.tokens * self.pages());
            return Err(Failure::new(message, format!("--batch {} fits", taken.min(pages / self.pages()))));
        }
        Ok(engine.fill_cache_for_bench(self.depth)?)
    }
    /// KV pages per sequence.
    fn pages(&self) -> usize {
        self.depth / PAGE + 1
    }
    /// Runs the step with and without timers: spans, seconds with them, seconds without.
    fn run(&self, engine: &mut Engine, ids: &[u32]) -> Result<(Vec<Span>, f64, f64)> {
        let (pools, rows);
        let start = Instant::now();
        let step = match self.of_several {
            false => {
                pools = vec![WholePool::new(engine)];
                pools[0].step(ids, self.depth)
            }
            true => {
                let (blocks, shares) = (self.pages(), engine.max_sequences());
                let share = |nth| WholePool::share(engine, [nth, shares], blocks);
                pools = (0..self.tokens).map(share).collect::<Vec<_>>();
                let row = |(pool, &token): (_, &u32)| WholePool::row(pool, TokenSource::Token(token), self.depth);
                rows = pools.iter().zip(ids).map(row).collect::<Vec<_>>();
                StepInput { rows: &rows, contiguous: rows.len() == 1, ..StepInput::default() }
            }
        };
        let spans = engine.run_traced(&step)?;
        let host = start.elapsed().as_secs_f64();
        if !self.of_several {
            return Ok((spans, host, seconds(engine, ids, self.tokens > 1, self.depth)?));
        }
        let start = Instant::now();
        engine.run(&step)?;
        Ok((spans, host, start.elapsed().as_secs_f64()))
    }
    fn launches<'e>(&self, engine: &'e Engine) -> &'e [(Arc<Ready>, usize)] {
        match self.of_several {
            true => engine.batch_launches(self.tokens),
            false => engine.step_launches(self.tokens, self.depth),
        }
    }
    /// Maximum tokens of the step's graph.
    fn most(&self, engine: &Engine) -> usize {
        if self.of_several { self.tokens.next_power_of_two() } else { engine.step_tokens(self.tokens) }
    }
    /// KV cache rows that the step reads and writes.
    fn rows(&self) -> [usize; 2] {
        let read = if self.of_several { self.tokens * (self.depth + 1) } else { self.depth + self.tokens };
        [read, self.tokens]
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match (self.of_several, self.tokens) {
            (true, n) => write!(f, "batched decode of {n} sequences")?,
            (false, 1) => write!(f, "decode step")?,
            (false, n) => write!(f, "prefill chunk of {n} tokens")?,
        }
        if self.depth > 0 { write!(f, " at context depth {}", self.depth) } else { Ok(()) }
    }
}

/// Tokens of a KV page.
const PAGE: usize = arch::Options::PAGE;

/// Warm-up runs before those that count.
const WARM: usize = 2;

/// Runs the step `n` times with and without timers, alternately: spans, and seconds without timers.
fn steps(engine: &mut Engine, subject: &Subject, n: u16) -> Result<(Vec<StepRun>, Vec<f64>)> {
    let mut ids = Ids::new(engine);
    let bar = progress::count("steps", u64::from(n));
    let (mut steps, mut plain) = (Vec::new(), Vec::new());
    for run in 0..WARM + usize::from(n) {
        let (spans, host, untimed) = subject.run(engine, &ids.some(subject.tokens))?;
        // Asynchronous devices measure time by their own clock.
        let own = spans.iter().map(|s| s.end).fold(0.0, f64::max);
        let wall = if engine.device().overlaps() { own } else { host };
        if run >= WARM {
            steps.push(StepRun { wall, spans });
            plain.push(untimed);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok((steps, plain))
}

/// Decisions and rules of a function, which is compiled again, since the engine does not keep them.
fn explanations(ready: &Ready, target: &Target) -> Vec<String> {
    let compiled = compile(&ready.function, target, None, &mut Cheapest);
    [stages::decisions(&compiled, |d| d.kind != "nest"), stages::rules(&compiled)].concat()
}

/// Records the kernels and launches of a step; returns its functions and their names.
fn describe<'a>(
    launches: &'a [(Arc<Ready>, usize)],
    target: &Target,
    subject: &Subject,
    most: usize,
    recording: &mut Recording,
) -> Vec<(&'a Ready, String)> {
    let mut functions: Vec<(&Arc<Ready>, String, usize)> = Vec::new();
    let mut call = 0;
    for (at, (ready, place)) in launches.iter().enumerate() {
        if at > 0 && *place == 0 {
            call += 1;
        }
        let known = functions.iter().find(|f| Arc::ptr_eq(f.0, ready)).map(|f| f.2);
        let first = known.unwrap_or_else(|| {
            let first = recording.kernels.len();
            // Layers that differ in quantisation only have functions of one name.
            let same = functions.iter().filter(|f| f.0.function.name == ready.function.name).count();
            let number = if same > 0 { format!(" ({})", same + 1) } else { String::new() };
            let name = format!("{}{number}", ready.function.name);
            let tensor = StageText { name: "tensor", text: stages::tensor(&ready.function) };
            for (place, program) in ready.compiled.programs.iter().enumerate() {
                let share = subject.tokens as f64 / most as f64;
                recording.kernels.push(ProfiledKernel {
                    name: program.name.clone(),
                    function: name.clone(),
                    place,
                    about: computes(program),
                    bytes: bytes(ready, program, subject),
                    operations: program.estimate.operations * share,
                    modelled: program.seconds,
                    stages: std::iter::once(tensor.clone()).chain(stages::of_kernel(program, target)).collect(),
                });
            }
            functions.push((ready, name, first));
            first
        });
        recording.launches.push(KernelLaunch { kernel: first + place, call });
    }
    functions.into_iter().map(|(ready, name, _)| (ready.as_ref(), name)).collect()
}

/// Bytes that a launch must read from memory: weights in use and KV cache; activations are in
/// caches.
fn bytes(ready: &Ready, program: &Program, subject: &Subject) -> f64 {
    let [read, written] = subject.rows();
    let mut sum = 0.0;
    for &Param { slot: number, access, .. } in &program.params {
        // Other parameters are intermediates.
        let Some(slot) = ready.function.slots.get(number as usize) else { continue };
        let elements = |dims: &[i64]| dims.iter().product::<i64>() as f64;
        sum += match (slot.kind, slot.storage, access) {
            (SlotKind::Weight, Storage::Packed(e), _) => {
                // Dense as in the file, unless the function has another layout.
                let layout = ready.compiled.layouts.iter().find(|l| l.0 == number).map(|l| l.1);
                let dense = elements(&slot.dims) * e.bytes as f64 / e.elements as f64;
                let all = layout.and_then(|l| l.bytes(e, &slot.dims)).map_or(dense, |n| n as f64);
                all * traffic::share(&ready.function, number, subject.tokens)
            }
            (SlotKind::Weight, Storage::Plain(scalar), _) => elements(&slot.dims) * scalar.bytes() as f64,
            (SlotKind::State, Storage::Plain(scalar), access) => {
                let rows = if access == Access::Read { read } else { written };
                rows as f64 * elements(&slot.dims[1..]) * scalar.bytes() as f64
            }
            _ => 0.0,
        };
    }
    sum
}

/// Prints the kernels with names that start with `name`.
fn kernels(recording: &Recording, report: &Report, name: &str, source: bool, out: &mut dyn Write) -> Result {
    let chosen: Vec<_> = report.rows.iter().filter(|r| recording.kernels[r.kernel].name.starts_with(name)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = report.rows.iter().take(6).map(|r| recording.kernels[r.kernel].name.as_str()).collect();
        return Err(Failure::new(
            format_args!("no kernel name starts with {name}"),
            format!("the slowest are {}; without --kernel a table shows all", names.join(", ")),
        ));
    }
    for row in chosen {
        let kernel = &recording.kernels[row.kernel];
        let each = row.seconds / row.calls.max(1) as f64;
        writeln!(out, "{} of {} {}: {}", kernel.name, kernel.function, kernel.place, kernel.about)?;
        writeln!(
            out,
            "  {} launches of {}, modelled {}: {:.1} % of the step",
            row.calls,
            text::time(each),
            text::time(kernel.modelled),
            100.0 * row.share
        )?;
        let remark = if row.is_above() { format!(": {WHY_ABOVE}") } else { String::new() };
        let limit = row.fraction.map_or("unknown".into(), |f| format!("{:.0} %{remark}", 100.0 * f));
        writeln!(
            out,
            "  each reads {:.3} MB at {:.2} GB/s and does {:.1} M operations; {limit} of the roofline",
            kernel.bytes / 1e6,
            row.rate() / 1e9,
            kernel.operations / 1e6
        )?;
        if source {
            let text = kernel.stages.iter().find(|s| s.name == stages::SOURCE).or(kernel.stages.last());
            let text = text.map_or("", |s| s.text.as_str());
            writeln!(out, "\n{text}")?;
        }
    }
    Ok(())
}
