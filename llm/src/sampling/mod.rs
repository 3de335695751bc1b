//! From logits to a token.
//!
//! The chain is llama.cpp's: penalties, top-k, top-p, min-p, temperature, draw. Temperature comes *after* truncation
//! (Hugging Face applies it before, so equal settings truncate differently there). The history and the logits determine
//! the token together with the seed; one [`Sampler`] serves one sequence, whatever shares its batch.

mod best;
mod choose;
mod params;
mod rng;
mod stop;
mod wide;

use rustc_hash::FxHashMap;

pub use choose::{BEST, Choice, NUMBERS, function};
pub use params::{SamplingError, SamplingParams};
pub use rng::Rng;
pub use stop::StopMatcher;

/// A token and its logit.
type Candidate = (u32, f32);

/// First guess of how many candidates top-p needs, where top-k does not bound them.
const NUCLEUS: usize = 256;

/// Chooses the tokens of one sequence.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    rng: Rng,
    /// Scratch: the logits after penalties, the candidates, and their weights.
    logits: Vec<f32>,
    candidates: Vec<Candidate>,
    weights: Vec<f64>,
}

impl Sampler {
    /// A sampler at the start of its random stream.
    ///
    /// # Errors
    /// A parameter out of range.
    pub fn new(params: SamplingParams) -> Result<Self, SamplingError> {
        params.validate()?;
        let rng = Rng::new(params.seed);
        Ok(Self { params, rng, logits: Vec::new(), candidates: Vec::new(), weights: Vec::new() })
    }

    /// The parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// How a device can make this choice: not where penalties want to know the history, nor where more than [`BEST`] are cut to
    /// those that have a probability together.
    pub fn choice(&self) -> Option<Choice> {
        let params = &self.params;
        if params.has_penalties() {
            return None;
        }
        match (params.top_k, params.top_p < 1.0) {
            _ if params.temperature <= 0.0 => Some(Choice::Greedy),
            (1..=BEST, _) => Some(Choice::Best),
            (0, false) => Some(Choice::All),
            (0, true) => Some(Choice::Nucleus),
            (_, false) => Some(Choice::First),
            (_, true) => None,
        }
    }

    /// The numbers that it takes, see [`function`].
    pub fn numbers(&self) -> [f32; NUMBERS] {
        let SamplingParams { temperature, top_k, top_p, min_p, .. } = self.params;
        // Of off, a probability that is never reached; of ln 0 and 1/0, what is left when multiplied by 0.
        let top_p = if top_p < 1.0 { top_p } else { 2.0 };
        [temperature.recip().min(f32::MAX), top_k as f32, top_p, min_p.ln().max(f32::MIN)]
    }

    /// The next `n` random numbers, each for one choice, as a device takes them: rounded down.
    pub fn random(&self, n: usize) -> Vec<f32> {
        let mut rng = self.rng.clone();
        (0..n).map(|_| (rng.next_u64() >> 40) as f32 * (1.0 / (1u32 << 24) as f32)).collect()
    }

    /// Counts `n` of them as used.
    pub fn used(&mut self, n: usize) {
        for _ in 0..n {
            self.rng.next_u64();
        }
    }

