//! Sampling on the host, from all logits.

use super::params::{SamplingError, SamplingParams};
use super::rng::PositionRng;
use super::sampling_method::{MAX_CANDIDATES, REQUEST_PARAMS, SamplingMethod};
use super::weight::{probability, probability_share, scale, target, weight};
use rustc_hash::FxHashMap;

/// A token and its logit.
pub(super) type Candidate = (u32, f32);

/// Initial number of candidates for top-p without top-k.
const NUCLEUS_PREFIX: usize = 256;

/// Chooses the tokens of one sequence.
#[derive(Debug, Clone)]
pub struct Sampler {
    pub(super) params: SamplingParams,
    random: PositionRng,
    /// Scratch: the logits after penalties, the candidates, and their weights.
    pub(super) logits: Vec<f32>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) weights: Vec<i64>,
}

impl Sampler {
    /// Creates a sampler with these parameters.
    ///
    /// # Errors
    /// A parameter out of range.
    pub fn new(params: SamplingParams) -> Result<Self, SamplingError> {
        params.validate()?;
        let random = PositionRng::new(params.seed);
        Ok(Self {
            params,
            random,
            logits: Vec::new(),
            candidates: Vec::new(),
            weights: Vec::new(),
        })
    }

    /// The validated sampling parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Returns the method with which a device can make this choice. `None` with penalties, which
    /// need the history, and for top-k above [`MAX_CANDIDATES`] combined with top-p.
    pub fn choice(&self) -> Option<SamplingMethod> {
        let params = &self.params;
        if params.has_penalties() {
            return None;
        }
        match (params.top_k, params.top_p < 1.0) {
            _ if params.temperature <= 0.0 => Some(SamplingMethod::Greedy),
            (1..=MAX_CANDIDATES, _) => Some(SamplingMethod::SmallTopK),
            (0, false) => Some(SamplingMethod::All),
            (0, true) => Some(SamplingMethod::TopP),
            (_, false) => Some(SamplingMethod::TopK),
            (_, true) => None,
        }
    }

