//! What steps over a pool of pages read besides what all steps do. Which sequence has which page is the caller's affair (`sched`); here pages are numbers.

use super::captured::Captured;
use super::class::Class;
use super::error::Error;
use super::inputs::{Inputs, tables};
use super::pages::{Pages, Written};
use super::sets::Ahead;
use crate::arch::{Bind, Options, Pools};
use crate::sampling::Rows;
use gristmill_runtime::{Buffer, Device, Memory};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// What steps over a pool of pages read besides what all steps do.
pub(super) struct Pool {
    pub(super) pools: Pools,
    pub(super) sequences: usize,
    /// Pages that a sequence may have.
    pub(super) blocks: usize,
    /// The pages of the only sequence of a step, or of that with a piece, `[blocks]`; then those of the pool of windows, if there is one.
    pub(super) own: Vec<Buffer>,
    /// That sequence's row of states, `[1]`.
    pub(super) own_state: Buffer,
    pub(super) inputs: Inputs,
    /// Tokens chosen by the last step, one for each row.
    pub(super) chosen: Buffer,
    /// What was written into `own`.
    pub(super) own_written: Written,
    pub(super) captured: FxHashMap<Class, Captured>,
    /// What copies rows of states, once somebody has asked.
    pub(super) copying: Option<Copying>,
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

/// What copies a row of states in all layers, and which is copied to which, `[2]`.
pub(super) struct Copying {
    pub(super) captured: Captured,
    pub(super) rows: Buffer,
}

impl Pool {
    /// Of so many pages, for steps of at most so many sequences of at most `rows` positions, and pieces of at most `chunk` tokens.
    pub fn new(
        device: &Arc<dyn Device>,
        rows: usize,
        pools: Pools,
        sequences: usize,
        chunk: usize,
    ) -> Result<Pool, Error> {
        let blocks = rows / Options::PAGE;
        Ok(Pool {
            pools,
            sequences,
            blocks,
            own: tables(&**device, pools, blocks)?,
            own_state: device.alloc(size_of::<i32>(), Memory::Scratch)?,
            inputs: Inputs::new(&**device, pools, [sequences, blocks], chunk + sequences - 1)?,
            chosen: device.alloc(sequences * size_of::<i32>(), Memory::Readback)?,
            own_written: Written::default(),
            captured: FxHashMap::default(),
            copying: None,
            ranks: None,
            ahead: None,
        })
    }
    pub fn bound(&self, bind: &Bind) -> Buffer {
        match bind {
            Bind::Pages => self.own[0].clone(),
            Bind::WindowPages => self.own[1].clone(),
            Bind::StateRow => self.own_state.clone(),
            _ => unreachable!("{bind:?} is none of one sequence"),
        }
    }
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let ranks = self.ranks.iter().flat_map(|ranks| ranks.rows.buffers());
        let ahead = self.ahead.iter().flat_map(Ahead::buffers);
        let copying = self.copying.iter().map(|copying| &copying.rows);
        self.own
            .iter()
            .chain([&self.own_state, &self.chosen])
            .chain(copying)
            .chain(self.inputs.buffers())
            .chain(ranks)
            .chain(ahead)
    }
    pub fn check(&self, pages: Pages) -> Result<(), Error> {
        pages.check(self.pools, self.blocks)
    }
}
