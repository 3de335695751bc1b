//! How many tokens a piece of a prompt has while answers wait for it: as many as are run in the time that whoever reads them may wait.

use super::reuse::BLOCK;
use std::time::Duration;

/// How long the next token of an answer may take while a prompt is run beside it: text that comes every twentieth of a second seems to flow. Of the 60 ms that are meant at the 99th percentile 5 are left
/// for scheduling and the network: on an H100 steps of 55 gave gaps of 54 ms at the 90th (docs/experiments.md, 100).
const MAX_TOKEN_INTERVAL: Duration = Duration::from_millis(55);
/// Tokens of the first piece, before any was timed.
const INITIAL_CHUNK: usize = 128;
/// Fewer tokens take as long: the weights are read for them all the same.
const MIN_CHUNK: usize = BLOCK;

/// What pieces beside answers have taken.
#[derive(Clone, Copy, Debug)]
pub struct PrefillBudget {
    tokens: usize,
    max_tokens: usize,
    /// What the last step of answers alone took.
    decode_time: Duration,
}

impl PrefillBudget {
    /// For pieces of at most so many tokens.
    pub fn new(most: usize) -> PrefillBudget {
        PrefillBudget { tokens: INITIAL_CHUNK.min(most), max_tokens: most, decode_time: Duration::ZERO }
    }
    /// Most tokens of the next piece.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
    /// A piece of so many tokens took `piece`, and the step of the answers beside it `step`. Where that alone takes more than half of the time that they have, answers may stand still for as long as it: they
    /// go on at half their speed then.
    pub fn record_chunk(&mut self, tokens: usize, piece: Duration, step: Duration) {
        self.decode_time = step;
        self.adapt(tokens, piece, MAX_TOKEN_INTERVAL.saturating_sub(step).max(step));
    }
    /// A step of answers alone took that.
    pub fn record_decode(&mut self, step: Duration) {
        self.decode_time = step;
    }
    /// A piece of so many tokens and the answers beside it took that in one step: as long as both together may take.
    pub fn record_mixed(&mut self, tokens: usize, both: Duration) {
        self.adapt(tokens, both, MAX_TOKEN_INTERVAL.max(2 * self.decode_time));
    }
    fn adapt(&mut self, tokens: usize, took: Duration, may: Duration) {
        // What is left of a prompt says little about a whole piece.
        if tokens < self.tokens {
            return;
        }
        let share = may.as_secs_f64() / took.as_secs_f64().max(1e-6);
        // By half or twice at most: one that was interrupted, or compiled first, says little either.
        let wanted = (tokens as f64 * share.clamp(0.5, 2.0)) as usize / BLOCK * BLOCK;
        self.tokens = wanted.clamp(MIN_CHUNK, self.max_tokens.max(MIN_CHUNK)).min(self.max_tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What pieces come to where one takes `fixed` and so much for each token.
    fn settled(fixed: f64, each: f64, step: f64) -> (usize, f64) {
        let mut pace = PrefillBudget::new(512);
        let time = |tokens: usize| fixed + each * tokens as f64;
        for _ in 0..20 {
            let tokens = pace.tokens();
            pace.record_chunk(tokens, Duration::from_secs_f64(time(tokens)), Duration::from_secs_f64(step));
            // The end of a prompt.
            pace.record_chunk(7, Duration::from_secs_f64(time(7)), Duration::from_secs_f64(step));
        }
        (pace.tokens(), time(pace.tokens()))
    }

    #[test]
    fn a_step_of_both_takes_no_longer_than_one_after_the_other_may() {
        // 10 ms and 0.25 ms for each token; answers alone take 20 ms: 55 ms in all.
        let mut pace = PrefillBudget::new(512);
        let time = |tokens: usize| 0.01 + 0.000_25 * tokens as f64;
        for _ in 0..20 {
            let tokens = pace.tokens();
            pace.record_decode(Duration::from_millis(20));
            pace.record_mixed(tokens, Duration::from_secs_f64(time(tokens)));
        }
        assert!((0.04..=0.055).contains(&time(pace.tokens())), "{} tokens", pace.tokens());
    }

    #[test]
    fn pieces_take_as_long_as_readers_may_wait() {
        // Fast devices run whole pieces, slower ones as many tokens as there is time for, and slow ones as many as a step of their answers takes.
        assert_eq!(settled(0.002, 0.000_05, 0.01).0, 512);
        let (tokens, time) = settled(0.01, 0.000_1, 0.02);
        assert!(time + 0.02 <= 0.055 && tokens >= 128, "{tokens} tokens in {time} s");
        let (tokens, time) = settled(0.1, 0.005, 0.5);
        assert!(time <= 0.5 && tokens >= 64, "{tokens} tokens in {time} s");
        assert_eq!(settled(0.5, 0.01, 0.1).0, MIN_CHUNK);
        assert_eq!(PrefillBudget::new(8).tokens(), 8);
    }
}
