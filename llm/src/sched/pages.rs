//! The pages of a pool: who has which, and what those that nobody has still hold. Numbers only; what is in a page is a device's affair.
//!
//! A page whose positions are computed is known by its tokens and by the page before it, so that a sequence which begins like another one has its pages: a tree, whose
//! branches are conversations. Pages of sequences that have ended stay in it until room is needed, and the least recently used leaves first, ends before beginnings.

use super::window_pool::{Held, WindowPool};
use crate::prefix::{BLOCK, Reuse};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// A place in the tree: what comes after the page of that number of order. Pages are used again, these numbers are not.
type Node = u64;

/// What comes before a first page.
const START: Node = 0;

/// A page's place in the tree.
#[derive(Clone, Debug)]
pub(super) struct Known {
    before: Node,
    node: Node,
    /// The tokens at its positions, from the first: of all of them, or fewer.
    tokens: Vec<u32>,
    /// The rows of so many of them, and all before the page, depend on the tokens alone: see [`crate::prefix`].
    exact: usize,
}

#[derive(Clone, Default, Debug)]
pub(super) struct Page {
    /// Sequences that have it.
    holders: u32,
    pub(super) known: Option<Known>,
    /// What it has of the pool of windows.
    pub(super) window: Option<u32>,
    /// When it was let go by the last holder.
    left: u64,
}

/// The place of a sequence in the tree: how many of its pages are known there, and the last of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place {
    blocks: usize,
    node: Node,
    /// Behind the last is a page that the tree does not have any more: nothing that follows is known.
    lost: bool,
}

/// What need not be computed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Pages that begin the sequence, held now.
    pub pages: Vec<u32>,
    /// So many of the positions found are exact.
    pub exact: usize,
    /// A page, held now, whose first so many positions are those that follow.
    pub part: Option<Part>,
    /// Where the whole pages end.
    pub place: Place,
    /// What the next token sees of windows in those pages, held now.
    pub windows: Held,
    /// So many positions are known, though of some the windows may be gone: others may branch off there too.
    pub known: usize,
}

/// A page that begins as is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Which.
    pub page: u32,
    /// What it has of the pool of windows.
    pub window: Option<u32>,
    /// So many positions.
    pub positions: usize,
}

/// The pages.
#[derive(Debug)]
pub struct PagePool {
    pub(super) size: usize,
    pub(super) pages: Vec<Page>,
    pub(super) windows: Option<WindowPool>,
    /// Those that hold nothing.
    free: Vec<u32>,
    /// Those that nobody has and the tree knows, by when they were let go.
    kept: BTreeMap<u64, u32>,
    after: FxHashMap<Node, Vec<u32>>,
    clock: u64,
    last: Node,
}