    /// Returns the parameters of the device functions, see
    /// [`sampling_function`](super::sampling_function).
    pub fn numbers(&self) -> [f32; REQUEST_PARAMS] {
        let SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            ..
        } = self.params;
        [
            scale(temperature),
            top_k as f32,
            probability(top_p),
            min_p.ln().max(f32::MIN),
        ]
    }

    /// The random number generator of its seed.
    pub fn random(&self) -> PositionRng {
        self.random
    }

    /// Chooses the token after `history`, the sequence so far with its prompt. The penalties
    /// use its tokens, and its length is the position of the random number. Ties break
    /// towards the lower id.
    ///
    /// # Errors
    /// A logit that is NaN or +∞ (before or after the penalties), or no logit above −∞.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, SamplingError> {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.penalise(history);
        if let Some((token, value)) = not_a_number(&self.logits) {
            return Err(SamplingError::BadLogit { token, value });
        }
        let none = SamplingError::NoCandidate {
            logits: logits.len(),
        };
        if self.params.temperature <= 0.0 {
            return argmax(&self.logits).map(|(id, _)| id).ok_or(none);
        }
        let max = argmax(&self.logits).ok_or(none)?.1;
        self.truncate(max);
        Ok(self.draw(max, history.len()))
    }

    /// Counts the tokens of the recent history; empty without penalties.
    pub(super) fn counts(&self, history: &[u32]) -> FxHashMap<u32, u32> {
        let mut counts: FxHashMap<u32, u32> = FxHashMap::default();
        self.recent(history)
            .iter()
            .for_each(|&id| *counts.entry(id).or_insert(0) += 1);
        counts
    }

    /// Returns the part of a history that is penalised.
    pub fn recent<'h>(&self, history: &'h [u32]) -> &'h [u32] {
        let last = if self.params.has_penalties() {
            self.params.penalty_last_n
        } else {
            0
        };
        &history[history.len().saturating_sub(last)..]
    }

    /// Penalises the tokens of the recent history.
    fn penalise(&mut self, history: &[u32]) {
        for (id, count) in self.counts(history) {
            // Ids outside the vocabulary have no logit.
            if let Some(logit) = self.logits.get_mut(id as usize) {
                *logit = self.params.penalised(*logit, count);
            }
        }
    }

    /// Returns whether top-k truncates.
    pub(super) fn is_limited(&self, vocabulary: usize) -> bool {
        self.params.top_k > 0 && self.params.top_k < vocabulary
    }

    /// Returns whether candidates are drawn in descending order, as on a device for small top-k;
    /// otherwise in ascending order of ids.
    pub(super) fn keeps_order(&self, vocabulary: usize) -> bool {
        (1..=MAX_CANDIDATES).contains(&self.params.top_k)
            && (self.is_limited(vocabulary) || self.params.top_p < 1.0)
    }

    /// Applies top-k, top-p and min-p. Each keeps a prefix of the candidates in descending order,
    /// so together they keep the shortest. Up to [`MAX_CANDIDATES`] stay in that order, as on a
    /// device; more are sorted by id.
    fn truncate(&mut self, max: f32) {
        let (limited, keeps_order) = (
            self.is_limited(self.logits.len()),
            self.keeps_order(self.logits.len()),
        );
        let Self {
            params,
            logits,
            candidates,
            ..
        } = self;
        candidates.clear();
        if limited {
            largest(logits, params.top_k, candidates);
        }
        if params.top_p < 1.0 {
            // Probabilities are relative to the top-k, before the temperature.
            let plain = scale(1.0);
            let total: i64 = match limited {
                true => candidates
                    .iter()
                    .map(|&(_, logit)| weight(logit - max, plain))
                    .sum(),
                false => logits.iter().map(|&logit| weight(logit - max, plain)).sum(),
            };
            let wanted = probability_share(total, probability(params.top_p));
            let mut k = NUCLEUS_PREFIX;
            loop {
                if !limited {
                    largest(logits, k, candidates);
                }
                let mut sum = 0;
                let reached = candidates.iter().position(|&(_, logit)| {
                    sum += weight(logit - max, plain);
                    sum >= wanted
                });
                if let Some(last) = reached {
                    candidates.truncate(last + 1);
                    break;
                }
                // Ends at the latest with all candidates: their sum reaches the share.
                k *= 8;
            }
        } else if !limited {
            candidates.extend(
                (0u32..)
                    .zip(logits.iter().copied())
                    .filter(|(_, logit)| *logit > f32::NEG_INFINITY),
            );
        }
        if params.min_p > 0.0 {
            // p ≥ min_p · p_max, in the logarithm. The largest always passes, as ln(min_p) ≤ 0.
            let least = max + params.min_p.ln();
            candidates.retain(|&(_, logit)| logit >= least);
        }
        if !keeps_order {
            candidates.sort_unstable_by_key(|candidate| candidate.0);
        }
    }

    /// Draws from the softmax of the candidates at the temperature, with the random
    /// number of that position.
    pub(super) fn draw(&mut self, max: f32, position: usize) -> u32 {
        let Self {
            params,
            random,
            candidates,
            weights,
            ..
        } = self;
        let scale = scale(params.temperature);
        weights.clear();
        weights.extend(
            candidates
                .iter()
                .map(|&(_, logit)| weight(logit - max, scale)),
        );
        let mut rest = target(weights.iter().sum(), random.at(position));
        for (&(id, _), &weight) in candidates.iter().zip(&*weights) {
            if rest < weight {
                return id;
            }
            rest -= weight;
        }
        unreachable!(
            "the largest logit has a weight, and {rest} is below the sum of {} candidates",
            weights.len()
        )
    }
}

/// Returns the first logit that is NaN or +∞, with its token. No softmax is defined then.
pub fn not_a_number(logits: &[f32]) -> Option<(usize, f32)> {
    logits
        .iter()
        .copied()
        .enumerate()
        .find(|(_, l)| l.is_nan() || *l == f32::INFINITY)
}

/// Returns the largest logit above −∞, the first on ties.
fn argmax(logits: &[f32]) -> Option<Candidate> {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, &logit) in (0u32..).zip(logits) {
        if logit > best.1 {
            best = (id, logit);
        }
    }
    (best.1 > f32::NEG_INFINITY).then_some(best)
}

/// Orders candidates by descending logit, ties by ascending id.
pub(super) fn descending(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Collects the `k` largest logits above −∞ in descending order, ties by ascending id.
///
/// One pass over the vocabulary compares against the k-th largest so far and occasionally compacts
/// a buffer of 2k: O(n + k log k) in practice. Sorting 155 k logits takes as long as decoding a
/// token on a GPU.
pub(super) fn largest(logits: &[f32], k: usize, out: &mut Vec<Candidate>) {
    out.clear();
    let k = k.min(logits.len());
    let mut least = f32::NEG_INFINITY;
    for (id, &logit) in (0u32..).zip(logits) {
        // On a tie with the k-th the earlier id stays.
        if logit > least {
            // total_cmp orders −0 below +0; as logits they are equal.
            out.push((id, logit + 0.0));
            if out.len() >= 2 * k.max(1) {
                out.select_nth_unstable_by(k - 1, descending);
                out.truncate(k);
                least = out[k - 1].1;
            }
        }
    }
    out.sort_unstable_by(descending);
    out.truncate(k);
}
