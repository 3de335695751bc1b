//! Which pages a sequence has: numbers, whose meaning is that of who gives them (`sched`).

use crate::arch::Pools;
use crate::error::Error;
use std::ops::Range;

/// The pages of a sequence, in the order of its positions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pages<'a> {
    /// Those of layers that keep every position, and of all layers where there is no pool of windows.
    pub all: &'a [u32],
    /// Those of the pool of windows, as many: of positions that no token of the step sees any numbers.
    pub windows: &'a [u32],
    /// Its row of states, which no other sequence of a step has; any number where the model keeps none.
    pub state: u32,
}

impl<'a> From<&'a [u32]> for Pages<'a> {
    fn from(all: &'a [u32]) -> Pages<'a> {
        Pages { all, ..Pages::default() }
    }
}

impl Pages<'_> {
    /// Are they pages of these pools, no more than `blocks`, and is the row of states one of them?
    pub(super) fn check(&self, pools: Pools, blocks: usize) -> Result<(), Error> {
        let within = |pages: &[u32], of: usize| pages.iter().all(|&page| (page as usize) < of);
        let windows = match pools.windows {
            None => self.windows.is_empty(),
            Some(windows) => self.windows.len() == self.all.len() && within(self.windows, windows),
        };
        let state = pools.states == 0 || (self.state as usize) < pools.states;
        let fits = self.all.len() <= blocks && within(self.all, pools.pages) && windows && state;
        if fits { Ok(()) } else { Err(Error::Pages) }
    }
}

/// A page to be made what another one is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageCopy {
    /// Which is copied.
    pub from: u32,
    /// Which it is copied to.
    pub to: u32,
    /// Of the pool of windows, which to which.
    pub windows: Option<[u32; 2]>,
}

/// A row of states to be made what another one is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateCopy {
    /// Which is copied.
    pub from: u32,
    /// Which it is copied to.
    pub to: u32,
}

/// The variables of a step that reads neighbouring pages without a block table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ContiguousView {
    /// The page of the first position.
    pub first_page: u32,
    /// Blocks that the window pool's ring buffer is shifted by.
    pub window_shift: usize,
}

impl Pages<'_> {
    /// The contiguous view of these pages for tokens at `positions`, if the pages are neighbours and a
    /// whole context from the first lies inside the pool. Window pages must be neighbours in the
    /// ring buffer as far as the tokens see `window` positions.
    pub(super) fn contiguous(
        &self,
        pools: Pools,
        blocks: usize,
        window: Option<usize>,
        positions: Range<usize>,
    ) -> Option<ContiguousView> {
        let first_page = *self.all.first()?;
        let neighbours = self.all.iter().zip(first_page..).all(|(&page, at)| page == at);
        if !neighbours || first_page as usize + blocks > pools.pages {
            return None;
        }
        let mut window_shift = 0;
        if let (Some(count), Some(window)) = (pools.windows, window) {
            let first = (positions.start + 1).saturating_sub(window) / Pools::PAGE;
            let seen = self.windows.get(first..positions.end.div_ceil(Pools::PAGE))?;
            let begin = *seen.first()? as usize;
            if !seen.iter().enumerate().all(|(at, &page)| page as usize == (begin + at) % count) {
                return None;
            }
            window_shift = (begin + count - first % count) % count;
        }
        Some(ContiguousView { first_page, window_shift })
    }
}

/// The block table last written for a row of a step.
#[derive(Clone, Default)]
pub(super) struct WrittenTable {
    all: Vec<u32>,
    windows: Vec<u32>,
}

impl WrittenTable {
    /// Notes these pages, and tells which of the two lists have changed.
    pub(super) fn note(&mut self, pages: Pages) -> [bool; 2] {
        let changed = |old: &mut Vec<u32>, new: &[u32]| {
            let is = old != new;
            if is {
                *old = new.to_vec();
            }
            is
        };
        [changed(&mut self.all, pages.all), changed(&mut self.windows, pages.windows)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_pages_need_no_table() {
        let pools = Pools { pages: 10, windows: None, states: 0 };
        let view = |all: &[u32]| Pages::from(all).contiguous(pools, 4, None, 0..1).map(|view| view.first_page);
        assert_eq!(view(&[0, 1, 2]), Some(0));
        assert_eq!(view(&[6, 7]), Some(6));
        assert_eq!(view(&[7, 8]), None, "a whole context does not fit behind it");
        assert_eq!(view(&[0, 2]), None);
        assert_eq!(view(&[]), None);
    }

    #[test]
    fn window_pages_are_a_ring() {
        let pools = Pools { pages: 100, windows: Some(5), states: 0 };
        let all: Vec<u32> = (0..20).collect();
        let shift = |windows: &[u32], positions| {
            let pages = Pages { all: &all, windows, state: 0 };
            pages.contiguous(pools, 20, Some(100), positions).map(|view| view.window_shift)
        };
        assert_eq!(shift(&[0, 1, 2], 0..192), Some(0));
        // The token at position 250 sees from 151 on: blocks 2 and 3, in pages 4 and 0.
        assert_eq!(shift(&[7, 7, 4, 0], 250..251), Some(2));
        assert_eq!(shift(&[7, 7, 4, 1], 250..251), None);
        // Block 12 in page 3: 12 modulo 5 is 2.
        assert_eq!(shift(&[vec![9; 12], vec![3, 4]].concat(), 867..868), Some(1));
    }
}
