//! Times of steps by their rows, measured before the first request where no earlier start has kept
//! them.
//!
//! A sequence of arbitrary tokens runs through the batcher, so that these times are of the same
//! steps as those that are measured later, with all that the host does between them.

use super::super::batch::Decode;
use super::super::batcher::{Batcher, StepCounts};
use super::super::error::Error;
use super::super::sequence::{SequenceId, SequenceOptions};
use super::{
    ChosenDraft, DraftOrigin, ForcedDrafts, Speculation, SpeculationStats, StepTimes, Survival,
};
use crate::sampling::RowSampling;
use gristmill_uop::clock::Instant;

/// Most rows of a measured step: a single sequence has no more.
const MOST_ROWS: usize = 16;
/// Tokens of the sequence before the first measured step.
const PROMPT: usize = 64;
/// Drafts that a model makes between two steps.
const DRAFTING: usize = 3;
/// Most steps of a kind until one is not captured, and steps that are measured then.
const MOST_WARM_UP: usize = 8;
const MEASURED: usize = 5;
/// Seconds after which no further kind of step is measured; most of them are compilation.
const BUDGET: f64 = 30.0;

/// A kind of step that is measured.
#[derive(Clone, Copy, Debug)]
enum StepKind {
    /// A step of so many rows.
    Rows(usize),
    /// Drafts of the model that drafts.
    Drafting,
}

impl StepKind {
    /// Returns the rows of a step.
    fn rows(self) -> usize {
        match self {
            StepKind::Rows(rows) => rows,
            StepKind::Drafting => 1,
        }
    }
}

/// Returns a token at a place of an arbitrary text. They differ, so that they choose different
/// experts.
fn arbitrary(place: usize, vocabulary: usize) -> u32 {
    (place.wrapping_mul(0x9e37_79b9).wrapping_add(1) % vocabulary.max(1)) as u32
}

/// Returns the powers of two up to a number.
fn powers(most: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1usize), |rows| rows.checked_mul(2)).take_while(move |&n| n <= most)
}

impl Speculation {
    /// Returns the steps of a single sequence whose times are missing.
    fn unknown_kinds(&self) -> Vec<StepKind> {
        if !self.is_on() || self.assumes_times {
            return Vec::new();
        }
        let [steps, drafting] = self.known_times();
        let rows = powers(self.rows.min(MOST_ROWS)).filter(|rows| !steps.contains_key(rows));
        let drafts = self.drafter.is_some() && drafting.is_empty();
        // First, as its steps are verified by some of the others.
        let drafts = drafts.then_some(StepKind::Drafting);
        drafts.into_iter().chain(rows.map(StepKind::Rows)).collect()
    }
    fn times_of(&mut self, kind: StepKind) -> &mut StepTimes {
        match kind {
            StepKind::Rows(_) => &mut self.times,
            StepKind::Drafting => &mut self.draft_times,
        }
    }
    /// Forgets the drafts that were forced, and keeps the times.
    fn end_measuring(&mut self) {
        self.forced = None;
        self.interrupt();
        self.drafts.clear();
        self.survival = Survival::default();
        self.stats = SpeculationStats::default();
        self.keep_times();
    }
    /// Returns the drafts that are forced behind a decode row; `may_draft`: a model may make some.
    pub(super) fn forced_behind(&self, decode: &Decode, may_draft: bool) -> Option<ChosenDraft> {
        let (origin, tokens, count) = match self.forced.as_ref()? {
            ForcedDrafts::Tokens(tokens) => (DraftOrigin::Ngram, tokens.clone(), tokens.len()),
            ForcedDrafts::ByModel(count) => {
                let drafter = self.drafter.as_ref().filter(|_| may_draft)?;
                (drafter.origin(), Vec::new(), *count)
            }
        };
        (count > 0).then_some(ChosenDraft {
            decode: *decode,
            origin,
            tokens,
            count,
            is_long: false,
        })
    }
}

