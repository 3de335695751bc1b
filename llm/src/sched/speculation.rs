//! Speculation: drafted tokens run as further rows of their sequence, and are kept as long as they
//! are the tokens that the sequence chooses.
//!
//! A draft never changes the distribution of a text: each token is chosen from the logits of its
//! row as without drafts, and the row behind it is used only if the drafted token was chosen.
//! Drafts are run where they are worth their time: the expected tokens of a step by its measured
//! time. A full batch has no rows for them.

use super::batch::{Batch, Decode, DraftRow};
use super::ngram::{Draft, NgramIndex};
use super::scheduler::Scheduler;
use super::sequence::SequenceId;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};

/// Matches of so many tokens and more are counted apart from shorter ones.
const LONG_MATCH: usize = 12;
/// Shares of drafted tokens that are expected to be kept at first: after short and long matches.
const FIRST_SURVIVAL: [f64; 2] = [0.6, 0.85];
/// Weight of the newest token in these shares, and their bounds: drafts that are never tried would
/// never be counted.
const SURVIVAL_WEIGHT: f64 = 0.08;
const SURVIVAL_BOUNDS: [f64; 2] = [0.1, 0.98];
/// Weight of the newest step in the time of steps of as many rows.
const TIME_WEIGHT: f64 = 0.2;
/// Factor of the known times of steps with other numbers of rows, for each step: a time that was
/// measured beside other work is tried again after some hundred steps.
const FORGETTING: f64 = 0.998;
/// Growth of the time of a step with twice the rows, until it is measured.
const ASSUMED_GROWTH: f64 = 1.15;
/// Least gain that drafts must promise.
const LEAST_GAIN: f64 = 1.03;

/// Numbers of drafted and kept tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpeculationStats {
    /// Tokens that were run as drafts.
    pub drafted: u64,
    /// Those of them that were chosen, each of which saved a step.
    pub accepted: u64,
    /// Steps with at least one draft.
    pub steps: u64,
}

/// Drafts of a sequence.
#[derive(Debug)]
struct SequenceDrafts {
    index: NgramIndex,
    /// Expected share of kept tokens, after short and long matches.
    survival: [f64; 2],
}

impl Default for SequenceDrafts {
    fn default() -> SequenceDrafts {
        SequenceDrafts {
            index: NgramIndex::default(),
            survival: FIRST_SURVIVAL,
        }
    }
}

/// Rows of a step that are valid if the tokens before them are chosen.
#[derive(Debug, Default)]
struct Unverified {
    /// Row, and position and number of its token.
    rows: VecDeque<(usize, usize, u32)>,
    is_long: bool,
}

/// Drafts of all sequences of a batcher.
#[derive(Debug, Default)]
pub(super) struct Speculation {
    /// Rows of a step; 0 without speculation.
    rows: usize,
    drafts: FxHashMap<SequenceId, SequenceDrafts>,
    unverified: BTreeMap<SequenceId, Unverified>,
    /// Seconds of a step by its rows, rounded up to a power of two; `None` after the first one,
    /// which may have compiled kernels.
    seconds: BTreeMap<usize, Option<f64>>,
    pub stats: SpeculationStats,
}

