//! Step inputs that the host writes to the device, double-buffered: the previous step may
//! still read its own.

use super::pages::{Pages, WrittenTable};
use super::step::{DecodeRow, TokenSource};
use crate::arch::{AdapterScales, Bind, Options, Pools};
use crate::error::Error;
use crate::sampling::{PositionRng, REQUEST_PARAMS};
use gristmill_runtime::{Buffer, Device, Memory};

/// Maximum steps in flight, and sets of their inputs.
pub(super) const IN_FLIGHT: usize = 2;

pub(super) fn bytes(numbers: impl Iterator<Item = u32>) -> Vec<u8> {
    numbers.flat_map(u32::to_le_bytes).collect()
}

/// Inputs of one step, and the tokens that it chooses.
pub(super) struct StepInputs {
    /// Block tables `[rows, blocks]` of the page pool, then of the window pool if there is one; and
    /// the pages last written to each row.
    tables: Vec<Buffer>,
    written: Vec<WrittenTable>,
    blocks: usize,
    /// Number, position and pool row of each token.
    pub(super) tokens: Buffer,
    positions: Buffer,
    slots: Buffer,
    /// The state row of each sequence; `None` if the model has no recurrent states.
    states: Option<Buffer>,
    /// Factors of adapters of each token, and their number, if rows choose adapters.
    scales: Option<(Buffer, usize)>,
    /// Hidden row before each token, in steps of a draft block.
    draft_rows: Option<Buffer>,
    /// Source of each row's token: a row of the previous step, or the id.
    pub(super) from: Buffer,
    pub(super) given: Buffer,
    /// Sampling parameters and a random number of each row.
    pub(super) numbers: Buffer,
    pub(super) random: Buffer,
    /// The token chosen for each row.
    pub(super) chosen: Buffer,
}

