//! `gristmill profile`: what a token costs, kernel by kernel.

use crate::bandwidth;
use crate::failure::{Failure, Result, printable};
use crate::flags::Common;
use crate::measure::{Ids, seconds};
use crate::model::{self, Model};
use crate::output;
use crate::progress;
use crate::stages::{self, computes};
use clap::{Args, ValueHint};
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
The clock is read before and after each worker's part of each launch; a GPU's kernels note when it is their turn, and a launch's time
is from there to the turn of the next. Times are means over the faster half of the runs, and add up: a moment in which workers are at
several launches, as on a busy machine, is divided among these. `limit` is the time that a kernel would
take at the machine's read bandwidth, or at the operations a second of the cost model if that is longer, over the time it took; what
a cache delivers is faster than that. `between kernels` is when no worker was at a kernel: barriers, the logits' way to the host, and
the timers themselves, which the last line says the cost of.

Examples:
  gristmill profile glm-4.7-flash                               where a token's time goes
  gristmill profile MODEL.gguf -d 4096                          the same after 4096 tokens
  gristmill profile MODEL.gguf -p 512                           a step of a prompt instead
  gristmill profile MODEL.gguf --batch 8 -d 256                 a step of eight sequences
  gristmill profile MODEL.gguf --html profile.html              a page: timeline, roofline, every kernel's source
  gristmill profile MODEL.gguf --trace trace.json               for Perfetto and chrome://tracing
  gristmill profile MODEL.gguf --kernel r_01ab --source         one kernel, by the start of its name, and its text";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    #[arg(value_hint = ValueHint::FilePath, help = model::HELP)]
    model: String,
    /// Runs of the step
    #[arg(short, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    n: u16,
    /// Tokens of a prompt in one step, instead of a token that is generated
    #[arg(short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    p: Option<u16>,
    /// A token each of N sequences in one step, instead of one sequence's
    #[arg(long, value_name = "N", conflicts_with = "p", value_parser = clap::value_parser!(u16).range(1..))]
    batch: Option<u16>,
    /// Tokens in the cache before, of each sequence
    #[arg(short, value_name = "DEPTH", default_value_t = 0)]
    d: usize,
    /// All kernels, not only the most expensive
    #[arg(long)]
    all: bool,
    /// Write a page with a timeline, a roofline plot and each kernel's stages and source; `-` to standard output
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the timeline as a Chrome trace; `-` to standard output
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Only the kernels whose names begin so
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// With its text
    #[arg(long, requires = "kernel")]
    source: bool,
    #[command(flatten)]
    common: Common,
}

pub fn run(options: Options) -> Result {
    let standard = |path: &&PathBuf| path.as_os_str() == "-";
    let on_stdout = options.html.iter().chain(&options.trace).filter(standard).count();
    if on_stdout > 1 {
        return Err(Failure::usage("--html and --trace cannot both be standard output", "give one of them a file"));
    }
    for path in options.html.iter().chain(&options.trace) {
        output::check(path)?;
    }
    let model = Model::open(Some(&options.model))?;
    let (subject, context) = subject(&options, &model)?;
    let opened = options.common.open()?;
    // Before the model takes its memory.
    let of_device = bandwidth::of_device(&opened);
    let target = opened.target.clone();
    let parallel = if subject.of_several { subject.tokens } else { 1 };
    let mut engine = model.load_with(opened, Settings { parallel, contexts: parallel, ..options.common.settings(Some(context)) })?;
    subject.prepare(&mut engine)?;
    let bandwidth = of_device.or_else(|| bandwidth::of_weights(&engine, options.common.team()));
    let (steps, plain) = steps(&mut engine, &subject, options.n)?;
    // The cost model's number is of all cores; a team may be smaller. Another device is one worker, whole.
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
        recording.decisions = functions.into_iter().map(|(ready, name)| (name, told(ready, &target))).collect();
    }
    let report = Report::new(&recording);
    // A page or a trace on standard output is there alone.
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

/// The step that is to be measured, and the context for it.
fn subject(options: &Options, model: &Model) -> Result<(Subject, usize)> {
    let described = model.describe()?;
    let subject = Subject {
        tokens: options.batch.or(options.p).map_or(1, usize::from),
        depth: options.d,
        of_several: options.batch.is_some(),
    };
    let most = options.common.ctx.map_or(described.context(), |c| c as usize);
    let needed = options.d.saturating_add(if subject.of_several { 1 } else { subject.tokens });
    if needed > most {
        return Err(Failure::new(
            format_args!("the step needs {needed} tokens of context, and there are {most}"),
            format!("choose -d and -p so that they make at most {most} together"),
        ));
    }
    Ok((subject, needed.max(512).min(most)))
}

