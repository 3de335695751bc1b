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
use gristmill_backend::Opened;
use gristmill_compiler::{Cheapest, compile};
use gristmill_llm::arch::{self, DraftSource};
use gristmill_llm::engine::{Engine, Settings, TokenSource, Step as StepInput, WholePool};
use gristmill_llm::traffic;
use gristmill_profile::{
    WHY_ABOVE, ProfiledDevice, ProfiledKernel, KernelLaunch, Limits, Recording, Report, StageText, StepRun, page, text, trace,
};
use gristmill_runtime::StepTrace;
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
  gristmill profile MODEL.gguf --draft                    a step of the block that drafts tokens
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
    /// Profile a step of the block that drafts tokens; with --batch, of so many rows
    #[arg(long, conflicts_with = "prompt")]
    draft: bool,
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
    let model = if options.draft { model.with_built_in_block()? } else { model };
    let (subject, context) = subject(&options, &model)?;
    let opened = options.common.open()?;
    // Before the model takes its memory.
    let of_device = bandwidth::of_device(&opened);
    let main = opened.clone();
    let parallel = if subject.of_several { subject.tokens } else { 1 };
    let mut engine = model.load_with(opened, Settings { parallel, contexts: parallel, draft_block: options.draft, ..options.common.settings(Some(context)) })?;
    subject.prepare(&mut engine)?;
    let devices = devices(&engine, &main, of_device, options.common.team());
    let runs = steps(&mut engine, &subject, options.runs)?;
    let with_decisions = options.html.is_some();
    let recording = recorded(&engine, &subject, printable(&model.name), devices, runs, with_decisions);
    let report = Report::new(&recording);
    // Tables go to standard error if a page or trace goes to standard output.
    let mut out: Box<dyn Write> = if on_stdout > 0 { Box::new(io::stderr().lock()) } else { Box::new(io::stdout().lock()) };
    match &options.kernel {
        Some(name) => kernels(&recording, &report, name, options.source, &mut out)?,
        None => out.write_all(text::tables(&recording, &report, options.all).as_bytes())?,
    }
    if let Some(experts) = engine.expert_cache() {
        writeln!(out, "{experts}")?;
    }
    if let Some(path) = &options.html {
        output::write(path, &page::html(&recording, &report))?;
    }
    if let Some(path) = &options.trace {
        output::write(path, &trace::chrome(&recording, &report).to_string())?;
    }
    Ok(())
}

/// A device of a step, and the target of its kernels.
struct StepDevice {
    described: ProfiledDevice,
    target: Target,
}

/// Returns the devices of an engine's steps; `of_main` is the read bandwidth of the main device's
/// own memory, in bytes per second, and `team` the number of threads of the cpu device.
fn devices(engine: &Engine, main: &Opened, of_main: Option<f64>, team: usize) -> Vec<StepDevice> {
    let placement = engine.placement();
    let others = placement.others.iter().filter(|_| !placement.chosen.placement.is_whole());
    let device = |(number, opened): (usize, &Opened)| {
        let target = &opened.target;
        let of_weights = || bandwidth::of_weights(engine.weights_on(number), team);
        let bandwidth = of_main.filter(|_| number == 0).or_else(of_weights);
        // The cost model counts all cores; --threads may use fewer. Other devices are one worker.
        let (workers, part) = match opened.device.name() {
            "cpu" => (team, team.min(target.machine.units) as f64 / target.machine.units.max(1) as f64),
            _ => (1, 1.0),
        };
        let operations = target.machine.operations * part;
        StepDevice {
            described: ProfiledDevice {
                name: format!("{} ({})", opened.device.name(), target.name),
                limits: Limits { bandwidth, operations, workers },
            },
            target: target.clone(),
        }
    };
    std::iter::once(main).chain(others).enumerate().map(device).collect()
}

/// Records the runs of a step, with compilation decisions if they are wanted.
fn recorded(
    engine: &Engine,
    subject: &Subject,
    model: String,
    devices: Vec<StepDevice>,
    runs: StepRuns,
    with_decisions: bool,
) -> Recording {
    let mut recording = Recording {
        model,
        devices: devices.iter().map(|of| of.described.clone()).collect(),
        what: subject.to_string(),
        tokens: subject.tokens,
        kernels: vec![],
        launches: vec![],
        decisions: vec![],
        steps: runs.traced,
        plain: runs.plain,
    };
    let on = |launch: usize| runs.devices.get(launch).copied().unwrap_or(0);
    let functions = describe(subject.launches(engine), &devices, &on, subject, subject.most(engine), &mut recording);
    if with_decisions {
        let explained = |of: DescribedFunction| (of.name, explanations(of.ready, &devices[of.device].target));
        recording.decisions = functions.into_iter().map(explained).collect();
    }
    recording
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
        drafts: options.draft,
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
    /// Whether the block that drafts tokens runs.
    drafts: bool,
}

