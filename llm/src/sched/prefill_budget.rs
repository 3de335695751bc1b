//! Size of prefill chunks while sequences decode, adapted to a limit on inter-token latency.

use super::reuse::BLOCK;
use std::time::Duration;

/// Limit of the time between two tokens of an answer while a prompt is prefilled. The target is 60
/// ms at the 99th percentile, with 5 ms for scheduling and the network: 55 ms steps gave gaps of 54
/// ms at the 90th percentile on an H100 (docs/experiments/100).
const MAX_TOKEN_INTERVAL: Duration = Duration::from_millis(55);
/// Tokens of the first chunk, before any step was timed.
const INITIAL_CHUNK: usize = 128;
/// Fewer tokens take as long, since all weights are read anyway.
const MIN_CHUNK: usize = BLOCK;

/// Adapts the chunk size from measured steps.
#[derive(Clone, Copy, Debug)]
pub struct PrefillBudget {
    tokens: usize,
    max_tokens: usize,
    /// Duration of the last step with decode rows alone.
    decode_time: Duration,
}

impl PrefillBudget {
    /// Creates a budget for chunks of at most `most` tokens.
    pub fn new(most: usize) -> PrefillBudget {
        PrefillBudget {
            tokens: INITIAL_CHUNK.min(most),
            max_tokens: most,
            decode_time: Duration::ZERO,
        }
    }
    /// Returns the maximum tokens of the next chunk.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
    /// Records a chunk of `tokens` tokens that took `chunk`, and a separate decode step that took
    /// `step`. If decode steps take more than half of the limit, a chunk may take as long as one,
    /// which halves the decode speed.
    pub fn record_chunk(&mut self, tokens: usize, chunk: Duration, step: Duration) {
        self.decode_time = step;
        self.adapt(
            tokens,
            chunk,
            MAX_TOKEN_INTERVAL.saturating_sub(step).max(step),
        );
    }
    /// Records the duration of a decode step alone.
    pub fn record_decode(&mut self, step: Duration) {
        self.decode_time = step;
    }
    /// Records the duration of a mixed batch with a chunk of `tokens` tokens. It may take as long
    /// as chunk and decode step in sequence.
    pub fn record_mixed(&mut self, tokens: usize, both: Duration) {
        self.adapt(tokens, both, MAX_TOKEN_INTERVAL.max(2 * self.decode_time));
    }
    fn adapt(&mut self, tokens: usize, took: Duration, may: Duration) {
        // The remainder of a prompt does not predict the time of a whole chunk.
        if tokens < self.tokens {
            return;
        }
        let share = may.as_secs_f64() / took.as_secs_f64().max(1e-6);
        // Change by at most a factor of two: a step may have been
        // interrupted, or included compilation.
        let wanted = (tokens as f64 * share.clamp(0.5, 2.0)) as usize / BLOCK * BLOCK;
        self.tokens = wanted
            .clamp(MIN_CHUNK, self.max_tokens.max(MIN_CHUNK))
            .min(self.max_tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the settled chunk size and its duration, if a chunk takes `fixed`
    /// plus `each` per token.
    fn settled(fixed: f64, each: f64, step: f64) -> (usize, f64) {
        let mut pace = PrefillBudget::new(512);
        let time = |tokens: usize| fixed + each * tokens as f64;
        for _ in 0..20 {
            let tokens = pace.tokens();
            pace.record_chunk(
                tokens,
                Duration::from_secs_f64(time(tokens)),
                Duration::from_secs_f64(step),
            );
            // The end of a prompt.
            pace.record_chunk(
                7,
                Duration::from_secs_f64(time(7)),
                Duration::from_secs_f64(step),
            );
        }
        (pace.tokens(), time(pace.tokens()))
    }

    #[test]
    fn a_step_of_both_takes_no_longer_than_one_after_the_other_may() {
        // A mixed batch takes 10 ms plus 0.25 ms for each token, decode steps take 20 ms; the
        // limit is 55 ms.
        let mut pace = PrefillBudget::new(512);
        let time = |tokens: usize| 0.01 + 0.000_25 * tokens as f64;
        for _ in 0..20 {
            let tokens = pace.tokens();
            pace.record_decode(Duration::from_millis(20));
            pace.record_mixed(tokens, Duration::from_secs_f64(time(tokens)));
        }
        assert!(
            (0.04..=0.055).contains(&time(pace.tokens())),
            "{} tokens",
            pace.tokens()
        );
    }

    #[test]
    fn pieces_take_as_long_as_readers_may_wait() {
        // Fast devices run maximal chunks, slower ones as many tokens as the limit allows, and very
        // slow ones chunks that take as long as a decode step.
        assert_eq!(settled(0.002, 0.000_05, 0.01).0, 512);
        let (tokens, time) = settled(0.01, 0.000_1, 0.02);
        assert!(
            time + 0.02 <= 0.055 && tokens >= 128,
            "{tokens} tokens in {time} s"
        );
        let (tokens, time) = settled(0.1, 0.005, 0.5);
        assert!(time <= 0.5 && tokens >= 64, "{tokens} tokens in {time} s");
        assert_eq!(settled(0.5, 0.01, 0.1).0, MIN_CHUNK);
        assert_eq!(PrefillBudget::new(8).tokens(), 8);
    }
}
