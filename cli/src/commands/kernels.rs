//! `gristmill kernels`: the compiler's work on one model, stage by stage. Needs no weights and runs nothing.

use crate::failure::{Failure, Result};
use crate::flags::Common;
use crate::model::{self, Model};
use crate::stages::{self, computes};
use clap::{Args, ValueEnum, ValueHint};
use gristmill_backend::Opened;
use gristmill_compiler::{Cheapest, Listed, Policy};
use gristmill_llm::arch::{Functions, Options as PlanOptions, Plan, TokenClass};
use gristmill_llm::engine::{CacheShape, cache_rows, classes, depths, plan_options};
use gristmill_llm::sampling::{self, Choice};
use gristmill_tensor::jit::{Jit, Ready};
use gristmill_uop::target::Target;
use std::io::{self, Write};

const NOTES: &str = "\
Without --stage: every kernel with its price and its plan, what was decided and what the alternatives would have cost. Needs neither the
model's weights nor the device.

Examples:
  gristmill kernels synth:glm-4.7-flash:q4_0                        a model of real shape, without a download
  gristmill kernels MODEL.gguf --function moe.one                   of one kind of layer
  gristmill kernels MODEL.gguf --function moe.one --stage decisions how it was cut into kernels, and why
  gristmill kernels MODEL.gguf --function moe.one --stage source    the text that is compiled
  gristmill kernels MODEL.gguf --device null:rtx4090                as it would be for another GPU";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    #[arg(value_hint = ValueHint::FilePath, help = model::HELP)]
    model: String,
    /// Show the programs themselves instead of what they cost
    #[arg(long, value_name = "STAGE")]
    stage: Option<Stage>,
    /// Only functions with this in their name
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// What a function is on its way to a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Stage {
    /// The function as the model wrote it
    Tensor,
    /// How it was cut into kernels: the rules that fired, the decisions and what each option would have cost
    Decisions,
    /// Kernels: loops and loads
    Kernel,
    /// Statements in order
    Linear,
    /// The text that is compiled
    Source,
}

/// Context where --ctx does not say: prices depend on it, as the cache is read up to its end.
const CONTEXT: usize = 4096;

pub fn run(options: Options) -> Result {
    let model = Model::open(Some(&options.model))?;
    let described = model.describe()?;
    let settings = options.common.settings(None);
    let context = settings.context.unwrap_or(CONTEXT).min(described.context());
    let chunk = settings.chunk.clamp(1, context);
    // A device that schedules and renders like the one asked for, and runs nothing.
    let device = match options.common.device.as_deref() {
        None | Some("cpu" | "interp") => "null",
        Some(name) if name.starts_with("cuda") => "null:gpu",
        Some(name) => name,
    };
    let opened = options.common.open_as(device)?;
    let has_text = opened.dialect.is_some();
    let mut out = io::stdout().lock();
    heading(&opened, context, &mut out)?;
    let target = opened.device.target().clone();
    let mut jit = Jit::new(opened);
    let mut functions = Functions::new();
    let mut shown = 0;
    let mut seen: Vec<std::sync::Arc<Ready>> = Vec::new();
    let rows = cache_rows(context, chunk);
    for class in classes(chunk, &depths(&settings, rows, &target)) {
        let plan_options = plan_options(class, CacheShape { rows, pages: None, scalar: settings.cache }, &target);
        let plan = described.plan(&plan_options, &mut functions);
        let mut all: Vec<_> = plan.functions().into_iter().cloned().collect();
        if class.tokens == 1 {
            let choices = [Choice::Greedy, Choice::Best];
            let sample = |choice| functions.share(sampling::function(choice, described.vocabulary(), rows));
            all.extend(choices.map(sample));
        }
        // Whoever reads decisions wants to see all alternatives.
        let lists = matches!(options.stage, None | Some(Stage::Decisions));
        let policy: &mut dyn Policy = if lists { &mut Listed } else { &mut Cheapest };
        let ready = jit.prepare_with(&all, policy, &|_, _| ())?;
        for ready in &ready {
            if options.function.as_ref().is_some_and(|part| !ready.function.name.contains(part.as_str())) {
                continue;
            }
            shown += 1;
            // Steps that differ only in their logits share their layers.
            if seen.iter().any(|s| std::sync::Arc::ptr_eq(s, ready)) {
                continue;
            }
            seen.push(ready.clone());
            // Choices stand beside the plan.
            let calls = plan.calls.iter().filter(|c| std::sync::Arc::ptr_eq(&c.function, &ready.function)).count().max(1);
            match options.stage {
                None => prices(ready, calls, &mut out)?,
                Some(Stage::Source) if !has_text => {
                    return Err(Failure::new(
                        format_args!("kernels for {device} have no text yet"),
                        "--stage kernel and --stage linear show what there is",
                    ));
                }
                Some(stage) => programs(ready, stage, &target, &mut out)?,
            }
        }
        if options.stage.is_none() && options.function.is_none() {
            step(&plan, &ready, &plan_options, &mut out)?;
        }
    }
    if shown == 0 {
        let part = options.function.unwrap_or_default();
        let hint = format!("there are {}", functions.names().join(", "));
        return Err(Failure::new(format_args!("no function has {part} in its name"), hint));
    }
    Ok(())
}