impl Batcher {
    /// Measures the times of steps with drafts that no earlier start has kept, in some seconds and
    /// at most half a minute, and keeps them. Their kernels are compiled here, and not within an
    /// answer. Call it before sequences are added. `progress` is told how many kinds of
    /// steps were measured, and of how many.
    ///
    /// # Errors
    /// When the device fails.
    pub fn measure_step_times(&mut self, progress: &dyn Fn(usize, usize)) -> Result<(), Error> {
        let kinds = self.speculation.unknown_kinds();
        if kinds.is_empty() {
            return Ok(());
        }
        let (context, vocabulary) = (self.engine.context(), self.engine.model().vocabulary());
        let length = PROMPT.min(context / 4).max(1);
        let prompt: Vec<u32> = (0..length).map(|at| arbitrary(at, vocabulary)).collect();
        let id = self.add(&prompt, SequenceOptions::default())?;
        let measured = self.measure_kinds(id, &kinds, progress);
        self.reset();
        self.steps = StepCounts::default();
        self.speculation.end_measuring();
        measured
    }
    fn measure_kinds(
        &mut self,
        id: SequenceId,
        kinds: &[StepKind],
        progress: &dyn Fn(usize, usize),
    ) -> Result<(), Error> {
        let begun = Instant::now();
        for (nth, &kind) in kinds.iter().enumerate() {
            progress(nth, kinds.len());
            let is_over = begun.elapsed().as_secs_f64() > BUDGET;
            if is_over || !self.measure_kind(id, kind)? {
                break;
            }
        }
        Ok(())
    }
    /// Measures a kind of step, and takes the median. Returns false if the context has no room
    /// left.
    fn measure_kind(&mut self, id: SequenceId, kind: StepKind) -> Result<bool, Error> {
        let mut steady = 0;
        for _ in 0..MOST_WARM_UP {
            let captures = self.engine.captures();
            if !self.measured_step(id, kind)? {
                return Ok(false);
            }
            let is_steady = self.engine.captures() == captures;
            steady = if is_steady { steady + 1 } else { 0 };
            if steady == 2 {
                break;
            }
        }
        let mut seconds = Vec::new();
        for _ in 0..MEASURED {
            self.speculation.times_of(kind).forget(kind.rows());
            if !self.measured_step(id, kind)? {
                return Ok(false);
            }
            let known = self.speculation.times_of(kind).known();
            seconds.extend(known.get(&kind.rows()).copied());
        }
        seconds.sort_by(f64::total_cmp);
        let times = self.speculation.times_of(kind);
        times.forget(kind.rows());
        if let Some(&median) = seconds.get(seconds.len() / 2) {
            times.record(kind.rows(), median);
        }
        Ok(true)
    }
    /// Runs a step of a kind, behind the rest of the prompt. Returns false if the context has no
    /// room left.
    fn measured_step(&mut self, id: SequenceId, kind: StepKind) -> Result<bool, Error> {
        let vocabulary = self.engine.model().vocabulary();
        let (length, context) = (self.scheduler.tokens(id).len(), self.engine.context());
        if length + 2 * MOST_ROWS >= context {
            return Ok(false);
        }
        let tokens = |rows: usize| {
            let places = (1..rows).map(|nth| length * MOST_ROWS + nth);
            places.map(|place| arbitrary(place, vocabulary)).collect()
        };
        self.speculation.forced = Some(match kind {
            StepKind::Rows(rows) => ForcedDrafts::Tokens(tokens(rows)),
            StepKind::Drafting => ForcedDrafts::ByModel(DRAFTING),
        });
        // Each step has at least one token of the prompt.
        for _ in 0..=length {
            let greedy = &mut |_| Some((RowSampling::greedy(), usize::MAX));
            let ready = self.step_with(&mut |_, _| None, greedy);
            let ready = ready.map_err(|failed| failed.error)?;
            for of in &ready {
                let chosen = self.drawn(*of).or_else(|| self.most_probable(*of));
                self.push(of.sequence, chosen.unwrap_or(0));
            }
            if !ready.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
