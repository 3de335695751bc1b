//! Prefixes that were computed before: rows of the cache, and states behind some of them, kept on the host in blocks of tokens.
//!
//! A block is found by its tokens and the block before it, so sequences with the same beginning share it, whichever
//! conversation computed it first. What has not been used for longest leaves when room is needed, ends before beginnings.
//!
//! Rows of one token may differ in their last bits, by the kind of step that computed them. Those of a prompt are computed so that
//! they depend on the tokens alone ([`Engine::forward_chunks`](crate::engine::Engine::forward_chunks)): they are *exact*, and
//! reusing them changes nothing. Those of an answer are not, and who wants the same text for the same seed leaves them alone.

use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;

/// Tokens of a block.
pub const BLOCK: usize = 32;

/// Which rows of earlier sequences may stand for computing them again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reuse {
    /// Only those that are what computing them again would give, to the bit.
    Exact,
    /// All.
    Any,
}

type Id = u64;

/// What comes before a first block.
const START: Id = 0;

/// What a block is found by.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Key {
    before: Id,
    exact: bool,
    tokens: [u32; BLOCK],
}

#[derive(Debug)]
struct Block {
    key: Key,
    rows: Vec<u8>,
    /// Of layers that keep a window; empty where they were gone already.
    window: Vec<u8>,
    /// What the model's states were behind it; empty if that is not known.
    states: Vec<u8>,
    /// When it was last used; no two were at the same time.
    used: u64,
}

/// A block that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    id: Id,
    /// Is it, and all before it, exact?
    pub exact: bool,
}

/// What must be there behind a sequence that is gone on with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// The model's states.
    pub states: bool,
    /// Rows of so many positions, of layers that keep a window.
    pub window: Option<usize>,
}

impl Needs {
    /// The first block whose window is read where `blocks` of them are gone on with.
    pub fn first(&self, blocks: usize) -> usize {
        self.window.map_or(blocks, |window| (blocks * BLOCK).saturating_sub(window) / BLOCK)
    }
}

/// The blocks that are kept.
#[derive(Debug)]
pub struct Prefixes {
    blocks: FxHashMap<Id, Block>,
    by_key: FxHashMap<Key, Id>,
    by_use: BTreeMap<u64, Id>,
    bytes: usize,
    most: usize,
    clock: u64,
    last: Id,
}

