//! How much of a machine's workgroups run at once.

use crate::ir::mma::fragment::{MmaSum, OF_LANE};
use crate::ir::mma::product::MmaProduct;
use crate::ir::nest::outermost_reductions;
use crate::plan::warps;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, RangeKind};
use rustc_hash::FxHashSet;

/// Registers of a thread beside its accumulators: addresses, words that wait, what is computed meanwhile (read off kernels of GLM on an H200).
pub const REGISTERS: i64 = 40;
/// Registers of a thread for each one in which a load waits: 32 of an H200's 128 hold words on their way. Twice as many beside two workgroups took GLM behind 16,384 positions from 322 tokens a second to 302
/// (experiments, 36).
pub const REGISTERS_PER_LOADED_WORD: i64 = 4;
/// Registers that a sum takes, with its words and what is made of them: with more than eight sums an H200's 128 are too few.
const REGISTERS_OF_SUM: i64 = 7;

/// Bytes of a register, and of a half.
const BYTES_OF_REGISTER: i64 = 4;
const BYTES_OF_HALF: i64 = 2;

/// Workgroups of a launch that run at once.
pub fn room(target: &Target) -> i64 {
    target.resident() * target.machine.units as i64
}

/// Workgroups that the machine has threads for at once, whatever their registers.
pub fn room_of_threads(target: &Target) -> i64 {
    target.machine.units as i64 * (target.machine.threads_per_unit / target.threads).max(1) as i64
}

/// Registers of a thread where a unit has so many workgroups.
pub fn each(resident: i64, target: &Target) -> i64 {
    target.machine.registers as i64 / (target.threads as i64 * resident)
}

/// Workgroups that a unit holds whose threads add to so many sums at once: as many as threads are planned for, or fewer if sums want more registers.
pub fn held(sums: i64, target: &Target) -> i64 {
    held_with(REGISTERS + target.registers as i64 / REGISTERS_PER_LOADED_WORD + REGISTERS_OF_SUM * sums, target)
}

/// Workgroups that a unit holds whose threads want so many registers.
pub fn held_with(wanted: i64, target: &Target) -> i64 {
    (1..=target.resident()).rev().find(|&n| wanted <= each(n, target)).unwrap_or(1)
}

/// Workgroups of these nests that a unit holds: fewer than others where tiles of matrix products take more registers than threads are planned with.
pub fn resident_of(g: &Graph, nests: &[Id], target: &Target) -> i64 {
    if target.machine.kind == MachineKind::Cpu {
        return target.resident();
    }
    let tiles =
        |&nest: &Id| MmaProduct::from_store(g, nest, &target.machine).map(|p| warps::tiles(g, nest, &p, target));
    let sums = nests.iter().filter_map(tiles).max();
    sums.map_or(target.resident(), |sums| held(sums, target))
}

/// Workgroups of these nests that a unit would hold, as many as threads are planned for at most, by an estimate of all registers that tells how much they crowd others of a launch: accumulators with a word for each that waits,
/// and where products unpack a weight the words of a step in their place, for all of which a thread asks at once. Prices of a kernel take [`resident_of`], which sees tiles alone.
pub fn resident_when_merged(g: &Graph, nests: &[Id], target: &Target) -> i64 {
    let registers = nests.iter().map(|&nest| {
        let sums = outermost_reductions(g, nest);
        let accumulators = copies(g, nest, |_| true) * sums.len().max(1) as i64;
        let asked =
            words_of_step(g, nest, &sums.into_iter().filter_map(|n| MmaSum::unpacked(g, n)).collect::<Vec<_>>());
        if asked > 0 { accumulators + asked } else { 2 * accumulators }
    });
    held_with(REGISTERS + registers.max().unwrap_or(2), target)
}

/// Copies of a nest's loops that a thread has side by side, of those ranges.
fn copies(g: &Graph, nest: Id, of: impl Fn(Id) -> bool) -> i64 {
    let upcast = g[nest].src[3..].iter().filter(|&&r| g.range_kind(r) == Some(RangeKind::Upcast) && of(r));
    upcast.map(|&r| g.max_of(g[r].src[0])).product()
}

/// Words that a thread asks for in a step of products of unpacked rows, at most: a group of terms of each row, and as halves of one column for every two in which it has sums; of columns that products share once
/// (`lower/mma/f16.rs`). Of products of several warps columns are in shared memory, but those have a unit to themselves.
fn words_of_step(g: &Graph, nest: Id, sums: &[MmaSum]) -> i64 {
    let of = |x: Id| copies(g, nest, |r| g.free_ranges(x).contains(&r));
    let bytes = |x: Id| match g[x].arg {
        Arg::Packed(_, e) => Some(OF_LANE * e.bytes as i64 / e.elements as i64),
        _ => None,
    };
    let packed = |sum: &MmaSum| g.toposort(&[sum.rows]).into_iter().find_map(bytes).unwrap_or(0);
    let rows: i64 = sums.iter().map(|sum| of(sum.rows) * packed(sum)).sum();
    let columns: FxHashSet<Id> = sums.iter().map(|sum| sum.columns).collect();
    (rows + columns.into_iter().map(|x| of(x) / 2 * OF_LANE * BYTES_OF_HALF).sum::<i64>()) / BYTES_OF_REGISTER
}
