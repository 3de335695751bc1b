//! The page pool: reference counts of KV pages, and the prefix tree of their tokens. Numbers only; a device has what is in them.
//!
//! A page whose positions are computed is known by its tokens and by the page before it, so that a sequence which begins like another one has its pages: a tree, whose
//! branches are conversations. Pages of sequences that have ended stay in it until room is needed, and the least recently used leaves first, ends before beginnings.
//!
//! Where the host has places for pages, a whole page that leaves goes there, and comes back when it is asked for; then what leaves these is forgotten. Places are numbered behind the pages.

use super::prefix_node::{Node, PrefixNode, START};
use super::reuse::{BLOCK, Reuse};
use super::state_pool::StatePool;
use super::window_pool::{WindowPages, WindowPool};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// A page's place in the tree.
#[derive(Clone, Debug)]
pub(super) struct Known {
    before: Node,
    pub(super) node: Node,
    /// The tokens at its positions, from the first: of all of them, or fewer.
    pub(super) tokens: Vec<u32>,
    /// The rows of so many of them, and all before the page, depend on the tokens alone: see [`Reuse`].
    pub(super) exact: usize,
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

/// The beginning of a sequence that the prefix cache has.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PrefixHit {
    /// Pages that begin the sequence, held now.
    pub pages: Vec<u32>,
    /// So many of the positions found are exact.
    pub exact: usize,
    /// A page, held now, whose first so many positions are those that follow.
    pub part: Option<PartialPage>,
    /// Places of the host that hold the pages behind those, held now.
    pub away: Vec<u32>,
    /// Where the whole pages end.
    pub place: PrefixNode,
    /// What the next token sees of windows in those pages, held now.
    pub windows: WindowPages,
    /// The row of states behind all that, held now.
    pub state: Option<u32>,
    /// So many positions are known, though of some the windows may be gone, or states not known: others may branch off there too.
    pub known: usize,
}

/// A page whose first positions continue a prefix hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartialPage {
    /// Which.
    pub page: u32,
    /// What it has of the pool of windows.
    pub window: Option<u32>,
    /// So many positions.
    pub positions: usize,
}

/// The copy of a page to the host KV cache or back, made before the page is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swap {
    /// Swaps a page out to a slot of the host KV cache.
    Out {
        /// The page.
        page: u32,
        /// The place, counted from 0.
        place: u32,
    },
    /// Swaps a slot of the host KV cache in to a page.
    In {
        /// The place, counted from 0.
        place: u32,
        /// The page.
        page: u32,
    },
}

/// The first number of the longest run of neighbours.
fn longest_run(numbers: &BTreeSet<u32>) -> Option<u32> {
    let [mut best, mut run] = [None::<(u32, u32)>; 2];
    for &number in numbers {
        run = match run {
            Some((first, length)) if first + length == number => Some((first, length + 1)),
            _ => Some((number, 1)),
        };
        best = best.filter(|best| run.is_none_or(|run| best.1 >= run.1)).or(run);
    }
    best.map(|best| best.0)
}

/// The pages.
#[derive(Debug)]
pub struct PagePool {
    pub(super) size: usize,
    /// The pages, and behind them places of the host.
    pub(super) pages: Vec<Page>,
    /// How many are pages.
    here: usize,
    pub(super) windows: Option<WindowPool>,
    pub(super) states: Option<StatePool>,
    /// Those that hold nothing.
    free: BTreeSet<u32>,
    /// Those that nobody has and the tree knows, by when they were let go.
    kept: BTreeMap<u64, u32>,
    /// The same of places of the host.
    places: Vec<u32>,
    away: BTreeMap<u64, u32>,
    /// What is to be moved, in this order.
    moves: Vec<Swap>,
    pub(super) after: FxHashMap<Node, Vec<u32>>,
    clock: u64,
    last: Node,
}

