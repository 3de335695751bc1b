//! How much of a machine's workgroups run at once.

use crate::nest::outermost_reductions;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, RangeKind};

/// Registers of a thread beside its accumulators: addresses, words that wait, what is computed meanwhile (read off kernels of GLM on an H200).
pub const REGISTERS: i64 = 40;
/// Registers that the sums of a group of integers need beside their accumulators: its words, a product, a constant.
pub const WORDS: usize = 12;

/// Workgroups of a launch that run at once.
pub fn room(target: &Target) -> i64 {
    target.resident() * target.machine.units as i64
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