impl Speculation {
    /// Creates speculation for steps of at most `rows` rows.
    pub fn new(rows: usize) -> Speculation {
        Speculation {
            rows,
            ..Speculation::default()
        }
    }
    pub fn is_on(&self) -> bool {
        self.rows > 1
    }
    /// Drops rows that are not verified yet, as their logits are gone.
    pub fn forget_rows(&mut self) {
        self.unverified.clear();
    }
    /// Records the time of a step of decode rows.
    pub fn record(&mut self, rows: usize, seconds: f64) {
        let bucket = self.bucket(rows);
        let others = self.seconds.iter_mut().filter(|of| *of.0 != bucket);
        others
            .filter_map(|of| of.1.as_mut())
            .for_each(|known| *known *= FORGETTING);
        let known = self.seconds.entry(bucket);
        known
            .and_modify(|known| {
                let before = known.unwrap_or(seconds);
                *known = Some(before + TIME_WEIGHT * (seconds - before));
            })
            .or_insert(None);
    }
    fn bucket(&self, rows: usize) -> usize {
        rows.next_power_of_two().min(self.rows.max(1))
    }
    /// Returns the time of a step of so many rows, in any unit that is the same for all.
    fn time(&self, rows: usize) -> f64 {
        let bucket = self.bucket(rows);
        let known = self.seconds.range(..=bucket).rev();
        let mut known = known.filter_map(|(&rows, seconds)| Some((rows, (*seconds)?)));
        let (of, seconds) = known.next().unwrap_or((1, 1.0));
        seconds * ASSUMED_GROWTH.powf((bucket as f64 / of as f64).log2())
    }
    /// Returns the draft of a sequence's next tokens.
    fn draft(&mut self, scheduler: &Scheduler, id: SequenceId) -> Option<Draft> {
        if !scheduler.may_speculate(id) {
            return None;
        }
        let tokens = scheduler.tokens(id);
        let own = self.drafts.entry(id).or_default();
        own.index.extend(tokens);
        own.index.find(tokens)
    }
    /// Returns whether drafts are expected to be worth their time behind the next tokens of a batch
    /// in flight, so that the next step must wait for these.
    pub fn expects(&mut self, scheduler: &Scheduler, batch: &Batch) -> bool {
        let own = batch.decodes.len();
        let room = self.rows.saturating_sub(own);
        if room == 0 {
            return false;
        }
        let found = batch.decodes.iter().filter_map(|decode| {
            let draft = self.draft(scheduler, decode.sequence)?;
            Some((*decode, draft))
        });
        let found: Vec<_> = found.collect();
        self.counts(own, room, &found)
            .iter()
            .any(|&count| count > 0)
    }
    /// Plans the drafts of a batch of decode rows, and takes pages for them; positions are below
    /// `context`.
    pub fn plan(
        &mut self,
        scheduler: &mut Scheduler,
        batch: &Batch,
        context: usize,
    ) -> Vec<DraftRow> {
        self.unverified.clear();
        self.drafts.retain(|&id, _| scheduler.is_running(id));
        let own = batch.decodes.len();
        let room = self.rows.saturating_sub(own);
        if room == 0 || own == 0 || batch.chunk.is_some() {
            return Vec::new();
        }
        let mut found = Vec::new();
        for decode in batch.decodes.iter().filter(|decode| decode.needs_logits) {
            let Some(mut draft) = self.draft(scheduler, decode.sequence) else {
                continue;
            };
            draft
                .tokens
                .truncate(context - (decode.position + 1).min(context));
            found.push((*decode, draft));
        }
        let counts = self.counts(own, room, &found);
        let mut rows = Vec::new();
        for ((decode, draft), count) in found.into_iter().zip(counts) {
            let count = scheduler.extend_for_drafts(decode.sequence, count);
            let mut unverified = Unverified {
                is_long: draft.matched >= LONG_MATCH,
                ..Unverified::default()
            };
            for (i, &token) in draft.tokens.iter().take(count).enumerate() {
                let (position, row) = (decode.position + 1 + i, own + rows.len());
                unverified.rows.push_back((row, position, token));
                rows.push(DraftRow {
                    sequence: decode.sequence,
                    position,
                    token,
                });
            }
            self.unverified.insert(decode.sequence, unverified);
        }
        self.stats.drafted += rows.len() as u64;
        self.stats.steps += u64::from(!rows.is_empty());
        rows
    }
    /// Returns the number of drafts of each sequence with the most expected tokens by time.
    fn counts(&self, own: usize, room: usize, found: &[(Decode, Draft)]) -> Vec<usize> {
        let mut gains: Vec<(f64, usize)> = Vec::new();
        for (nth, (decode, draft)) in found.iter().enumerate() {
            let drafts = self.drafts.get(&decode.sequence);
            let survival = drafts.map_or(FIRST_SURVIVAL, |of| of.survival);
            let survival = survival[usize::from(draft.matched >= LONG_MATCH)];
            let kept = (1..=draft.tokens.len()).map(|i| (survival.powi(i as i32), nth));
            gains.extend(kept);
        }
        gains.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut expected = own as f64;
        let (mut best, mut most) = (0, LEAST_GAIN * expected / self.time(own));
        for (count, gain) in gains.iter().enumerate().take(room) {
            expected += gain.0;
            let rate = expected / self.time(own + count + 1);
            if rate > most {
                (best, most) = (count + 1, rate);
            }
        }
        let mut counts = vec![0; found.len()];
        gains[..best].iter().for_each(|gain| counts[gain.1] += 1);
        counts
    }
    /// Takes the next row of each sequence that chose the row's token. Rows of other sequences are
    /// dropped.
    pub fn verified(&mut self, scheduler: &mut Scheduler) -> Vec<(SequenceId, usize)> {
        let mut verified = Vec::new();
        let Speculation {
            unverified,
            drafts,
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
                let survival = &mut own.survival[usize::from(of.is_long)];
                let [least, most] = SURVIVAL_BOUNDS;
                *survival += SURVIVAL_WEIGHT * (f64::from(u8::from(is_kept)) - *survival);
                *survival = survival.clamp(least, most);
            }
            if is_kept {
                stats.accepted += 1;
                scheduler.accept_draft(id, position);
                verified.push((id, row));
            }
            is_kept
        });
        verified
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::SequenceOptions;
    use crate::sched::batch::SchedulerConfig;

    const CONFIG: SchedulerConfig = SchedulerConfig {
        pages: 64,
        page_size: 16,
        window_pool: None,
        state_rows: 0,
        host_slots: 0,
        max_sequences: 8,
        max_chunk: 512,
        mixed: false,
    };

    /// A scheduler whose sequences have run their prompts and have a token to run, with drafts.
    fn scheduler(sequences: usize) -> (Scheduler, Batch) {
        let mut scheduler = Scheduler::new(CONFIG);
        let prompt: Vec<u32> = (0..60).map(|i| i % 20).collect();
        let ids: Vec<SequenceId> = (0..sequences)
            .map(|_| scheduler.add(prompt.clone(), SequenceOptions::default()))
            .collect();
        for _ in 0..2 * sequences {
            let batch = scheduler.next_batch(512);
            scheduler.finish_batch(&batch);
            if let Some(chunk) = batch.chunk.filter(|chunk| chunk.needs_logits) {
                scheduler.push(chunk.sequence, 0);
            }
            for decode in batch.decodes {
                let next = scheduler.tokens(decode.sequence).len() as u32 % 20;
                scheduler.push(decode.sequence, next);
            }
        }
        let batch = scheduler.next_batch(512);
        assert_eq!(batch.decodes.len(), ids.len());
        (scheduler, batch)
    }
    /// Speculation with a known time of steps by rows.
    fn with_times(rows: usize, time: impl Fn(usize) -> f64) -> Speculation {
        let mut speculation = Speculation::new(rows);
        for rows in [1, 2, 4, 8, 16, 32].into_iter().filter(|&n| n <= rows) {
            // The first step may have compiled kernels.
            speculation.record(rows, 1000.0);
            speculation.record(rows, time(rows));
        }
        speculation
    }

    #[test]
    fn drafts_run_where_their_time_is_worth_it() {
        let planned = |sequences: usize, rows: usize, time: &dyn Fn(usize) -> f64| {
            let (mut scheduler, batch) = scheduler(sequences);
            let mut speculation = with_times(rows, time);
            speculation.plan(&mut scheduler, &batch, 1000).len()
        };
        assert_eq!(
            planned(1, 16, &|_| 1.0),
            15,
            "rows that cost nothing are all used"
        );
        assert_eq!(
            planned(1, 16, &|rows| rows as f64),
            0,
            "rows that cost as much as steps"
        );
        assert_eq!(planned(4, 4, &|_| 1.0), 0, "a full batch");
        assert_eq!(planned(1, 1, &|_| 1.0), 0, "no rows for drafts");
        // Eight rows take as long as one, sixteen four times as long.
        let steep = |rows: usize| if rows > 8 { 4.0 } else { 1.0 };
        assert_eq!(planned(1, 16, &steep), 7);
        assert_eq!(planned(2, 16, &steep), 6, "of both sequences");
    }

    #[test]
    fn a_step_that_was_slow_once_is_tried_again() {
        let (mut scheduler, batch) = scheduler(1);
        let mut speculation = with_times(8, |rows| if rows > 1 { 20.0 } else { 1.0 });
        assert!(speculation.plan(&mut scheduler, &batch, 1000).is_empty());
        for _ in 0..1500 {
            speculation.record(1, 1.0);
        }
        assert!(!speculation.plan(&mut scheduler, &batch, 1000).is_empty());
    }

    #[test]
    fn rejected_drafts_become_rare_and_cost_no_rows() {
        let (mut scheduler, mut batch) = scheduler(1);
        let mut speculation = with_times(8, |rows| 1.0 + 0.1 * rows as f64);
        let id = batch.decodes[0].sequence;
        let mut counts = Vec::new();
        for _ in 0..40 {
            let drafts = speculation.plan(&mut scheduler, &batch, 10_000);
            counts.push(drafts.len());
            scheduler.finish_batch(&batch);
            // A repeated text that never continues as before, after a match of nine tokens.
            let other = 1000 + counts.len() as u32;
            scheduler.push(id, other);
            assert_eq!(speculation.verified(&mut scheduler), []);
            for token in 0..9 {
                let between = scheduler.next_batch(512);
                scheduler.finish_batch(&between);
                scheduler.push(id, token);
            }
            scheduler.check();
            batch = scheduler.next_batch(512);
        }
        assert!(counts[0] > 0, "{counts:?}");
        assert_eq!(counts[39], 0, "{counts:?}");
    }

    #[test]
    fn a_kept_draft_returns_its_row_and_a_rejected_one_ends_them() {
        let (mut scheduler, batch) = scheduler(1);
        let id = batch.decodes[0].sequence;
        let mut speculation = with_times(8, |_| 1.0);
        let drafts = speculation.plan(&mut scheduler, &batch, 1000);
        assert_eq!(drafts.len(), 7);
        scheduler.finish_batch(&batch);
        for (i, draft) in drafts.iter().take(3).enumerate() {
            scheduler.push(id, draft.token);
            assert_eq!(speculation.verified(&mut scheduler), [(id, 1 + i)]);
            assert_eq!(scheduler.computed(id), draft.position + 1);
            scheduler.check();
        }
        scheduler.push(id, drafts[3].token + 1);
        assert_eq!(speculation.verified(&mut scheduler), []);
        scheduler.push(id, drafts[4].token);
        assert_eq!(speculation.verified(&mut scheduler), [], "all were dropped");
        let SpeculationStats {
            drafted, accepted, ..
        } = speculation.stats;
        assert_eq!((drafted, accepted), (7, 3));
    }
}
