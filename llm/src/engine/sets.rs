//! The sets of buffers of steps that are started before the one before is read, and which are under way.

use super::captured::Captured;
use super::class::Class;
use super::error::Error;
use super::inputs::Inputs;
use crate::arch::Pools;
use crate::sampling::{Among, NUMBERS};
use gristmill_runtime::{Buffer, Device, Memory};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Steps that may be under way at once.
pub(super) const STARTED: usize = 2;

/// A class of step, which of the sets it has, and among which ids its tokens are drawn.
pub(super) type Key = (Class, usize, Among);

/// What steps ahead have for themselves.
pub(super) struct Ahead {
    pub(super) sets: [Set; STARTED],
    pub(super) captured: FxHashMap<Key, Captured>,
    /// Of the steps under way, the earliest first, which it is and how many rows it has.
    pub(super) started: VecDeque<(Key, usize)>,
    /// The set of the next.
    pub(super) next: usize,
}

/// What is written for a step, and what it chooses.
pub(super) struct Set {
    pub(super) inputs: Inputs,
    pub(super) from: Buffer,
    pub(super) given: Buffer,
    pub(super) numbers: Buffer,
    pub(super) random: Buffer,
    pub(super) chosen: Buffer,
}

impl Set {
    fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let Set { inputs, from, given, numbers, random, chosen } = self;
        inputs.buffers().chain([from, given, numbers, random, chosen])
    }
}

impl Ahead {
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.sets.iter().flat_map(Set::buffers)
    }
    pub fn new(device: &dyn Device, pools: Pools, blocks: usize, sequences: usize) -> Result<Ahead, Error> {
        let of = |each: usize, memory| device.alloc(sequences * each * size_of::<i32>(), memory);
        let set = || {
            let [asked, told] = [Memory::Scratch, Memory::Readback];
            let inputs = Inputs::new(device, pools, [sequences, blocks], sequences)?;
            let (from, given) = (of(1, asked)?, of(1, asked)?);
            let (numbers, random, chosen) = (of(NUMBERS, asked)?, of(1, asked)?, of(1, told)?);
            Ok::<_, Error>(Set { inputs, from, given, numbers, random, chosen })
        };
        Ok(Ahead { sets: [set()?, set()?], captured: FxHashMap::default(), started: VecDeque::new(), next: 0 })
    }
}