impl Subject {
    /// Fills the KV cache, or refuses a step that does not fit.
    fn prepare(&self, engine: &mut Engine) -> Result {
        if self.drafts && !engine.has_draft_block() {
            let hint = "--batch N profiles the step that verifies N - 1 drafts";
            return Err(Failure::new("the model has no block for draft tokens", hint));
        }
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
    /// Runs the step with and without timers: timeline, seconds with them, seconds without.
    fn run(&self, engine: &mut Engine, ids: &[u32]) -> Result<(StepTrace, f64, f64)> {
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
        if self.drafts {
            // The hidden rows are those of the step before.
            engine.run(&step)?;
            let from: Vec<_> = (0..self.tokens).map(Some).collect();
            let start = Instant::now();
            let trace = engine.run_drafts_traced(&step, &from)?;
            let (host, start) = (start.elapsed().as_secs_f64(), Instant::now());
            engine.run_drafts(&step, DraftSource::Model, &from)?;
            return Ok((trace, host, start.elapsed().as_secs_f64()));
        }
        let trace = engine.run_traced(&step)?;
        let host = start.elapsed().as_secs_f64();
        if !self.of_several {
            return Ok((trace, host, seconds(engine, ids, self.tokens > 1, self.depth)?));
        }
        let start = Instant::now();
        engine.run(&step)?;
        Ok((trace, host, start.elapsed().as_secs_f64()))
    }
    fn launches<'e>(&self, engine: &'e Engine) -> &'e [(Arc<Ready>, usize)] {
        match self.of_several {
            _ if self.drafts => engine.draft_launches(self.tokens, self.depth),
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
            (_, n) if self.drafts => write!(f, "draft step of {n} rows")?,
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

/// Runs of a step with timers, seconds of those without, and the device of each launch.
struct StepRuns {
    traced: Vec<StepRun>,
    plain: Vec<f64>,
    devices: Vec<usize>,
}

/// Runs the step `n` times with and without timers, alternately.
fn steps(engine: &mut Engine, subject: &Subject, n: u16) -> Result<StepRuns> {
    let mut ids = Ids::new(engine);
    let bar = progress::count("steps", u64::from(n));
    let (mut traced, mut plain, mut devices) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..WARM + usize::from(n) {
        let (trace, host, untimed) = subject.run(engine, &ids.some(subject.tokens))?;
        // Asynchronous devices measure time by their own clock.
        let own = trace.spans.iter().map(|s| s.end).fold(0.0, f64::max);
        let wall = if engine.device().overlaps() { own } else { host };
        if run >= WARM {
            traced.push(StepRun { wall, spans: trace.spans, copies: trace.copies });
            devices = trace.devices;
            plain.push(untimed);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(StepRuns { traced, plain, devices })
}

/// Decisions and rules of a function, which is compiled again, since the engine does not keep them.
fn explanations(ready: &Ready, target: &Target) -> Vec<String> {
    let compiled = compile(&ready.function, target, None, &mut Cheapest);
    [stages::decisions(&compiled, |d| d.kind != "nest"), stages::rules(&compiled)].concat()
}

/// A function of a step: its name, device and first kernel in the recording.
struct DescribedFunction<'a> {
    ready: &'a Arc<Ready>,
    name: String,
    device: usize,
    first: usize,
}

/// Records the kernels and launches of a step, each on device `on(launch)`; returns its functions.
fn describe<'a>(
    launches: &'a [(Arc<Ready>, usize)],
    devices: &[StepDevice],
    on: &dyn Fn(usize) -> usize,
    subject: &Subject,
    most: usize,
    recording: &mut Recording,
) -> Vec<DescribedFunction<'a>> {
    let mut functions: Vec<DescribedFunction> = Vec::new();
    let mut call = 0;
    for (at, (ready, place)) in launches.iter().enumerate() {
        if at > 0 && *place == 0 {
            call += 1;
        }
        let known = functions.iter().find(|f| Arc::ptr_eq(f.ready, ready)).map(|f| f.first);
        let first = known.unwrap_or_else(|| {
            let (first, device) = (recording.kernels.len(), on(at));
            // Layers that differ in quantisation only have functions of one name.
            let same = functions.iter().filter(|f| f.ready.function.name == ready.function.name).count();
            let number = if same > 0 { format!(" ({})", same + 1) } else { String::new() };
            let name = format!("{}{number}", ready.function.name);
            let share = subject.tokens as f64 / most as f64;
            let target = &devices[device].target;
            recording.kernels.extend(profiled(ready, &name, device, target, subject, share));
            functions.push(DescribedFunction { ready, name, device, first });
            first
        });
        recording.launches.push(KernelLaunch { kernel: first + place, call });
    }
    functions
}

/// Describes the kernels of a function; `share` is the part of its rows that the step computes.
fn profiled(
    ready: &Ready,
    function: &str,
    device: usize,
    target: &Target,
    subject: &Subject,
    share: f64,
) -> Vec<ProfiledKernel> {
    let tensor = StageText { name: "tensor", text: stages::tensor(&ready.function) };
    let kernel = |(place, program): (usize, &Arc<Program>)| ProfiledKernel {
        name: program.name.clone(),
        function: function.to_owned(),
        place,
        device,
        about: computes(program),
        bytes: bytes(ready, program, subject),
        operations: program.estimate.operations * share,
        modelled: program.seconds,
        stages: std::iter::once(tensor.clone()).chain(stages::of_kernel(program, target)).collect(),
    };
    ready.compiled.programs.iter().enumerate().map(kernel).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_backend::{Options, open};
    use gristmill_llm::placement::{LayerPlace, OtherDevice, Placement, PlacementRequest};

    #[test]
    fn a_placed_step_has_both_devices_and_their_copies() {
        let opened = |name| open(name, &Options { quick: true, ..Options::default() }).unwrap();
        let (main, other) = (opened("cpu"), opened("interp"));
        // Experts of two layers, and a whole one.
        let experts = LayerPlace { layer: 0, experts: 1 };
        let whole = LayerPlace { layer: 1, experts: 1 };
        let placement = PlacementRequest {
            others: vec![OtherDevice::from_opened(other)],
            fixed: Some(Placement::new(vec![LayerPlace::default(), experts, experts, whole])),
            ..PlacementRequest::default()
        };
        let settings = Settings { context: Some(64), chunk: 8, placement, ..Settings::default() };
        let model = Model::open(None).unwrap();
        let mut engine = model.load_with(main.clone(), settings).unwrap();
        let subject = Subject { tokens: 1, depth: 0, of_several: false, drafts: false };
        subject.prepare(&mut engine).unwrap();
        let devices = devices(&engine, &main, None, 2);
        let runs = steps(&mut engine, &subject, 2).unwrap();
        let recording = recorded(&engine, &subject, "a model".into(), devices, runs, true);
        let report = Report::new(&recording);
        for run in &recording.steps {
            assert!([0, 1].iter().all(|&d| run.spans.iter().any(|s| recording.device_of(s.launch) == d)));
            // Spans and copies follow one another: a part is on one device at a time.
            let ends = run.copies.iter().map(|c| c.end).chain(run.spans.iter().map(|s| s.end));
            assert!(ends.into_iter().all(|end| (0.0..60.0).contains(&end)));
            let during = |copy: &gristmill_runtime::CopySpan, s: &gristmill_runtime::Span| s.start < copy.end && copy.start < s.end;
            assert!(!run.copies.iter().any(|copy| run.spans.iter().any(|s| during(copy, s))));
        }
        let tables = text::tables(&recording, &report, false);
        for part in ["cpu (", " + interp (", "devices and copies", "\ncpu to interp ", "\ninterp to cpu "] {
            assert!(tables.contains(part), "{part} in\n{tables}");
        }
        let trace = trace::chrome(&recording, &report).to_string();
        for part in ["\"cpu to interp\"", "\"gb_per_second\"", "\"copies\""] {
            assert!(trace.contains(part), "{part}");
        }
        // The page has a timeline of both.
        assert!(page::html(&recording, &report).contains("\"routes\":[\"cpu to interp\",\"interp to cpu\"]"));
    }
}
