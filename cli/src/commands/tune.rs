//! `gristmill tune`: autotunes kernel parameters and plans on the real steps of a model.

use crate::beam::{Budget, SearchSpace, Ended, Found, Question, search};
use crate::failure::{Failure, Result, printable};
use crate::flags::Common;
use crate::ab_bench::{Compared, KernelTimes, Variants, Speed, Work, shown};
use crate::model::{self, Model};
use crate::model_arg::ModelFlags;
use crate::plans::{self, About, Answer};
use crate::timings::{self, Measured, Timing};
use clap::{Args, ValueHint};
use gristmill_backend::tuning::{self, Plans};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::{PARAMETERS, Parameter, Target, Tuning};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const NOTES: &str = "\
Candidates are, on a CPU, the kernel parameters; then, for whatever takes at least 2 % of a step
by the cost model: fusion and materialisation, horizontal fusion, matmul and attention variants;
then the schedule of each kernel; then weight layouts, each of which reloads the weights. Less
precise variants are not tried, but another order of sums can change the last digits of logits.

Each candidate is measured alternately with the best so far. It is kept if decode and prefill
together gain more than twice the standard error (at least 0.4 %, at most 2 %) in two comparisons,
and neither loses as much. A beam (--beam N) finds changes that gain only in combination, in N
times the time. Rounds repeat until nothing gains or the time is up. The result is measured once
more against the untuned model and stored only if it is faster, for this CPU, instruction set and
number of cores or this GPU; `gristmill devices` shows it.

Examples:
  gristmill tune MODEL.gguf                 at most ten minutes; best on an idle machine
  gristmill tune MODEL.gguf -p 0            decode only
  gristmill tune MODEL.gguf -p 0 -d 8192    decode at a context depth of 8192
  gristmill tune MODEL.gguf --beam 4 --minutes 60
  gristmill tune MODEL.gguf --device cuda   on the GPU
  gristmill tune --reset                    restore the defaults";

#[derive(Args)]
#[command(after_help = NOTES, override_usage = "gristmill tune [OPTIONS] <MODEL>")]
pub struct TuneArgs {
    #[arg(
        value_hint = ValueHint::FilePath, help = model::HELP,
        required_unless_present_any = ["reset", "model_flag", "hf_repo"],
        conflicts_with_all = ["model_flag", "hf_repo"]
    )]
    model: Option<String>,
    #[command(flatten)]
    flags: ModelFlags,
    /// Prompt size in tokens; 0 for none
    #[arg(short = 'p', long = "n-prompt", value_name = "N", default_value_t = 128)]
    prompt: usize,
    /// Number of tokens to generate; 0 for none
    #[arg(short = 'n', long = "n-gen", value_name = "N", default_value_t = 32)]
    tokens: usize,
    /// Context depth: tokens already in the KV cache
    #[arg(short = 'd', long = "n-depth", value_name = "N", default_value_t = 0)]
    depth: usize,
    /// Repetitions of each measurement
    #[arg(
        short, long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    repetitions: u16,
    /// Beam width of the search
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    beam: u8,
    /// Time limit in minutes
    #[arg(long, value_name = "M", default_value = "10", value_parser = minutes)]
    minutes: Duration,
    /// Measure every candidate once against the defaults and append the times to this file, as data
    /// for the cost model; nothing is stored
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "reset")]
    timings: Option<PathBuf>,
    /// Restore the defaults and measure nothing
    #[arg(long)]
    reset: bool,
    #[command(flatten)]
    common: Common,
}

/// Parses a positive number of minutes.
fn minutes(text: &str) -> std::result::Result<Duration, String> {
    let minutes = text.parse::<f64>().ok().filter(|m| *m > 0.0);
    minutes.and_then(|m| Duration::try_from_secs_f64(60.0 * m).ok()).ok_or_else(|| "minutes are a number above 0".into())
}

