//! Early exit of workgroups that repeat another one.
//!
//! If the amount of work is known only from data, a launch has the largest number of workgroups,
//! and those past the last useful one compute the same as it (`kernel/workgroup.rs`). Once the
//! amount is read, they can exit.

use gristmill_uop::{Graph, Id, Op, RangeKind};
use rustc_hash::{FxHashMap, FxHashSet};

/// Returns a condition under which a workgroup of these nests repeats another. It depends on
/// workgroup indices and on memory that earlier kernels have written.
pub fn early_exit(g: &mut Graph, nests: &[Id]) -> Option<Id> {
    let order = g.toposort(nests);
    let mut users: FxHashMap<Id, FxHashSet<Id>> = FxHashMap::default();
    for &n in &order {
        for &s in g[n]
            .src
            .iter()
            .filter(|&&s| g.range_kind(s) == Some(RangeKind::Global))
        {
            users.entry(s).or_default().insert(n);
        }
    }
    let mut ranges: Vec<Id> = users.keys().copied().collect();
    ranges.sort();
    let held = |g: &Graph, r: Id| {
        let only = users[&r].iter().copied().collect::<Vec<Id>>();
        let &[min] = &only[..] else { return None };
        let n = &g[min];
        let last = n
            .src
            .iter()
            .copied()
            .find(|&s| s != r)
            .filter(|_| n.op == Op::Min)?;
        is_read(g, last).then_some(last)
    };
    let found: Vec<(Id, Id)> = ranges
        .into_iter()
        .filter_map(|r| Some((held(g, r)?, r)))
        .collect();
    found.into_iter().fold(None, |all, (last, r)| {
        let repeats = g.lt(last, r);
        Some(all.map_or(repeats, |all| g.or(all, repeats)))
    })
}

/// Returns whether the value is read from memory and is the same for every workgroup.
fn is_read(g: &Graph, id: Id) -> bool {
    let order = g.toposort(&[id]);
    let plain = |n: &Id| match g[*n].op {
        Op::Load => g[g[*n].src[0]].op == Op::Param,
        Op::Const | Op::Var | Op::Param => true,
        op => op.is_elementwise(),
    };
    order.iter().all(plain)
        && order.iter().any(|&n| g[n].op == Op::Load)
        && g.free_ranges(id).is_empty()
}
