//! `gristmill tune`: the parameters and plans of the hot kernels, tried inside the real steps of a model.

use crate::beam::{Budget, SearchSpace, Ended, Found, Question, search};
use crate::failure::{Failure, Result, printable};
use crate::flags::Common;
use crate::measure::{Compared, KernelTimes, Rivals, Speed, Work, shown};
use crate::model::{self, Model};
use crate::plans::{self, About, Answer};
use clap::{Args, ValueHint};
use gristmill_backend::tuning::{self, Plans};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::{PARAMETERS, Parameter, Target, Tuning};
use std::io::{self, Write};
use std::time::{Duration, Instant};

const NOTES: &str = "\
What is tried: of a processor first the parameters of its kernels; then, of whatever takes 2 % of a step or more by the model of costs, the heaviest first, what is computed where: what is fused and
what has a buffer, which kernels share a launch, where a norm's factor is multiplied, how an attention is divided, how sums are scattered, in which form a weight is multiplied; then the kernels that follow from it: shapes of workgroups, what
is staged, nests, launches of a GPU; and how weights lie, which are loaded again for each answer. A form that rounds more than the one in its place is never tried; what answers say may still change in last
places, as sums are added in another order.

Each change is measured in the model's own steps against the best so far, turn by turn. It takes the lead if decoding and prompts together gain more than twice the measurement's standard error,
0.4 % at least and 2 % at most, in two comparisons, and neither loses as much. The best N (--beam) stay, and the next change is tried on all of them, so that two changes that gain only together are found, in N times the time. Then all is asked again, until a round gains nothing or the
time is over. What was found is measured once more against the untuned model, and stored only if it is faster: beside the compiled kernels, for this processor, instruction set and number of cores, or
for this GPU, and used from then on; `gristmill devices` shows it. Without one the defaults are good.

Examples:
  gristmill tune MODEL.gguf                 ten minutes at most; best on a machine that does nothing else
  gristmill tune MODEL.gguf -p 0            with an eye to generation alone
  gristmill tune MODEL.gguf -p 0 -d 8192    to generation behind 8,192 positions, whose kernels a GPU has apart
  gristmill tune MODEL.gguf --beam 4 --minutes 60
  gristmill tune MODEL.gguf --device cuda   what suits the GPU
  gristmill tune --reset                    back to the defaults";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    #[arg(value_hint = ValueHint::FilePath, help = model::HELP, required_unless_present = "reset")]
    model: Option<String>,
    /// Tokens of the prompts measured; 0 for none
    #[arg(short, value_name = "N", default_value_t = 128)]
    p: usize,
    /// Tokens of the generations measured; 0 for none
    #[arg(short, value_name = "N", default_value_t = 32)]
    n: usize,
    /// Positions before both, behind which a GPU may have other kernels
    #[arg(short, value_name = "N", default_value_t = 0)]
    d: usize,
    /// Repetitions
    #[arg(short, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    r: u16,
    /// How many of the best so far the next change is tried on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    beam: u8,
    /// Minutes after which no more is tried
    #[arg(long, value_name = "M", default_value = "10", value_parser = minutes)]
    minutes: Duration,
    /// Forget what was stored, and measure nothing
    #[arg(long)]
    reset: bool,
    #[command(flatten)]
    common: Common,
}

/// Minutes as they are written: a number above 0.
fn minutes(text: &str) -> std::result::Result<Duration, String> {
    let minutes = text.parse::<f64>().ok().filter(|m| *m > 0.0);
    minutes.and_then(|m| Duration::try_from_secs_f64(60.0 * m).ok()).ok_or_else(|| "minutes are a number above 0".into())
}

/// What a change must gain at least, and at most where measurements scatter. The same kernels, measured as two rivals, differed by up to 0.4 % in 43 comparisons on an H100, where thirteen gains of 0.4 to 1.2 % and one of 2.5 made a token of gpt-oss 12 % faster
/// (experiments, 121).
const GAINS: [f64; 2] = [1.004, 1.02];
/// Standard errors of a comparison that a gain must exceed: by chance one of forty does, and it is asked twice.
const ERRORS: f64 = 2.0;

