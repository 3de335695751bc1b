//! The pages of an engine's pools: how many there are, shares of those of windows, and copies of pages.

use super::error::Error;
use super::executor::Engine;
use super::pages::{PageCopy, Pages};
use crate::arch::Options;

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
