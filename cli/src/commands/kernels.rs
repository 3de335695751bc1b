//! `gristmill kernels`: the compiled kernels of a model, stage by stage, without weights or device.

use crate::failure::{Failure, Result, printable};
use crate::flags::Common;
use crate::model::Model;
use crate::model_arg::ModelArg;
use crate::output;
use crate::progress;
use crate::stages::{self, DECISIONS, SOURCE, Stage, Text, computes};
use crate::viewer::{self, critical_path};
use clap::Args;
use gristmill_backend::Opened;
use gristmill_compiler::{Cheapest, Listed, Policy};
use gristmill_llm::arch::{self, Functions, Options as PlanOptions, Plan, Pools, StepKind};
use gristmill_llm::engine::{
    CacheShape, CompiledModel, GraphKey, Settings, StepLimits, batch_graph, cache_rows, depths, mixed_graphs, plan_options, sequence_graphs,
};
use gristmill_llm::sampling::{self, SamplingMethod};
use gristmill_profile::compilation::{self, Compilation};
use gristmill_tensor::jit::{Jit, Ready};
use gristmill_uop::function::Function;
use gristmill_uop::target::Target;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NOTES: &str = "\
Without --stage: each kernel with its modelled time and plan, and the decisions with the cost of
each candidate. Needs neither the weights nor the device.

Examples:
  gristmill kernels synth:glm-4.7-flash:q4_0                             no download
  gristmill kernels MODEL.gguf --function moe.one                        one kind of layer
  gristmill kernels MODEL.gguf --function moe.one --stage alternatives   equality saturation
  gristmill kernels MODEL.gguf --function moe.one --stage decisions      fusion and scheduling
  gristmill kernels MODEL.gguf --function moe.one --stage source         source code
  gristmill kernels MODEL.gguf --html kernels.html                       all stages as a page
  gristmill kernels MODEL.gguf --device null:rtx4090                     for another GPU
  gristmill kernels MODEL.gguf --gpu-memory 8000 --stage decisions       what would be on the CPU
  gristmill kernels MODEL.gguf --batch 8                                 batched decode";

#[derive(Args)]
#[command(after_help = NOTES, override_usage = "gristmill kernels [OPTIONS] <MODEL>")]
pub struct KernelsArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Print a compiler stage instead of costs
    #[arg(long, value_name = "STAGE", value_parser = stages::parser())]
    stage: Option<&'static Stage>,
    /// Write a page with graphs after every pass, rewrite rules, decisions and kernels; - for
    /// standard output
    #[arg(long, value_name = "FILE", conflicts_with = "stage")]
    html: Option<PathBuf>,
    /// Only functions with NAME in their name
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// Batched decode of N sequences instead of the steps of one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    batch: Option<u16>,
    #[command(flatten)]
    common: Common,
}

/// Default context in tokens; costs include reading the KV cache up to its end.
const CONTEXT: usize = 4096;

pub fn run(options: KernelsArgs) -> Result {
    options.common.check_one_device()?;
    options.html.as_deref().map_or(Ok(()), output::check)?;
    let model = Model::open(options.model.name())?.with_adapters(&options.common.lora)?;
    let described = model.describe()?;
    // The null device with the target of the named device: it compiles and runs nothing.
    let device = match options.common.device.as_deref() {
        None if options.common.wants_gpu() => "null:gpu",
        None | Some("cpu" | "interp") => "null",
        Some(name) if name.starts_with("cuda") => "null:gpu",
        Some(name) => name,
    };
    let opened = options.common.open_as(device)?;
    if options.stage.is_some_and(|stage| stage.name == SOURCE) && opened.dialect.is_none() {
        return Err(Failure::new(
            format_args!("kernels for {device} have no source code yet"),
            "--stage kernel and --stage linear are available",
        ));
    }
    let mut steps = Steps::new(&options, described.as_ref(), &opened.target);
    match &options.html {
        Some(path) => page(&options, &model, &mut steps, &opened, path)?,
        None => {
            let out = &mut io::stdout().lock();
            writeln!(out, "# {}", heading(&opened, steps.context))?;
            placement(&options, &model, &opened, out)?;
            print(&options, &mut steps, opened, out)?;
        }
    }
    if steps.shown == 0 {
        let part = options.function.unwrap_or_default();
        let hint = format!("functions are {}", steps.functions.names().join(", "));
        return Err(Failure::new(format_args!("no function name contains {part}"), hint));
    }
    Ok(())
}

/// Steps of a model, and the functions shown so far.
struct Steps<'m> {
    model: &'m dyn arch::Model,
    context: usize,
    classes: Vec<PlanOptions>,
    functions: Functions,
    seen: Vec<Arc<Function>>,
    shown: usize,
}