pub fn run(options: Options) -> Result {
    let start = Instant::now();
    // The null devices go through the motions: for tests.
    let device = options.common.device.as_deref().unwrap_or("cpu");
    if gristmill_backend::find(device)?.row.dialect.is_none() {
        return Err(Failure::new(
            format_args!("there is nothing to tune on {device}"),
            "a device that kernels are compiled for has a tuner: --device cpu, --device cuda",
        ));
    }
    let store = gristmill_runtime::store::Store::user()?;
    // What is found is for later.
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
        writeln!(out, "back to the defaults: {}", tuning::text(Tuning::default()))?;
        return Ok(());
    }
    let model = Model::open(options.model.as_deref())?;
    let work = work(&options, &model)?;
    let context = options.d + options.p.max(options.n);
    let rivals = Rivals::new(&model, &options.common, opened, context, work);
    let budget = Budget::new(options.minutes);
    let mut tuner = Tuner { work, rivals, start, loading: Duration::ZERO, budget, out: &mut out };
    let best = tuner.tune(options.beam.into())?;
    let steps = tuner.rivals.plans(&best)?;
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

/// What is measured, if the model takes it.
fn work(options: &Options, model: &Model) -> Result<Work> {
    let most = model.describe()?.context();
    let Options { p: prompt, n: tokens, d: depth, r: times, .. } = *options;
    let longest = prompt.max(tokens);
    if longest == 0 || longest.checked_add(depth).is_none_or(|all| all > most) {
        return Err(Failure::new(
            format_args!("there is nothing to measure with -p {prompt}, -n {tokens} and -d {depth}"),
            format!("this model takes 1 to {most} tokens, those before (-d) among them"),
        ));
    }
    Ok(Work { prompt, tokens, depth, times: times.into() })
}

/// One step from a target to another.
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

/// Searches the targets of a model on a device.
struct Tuner<'a, 'o> {
    work: Work,
    rivals: Rivals<'a>,
    start: Instant,
    /// How long the model took to load.
    loading: Duration,
    budget: Budget,
    out: &'o mut dyn Write,
}

