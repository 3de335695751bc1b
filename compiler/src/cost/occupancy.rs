//! Occupancy: how many workgroups run at once, given threads and registers.

use crate::ir::mma::fragment::{MmaSum, OF_LANE};
use crate::ir::mma::product::MmaProduct;
use crate::ir::nest::outermost_reductions;
use crate::plan::warps;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, RangeKind};
use rustc_hash::FxHashSet;

/// Bytes of a register; bytes of a half.
const BYTES_OF_REGISTER: i64 = 4;
const BYTES_OF_HALF: i64 = 2;

/// Workgroups of a launch that are resident on the whole device at once.
pub fn resident_workgroups(target: &Target) -> i64 {
    target.resident() * target.machine.units as i64
}

/// Workgroups that fit the device by thread count alone, ignoring registers.
pub fn resident_workgroups_by_threads(target: &Target) -> i64 {
    target.machine.units as i64 * (target.machine.threads_per_unit / target.threads).max(1) as i64
}

/// Registers available to a thread with that many resident workgroups per unit.
pub fn each(resident: i64, target: &Target) -> i64 {
    target.machine.registers as i64 / (target.threads as i64 * resident)
}

/// Resident workgroups per unit if each thread accumulates that many sums: the planned number, or
/// fewer if the sums need more registers.
pub fn held(sums: i64, target: &Target) -> i64 {
    let facts = target.machine.gpu_facts();
    let words = target.registers as i64 / facts.registers_per_loaded_word;
    held_with(
        facts.thread_registers + words + facts.registers_per_sum * sums,
        target,
    )
}

/// Resident workgroups per unit if each thread needs that many registers.
pub fn held_with(wanted: i64, target: &Target) -> i64 {
    (1..=target.resident())
        .rev()
        .find(|&n| wanted <= each(n, target))
        .unwrap_or(1)
}

/// Resident workgroups per unit for these nests: fewer if MMA tiles need
/// more registers than planned.
pub fn resident_of(g: &Graph, nests: &[Id], target: &Target) -> i64 {
    if target.machine.kind == MachineKind::Cpu {
        return target.resident();
    }
    let tiles = |&nest: &Id| {
        MmaProduct::from_store(g, nest, &target.machine).map(|p| warps::tiles(g, nest, &p, target))
    };
    let sums = nests.iter().filter_map(tiles).max();
    sums.map_or(target.resident(), |sums| held(sums, target))
}

/// Resident workgroups per unit for these nests, at most the planned number, from an estimate of
/// all registers. Used to judge how a body limits others of a fused launch.
///
/// Counts accumulators and one loaded word for each. Products that dequantise a weight count all
/// words of a step instead, which a thread loads at once. The cost of a kernel uses
/// [`resident_of`], which considers MMA tiles only.
pub fn resident_when_merged(g: &Graph, nests: &[Id], target: &Target) -> i64 {
    let registers = nests.iter().map(|&nest| {
        let sums = outermost_reductions(g, nest);
        let accumulators = copies(g, nest, |_| true) * sums.len().max(1) as i64;
        let asked = words_of_step(
            g,
            nest,
            &sums
                .into_iter()
                .filter_map(|n| MmaSum::unpacked(g, n))
                .collect::<Vec<_>>(),
        );
        if asked > 0 {
            accumulators + asked
        } else {
            2 * accumulators
        }
    });
    let own = target.machine.gpu_facts().thread_registers;
    held_with(own + registers.max().unwrap_or(2), target)
}

/// Product of the nest's `Upcast` ranges that `of` accepts: copies in a thread.
fn copies(g: &Graph, nest: Id, of: impl Fn(Id) -> bool) -> i64 {
    let upcast = g[nest].src[3..]
        .iter()
        .filter(|&&r| g.range_kind(r) == Some(RangeKind::Upcast) && of(r));
    upcast.map(|&r| g.max_of(g[r].src[0])).product()
}

/// Upper bound of the words that a thread loads in one step of products with dequantised rows: a
/// group of terms for each row, and 16-bit floats of one column for every two that it sums. Columns
/// shared by products count once (`lower/mma/f16.rs`). In products of several warps the columns are
/// in shared memory, but those run one workgroup per unit.
fn words_of_step(g: &Graph, nest: Id, sums: &[MmaSum]) -> i64 {
    let of = |x: Id| copies(g, nest, |r| g.free_ranges(x).contains(&r));
    let bytes = |x: Id| match g[x].arg {
        Arg::Packed(_, e) => Some(OF_LANE * e.bytes as i64 / e.elements as i64),
        _ => None,
    };
    let packed = |sum: &MmaSum| {
        g.toposort(&[sum.rows])
            .into_iter()
            .find_map(bytes)
            .unwrap_or(0)
    };
    let rows: i64 = sums.iter().map(|sum| of(sum.rows) * packed(sum)).sum();
    let columns: FxHashSet<Id> = sums.iter().map(|sum| sum.columns).collect();
    (rows
        + columns
            .into_iter()
            .map(|x| of(x) / 2 * OF_LANE * BYTES_OF_HALF)
            .sum::<i64>())
        / BYTES_OF_REGISTER
}
