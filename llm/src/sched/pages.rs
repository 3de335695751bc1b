//! The page pool: reference counts of KV pages, and the prefix tree of their tokens. It manages
//! page numbers only; the data is on a device.
//!
//! A page with computed positions is identified by its tokens and by the page before it, so that
//! sequences with a shared prefix share pages. Branches of this tree are conversations. Pages of
//! ended sequences stay in the prefix cache until room is needed; eviction is LRU, with
//! continuations before their prefix.
//!
//! With a host KV cache, a whole page that is evicted is swapped out to a host slot, and swapped in
//! at the next prefix hit; when the slots run out, the least recently used is dropped. Slots are
//! numbered after the pages.

use super::prefix_log::{PrefixEvent, PrefixLog};
use super::prefix_node::{NodeId, PrefixNode, ROOT, is_root};
use super::reuse::{BLOCK, Reuse};
use super::sliding_window_pool::{WindowPages, WindowPool};
use super::state_pool::StatePool;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// Prefix-tree node of a page.
#[derive(Clone, Debug)]
pub(super) struct PrefixEntry {
    parent: NodeId,
    pub(super) node: NodeId,
    /// The tokens at its first positions: of all positions, or fewer.
    pub(super) tokens: Vec<u32>,
    /// Number of leading tokens with exact rows, if all pages before are exact too: see [`Reuse`].
    pub(super) exact: usize,
}

#[derive(Clone, Default, Debug)]
pub(super) struct Page {
    /// Number of sequences that hold it.
    holders: u32,
    pub(super) entry: Option<PrefixEntry>,
    /// Its page of the window pool.
    pub(super) window: Option<u32>,
    /// Time of its last release.
    last_used: u64,
}

/// The longest cached prefix of a sequence.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PrefixHit {
    /// Pages of the prefix, retained.
    pub pages: Vec<u32>,
    /// Number of leading positions that are exact.
    pub exact: usize,
    /// A retained page that continues the prefix with its first positions.
    pub partial: Option<PartialPage>,
    /// Host slots, retained, that hold the pages after those.
    pub swapped_out: Vec<u32>,
    /// Node at the end of the whole pages.
    pub node: PrefixNode,
    /// Window pages that the next token sees, retained.
    pub windows: WindowPages,
    /// State snapshot at the end of the prefix, retained.
    pub state: Option<u32>,
    /// Positions known to the tree, even if their window pages are evicted or there is no state
    /// snapshot: later sequences may branch off there too.
    pub matched: usize,
}

/// A page that continues a prefix hit with its first positions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartialPage {
    /// Number of the page.
    pub page: u32,
    /// Its page of the window pool.
    pub window: Option<u32>,
    /// Number of leading positions that match.
    pub positions: usize,
}

/// The copy of a page to the host KV cache or back, made before the page is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swap {
    /// Swaps a page out to a slot of the host KV cache.
    Out {
        /// Page of the device pool.
        page: u32,
        /// Slot of the host KV cache, from 0.
        slot: u32,
    },
    /// Swaps a slot of the host KV cache in to a page.
    In {
        /// Slot of the host KV cache, from 0.
        slot: u32,
        /// Page of the device pool.
        page: u32,
    },
}

/// Returns the first number of the longest run of consecutive numbers.
fn longest_run(numbers: &BTreeSet<u32>) -> Option<u32> {
    let [mut best, mut run] = [None::<(u32, u32)>; 2];
    for &number in numbers {
        run = match run {
            Some((first, length)) if first + length == number => Some((first, length + 1)),
            _ => Some((number, 1)),
        };
        best = best
            .filter(|best| run.is_none_or(|run| best.1 >= run.1))
            .or(run);
    }
    best.map(|best| best.0)
}

/// KV pages with reference counts, LRU eviction, and the prefix tree.
#[derive(Debug)]
pub struct PagePool {
    pub(super) page_size: usize,
    /// Pages of the device, then slots of the host.
    pub(super) pages: Vec<Page>,
    /// Number of device pages.
    device_pages: usize,
    pub(super) windows: Option<WindowPool>,
    pub(super) states: Option<StatePool>,
    /// Pages that hold no rows.
    free: BTreeSet<u32>,
    /// Unreferenced pages in the prefix tree, by time of release.
    evictable: BTreeMap<u64, u32>,
    /// Free and unreferenced slots of the host KV cache.
    free_slots: Vec<u32>,
    evictable_slots: BTreeMap<u64, u32>,
    /// Swaps to run, in this order.
    swaps: Vec<Swap>,
    pub(super) children: FxHashMap<NodeId, Vec<u32>>,
    clock: u64,
    last: NodeId,
    /// Changes of the tree, if they are watched.
    log: Option<PrefixLog>,
}