/// Minimum gain of a change, and its maximum under noise. Equal kernels differed by up to 0.4 % in
/// 43 comparisons on an H100 (docs/experiments/121).
const GAINS: [f64; 2] = [1.004, 1.02];
/// Standard errors that a gain must exceed, twice; one comparison in forty exceeds it by chance.
const ERRORS: f64 = 2.0;

pub fn run(options: TuneArgs) -> Result {
    options.common.check_one_device()?;
    let start = Instant::now();
    // The null devices are for tests.
    let usual = if options.common.wants_gpu() { "cuda" } else { "cpu" };
    let device = options.common.device.as_deref().unwrap_or(usual);
    if gristmill_backend::find(device)?.row.dialect.is_none() {
        return Err(Failure::new(
            format_args!("there is nothing to tune on {device}"),
            "choose a device with compiled kernels: --device cpu or --device cuda",
        ));
    }
    let store = gristmill_runtime::store::Store::user()?;
    // Results must be stored.
    if let Some(why) = store.warnings().pop() {
        return Err(why.into());
    }
    let mut out = io::stdout().lock();
    let opened = options.common.open_as(device)?;
    let machine = opened.device.tuned_as();
    if options.reset {
        if let Some(machine) = &machine {
            tuning::write(&store, machine, Tuning::default())?;
            tuning::write_plans(&store, machine, &Plans::new())?;
        }
        writeln!(out, "defaults restored: {}", tuning::text(Tuning::default()))?;
        return Ok(());
    }
    let model = Model::open(options.model.as_deref().or(options.flags.name()))?.with_adapters(&options.common.lora)?;
    let work = work(&options, &model)?;
    let context = options.depth + options.prompt.max(options.tokens);
    let variants = Variants::new(&model, &options.common, opened, context, work);
    let budget = Budget::new(options.minutes);
    let mut tuner = Tuner { work, variants, start, loading: Duration::ZERO, budget, out: &mut out };
    if let Some(file) = &options.timings {
        return tuner.time(&model, file);
    }
    let best = tuner.tune(options.beam.into())?;
    let steps = tuner.variants.plans(&best)?;
    let Some(machine) = machine else {
        writeln!(out, "nothing is stored for {device}: {}", tuning::text(best.tuning))?;
        return Ok(());
    };
    tuning::write(&store, &machine, best.tuning)?;
    let stored = tuning::read_plans(&store, &machine).unwrap_or_default();
    let mut plans = plans::of_others(stored, &steps);
    plans.extend(best.plans.clone());
    tuning::write_plans(&store, &machine, &plans)?;
    writeln!(out, "stored for {}: {}, and {} plans", machine, tuning::text(best.tuning), best.plans.len())?;
    Ok(())
}

/// Returns the measurement, if it fits the model's context.
fn work(options: &TuneArgs, model: &Model) -> Result<Work> {
    let most = model.describe()?.context();
    let TuneArgs { prompt, tokens, depth, repetitions: times, .. } = *options;
    if options.timings.is_some() && prompt > 0 && tokens > 0 {
        return Err(Failure::usage("--timings measures one step", "add -p 0 for decode, or -n 0 for a prompt"));
    }
    let longest = prompt.max(tokens);
    if longest == 0 || longest.checked_add(depth).is_none_or(|all| all > most) {
        return Err(Failure::new(
            format_args!("there is nothing to measure with -p {prompt}, -n {tokens} and -d {depth}"),
            format!("this model takes 1 to {most} tokens, including the context depth (-d)"),
        ));
    }
    Ok(Work { prompt, tokens, depth, times: times.into() })
}

/// Opens a file to append lines to it.
fn appended(path: &Path) -> Result<File> {
    let file = File::options().create(true).append(true).open(path);
    file.map_err(|e| Failure::new(format_args!("cannot write {}: {e}", path.display()), "give --timings another file"))
}

