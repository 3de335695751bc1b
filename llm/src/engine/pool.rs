//! What steps over a pool of pages read besides what all steps do. Which sequence has which page is the caller's affair (`sched`); here pages are numbers.

use super::captured::Captured;
use super::class::Class;
use super::error::Error;
use crate::arch::{Bind, Options};
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
    /// The pages of the only sequence of a step, or of that with a piece, `[blocks]`, and those of each of several, `[sequences + 1, blocks]`.
    pub(super) own: Buffer,
    pub(super) table: Buffer,
    /// Of each token its position, and where there is a piece the row of the pool.
    pub(super) positions: Buffer,
    pub(super) slots: Buffer,
    /// Tokens chosen by the last step, one for each row.
    pub(super) chosen: Buffer,
    /// What was written into `own` and each row of `table`.
    pub(super) own_written: Vec<u32>,
    pub(super) written: Vec<Vec<u32>>,
    pub(super) captured: FxHashMap<Class, Captured>,
    /// What rows are told besides, once somebody has asked.
    pub(super) ranks: Option<Ranks>,
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
        let (blocks, tokens) = (rows / Options::PAGE, chunk + sequences);
        let numbers = |n: usize, memory| device.alloc(n * size_of::<i32>(), memory);
        Ok(Pool {
            pages,
            sequences,
            blocks,
            own: numbers(blocks, Memory::Scratch)?,
            table: numbers((sequences + 1) * blocks, Memory::Scratch)?,
            positions: numbers(tokens, Memory::Scratch)?,
            slots: numbers(tokens, Memory::Scratch)?,
            chosen: numbers(sequences + 1, Memory::State)?,
            own_written: Vec::new(),
            written: vec![Vec::new(); sequences + 1],
            captured: FxHashMap::default(),
            ranks: None,
        })
    }
    pub fn bound(&self, bind: &Bind) -> Buffer {
        match bind {
            Bind::Positions => self.positions.clone(),
            Bind::Slots => self.slots.clone(),
            Bind::Pages => self.own.clone(),
            Bind::Table => self.table.clone(),
            _ => unreachable!("{bind:?} is no part of a pool"),
        }
    }
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let ranks = self.ranks.iter().flat_map(|ranks| ranks.rows.buffers());
        [&self.own, &self.table, &self.positions, &self.slots, &self.chosen].into_iter().chain(ranks)
    }
    pub fn check(&self, pages: &[u32]) -> Result<(), Error> {
        let fits = pages.len() <= self.blocks && pages.iter().all(|&page| (page as usize) < self.pages);
        if fits { Ok(()) } else { Err(Error::Pages) }
    }
}
