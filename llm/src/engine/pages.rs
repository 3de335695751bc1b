//! Page numbers of a sequence, as assigned by its scheduler (`sched`).

use crate::arch::{AdapterScales, Pools};
use crate::error::Error;
use std::ops::Range;

/// The block table of a sequence: its pages in order of position.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Pages<'a> {
    /// Pages of full-attention layers, or of all layers if there is no window pool.
    pub all: &'a [u32],
    /// Pages of the window pool, as many as `all`. Entries for positions outside every
    /// token's window are ignored.
    pub windows: &'a [u32],
    /// Row of recurrent states, exclusive to the sequence within a step; ignored if
    /// the model has none.
    pub state: u32,
    /// Factors of adapters that its rows are computed with, if rows choose adapters.
    pub adapters: AdapterScales,
}

impl<'a> From<&'a [u32]> for Pages<'a> {
    fn from(all: &'a [u32]) -> Pages<'a> {
        Pages {
            all,
            ..Pages::default()
        }
    }
}

impl Pages<'_> {
    /// Checks that the pages and the state row are in the pools, and that there are
    /// at most `blocks` pages.
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

/// A copy of one page to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageCopy {
    /// Number of the source page.
    pub from: u32,
    /// Number of the destination page.
    pub to: u32,
    /// Source and destination in the window pool, if it is copied too.
    pub windows: Option<[u32; 2]>,
}

/// A copy of one row of recurrent states to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateCopy {
    /// Number of the source row.
    pub from: u32,
    /// Number of the destination row.
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
    /// Returns the contiguous view of these pages for tokens at `positions`.
    ///
    /// `None` unless the pages are consecutive and a whole context from the first lies inside
    /// the pool. Window pages must be consecutive in the ring buffer over the `window` positions
    /// that the tokens see.
    pub(super) fn contiguous(
        &self,
        pools: Pools,
        blocks: usize,
        window: Option<usize>,
        positions: Range<usize>,
    ) -> Option<ContiguousView> {
        let first_page = *self.all.first()?;
        let neighbours = self
            .all
            .iter()
            .zip(first_page..)
            .all(|(&page, at)| page == at);
        if !neighbours || first_page as usize + blocks > pools.pages {
            return None;
        }
        let mut window_shift = 0;
        if let (Some(count), Some(window)) = (pools.windows, window) {
            let first = (positions.start + 1).saturating_sub(window) / Pools::PAGE;
            let seen = self
                .windows
                .get(first..positions.end.div_ceil(Pools::PAGE))?;
            let begin = *seen.first()? as usize;
            if !seen
                .iter()
                .enumerate()
                .all(|(at, &page)| page as usize == (begin + at) % count)
            {
                return None;
            }
            window_shift = (begin + count - first % count) % count;
        }
        Some(ContiguousView {
            first_page,
            window_shift,
        })
    }
}

/// The block table last written for a row of a step.
#[derive(Clone, Default)]
pub(super) struct WrittenTable {
    all: Vec<u32>,
    windows: Vec<u32>,
}

impl WrittenTable {
    /// Stores these pages, and returns for each of the two lists whether it changed.
    pub(super) fn note(&mut self, pages: Pages) -> [bool; 2] {
        let changed = |old: &mut Vec<u32>, new: &[u32]| {
            let is = old != new;
            if is {
                *old = new.to_vec();
            }
            is
        };
        [
            changed(&mut self.all, pages.all),
            changed(&mut self.windows, pages.windows),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_pages_need_no_table() {
        let pools = Pools {
            pages: 10,
            windows: None,
            states: 0,
        };
        let view = |all: &[u32]| {
            Pages::from(all)
                .contiguous(pools, 4, None, 0..1)
                .map(|view| view.first_page)
        };
        assert_eq!(view(&[0, 1, 2]), Some(0));
        assert_eq!(view(&[6, 7]), Some(6));
        assert_eq!(
            view(&[7, 8]),
            None,
            "a whole context does not fit behind it"
        );
        assert_eq!(view(&[0, 2]), None);
        assert_eq!(view(&[]), None);
    }

    #[test]
    fn window_pages_are_a_ring() {
        let pools = Pools {
            pages: 100,
            windows: Some(5),
            states: 0,
        };
        let all: Vec<u32> = (0..20).collect();
        let shift = |windows: &[u32], positions| {
            let pages = Pages {
                all: &all,
                windows,
                ..Pages::default()
            };
            pages
                .contiguous(pools, 20, Some(100), positions)
                .map(|view| view.window_shift)
        };
        assert_eq!(shift(&[0, 1, 2], 0..192), Some(0));
        // The token at position 250 sees positions from 151: blocks 2 and 3, in pages 4 and 0.
        assert_eq!(shift(&[7, 7, 4, 0], 250..251), Some(2));
        assert_eq!(shift(&[7, 7, 4, 1], 250..251), None);
        // Block 12 in page 3: 12 modulo 5 is 2.
        assert_eq!(
            shift(&[vec![9; 12], vec![3, 4]].concat(), 867..868),
            Some(1)
        );
    }
}