/// The step that is measured.
struct Subject {
    /// Its tokens.
    tokens: usize,
    /// Tokens in the cache before, of each sequence.
    depth: usize,
    /// Is each token another sequence's?
    of_several: bool,
}

impl Subject {
    /// Fills what the step reads.
    fn prepare(&self, engine: &mut Engine) -> Result {
        if !self.of_several && self.tokens > engine.longest_step() {
            return Err(Failure::usage(
                format_args!("a step takes at most {} tokens", engine.longest_step()),
                format!("try -p {}", engine.longest_step()),
            ));
        }
        let (pages, taken) = (engine.cache().pages(), engine.max_sequences());
        if self.of_several && (taken < self.tokens || pages < self.tokens * self.pages()) {
            let message = format!("{} sequences take {} pages, and {pages} fit", self.tokens, self.tokens * self.pages());
            return Err(Failure::new(message, format!("--batch {} would fit", taken.min(pages / self.pages()))));
        }
        Ok(engine.fill_cache_for_bench(self.depth)?)
    }
    /// Pages of a sequence.
    fn pages(&self) -> usize {
        self.depth / PAGE + 1
    }
    /// The step once, with its spans; then once more, untimed within: its seconds.
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
    /// The most tokens that its class takes.
    fn most(&self, engine: &Engine) -> usize {
        if self.of_several { self.tokens.next_power_of_two() } else { engine.step_tokens(self.tokens) }
    }
    /// Rows of a cache that it reads, and that it writes.
    fn rows(&self) -> [usize; 2] {
        let read = if self.of_several { self.tokens * (self.depth + 1) } else { self.depth + self.tokens };
        [read, self.tokens]
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match (self.of_several, self.tokens) {
            (true, n) => write!(f, "one token each of {n} sequences")?,
            (false, 1) => write!(f, "one token")?,
            (false, n) => write!(f, "{n} tokens of a prompt")?,
        }
        if self.depth > 0 { write!(f, " after {}", self.depth) } else { Ok(()) }
    }
}

/// Positions of a page.
const PAGE: usize = arch::Options::PAGE;

/// Runs that count for nothing: what is only done once, and caches that have yet to settle.
const WARM: usize = 2;

/// The step, run `n` times; and the seconds of as many that nothing is timed within, in turns with them.
fn steps(engine: &mut Engine, subject: &Subject, n: u16) -> Result<(Vec<StepRun>, Vec<f64>)> {
    let mut ids = Ids::for_engine(engine);
    let bar = progress::count("steps", u64::from(n));
    let (mut steps, mut plain) = (Vec::new(), Vec::new());
    for run in 0..WARM + usize::from(n) {
        let (spans, host, untimed) = subject.run(engine, &ids.some(subject.tokens))?;
        // A device that runs beside the host has the time by its own clock.
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

/// What is told of a function while it is compiled: not kept with it, so it is compiled once more, without its text.
fn told(ready: &Ready, target: &Target) -> Vec<String> {
    let compiled = compile(&ready.function, target, None, &mut Cheapest);
    [stages::decisions(&compiled, |d| d.kind != "nest"), stages::rules(&compiled)].concat()
}

/// Kernels and launches of that step, of a class that takes at most `most` tokens; its functions, by name.
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
            // Layers of one kind that differ in how they are quantised are functions of one name.
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

/// Bytes that a launch must read from memory: weights in use, and the cache up to its last token. Activations come from nearer.
fn bytes(ready: &Ready, program: &Program, subject: &Subject) -> f64 {
    let [read, written] = subject.rows();
    let mut sum = 0.0;
    for &Param { slot: number, access, .. } in &program.params {
        // What is no slot of the function is an intermediate.
        let Some(slot) = ready.function.slots.get(number as usize) else { continue };
        let elements = |dims: &[i64]| dims.iter().product::<i64>() as f64;
        sum += match (slot.kind, slot.storage, access) {
            (SlotKind::Weight, Storage::Packed(e), _) => {
                // As in the file, unless the function has it otherwise.
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

/// The kernels of that name, one by one.
fn kernels(recording: &Recording, report: &Report, name: &str, source: bool, out: &mut dyn Write) -> Result {
    let chosen: Vec<_> = report.rows.iter().filter(|r| recording.kernels[r.kernel].name.starts_with(name)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = report.rows.iter().take(6).map(|r| recording.kernels[r.kernel].name.as_str()).collect();
        return Err(Failure::new(
            format_args!("no kernel's name begins with {name}"),
            format!("the most expensive are {}; without --kernel there is a table", names.join(", ")),
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
            "  each reads {:.3} MB, {:.2} GB/s, and does {:.1} M operations; of its limit {limit}",
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