impl PagePool {
    /// So many pages of `size` positions, all free.
    pub fn new(pages: usize, size: usize) -> PagePool {
        PagePool {
            size,
            pages: vec![Page::default(); pages],
            windows: None,
            free: (0..pages as u32).rev().collect(),
            kept: BTreeMap::new(),
            after: FxHashMap::default(),
            clock: 0,
            last: START,
        }
    }
    /// With a pool of windows beside it, of so many pages, for tokens that see so many positions.
    pub fn with_windows(self, windows: Option<[usize; 2]>) -> PagePool {
        PagePool { windows: windows.map(|[pages, seen]| WindowPool::new(pages, seen)), ..self }
    }
    /// How many there are.
    pub fn total(&self) -> usize {
        self.pages.len()
    }
    /// How many sequences have, each counted once.
    pub fn held(&self) -> usize {
        self.pages.len() - self.free()
    }
    /// How many nobody has, though some of them are known.
    pub fn free(&self) -> usize {
        self.free.len() + self.kept.len()
    }
    /// How many nobody has and the tree knows.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }
    /// A page for somebody; none where all are held.
    pub fn take(&mut self) -> Option<u32> {
        let page = match self.free.pop() {
            Some(page) => page,
            None => {
                let (_, page) = self.kept.pop_first()?;
                self.forget(page);
                page
            }
        };
        self.pages[page as usize].holders = 1;
        Some(page)
    }
    /// Holds the longest beginning of `tokens` that is known, as far as `reuse` allows and windows are there that its next token sees; with `parts`, and [`Reuse::Any`] or a
    /// whole block, also a part of a page behind it.
    pub fn find(&mut self, tokens: &[u32], reuse: Reuse, parts: bool) -> Found {
        let mut found = self.find_pages(tokens, reuse);
        let exact = found.exact;
        self.find_part(tokens, reuse, &mut found, parts);
        if found.part.is_none() {
            while !self.goes_on(&found.pages, None) {
                found.pages.pop();
            }
            let node = found.pages.last().map_or(START, |&page| self.known(page).node);
            found.place = Place { blocks: found.pages.len(), node, lost: false };
            found.exact = exact.min(found.pages.len() * self.size);
        }
        let part = found.part.as_ref().map(|part| part.page);
        found.pages.clone().into_iter().chain(part).for_each(|page| self.hold(page));
        found.windows = self.hold_windows(&found.pages, found.part.as_ref());
        found
    }
    /// The pages that begin as `tokens` do.
    fn find_pages(&self, tokens: &[u32], reuse: Reuse) -> Found {
        let mut found = Found::default();
        for block in tokens.chunks_exact(self.size) {
            let all = self.after.get(&found.place.node).into_iter().flatten().copied();
            let same = all.filter(|&page| self.known(page).tokens == block);
            // Exact rows serve everybody; others none who wants the same text again.
            let Some(page) = same.max_by_key(|&page| self.known(page).exact) else { break };
            let known = self.known(page);
            if reuse == Reuse::Exact && known.exact < self.size {
                break;
            }
            if found.exact == found.pages.len() * self.size {
                found.exact += known.exact;
            }
            found.place = Place { blocks: found.place.blocks + 1, node: known.node, lost: false };
            found.pages.push(page);
        }
        found
    }
    /// The page whose beginning has most of the tokens behind those found, and what the token behind them sees; of exact ones whole blocks.
    fn find_part(&self, tokens: &[u32], reuse: Reuse, found: &mut Found, wanted: bool) {
        let begin = found.pages.len() * self.size;
        let common = |page| {
            let known = self.known(page);
            let common = known.tokens.iter().zip(&tokens[begin..]).take_while(|(a, b)| a == b).count();
            let exact = common.min(known.exact) / BLOCK * BLOCK;
            (if reuse == Reuse::Exact { exact } else { common }, exact, page)
        };
        let all: Vec<_> = self.after.get(&found.place.node).into_iter().flatten().map(|&page| common(page)).collect();
        found.known = begin + all.iter().map(|part| part.0).max().unwrap_or(0);
        let part = |&(positions, exact, page): &(usize, usize, u32)| {
            let window = self.pages[page as usize].window;
            (exact, Part { page, window, positions })
        };
        let usable = all.iter().filter(|of| wanted && of.0 > 0 && self.goes_on(&found.pages, Some(&part(of).1)));
        let Some((exact, part)) = usable.max().map(part) else { return };
        if found.exact == begin {
            found.exact += exact;
        }
        found.part = Some(part);
    }
    /// Lets go of what was found.
    pub fn let_go(&mut self, mut found: Found) {
        self.release_windows(&mut found.windows, &found.pages);
        self.release(&found.pages);
        if let Some(part) = found.part {
            self.copied(&part);
        }
    }
    /// Lets go of a page that was held to be copied.
    pub fn copied(&mut self, part: &Part) {
        if let Some(window) = part.window {
            self.let_go_of(part.page, window, true);
        }
        self.release(&[part.page]);
    }
    fn known(&self, page: u32) -> &Known {
        match &self.pages[page as usize].known {
            Some(known) => known,
            None => unreachable!("page {page} stands in the tree"),
        }
    }
    fn hold(&mut self, page: u32) {
        let it = &mut self.pages[page as usize];
        it.holders += 1;
        if it.holders == 1 {
            self.kept.remove(&it.left);
        }
    }
    /// Makes a sequence's whole pages known behind its place, and with `part` the positions that its last page has so far; its tokens up to there are `tokens`, of
    /// which the first `exact` are exact.
    pub fn learn(&mut self, place: &mut Place, pages: &[u32], tokens: &[u32], exact: usize, part: bool) {
        while !place.lost {
            let begin = place.blocks * self.size;
            let block = &tokens[begin..tokens.len().min(begin + self.size)];
            if block.is_empty() || block.len() < self.size && !part {
                return;
            }
            let exact = exact.saturating_sub(begin).min(block.len());
            let node = self.enter(place.node, pages[place.blocks], block, exact);
            if block.len() < self.size {
                return;
            }
            *place = Place { blocks: place.blocks + 1, node: node.unwrap_or(START), lost: node.is_none() };
        }
    }
    /// A page's place behind another; none where that is not in the tree any more. A page that says the same stays what is known.
    fn enter(&mut self, before: Node, page: u32, tokens: &[u32], exact: usize) -> Option<Node> {
        if before != START && !self.after.contains_key(&before) {
            return None;
        }
        let others = &self.after.entry(before).or_default().clone();
        for &other in others {
            let known = self.known(other);
            if other == page {
                // It was known as far as it went.
                let node = known.node;
                if let Some(known) = &mut self.pages[page as usize].known
                    && known.tokens.len() < tokens.len()
                {
                    *known = Known { before, node, tokens: tokens.to_vec(), exact };
                }
                return Some(node);
            }
            if known.exact >= exact && known.tokens.starts_with(tokens) {
                let (node, same) = (known.node, known.exact == exact && known.tokens.len() == tokens.len());
                if same {
                    self.replace(other, page);
                }
                return Some(node);
            }
        }
        if self.pages[page as usize].known.is_some() {
            // It is somebody's beginning elsewhere: one page has one place.
            return None;
        }
        self.last += 1;
        let node = self.last;
        self.pages[page as usize].known = Some(Known { before, node, tokens: tokens.to_vec(), exact });
        self.after.entry(before).or_default().push(page);
        self.after.insert(node, Vec::new());
        Some(node)
    }
    /// Puts a page in the place of another with the same positions, whose window is gone.
    fn replace(&mut self, other: u32, page: u32) {
        let [without, with] = [other, page].map(|page| &self.pages[page as usize]);
        if without.window.is_some() || with.window.is_none() || with.known.is_some() {
            return;
        }
        let Some(known) = self.pages[other as usize].known.take() else { return };
        if let Some(beside) = self.after.get_mut(&known.before) {
            beside.iter_mut().filter(|of| **of == other).for_each(|of| *of = page);
        }
        self.pages[page as usize].known = Some(known);
        self.free_if_left(other);
    }
    /// A page that the tree does not know any more is free, unless somebody has it.
    fn free_if_left(&mut self, page: u32) {
        let it = &self.pages[page as usize];
        if it.holders == 0 && self.kept.remove(&it.left).is_some() {
            self.free.push(page);
        }
    }
    /// Lets go of a sequence's pages. What is known of them stays while there is room.
    pub fn release(&mut self, pages: &[u32]) {
        // Ends first: a beginning outlives them.
        for &page in pages.iter().rev() {
            let it = &mut self.pages[page as usize];
            assert!(it.holders > 0, "page {page} is let go by somebody who has it");
            it.holders -= 1;
            if it.holders > 0 {
                continue;
            }
            if it.known.is_some() {
                self.clock += 1;
                it.left = self.clock;
                self.kept.insert(self.clock, page);
            } else {
                self.free.push(page);
            }
        }
    }
    /// Nothing is known of what these pages hold, nor of what came behind them.
    pub fn spoil(&mut self, pages: &[u32]) {
        for &page in pages {
            self.forget(page);
            self.free_if_left(page);
        }
    }
    /// The tree has that page no more. What came behind it is found no more, and leaves in its turn.
    fn forget(&mut self, page: u32) {
        let Some(known) = self.pages[page as usize].known.take() else { return };
        if let Some(beside) = self.after.get_mut(&known.before) {
            beside.retain(|&other| other != page);
        }
        self.after.remove(&known.node);
        let it = &mut self.pages[page as usize];
        if let (Some(windows), Some(window)) = (&mut self.windows, it.window)
            && windows.forget(window)
        {
            it.window = None;
        }
    }
    /// Is every page held, known or free, and none two of them?
    #[cfg(test)]
    pub fn check(&self) {
        let mut seen = vec![0; self.pages.len()];
        self.free.iter().chain(self.kept.values()).for_each(|&page| seen[page as usize] += 1);
        for (page, times) in self.pages.iter().zip(&seen) {
            assert_eq!(*times, u32::from(page.holders == 0), "{page:?}");
        }
        assert!(self.free.iter().all(|&page| self.pages[page as usize].known.is_none()));
        assert!(self.kept.iter().all(|(left, &page)| self.pages[page as usize].left == *left));
        assert!(self.kept.values().all(|&page| self.pages[page as usize].known.is_some()));
        assert!(self.free.iter().all(|&page| self.pages[page as usize].window.is_none()));
        self.check_windows();
    }
}