impl<'m> Steps<'m> {
    fn new(asked: &KernelsArgs, model: &'m dyn arch::Model, target: &Target) -> Steps<'m> {
        let settings = asked.common.settings(None);
        let context = settings.context.unwrap_or(CONTEXT).min(model.context());
        let limits = StepLimits::new(&settings, context, model, target);
        let rows = cache_rows(context, limits.long);
        let sequences = asked.batch.map_or(1, usize::from);
        let pages = sequences * rows / PlanOptions::PAGE;
        let pools = Pools::new(pages, model.cache_kinds(), sequences, limits.long);
        let cache = CacheShape { rows, pools, cache_type: settings.cache };
        let others = Settings { parallel: sequences, ..settings.clone() }.over(pools).decode_rows();
        let all: Vec<GraphKey> = match sequences {
            1 => sequence_graphs(limits, &depths(&settings, rows, target)),
            n => {
                let mixed = others.map(|others| mixed_graphs(limits.chunk, rows, others));
                std::iter::once(batch_graph(n, n, rows)).chain(mixed.into_iter().flatten()).collect()
            }
        };
        let classes = all.into_iter().map(|class| plan_options(class, cache, target)).collect();
        Steps { model, context, classes, functions: Functions::new(), seen: vec![], shown: 0 }
    }
    /// Plans a step; returns it with its functions, including those of sampling for decode.
    fn plan(&mut self, options: &PlanOptions) -> (Plan, Vec<Arc<Function>>) {
        let plan = self.model.plan(options, &mut self.functions);
        let mut all: Vec<_> = plan.functions().into_iter().cloned().collect();
        if options.tokens == StepKind::Decode {
            let choices = [SamplingMethod::Greedy, SamplingMethod::SmallTopK];
            let vocabulary = self.model.vocabulary();
            all.extend(choices.map(|choice| self.functions.share(sampling::sampling_function(choice, vocabulary))));
        }
        (plan, all)
    }
    /// Whether a function matches and was not shown yet; steps share most functions.
    fn is_new(&mut self, function: &Arc<Function>, part: Option<&str>) -> bool {
        if part.is_some_and(|part| !function.name.contains(part)) {
            return false;
        }
        self.shown += 1;
        let is_new = !self.seen.iter().any(|seen| Arc::ptr_eq(seen, function));
        if is_new {
            self.seen.push(function.clone());
        }
        is_new
    }
}

/// Calls of a function per step; a sampling function counts once.
fn calls(plan: &Plan, function: &Arc<Function>) -> usize {
    plan.calls.iter().filter(|call| Arc::ptr_eq(&call.function, function)).count().max(1)
}

/// Whether a stage shows decisions with all candidates, as costs do.
fn shows_decisions(stage: Option<&Stage>) -> bool {
    stage.is_none_or(|stage| stage.name == DECISIONS)
}

/// Prints the decision on where the model's parts are, if the flags ask for a placement or the
/// model does not fit. A usable GPU of the named kind says how much memory is free and what copies
/// cost.
fn placement(options: &KernelsArgs, model: &Model, null: &Opened, out: &mut dyn Write) -> Result {
    if !shows_decisions(options.stage) || options.function.is_some() {
        return Ok(());
    }
    let is_cuda = |name: &&str| name.split(':').next() == Some("cuda");
    let named = options.common.device.as_deref().or(Some("cuda").filter(|_| options.common.wants_gpu()));
    let device = named.filter(is_cuda).and_then(|name| options.common.open_as(name).ok());
    let settings = options.common.settings(None);
    let is_asked = options.common.wants_gpu();
    let choice = match CompiledModel::planned_placement(&model.file, &settings, device.as_ref().unwrap_or(null)) {
        Ok(choice) => choice,
        // The cpu device cannot be opened, and the kernels do not need it.
        Err(_) if !is_asked => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if is_asked || !choice.chosen.placement.is_whole() {
        writeln!(out, "\n## placement")?;
        for line in stages::explained(&[choice.decision()]) {
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

/// Prints costs or a stage as text.
fn print(options: &KernelsArgs, steps: &mut Steps, opened: Opened, out: &mut dyn Write) -> Result {
    let target = opened.device.target().clone();
    let mut jit = Jit::new(opened);
    for class in steps.classes.clone() {
        let (plan, all) = steps.plan(&class);
        // Decisions are printed with all candidates.
        let lists = shows_decisions(options.stage);
        let policy: &mut dyn Policy = if lists { &mut Listed } else { &mut Cheapest };
        let ready = jit.prepare_with(&all, policy, &|_, _| ())?;
        for ready in &ready {
            if !steps.is_new(&ready.function, options.function.as_deref()) {
                continue;
            }
            match options.stage {
                None => costs(ready, calls(&plan, &ready.function), out)?,
                Some(stage) => programs(ready, stage, &target, out)?,
            }
        }
        if options.stage.is_none() && options.function.is_none() {
            step(&plan, &ready, &class, out)?;
        }
    }
    Ok(())
}

/// Writes all stages as a page.
fn page(options: &KernelsArgs, model: &Model, steps: &mut Steps, opened: &Opened, path: &Path) -> Result {
    let mut wanted: Vec<(Arc<Function>, usize)> = Vec::new();
    for class in steps.classes.clone() {
        let (plan, all) = steps.plan(&class);
        for function in all {
            if steps.is_new(&function, options.function.as_deref()) {
                let calls = calls(&plan, &function);
                wanted.push((function, calls));
            }
        }
    }
    let bar = progress::count("functions", wanted.len() as u64);
    let mut functions: Vec<compilation::Function> = Vec::new();
    for (function, calls) in &wanted {
        // Layers that differ in quantisation only have functions of one name.
        let same = wanted[..functions.len()].iter().filter(|other| other.0.name == function.name).count();
        let number = if same > 0 { format!(" ({})", same + 1) } else { String::new() };
        let name = printable(&format!("{}{number}", function.name));
        functions.push(viewer::function(function, name, *calls, opened));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let of = Compilation {
        model: printable(&model.name),
        machine: heading(opened, steps.context),
        ops: viewer::ops(),
        passes: viewer::passes(),
        functions,
    };
    let page = gristmill_profile::viewer::html(&of).map_err(|e| Failure::new(e, "this is a bug"))?;
    output::write(path, &page)
}

/// Describes the target machine in one line.
fn heading(opened: &Opened, context: usize) -> String {
    let t = opened.device.target();
    format!(
        "{}: {} workers, {} lanes, {:.0} GB/s, {:.0} Gop/s, a launch {:.1} us; context {context}",
        t.name,
        t.machine.units,
        t.machine.lanes,
        t.machine.bandwidth / 1e9,
        t.machine.operations / 1e9,
        t.machine.launch * 1e6
    )
}

fn costs(ready: &Ready, calls: usize, out: &mut dyn Write) -> Result {
    let compiled = &ready.compiled;
    writeln!(out, "\n{} × {calls}", ready.function.name)?;
    writeln!(out, "  {:>3} {:>5} {:18} {:>10} {:>11} {:>11}  computes", "", "level", "kernel", "model us", "weights kB", "other kB")?;
    for (i, (program, level)) in compiled.programs.iter().zip(&compiled.levels).enumerate() {
        writeln!(
            out,
            "  {i:>3} {level:>5} {:18} {:>10.2} {:>11.1} {:>11.1}  {}",
            program.name,
            1e6 * program.seconds,
            program.estimate.weight_bytes / 1e3,
            program.estimate.other_bytes / 1e3,
            computes(program)
        )?;
        for plan in compiled.plans[i].texts() {
            writeln!(out, "            {plan}")?;
        }
    }
    let levels = compiled.levels.iter().max().map_or(0, |l| l + 1);
    writeln!(
        out,
        "  total {} kernels in {levels} levels, {:.2} us, critical path {:.2} us, arena {:.1} kB",
        compiled.programs.len(),
        compiled.seconds * 1e6,
        critical_path(compiled) * 1e6,
        compiled.arena as f64 / 1e3
    )?;
    // Decisions on nests have no costs and are many: --stage decisions prints them.
    for line in stages::decisions(compiled, |d| d.kind != "nest") {
        writeln!(out, "  {line}")?;
    }
    Ok(())
}

fn step(plan: &Plan, ready: &[Arc<Ready>], options: &PlanOptions, out: &mut dyn Write) -> Result {
    let (mut kernels, mut sum, mut path) = (0, 0.0, 0.0);
    for call in &plan.calls {
        let Some(ready) = ready.iter().find(|r| Arc::ptr_eq(&r.function, &call.function)) else { continue };
        kernels += ready.compiled.programs.len();
        sum += ready.compiled.seconds * 1e6;
        path += critical_path(&ready.compiled) * 1e6;
    }
    let what = match options.tokens {
        StepKind::Decode if options.depth < options.rows => format!("decode at context depth < {}", options.depth),
        StepKind::Decode => "decode".to_string(),
        StepKind::Prefill { max } => format!("prefill chunk of {max} tokens"),
        StepKind::BatchedDecode { max } => format!("batched decode of {max} sequences"),
        StepKind::Mixed { piece, others } => {
            format!("mixed batch: prefill chunk of {piece} tokens and {others} decode rows")
        }
        StepKind::Train {
            sequences, length, ..
        } => format!("training of {sequences} rows of {length} tokens"),
    };
    writeln!(
        out,
        "\nstep, {what}: {} calls of {} functions, {kernels} kernels, {sum:.1} us, critical path {path:.1} us",
        plan.calls.len(),
        ready.len()
    )?;
    Ok(())
}

fn programs(ready: &Ready, stage: &Stage, target: &Target, out: &mut dyn Write) -> Result {
    writeln!(out, "\n## {}", ready.function.name)?;
    match stage.text {
        Text::OfFunction(text) => out.write_all(text(&ready.function, &ready.compiled, target).as_bytes())?,
        Text::OfKernel(text) => {
            for program in &ready.compiled.programs {
                writeln!(out, "\n# {}: {}", program.name, computes(program))?;
                out.write_all(text(program, target).as_bytes())?;
            }
        }
    }
    Ok(())
}
