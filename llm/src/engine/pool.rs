//! What steps over a pool of pages read besides what all steps do. Which sequence has which page is the caller's affair (`sched`); here pages are numbers.

use super::captured::Captured;
use super::class::Class;
use super::error::Error;
use super::pages::{Pages, Written};
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
    /// The pages of the only sequence of a step, `[blocks]`, and those of each of several, `[sequences, blocks]`; then those of the pool of windows, if there is one.
    pub(super) own: Vec<Buffer>,
    pub(super) table: Vec<Buffer>,
    pub(super) positions: Buffer,
    /// Tokens chosen by the last step, one for each row.
    pub(super) chosen: Buffer,
    /// What was written into `own` and each row of `table`.
    pub(super) own_written: Written,
    pub(super) written: Vec<Written>,
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
    /// Of so many pages, for steps of at most so many sequences of at most `rows` positions.
    pub fn new(device: &Arc<dyn Device>, rows: usize, pools: Pools, sequences: usize) -> Result<Pool, Error> {
        let blocks = rows / Options::PAGE;
        let numbers = |n: usize, memory| device.alloc(n * size_of::<i32>(), memory);
        let tables = |n: usize| -> Result<Vec<Buffer>, _> {
            let of = 1 + usize::from(pools.windows.is_some());
            (0..of).map(|_| numbers(n, Memory::Scratch)).collect()
        };
        Ok(Pool {
            pools,
            sequences,
            blocks,
            own: tables(blocks)?,
            table: tables(sequences * blocks)?,
            positions: numbers(sequences, Memory::Scratch)?,
            chosen: numbers(sequences, Memory::State)?,
            own_written: Written::default(),
            written: vec![Written::default(); sequences],
            captured: FxHashMap::default(),
            ranks: None,
        })
    }
    pub fn bound(&self, bind: &Bind) -> Buffer {
        match bind {
            Bind::Positions => self.positions.clone(),
            Bind::Pages => self.own[0].clone(),
            Bind::Table => self.table[0].clone(),
            Bind::WindowPages => self.own[1].clone(),
            Bind::WindowTable => self.table[1].clone(),
            _ => unreachable!("{bind:?} is no part of a pool"),
        }
    }
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let ranks = self.ranks.iter().flat_map(|ranks| ranks.rows.buffers());
        self.own.iter().chain(&self.table).chain([&self.positions, &self.chosen]).chain(ranks)
    }
    pub fn check(&self, pages: Pages) -> Result<(), Error> {
        pages.check(self.pools, self.blocks)
    }
}
