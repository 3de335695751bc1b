//! How much of a machine's workgroups run at once.

use crate::nest::outermost_reductions;
use crate::tile::product::Product;
use crate::tile::propose::warps;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, RangeKind};

/// Registers of a thread beside its accumulators: addresses, words that wait, what is computed meanwhile (read off kernels of GLM on an H200).
pub const REGISTERS: i64 = 40;
/// The part of a thread's registers in which loads wait: a fourth, 32 of an H200's 128.
pub const WAITING: i64 = 4;
/// Registers that a sum takes, with its words and what is made of them: with more than eight sums an H200's 128 are too few.
const OF_A_SUM: i64 = 7;
/// Registers that the sums of a group of integers need beside their accumulators: its words, a product, a constant.
pub const WORDS: usize = 12;

/// Workgroups of a launch that run at once.
pub fn room(target: &Target) -> i64 {
    target.resident() * target.machine.units as i64
}

/// Registers of a thread where a unit has so many workgroups.
pub fn each(resident: i64, target: &Target) -> i64 {
    target.machine.registers as i64 / (target.threads as i64 * resident)
}

/// Workgroups that a unit holds whose threads add to so many sums at once: as many as threads are planned for, or fewer if sums want more registers.
pub fn held(sums: i64, target: &Target) -> i64 {
    held_with(REGISTERS + target.registers as i64 / WAITING + OF_A_SUM * sums, target)
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
    let tiles = |&nest: &Id| Product::of(g, nest, &target.machine).map(|p| warps::tiles(g, nest, &p, target));
    let sums = nests.iter().filter_map(tiles).max();
    sums.map_or(target.resident(), |sums| held(sums, target))
}

/// How many workgroups of these nests a multiprocessor has registers for, as counted from their accumulators.
pub fn resident_workgroups(g: &Graph, nests: &[Id], target: &Target) -> f64 {
    let accumulators = nests.iter().map(|&n| {
        let copies = g[n].src[3..].iter().filter(|&&r| g.range_kind(r) == Some(RangeKind::Upcast));
        copies.map(|&r| g.max_of(g[r].src[0])).product::<i64>() * outermost_reductions(g, n).len().max(1) as i64
    });
    let registers = REGISTERS + 2 * accumulators.max().unwrap_or(1);
    (target.machine.registers as i64 / (target.threads as i64 * registers)).max(1) as f64
}
