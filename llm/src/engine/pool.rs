//! What steps over a pool of pages read besides what all steps do. Which sequence has which page is the caller's affair (`sched`); here pages are numbers.

use super::ahead::Ahead;
use super::captured::Captured;
use super::class::Class;
use super::error::Error;
use super::several::{Row, bytes};
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

/// What the host writes for a step of several sequences.
#[derive(Clone)]
pub(super) struct Inputs {
    /// The pages of each, `[rows, blocks]`, and those that were written.
    table: Buffer,
    written: Vec<Vec<u32>>,
    blocks: usize,
    /// Of each token its position, and where there is a piece the row of the pool.
    pub(super) positions: Buffer,
    pub(super) slots: Buffer,
}

impl Inputs {
    /// For so many rows of a table, of so many pages each, and so many tokens.
    pub fn new(device: &dyn Device, blocks: usize, rows: usize, tokens: usize) -> Result<Inputs, Error> {
        let numbers = |n: usize| device.alloc(n * size_of::<i32>(), Memory::Scratch);
        let (table, positions, slots) = (numbers(rows * blocks)?, numbers(tokens)?, numbers(tokens)?);
        Ok(Inputs { table, written: vec![Vec::new(); rows], blocks, positions, slots })
    }
    /// Makes the pages of these rows those of the table's.
    pub fn write_table(&mut self, device: &dyn Device, rows: &[Row]) -> Result<(), Error> {
        for (at, (row, written)) in rows.iter().zip(&mut self.written).enumerate() {
            if written != row.pages {
                *written = row.pages.to_vec();
                device.write(&self.table, at * self.blocks * size_of::<i32>(), &bytes(row.pages.iter().copied()))?;
            }
        }
        Ok(())
    }
    pub fn bound(&self, bind: &Bind) -> Buffer {
        match bind {
            Bind::Positions => self.positions.clone(),
            Bind::Slots => self.slots.clone(),
            Bind::Table => self.table.clone(),
            _ => unreachable!("{bind:?} is none of several sequences"),
        }
    }
    pub fn buffers(&self) -> [&Buffer; 3] {
        [&self.table, &self.positions, &self.slots]
    }
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