/// A change of a target.
enum Change {
    Parameter(&'static Parameter, u8),
    Plans(Answer),
}

impl Change {
    fn name(&self) -> String {
        match self {
            Change::Parameter(parameter, value) => format!("{} {value}", parameter.name),
            Change::Plans(answer) => printable(&plans::shown(answer)),
        }
    }
}

/// Search for the fastest target of a model on a device.
struct Tuner<'a, 'o> {
    work: Work,
    variants: Variants<'a>,
    start: Instant,
    /// Load time of the model.
    loading: Duration,
    budget: Budget,
    out: &'o mut dyn Write,
}

impl Tuner<'_, '_> {
    /// Returns the fastest target, or the untuned one if that is as fast.
    fn tune(&mut self, width: usize) -> Result<Target> {
        let mut untuned = self.variants.target().clone();
        (untuned.tuning, untuned.plans) = (Tuning::default(), Plans::new());
        self.variants.load(&untuned)?;
        self.loading = self.start.elapsed();
        let heads = ["decode tok/s", "ratio", "prefill tok/s", "ratio"];
        writeln!(self.out, "{:>13} {:>7} {:>14} {:>7}  tried", heads[0], heads[1], heads[2], heads[3])?;
        let found = search(self, untuned.clone(), width)?;
        self.print_search(&found)?;
        let best = found.best;
        if best == untuned {
            writeln!(self.out, "no gain above the measurement error: the defaults stay")?;
            return Ok(untuned);
        }
        let (compared, kernels) = self.variants.compare_kernels(&untuned, &best)?;
        self.print_gain(&compared.speeds, &kernels)?;
        let gain = Gain::new(&compared);
        if gain.is_one() {
            return Ok(best);
        }
        writeln!(self.out, "the gain is not above {:.1} %: the defaults stay", 100.0 * (gain.least - 1.0))?;
        Ok(untuned)
    }
    /// Measures each candidate against the untuned model until time is up, the dearest decisions
    /// first, and appends the times to a file.
    fn time(&mut self, model: &Model, file: &Path) -> Result {
        let mut untuned = self.variants.target().clone();
        (untuned.tuning, untuned.plans) = (Tuning::default(), Plans::new());
        self.variants.load(&untuned)?;
        let mut out = BufWriter::new(appended(file)?);
        let steps = self.variants.plans(&untuned)?;
        let decisions = timings::decisions(&steps, &untuned);
        let tokens = if self.work.tokens > 0 { 1 } else { self.work.prompt };
        let of = Measured { machine: &untuned.machine, model: &model.name, tokens, depth: self.work.depth };
        let asked = [About::Functions, About::Kernels].map(|about| plans::questions(about, &steps, &untuned));
        let all = timings::in_turns(&asked.concat());
        let mut written = 0;
        for answer in &all {
            // One is always measured: on a busy machine, loading may have used the whole budget.
            if written > 0 && !self.budget.has_room(self.start.elapsed()) {
                break;
            }
            let start = Instant::now();
            let mut other = untuned.clone();
            other.plans.extend(answer.clone());
            // A candidate that cannot be compiled or loaded has no times.
            let times = self.variants.time_step(&untuned, &other).ok().flatten();
            self.budget.took(start.elapsed(), false);
            let timing = times.and_then(|times| Timing::new(&of, answer, &decisions, times));
            let Some(timing) = timing else { continue };
            writeln!(out, "{}", serde_json::json!(timing))?;
            written += 1;
        }
        out.flush()?;
        Ok(writeln!(self.out, "{written} candidates measured, times appended to {}", file.display())?)
    }
    fn print_search(&mut self, found: &Found<Target>) -> Result {
        let (changes, rounds) = (found.measured, found.rounds);
        let why = match found.ended {
            Ended::Settled => "nothing more gains",
            Ended::Late => "time is up (--minutes)",
        };
        let seconds = self.start.elapsed().as_secs();
        let plural = |n: usize| if n == 1 { "" } else { "s" };
        writeln!(
            self.out,
            "\ntried {changes} change{} in {rounds} round{} and {} min {} s: {why}",
            plural(changes),
            plural(rounds),
            seconds / 60,
            seconds % 60
        )?;
        if found.best.tuning != Tuning::default() {
            writeln!(self.out, "  kept: {}", tuning::text(found.best.tuning))?;
        }
        for answer in &found.best.plans {
            let kept = Change::Plans(Answer::from([(answer.0.clone(), answer.1.clone())]));
            writeln!(self.out, "  kept: {}", kept.name())?;
        }
        Ok(())
    }
    /// Prints the speeds before and after, and the kernels that changed.
    fn print_gain(&mut self, [before, after]: &[Speed; 2], kernels: &[KernelTimes]) -> Result {
        writeln!(self.out, "\nmeasured alternately with the untuned model:")?;
        let gained = after.over(before);
        for (what, before, after, ratio) in [
            ("decode", before.decode, after.decode, gained.decode),
            ("prefill", before.prefill, after.prefill, gained.prefill),
        ] {
            let Some(ratio) = ratio else { continue };
            let percent = 100.0 * (ratio - 1.0);
            writeln!(self.out, "  {what:<8} {:>10} -> {} tok/s ({percent:+.1} %)", shown(before), shown(after))?;
        }
        let of = if self.work.tokens > 0 { "decode step" } else { "prefill chunk" };
        writeln!(self.out, "\n{:>12} {:>12}  changed kernel of a {of}", "us before", "us now")?;
        for kernel in kernels {
            let [before, now] = kernel.seconds.map(|s| shown(s.map(|s| 1e6 * s)));
            writeln!(self.out, "{before:>12} {now:>12}  {}", printable(&kernel.name))?;
        }
        writeln!(self.out)?;
        Ok(())
    }
    fn of_plans(&mut self, about: About, leader: &Target) -> Result<Vec<Question<Change>>> {
        self.budget.begin(if about == About::Layouts { self.loading } else { Duration::ZERO });
        let asked = plans::questions(about, &self.variants.plans(leader)?, leader);
        Ok(asked.into_iter().map(|answers| answers.into_iter().map(Change::Plans).collect()).collect())
    }
    /// Prints a row: speeds of a candidate, and their ratios to the leader's.
    fn row(&mut self, speed: &Speed, ratio: &Speed, kept: bool, change: &Change) -> Result {
        let (leads, name) = (if kept { "leads: " } else { "" }, change.name());
        let [decode, prefill] = [ratio.decode, ratio.prefill].map(|r| r.map_or("-".into(), |r| format!("{r:.3}")));
        let [of_decode, of_prefill] = [speed.decode, speed.prefill].map(shown);
        writeln!(self.out, "{of_decode:>13} {decode:>7} {of_prefill:>14} {prefill:>7}  {leads}{name}")?;
        Ok(self.out.flush()?)
    }
    /// Returns the speedup of a candidate over the leader: the smaller of two comparisons if it
    /// gains.
    fn compare(&mut self, leader: &Target, rival: &Target, change: &Change) -> Result<Option<f64>> {
        let first = match self.variants.compare_others(leader, rival) {
            Ok(Some(first)) => first,
            Ok(None) => {
                writeln!(self.out, "{:>44}  the same kernels: {}", "", change.name())?;
                return Ok(None);
            }
            // A candidate that fails to compile or load is skipped; a persistent error also fails
            // the last comparison.
            Err(error) => {
                writeln!(self.out, "{:>44}  {}: {}", "", change.name(), printable(&error.parts().0))?;
                return Ok(None);
            }
        };
        let mut found = Gain::new(&first);
        if found.is_one() {
            let second = Gain::new(&self.variants.compare(leader, rival)?);
            found = if second.is_one() && second.worth >= found.worth { found } else { second };
        }
        self.row(&found.speed, &found.ratio, found.is_one(), change)?;
        Ok(Some(if found.is_one() { found.worth } else { found.worth.min(GAINS[0]) }))
    }
}

/// Gain of a candidate over the leader in one comparison.
struct Gain {
    /// Speed of the candidate.
    speed: Speed,
    ratio: Speed,
    worth: f64,
    /// Minimum of `worth` for a gain.
    least: f64,
}

impl Gain {
    fn new(compared: &Compared) -> Gain {
        let [leader, rival] = compared.speeds;
        let least = (1.0 + ERRORS * compared.error).clamp(GAINS[0], GAINS[1]);
        let ratio = rival.over(&leader);
        Gain { speed: rival, ratio, worth: worth(&ratio, least), least }
    }
    fn is_one(&self) -> bool {
        self.worth > self.least
    }
}

/// Combined speedup: the product of decode and prefill, or the worse if it loses more than `gains`.
fn worth(ratio: &Speed, gains: f64) -> f64 {
    // An unmeasured ratio counts as 1.
    let (decode, prefill) = (ratio.decode.unwrap_or(1.0), ratio.prefill.unwrap_or(1.0));
    let loser = decode.min(prefill);
    if loser * gains < 1.0 { loser } else { decode * prefill }
}

impl SearchSpace for Tuner<'_, '_> {
    type State = Target;
    type Change = Change;