fn heading(opened: &Opened, context: usize, out: &mut dyn Write) -> Result {
    let t = opened.device.target();
    writeln!(
        out,
        "# {}: {} workers, {} lanes, {:.0} GB/s, {:.0} Gop/s, a launch {:.1} us; context {context}",
        t.name,
        t.machine.units,
        t.machine.lanes,
        t.machine.bandwidth / 1e9,
        t.machine.operations / 1e9,
        t.machine.launch * 1e6
    )?;
    Ok(())
}

/// Modelled microseconds of one call: launches of one level run side by side, levels one after the other.
fn critical_path(ready: &Ready) -> f64 {
    let mut levels: Vec<f64> = Vec::new();
    for (program, &level) in ready.compiled.programs.iter().zip(&ready.compiled.levels) {
        levels.resize(levels.len().max(level + 1), 0.0);
        levels[level] = levels[level].max(1e6 * program.seconds);
    }
    levels.iter().sum()
}

fn prices(ready: &Ready, calls: usize, out: &mut dyn Write) -> Result {
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
        for plan in &compiled.plans[i] {
            writeln!(out, "            {plan}")?;
        }
        if program.threads > 1 {
            writeln!(out, "            {}", program.context.plan)?;
        }
    }
    let levels = compiled.levels.iter().max().map_or(0, |l| l + 1);
    writeln!(
        out,
        "  total {} kernels in {levels} levels, {:.2} us, critical path {:.2} us, arena {:.1} kB",
        compiled.programs.len(),
        compiled.seconds * 1e6,
        critical_path(ready),
        compiled.arena as f64 / 1e3
    )?;
    // What is told of nests is most of the lines, and has no prices: it is a stage of its own.
    for line in stages::decisions(compiled, |d| d.kind != "nest") {
        writeln!(out, "  {line}")?;
    }
    Ok(())
}

fn step(plan: &Plan, ready: &[std::sync::Arc<Ready>], options: &PlanOptions, out: &mut dyn Write) -> Result {
    let (mut kernels, mut sum, mut path) = (0, 0.0, 0.0);
    for call in &plan.calls {
        let Some(ready) = ready.iter().find(|r| std::sync::Arc::ptr_eq(&r.function, &call.function)) else { continue };
        kernels += ready.compiled.programs.len();
        sum += ready.compiled.seconds * 1e6;
        path += critical_path(ready);
    }
    let what = match options.tokens {
        TokenClass::One if options.depth < options.rows => format!("one token before position {}", options.depth),
        TokenClass::One => "one token".to_string(),
        TokenClass::Chunk { max } => format!("a chunk of {max} tokens"),
        TokenClass::Batch { max } => format!("a token each of {max} sequences"),
    };
    writeln!(
        out,
        "\nstep of {what}: {} calls of {} functions, {kernels} kernels, {sum:.1} us, critical path {path:.1} us",
        plan.calls.len(),
        ready.len()
    )?;
    Ok(())
}

fn programs(ready: &Ready, stage: Stage, target: &Target, out: &mut dyn Write) -> Result {
    let function = &ready.function;
    writeln!(out, "\n## {}", function.name)?;
    if stage == Stage::Tensor {
        out.write_all(stages::tensor(function).as_bytes())?;
        return Ok(());
    }
    if stage == Stage::Decisions {
        for line in stages::decisions(&ready.compiled, |_| true).into_iter().chain(stages::rules(&ready.compiled)) {
            writeln!(out, "{line}")?;
        }
        return Ok(());
    }
    for program in &ready.compiled.programs {
        writeln!(out, "\n# {}: {}", program.name, computes(program))?;
        let text = match stage {
            Stage::Source => program.source.clone(),
            Stage::Linear => stages::linear(program, target),
            _ => stages::kernel(program),
        };
        out.write_all(text.as_bytes())?;
    }
    Ok(())
}
