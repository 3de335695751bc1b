//! How well a model predicts a text.

use crate::arch::Logits;
use crate::engine::{Engine, Error, Run, WholePool};
use crate::sampling::not_a_number;

/// The likelihood of a text so far.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Likelihood {
    /// Sum of the negative logarithms of the probabilities of the tokens predicted, in nats.
    pub nats: f64,
    /// Tokens predicted.
    pub tokens: usize,
}

impl Likelihood {
    /// Mean negative log-likelihood of a token, in nats.
    pub fn mean(&self) -> f64 {
        self.nats / self.tokens as f64
    }
    /// Its exponential.
    pub fn perplexity(&self) -> f64 {
        self.mean().exp()
    }
}

/// Rows of logits held at a time are at most this many bytes.
const ROWS_BYTES: usize = 64 << 20;

/// Runs `tokens` in windows of `window`, each from an empty cache and each after `bos` if there is one. Every token is
/// predicted from those before it in its window; a window's first token, if nothing stands before it, is not predicted.
/// `progress` is told the tokens run and in all, and the likelihood so far.
///
/// # Errors
/// When a token is not in the vocabulary, a logit is not a number or infinite, or the device fails.
pub fn perplexity(
    engine: &mut Engine,
    tokens: &[u32],
    bos: Option<u32>,
    window: usize,
    progress: &mut dyn FnMut(usize, usize, Likelihood),
) -> Result<Likelihood, Error> {
    engine.check_tokens(tokens)?;
    let pool = WholePool::new(engine);
    let vocabulary = engine.model().vocabulary();
    let piece = (ROWS_BYTES / (4 * vocabulary)).clamp(1, engine.chunk());
    let mut sum = Likelihood::default();
    let mut done = 0;
    for part in tokens.chunks(window.saturating_sub(bos.iter().len()).max(1)) {
        let sequence: Vec<u32> = bos.into_iter().chain(part.iter().copied()).collect();
        // The last token predicts nothing.
        let (mut at, end) = (0, sequence.len() - 1);
        while at < end {
            let n = piece.min(end - at);
            let run = Run { tokens: &sequence[at..at + n], position: at, pages: pool.pages(), contiguous: true };
            let rows = engine.logits(run, Logits::All)?;
            for (i, (row, &next)) in rows.chunks(vocabulary).zip(&sequence[at + 1..]).enumerate() {
                if let Some((token, value)) = not_a_number(row) {
                    return Err(Error::BadLogit { position: at + i, token, value });
                }
                sum.nats += surprise(row, next);
                sum.tokens += 1;
            }
            at += n;
            progress(done + at.min(part.len()), tokens.len(), sum);
        }
        done += part.len();
    }
    Ok(sum)
}

/// −ln softmax(logits)[token], in f64.
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
