//! `gristmill tune`: the parameters of the hot kernels, tried inside the real steps of a model.

use crate::failure::{Failure, Result, printable};
use crate::flags::Common;
use crate::measure::{Rivals, Speed, Work, shown};
use crate::model::{self, Model};
use clap::{Args, ValueHint};
use crate::plans;
use gristmill_backend::tuning::{self, Plans};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::{PARAMETERS, Target, Tuning};
use std::io::{self, Write};

const NOTES: &str = "\
Every value of a parameter is measured against the best so far, turn by turn, and kept if decoding and prompts together
gain more than 2 %, twice; then other plans of the heaviest kernels, those whose price is lowest, of a GPU's launches most of them, and other layouts of the heaviest weights. All read one copy of what
lies the same. The answer is stored beside the compiled kernels for this processor, instruction set and number of cores, or for this GPU, and used from then on; `gristmill devices` shows it. Without
one the defaults are good.

Examples:
  gristmill tune MODEL.gguf                 a few minutes; best on a machine that does nothing else
  gristmill tune MODEL.gguf -p 0            with an eye to generation alone
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
    /// Repetitions
    #[arg(short, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    r: u16,
    /// Forget what was stored, and measure nothing
    #[arg(long)]
    reset: bool,
    #[command(flatten)]
    common: Common,
}

/// What a change must gain.
const GAIN: f64 = 1.02;

pub fn run(options: Options) -> Result {
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
    let context = options.p.max(options.n).max(1);
    let most = model.describe()?.context();
    if context > most || (options.p == 0 && options.n == 0) {
        return Err(Failure::new(
            format_args!("there is nothing to measure with -p {} and -n {}", options.p, options.n),
            format!("this model takes 1 to {most} tokens"),
        ));
    }
    let work = Work { prompt: options.p, tokens: options.n, times: options.r.into() };
    let rivals = Rivals::new(&model, &options.common, opened, context, work);
    let mut best = rivals.target().clone();
    (best.tuning, best.plans) = (Tuning::default(), Plans::new());
    let mut race = Race { rivals, best, out: &mut out };
    race.head()?;
    // They are of a processor's kernels.
    let parameters = if race.best.machine.kind == MachineKind::Cpu { PARAMETERS } else { &[] };
    for parameter in parameters {
        for &value in parameter.values {
            let mut rival = race.best.clone();
            *(parameter.field)(&mut rival.tuning) = value;
            race.run(&format!("{} {value}", parameter.name), rival)?;
        }
    }
    for (decision, plan) in plans::worth_trying(&model, &options.common, &race.best, context, work)? {
        let mut rival = race.best.clone();
        let name = printable(&format!("{decision}: {plan}"));
        rival.plans.insert(decision, plan);
        race.run(&name, rival)?;
    }
    let best = race.best;
    let Some(machine) = machine else {
        writeln!(out, "nothing is stored for {device}: {}", tuning::text(best.tuning))?;
        return Ok(());
    };
    tuning::write(&store, &machine, best.tuning)?;
    tuning::write_plans(&store, &machine, &best.plans)?;
    writeln!(out, "stored for {}: {}, and plans of {} kernels", machine, tuning::text(best.tuning), best.plans.len())?;
    Ok(())
}

/// Targets against the best of them so far.
struct Race<'a, 'o> {
    rivals: Rivals<'a>,
    best: Target,
    out: &'o mut dyn Write,
}

impl Race<'_, '_> {
    fn head(&mut self) -> Result {
        let heads = ["tried", "decode tok/s", "ratio", "prefill tok/s", "ratio"];
        writeln!(self.out, "{:<16} {:>13} {:>7} {:>14} {:>7}", heads[0], heads[1], heads[2], heads[3], heads[4])?;
        Ok(())
    }
    /// The rival takes the place of the best if it is faster, twice.
    fn run(&mut self, name: &str, rival: Target) -> Result {
        if rival == self.best {
            return Ok(());
        }
        let [base, other] = self.rivals.compare(&self.best, &rival)?;
        let ratio = other.over(&base);
        // Where a parameter has no part the ratio is about 1.
        let gain = |ratio: &Speed| ratio.decode.unwrap_or(1.0) * ratio.prefill.unwrap_or(1.0);
        // What a moment of the machine decided does not come again.
        let keep = gain(&ratio) > GAIN && {
            let [base, other] = self.rivals.compare(&self.best, &rival)?;
            gain(&other.over(&base)) > GAIN
        };
        writeln!(
            self.out,
            "{name:<16} {:>13} {:>7} {:>14} {:>7}{}",
            shown(other.decode),
            shown(ratio.decode),
            shown(other.prefill),
            shown(ratio.prefill),
            if keep { "  kept" } else { "" }
        )?;
        self.out.flush()?;
        if keep {
            self.best = rival;
        }
        Ok(())
    }
}
