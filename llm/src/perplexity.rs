//! Perplexity of a model on a text.

use crate::arch::Logits;
use crate::engine::{Engine, Error, TokenRun, WholePool};
use crate::sampling::not_a_number;

/// Accumulated log-likelihood of a text.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Likelihood {
    /// Sum of the negative log-probabilities of the predicted tokens, in nats.
    pub nats: f64,
    /// Number of predicted tokens.
    pub tokens: usize,
}

impl Likelihood {
    /// Returns the mean negative log-likelihood per token, in nats.
    pub fn mean(&self) -> f64 {
        self.nats / self.tokens as f64
    }
    /// Returns the perplexity: `exp` of the mean.
    pub fn perplexity(&self) -> f64 {
        self.mean().exp()
    }
}

/// Maximum bytes of logit rows held at a time.
const MAX_LOGIT_BYTES: usize = 64 << 20;

/// Computes the likelihood of `tokens` in windows of `window`, each with an empty KV cache and
/// starting with `bos` if there is one.
///
/// Every token is predicted from the earlier ones in its window; a window's first token is not
/// predicted if nothing precedes it. `progress` is called with the tokens processed, their total,
/// and the likelihood so far.
///
/// # Errors
/// Returns an error if a token is not in the vocabulary, if a logit is NaN or infinite, or
/// if the device fails.
pub fn perplexity(
    engine: &mut Engine,
    tokens: &[u32],
    bos: Option<u32>,
    window: usize,
    progress: &mut dyn FnMut(usize, usize, Likelihood),
) -> Result<Likelihood, Error> {
    engine.check_tokens(tokens)?;
    let pool = WholePool::new(engine);
    let mut sum = Likelihood::default();
    let mut done = 0;
    for part in tokens.chunks(window.saturating_sub(bos.iter().len()).max(1)) {
        let sequence: Vec<u32> = bos.into_iter().chain(part.iter().copied()).collect();
        add_window(engine, &pool, &sequence, 0, &mut sum, &mut |at, sum| {
            progress(done + at.min(part.len()), tokens.len(), sum);
        })?;
        done += part.len();
    }
    Ok(sum)
}

/// Computes the likelihood of `tokens` as llama.cpp's `llama-perplexity` does, for comparable
/// numbers.
///
/// `tokens` begin with `bos` if there is one, which also replaces the first token of each window.
/// Windows are whole, each with an empty KV cache, and only the tokens of the second half of a
/// window are counted. The rest of the text after the last whole window is left out.
///
/// # Errors
/// The errors of [`perplexity`].
pub fn perplexity_of_halves(
    engine: &mut Engine,
    tokens: &[u32],
    bos: Option<u32>,
    window: usize,
    progress: &mut dyn FnMut(usize, usize, Likelihood),
) -> Result<Likelihood, Error> {
    engine.check_tokens(tokens)?;
    let pool = WholePool::new(engine);
    let mut sum = Likelihood::default();
    for (i, part) in tokens.chunks_exact(window.max(1)).enumerate() {
        let mut sequence = part.to_vec();
        if let Some(bos) = bos {
            sequence[0] = bos;
        }
        let first = window / 2;
        add_window(engine, &pool, &sequence, first, &mut sum, &mut |at, sum| {
            progress(i * window + at, tokens.len(), sum);
        })?;
    }
    Ok(sum)
}

/// Adds the likelihood of a window's tokens after position `first` to `sum`; `progress` is called
/// with the tokens processed.
fn add_window(
    engine: &mut Engine,
    pool: &WholePool,
    sequence: &[u32],
    first: usize,
    sum: &mut Likelihood,
    progress: &mut dyn FnMut(usize, Likelihood),
) -> Result<(), Error> {
    let vocabulary = engine.model().vocabulary();
    let piece = (MAX_LOGIT_BYTES / (4 * vocabulary)).clamp(1, engine.chunk());
    // The last token predicts nothing.
    let (mut at, end) = (0, sequence.len() - 1);
    while at < end {
        let n = piece.min(end - at);
        let run = TokenRun {
            tokens: &sequence[at..at + n],
            position: at,
            pages: pool.pages(),
            contiguous: true,
        };
        let rows = engine.logits(run, Logits::All)?;
        for (i, (row, &next)) in rows.chunks(vocabulary).zip(&sequence[at + 1..]).enumerate() {
            if let Some((token, value)) = not_a_number(row) {
                return Err(Error::BadLogit {
                    position: at + i,
                    token,
                    value,
                });
            }
            if at + i >= first {
                sum.nats += surprise(row, next);
                sum.tokens += 1;
            }
        }
        at += n;
        progress(at, *sum);
    }
    Ok(())
}

/// Returns −ln softmax(logits)[token], in f64.
fn surprise(logits: &[f32], token: u32) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let sum: f64 = logits.iter().map(|&l| (l as f64 - most).exp()).sum();
    most + sum.ln() - logits[token as usize] as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surprise_is_the_negative_logarithm_of_the_probability() {
        assert!((surprise(&[1000.0; 4], 2) - 4f64.ln()).abs() < 1e-12);
        assert!((surprise(&[0.0, 3f32.ln()], 1) - (4f64 / 3.0).ln()).abs() < 1e-6);
    }
}
