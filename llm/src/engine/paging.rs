//! The pages of an engine's pools: how many there are, shares of those of windows, and copies of pages.

use super::error::Error;
use super::executor::Engine;
use super::pages::{PageCopy, Pages};
use crate::arch::{Options, Plane};
use gristmill_runtime::Buffer;
use gristmill_uop::machine::MachineKind;

impl Engine {
    /// What a page holds, in place of what `rows` has: of each layer, of each of its planes, the rows.
    ///
    /// # Errors
    /// When there is no pool, it is no page of it, there is a pool of windows, or the device fails.
    pub fn read_page(&mut self, page: u32, rows: &mut Vec<u8>) -> Result<(), Error> {
        self.finish()?;
        self.pool()?.check((&[page][..]).into())?;
        rows.resize(self.page_bytes(), 0);
        let mut at = 0;
        for (buffer, plane) in self.of_positions() {
            let bytes = plane.bytes(Options::PAGE);
            self.device().read(buffer, page as usize * bytes, &mut rows[at..at + bytes])?;
            at += bytes;
        }
        Ok(())
    }
    /// Makes a page hold what [`Engine::read_page`] gave.
    ///
    /// # Errors
    /// As for that.
    pub fn write_page(&mut self, page: u32, rows: &[u8]) -> Result<(), Error> {
        self.finish()?;
        self.pool()?.check((&[page][..]).into())?;
        let mut at = 0;
        for (buffer, plane) in self.of_positions() {
            let bytes = plane.bytes(Options::PAGE);
            self.device().write(buffer, page as usize * bytes, &rows[at..at + bytes])?;
            at += bytes;
        }
        Ok(())
    }
    /// Bytes that a page takes in all layers.
    pub fn page_bytes(&self) -> usize {
        self.of_positions().map(|(_, plane)| plane.bytes(Options::PAGE)).sum()
    }
    /// The planes that have a row of a position, and where they lie.
    fn of_positions(&self) -> impl Iterator<Item = (&Buffer, &Plane)> {
        self.all_planes().filter(|(_, plane)| !plane.is_state())
    }
    /// Is the cache in the host's own memory? Then nothing is gained by copies of it there.
    pub fn cache_is_the_hosts(&self) -> bool {
        self.device().target().machine.kind == MachineKind::Cpu
    }
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
            Pages { all: &[page], windows, state: 0 }.check(pools, blocks)?;
        }
        let mut rows = Vec::new();
        for (buffer, plane) in self.of_positions() {
            let [from, to] = copy.windows.filter(|_| plane.window().is_some()).unwrap_or([copy.from, copy.to]);
            let bytes = plane.bytes(Options::PAGE);
            rows.resize(bytes, 0);
            self.device().read(buffer, from as usize * bytes, &mut rows)?;
            self.device().write(buffer, to as usize * bytes, &rows)?;
        }
        Ok(())
    }
}
