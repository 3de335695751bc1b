//! What steps over a pool of pages read besides what all steps do. Which sequence has which page is the caller's affair (`sched`); here pages are numbers.

use super::captured::Captured;
use super::class::Class;
use super::error::Error;
use super::inputs::Inputs;
use super::sets::Ahead;
use crate::arch::Options;
use crate::sampling::Rows;
use gristmill_runtime::{Buffer, Device, Memory};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// What steps over a pool of pages read besides what all steps do.
pub(super) struct Pool {
    pub(super) pages: usize,
    pub(super) sequences: usize,
    /// Pages that a sequence may have.
    pub(super) blocks: usize,
    /// The pages of the only sequence of a step, or of that with a piece, `[blocks]`.
    pub(super) own: Buffer,
    pub(super) inputs: Inputs,
    /// Tokens chosen by the last step, one for each row.
    pub(super) chosen: Buffer,
    /// What was written into `own`.
    pub(super) own_written: Vec<u32>,
    pub(super) captured: FxHashMap<Class, Captured>,
    /// What rows are told besides, once somebody has asked.
    pub(super) ranks: Option<Ranks>,
    /// What steps have that are started before the one before is read, once there was one.
    pub(super) ahead: Option<Ahead>,
}

/// What rows are told, and the steps that tell them, by the most rows of each.
pub(super) struct Ranks {
    pub(super) rows: Rows,
    pub(super) captured: FxHashMap<usize, Captured>,
}

impl Pool {
    /// Of so many pages, for steps of at most so many sequences of at most `rows` positions, and pieces of at most `chunk` tokens.
    pub fn new(
        device: &Arc<dyn Device>,
        rows: usize,
        pages: usize,
        sequences: usize,
        chunk: usize,
    ) -> Result<Pool, Error> {
        let blocks = rows / Options::PAGE;
        let numbers = |n: usize, memory| device.alloc(n * size_of::<i32>(), memory);
        Ok(Pool {
            pages,
            sequences,
            blocks,
            own: numbers(blocks, Memory::Scratch)?,
            inputs: Inputs::new(&**device, blocks, sequences + 1, chunk + sequences)?,
            chosen: numbers(sequences + 1, Memory::State)?,
            own_written: Vec::new(),
            captured: FxHashMap::default(),
            ranks: None,
            ahead: None,
        })
    }
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let ranks = self.ranks.iter().flat_map(|ranks| ranks.rows.buffers());
        let ahead = self.ahead.iter().flat_map(Ahead::buffers);
        [&self.own, &self.chosen].into_iter().chain(self.inputs.buffers()).chain(ranks).chain(ahead)
    }
    pub fn check(&self, pages: &[u32]) -> Result<(), Error> {
        let fits = pages.len() <= self.blocks && pages.iter().all(|&page| (page as usize) < self.pages);
        if fits { Ok(()) } else { Err(Error::Pages) }
    }
}
