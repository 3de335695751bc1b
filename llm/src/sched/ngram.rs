//! Drafts of a sequence's next tokens: those that followed its last tokens where they occurred
//! before, in the prompt or in the answer.

use rustc_hash::{FxHashMap, FxHasher};
use std::hash::Hasher;

/// Last tokens that must have occurred before.
const SHORTEST_MATCH: usize = 6;
/// Last tokens by which one of several occurrences is chosen.
const LONGEST_MATCH: usize = 24;
/// Occurrences of an n-gram that are kept, the latest ones.
const KEPT: usize = 8;
/// Most tokens of a draft.
pub const MAX_DRAFTS: usize = 16;

/// Positions behind the latest occurrences of an n-gram, as a ring.
#[derive(Clone, Copy, Debug, Default)]
struct Occurrences {
    ends: [u32; KEPT],
    count: usize,
}

/// A draft, and the number of tokens before it that occurred before, at most [`LONGEST_MATCH`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Draft {
    /// The next tokens, at most [`MAX_DRAFTS`].
    pub tokens: Vec<u32>,
    /// Length of the match.
    pub matched: usize,
}

/// Occurrences of the n-grams of a sequence, extended as it grows.
#[derive(Debug, Default)]
pub struct NgramIndex {
    occurrences: FxHashMap<u64, Occurrences>,
    /// Tokens before which all n-grams are in the index.
    indexed: usize,
}

fn key(tokens: &[u32]) -> u64 {
    let mut hasher = FxHasher::default();
    tokens.iter().for_each(|&token| hasher.write_u32(token));
    hasher.finish()
}

impl NgramIndex {
    /// Adds the n-grams before tokens that are new since the last call.
    pub fn extend(&mut self, tokens: &[u32]) {
        for end in self.indexed.max(SHORTEST_MATCH)..tokens.len() {
            let of = self
                .occurrences
                .entry(key(&tokens[end - SHORTEST_MATCH..end]))
                .or_default();
            of.ends[of.count % KEPT] = end as u32;
            of.count += 1;
        }
        self.indexed = self.indexed.max(tokens.len());
    }
    /// Returns the tokens that followed the longest match of the last tokens, the latest of
    /// several. A match that reaches to the end continues with its own draft.
    pub fn find(&self, tokens: &[u32]) -> Option<Draft> {
        let begin = tokens.len().checked_sub(SHORTEST_MATCH)?;
        let of = self.occurrences.get(&key(&tokens[begin..]))?;
        let ends = &of.ends[..of.count.min(KEPT)];
        let matched = |end: usize| {
            let (own, other) = (tokens.iter().rev(), tokens[..end].iter().rev());
            let same = own.zip(other).take_while(|(a, b)| a == b);
            same.take(LONGEST_MATCH).count()
        };
        let all = ends
            .iter()
            .map(|&end| (matched(end as usize), end as usize));
        let (matched, end) = all.max().filter(|best| best.0 >= SHORTEST_MATCH)?;
        let mut drafts: Vec<u32> = Vec::with_capacity(MAX_DRAFTS);
        for at in end..end + MAX_DRAFTS {
            let token = tokens.get(at).or_else(|| drafts.get(at - tokens.len()));
            drafts.extend(token.copied());
        }
        Some(Draft {
            tokens: drafts,
            matched,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(tokens: &[u32]) -> Option<Draft> {
        // In pieces, as a sequence grows.
        let mut index = NgramIndex::default();
        for end in 0..=tokens.len() {
            index.extend(&tokens[..end]);
        }
        let mut whole = NgramIndex::default();
        whole.extend(tokens);
        assert_eq!(index.find(tokens), whole.find(tokens));
        index.find(tokens)
    }

    #[test]
    fn the_longest_match_wins_and_then_the_latest() {
        let text: Vec<u32> = (1..=10).collect();
        let others = [100, 101];
        // The same seven tokens after another beginning, with another continuation.
        let other: Vec<u32> = [55].into_iter().chain(4..=10).chain([200, 201]).collect();
        let all = |last: &[u32]| [&text[..], &others, &other, last].concat();
        let long = draft(&all(&text)).expect("a match");
        assert_eq!(long.matched, 10);
        assert_eq!(long.tokens[..2], others);
        let short = draft(&all(&[77, 5, 6, 7, 8, 9, 10])).expect("a match");
        assert_eq!((short.matched, &short.tokens[..2]), (6, &[200, 201][..]));
        assert_eq!(draft(&all(&[77, 6, 7, 8, 9, 10])), None, "five tokens");
        assert_eq!(draft(&[]), None);
    }

    #[test]
    fn a_repetition_continues_beyond_its_end() {
        let tokens: Vec<u32> = (0..9).map(|i| i % 3).collect();
        let found = draft(&tokens).expect("a match");
        let expected: Vec<u32> = (9..9 + MAX_DRAFTS as u32).map(|i| i % 3).collect();
        assert_eq!(found.tokens, expected);
    }

    #[test]
    fn many_occurrences_keep_the_latest() {
        let mut tokens = Vec::new();
        for i in 0..100 {
            tokens.extend([1, 2, 3, 4, 5, 6, 1000 + i]);
        }
        tokens.extend([1, 2, 3, 4, 5, 6]);
        assert_eq!(draft(&tokens).expect("a match").tokens[0], 1099);
    }
}
