//! Speculation: drafted tokens run as further rows of their sequence, and are kept as long as they
//! are the tokens that the sequence chooses.
//!
//! A draft never changes the distribution of a text: each token is chosen from the logits of its
//! row as without drafts, and the row behind it is used only if the drafted token was chosen.
//! Drafts are run where they are worth their time: the expected tokens of a step by its measured
//! time and that of making the drafts. A full batch has no rows for them.

mod calibration;
mod drafter;
mod drafting;
mod kept_times;
mod sequence_drafts;
mod stats;
mod times;

use super::batch::{Batch, Decode, DraftRow};
use super::ngram::Draft;
use super::scheduler::Scheduler;
use super::sequence::SequenceId;
use crate::engine::Engine;
pub use drafter::Drafter;
use gristmill_uop::clock::Instant;
use kept_times::{KeptTimes, Times};
use rustc_hash::FxHashMap;
use sequence_drafts::{MOST_STEPS, SequenceDrafts, Survival};
pub use stats::{DraftCounts, DraftOrigin, SpeculationStats};
use std::collections::{BTreeMap, VecDeque};
use times::StepTimes;

/// Matches of so many tokens and more are counted apart from shorter ones.
const LONG_MATCH: usize = 12;
/// Time of a step of a model that drafts, as a share of that of the model, until it is measured.
const ASSUMED_DRAFTING: f64 = 0.15;
/// Least gain that drafts must promise.
const LEAST_GAIN: f64 = 1.03;

/// Where drafts come from.
#[derive(Debug, Default)]
pub struct DraftSources {
    /// Tokens that followed the last ones before.
    pub ngrams: bool,
    /// A model that drafts.
    pub drafter: Option<Drafter>,
    /// Decides by assumed times of steps in place of measured ones, so that drafts do not depend on
    /// the load of a machine.
    pub assumes_times: bool,
}

impl DraftSources {
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        !self.ngrams && self.drafter.is_none()
    }
    /// Returns n-grams as the only source of drafts.
    pub fn ngrams() -> DraftSources {
        DraftSources {
            ngrams: true,
            ..DraftSources::default()
        }
    }
}

/// What a sequence's drafts may come from in a step.
#[derive(Debug)]
struct Proposal {
    decode: Decode,
    ngram: Option<Draft>,
    /// Whether the model that drafts may run for it.
    may_draft: bool,
    /// Most drafts before the end of the context.
    room: usize,
}

/// Drafts of a sequence in a step.
#[derive(Debug)]
pub(super) struct ChosenDraft {
    pub decode: Decode,
    pub origin: DraftOrigin,
    /// The drafted tokens; empty until a model has made them.
    pub tokens: Vec<u32>,
    /// Number of drafts that run, at most that of `tokens`.
    pub count: usize,
    is_long: bool,
}

/// Drafts that run whatever they promise, while times are measured.
#[derive(Clone, PartialEq, Eq, Debug)]
enum ForcedDrafts {
    /// Tokens that follow the sequence's last one, whatever it is.
    Tokens(Vec<u32>),
    /// So many of the model that drafts.
    ByModel(usize),
}

/// Rows of a step that are valid if the tokens before them are chosen.
#[derive(Debug)]
struct Unverified {
    /// Row, and position and number of its token.
    rows: VecDeque<(usize, usize, u32)>,
    origin: DraftOrigin,
    is_long: bool,
    /// Number of drafts that were chosen.
    kept: usize,
}

/// Drafts of all sequences of a batcher.
#[derive(Debug, Default)]
pub(super) struct Speculation {
    /// Rows of a step; 0 without speculation.
    rows: usize,
    /// Whether drafts that were kept run again: see [`Scheduler::rows_before_drafts`].
    runs_again: bool,
    ngrams: bool,
    pub drafter: Option<Drafter>,
    drafts: FxHashMap<SequenceId, SequenceDrafts>,
    /// Survival that new sequences begin with.
    survival: Survival,
    unverified: BTreeMap<SequenceId, Unverified>,
    /// Times of steps with drafts to verify, and of those of the model that drafts.
    times: StepTimes,
    draft_times: StepTimes,
    kept: Option<KeptTimes>,
    assumes_times: bool,
    /// End of the last step, seconds of making drafts since, and captures of the engine so far.
    last_end: Option<Instant>,
    /// Whether the next step waits for the tokens of the last one because drafts were expected.
    pub waited: bool,
    making: f64,
    captures: u64,
    /// Drafts that run whatever they promise, while times are measured.
    forced: Option<ForcedDrafts>,
    pub stats: SpeculationStats,
}

