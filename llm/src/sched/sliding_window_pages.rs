//! The pages of layers with a window, in a pool beside that of all pages: a page of positions has one of them, or none any more.
//!
//! A sequence has those that its next token sees. What it leaves behind stays with its page while there is room and the tree knows that page, so that others can begin
//! there. What nobody will ask for goes first: where sequences end, where their prompts do, and where others were seen to branch off, is what is asked for.

use super::pages::{PagePool, PartialPage};
use super::sliding_window_pool::{WindowPages, WindowPool};
use crate::arch::Pools;

/// Those of a pool's pages. Where there are no windows nothing happens.
impl PagePool {
    /// How many pages of windows nobody has, though what they hold may be asked for.
    pub fn cached_windows(&self) -> usize {
        self.windows.as_ref().map_or(0, WindowPool::cached)
    }
    /// The positions that these pages and a part of another have.
    fn positions(&self, pages: &[u32], part: Option<&PartialPage>) -> usize {
        pages.len() * self.page_size + part.map_or(0, |part| part.positions)
    }
    /// Can a sequence go on behind the positions of these pages and a part of another?
    pub(super) fn covers_window(&self, pages: &[u32], part: Option<&PartialPage>) -> bool {
        let Some(windows) = &self.windows else { return true };
        let first = windows.window_start(self.positions(pages, part)) / self.page_size;
        let there = |&page: &u32| self.pages[page as usize].window.is_some();
        pages.iter().skip(first).all(there) && part.is_none_or(|part| part.window.is_some())
    }
    /// Has somebody who goes on behind these pages and a part of another have the windows that its next token sees.
    pub(super) fn retain_windows(&mut self, pages: &[u32], part: Option<&PartialPage>) -> WindowPages {
        let positions = self.positions(pages, part);
        let Some(windows) = &mut self.windows else { return WindowPages::default() };
        let first = (windows.window_start(positions) / self.page_size).min(pages.len());
        let of = |&page: &u32| self.pages[page as usize].window.unwrap_or_default();
        let numbers: Vec<u32> = pages.iter().map(of).collect();
        numbers[first..].iter().chain(part.and_then(|part| part.window.as_ref())).for_each(|&n| windows.retain(n));
        WindowPages { first, numbers }
    }
    /// Holds what a token of a sequence at that position sees of windows, for a step that is under way: each page with its window's.
    pub(super) fn retain_visible(&mut self, held: &WindowPages, pages: &[u32], position: usize) -> Vec<[u32; 2]> {
        let Some(windows) = &mut self.windows else { return Vec::new() };
        let first = held.first.max(windows.window_start(position) / self.page_size);
        let seen = pages.iter().zip(&held.numbers).skip(first).map(|(&page, &number)| [page, number]);
        seen.inspect(|&[_, number]| windows.retain(number)).collect()
    }
    /// Sees to it that a sequence has windows for its first `end` positions, in these pages, as far as their tokens see them.
    pub fn ensure_windows(&mut self, held: &mut WindowPages, pages: &[u32], end: usize) {
        while self.windows.is_some() && held.numbers.len() < end.div_ceil(self.page_size) {
            let page = pages[held.numbers.len()];
            let last = held.numbers.last().copied();
            held.numbers.push(self.take_window(Some(page), last));
        }
    }
    /// Takes a page of the window pool for that page, behind `after` if it can be.
    fn take_window(&mut self, of: Option<u32>, after: Option<u32>) -> u32 {
        let taken = self.windows.as_mut().and_then(|windows| windows.take(of, after));
        let (number, before) = taken.expect("there is room for what every sequence sees: Pools::new");
        if let Some(before) = before {
            self.pages[before as usize].window = None;
        }
        if let Some(of) = of {
            self.pages[of as usize].window = Some(number);
        }
        number
    }
    /// A sequence, in these pages, has computed so many positions, and leaves behind what the next token does not see. Somebody may ask for what is seen at `ends`.
    pub fn release_past_windows(&mut self, held: &mut WindowPages, pages: &[u32], computed: usize, ends: &[usize]) {
        let Some(windows) = &self.windows else { return };
        let seen = |end: usize| windows.window_start(end) / self.page_size..end.div_ceil(self.page_size);
        let first = seen(computed).start.min(held.numbers.len());
        let asked: Vec<_> = ends.iter().copied().map(seen).collect();
        while held.first < first {
            let asked_for = asked.iter().any(|end| end.contains(&held.first));
            self.release_window(pages[held.first], held.numbers[held.first], asked_for);
            held.first += 1;
        }
    }
    pub(super) fn release_window(&mut self, page: u32, number: u32, asked_for: bool) {
        let known = self.pages[page as usize].entry.is_some();
        if let Some(windows) = &mut self.windows
            && windows.release(number, known, asked_for)
        {
            self.pages[page as usize].window = None;
        }
    }
    /// A sequence, in these pages, lets go of all its windows: somebody may go on where it ended.
    pub fn release_windows(&mut self, held: &mut WindowPages, pages: &[u32]) {
        for (&page, &number) in pages.iter().zip(&held.numbers).skip(held.first) {
            self.release_window(page, number, true);
        }
        *held = WindowPages::default();
    }
    /// Windows for whoever runs so many tokens at most at a time in pages of its own, a number for each of them: as many as such a step sees, one after the other and
    /// again. None where there are too few now.
    pub(super) fn borrow_windows(&mut self, pages: usize, tokens: usize) -> Option<Vec<u32>> {
        let Some(windows) = &self.windows else { return Some(Vec::new()) };
        let ring = Pools::blocks(windows.window(), tokens).min(pages);
        if ring > windows.available() {
            return None;
        }
        let mut pages_of_ring: Vec<u32> = Vec::with_capacity(ring);
        for _ in 0..ring {
            pages_of_ring.push(self.take_window(None, pages_of_ring.last().copied()));
        }
        let ring = pages_of_ring;
        Some((0..pages).map(|page| ring[page % ring.len()]).collect())
    }
    /// Windows that were borrowed.
    pub(super) fn return_windows(&mut self, numbers: &[u32]) {
        let mut own = numbers.to_vec();
        own.sort_unstable();
        own.dedup();
        if let Some(windows) = &mut self.windows {
            own.iter().for_each(|&number| _ = windows.release(number, false, false));
        }
    }
    /// How many pages of windows sequences have, each counted once.
    pub(super) fn held_windows(&self) -> usize {
        self.windows.as_ref().map_or(0, WindowPool::held)
    }
    /// Does every page of windows belong to the page that has it, and is none kept of which the tree does not know the page?
    #[cfg(test)]
    pub(super) fn check_windows(&self) {
        let Some(windows) = &self.windows else { return };
        windows.check();
        for number in 0..windows.total() {
            let of = windows.owner(number as u32);
            assert!(of.is_none_or(|of| self.pages[of as usize].window == Some(number as u32)), "{number} of {of:?}");
        }
        for (page, it) in self.pages.iter().enumerate() {
            assert!(it.window.is_none_or(|number| windows.owner(number) == Some(page as u32)), "{page}: {it:?}");
        }
        for number in windows.all_cached() {
            let of = windows.owner(number).expect("what is kept belongs to a page");
            assert!(self.pages[of as usize].entry.is_some(), "{number} of {of}");
        }
    }
}
