//! What the host writes for a step of several sequences.

use super::error::Error;
use crate::arch::Bind;
use gristmill_runtime::{Buffer, Device, Memory};

/// A token of a sequence, to be run beside others'.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Its id.
    pub token: u32,
    /// Where it stands in its sequence.
    pub position: usize,
    /// The sequence's pages up to there, in the order of its positions. That of this position is no other row's.
    pub pages: &'a [u32],
}

pub(super) fn bytes(numbers: impl Iterator<Item = u32>) -> Vec<u8> {
    numbers.flat_map(u32::to_le_bytes).collect()
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
