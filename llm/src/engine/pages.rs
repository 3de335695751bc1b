//! Which pages a sequence has: numbers, whose meaning is that of who gives them (`sched`).

use super::error::Error;
use super::executor::Engine;
use crate::arch::{Options, Pools};

/// The pages of a sequence, in the order of its positions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pages<'a> {
    /// Those of layers that keep every position, and of all layers where there is no pool of windows.
    pub all: &'a [u32],
    /// Those of the pool of windows, as many: of positions that no token of the step sees any numbers.
    pub windows: &'a [u32],
}

impl<'a> From<&'a [u32]> for Pages<'a> {
    fn from(all: &'a [u32]) -> Pages<'a> {
        Pages { all, windows: &[] }
    }
}

impl Pages<'_> {
    /// Are they pages of these pools, no more than `blocks`?
    pub(super) fn check(&self, pools: Pools, blocks: usize) -> Result<(), Error> {
        let within = |pages: &[u32], of: usize| pages.iter().all(|&page| (page as usize) < of);
        let windows = match pools.windows {
            None => self.windows.is_empty(),
            Some(windows) => self.windows.len() == self.all.len() && within(self.windows, windows),
        };
        let fits = self.all.len() <= blocks && within(self.all, pools.pages) && windows;
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

/// What was last written of a sequence's pages.
#[derive(Clone, Default)]
pub(super) struct Written {
    all: Vec<u32>,
    windows: Vec<u32>,
}

impl Written {
    /// Notes these pages, and tells which of the two lists are new.
    pub fn note(&mut self, pages: Pages) -> [bool; 2] {
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

impl Engine {
    /// Pages of its pool; none where its cache is one sequence's.
    pub fn pages(&self) -> Option<usize> {
        self.cache.pages.map(|pools| pools.pages)
    }
    /// Pages of its pool of windows; none where there is none.
    pub fn window_pages(&self) -> Option<usize> {
        self.cache.pages?.windows
    }
    /// Pages of windows for the first so many blocks of a sequence that has one of so many equal shares of the pool for itself, one after the other and again: enough
    /// for steps of one token. None where there is no pool of windows.
    pub fn window_pages_in_turn(&self, share: usize, shares: usize, blocks: usize) -> Vec<u32> {
        let Some(windows) = self.window_pages() else { return Vec::new() };
        let each = windows / shares;
        (0..blocks).map(|block| (share * each + block % each) as u32).collect()
    }
    /// Makes a page what another one is.
    ///
    /// # Errors
    /// When there is no pool, one of them is no page of it, or the device fails.
    pub fn copy_page(&mut self, copy: &PageCopy) -> Result<(), Error> {
        self.finish()?;
        let (pools, blocks) = (self.cache.pages.ok_or(Error::NoPool)?, self.pool()?.blocks);
        let windows = copy.windows.unwrap_or_default();
        for (nth, page) in [copy.from, copy.to].into_iter().enumerate() {
            let windows = if copy.windows.is_some() { &windows[nth..=nth] } else { &[] };
            Pages { all: &[page], windows }.check(pools, blocks)?;
        }
        let mut rows = Vec::new();
        for (buffer, plane) in self.states.iter().flatten().zip(self.planes.iter().flatten()) {
            let [from, to] = copy.windows.filter(|_| plane.window().is_some()).unwrap_or([copy.from, copy.to]);
            let bytes = plane.bytes(Options::PAGE);
            rows.resize(bytes, 0);
            self.device().read(buffer, from as usize * bytes, &mut rows)?;
            self.device().write(buffer, to as usize * bytes, &rows)?;
        }
        Ok(())
    }
}
