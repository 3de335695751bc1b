//! Which pages a sequence has: numbers, whose meaning is that of who gives them (`sched`).

use super::error::Error;
use crate::arch::Pools;

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
