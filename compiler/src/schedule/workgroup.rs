//! The shape of a workgroup: which output axes the launch is spread over, and the tile of outputs one workgroup computes.
//!
//! Kernels fall into classes by what they reduce over: contractions with a packed weight (`contraction.rs`), what a decomposition has asked for, and
//! everything else.

mod contraction;
mod splitter;

pub use contraction::COPIES;
pub use splitter::Around;

use super::expand::Expander;
use crate::nest::{Nest, divisor};
use crate::request::Hint;
use contraction::contraction;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op, RangeKind};
use rustc_hash::FxHashMap;
use splitter::{Splitter, host_bound};

/// Terms that a thread computes of what is no contraction of weights.
const TERMS: i64 = 4;
/// Workgroups for each multiprocessor beyond which another costs more than it spreads.
const WAVES: i64 = 16;
/// Below this many elements, one workgroup does everything.
const SMALL: i64 = 2048;

/// The nests of a workgroup of the chosen shape: ranges that the launch is spread over are `Global`.
pub struct Split {
    /// In the order of the nests that were given.
    pub nests: Vec<Id>,
    /// Workgroups for which this holds compute nothing that is read.
    pub skip: Option<Id>,
    /// Where in a workgroup's chunk, or behind it, rows begin that this step writes.
    pub fresh: Option<Id>,
}

/// Chooses a shape, and rewrites the nests accordingly.
pub fn split(g: &mut Graph, x: &mut Expander, nests: &[Id], around: &Around) -> Split {
    // Ranges that all nests share are the output's axes; a `Cat`'s axis has one range a part and stays inside the workgroup.
    let mut axes: Vec<Id> = g[nests[0]].src[3..].to_vec();
    for &n in &nests[1..] {
        axes.retain(|r| g[n].src[3..].contains(r));
    }
    let mut s = Splitter { x, map: FxHashMap::default(), order: Vec::new() };
    let (mut skip, mut fresh) = (None, None);
    if let Some(hint) = around.hint.filter(|h| h.globals > 0) {
        hinted(g, &mut s, &axes, hint, around.node);
        skip = hint.future.and_then(|f| s.skip(g, &f, &axes, around.node, hint.tile));
        fresh = hint.resident.and_then(|r| s.fresh(g, &r, &axes, around.node));
    } else if !contraction(g, &mut s, nests, &axes, around) {
        let threads = around.target.machine.kind == MachineKind::Gpu;
        let spread: Vec<Id> = axes.iter().copied().filter(|&r| threads || host_bound(g, r)).collect();
        plain(g, &mut s, &spread, nests, around);
    }
    let (map, order) = (s.map, s.order);
    let split_nest = |&nest: &Id| {
        let mut n = Nest::of(g, nest);
        let mut m = map.clone();
        n.offset = g.substitute(n.offset, &mut m);
        n.value = g.substitute(n.value, &mut m);
        // New inner ranges in the order chosen, then what was left alone.
        let left = n.closed.into_iter().filter(|r| !map.contains_key(r) && !order.contains(r));
        n.closed = order.iter().copied().chain(left).collect();
        n.store(g)
    };
    Split { nests: nests.iter().map(split_nest).collect(), skip, fresh }
}

/// The shape that a decomposition asks for.
fn hinted(g: &mut Graph, s: &mut Splitter, axes: &[Id], hint: &Hint, node: Id) {
    let leading = leading(g, axes, hint.globals, node);
    for (i, &r) in leading.iter().enumerate() {
        if i + 1 == leading.len() && hint.tile > 1 {
            s.tiled(g, r, hint.tile, RangeKind::Global, hint.inner);
        } else {
            s.global(g, r);
        }
    }
}

/// The first `n` axes of the node that have a range.
fn leading(g: &Graph, axes: &[Id], n: usize, node: Id) -> Vec<Id> {
    let dims = g.shape(node);
    let ranged = dims[..n].iter().filter(|&&d| g.int_value(d) != Some(1)).count();
    axes[..ranged.min(axes.len())].to_vec()
}

/// Everything else, for workgroups of threads: a few terms for each thread, the last axes inside.
fn for_threads(g: &mut Graph, s: &mut Splitter, spread: &[Id], total: i64, work: i64, target: &Target) {
    // As many elements as keep every thread busy, and as leave no more workgroups than the machine takes in a few rounds.
    let most = TERMS * target.threads as i64 / work.max(1);
    let share = (total / target.machine.units as i64).max(target.threads as i64 / 8);
    let mut left = most.max(total / (WAVES * target.machine.units as i64)).min(share).max(1);
    for &r in spread.iter().rev() {
        let bound = g.int_value(g[r].src[0]);
        let tile = bound.map_or(left.min(g.max_of(g[r].src[0])), |n| divisor(n, left));
        match bound {
            Some(n) if n <= left => left /= n,
            _ if tile > 1 => {
                s.tiled(g, r, tile, RangeKind::Global, RangeKind::Loop);
                left = 1;
            }
            _ => {
                if host_bound(g, r) {
                    s.global(g, r)
                } else {
                    s.at_most(g, r)
                }
                left = 1;
            }
        }
    }
}

/// Terms of a nest's longest reduction for each element: elements that have it in common share them.
fn terms(g: &Graph, nest: Id) -> i64 {
    let all = |ranges: &[Id]| -> i64 {
        let most = ranges.iter().map(|&r| g.bounds(g[r].src[0]).map_or(1, |b| b.1));
        most.fold(1, i64::saturating_mul)
    };
    let elements = all(&g[nest].src[3..]);
    let sums = g.toposort(&[nest]).into_iter().filter(|&n| g[n].op == Op::Reduce);
    let terms = sums.map(|n| all(g.free_ranges(g[n].src[0])) / elements.max(1));
    terms.max().unwrap_or(1).max(1)
}

/// Everything else: enough workgroups for the machine, the last axis inside.
fn plain(g: &mut Graph, s: &mut Splitter, spread: &[Id], nests: &[Id], around: &Around) {
    let sizes: Vec<i64> = spread.iter().map(|&r| g.max_of(g[r].src[0])).collect();
    let total: i64 = sizes.iter().product();
    let work = nests.iter().map(|&n| terms(g, n)).max().unwrap_or(1);
    if around.target.machine.kind == MachineKind::Gpu {
        return for_threads(g, s, spread, total, work, around.target);
    }
    if total.saturating_mul(work) < SMALL {
        return;
    }
    let enough = 8 * around.target.machine.units.max(1) as i64;
    let mut groups = 1;
    for (i, (&r, &n)) in spread.iter().zip(&sizes).enumerate() {
        if groups >= enough {
            break;
        }
        let last = i + 1 == spread.len();
        if !last {
            s.global(g, r);
            groups *= n;
        } else if let Some(b) = g.int_value(g[r].src[0]) {
            // Chunks that vectors divide, if there are any.
            let chunk = divisor(b, 64).max(1);
            if chunk >= 4 || work > 64 {
                s.tiled(g, r, chunk, RangeKind::Global, RangeKind::Loop);
            }
        } else {
            s.tiled(g, r, 16, RangeKind::Global, RangeKind::Loop);
        }
    }
}