impl PagePool {
    /// So many pages of `size` positions, all free, and so many places of the host, of which there are none where there is a pool of windows or of states.
    pub fn new(pages: usize, size: usize, places: usize) -> PagePool {
        PagePool {
            size,
            pages: vec![Page::default(); pages + places],
            here: pages,
            windows: None,
            states: None,
            free: (0..pages as u32).collect(),
            kept: BTreeMap::new(),
            places: (pages as u32..(pages + places) as u32).rev().collect(),
            away: BTreeMap::new(),
            moves: Vec::new(),
            after: FxHashMap::default(),
            clock: 0,
            last: START,
        }
    }
    /// With a pool of windows beside it, of so many pages, for tokens that see so many positions.
    pub fn with_windows(self, windows: Option<[usize; 2]>) -> PagePool {
        PagePool { windows: windows.map(|[pages, seen]| WindowPool::new(pages, seen)), ..self }
    }
    /// With so many rows of states beside it; 0 where sequences have none.
    pub fn with_states(self, rows: usize) -> PagePool {
        PagePool { states: (rows > 0).then(|| StatePool::new(rows)), ..self }
    }
    /// How many there are.
    pub fn total(&self) -> usize {
        self.here
    }
    /// How many sequences have, each counted once.
    pub fn held(&self) -> usize {
        self.here - self.free()
    }
    /// How many somebody has of all: pages, pages of windows, rows of states, and places of the host.
    pub fn all_held(&self) -> usize {
        let places = self.pages.len() - self.here;
        self.held() + places - self.places.len() - self.away.len() + self.held_windows() + self.held_states()
    }
    /// How many lie with the host.
    pub fn away(&self) -> usize {
        self.away.len()
    }
    /// What is to be moved before anything else is done with pages, in this order.
    pub fn take_moves(&mut self) -> Vec<Swap> {
        std::mem::take(&mut self.moves)
    }
    /// A page for somebody, for which nothing need be moved; none where there is none.
    pub fn take_at_once(&mut self, after: Option<u32>) -> Option<u32> {
        let moves = self.free.is_empty() && self.pages.len() > self.here;
        if moves { None } else { self.take(after) }
    }
    /// How many nobody has, though some of them are known.
    pub fn free(&self) -> usize {
        self.free.len() + self.kept.len()
    }
    /// How many nobody has and the tree knows.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }
    /// Takes a page for a sequence whose last page is `after`: the next one if it is free, so that a
    /// sequence's pages are neighbours. None where all are held.
    pub fn take(&mut self, after: Option<u32>) -> Option<u32> {
        let page = match self.free_page(after) {
            Some(page) => page,
            None => {
                let (left, page) = self.kept.pop_first()?;
                self.evict(page, left);
                page
            }
        };
        self.pages[page as usize].holders = 1;
        Some(page)
    }
    /// Takes a free page: the one behind `after`, or the first of the longest run.
    fn free_page(&mut self, after: Option<u32>) -> Option<u32> {
        let next = after.and_then(|after| after.checked_add(1)).filter(|next| self.free.contains(next));
        let page = next.or_else(|| longest_run(&self.free))?;
        self.free.remove(&page);
        Some(page)
    }
    /// Evicts until so many pages are free, so that a sequence finds neighbours among them.
    pub fn reserve(&mut self, pages: usize) {
        while self.free.len() < pages
            && let Some((left, page)) = self.kept.pop_first()
        {
            self.evict(page, left);
            self.free.insert(page);
        }
    }
    /// Pages that hold rows, of sequences or of the prefix tree.
    pub fn used(&self) -> impl Iterator<Item = u32> {
        (0..self.here as u32).filter(|page| !self.free.contains(page))
    }
    /// The same of the window pool.
    pub fn used_windows(&self) -> impl Iterator<Item = u32> {
        self.windows.iter().flat_map(WindowPool::used)
    }
    /// Lets a sequence that holds a page write behind its known positions: no other sequence has the
    /// page, and it ends there.
    pub fn adopt(&self, part: &PartialPage) -> bool {
        let page = &self.pages[part.page as usize];
        let ends = |known: &Known| {
            let followed = self.after.get(&known.node).is_some_and(|behind| !behind.is_empty());
            known.tokens.len() == part.positions && part.positions < self.size && !followed
        };
        page.holders == 1 && page.known.as_ref().is_some_and(ends)
    }
    /// Is that page free: held by no sequence, and not in the prefix tree?
    pub fn is_free(&self, page: u32) -> bool {
        self.free.contains(&page)
    }
    /// The same of a page of the window pool.
    pub fn is_window_free(&self, page: u32) -> bool {
        self.windows.as_ref().is_none_or(|windows| windows.is_free(page))
    }
    /// Finds and holds the longest beginning of `tokens` in the prefix tree, as far as `reuse` allows, and windows and states are there that its next token needs; with `parts`, and [`Reuse::Any`] or a
    /// whole block, also a part of a page behind it.
    pub fn find(&mut self, tokens: &[u32], reuse: Reuse, parts: bool) -> PrefixHit {
        let mut found = self.find_pages(tokens, reuse);
        let exact = found.exact;
        self.find_part(tokens, reuse, &mut found, parts);
        if found.part.is_none() && !self.goes_on(&found.pages, None) {
            while !self.goes_on(&found.pages, None) {
                found.pages.pop();
            }
            let node = found.pages.last().map_or(START, |&page| self.known(page).node);
            found.place = PrefixNode::new(found.pages.len(), node);
            found.exact = exact.min(found.pages.len() * self.size);
        }
        self.cut_to_states(tokens, reuse, &mut found, parts);
        found.state.iter().for_each(|&row| self.hold_state(row));
        let part = found.part.as_ref().map(|part| part.page);
        let all: Vec<u32> = found.pages.iter().chain(&found.away).copied().chain(part).collect();
        all.into_iter().for_each(|page| self.hold(page));
        found.windows = self.hold_windows(&found.pages, found.part.as_ref());
        found
    }
    /// The pages that begin as `tokens` do.
    fn find_pages(&self, tokens: &[u32], reuse: Reuse) -> PrefixHit {
        let mut found = PrefixHit::default();
        for block in tokens.chunks_exact(self.size) {
            let all = self.after.get(&found.place.node).into_iter().flatten().copied();
            let same = all.filter(|&page| self.known(page).tokens == block);
            // Exact rows serve everybody; others none who wants the same text again.
            let Some(page) = same.max_by_key(|&page| self.known(page).exact) else { break };
            let known = self.known(page);
            // A beginning leaves behind its ends.
            let behind = self.is_here(page) && !found.away.is_empty();
            if behind || reuse == Reuse::Exact && known.exact < self.size {
                break;
            }
            if found.exact == found.place.blocks * self.size {
                found.exact += known.exact;
            }
            found.place = PrefixNode::new(found.place.blocks + 1, known.node);
            if self.is_here(page) { &mut found.pages } else { &mut found.away }.push(page);
        }
        found
    }
    /// Is that a page, and no place of the host?
    pub(super) fn is_here(&self, page: u32) -> bool {
        (page as usize) < self.here
    }
    /// Has what a place holds, which is held, brought back to a page that somebody has taken.
    pub fn bring_back(&mut self, place: u32, page: u32) {
        self.moves.push(Swap::In { place: place - self.here as u32, page });
        self.moved(place, page);
        self.pages[place as usize].holders = 0;
        self.places.push(place);
    }
    /// A page that nobody has leaves for the host, if that has a place and it is whole.
    fn evict(&mut self, page: u32, left: u64) {
        let Known { before, tokens, .. } = self.known(page);
        // What came behind a page that is forgotten is found no more.
        let whole = tokens.len() == self.size && (*before == START || self.after.contains_key(before));
        let place = self.places.pop().or_else(|| {
            let (_, place) = if whole { self.away.pop_first()? } else { return None };
            self.forget(place);
            Some(place)
        });
        let Some(place) = place.filter(|_| whole) else {
            self.places.extend(place);
            return self.forget(page);
        };
        self.moves.push(Swap::Out { page, place: place - self.here as u32 });
        self.moved(page, place);
        self.pages[place as usize].left = left;
        self.away.insert(left, place);
    }
    /// What is known of one is known of the other.
    fn moved(&mut self, from: u32, to: u32) {
        let known = self.pages[from as usize].known.take();
        let beside = known.as_ref().and_then(|known| self.after.get_mut(&known.before));
        beside.into_iter().flatten().filter(|page| **page == from).for_each(|page| *page = to);
        self.pages[to as usize].known = known;
    }
    /// The page whose beginning has most of the tokens behind those found, and what the token behind them sees; of exact ones whole blocks.
    fn find_part(&self, tokens: &[u32], reuse: Reuse, found: &mut PrefixHit, wanted: bool) {
        let begin = found.place.blocks * self.size;
        let common = |page| {
            let known = self.known(page);
            let common = known.tokens.iter().zip(&tokens[begin..]).take_while(|(a, b)| a == b).count();
            let exact = common.min(known.exact) / BLOCK * BLOCK;
            (if reuse == Reuse::Exact { exact } else { common }, exact, page)
        };
        let here = self.after.get(&found.place.node).into_iter().flatten().filter(|&&page| self.is_here(page));
        let all: Vec<_> = here.map(|&page| common(page)).collect();
        found.known = begin + all.iter().map(|part| part.0).max().unwrap_or(0);
        let part = |&(positions, exact, page): &(usize, usize, u32)| {
            let window = self.pages[page as usize].window;
            (exact, PartialPage { page, window, positions })
        };
        let usable = all.iter().filter(|of| wanted && of.0 > 0 && self.goes_on(&found.pages, Some(&part(of).1)));
        let Some((exact, part)) = usable.max().map(part) else { return };
        if found.exact == begin {
            found.exact += exact;
        }
        found.part = Some(part);
    }
    /// Lets go of what was found.
    pub fn let_go(&mut self, mut found: PrefixHit) {
        self.release_windows(&mut found.windows, &found.pages);
        found.state.iter().for_each(|&row| self.let_go_of_state(row));
        self.release(&found.away);
        self.release(&found.pages);
        if let Some(part) = found.part {
            self.copied(&part);
        }
    }
    /// Lets go of a page that was held to be copied.
    pub fn copied(&mut self, part: &PartialPage) {
        if let Some(window) = part.window {
            self.let_go_of(part.page, window, true);
        }
        self.release(&[part.page]);
    }
    pub(super) fn known(&self, page: u32) -> &Known {
        match &self.pages[page as usize].known {
            Some(known) => known,
            None => unreachable!("page {page} stands in the tree"),
        }
    }
    /// Somebody else has it as well.
    pub fn hold(&mut self, page: u32) {
        let it = &mut self.pages[page as usize];
        it.holders += 1;
        if it.holders == 1 {
            if (page as usize) < self.here { &mut self.kept } else { &mut self.away }.remove(&it.left);
        }
    }
    /// Inserts a sequence's whole pages into the prefix tree, and with `part` the positions that its last page has so far; its tokens up to there are `tokens`, of
    /// which the first `exact` are exact.
    pub fn insert(&mut self, place: &mut PrefixNode, pages: &[u32], tokens: &[u32], exact: usize, part: bool) {
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
            *place = PrefixNode { blocks: place.blocks + 1, node: node.unwrap_or(START), lost: node.is_none() };
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
            self.free.insert(page);
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
            let here = (page as usize) < self.here;
            if it.known.is_some() {
                self.clock += 1;
                it.left = self.clock;
                if here { &mut self.kept } else { &mut self.away }.insert(self.clock, page);
            } else {
                match here {
                    true => _ = self.free.insert(page),
                    false => self.places.push(page),
                }
            }
        }
    }
    /// Removes the targets of failed swaps from the prefix tree.
    pub fn invalidate_swaps(&mut self, moves: &[Swap]) {
        for &of in moves {
            match of {
                Swap::Out { place, .. } => {
                    let place = place + self.here as u32;
                    self.forget(place);
                    let it = &self.pages[place as usize];
                    if self.away.remove(&it.left).is_some() {
                        self.places.push(place);
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
        self.states.iter_mut().for_each(|states| states.forget(known.node));
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
        let here = self.free.iter().chain(self.kept.values());
        here.chain(&self.places).chain(self.away.values()).for_each(|&page| seen[page as usize] += 1);
        assert!(self.away.iter().all(|(left, &place)| self.pages[place as usize].left == *left));
        assert!(self.away.values().all(|&place| self.known(place).tokens.len() == self.size));
        for (page, times) in self.pages.iter().zip(&seen) {
            assert_eq!(*times, u32::from(page.holders == 0), "{page:?}");
        }
        assert!(self.free.iter().all(|&page| self.pages[page as usize].known.is_none()));
        assert!(self.kept.iter().all(|(left, &page)| self.pages[page as usize].left == *left));
        assert!(self.kept.values().all(|&page| self.pages[page as usize].known.is_some()));
        assert!(self.free.iter().all(|&page| self.pages[page as usize].window.is_none()));
        self.check_windows();
        self.states.iter().for_each(StatePool::check);
    }
}
