//! The host's choice of a token from what a device tells of a row: its first ids in order, the weight of all, and the logits that the host changes.
//!
//! The token is the one that [`Sampler::sample`] takes from the whole row, or none where that cannot be known: where more ids stay than were told.

use super::sampler::{Candidate, Sampler, descending};
use super::weight::{part, probability, scale, weight};

/// What is told of a row, see [`ranks_function`](super::ranks_function).
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// How many ids there are.
    pub vocabulary: usize,
    /// The first ids in descending order of their logits, of equal ones the lower id first, without those that were not ranked.
    pub first: Vec<Candidate>,
    /// Are those all that have a probability, but for the changed ones?
    pub complete: bool,
    /// The sum of the weights of all that were ranked, for a temperature of 1.
    pub total: i64,
    /// Are all logits that were ranked numbers below infinity?
    pub sound: bool,
    /// The id that was drawn among all that were ranked, where any of them may come.
    pub drawn: Option<u32>,
    /// The logits that are changed, as they were told, in the order in which they were asked for.
    pub raw: Vec<f32>,
}

impl Sampler {
    /// The token after `history` that [`Sampler::sample`] chooses, where these are the logits of the changed ids, and none but those can be among the penalised. None where what was told is not
    /// enough to know, or there is nothing to choose from.
    pub fn sample_candidates(&mut self, ranked: &Candidates, changed: &[Candidate], history: &[u32]) -> Option<u32> {
        let counts = self.counts(history);
        let penalised = |&(id, logit): &Candidate| match counts.get(&id) {
            // Both zeros are one, as they are for a row.
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
            self.candidates.sort_unstable_by_key(|candidate| candidate.0);
        }
        Some(self.draw(max, history.len()))
    }

    /// Makes the candidates those of which it is known that no other comes before the last of them.
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

    /// How many of the candidates stay; none where more may stay than are known. Each truncation keeps a prefix, so the shortest that is known counts.
    fn kept_candidates(&self, ranked: &Candidates, changed: &[Candidate], max: f32) -> Option<usize> {
        let (params, known) = (&self.params, &self.candidates);
        let shorter = |keep: Option<usize>, to: usize| Some(keep.map_or(to, |keep| keep.min(to)));
        let mut keep = ranked.complete.then_some(known.len());
        let limited = self.is_limited(ranked.vocabulary);
        if limited && params.top_k <= known.len() {
            keep = shorter(keep, params.top_k);
        }
        if params.top_p < 1.0 {
            let plain = scale(1.0);
            let sum = |of: &[Candidate]| of.iter().map(|&(_, logit)| weight(logit - max, plain)).sum::<i64>();
            let total = match keep {
                Some(keep) => sum(&known[..keep]),
                // Weights are rounded, and know by what they were divided.
                None if !limited && ranked.first.first()?.1 == max => ranked.total + sum(changed),
                None => return None,
            };
            let (wanted, mut reached) = (part(total, probability(params.top_p)), 0);
            let last = known[..keep.unwrap_or(known.len())].iter().position(|&(_, logit)| {
                reached += weight(logit - max, plain);
                reached >= wanted
            });
            keep = last.map_or(keep, |last| shorter(keep, last + 1));
        }
        if params.min_p > 0.0 {
            let least = max + params.min_p.ln();
            keep = known.iter().position(|&(_, logit)| logit < least).map_or(keep, |end| shorter(keep, end));
        }
        keep
    }
}
