//! Timing of prefill and decode, and A/B comparison of two compiled variants of a model.

use crate::failure::Result;
use crate::flags::Common;
use crate::model::Model;
use crate::progress::Bars;
use gristmill_backend::Opened;
use gristmill_compiler::record;
use gristmill_llm::arch::{Logits, Plan};
use gristmill_llm::engine::{
    CompiledModel, DecodeRow, Engine, Error, Step, TokenRun, TokenSource, Weights, WholePool,
};
use gristmill_uop::features::Features;
use gristmill_uop::target::Target;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Instant;

/// Pseudo-random token ids, the same in every run; equal tokens would all select the same experts.
pub struct Ids {
    state: u64,
    vocabulary: usize,
}

impl Ids {
    /// Draws from the vocabulary of the engine's model.
    pub fn new(engine: &Engine) -> Ids {
        Ids {
            state: 1,
            vocabulary: engine.model().vocabulary(),
        }
    }
    /// Returns the next `n` token ids.
    pub fn some(&mut self, n: usize) -> Vec<u32> {
        // The upper half of Knuth's MMIX generator.
        let mut next = || {
            self.state = self
                .state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((self.state >> 33) % self.vocabulary as u64) as u32
        };
        (0..n).map(|_| next()).collect()
    }
}

/// Returns the seconds of a prefill of these tokens, or of as many greedy decode steps that start
/// with the first of them.
pub fn seconds(engine: &mut Engine, ids: &[u32], prompt: bool, depth: usize) -> Result<f64> {
    let pool = WholePool::new(engine);
    let start = Instant::now();
    match (prompt, ids.first()) {
        (false, Some(&first)) => {
            decode(engine, &[pool], &[first], depth..depth + ids.len(), false)?
        }
        _ => {
            _ = engine.logits(
                TokenRun {
                    tokens: ids,
                    position: depth,
                    pages: pool.pages(),
                    contiguous: true,
                },
                Logits::Last,
            )?
        }
    }
    // The null device may take no time.
    Ok(start.elapsed().as_secs_f64().max(1e-9))
}

/// Runs greedy decode steps of sequences from these tokens on, asynchronously if the device runs
/// concurrently with the host, as a server does.
pub fn decode(
    engine: &mut Engine,
    pools: &[WholePool],
    first: &[u32],
    positions: Range<usize>,
    batch_invariant: bool,
) -> Result<()> {
    let (overlaps, contiguous) = (engine.device().overlaps(), pools.len() == 1);
    let mut tokens = first.to_vec();
    for position in positions.clone() {
        let on_device = overlaps && position > positions.start;
        let source = |nth| {
            if on_device {
                TokenSource::Row(nth)
            } else {
                TokenSource::Token(tokens[nth])
            }
        };
        let rows: Vec<DecodeRow> = pools
            .iter()
            .enumerate()
            .map(|(nth, pool)| pool.row(source(nth), position))
            .collect();
        let step = Step {
            rows: &rows,
            batch_invariant,
            contiguous,
            ..Step::default()
        };
        // A new graph is compiled only while no step is in flight.
        let begun = engine.start(&step)?;
        if on_device || !overlaps {
            let chosen = engine.wait()?.chosen;
            tokens = chosen
                .into_iter()
                .zip(&tokens)
                .map(|(next, &same)| next.unwrap_or(same))
                .collect();
        }
        if !begun {
            let row = |(pool, &token): (_, &u32)| {
                WholePool::row(pool, TokenSource::Token(token), position)
            };
            let rows: Vec<DecodeRow> = pools.iter().zip(&tokens).map(row).collect();
            engine.start(&Step {
                rows: &rows,
                ..step
            })?;
        }
    }
    Ok(engine.finish()?)
}

/// The measurement that both variants run.
#[derive(Clone, Copy)]
pub struct Work {
    /// Prefill tokens; 0 for none.
    pub prompt: usize,
    /// Decode steps; 0 for none.
    pub tokens: usize,
    /// Context depth before either, in tokens.
    pub depth: usize,
    /// Repetitions of each, alternately.
    pub times: usize,
}

