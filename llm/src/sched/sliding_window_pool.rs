//! The pages of a pool of windows: who has which, and what those that nobody has still belong to. Numbers only.

use std::collections::{BTreeMap, BTreeSet};

/// When it was let go; those that may be asked for are behind all others.
type EvictionKey = (bool, u64);

/// A page of windows.
#[derive(Clone, Copy, Default, Debug)]
struct Window {
    /// Sequences whose windows reach it.
    holders: u32,
    /// The page that it belongs to, if it belongs to any.
    owner: Option<u32>,
    eviction_key: EvictionKey,
}

/// The windows' pages.
#[derive(Debug)]
pub(super) struct WindowPool {
    /// Positions that a token sees.
    window: usize,
    all: Vec<Window>,
    free: BTreeSet<u32>,
    /// Those that nobody has, of pages that the tree knows.
    evictable: BTreeMap<EvictionKey, u32>,
    clock: u64,
}

/// Sliding-window KV pages of a sequence: a number for each of its pages, held from `first` on.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct WindowPages {
    /// The first that it still has.
    pub first: usize,
    /// Numbers: before the first of pages that may be others' by now.
    pub numbers: Vec<u32>,
}

impl WindowPool {
    /// So many pages, for tokens that see so many positions.
    pub fn new(pages: usize, seen: usize) -> WindowPool {
        let (all, free) = (vec![Window::default(); pages], (0..pages as u32).collect());
        WindowPool { window: seen, all, free, evictable: BTreeMap::new(), clock: 0 }
    }
    /// Positions that a token sees.
    pub fn window(&self) -> usize {
        self.window
    }
    /// How many nobody has.
    pub fn available(&self) -> usize {
        self.free.len() + self.evictable.len()
    }
    /// How many somebody has.
    pub fn held(&self) -> usize {
        self.all.len() - self.available()
    }
    /// How many nobody has, of pages that the tree knows.
    pub fn cached(&self) -> usize {
        self.evictable.len()
    }
    /// The first position that a token at that position sees.
    pub fn window_start(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.window)
    }
    /// Somebody more has it.
    pub fn retain(&mut self, number: u32) {
        let it = &mut self.all[number as usize];
        it.holders += 1;
        if it.holders == 1 {
            self.evictable.remove(&it.eviction_key);
        }
    }
    /// One holder less. Who was the last leaves it to its page, if the tree knows that, as what may be asked for or not; tells whether it is free.
    pub fn release(&mut self, number: u32, known: bool, asked_for: bool) -> bool {
        let it = &mut self.all[number as usize];
        assert!(it.holders > 0, "page {number} of windows is let go by somebody who has it");
        it.holders -= 1;
        if it.holders > 0 {
            return false;
        }
        if known {
            self.clock += 1;
            it.eviction_key = (asked_for, self.clock);
            self.evictable.insert(it.eviction_key, number);
        } else {
            self.free(number);
        }
        !known
    }
    fn free(&mut self, number: u32) {
        self.all[number as usize].owner = None;
        self.free.insert(number);
    }
    /// The tree does not know its page any more: it is free, unless somebody has it. Is it?
    pub fn disown(&mut self, number: u32) -> bool {
        let it = self.all[number as usize];
        if it.holders == 0 {
            self.evictable.remove(&it.eviction_key);
            self.free(number);
        }
        it.holders == 0
    }
    /// Takes a page for that page of positions, if it is one's, and returns the page that it belonged
    /// to before; none where all are held. The one behind `after` in the ring is preferred, so that
    /// steps need no block table, unless another sequence may ask for it.
    pub fn take(&mut self, of: Option<u32>, after: Option<u32>) -> Option<(u32, Option<u32>)> {
        let next = after.map(|after| (after + 1) % self.all.len() as u32);
        let number = match next.filter(|&next| self.take_neighbour(next)) {
            Some(next) => next,
            None => match self.free.pop_first() {
                Some(number) => number,
                None => self.evictable.pop_first()?.1,
            },
        };
        let it = &mut self.all[number as usize];
        let before = it.owner;
        *it = Window { holders: 1, owner: of, eviction_key: EvictionKey::default() };
        Some((number, before))
    }
    /// Takes that page if it is free, or kept for no likely request.
    fn take_neighbour(&mut self, number: u32) -> bool {
        let it = self.all[number as usize];
        if self.free.remove(&number) {
            return true;
        }
        it.holders == 0 && !it.eviction_key.0 && self.evictable.remove(&it.eviction_key).is_some()
    }
    /// Pages that hold rows.
    pub fn used(&self) -> impl Iterator<Item = u32> {
        (0..self.all.len() as u32).filter(|number| !self.free.contains(number))
    }
    /// Is it free: held by no sequence, and of no page in the prefix tree?
    pub fn is_free(&self, number: u32) -> bool {
        self.free.contains(&number)
    }
    /// The page that it belongs to.
    #[cfg(test)]
    pub fn owner(&self, number: u32) -> Option<u32> {
        self.all[number as usize].owner
    }
    /// Is every one held, kept for a page, or free, and none two of them?
    #[cfg(test)]
    pub fn check(&self) {
        let mut seen = vec![0; self.all.len()];
        self.free.iter().chain(self.evictable.values()).for_each(|&number| seen[number as usize] += 1);
        for (it, times) in self.all.iter().zip(&seen) {
            assert_eq!(*times, u32::from(it.holders == 0), "{it:?}");
        }
        assert!(self.free.iter().all(|&number| self.owner(number).is_none()));
        assert!(self.evictable.iter().all(|(left, &number)| self.all[number as usize].eviction_key == *left));
    }
    /// Those that nobody has and that belong to a page.
    #[cfg(test)]
    pub fn all_cached(&self) -> impl Iterator<Item = u32> {
        self.evictable.values().copied()
    }
    /// How many there are.
    #[cfg(test)]
    pub fn total(&self) -> usize {
        self.all.len()
    }
}
