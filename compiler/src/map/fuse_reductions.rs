//! Reductions that share a loop.

use gristmill_uop::{Graph, Id, RangeKind};
use rustc_hash::FxHashMap;

/// `value` with those of its `reductions` that have equal bounds and do not depend on one another over the same ranges: they share a loop, wait for their
/// loads together, and read a common operand once.
pub fn fuse_reductions(g: &mut Graph, value: Id, reductions: &[Id]) -> Id {
    let mut map: FxHashMap<Id, Id> = FxHashMap::default();
    for (i, &n) in reductions.iter().enumerate() {
        let shape = |n: Id| -> Vec<(Id, Option<RangeKind>)> {
            g[n].src[1..].iter().map(|&r| (g[r].src[0], g.range_kind(r))).collect()
        };
        let apart = |a: Id, b: Id| !g.any(a, |x, _| x == b) && !g.any(b, |x, _| x == a);
        let earlier = reductions[..i].iter().copied().find(|&m| shape(m) == shape(n) && apart(m, n));
        let Some(m) = earlier else { continue };
        for (&from, &to) in g[n].src[1..].iter().zip(&g[m].src[1..]) {
            let to = map.get(&to).copied().unwrap_or(to);
            if from != to {
                map.insert(from, to);
            }
        }
    }
    if map.is_empty() { value } else { g.substitute(value, &mut map) }
}