/// Median tokens per second; `None` if not measured.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    pub decode: Option<f64>,
    pub prefill: Option<f64>,
}

impl Speed {
    /// Returns the ratio of this speed to another.
    pub fn over(&self, other: &Speed) -> Speed {
        let ratio = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a / b);
        Speed {
            decode: ratio(self.decode, other.decode),
            prefill: ratio(self.prefill, other.prefill),
        }
    }
}

/// Result of measuring two variants alternately.
#[derive(Clone, Copy, Debug)]
pub struct Compared {
    pub speeds: [Speed; 2],
    /// Standard error of the ratio of speeds: the larger of decode and prefill.
    pub error: f64,
}

/// Variants of a device's target, for which one model is compiled and measured pairwise.
///
/// Variants share the weights that have the same layout in both.
pub struct Variants<'a> {
    model: &'a Model,
    common: &'a Common,
    opened: Opened,
    context: usize,
    work: Work,
    /// Engine of the baseline.
    kept: Option<(Target, Engine)>,
}

/// Free memory required in addition to the weights that a second engine does not share, in bytes.
const SPARE: u64 = 1 << 30;

impl<'a> Variants<'a> {
    /// Prepares comparisons of a model on a device; nothing is loaded yet.
    pub fn new(
        model: &'a Model,
        common: &'a Common,
        opened: Opened,
        context: usize,
        work: Work,
    ) -> Variants<'a> {
        Variants {
            model,
            common,
            opened,
            context,
            work,
            kept: None,
        }
    }
    /// The device's own target.
    pub fn target(&self) -> &Target {
        &self.opened.target
    }
    /// Loads the model for the baseline target, so that the first comparison does not include it.
    pub fn load(&mut self, target: &Target) -> Result {
        self.keep(target).map(drop)
    }
    /// Compiles the model for a target, reusing loaded weights.
    fn compiled(
        &self,
        target: &Target,
        there: &Weights,
        bars: &Bars,
    ) -> Result<CompiledModel<'a>, Error> {
        let opened = Opened {
            target: target.clone(),
            ..self.opened.clone()
        };
        let settings = self.common.settings(Some(self.context));
        CompiledModel::new(&self.model.file, opened, settings, there, &|p| bars.show(p))
    }
    /// Returns the engine of a target, replacing the baseline; weights of the same layout are
    /// reused.
    fn keep(&mut self, target: &Target) -> Result<&mut Engine> {
        let engine = match self.kept.take() {
            Some((kept, engine)) if kept == *target => engine,
            other => {
                let mut there = other
                    .map(|(_, engine)| engine.weights().clone())
                    .unwrap_or_default();
                let bars = Bars::new();
                let compiled = match self.compiled(target, &there, &bars) {
                    // Weights in another layout are freed first.
                    Err(Error::Weights { .. }) => {
                        there = Weights::default();
                        self.compiled(target, &there, &bars)?
                    }
                    compiled => compiled?,
                };
                compiled.load(there, &|p| bars.show(p))?
            }
        };
        Ok(&mut self.kept.insert((target.clone(), engine)).1)
    }
    /// Returns a second engine, if memory holds the weights that it does not share.
    fn second(&self, target: &Target, there: Weights) -> Result<Option<Engine>> {
        let bars = Bars::new();
        let rival = match self.compiled(target, &there, &bars) {
            // Memory holds only one layout of the weights.
            Err(Error::Weights { .. }) => return Ok(None),
            compiled => compiled?,
        };
        let missing = rival.missing(&there);
        let room = missing == 0
            || self
                .opened
                .device
                .available()
                .is_none_or(|free| free >= missing + SPARE);
        Ok(if room {
            Some(rival.load(there, &|p| bars.show(p))?)
        } else {
            None
        })
    }
    /// Runs both targets alternately, so that other load affects both alike.
    ///
    /// `turn` gets the index of the target, its engine, and whether the turn counts; the first is a
    /// warm-up. Returns false if `differ` is false for both engines after the warm-up.
    fn in_turns(
        &mut self,
        [base, other]: [&Target; 2],
        mut turn: impl FnMut(usize, &mut Engine, bool) -> Result,
        differ: impl Fn([&Engine; 2]) -> bool,
    ) -> Result<bool> {
        let times = self.work.times;
        let there = self.keep(base)?.weights().clone();
        if let Some(mut rival) = self.second(other, there)? {
            let kept = self.keep(base)?;
            for number in 0..=times {
                turn(0, kept, number > 0)?;
                turn(1, &mut rival, number > 0)?;
                if number == 0 && !differ([kept, &rival]) {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        // Memory holds one engine: the baseline is measured before and after the other.
        for (which, target) in [(0, base), (1, other), (0, base)] {
            let engine = self.keep(target)?;
            (0..=times).try_for_each(|number| turn(which, engine, number > 0))?;
        }
        Ok(true)
    }
    /// Returns the plans of the measured steps for a target.
    pub fn plans(&mut self, target: &Target) -> Result<Vec<Plan>> {
        let work = self.work;
        let engine = self.keep(target)?;
        let steps = work.steps(engine).into_iter();
        let plans = steps.map(|tokens| engine.step_plan(tokens, work.depth));
        Ok(plans.collect::<std::result::Result<_, _>>()?)
    }
    /// Measures the speeds of both targets.
    pub fn compare(&mut self, base: &Target, other: &Target) -> Result<Compared> {
        let (work, mut times) = (self.work, Times::default());
        let turn = |which: usize, engine: &mut Engine, counts| {
            work.turn(engine, &mut times[which], counts)
        };
        self.in_turns([base, other], turn, |_| true)?;
        Ok(work.compared(times))
    }
    /// Measures both targets; `None` if the measured steps have the same kernels.
    pub fn compare_others(&mut self, base: &Target, other: &Target) -> Result<Option<Compared>> {
        let (work, mut times) = (self.work, Times::default());
        let turn = |which: usize, engine: &mut Engine, counts| {
            work.turn(engine, &mut times[which], counts)
        };
        let differ = |[base, other]: [&Engine; 2]| work.launches(base) != work.launches(other);
        let measured = self.in_turns([base, other], turn, differ)?;
        Ok(measured.then(|| work.compared(times)))
    }
    /// Measures the step and its kernels for both targets, alternately; `None` if the kernels are
    /// the same.
    pub fn time_step(&mut self, base: &Target, other: &Target) -> Result<Option<StepTimings>> {
        let (work, mut times) = (self.work, Times::default());
        let mut kernels: [Kernels; 2] = Default::default();
        let turn = |which: usize, engine: &mut Engine, counts| {
            work.turn(engine, &mut times[which], counts)?;
            work.kernels(engine, &mut kernels[which], counts)
        };
        let differ = |[base, other]: [&Engine; 2]| work.launches(base) != work.launches(other);
        if !self.in_turns([base, other], turn, differ)? {
            return Ok(None);
        }
        let error = error_of_ratios(&times);
        let (which, steps) = if work.tokens > 0 {
            (0, work.tokens)
        } else {
            (1, 1)
        };
        let seconds = times.map(|mut of| median(std::mem::take(&mut of[which])).unwrap_or(0.0));
        let timing = |((function, title), row): (_, KernelRow)| {
            Some(KernelTiming {
                id: (function, row.sources),
                title,
                features: row.features,
                seconds: median(row.seconds)?,
            })
        };
        Ok(Some(StepTimings {
            seconds: seconds.map(|all| all / steps as f64),
            error,
            kernels: kernels.map(|all| all.into_iter().filter_map(timing).collect()),
        }))
    }
    /// Measures both targets, and the kernels of one step that differ.
    pub fn compare_kernels(
        &mut self,
        base: &Target,
        other: &Target,
    ) -> Result<(Compared, Vec<KernelTimes>)> {
        let (work, mut times) = (self.work, Times::default());
        let mut kernels: [Kernels; 2] = Default::default();
        let turn = |which: usize, engine: &mut Engine, counts| {
            work.turn(engine, &mut times[which], counts)?;
            work.kernels(engine, &mut kernels[which], counts)
        };
        self.in_turns([base, other], turn, |_| true)?;
        Ok((work.compared(times), differing(kernels)))
    }
}

/// Seconds of the repetitions, by variant, then decode and prefill.
type Times = [[Vec<f64>; 2]; 2];

/// Kernels of a step by the function's full name and their title.
type Kernels = BTreeMap<(String, String), KernelRow>;

/// All launches of a step with one title in one function.
#[derive(Default)]
struct KernelRow {
    /// Name for display: function and title.
    name: String,
    sources: BTreeSet<String>,
    /// Features of all launches of a step.
    features: Features,
    /// Seconds of all launches of a step, by turn.
    seconds: Vec<f64>,
}

/// Median seconds per step of the launches of one kernel, and their features in the cost model.
#[derive(Clone, Debug)]
pub struct KernelTiming {
    /// Full name of the function, and the sources of the launches: equal kernels have equal ones.
    pub id: (String, BTreeSet<String>),
    pub title: String,
    pub features: Features,
    pub seconds: f64,
}

/// Seconds per step of one kernel in two variants.
pub struct KernelTimes {
    /// Name of the function and title of the kernel.
    pub name: String,
    /// Medians; `None` for a variant without this kernel.
    pub seconds: [Option<f64>; 2],
}

/// A step and its kernels in two variants.
pub struct StepTimings {
    /// Median seconds of the step.
    pub seconds: [f64; 2],
    /// Relative standard error of their ratio.
    pub error: f64,
    pub kernels: [Vec<KernelTiming>; 2],
}

/// Returns the kernels with different sources, slowest first.
fn differing([base, mut other]: [Kernels; 2]) -> Vec<KernelTimes> {
    let mut all = Vec::new();
    for (key, row) in base {
        match other.remove(&key) {
            Some(found) if found.sources == row.sources => {}
            found => all.push(KernelTimes {
                name: row.name,
                seconds: [median(row.seconds), found.and_then(|f| median(f.seconds))],
            }),
        }
    }
    all.extend(other.into_values().map(|row| KernelTimes {
        name: row.name,
        seconds: [None, median(row.seconds)],
    }));
    let most = |k: &KernelTimes| k.seconds.into_iter().flatten().fold(0.0, f64::max);
    all.sort_by(|a, b| most(b).total_cmp(&most(a)));
    all
}

impl Work {
    /// Tokens per measured step: 1 for decode, and the sizes of the prefill chunks.
    fn steps(&self, engine: &Engine) -> BTreeSet<usize> {
        let longest = engine.longest_step();
        let steps = [
            self.tokens.min(1),
            self.prompt.min(longest),
            self.prompt % longest,
        ];
        steps
            .into_iter()
            .filter(|&n| n > 0)
            .map(|n| engine.step_tokens(n))
            .collect()
    }
    /// Records of the functions that the measured steps launch, in order; the steps must have run.
    fn launches(&self, engine: &Engine) -> Vec<Vec<u8>> {
        let of_step = |tokens| {
            engine
                .step_launches(tokens, self.depth)
                .iter()
                .filter(|launch| launch.1 == 0)
        };
        self.steps(engine)
            .into_iter()
            .flat_map(of_step)
            .map(|launch| record::write(&launch.0.compiled))
            .collect()
    }
    fn turn(&self, engine: &mut Engine, times: &mut [Vec<f64>; 2], counts: bool) -> Result<()> {
        // The same tokens in every turn select the same experts.
        let mut ids = Ids::new(engine);
        engine.fill_cache_for_bench(self.depth)?;
        for (prompt, n) in [(false, self.tokens), (true, self.prompt)] {
            if n > 0 {
                let n = if counts || prompt { n } else { n.min(4) };
                let seconds = seconds(engine, &ids.some(n), prompt, self.depth)?;
                if counts {
                    times[prompt as usize].push(seconds);
                }
            }
        }
        Ok(())
    }
    /// Times the kernels of one decode step, or of a prefill chunk if decode is not measured.
    fn kernels(&self, engine: &mut Engine, kernels: &mut Kernels, counts: bool) -> Result {
        let tokens = if self.tokens > 0 {
            1
        } else {
            self.prompt.min(engine.longest_step())
        };
        let ids = Ids::new(engine).some(tokens);
        let pool = WholePool::new(engine);
        let seconds = engine.run_timed(&pool.step(&ids, self.depth))?;
        if !counts {
            return Ok(());
        }
        let mut step: BTreeMap<_, (f64, Features)> = BTreeMap::new();
        for ((ready, place), seconds) in
            engine.step_launches(tokens, self.depth).iter().zip(seconds)
        {
            let program = &ready.compiled.programs[*place];
            let key = (ready.function.full_name(), program.title.clone());
            let row = kernels.entry(key.clone()).or_default();
            row.name = format!("{} {}", ready.function.name, program.title);
            row.sources.insert(program.source.clone());
            let (all, features) = step.entry(key).or_default();
            *all += seconds;
            *features += program.features;
        }
        for (key, (seconds, features)) in step {
            let row = kernels.entry(key).or_default();
            row.features = features;
            row.seconds.push(seconds);
        }
        Ok(())
    }
    fn compared(&self, times: Times) -> Compared {
        Compared {
            error: error_of_ratios(&times),
            speeds: self.speeds(times),
        }
    }
    /// Returns medians in tokens per second.
    fn speeds(&self, times: Times) -> [Speed; 2] {
        times.map(|[decode, prefill]| Speed {
            decode: median(decode).map(|t| self.tokens as f64 / t),
            prefill: median(prefill).map(|t| self.prompt as f64 / t),
        })
    }
}

fn median(mut v: Vec<f64>) -> Option<f64> {
    v.sort_by(f64::total_cmp);
    v.get(v.len() / 2).copied()
}

/// Factors of a normal distribution: median absolute deviation to standard deviation, and standard
/// error of the mean to that of the median.
const OF_MEDIANS: f64 = 1.4826 * 1.2533;

/// Relative standard error of the median; 0 without samples, infinite for one or two, which have no
/// usable spread.
fn error_of_median(seconds: &[f64]) -> f64 {
    let Some(middle) = median(seconds.to_vec()) else {
        return 0.0;
    };
    if seconds.len() < 3 {
        return f64::INFINITY;
    }
    let deviation =
        median(seconds.iter().map(|s| (s / middle - 1.0).abs()).collect()).unwrap_or(0.0);
    OF_MEDIANS * deviation / (seconds.len() as f64).sqrt()
}

/// Standard error of the ratio of medians: the larger of decode and prefill.
fn error_of_ratios([base, other]: &Times) -> f64 {
    let errors = base
        .iter()
        .zip(other)
        .map(|(base, other)| error_of_median(base).hypot(error_of_median(other)));
    errors.fold(0.0, f64::max)
}

/// Formats a rate for a table.
pub fn shown(v: Option<f64>) -> String {
    v.map_or("-".into(), |v| format!("{v:.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_scatters_more_is_known_less() {
        let few = [1.00, 1.01, 0.99, 1.02, 0.98];
        let error = error_of_median(&few);
        assert!(
            (error - OF_MEDIANS * 0.01 / 5f64.sqrt()).abs() < 1e-12,
            "{error}"
        );
        // The error is relative, and robust to an outlier.
        assert_eq!(error_of_median(&few.map(|s| 2.0 * s)), error);
        assert_eq!(error_of_median(&[1.00, 1.01, 0.99, 9.0, 0.98]), error);
        assert_eq!(
            (error_of_median(&[]), error_of_median(&[1.0; 4])),
            (0.0, 0.0)
        );
        assert_eq!(error_of_median(&few[..2]), f64::INFINITY);
        let times = |decode: &[f64]| [decode.to_vec(), vec![]];
        assert_eq!(error_of_ratios(&[times(&few), times(&[1.0; 3])]), error);
        assert!(error_of_ratios(&[times(&few), times(&few)]) > error);
    }
}
