//! Device buffers that the host writes for a step, twice: the step before may still read its own.

use super::pages::{Pages, WrittenTable};
use super::step::{DecodeRow, TokenSource};
use crate::arch::{Bind, Options, Pools};
use crate::error::Error;
use crate::sampling::{PositionRng, REQUEST_PARAMS};
use gristmill_runtime::{Buffer, Device, Memory};

pub(super) fn bytes(numbers: impl Iterator<Item = u32>) -> Vec<u8> {
    numbers.flat_map(u32::to_le_bytes).collect()
}

/// Inputs of one step, and the tokens that it chooses.
pub(super) struct StepInputs {
    /// Block tables `[rows, blocks]`: of all pages, then of the window pool if there is one; and
    /// what each row of them holds.
    tables: Vec<Buffer>,
    written: Vec<WrittenTable>,
    blocks: usize,
    /// Of each token its position and its row of the pool.
    positions: Buffer,
    slots: Buffer,
    /// The row of recurrent states of each sequence; none where the model keeps none.
    states: Option<Buffer>,
    /// Where each row's token is known: a row of the step before, or the id.
    pub(super) from: Buffer,
    pub(super) given: Buffer,
    /// Sampling parameters and a random number of each row.
    pub(super) numbers: Buffer,
    pub(super) random: Buffer,
    /// The token chosen for each row.
    pub(super) chosen: Buffer,
}

impl StepInputs {
    /// Allocates inputs of steps of at most so many sequences and tokens.
    pub(super) fn new(
        device: &dyn Device,
        pools: Pools,
        blocks: usize,
        sequences: usize,
        tokens: usize,
    ) -> Result<StepInputs, Error> {
        let numbers = |n: usize| device.alloc(n * size_of::<i32>(), Memory::Scratch);
        let count = 1 + usize::from(pools.windows.is_some());
        Ok(StepInputs {
            tables: (0..count).map(|_| numbers(sequences * blocks)).collect::<Result<_, _>>()?,
            written: vec![WrittenTable::default(); sequences],
            blocks,
            positions: numbers(tokens)?,
            slots: numbers(tokens)?,
            states: (pools.states > 0).then(|| numbers(sequences)).transpose()?,
            from: numbers(sequences)?,
            given: numbers(sequences)?,
            numbers: numbers(sequences * REQUEST_PARAMS)?,
            random: numbers(sequences)?,
            chosen: device.alloc(sequences * size_of::<i32>(), Memory::Readback)?,
        })
    }
    /// Writes the block tables and state rows of these sequences, where they have changed.
    pub(super) fn write_tables(&mut self, device: &dyn Device, rows: &[Pages]) -> Result<(), Error> {
        if let Some(states) = &self.states {
            device.write(states, 0, &bytes(rows.iter().map(|pages| pages.state)))?;
        }
        for (row, (pages, written)) in rows.iter().zip(&mut self.written).enumerate() {
            let at = row * self.blocks * size_of::<i32>();
            let changed = written.note(*pages);
            for ((new, numbers), table) in changed.into_iter().zip([pages.all, pages.windows]).zip(&self.tables) {
                if new && let Err(error) = device.write(table, at, &bytes(numbers.iter().copied())) {
                    // What the row holds is not known: it is written again.
                    *written = WrittenTable::default();
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }
    /// Writes the positions of all tokens.
    pub(super) fn write_positions(
        &self,
        device: &dyn Device,
        positions: impl Iterator<Item = usize>,
    ) -> Result<(), Error> {
        Ok(device.write(&self.positions, 0, &bytes(positions.map(|at| at as u32)))?)
    }
    /// Writes the pool rows of tokens at these positions of sequences with these pages.
    pub(super) fn write_slots<'p>(
        &self,
        device: &dyn Device,
        tokens: impl Iterator<Item = (usize, Pages<'p>)>,
    ) -> Result<(), Error> {
        let page = Options::PAGE;
        let slot = |(at, pages): (usize, Pages)| pages.all[at / page] * page as u32 + (at % page) as u32;
        Ok(device.write(&self.slots, 0, &bytes(tokens.map(slot)))?)
    }
    /// Writes where the tokens of these rows are known.
    pub(super) fn write_sources(&self, device: &dyn Device, rows: &[DecodeRow]) -> Result<(), Error> {
        let from = |source| if let TokenSource::Row(row) = source { row as u32 } else { u32::MAX };
        device.write(&self.from, 0, &bytes(rows.iter().map(|row| from(row.token))))?;
        Ok(device.write(&self.given, 0, &bytes(rows.iter().map(|row| row.token.token().unwrap_or(0))))?)
    }
    /// Writes the sampling parameters of these rows. A token is chosen for the position behind its row's.
    pub(super) fn write_sampling(&self, device: &dyn Device, rows: &[DecodeRow]) -> Result<(), Error> {
        let numbers: Vec<f32> = rows.iter().flat_map(|row| row.sampling.numbers).collect();
        device.write(&self.numbers, 0, bytemuck::cast_slice(&numbers))?;
        let random = |row: &DecodeRow| PositionRng::at(row.sampling.random, row.position + 1);
        Ok(device.write(&self.random, 0, &bytes(rows.iter().map(random)))?)
    }
    /// The buffer of a bind that inputs have.
    pub(super) fn bound(&self, bind: &Bind) -> Buffer {
        match bind {
            Bind::Positions => self.positions.clone(),
            Bind::Slots => self.slots.clone(),
            // A step of one sequence reads the first row.
            Bind::Table | Bind::Pages => self.tables[0].clone(),
            Bind::WindowTable | Bind::WindowPages => self.tables[1].clone(),
            Bind::StateRows | Bind::StateRow => self.states.clone().expect("the model keeps recurrent states"),
            _ => unreachable!("{bind:?} is no input of a step"),
        }
    }
    pub(super) fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let StepInputs { tables, positions, slots, states, from, given, numbers, random, chosen, .. } = self;
        tables.iter().chain(states).chain([positions, slots, from, given, numbers, random, chosen])
    }
}
