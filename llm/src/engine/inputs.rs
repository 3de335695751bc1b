//! What the host writes for a step of several sequences.

use super::error::Error;
use super::pages::{Pages, Written};
use crate::arch::{Bind, Pools};
use gristmill_runtime::{Buffer, Device, Memory};

/// A token of a sequence, to be run beside others'.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Its id.
    pub token: u32,
    /// Where it stands in its sequence.
    pub position: usize,
    /// The sequence's pages up to there. That of this position is no other row's.
    pub pages: Pages<'a>,
}

pub(super) fn bytes(numbers: impl Iterator<Item = u32>) -> Vec<u8> {
    numbers.flat_map(u32::to_le_bytes).collect()
}

/// Tables of so many numbers of pages: that of all pages, and that of the pool of windows if there is one.
pub(super) fn tables(device: &dyn Device, pools: Pools, numbers: usize) -> Result<Vec<Buffer>, Error> {
    let of = 1 + usize::from(pools.windows.is_some());
    Ok((0..of).map(|_| device.alloc(numbers * size_of::<i32>(), Memory::Scratch)).collect::<Result<_, _>>()?)
}

/// Makes these pages those that tables have from that byte on, where others were written there.
pub(super) fn write_pages(
    device: &dyn Device,
    tables: &[Buffer],
    at: usize,
    written: &mut Written,
    pages: Pages,
) -> Result<(), Error> {
    let changed = written.note(pages);
    for ((new, numbers), table) in changed.into_iter().zip([pages.all, pages.windows]).zip(tables) {
        if new {
            device.write(table, at, &bytes(numbers.iter().copied()))?;
        }
    }
    Ok(())
}

/// What the host writes for a step of several sequences.
#[derive(Clone)]
pub(super) struct Inputs {
    /// The pages of each, `[rows, blocks]`, then those of the pool of windows, if there is one; and those that were written.
    tables: Vec<Buffer>,
    written: Vec<Written>,
    blocks: usize,
    /// Of each token its position, and where there is a piece the row of the pool.
    pub(super) positions: Buffer,
    pub(super) slots: Buffer,
    /// The row of states of each sequence; none where the model keeps none.
    states: Option<Buffer>,
}

impl Inputs {
    /// For so many rows of a table, of so many pages each, and so many tokens.
    pub fn new(device: &dyn Device, pools: Pools, [rows, blocks]: [usize; 2], tokens: usize) -> Result<Inputs, Error> {
        let numbers = |n: usize| device.alloc(n * size_of::<i32>(), Memory::Scratch);
        let (tables, positions, slots) = (tables(device, pools, rows * blocks)?, numbers(tokens)?, numbers(tokens)?);
        let states = (pools.states > 0).then(|| numbers(rows)).transpose()?;
        Ok(Inputs { tables, written: vec![Written::default(); rows], blocks, positions, slots, states })
    }
    /// Makes the pages of these rows those of the table's, and their rows of states those of the sequences.
    pub fn write_table(&mut self, device: &dyn Device, rows: &[Row]) -> Result<(), Error> {
        if let Some(states) = &self.states {
            device.write(states, 0, &bytes(rows.iter().map(|row| row.pages.state)))?;
        }
        for (at, (row, written)) in rows.iter().zip(&mut self.written).enumerate() {
            write_pages(device, &self.tables, at * self.blocks * size_of::<i32>(), written, row.pages)?;
        }
        Ok(())
    }
    pub fn bound(&self, bind: &Bind) -> Buffer {
        match bind {
            Bind::Positions => self.positions.clone(),
            Bind::Slots => self.slots.clone(),
            Bind::Table => self.tables[0].clone(),
            Bind::WindowTable => self.tables[1].clone(),
            Bind::StateRows => self.states.clone().expect("a step with states is of a model that keeps some"),
            _ => unreachable!("{bind:?} is none of several sequences"),
        }
    }
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.tables.iter().chain([&self.positions, &self.slots]).chain(&self.states)
    }
}