    /// Chooses a token. `history` is the sequence so far, prompt included, for the penalties. Each call consumes one
    /// random number, greedy ones none. Ties break towards the lower id.
    ///
    /// # Errors
    /// A logit that is NaN or +∞ (before or after the penalties), or no logit above −∞.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, SamplingError> {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.penalise(history);
        if let Some(token) = self.logits.iter().position(|l| l.is_nan() || *l == f32::INFINITY) {
            return Err(SamplingError::BadLogit { token, value: self.logits[token] });
        }
        let none = SamplingError::NoCandidate { logits: logits.len() };
        if self.params.temperature <= 0.0 {
            return argmax(&self.logits).map(|(id, _)| id).ok_or(none);
        }
        let max = argmax(&self.logits).ok_or(none)?.1;
        self.truncate(max);
        Ok(self.draw(max))
    }

    /// CTRL's repetition penalty, then frequency and presence, on the tokens of the recent history.
    fn penalise(&mut self, history: &[u32]) {
        if !self.params.has_penalties() {
            return;
        }
        let recent = &history[history.len().saturating_sub(self.params.penalty_last_n)..];
        let mut counts: FxHashMap<u32, u32> = FxHashMap::default();
        for &id in recent {
            *counts.entry(id).or_insert(0) += 1;
        }
        let params = &self.params;
        for (id, count) in counts {
            // A masked token (−∞) stays masked; ids outside the vocabulary have no logit.
            let Some(logit) = self.logits.get_mut(id as usize).filter(|logit| logit.is_finite()) else { continue };
            *logit = if *logit <= 0.0 { *logit * params.repeat_penalty } else { *logit / params.repeat_penalty };
            *logit -= count as f32 * params.frequency_penalty + params.presence_penalty;
        }
    }

    /// Top-k, top-p and min-p. Each keeps a prefix of the candidates in descending order, so together they keep the
    /// shortest; where only min-p is on, no order is needed and ids ascend.
    fn truncate(&mut self, max: f32) {
        let Self { params, logits, candidates, .. } = self;
        candidates.clear();
        let limited = params.top_k > 0 && params.top_k < logits.len();
        if limited {
            largest(logits, params.top_k, candidates);
        }
        if params.top_p < 1.0 {
            // The probabilities are those among the top-k.
            let total: f64 = match limited {
                true => candidates.iter().map(|&(_, logit)| weight(logit, max, 1.0)).sum(),
                false => logits.iter().map(|&logit| weight(logit, max, 1.0)).sum(),
            };
            let wanted = f64::from(params.top_p) * total;
            let mut k = NUCLEUS;
            loop {
                if !limited {
                    largest(logits, k, candidates);
                }
                let mut sum = 0.0;
                let reached = candidates.iter().position(|&(_, logit)| {
                    sum += weight(logit, max, 1.0);
                    sum >= wanted
                });
                if let Some(last) = reached {
                    candidates.truncate(last + 1);
                    break;
                }
                // Rounding may leave the sum of all just below what is wanted.
                if limited || k >= logits.len() {
                    break;
                }
                k *= 8;
            }
        } else if !limited {
            candidates.extend((0u32..).zip(logits.iter().copied()).filter(|(_, logit)| *logit > f32::NEG_INFINITY));
        }
        if params.min_p > 0.0 {
            // p ≥ min_p · p_max, in the logarithm. The largest always passes, as ln(min_p) ≤ 0.
            let least = max + params.min_p.ln();
            candidates.retain(|&(_, logit)| logit >= least);
        }
    }

    /// Draws from the softmax of the candidates at the temperature.
    fn draw(&mut self, max: f32) -> u32 {
        let Self { params, rng, candidates, weights, .. } = self;
        let temperature = f64::from(params.temperature);
        weights.clear();
        weights.extend(candidates.iter().map(|&(_, logit)| weight(logit, max, temperature)));
        let mut rest = rng.next_f64() * weights.iter().sum::<f64>();
        let mut chosen = 0;
        for (&(id, _), &weight) in candidates.iter().zip(&*weights) {
            if weight > 0.0 {
                chosen = id;
                if rest < weight {
                    break;
                }
            }
            rest -= weight;
        }
        chosen
    }
}

/// Unnormalised probability: 1 for the largest logit.
fn weight(logit: f32, max: f32, temperature: f64) -> f64 {
    ((f64::from(logit) - f64::from(max)) / temperature).exp()
}

/// The largest logit above −∞, the first on ties.
fn argmax(logits: &[f32]) -> Option<Candidate> {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, &logit) in (0u32..).zip(logits) {
        if logit > best.1 {
            best = (id, logit);
        }
    }
    (best.1 > f32::NEG_INFINITY).then_some(best)
}

/// The `k` largest logits above −∞ in descending order, ties by ascending id.
///
/// One pass over the vocabulary that compares against the k-th largest so far and compacts a buffer of 2k now and then:
/// O(n + k log k) in practice, where sorting 155 k logits takes as long as decoding a token on a GPU.
fn largest(logits: &[f32], k: usize, out: &mut Vec<Candidate>) {
    let descending = |a: &Candidate, b: &Candidate| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
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

#[cfg(test)]
mod tests;

#[cfg(test)]
mod device_tests;
