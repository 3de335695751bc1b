//! Merging by score, as in SentencePiece's BPE vocabularies.
//!
//! Adjacent pieces whose joined text is a token are candidates; the pair with the highest token
//! score is joined first, the leftmost on ties. Token texts represent spaces by U+2581; characters
//! without a token are encoded as byte tokens.

use super::bytes::SPACE;
use super::vocab::Vocabulary;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No neighbour, or no token.
const NO_TOKEN: u32 = u32::MAX;

/// Scores and byte tokens of a vocabulary.
#[derive(Debug)]
pub(super) struct Scores {
    scores: Vec<f32>,
    /// Token of each byte, or [`NO_TOKEN`].
    bytes: Box<[u32; 256]>,
    /// Adds a space before text at the start and after a special token.
    pub space_prefix: bool,
}

/// A candidate pair of adjacent pieces, ordered by score, then from the left.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    score: i32,
    left: Reverse<u32>,
    /// Bytes of the joined text. A different sum later means that one half has changed.
    bytes: usize,
}

/// A piece in the list, at the index of its first character.
struct Piece {
    start: usize,
    end: usize,
    prev: u32,
    next: u32,
}

/// Maps a score to an integer with the same order.
fn ordered(score: f32) -> i32 {
    let bits = score.to_bits() as i32;
    bits ^ (((bits >> 31) as u32) >> 1) as i32
}

impl Scores {
    /// Creates the table from one score per token.
    pub(super) fn new(scores: Vec<f32>, vocabulary: &Vocabulary, space_prefix: bool) -> Scores {
        Scores {
            scores,
            bytes: vocabulary.named_bytes(),
            space_prefix,
        }
    }

    /// Appends the ids of a text; `first` at the start of the text and after a special token.
    ///
    /// A byte without a token becomes `unknown`, or is dropped if there is none.
    pub(super) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        first: bool,
        unknown: Option<u32>,
        out: &mut Vec<u32>,
    ) {
        if text.is_empty() {
            return;
        }
        let prefix = if first && self.space_prefix {
            SPACE
        } else {
            ""
        };
        let text = prefix.to_owned() + &text.replace(' ', SPACE);
        let pieces = self.merge(vocabulary, &text);
        let mut at = 0;
        while let Some(piece) = pieces.get(at as usize) {
            match vocabulary.mergeable(&text.as_bytes()[piece.start..piece.end]) {
                Some(id) => out.push(id),
                None => {
                    let bytes = text[piece.start..piece.end].bytes();
                    let ids = bytes.map(|byte| self.bytes[usize::from(byte)]);
                    out.extend(
                        ids.filter_map(|id| if id == NO_TOKEN { unknown } else { Some(id) }),
                    );
                }
            }
            at = piece.next;
        }
    }

    fn merge(&self, vocabulary: &Vocabulary, text: &str) -> Vec<Piece> {
        let ends = text
            .char_indices()
            .skip(1)
            .map(|(at, _)| at)
            .chain([text.len()]);
        let mut pieces: Vec<Piece> = text
            .char_indices()
            .zip(ends)
            .zip(0u32..)
            .map(|(((start, _), end), i)| Piece {
                start,
                end,
                prev: i.wrapping_sub(1),
                next: i + 1,
            })
            .collect();
        if let Some(last) = pieces.last_mut() {
            last.next = NO_TOKEN;
        }
        let mut heap = BinaryHeap::new();
        for left in 0..pieces.len() as u32 {
            self.rate(vocabulary, text, &pieces, left, &mut heap);
        }
        while let Some(Pair {
            left: Reverse(left),
            bytes,
            ..
        }) = heap.pop()
        {
            let (start, right) = (pieces[left as usize].start, pieces[left as usize].next);
            // A piece that was joined to its left neighbour is empty.
            let gone = pieces[left as usize].end == start || right == NO_TOKEN;
            if gone || pieces[right as usize].end - start != bytes {
                continue;
            }
            let (end, after) = (pieces[right as usize].end, pieces[right as usize].next);
            pieces[right as usize].end = pieces[right as usize].start;
            (pieces[left as usize].end, pieces[left as usize].next) = (end, after);
            if after != NO_TOKEN {
                pieces[after as usize].prev = left;
            }
            for changed in [pieces[left as usize].prev, left] {
                if changed != NO_TOKEN {
                    self.rate(vocabulary, text, &pieces, changed, &mut heap);
                }
            }
        }
        pieces
    }

    /// Queues the pair that begins at `left`, if its joined text is a token.
    fn rate(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        pieces: &[Piece],
        left: u32,
        heap: &mut BinaryHeap<Pair>,
    ) {
        let piece = &pieces[left as usize];
        let Some(right) = pieces.get(piece.next as usize) else {
            return;
        };
        let Some(id) = vocabulary.mergeable(&text.as_bytes()[piece.start..right.end]) else {
            return;
        };
        let score = self.scores.get(id as usize).copied().unwrap_or(0.0);
        heap.push(Pair {
            score: ordered(score),
            left: Reverse(left),
            bytes: right.end - piece.start,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_keep_their_order() {
        let scores = [
            f32::NEG_INFINITY,
            -1e9,
            -2.5,
            -1.0,
            -0.0,
            0.0,
            1.0,
            7.5,
            f32::INFINITY,
        ];
        assert!(
            scores
                .windows(2)
                .all(|pair| ordered(pair[0]) < ordered(pair[1]))
        );
    }
}