impl Speculation {
    /// Creates speculation for steps of at most `rows` rows.
    pub fn new(rows: usize, sources: DraftSources) -> Speculation {
        Speculation {
            rows,
            runs_again: false,
            ngrams: sources.ngrams,
            drafter: sources.drafter,
            drafts: FxHashMap::default(),
            survival: Survival::default(),
            unverified: BTreeMap::new(),
            times: StepTimes::new(rows),
            draft_times: StepTimes::new(rows),
            kept: None,
            assumes_times: sources.assumes_times,
            last_end: None,
            waited: false,
            making: 0.0,
            captures: 0,
            forced: None,
            stats: SpeculationStats::default(),
        }
    }
    /// Begins with the times that an earlier start has measured, and keeps those of this one.
    pub fn with_kept_times(mut self, engine: &Engine) -> Speculation {
        if self.assumes_times {
            return self;
        }
        let origin = self
            .drafter
            .as_ref()
            .map_or("none", |of| of.origin().name());
        let kept = KeptTimes::new(engine, origin);
        let Times { steps, drafting } = kept.read();
        self.times.restore(steps);
        self.draft_times.restore(drafting);
        self.kept = Some(kept);
        self
    }
    /// Runs drafts that were kept again.
    pub fn running_again(mut self, runs_again: bool) -> Speculation {
        self.runs_again = runs_again;
        self
    }
    pub fn is_on(&self) -> bool {
        self.rows > 1
    }
    /// Drops rows that are not verified yet, as their logits and hidden rows are gone.
    pub fn forget_rows(&mut self) {
        self.unverified.clear();
        self.forget_hidden();
    }
    /// Records a step of decode rows that took `seconds`, and what the host did since the one
    /// before; `captures` are those of the engine so far.
    pub fn record(&mut self, rows: usize, seconds: f64, captures: u64) {
        if self.assumes_times {
            return;
        }
        let now = Instant::now();
        let since = self
            .last_end
            .replace(now)
            .map(|last| (now - last).as_secs_f64());
        let making = std::mem::take(&mut self.making);
        let is_steady = std::mem::replace(&mut self.captures, captures) == captures;
        if making == 0.0 {
            self.draft_times.age_but(None);
        }
        // A step that was captured, and perhaps compiled, takes longer than those after it.
        if is_steady {
            let cycle = since.map_or(seconds, |since| (since - making).max(seconds));
            self.times.record(rows, cycle);
        }
    }
    /// Returns the known times of steps, and of steps of the model that drafts.
    pub fn known_times(&self) -> [BTreeMap<usize, f64>; 2] {
        [&self.times, &self.draft_times].map(StepTimes::known)
    }
    /// Keeps the times that were measured for the next start.
    fn keep_times(&self) {
        let [steps, drafting] = self.known_times();
        if let Some(kept) = &self.kept {
            kept.write(&Times { steps, drafting });
        }
    }
    /// Records that other work came after the last step.
    pub fn interrupt(&mut self) {
        (self.last_end, self.making) = (None, 0.0);
    }
    /// Returns the time of a step of so many rows, in any unit that is the same for all.
    fn time(&self, rows: usize) -> f64 {
        let assumed = || StepTimes::assumed(rows);
        self.times.time(rows).unwrap_or_else(assumed)
    }
    /// Returns the time by which a further row lengthens a step of so many rows.
    fn row_time(&self, rows: usize) -> f64 {
        let fewer = rows.next_power_of_two().min(self.rows / 2).max(1);
        let more = self.time(2 * fewer) - self.time(fewer);
        (more / fewer as f64).max(0.0)
    }
    /// Returns the time of a step of the model that drafts.
    fn draft_time(&self, rows: usize) -> f64 {
        let assumed = || ASSUMED_DRAFTING * self.time(rows);
        self.draft_times.time(rows).unwrap_or_else(assumed)
    }
    /// Returns the drafts of a sequence, which begin with what was learned of others.
    fn drafts_mut(&mut self, id: SequenceId) -> &mut SequenceDrafts {
        let first = &self.survival;
        self.drafts
            .entry(id)
            .or_insert_with(|| SequenceDrafts::new(first.clone()))
    }
    /// Returns what the drafts behind a sequence's next token may come from.
    fn proposal(
        &mut self,
        scheduler: &Scheduler,
        decode: &Decode,
        (context, may_draft): (usize, bool),
    ) -> Option<Proposal> {
        let id = decode.sequence;
        if !decode.needs_logits || !scheduler.may_speculate(id) {
            return None;
        }
        let (ngrams, tokens) = (self.ngrams, scheduler.tokens(id));
        let own = self.drafts_mut(id);
        let ngram = ngrams.then(|| own.ngram(tokens)).flatten();
        (ngram.is_some() || may_draft).then_some(Proposal {
            decode: *decode,
            ngram,
            may_draft,
            room: context.saturating_sub(decode.position + 1),
        })
    }
    /// Returns whether drafts are expected to be worth their time behind the next tokens of a batch
    /// in flight, so that the next step must wait for these.
    pub fn expects(&mut self, scheduler: &Scheduler, batch: &Batch, context: usize) -> bool {
        let (decodes, rows) = scheduler.rows_before_drafts(batch);
        if self.rows <= rows {
            return false;
        }
        let may_draft = self.drafter.is_some();
        if self.forced.is_some() {
            let mut all = decodes.iter();
            return all.any(|decode| self.forced_behind(decode, may_draft).is_some());
        }
        let all = decodes.iter();
        let found = all.filter_map(|decode| self.proposal(scheduler, decode, (context, may_draft)));
        let found: Vec<_> = found.collect();
        !self.chosen((decodes.len(), rows), found).is_empty()
    }
    /// Chooses the drafts of a batch of decode rows; `may_draft`: a model may make some.
    pub fn choose(
        &mut self,
        scheduler: &Scheduler,
        batch: &Batch,
        (context, may_draft): (usize, bool),
    ) -> Vec<ChosenDraft> {
        self.unverified.clear();
        self.drafts.retain(|&id, _| scheduler.is_running(id));
        let (decodes, rows) = scheduler.rows_before_drafts(batch);
        if self.rows <= rows || decodes.is_empty() {
            return Vec::new();
        }
        if self.forced.is_some() {
            let forced = |decode| self.forced_behind(decode, may_draft);
            return decodes.iter().take(1).filter_map(forced).collect();
        }
        let reads_hidden = self.drafter.as_ref().map(Drafter::reads_hidden);
        let mut found = Vec::new();
        for decode in &decodes {
            let has_hidden = || {
                let own = self.drafts.get(&decode.sequence);
                own.is_some_and(|own| own.hidden_row(decode.position).is_some())
            };
            let may_draft = may_draft && reads_hidden.is_some_and(|reads| !reads || has_hidden());
            found.extend(self.proposal(scheduler, decode, (context, may_draft)));
        }
        self.chosen((decodes.len(), rows), found)
    }
    /// Returns the drafts with the most expected tokens by time, of a batch of `own` sequences and
    /// so many rows.
    fn chosen(&self, (own, rows): (usize, usize), found: Vec<Proposal>) -> Vec<ChosenDraft> {
        let room = self.rows - rows;
        let least = LEAST_GAIN * own as f64 / self.time(rows);
        let mut best: (f64, Vec<(bool, usize)>) = (least, Vec::new());
        let may_draft = found.iter().any(|of| of.may_draft);
        let deepest = if may_draft { room.min(MOST_STEPS) } else { 0 };
        for depth in 0..=deepest {
            let chains = found.iter().map(|of| self.chain(of, depth));
            let chains: Vec<(bool, Vec<f64>)> = chains.collect();
            let drafting = chains.iter().filter(|of| of.0).count();
            if depth > 0 && drafting == 0 {
                continue;
            }
            let making = depth as f64 * self.draft_time(drafting.max(1));
            let (rate, counts) = self.counts((own, rows), &chains, making);
            if rate > best.0 {
                let by_model = chains.iter().map(|of| of.0);
                best = (rate, by_model.zip(counts).collect());
            }
        }
        let origin = self.drafter.as_ref().map(Drafter::origin);
        let all = found.into_iter().zip(best.1);
        let drafts = all.filter_map(|(of, (by_model, count))| {
            let (tokens, matched) = match of.ngram {
                Some(ngram) if !by_model => (ngram.tokens, ngram.matched),
                _ => (Vec::new(), 0),
            };
            let origin = match by_model {
                true => origin?,
                false => DraftOrigin::Ngram,
            };
            (count > 0).then_some(ChosenDraft {
                decode: of.decode,
                origin,
                tokens,
                count,
                is_long: matched >= LONG_MATCH,
            })
        });
        drafts.collect()
    }
    /// Returns the probabilities that a sequence's drafts are kept, with at most `depth` of the
    /// model that drafts, and whether they are of that model.
    fn chain(&self, of: &Proposal, depth: usize) -> (bool, Vec<f64>) {
        let drafts = self.drafts.get(&of.decode.sequence);
        let survival = drafts.map_or(&self.survival, |drafts| &drafts.survival);
        let by_model = match of.may_draft {
            true => survival.of_model(depth.min(of.room)),
            false => Vec::new(),
        };
        let by_ngram = match &of.ngram {
            Some(draft) => {
                let length = draft.tokens.len().min(of.room);
                survival.of_ngram(draft.matched >= LONG_MATCH, length)
            }
            None => Vec::new(),
        };
        let sum = |chain: &[f64]| chain.iter().sum::<f64>();
        match sum(&by_model) > sum(&by_ngram) {
            true => (true, by_model),
            false => (false, by_ngram),
        }
    }
    /// Returns the most expected tokens by time, and the number of drafts of each sequence with
    /// that; `making` is the time of making the drafts.
    fn counts(
        &self,
        (own, rows): (usize, usize),
        chains: &[(bool, Vec<f64>)],
        making: f64,
    ) -> (f64, Vec<usize>) {
        let all = chains.iter().enumerate();
        let gains = all.flat_map(|(nth, of)| of.1.iter().map(move |&kept| (kept, nth)));
        let mut gains: Vec<(f64, usize)> = gains.collect();
        gains.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (mut best, mut most) = (0, 0.0);
        let mut expected = own as f64;
        for (count, gain) in gains.iter().enumerate().take(self.rows - rows) {
            expected += gain.0;
            let again = match self.runs_again {
                true => (expected - own as f64) * self.row_time(rows + count + 1),
                false => 0.0,
            };
            let rate = expected / (self.time(rows + count + 1) + making + again);
            if rate > most {
                (best, most) = (count + 1, rate);
            }
        }
        let mut counts = vec![0; chains.len()];
        gains[..best].iter().for_each(|gain| counts[gain.1] += 1);
        (most, counts)
    }
    /// Returns the rows of drafts, which follow `own` decode rows, and keeps them to be verified.
    pub fn rows(&mut self, own: usize, drafts: Vec<ChosenDraft>) -> Vec<DraftRow> {
        let mut rows = Vec::new();
        for draft in drafts {
            let mut unverified = VecDeque::new();
            let counts = self.stats.counts_mut(draft.origin);
            for (i, &token) in draft.tokens.iter().take(draft.count).enumerate() {
                let (position, row) = (draft.decode.position + 1 + i, own + rows.len());
                unverified.push_back((row, position, token));
                counts.drafted[i] += 1;
                rows.push(DraftRow {
                    sequence: draft.decode.sequence,
                    position,
                    token,
                });
            }
            let unverified = Unverified {
                rows: unverified,
                origin: draft.origin,
                is_long: draft.is_long,
                kept: 0,
            };
            let id = draft.decode.sequence;
            self.drafts_mut(id).counted[0] += unverified.rows.len();
            self.unverified.insert(id, unverified);
        }
        self.stats.steps += u64::from(!rows.is_empty());
        rows
    }
    /// Returns the drafted and kept tokens of a sequence.
    pub fn drafts_of(&self, id: SequenceId) -> [usize; 2] {
        self.drafts.get(&id).map_or([0, 0], |own| own.counted)
    }
    /// Returns the drafted token that would follow a sequence's tokens, if its row has run.
    pub fn next_draft(&self, id: SequenceId) -> Option<u32> {
        let row = self.unverified.get(&id)?.rows.front()?;
        Some(row.2)
    }
    /// Takes the next row of each sequence that chose the row's token. Rows of other sequences are
    /// dropped.
    pub fn verified(&mut self, scheduler: &mut Scheduler) -> Vec<(SequenceId, usize)> {
        let mut verified = Vec::new();
        let Speculation {
            unverified,
            drafts,
            survival: of_all,
            stats,
            ..
        } = self;
        unverified.retain(|&id, of| {
            let Some((row, position, token)) = of.rows.pop_front() else {
                return false;
            };
            let tokens = scheduler.tokens(id);
            if tokens.len() != position + 1 {
                return false;
            }
            let is_kept = tokens[position] == token;
            if let Some(own) = drafts.get_mut(&id) {
                let place = (of.origin != DraftOrigin::Ngram).then_some(of.kept);
                own.counted[1] += usize::from(is_kept);
                own.survival.learn((place, of.is_long), is_kept);
                of_all.learn_from_any((place, of.is_long), is_kept);
            }
            if is_kept {
                stats.counts_mut(of.origin).accepted[of.kept] += 1;
                of.kept += 1;
                scheduler.accept_draft(id, position);
                verified.push((id, row));
            }
            is_kept
        });
        verified
    }
}

impl Drop for Speculation {
    fn drop(&mut self) {
        self.keep_times();
    }
}

#[cfg(test)]
mod tests;