impl Prefixes {
    /// None yet, and never more than that many bytes of rows.
    pub fn new(most: usize) -> Prefixes {
        let (blocks, by_key, by_use) = Default::default();
        Prefixes { blocks, by_key, by_use, bytes: 0, most, clock: 0, last: START }
    }
    /// None, and the same bound.
    pub fn emptied(&self) -> Prefixes {
        Prefixes::new(self.most)
    }
    /// Bytes of rows that are kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
    /// The blocks that these tokens begin with, as far as they are known one after the other.
    pub fn find(&mut self, tokens: &[u32], reuse: Reuse) -> Vec<Found> {
        let mut found: Vec<Found> = Vec::new();
        for tokens in tokens.as_chunks::<BLOCK>().0 {
            let last = found.last().copied().unwrap_or(Found { id: START, exact: true });
            let look = |exact| self.by_key.get(&Key { before: last.id, exact, tokens: *tokens }).copied();
            let exact = if last.exact { look(true) } else { None };
            let id = exact.or_else(|| if reuse == Reuse::Any { look(false) } else { None });
            let Some(id) = id else { break };
            found.push(Found { id, exact: exact.is_some() });
        }
        self.touch(&found);
        found
    }
    /// The same, up to the last of them behind which all is known that is needed.
    pub fn find_with(&mut self, tokens: &[u32], reuse: Reuse, needs: &Needs) -> Vec<Found> {
        let mut found = self.find(tokens, reuse);
        // Since which block windows are known, without a gap.
        let mut since = 0;
        let mut ends = 0;
        for (i, link) in found.iter().enumerate() {
            if needs.window.is_some() && self.window(*link).is_empty() {
                since = i + 1;
            }
            let states = !needs.states || !self.states(*link).is_empty();
            if states && since <= needs.first(i + 1) {
                ends = i + 1;
            }
        }
        found.truncate(ends);
        found
    }
    /// Keeps what `read` gives of these positions of layers that keep a window, from position `first` on, of blocks that are kept and lack it; of these tokens the
    /// first `exact` are exact.
    ///
    /// # Errors
    /// When `read` does; what was read before is kept.
    pub fn keep_window<E>(
        &mut self,
        tokens: &[u32],
        exact: usize,
        first: usize,
        read: &mut dyn FnMut(Range<usize>) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        let chain = self.chain(tokens, exact);
        for (i, link) in chain.iter().enumerate().skip(first.div_ceil(BLOCK)) {
            if !self.window(*link).is_empty() {
                continue;
            }
            let window = read(i * BLOCK..(i + 1) * BLOCK)?;
            if self.bytes + window.len() > self.most && !self.evict(window.len(), &chain) {
                break;
            }
            if let Some(block) = self.blocks.get_mut(&link.id) {
                self.bytes += window.len();
                block.window = window;
            }
        }
        Ok(())
    }
    /// The blocks of these tokens, of which the first `exact` are exact, as far as they are kept.
    fn chain(&self, tokens: &[u32], exact: usize) -> Vec<Found> {
        let mut chain: Vec<Found> = Vec::new();
        for (i, tokens) in tokens.as_chunks::<BLOCK>().0.iter().enumerate() {
            let (before, exact) = (chain.last().map_or(START, |last| last.id), (i + 1) * BLOCK <= exact);
            let Some(&id) = self.by_key.get(&Key { before, exact, tokens: *tokens }) else { break };
            chain.push(Found { id, exact });
        }
        chain
    }
    /// Keeps the states behind these tokens, of which the first `exact` are exact, if they are blocks that are kept.
    pub fn keep_states(&mut self, tokens: &[u32], exact: usize, states: &[u8]) {
        let chain = self.chain(tokens, exact);
        let whole = chain.len() * BLOCK == tokens.len();
        let Some(last) = chain.last().filter(|last| whole && self.states(**last).is_empty()) else { return };
        let id = last.id;
        if (self.bytes + states.len() <= self.most || self.evict(states.len(), &chain))
            && let Some(block) = self.blocks.get_mut(&id)
        {
            self.bytes += states.len();
            block.states = states.to_vec();
        }
    }
    /// The states behind a block that was just found; empty if they are not known.
    pub fn states(&self, found: Found) -> &[u8] {
        &self.block(found).states
    }
    /// The rows of a block that was just found.
    pub fn rows(&self, found: Found) -> &[u8] {
        &self.block(found).rows
    }
    /// Those of layers that keep a window; empty if they are not known.
    pub fn window(&self, found: Found) -> &[u8] {
        &self.block(found).window
    }
    fn block(&self, found: Found) -> &Block {
        match self.blocks.get(&found.id) {
            Some(block) => block,
            None => unreachable!("{found:?} was just found"),
        }
    }
    /// Keeps the rows of these tokens, of which the first `exact` are exact. `read` gives the rows of some positions; it is called for
    /// blocks that are not here yet, and those that are not whole are left out.
    ///
    /// # Errors
    /// When `read` does; what was read before is kept.
    pub fn keep<E>(
        &mut self,
        tokens: &[u32],
        exact: usize,
        read: &mut dyn FnMut(Range<usize>) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        let mut chain: Vec<Found> = Vec::new();
        for (i, tokens) in tokens.as_chunks::<BLOCK>().0.iter().enumerate() {
            let positions = i * BLOCK..(i + 1) * BLOCK;
            let key = Key {
                before: chain.last().map_or(START, |last| last.id),
                exact: positions.end <= exact,
                tokens: *tokens,
            };
            let id = match self.by_key.get(&key) {
                Some(&id) => id,
                None => {
                    let rows = read(positions)?;
                    if self.bytes + rows.len() > self.most && !self.evict(rows.len(), &chain) {
                        break;
                    }
                    self.insert(key.clone(), rows)
                }
            };
            chain.push(Found { id, exact: key.exact });
        }
        self.touch(&chain);
        Ok(())
    }
    fn insert(&mut self, key: Key, rows: Vec<u8>) -> Id {
        self.last += 1;
        self.clock += 1;
        self.bytes += rows.len();
        self.by_key.insert(key.clone(), self.last);
        self.by_use.insert(self.clock, self.last);
        self.blocks.insert(self.last, Block { key, rows, window: Vec::new(), states: Vec::new(), used: self.clock });
        self.last
    }
    /// Makes room for that many bytes, but not of `chain`; could it?
    fn evict(&mut self, bytes: usize, chain: &[Found]) -> bool {
        while self.bytes + bytes > self.most {
            let Some((&used, &id)) = self.by_use.first_key_value() else { return false };
            if chain.iter().any(|link| link.id == id) {
                return false;
            }
            self.by_use.remove(&used);
            if let Some(block) = self.blocks.remove(&id) {
                self.by_key.remove(&block.key);
                self.bytes -= block.rows.len() + block.window.len() + block.states.len();
            }
        }
        true
    }
    /// These were used just now, the first of them last: a beginning outlives its ends.
    fn touch(&mut self, chain: &[Found]) {
        for link in chain.iter().rev() {
            if let Some(block) = self.blocks.get_mut(&link.id) {
                self.clock += 1;
                self.by_use.remove(&block.used);
                block.used = self.clock;
                self.by_use.insert(self.clock, link.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens of blocks that each repeat one number.
    fn tokens(blocks: &[u32]) -> Vec<u32> {
        blocks.iter().flat_map(|b| [*b; BLOCK]).collect()
    }
    fn keep(prefixes: &mut Prefixes, blocks: &[u32], exact: usize) -> usize {
        let mut read = 0;
        let all = tokens(blocks);
        let result: Result<(), ()> = prefixes.keep(&all, exact * BLOCK, &mut |positions| {
            read += 1;
            Ok(vec![all[positions.start] as u8; 10])
        });
        result.unwrap();
        read
    }
    fn found(prefixes: &mut Prefixes, blocks: &[u32], reuse: Reuse) -> Vec<u8> {
        prefixes.find(&tokens(blocks), reuse).into_iter().map(|f| prefixes.rows(f)[0]).collect()
    }

    #[test]
    fn a_shared_beginning_is_kept_once() {
        let mut prefixes = Prefixes::new(1000);
        assert_eq!(keep(&mut prefixes, &[1, 2, 3], 3), 3);
        assert_eq!(keep(&mut prefixes, &[1, 2, 4], 3), 1);
        assert_eq!(prefixes.bytes(), 40);
        assert_eq!(found(&mut prefixes, &[1, 2, 4, 9], Reuse::Exact), [1, 2, 4]);
        assert_eq!(found(&mut prefixes, &[2, 1], Reuse::Any), [0u8; 0]);
        // A block that is not whole is no block.
        assert_eq!(prefixes.find(&tokens(&[1, 2])[..BLOCK + 1], Reuse::Any).len(), 1);
    }

    #[test]
    fn what_is_not_exact_serves_only_who_does_not_mind() {
        let mut prefixes = Prefixes::new(1000);
        keep(&mut prefixes, &[1, 2, 3], 1);
        assert_eq!(found(&mut prefixes, &[1, 2, 3], Reuse::Exact), [1]);
        assert_eq!(found(&mut prefixes, &[1, 2, 3], Reuse::Any), [1, 2, 3]);
        // The exact rows of the same tokens are others, and preferred.
        assert_eq!(keep(&mut prefixes, &[1, 2], 2), 1);
        let all = prefixes.find(&tokens(&[1, 2, 3]), Reuse::Any);
        assert_eq!(all.iter().map(|f| f.exact).collect::<Vec<_>>(), [true, true]);
    }

    #[test]
    fn a_sequence_is_found_as_far_as_its_window_is_known() {
        let mut prefixes = Prefixes::new(1000);
        keep(&mut prefixes, &[1, 2, 3, 4], 4);
        // What is left of the window begins within the second block.
        let read = &mut |positions: Range<usize>| Ok::<_, ()>(vec![positions.start as u8; 3]);
        prefixes.keep_window(&tokens(&[1, 2, 3, 4]), 4 * BLOCK, BLOCK + 5, read).unwrap();
        assert_eq!(prefixes.bytes(), 46);
        let mut blocks = |of: &[u32], window| {
            let needs = Needs { window, ..Needs::default() };
            prefixes.find_with(&tokens(of), Reuse::Any, &needs).len()
        };
        assert_eq!((blocks(&[1, 2, 3, 4], Some(BLOCK)), blocks(&[1, 2, 3, 4], Some(2 * BLOCK))), (4, 4));
        assert_eq!(blocks(&[1, 2, 3, 4], Some(2 * BLOCK + 1)), 0);
        assert_eq!((blocks(&[1, 2, 3, 9], Some(BLOCK)), blocks(&[1, 2, 3, 9], Some(BLOCK + 1))), (3, 0));
        assert_eq!(blocks(&[1, 2, 9], Some(BLOCK)), 0);
        assert_eq!(blocks(&[1, 2, 9], None), 2);
    }

    #[test]
    fn the_least_recently_used_leaves_and_ends_before_beginnings() {
        let mut prefixes = Prefixes::new(50);
        keep(&mut prefixes, &[1, 2, 3], 3);
        keep(&mut prefixes, &[7, 8], 2);
        found(&mut prefixes, &[1], Reuse::Any);
        keep(&mut prefixes, &[9], 1);
        assert_eq!(prefixes.bytes(), 50);
        assert_eq!(found(&mut prefixes, &[1, 2, 3], Reuse::Any), [1, 2]);
        assert_eq!(found(&mut prefixes, &[7, 8], Reuse::Any), [7, 8]);
        // More than there is room for: its beginning.
        keep(&mut prefixes, &[20, 21, 22, 23, 24, 25, 26], 7);
        assert_eq!(found(&mut prefixes, &[20, 21, 22, 23, 24, 25, 26], Reuse::Any), [20, 21, 22, 23, 24]);
        assert_eq!((prefixes.bytes(), prefixes.blocks.len()), (50, 5));
        assert_eq!((prefixes.by_key.len(), prefixes.by_use.len()), (5, 5));
        // No room at all.
        assert_eq!(keep(&mut Prefixes::new(5), &[1], 1), 1);
    }
}