impl Tuner<'_, '_> {
    /// The best target, or the untuned one where that is as fast.
    fn tune(&mut self, width: usize) -> Result<Target> {
        let mut untuned = self.rivals.target().clone();
        (untuned.tuning, untuned.plans) = (Tuning::default(), Plans::new());
        self.rivals.load(&untuned)?;
        self.loading = self.start.elapsed();
        let heads = ["decode tok/s", "ratio", "prefill tok/s", "ratio"];
        writeln!(self.out, "{:>13} {:>7} {:>14} {:>7}  tried", heads[0], heads[1], heads[2], heads[3])?;
        let found = search(self, untuned.clone(), width)?;
        self.say_what_was_tried(&found)?;
        let best = found.best;
        if best == untuned {
            writeln!(self.out, "nothing gained more than the measurements' error: the defaults stay")?;
            return Ok(untuned);
        }
        let (compared, kernels) = self.rivals.compare_kernels(&untuned, &best)?;
        self.say_what_is_gained(&compared.speeds, &kernels)?;
        let gain = Gain::new(&compared);
        if gain.is_one() {
            return Ok(best);
        }
        writeln!(self.out, "that is not more than {:.1} %: the defaults stay", 100.0 * (gain.least - 1.0))?;
        Ok(untuned)
    }
    fn say_what_was_tried(&mut self, found: &Found<Target>) -> Result {
        let (changes, rounds) = (found.measured, found.rounds);
        let why = match found.ended {
            Ended::Settled => "nothing more gains",
            Ended::Late => "the time is over (--minutes)",
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
    /// Speeds before and after, in turns, and the kernels that have changed.
    fn say_what_is_gained(&mut self, [before, after]: &[Speed; 2], kernels: &[KernelTimes]) -> Result {
        writeln!(self.out, "\nin turns with the untuned model:")?;
        let gained = after.over(before);
        for (what, before, after, ratio) in [
            ("decode", before.decode, after.decode, gained.decode),
            ("prefill", before.prefill, after.prefill, gained.prefill),
        ] {
            let Some(ratio) = ratio else { continue };
            let percent = 100.0 * (ratio - 1.0);
            writeln!(self.out, "  {what:<8} {:>10} -> {} tok/s ({percent:+.1} %)", shown(before), shown(after))?;
        }
        let of = if self.work.tokens > 0 { "a token" } else { "a prompt's step" };
        writeln!(self.out, "\n{:>12} {:>12}  kernel that is another now, in {of}", "us before", "us now")?;
        for kernel in kernels {
            let [before, now] = kernel.seconds.map(|s| shown(s.map(|s| 1e6 * s)));
            writeln!(self.out, "{before:>12} {now:>12}  {}", printable(&kernel.name))?;
        }
        writeln!(self.out)?;
        Ok(())
    }
    fn of_plans(&mut self, about: About, leader: &Target) -> Result<Vec<Question<Change>>> {
        self.budget.begin(if about == About::Layouts { self.loading } else { Duration::ZERO });
        let asked = plans::questions(about, &self.rivals.plans(leader)?, leader);
        Ok(asked.into_iter().map(|answers| answers.into_iter().map(Change::Plans).collect()).collect())
    }
    /// One row: speeds of a rival, and as parts of the leader's.
    fn row(&mut self, speed: &Speed, ratio: &Speed, kept: bool, change: &Change) -> Result {
        let (leads, name) = (if kept { "leads: " } else { "" }, change.name());
        let [decode, prefill] = [ratio.decode, ratio.prefill].map(|r| r.map_or("-".into(), |r| format!("{r:.3}")));
        let [of_decode, of_prefill] = [speed.decode, speed.prefill].map(shown);
        writeln!(self.out, "{of_decode:>13} {decode:>7} {of_prefill:>14} {prefill:>7}  {leads}{name}")?;
        Ok(self.out.flush()?)
    }
    /// What the rival is worth beside the leader; where it gains, the less of two comparisons: what a moment of the machine decided does not come again. What is within their error is no gain.
    fn compare(&mut self, leader: &Target, rival: &Target, change: &Change) -> Result<Option<f64>> {
        let first = match self.rivals.compare_others(leader, rival) {
            Ok(Some(first)) => first,
            Ok(None) => {
                writeln!(self.out, "{:>44}  the same kernels: {}", "", change.name())?;
                return Ok(None);
            }
            // What cannot be planned or does not fit is no reason to lose what was found. Where nothing works any more the last comparison says so.
            Err(error) => {
                writeln!(self.out, "{:>44}  {}: {}", "", change.name(), printable(&error.parts().0))?;
                return Ok(None);
            }
        };
        let mut found = Gain::new(&first);
        if found.is_one() {
            let second = Gain::new(&self.rivals.compare(leader, rival)?);
            found = if second.is_one() && second.worth >= found.worth { found } else { second };
        }
        self.row(&found.speed, &found.ratio, found.is_one(), change)?;
        Ok(Some(if found.is_one() { found.worth } else { found.worth.min(GAINS[0]) }))
    }
}

/// What a rival is worth beside a leader, by one comparison.
struct Gain {
    /// The rival's.
    speed: Speed,
    ratio: Speed,
    worth: f64,
    /// What it must be worth.
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

/// Ratios of speeds as one number: what both gain together, unless one of them loses what a change must gain.
fn worth(ratio: &Speed, gains: f64) -> f64 {
    // Where a change has no part the ratio is about 1.
    let (decode, prefill) = (ratio.decode.unwrap_or(1.0), ratio.prefill.unwrap_or(1.0));
    let loser = decode.min(prefill);
    if loser * gains < 1.0 { loser } else { decode * prefill }
}

impl SearchSpace for Tuner<'_, '_> {
    type State = Target;
    type Change = Change;

    fn questions(&mut self, stage: usize, leader: &Target) -> Result<Option<Vec<Question<Change>>>> {
        match stage {
            // They are of a processor's kernels.
            0 if leader.machine.kind != MachineKind::Cpu => Ok(Some(vec![])),
            0 => Ok(Some(PARAMETERS.iter().map(of_parameter).collect())),
            // Kernels follow from what their functions became; weights that lie otherwise are loaded again, which takes longest.
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