impl PagePool {
    /// Creates `pages` free pages of `size` positions, and `slots` host slots. There must be no
    /// host slots with a window pool or recurrent states.
    pub fn new(pages: usize, size: usize, slots: usize) -> PagePool {
        PagePool {
            page_size: size,
            pages: vec![Page::default(); pages + slots],
            device_pages: pages,
            windows: None,
            states: None,
            free: (0..pages as u32).collect(),
            evictable: BTreeMap::new(),
            free_slots: (pages as u32..(pages + slots) as u32).rev().collect(),
            evictable_slots: BTreeMap::new(),
            swaps: Vec::new(),
            children: FxHashMap::default(),
            clock: 0,
            last: ROOT,
            log: None,
        }
    }
    /// Adds a window pool: number of pages, and positions that a token sees.
    pub fn with_windows(self, windows: Option<[usize; 2]>) -> PagePool {
        PagePool {
            windows: windows.map(|[pages, seen]| WindowPool::new(pages, seen)),
            ..self
        }
    }
    /// Adds `rows` rows of recurrent states; 0 if the model has none.
    pub fn with_states(self, rows: usize) -> PagePool {
        PagePool {
            states: (rows > 0).then(|| StatePool::new(rows)),
            ..self
        }
    }
    /// Records changes of the tree from now on; `reset` if it replaces a tree that was watched.
    pub fn watch_prefixes(&mut self, reset: bool) {
        self.log = Some(match reset {
            true => PrefixLog::after_reset(),
            false => PrefixLog::default(),
        });
    }
    /// Returns whether changes of the tree are recorded.
    pub fn is_watched(&self) -> bool {
        self.log.is_some()
    }
    /// Takes the recorded changes of the tree.
    pub fn take_prefix_events(&mut self) -> Vec<PrefixEvent> {
        self.log.as_mut().map(PrefixLog::take).unwrap_or_default()
    }
    /// Returns the number of device pages.
    pub fn total(&self) -> usize {
        self.device_pages
    }
    /// Returns the number of pages held by sequences, each counted once.
    pub fn held(&self) -> usize {
        self.device_pages - self.free()
    }
    /// Returns the number of all held pages, window pages, state rows and host slots.
    pub fn total_held(&self) -> usize {
        let slots = self.pages.len() - self.device_pages;
        self.held() + slots - self.free_slots.len() - self.evictable_slots.len()
            + self.held_windows()
            + self.held_states()
    }
    /// Returns the number of pages in the host KV cache.
    pub fn host_pages(&self) -> usize {
        self.evictable_slots.len()
    }
    /// Takes the swaps that must run, in order, before pages are used.
    pub fn take_swaps(&mut self) -> Vec<Swap> {
        std::mem::take(&mut self.swaps)
    }
    /// Takes a page as [`PagePool::take`] does, unless that may need a swap.
    pub fn take_without_swap(&mut self, after: Option<u32>) -> Option<u32> {
        let moves = self.free.is_empty() && self.pages.len() > self.device_pages;
        if moves { None } else { self.take(after) }
    }
    /// Returns the number of unreferenced pages, including cached ones.
    pub fn free(&self) -> usize {
        self.free.len() + self.evictable.len()
    }
    /// Returns the number of unreferenced pages in the prefix tree.
    pub fn cached(&self) -> usize {
        self.evictable.len()
    }
    /// Takes a page after a sequence's last page `after`: the next one if it is free, so that a
    /// sequence's pages are consecutive. `None` if all are held.
    pub fn take(&mut self, after: Option<u32>) -> Option<u32> {
        let page = match self.free_page(after) {
            Some(page) => page,
            None => {
                let (left, page) = self.evictable.pop_first()?;
                self.evict(page, left);
                page
            }
        };
        self.pages[page as usize].holders = 1;
        Some(page)
    }
    /// Takes a free page: the one after `after`, or the first of the longest run.
    fn free_page(&mut self, after: Option<u32>) -> Option<u32> {
        let next = after
            .and_then(|after| after.checked_add(1))
            .filter(|next| self.free.contains(next));
        let page = next.or_else(|| longest_run(&self.free))?;
        self.free.remove(&page);
        Some(page)
    }
    /// Evicts until `pages` pages are free, so that a sequence can get consecutive ones.
    pub fn reserve(&mut self, pages: usize) {
        while self.free.len() < pages
            && let Some((left, page)) = self.evictable.pop_first()
        {
            self.evict(page, left);
            self.free.insert(page);
        }
    }
    /// Returns the pages that hold rows, of sequences or of the prefix tree.
    pub fn used(&self) -> impl Iterator<Item = u32> {
        (0..self.device_pages as u32).filter(|page| !self.free.contains(page))
    }
    /// Returns the window pages that hold rows.
    pub fn used_windows(&self) -> impl Iterator<Item = u32> {
        self.windows.iter().flat_map(WindowPool::used)
    }
    /// Returns whether a sequence may append to a partial page that it holds: no other sequence
    /// holds the page, and no known tokens follow.
    pub fn can_append(&self, part: &PartialPage) -> bool {
        let page = &self.pages[part.page as usize];
        let ends = |known: &PrefixEntry| {
            let followed = self
                .children
                .get(&known.node)
                .is_some_and(|behind| !behind.is_empty());
            known.tokens.len() == part.positions && part.positions < self.page_size && !followed
        };
        page.holders == 1 && page.entry.as_ref().is_some_and(ends)
    }
    /// Returns whether a page is free: held by no sequence, and not in the prefix tree.
    pub fn is_free(&self, page: u32) -> bool {
        self.free.contains(&page)
    }
    /// Returns whether a window page is free; true without a window pool.
    pub fn is_window_free(&self, page: u32) -> bool {
        self.windows
            .as_ref()
            .is_none_or(|windows| windows.is_free(page))
    }
    /// Finds and retains the longest prefix of `tokens` in the prefix tree that `reuse` allows and
    /// for which the window pages and the state snapshot exist.
    ///
    /// With `parts` the hit may also have a partial page: with [`Reuse::Exact`] in whole blocks.
    pub fn find(&mut self, root: NodeId, tokens: &[u32], reuse: Reuse, parts: bool) -> PrefixHit {
        let mut found = self.find_pages(root, tokens, reuse);
        let exact = found.exact;
        self.find_partial(tokens, reuse, &mut found, parts);
        if found.partial.is_none() && !self.covers_window(&found.pages, None) {
            while !self.covers_window(&found.pages, None) {
                found.pages.pop();
            }
            let node = found
                .pages
                .last()
                .map_or(root, |&page| self.entry(page).node);
            found.node = PrefixNode::new(found.pages.len(), node);
            found.exact = exact.min(found.pages.len() * self.page_size);
        }
        self.truncate_to_snapshot((root, tokens), reuse, &mut found, parts);
        found.state.iter().for_each(|&row| self.retain_state(row));
        let part = found.partial.as_ref().map(|part| part.page);
        let all: Vec<u32> = found
            .pages
            .iter()
            .chain(&found.swapped_out)
            .copied()
            .chain(part)
            .collect();
        all.into_iter().for_each(|page| self.retain(page));
        found.windows = self.retain_windows(&found.pages, found.partial.as_ref());
        found
    }
    /// Returns the whole pages that match `tokens`.
    fn find_pages(&self, root: NodeId, tokens: &[u32], reuse: Reuse) -> PrefixHit {
        let mut found = PrefixHit {
            node: PrefixNode::new(0, root),
            ..PrefixHit::default()
        };
        for block in tokens.chunks_exact(self.page_size) {
            let all = self
                .children
                .get(&found.node.id)
                .into_iter()
                .flatten()
                .copied();
            let same = all.filter(|&page| self.entry(page).tokens == block);
            // Prefer exact rows: every sequence can use them.
            let Some(page) = same.max_by_key(|&page| self.entry(page).exact) else {
                break;
            };
            let known = self.entry(page);
            // Device pages must come before swapped-out ones; continuations are
            // evicted before their prefix.
            let behind = self.is_on_device(page) && !found.swapped_out.is_empty();
            if behind || reuse == Reuse::Exact && known.exact < self.page_size {
                break;
            }
            if found.exact == found.node.blocks * self.page_size {
                found.exact += known.exact;
            }
            found.node = PrefixNode::new(found.node.blocks + 1, known.node);
            if self.is_on_device(page) {
                &mut found.pages
            } else {
                &mut found.swapped_out
            }
            .push(page);
        }
        found
    }
    /// Returns whether the number is a device page, not a host slot.
    pub(super) fn is_on_device(&self, page: u32) -> bool {
        (page as usize) < self.device_pages
    }
    /// Swaps a retained host slot in to a page that was taken.
    pub fn swap_in(&mut self, host_page: u32, page: u32) {
        self.swaps.push(Swap::In {
            slot: host_page - self.device_pages as u32,
            page,
        });
        self.move_entry(host_page, page);
        self.pages[host_page as usize].holders = 0;
        self.free_slots.push(host_page);
    }
    /// Evicts a page: swaps it out if it is whole and there is a slot, otherwise drops it.
    fn evict(&mut self, page: u32, left: u64) {
        let PrefixEntry {
            parent: before,
            tokens,
            ..
        } = self.entry(page);
        // If the parent has left the tree, the page cannot be found any more.
        let whole = tokens.len() == self.page_size
            && (is_root(*before) || self.children.contains_key(before));
        let host_page = self.free_slots.pop().or_else(|| {
            let (_, host_page) = if whole {
                self.evictable_slots.pop_first()?
            } else {
                return None;
            };
            self.forget(host_page);
            Some(host_page)
        });
        let Some(host_page) = host_page.filter(|_| whole) else {
            self.free_slots.extend(host_page);
            return self.forget(page);
        };
        self.swaps.push(Swap::Out {
            page,
            slot: host_page - self.device_pages as u32,
        });
        self.move_entry(page, host_page);
        self.pages[host_page as usize].last_used = left;
        self.evictable_slots.insert(left, host_page);
    }
    /// Moves a tree entry to another page or slot.
    fn move_entry(&mut self, from: u32, to: u32) {
        let known = self.pages[from as usize].entry.take();
        let beside = known
            .as_ref()
            .and_then(|known| self.children.get_mut(&known.parent));
        beside
            .into_iter()
            .flatten()
            .filter(|page| **page == from)
            .for_each(|page| *page = to);
        self.pages[to as usize].entry = known;
    }
    /// Finds the page that shares the most tokens with those after the hit, in whole blocks for
    /// exact reuse. Its window pages must exist.
    fn find_partial(&self, tokens: &[u32], reuse: Reuse, found: &mut PrefixHit, wanted: bool) {
        let begin = found.node.blocks * self.page_size;
        let common = |page| {
            let known = self.entry(page);
            let common = known
                .tokens
                .iter()
                .zip(&tokens[begin..])
                .take_while(|(a, b)| a == b)
                .count();
            let exact = common.min(known.exact) / BLOCK * BLOCK;
            (
                if reuse == Reuse::Exact { exact } else { common },
                exact,
                page,
            )
        };
        let here = self
            .children
            .get(&found.node.id)
            .into_iter()
            .flatten()
            .filter(|&&page| self.is_on_device(page));
        let all: Vec<_> = here.map(|&page| common(page)).collect();
        found.matched = begin + all.iter().map(|part| part.0).max().unwrap_or(0);
        let part = |&(positions, exact, page): &(usize, usize, u32)| {
            let window = self.pages[page as usize].window;
            (
                exact,
                PartialPage {
                    page,
                    window,
                    positions,
                },
            )
        };
        let usable = all
            .iter()
            .filter(|of| wanted && of.0 > 0 && self.covers_window(&found.pages, Some(&part(of).1)));
        let Some((exact, part)) = usable.max().map(part) else {
            return;
        };
        if found.exact == begin {
            found.exact += exact;
        }
        found.partial = Some(part);
    }
    /// Releases everything that a prefix hit retains.
    pub fn release_hit(&mut self, mut found: PrefixHit) {
        self.release_windows(&mut found.windows, &found.pages);
        found.state.iter().for_each(|&row| self.release_state(row));
        self.release(&found.swapped_out);
        self.release(&found.pages);
        if let Some(part) = found.partial {
            self.release_partial(&part);
        }
    }
    /// Releases a page that was retained as the source of a copy.
    pub fn release_partial(&mut self, part: &PartialPage) {
        if let Some(window) = part.window {
            self.release_window(part.page, window, true);
        }
        self.release(&[part.page]);
    }
    pub(super) fn entry(&self, page: u32) -> &PrefixEntry {
        match &self.pages[page as usize].entry {
            Some(known) => known,
            None => unreachable!("page {page} is in the prefix tree"),
        }
    }
    /// Adds a reference to a page or host slot.
    pub fn retain(&mut self, page: u32) {
        let it = &mut self.pages[page as usize];
        it.holders += 1;
        if it.holders == 1 {
            if (page as usize) < self.device_pages {
                &mut self.evictable
            } else {
                &mut self.evictable_slots
            }
            .remove(&it.last_used);
        }
    }
    /// Inserts a sequence's whole pages into the prefix tree, and with `part` also its last,
    /// partial page. `tokens` are the computed tokens, of which the first `exact` are exact.
    pub fn insert(
        &mut self,
        node: &mut PrefixNode,
        pages: &[u32],
        tokens: &[u32],
        exact: usize,
        part: bool,
    ) {
        while !node.lost {
            let begin = node.blocks * self.page_size;
            let block = &tokens[begin..tokens.len().min(begin + self.page_size)];
            if block.is_empty() || block.len() < self.page_size && !part {
                return;
            }
            let exact = exact.saturating_sub(begin).min(block.len());
            let inserted = self.insert_page(node.id, pages[node.blocks], block, exact);
            if block.len() < self.page_size {
                return;
            }
            *node = PrefixNode {
                blocks: node.blocks + 1,
                id: inserted.unwrap_or(ROOT),
                lost: inserted.is_none(),
            };
        }
    }
    /// Inserts a page after a node and returns its own node; `None` if that node was removed or the
    /// page has another parent. If a page with the same tokens exists, it stays in the tree.
    fn insert_page(
        &mut self,
        before: NodeId,
        page: u32,
        tokens: &[u32],
        exact: usize,
    ) -> Option<NodeId> {
        if !is_root(before) && !self.children.contains_key(&before) {
            return None;
        }
        let others = &self.children.entry(before).or_default().clone();
        for &other in others {
            let known = self.entry(other);
            if other == page {
                // The page is already in the tree, with fewer tokens.
                let node = known.node;
                if let Some(known) = &mut self.pages[page as usize].entry
                    && known.tokens.len() < tokens.len()
                {
                    *known = PrefixEntry {
                        parent: before,
                        node,
                        tokens: tokens.to_vec(),
                        exact,
                    };
                    self.log_stored(before, node, tokens);
                }
                return Some(node);
            }
            if known.exact >= exact && known.tokens.starts_with(tokens) {
                let (node, same) = (
                    known.node,
                    known.exact == exact && known.tokens.len() == tokens.len(),
                );
                if same {
                    self.replace(other, page);
                }
                return Some(node);
            }
        }
        if self.pages[page as usize].entry.is_some() {
            // A page has at most one node.
            return None;
        }
        self.last += 1;
        let node = self.last;
        self.pages[page as usize].entry = Some(PrefixEntry {
            parent: before,
            node,
            tokens: tokens.to_vec(),
            exact,
        });
        self.children.entry(before).or_default().push(page);
        self.children.insert(node, Vec::new());
        self.log_stored(before, node, tokens);
        Some(node)
    }
    /// Records a node with these tokens, if they are a whole page.
    fn log_stored(&mut self, before: NodeId, node: NodeId, tokens: &[u32]) {
        if let Some(log) = self.log.as_mut().filter(|_| tokens.len() == self.page_size) {
            log.store(before, node, tokens);
        }
    }
    /// Replaces a page by another with the same positions if only the latter still
    /// has its window page.
    fn replace(&mut self, other: u32, page: u32) {
        let [without, with] = [other, page].map(|page| &self.pages[page as usize]);
        if without.window.is_some() || with.window.is_none() || with.entry.is_some() {
            return;
        }
        let Some(known) = self.pages[other as usize].entry.take() else {
            return;
        };
        if let Some(beside) = self.children.get_mut(&known.parent) {
            beside
                .iter_mut()
                .filter(|of| **of == other)
                .for_each(|of| *of = page);
        }
        self.pages[page as usize].entry = Some(known);
        self.free_if_unreferenced(other);
    }
    /// Frees a page that left the tree, if it is unreferenced.
    fn free_if_unreferenced(&mut self, page: u32) {
        let it = &self.pages[page as usize];
        if it.holders == 0 && self.evictable.remove(&it.last_used).is_some() {
            self.free.insert(page);
        }
    }
    /// Drops a sequence's references. Pages in the prefix tree stay cached while there is room.
    pub fn release(&mut self, pages: &[u32]) {
        // In reverse order, so that continuations are evicted before their prefix.
        for &page in pages.iter().rev() {
            let it = &mut self.pages[page as usize];
            assert!(
                it.holders > 0,
                "page {page} is released without a reference"
            );
            it.holders -= 1;
            if it.holders > 0 {
                continue;
            }
            let here = (page as usize) < self.device_pages;
            if it.entry.is_some() {
                self.clock += 1;
                it.last_used = self.clock;
                if here {
                    &mut self.evictable
                } else {
                    &mut self.evictable_slots
                }
                .insert(self.clock, page);
            } else {
                match here {
                    true => _ = self.free.insert(page),
                    false => self.free_slots.push(page),
                }
            }
        }
    }
    /// Removes the targets of failed swaps from the prefix tree.
    pub fn invalidate_swaps(&mut self, moves: &[Swap]) {
        for &of in moves {
            match of {
                Swap::Out { slot, .. } => {
                    let host_page = slot + self.device_pages as u32;
                    self.forget(host_page);
                    let it = &self.pages[host_page as usize];
                    if self.evictable_slots.remove(&it.last_used).is_some() {
                        self.free_slots.push(host_page);
                    }
                }
                Swap::In { page, .. } => self.invalidate(&[page]),
            }
        }
    }
    /// Removes pages from the prefix tree, with all that follows them.
    pub fn invalidate(&mut self, pages: &[u32]) {
        for &page in pages {
            self.forget(page);
            self.free_if_unreferenced(page);
        }
    }
    /// Removes a page's node from the tree. Pages after it are not found any more, and are
    /// evicted in LRU order.
    fn forget(&mut self, page: u32) {
        let Some(known) = self.pages[page as usize].entry.take() else {
            return;
        };
        if let Some(beside) = self.children.get_mut(&known.parent) {
            beside.retain(|&other| other != page);
        }
        self.children.remove(&known.node);
        self.log.iter_mut().for_each(|log| log.remove(known.node));
        self.states
            .iter_mut()
            .for_each(|states| states.forget(known.node));
        let it = &mut self.pages[page as usize];
        if let (Some(windows), Some(window)) = (&mut self.windows, it.window)
            && windows.disown(window)
        {
            it.window = None;
        }
    }
    /// Checks that every page is exactly one of held, cached or free.
    #[cfg(test)]
    pub fn check(&self) {
        let mut seen = vec![0; self.pages.len()];
        let here = self.free.iter().chain(self.evictable.values());
        here.chain(&self.free_slots)
            .chain(self.evictable_slots.values())
            .for_each(|&page| seen[page as usize] += 1);
        assert!(
            self.evictable_slots
                .iter()
                .all(|(left, &host_page)| self.pages[host_page as usize].last_used == *left)
        );
        assert!(
            self.evictable_slots
                .values()
                .all(|&host_page| self.entry(host_page).tokens.len() == self.page_size)
        );
        for (page, times) in self.pages.iter().zip(&seen) {
            assert_eq!(*times, u32::from(page.holders == 0), "{page:?}");
        }
        assert!(
            self.free
                .iter()
                .all(|&page| self.pages[page as usize].entry.is_none())
        );
        assert!(
            self.evictable
                .iter()
                .all(|(left, &page)| self.pages[page as usize].last_used == *left)
        );
        assert!(
            self.evictable
                .values()
                .all(|&page| self.pages[page as usize].entry.is_some())
        );
        assert!(
            self.free
                .iter()
                .all(|&page| self.pages[page as usize].window.is_none())
        );
        if let Some(log) = &self.log {
            let known = self.pages.iter().filter_map(|page| page.entry.as_ref());
            let whole = known.filter(|known| known.tokens.len() == self.page_size);
            log.check(whole.map(|known| known.node));
        }
        self.check_windows();
        self.states.iter().for_each(StatePool::check);
    }
}
