//! Pages of sliding-window layers, in a separate pool: a page of positions has at
//! most one window page.
//!
//! A sequence holds the window pages that its next token sees. Those that leave the window stay
//! cached with their page while there is room and the page is in the prefix tree, so that other
//! sequences can continue there. Window pages at likely branch points (ends of sequences, ends of
//! prompts, earlier branches) are evicted last.

use super::pages::{PagePool, PartialPage};
use super::sliding_window_pool::{WindowPages, WindowPool};
use crate::arch::Pools;

/// Window pages of a page pool. Without a window pool these methods do nothing.
impl PagePool {
    /// Returns the number of unreferenced window pages that may still be reused.
    pub fn cached_windows(&self) -> usize {
        self.windows.as_ref().map_or(0, WindowPool::cached)
    }
    /// Returns the number of positions in these pages and a partial page.
    fn positions(&self, pages: &[u32], part: Option<&PartialPage>) -> usize {
        pages.len() * self.page_size + part.map_or(0, |part| part.positions)
    }
    /// Returns whether all window pages exist that a token after these pages and
    /// a partial page sees.
    pub(super) fn covers_window(&self, pages: &[u32], part: Option<&PartialPage>) -> bool {
        let Some(windows) = &self.windows else {
            return true;
        };
        let first = windows.window_start(self.positions(pages, part)) / self.page_size;
        let there = |&page: &u32| self.pages[page as usize].window.is_some();
        pages.iter().skip(first).all(there) && part.is_none_or(|part| part.window.is_some())
    }
    /// Retains the window pages that the next token after these pages and a partial page sees.
    pub(super) fn retain_windows(
        &mut self,
        pages: &[u32],
        part: Option<&PartialPage>,
    ) -> WindowPages {
        let positions = self.positions(pages, part);
        let Some(windows) = &mut self.windows else {
            return WindowPages::default();
        };
        let first = (windows.window_start(positions) / self.page_size).min(pages.len());
        let of = |&page: &u32| self.pages[page as usize].window.unwrap_or_default();
        let numbers: Vec<u32> = pages.iter().map(of).collect();
        numbers[first..]
            .iter()
            .chain(part.and_then(|part| part.window.as_ref()))
            .for_each(|&n| windows.retain(n));
        WindowPages { first, numbers }
    }
    /// Retains the window pages that a token at `position` sees, for an in-flight step. Returns
    /// each page with its window page.
    pub(super) fn retain_visible(
        &mut self,
        held: &WindowPages,
        pages: &[u32],
        position: usize,
    ) -> Vec<[u32; 2]> {
        let Some(windows) = &mut self.windows else {
            return Vec::new();
        };
        let first = held
            .first
            .max(windows.window_start(position) / self.page_size);
        let seen = pages
            .iter()
            .zip(&held.numbers)
            .skip(first)
            .map(|(&page, &number)| [page, number]);
        seen.inspect(|&[_, number]| windows.retain(number))
            .collect()
    }
    /// Takes window pages for the first `end` positions of a sequence with these pages.
    pub fn ensure_windows(&mut self, held: &mut WindowPages, pages: &[u32], end: usize) {
        while self.windows.is_some() && held.numbers.len() < end.div_ceil(self.page_size) {
            let page = pages[held.numbers.len()];
            let last = held.numbers.last().copied();
            held.numbers.push(self.take_window(Some(page), last));
        }
    }
    /// Takes a window page for page `of`, preferably the one after `after`.
    fn take_window(&mut self, of: Option<u32>, after: Option<u32>) -> u32 {
        let taken = self
            .windows
            .as_mut()
            .and_then(|windows| windows.take(of, after));
        let (number, before) =
            taken.expect("there is room for what every sequence sees: Pools::new");
        if let Some(before) = before {
            self.pages[before as usize].window = None;
        }
        if let Some(of) = of {
            self.pages[of as usize].window = Some(number);
        }
        number
    }
    /// Releases the window pages that the next token of a sequence no longer sees. Those seen from
    /// one of the positions `ends` are likely to be reused and are evicted last.
    pub fn release_past_windows(
        &mut self,
        held: &mut WindowPages,
        pages: &[u32],
        computed: usize,
        ends: &[usize],
    ) {
        let Some(windows) = &self.windows else { return };
        let seen =
            |end: usize| windows.window_start(end) / self.page_size..end.div_ceil(self.page_size);
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
    /// Releases all window pages of a sequence. Another may continue at its end, so
    /// they are evicted last.
    pub fn release_windows(&mut self, held: &mut WindowPages, pages: &[u32]) {
        for (&page, &number) in pages.iter().zip(&held.numbers).skip(held.first) {
            self.release_window(page, number, true);
        }
        *held = WindowPages::default();
    }
    /// Borrows window pages for a run of `pages` pages in steps of at most `tokens` tokens:
    /// one number per page, as a ring buffer of the pages that such a step sees. `None` if
    /// too few are available.
    pub(super) fn borrow_windows(&mut self, pages: usize, tokens: usize) -> Option<Vec<u32>> {
        let Some(windows) = &self.windows else {
            return Some(Vec::new());
        };
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
    /// Returns borrowed window pages to the pool.
    pub(super) fn return_windows(&mut self, numbers: &[u32]) {
        let mut own = numbers.to_vec();
        own.sort_unstable();
        own.dedup();
        if let Some(windows) = &mut self.windows {
            own.iter()
                .for_each(|&number| _ = windows.release(number, false, false));
        }
    }
    /// Returns the number of window pages held by sequences, each counted once.
    pub(super) fn held_windows(&self) -> usize {
        self.windows.as_ref().map_or(0, WindowPool::held)
    }
    /// Checks that window pages and pages refer to each other, and that cached ones belong to pages
    /// in the prefix tree.
    #[cfg(test)]
    pub(super) fn check_windows(&self) {
        let Some(windows) = &self.windows else { return };
        windows.check();
        for number in 0..windows.total() {
            let of = windows.owner(number as u32);
            assert!(
                of.is_none_or(|of| self.pages[of as usize].window == Some(number as u32)),
                "{number} of {of:?}"
            );
        }
        for (page, it) in self.pages.iter().enumerate() {
            assert!(
                it.window
                    .is_none_or(|number| windows.owner(number) == Some(page as u32)),
                "{page}: {it:?}"
            );
        }
        for number in windows.all_cached() {
            let of = windows
                .owner(number)
                .expect("what is kept belongs to a page");
            assert!(self.pages[of as usize].entry.is_some(), "{number} of {of}");
        }
    }
}
