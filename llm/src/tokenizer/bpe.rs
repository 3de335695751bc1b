//! Byte-pair merging: a binary heap of candidate pairs over a linked list of symbols.
//!
//! Symbols are bytes or characters. Sennrich et al. 2016, applied at inference: repeatedly merge
//! the adjacent pair of lowest rank, leftmost on ties. The heap holds `(rank, position)` and is
//! invalidated lazily, so a piece of `n` bytes costs O(n log n). Rescanning after each merge would
//! be quadratic, a denial of service with one long run without spaces.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foldhash::HashMap;

/// No symbol, no rank, or no neighbour.
const NO_TOKEN: u32 = u32::MAX;

/// Maximum bytes of a piece, because positions have 32 bits. Longer pieces are split; no
/// token is as long.
const MAX_PIECE: usize = 1 << 30;

/// Merge table over symbols. A symbol below `n_tokens` is the token of that id; other symbols are
/// intermediate texts of merges that are not tokens.
#[derive(Debug)]
pub(super) struct Merges {
    /// Maps `(left << 32) | right` to `(rank, merged symbol)`.
    pairs: HashMap<u64, (u32, u32)>,
    /// Symbol of each single byte, or [`NO_TOKEN`].
    alphabet: Box<[u32; 256]>,
    /// Symbol of each character, if characters are merged. A character without a symbol
    /// is encoded as bytes.
    characters: Option<HashMap<char, u32>>,
    n_tokens: u32,
}

/// Buffers reused between pieces.
#[derive(Default)]
pub(super) struct Scratch {
    nodes: Vec<Node>,
    heap: BinaryHeap<Reverse<u64>>,
}

/// One symbol in the list, at the index of its first byte. With characters, nodes at other bytes
/// are not in the list.
struct Node {
    symbol: u32,
    prev: u32,
    next: u32,
    /// Rank of the pair (this, next); a heap entry with another rank is stale.
    rank: u32,
}

impl Merges {
    pub(super) fn new(
        pairs: HashMap<u64, (u32, u32)>,
        alphabet: Box<[u32; 256]>,
        characters: Option<HashMap<char, u32>>,
        n_tokens: u32,
    ) -> Self {
        Self {
            pairs,
            alphabet,
            characters,
            n_tokens,
        }
    }

    /// Returns the key of a pair in the table.
    pub(super) fn key(left: u32, right: u32) -> u64 {
        u64::from(left) << 32 | u64::from(right)
    }

    /// Appends the ids of `piece`. A byte without a token becomes `unknown`, or is dropped
    /// if there is none.
    pub(super) fn encode(
        &self,
        piece: &[u8],
        unknown: Option<u32>,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        for chunk in piece.chunks(MAX_PIECE) {
            self.merge(chunk, scratch);
            let mut at = 0;
            while let Some(node) = scratch.nodes.get(at) {
                let end = if node.next == NO_TOKEN {
                    chunk.len()
                } else {
                    node.next as usize
                };
                if node.symbol < self.n_tokens {
                    out.push(node.symbol);
                } else {
                    let ids = chunk[at..end]
                        .iter()
                        .map(|&byte| self.alphabet[usize::from(byte)]);
                    out.extend(ids.filter_map(|id| {
                        if id < self.n_tokens {
                            Some(id)
                        } else {
                            unknown
                        }
                    }));
                }
                at = end;
            }
        }
    }

    /// Builds the list of a piece before any merge.
    fn list(&self, piece: &[u8], nodes: &mut Vec<Node>) {
        nodes.clear();
        let after = |end: usize| {
            if end < piece.len() {
                end as u32
            } else {
                NO_TOKEN
            }
        };
        let Some(characters) = &self.characters else {
            nodes.extend(piece.iter().enumerate().map(|(i, &byte)| Node {
                symbol: self.alphabet[usize::from(byte)],
                prev: (i as u32).wrapping_sub(1),
                next: after(i + 1),
                rank: NO_TOKEN,
            }));
            return;
        };
        let mut prev = NO_TOKEN;
        let mut push = |symbol: Option<u32>, bytes: usize| {
            let at = nodes.len();
            let symbol = symbol.unwrap_or(NO_TOKEN);
            nodes.push(Node {
                symbol,
                prev,
                next: after(at + bytes),
                rank: NO_TOKEN,
            });
            nodes.extend((1..bytes).map(|_| Node {
                symbol: NO_TOKEN,
                prev: NO_TOKEN,
                next: NO_TOKEN,
                rank: NO_TOKEN,
            }));
            prev = at as u32;
        };
        for chunk in piece.utf8_chunks() {
            chunk
                .valid()
                .chars()
                .for_each(|c| push(characters.get(&c).copied(), c.len_utf8()));
            // A piece split for its length may begin and end within a character.
            chunk.invalid().iter().for_each(|_| push(None, 1));
        }
    }

    fn merge(&self, piece: &[u8], Scratch { nodes, heap }: &mut Scratch) {
        self.list(piece, nodes);
        let mut entries = std::mem::take(heap).into_vec();
        entries.clear();
        for at in 0..nodes.len() {
            let Some(right) = nodes.get(nodes[at].next as usize) else {
                continue;
            };
            if let Some(&(rank, _)) = self.pairs.get(&Self::key(nodes[at].symbol, right.symbol)) {
                nodes[at].rank = rank;
                entries.push(Reverse(Self::key(rank, at as u32)));
            }
        }
        *heap = BinaryHeap::from(entries);
        while let Some(Reverse(entry)) = heap.pop() {
            let (rank, at) = ((entry >> 32) as u32, entry as u32 as usize);
            if nodes[at].rank != rank {
                continue;
            }
            let right = nodes[at].next as usize;
            let Some(&(_, merged)) = self
                .pairs
                .get(&Self::key(nodes[at].symbol, nodes[right].symbol))
            else {
                continue;
            };
            let after = nodes[right].next;
            nodes[at].symbol = merged;
            nodes[at].next = after;
            nodes[right].rank = NO_TOKEN;
            if after != NO_TOKEN {
                nodes[after as usize].prev = at as u32;
            }
            for left in [nodes[at].prev, at as u32] {
                if left != NO_TOKEN {
                    self.rate(nodes, heap, left as usize);
                }
            }
        }
    }

    /// Computes the rank of the pair that begins at `at` and queues it.
    fn rate(&self, nodes: &mut [Node], heap: &mut BinaryHeap<Reverse<u64>>, at: usize) {
        nodes[at].rank = NO_TOKEN;
        let Some(right) = nodes.get(nodes[at].next as usize) else {
            return;
        };
        if let Some(&(rank, _)) = self.pairs.get(&Self::key(nodes[at].symbol, right.symbol)) {
            nodes[at].rank = rank;
            heap.push(Reverse(Self::key(rank, at as u32)));
        }
    }
}