    fn questions(&mut self, stage: usize, leader: &Target) -> Result<Option<Vec<Question<Change>>>> {
        match stage {
            // Parameters are for CPU kernels.
            0 if leader.machine.kind != MachineKind::Cpu => Ok(Some(vec![])),
            0 => Ok(Some(PARAMETERS.iter().map(of_parameter).collect())),
            // Kernels follow from their functions; layouts reload the weights, which takes longest.
            1 => Ok(Some(self.of_plans(About::Functions, leader)?)),
            2 => Ok(Some(self.of_plans(About::Kernels, leader)?)),
            3 => Ok(Some(self.of_plans(About::Layouts, leader)?)),
            _ => Ok(None),
        }
    }
    fn changed(&self, target: &Target, change: &Change) -> Target {
        let mut target = target.clone();
        match change {
            Change::Parameter(parameter, value) => *(parameter.field)(&mut target.tuning) = *value,
            Change::Plans(plans) => target.plans.extend(plans.clone()),
        }
        target
    }
    fn measure(&mut self, leader: &Target, rival: &Target, change: &Change) -> Result<Option<f64>> {
        let start = Instant::now();
        let found = self.compare(leader, rival, change);
        let leads = found.as_ref().is_ok_and(|worth| worth.is_some_and(|worth| worth > self.least()));
        self.budget.took(start.elapsed(), leads);
        found
    }
    fn least(&self) -> f64 {
        GAINS[0]
    }
    fn has_time(&self) -> bool {
        self.budget.has_room(self.start.elapsed())
    }
}

fn of_parameter(parameter: &'static Parameter) -> Question<Change> {
    parameter.values.iter().map(|&value| Change::Parameter(parameter, value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_is_of_both_and_no_loss_of_either() {
        let worth = |decode: f64, prefill| worth(&Speed { decode: Some(decode), prefill }, 1.02);
        assert_eq!(worth(1.25, Some(0.99)), 1.25 * 0.99);
        assert_eq!(worth(1.5, Some(0.9)), 0.9);
        assert_eq!(worth(1.25, None), 1.25);
        assert_eq!(worth(0.5, Some(4.0)), 0.5);
    }

    #[test]
    fn minutes_are_a_number_above_none() {
        assert_eq!(minutes("0.5"), Ok(Duration::from_secs(30)));
        for text in ["0", "-1", "ten", "NaN", "inf", ""] {
            assert!(minutes(text).is_err(), "{text}");
        }
    }
}
