//! Prompts and arrival times, all derived from a seed.

use super::http::Site;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::time::Duration;

/// SplitMix64 pseudo-random generator (Steele et al. 2014).
pub struct WorkloadRng(u64);

impl WorkloadRng {
    pub fn new(seed: u64) -> WorkloadRng {
        WorkloadRng(seed)
    }
    /// Creates the generator of item `nth`. Nearby seeds share no item's generator.
    pub fn nth(seed: u64, nth: usize) -> WorkloadRng {
        WorkloadRng::new(WorkloadRng::new(seed ^ (nth as u64) << 20).next())
    }
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Returns a number from 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
    /// Returns a number below `end`, which must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
    fn choose<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Returns the arrival times of a Poisson process with `rate` requests per second on average.
pub fn arrivals(requests: usize, rate: f64, seed: u64) -> Vec<Duration> {
    let mut random = WorkloadRng::new(seed);
    let mut at = 0.0;
    (0..requests)
        .map(|_| {
            at -= (1.0 - random.unit()).ln() / rate;
            Duration::from_secs_f64(at)
        })
        .collect()
}

/// Words that are single tokens in most vocabularies.
const WORDS: &[&str] = &[
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not", "he",
    "his", "are", "at", "from", "but", "or", "have", "an", "they", "which", "one", "you", "were", "all", "her", "she",
    "there", "would", "their", "we", "him", "been", "has", "when", "who", "will", "no", "more", "if", "out", "so",
    "up", "said", "what", "its", "about", "than", "into", "them", "can", "only", "other", "time",
];

/// Prompts of one length with a shared prefix.
#[derive(Clone, Copy, Debug)]
pub struct Prompts {
    /// Length of each prompt in tokens.
    pub length: usize,
    /// Length of the shared prefix in tokens.
    pub common: usize,
    /// Seed of all words.
    pub seed: u64,
}

impl Prompts {
    fn words(count: usize, mut random: WorkloadRng) -> String {
        let words: Vec<&str> = (0..count).map(|_| *random.choose(WORDS)).collect();
        words.join(" ")
    }
    /// Makes `count` prompts from number `from` on, as token ids of the server. Without
    /// `/tokenize`, prompts are text with one word per token.
    ///
    /// # Errors
    /// If `/tokenize` returns fewer tokens than words.
    pub fn make(&self, site: &Site, from: usize, count: usize) -> Result<Vec<Value>> {
        // A word has at least one token.
        let common = tokens(site, &Prompts::words(self.common.max(1), WorkloadRng::new(self.seed)))?;
        let one = |nth: usize| {
            let own = Prompts::words(self.length.max(1), WorkloadRng::nth(self.seed, nth));
            let Some(common) = &common else {
                let rest: Vec<&str> = own.split(' ').take(self.length - self.common).collect();
                let common = Prompts::words(self.common, WorkloadRng::new(self.seed));
                return Ok(json!([common, rest.join(" ")].join(" ").trim()));
            };
            let own = tokens(site, &own)?.context("it said tokens before")?;
            if common.len() < self.common || own.len() < self.length - self.common {
                bail!("/tokenize makes fewer tokens than words\nhint: is this a server of a language model?");
            }
            Ok(json!([&common[..self.common], &own[..self.length - self.common]].concat()))
        };
        (from..from + count).map(one).collect()
    }
}

/// Tokenises a text; `None` if the server has no `/tokenize`.
fn tokens(site: &Site, text: &str) -> Result<Option<Vec<u64>>> {
    let Ok(said) = site.fetch("/tokenize", Some(&json!({ "content": text }).to_string()), TOKENIZE) else {
        return Ok(None);
    };
    let said: Value = serde_json::from_str(&said).context("/tokenize says no JSON")?;
    let ids = said["tokens"].as_array().context("/tokenize says no tokens")?;
    Ok(Some(ids.iter().map(|id| id.as_u64().context("a token that is no number")).collect::<Result<_>>()?))
}

/// Timeout of `/tokenize`, which may wait for the server's other work.
const TOKENIZE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_rate_that_was_asked_for_and_gaps_that_vary() {
        let times = arrivals(10_000, 50.0, 7);
        let gaps: Vec<f64> = times.windows(2).map(|two| (two[1] - two[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        // Mean and standard deviation of exponential gaps are equal.
        assert!((mean * 50.0 - 1.0).abs() < 0.05 && (deviation * 50.0 - 1.0).abs() < 0.05, "{mean} {deviation}");
        assert_eq!(times, arrivals(10_000, 50.0, 7));
        assert_ne!(times, arrivals(10_000, 50.0, 8));
    }
}
