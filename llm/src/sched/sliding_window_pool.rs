//! The pool of sliding-window pages: reference counts, owners, and eviction order. It manages page
//! numbers only; the data is on a device.

use std::collections::{BTreeMap, BTreeSet};

/// Eviction order: pages with a likely request come last, then by time of release.
type EvictionKey = (bool, u64);

/// State of a window page.
#[derive(Clone, Copy, Default, Debug)]
struct Window {
    /// Number of sequences that hold it.
    holders: u32,
    /// The page that it belongs to, if any.
    owner: Option<u32>,
    eviction_key: EvictionKey,
}

/// The window pages of a model.
#[derive(Debug)]
pub(super) struct WindowPool {
    /// Window length in positions.
    window: usize,
    all: Vec<Window>,
    free: BTreeSet<u32>,
    /// Unreferenced window pages of pages in the prefix tree.
    evictable: BTreeMap<EvictionKey, u32>,
    clock: u64,
}

/// Sliding-window KV pages of a sequence: a number for each of its pages, held from `first` on.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct WindowPages {
    /// Index of the first page that it still holds.
    pub first: usize,
    /// Window page of each page; those before `first` may belong to other sequences by now.
    pub numbers: Vec<u32>,
}

impl WindowPool {
    /// Creates a pool of `pages` pages, for tokens that see `seen` positions.
    pub fn new(pages: usize, seen: usize) -> WindowPool {
        let (all, free) = (vec![Window::default(); pages], (0..pages as u32).collect());
        WindowPool {
            window: seen,
            all,
            free,
            evictable: BTreeMap::new(),
            clock: 0,
        }
    }
    pub fn window(&self) -> usize {
        self.window
    }
    /// Returns the number of unreferenced pages.
    pub fn available(&self) -> usize {
        self.free.len() + self.evictable.len()
    }
    /// Returns the number of pages held by sequences.
    pub fn held(&self) -> usize {
        self.all.len() - self.available()
    }
    /// Returns the number of unreferenced pages that belong to a page in the prefix tree.
    pub fn cached(&self) -> usize {
        self.evictable.len()
    }
    /// Returns the first position that a token at `position` sees.
    pub fn window_start(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.window)
    }
    /// Adds a reference to a page.
    pub fn retain(&mut self, number: u32) {
        let it = &mut self.all[number as usize];
        it.holders += 1;
        if it.holders == 1 {
            self.evictable.remove(&it.eviction_key);
        }
    }
    /// Drops a reference. An unreferenced page stays cached if its page is `known` to the
    /// prefix tree, and is evicted late if `asked_for`; otherwise it is freed. Returns whether
    /// its page must forget it.
    pub fn release(&mut self, number: u32, known: bool, asked_for: bool) -> bool {
        let it = &mut self.all[number as usize];
        assert!(
            it.holders > 0,
            "window page {number} is released without a reference"
        );
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
    /// Drops a reference. An unreferenced page stays cached if its page is `known` to the
    /// prefix tree, and is evicted late if `asked_for`; otherwise it is freed. Returns
    /// whether it was freed.
    pub fn disown(&mut self, number: u32) -> bool {
        let it = self.all[number as usize];
        if it.holders == 0 {
            self.evictable.remove(&it.eviction_key);
            self.free(number);
        }
        it.holders == 0
    }
    /// Takes a page for page `of` and returns it with the page that it belonged to before. `None`
    /// if all are held. The page after `after` in the ring buffer is preferred, so that steps need
    /// no block table, unless a request for it is likely.
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
        *it = Window {
            holders: 1,
            owner: of,
            eviction_key: EvictionKey::default(),
        };
        Some((number, before))
    }
    /// Takes that page if it is free, or cached without a likely request.
    fn take_neighbour(&mut self, number: u32) -> bool {
        let it = self.all[number as usize];
        if self.free.remove(&number) {
            return true;
        }
        it.holders == 0 && !it.eviction_key.0 && self.evictable.remove(&it.eviction_key).is_some()
    }
    /// Returns the pages that hold rows.
    pub fn used(&self) -> impl Iterator<Item = u32> {
        (0..self.all.len() as u32).filter(|number| !self.free.contains(number))
    }
    /// Returns whether the page is free: held by no sequence, and of no page in the prefix tree.
    pub fn is_free(&self, number: u32) -> bool {
        self.free.contains(&number)
    }
    /// Returns the page that it belongs to.
    #[cfg(test)]
    pub fn owner(&self, number: u32) -> Option<u32> {
        self.all[number as usize].owner
    }
    /// Checks that every page is exactly one of held, cached or free.
    #[cfg(test)]
    pub fn check(&self) {
        let mut seen = vec![0; self.all.len()];
        self.free
            .iter()
            .chain(self.evictable.values())
            .for_each(|&number| seen[number as usize] += 1);
        for (it, times) in self.all.iter().zip(&seen) {
            assert_eq!(*times, u32::from(it.holders == 0), "{it:?}");
        }
        assert!(self.free.iter().all(|&number| self.owner(number).is_none()));
        assert!(
            self.evictable
                .iter()
                .all(|(left, &number)| self.all[number as usize].eviction_key == *left)
        );
    }
    /// Returns the unreferenced pages that belong to a page.
    #[cfg(test)]
    pub fn all_cached(&self) -> impl Iterator<Item = u32> {
        self.evictable.values().copied()
    }
    #[cfg(test)]
    pub fn total(&self) -> usize {
        self.all.len()
    }
}