impl StepInputs {
    /// Allocates inputs of steps with at most `sequences` sequences and `tokens` tokens.
    pub(super) fn new(
        device: &dyn Device,
        pools: Pools,
        blocks: usize,
        [sequences, tokens]: [usize; 2],
        (choices, has_draft_rows): (Option<usize>, bool),
    ) -> Result<StepInputs, Error> {
        let numbers = |n: usize| device.alloc(n * size_of::<i32>(), Memory::Scratch);
        let count = 1 + usize::from(pools.windows.is_some());
        Ok(StepInputs {
            tables: (0..count)
                .map(|_| numbers(sequences * blocks))
                .collect::<Result<_, _>>()?,
            written: vec![WrittenTable::default(); sequences],
            blocks,
            tokens: numbers(tokens)?,
            positions: numbers(tokens)?,
            slots: numbers(tokens)?,
            states: (pools.states > 0).then(|| numbers(sequences)).transpose()?,
            scales: choices
                .map(|count| Ok::<_, Error>((numbers(tokens * count)?, count)))
                .transpose()?,
            draft_rows: has_draft_rows.then(|| numbers(tokens)).transpose()?,
            from: numbers(sequences)?,
            given: numbers(sequences)?,
            numbers: numbers(sequences * REQUEST_PARAMS)?,
            random: numbers(sequences)?,
            chosen: device.alloc(sequences * size_of::<i32>(), Memory::Readback)?,
        })
    }
    /// Writes the state rows of these sequences, and the block tables that changed.
    pub(super) fn write_tables(
        &mut self,
        device: &dyn Device,
        rows: &[Pages],
    ) -> Result<(), Error> {
        if let Some(states) = &self.states {
            device.write(states, 0, &bytes(rows.iter().map(|pages| pages.state)))?;
        }
        for (row, (pages, written)) in rows.iter().zip(&mut self.written).enumerate() {
            let at = row * self.blocks * size_of::<i32>();
            let changed = written.note(*pages);
            for ((new, numbers), table) in changed
                .into_iter()
                .zip([pages.all, pages.windows])
                .zip(&self.tables)
            {
                if new && let Err(error) = device.write(table, at, &bytes(numbers.iter().copied()))
                {
                    // The content of the row is unknown now, so the next step writes it again.
                    *written = WrittenTable::default();
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }
    pub(super) fn write_tokens(
        &self,
        device: &dyn Device,
        tokens: impl Iterator<Item = u32>,
    ) -> Result<(), Error> {
        Ok(device.write(&self.tokens, 0, &bytes(tokens))?)
    }
    pub(super) fn write_positions(
        &self,
        device: &dyn Device,
        positions: impl Iterator<Item = usize>,
    ) -> Result<(), Error> {
        Ok(device.write(&self.positions, 0, &bytes(positions.map(|at| at as u32)))?)
    }
    /// Writes the pool row of each token, from its position and its sequence's pages.
    pub(super) fn write_slots<'p>(
        &self,
        device: &dyn Device,
        tokens: impl Iterator<Item = (usize, Pages<'p>)>,
    ) -> Result<(), Error> {
        let page = Options::PAGE;
        let slot =
            |(at, pages): (usize, Pages)| pages.all[at / page] * page as u32 + (at % page) as u32;
        Ok(device.write(&self.slots, 0, &bytes(tokens.map(slot)))?)
    }
    /// Writes the number of each token's text, in a step of a text encoder.
    pub(super) fn write_texts(
        &self,
        device: &dyn Device,
        numbers: impl Iterator<Item = u32>,
    ) -> Result<(), Error> {
        Ok(device.write(&self.slots, 0, &bytes(numbers))?)
    }
    /// Writes the factors of adapters of each token.
    pub(super) fn write_scales(
        &self,
        device: &dyn Device,
        tokens: impl Iterator<Item = AdapterScales>,
    ) -> Result<(), Error> {
        let Some((scales, count)) = &self.scales else {
            return Ok(());
        };
        let numbers: Vec<f32> = tokens
            .flat_map(|of| of.0.into_iter().take(*count))
            .collect();
        Ok(device.write(scales, 0, bytemuck::cast_slice(&numbers))?)
    }
    /// Writes the hidden row before each token of a draft block's step, if there is one.
    pub(super) fn write_draft_rows(
        &self,
        device: &dyn Device,
        rows: impl Iterator<Item = Option<usize>>,
    ) -> Result<(), Error> {
        let Some(buffer) = &self.draft_rows else {
            return Ok(());
        };
        let rows = rows.map(|row| row.map_or(u32::MAX, |row| row as u32));
        Ok(device.write(buffer, 0, &bytes(rows))?)
    }
    /// Writes the token sources of these rows.
    pub(super) fn write_sources(
        &self,
        device: &dyn Device,
        rows: &[DecodeRow],
    ) -> Result<(), Error> {
        let from = |source| {
            if let TokenSource::Row(row) = source {
                row as u32
            } else {
                u32::MAX
            }
        };
        device.write(
            &self.from,
            0,
            &bytes(rows.iter().map(|row| from(row.token))),
        )?;
        Ok(device.write(
            &self.given,
            0,
            &bytes(rows.iter().map(|row| row.token.token().unwrap_or(0))),
        )?)
    }
    /// Writes the sampling parameters of these rows. The random number is that
    /// of the next position.
    pub(super) fn write_sampling(
        &self,
        device: &dyn Device,
        rows: &[DecodeRow],
    ) -> Result<(), Error> {
        let numbers: Vec<f32> = rows.iter().flat_map(|row| row.sampling.numbers).collect();
        device.write(&self.numbers, 0, bytemuck::cast_slice(&numbers))?;
        let random = |row: &DecodeRow| PositionRng::at(row.sampling.random, row.position + 1);
        Ok(device.write(&self.random, 0, &bytes(rows.iter().map(random)))?)
    }
    /// Returns the buffer for `bind`, which must be a step input.
    pub(super) fn bound(&self, bind: &Bind) -> Buffer {
        match bind {
            Bind::Tokens => self.tokens.clone(),
            Bind::Positions => self.positions.clone(),
            // Steps of text encoders have no KV cache.
            Bind::Slots | Bind::Texts => self.slots.clone(),
            // A step of one sequence reads the first row.
            Bind::Table | Bind::Pages => self.tables[0].clone(),
            Bind::WindowTable | Bind::WindowPages => self.tables[1].clone(),
            Bind::AdapterScales => match &self.scales {
                Some((scales, _)) => scales.clone(),
                None => unreachable!("the model has no adapters to choose from"),
            },
            Bind::DraftRows => match &self.draft_rows {
                Some(rows) => rows.clone(),
                None => unreachable!("the model's draft block is used"),
            },
            Bind::StateRows | Bind::StateRow => self
                .states
                .clone()
                .expect("the model keeps recurrent states"),
            _ => unreachable!("{bind:?} is no input of a step"),
        }
    }
    pub(super) fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let StepInputs {
            tables,
            tokens,
            positions,
            slots,
            states,
            scales,
            draft_rows,
            from,
            given,
            numbers,
            random,
            chosen,
            ..
        } = self;
        tables
            .iter()
            .chain(states)
            .chain(draft_rows)
            .chain(scales.iter().map(|s| &s.0))
            .chain([
                tokens, positions, slots, from, given, numbers, random, chosen,
            ])
    }
}
