//! Sampling on the host from a device's candidates of a row: the first ids in order, the total
//! weight, and the logits that the host changes.
//!
//! The token equals that of [`Sampler::sample`] on the whole row. There is none if more ids remain
//! after truncation than the device returned.

use super::sampler::{Candidate, Sampler, descending};
use super::weight::{probability, probability_share, scale, weight};

/// Candidates of a row, see [`candidates_function`](super::candidates_function).
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// Number of ids in the vocabulary.
    pub vocabulary: usize,
    /// The first ranked ids by descending logit; ties by ascending id.
    pub first: Vec<Candidate>,
    /// Whether these are all ids with a probability, apart from the changed ones.
    pub complete: bool,
    /// Sum of the weights of all ranked ids at a temperature of 1.
    pub total: i64,
    /// Whether no ranked logit is NaN or +∞.
    pub sound: bool,
    /// The id sampled from all ranked ids, if top-k and top-p are off.
    pub drawn: Option<u32>,
    /// Original logits of the changed ids, in the order of the request.
    pub raw: Vec<f32>,
}

impl Sampler {
    /// Chooses the token after `history` as [`Sampler::sample`] does. `changed` holds the changed
    /// ids with their logits; only they may be penalised.
    ///
    /// `None` if the candidates do not determine the token, or there is nothing to choose from.
    pub fn sample_candidates(
        &mut self,
        ranked: &Candidates,
        changed: &[Candidate],
        history: &[u32],
    ) -> Option<u32> {
        let counts = self.counts(history);
        let penalised = |&(id, logit): &Candidate| match counts.get(&id) {
            // Treats −0 as 0, as sampling from a whole row does.
            Some(&count) => (id, self.params.penalised(logit, count) + 0.0),
            None => (id, logit + 0.0),
        };
        let mut changed: Vec<Candidate> = changed.iter().map(penalised).collect();
        let numbers = changed.iter().all(|&(_, logit)| logit < f32::INFINITY);
        if !ranked.sound || !numbers {
            return None;
        }
        if let (Some(drawn), true) = (ranked.drawn, changed.is_empty()) {
            return (!ranked.first.is_empty()).then_some(drawn);
        }
        changed.retain(|&(_, logit)| logit > f32::NEG_INFINITY);
        changed.sort_unstable_by(descending);
        self.merge(ranked, &changed);
        let &(first, max) = self.candidates.first()?;
        if self.params.temperature <= 0.0 {
            return Some(first);
        }
        let keep = self.kept_candidates(ranked, &changed, max)?;
        self.candidates.truncate(keep);
        if !self.keeps_order(ranked.vocabulary) {
            self.candidates
                .sort_unstable_by_key(|candidate| candidate.0);
        }
        Some(self.draw(max, history.len()))
    }

    /// Merges changed and ranked ids, up to the last that is known to precede all unlisted ids.
    fn merge(&mut self, ranked: &Candidates, changed: &[Candidate]) {
        let known = |candidate: &&Candidate| {
            let before = |last| descending(candidate, last).is_lt();
            ranked.complete || ranked.first.last().is_some_and(before)
        };
        self.candidates.clear();
        self.candidates.extend(&ranked.first);
        self.candidates.extend(changed.iter().take_while(known));
        self.candidates.sort_unstable_by(descending);
    }

    /// Returns how many candidates remain after truncation; `None` if that may exceed the known
    /// ones. Each truncation keeps a prefix, so the shortest known one decides.
    fn kept_candidates(
        &self,
        ranked: &Candidates,
        changed: &[Candidate],
        max: f32,
    ) -> Option<usize> {
        let (params, known) = (&self.params, &self.candidates);
        let shorter = |keep: Option<usize>, to: usize| Some(keep.map_or(to, |keep| keep.min(to)));
        let mut keep = ranked.complete.then_some(known.len());
        let limited = self.is_limited(ranked.vocabulary);
        if limited && params.top_k <= known.len() {
            keep = shorter(keep, params.top_k);
        }
        if params.top_p < 1.0 {
            let plain = scale(1.0);
            let sum = |of: &[Candidate]| {
                of.iter()
                    .map(|&(_, logit)| weight(logit - max, plain))
                    .sum::<i64>()
            };
            let total = match keep {
                Some(keep) => sum(&known[..keep]),
                // Weights are rounded relative to the largest logit, so sums are comparable only
                // for the same maximum.
                None if !limited && ranked.first.first()?.1 == max => ranked.total + sum(changed),
                None => return None,
            };
            let (wanted, mut reached) = (probability_share(total, probability(params.top_p)), 0);
            let last = known[..keep.unwrap_or(known.len())]
                .iter()
                .position(|&(_, logit)| {
                    reached += weight(logit - max, plain);
                    reached >= wanted
                });
            keep = last.map_or(keep, |last| shorter(keep, last + 1));
        }
        if params.min_p > 0.0 {
            let least = max + params.min_p.ln();
            keep = known
                .iter()
                .position(|&(_, logit)| logit < least)
                .map_or(keep, |end| shorter(keep, end));
        }
        keep
    }
}
