//! Fuses reductions into shared loops.

use gristmill_uop::{Graph, Id, RangeKind};
use rustc_hash::FxHashMap;

/// Gives independent reductions with equal bounds the same ranges. They share a loop, have their
/// loads in flight together, and read common operands once.
pub fn fuse_reductions(g: &mut Graph, value: Id, reductions: &[Id]) -> Id {
    let mut map: FxHashMap<Id, Id> = FxHashMap::default();
    for sharing in loops(g, reductions) {
        for other in &sharing[1..] {
            for (&from, &to) in g[*other].src[1..].iter().zip(&g[sharing[0]].src[1..]) {
                if from != to {
                    map.insert(from, to);
                }
            }
        }
    }
    if map.is_empty() {
        value
    } else {
        g.substitute(value, &mut map)
    }
}

/// Groups reductions by shared loop: each joins the first group with equal ranges and no
/// dependence in either direction.
fn loops(g: &Graph, reductions: &[Id]) -> Vec<Vec<Id>> {
    let shape = |n: Id| -> Vec<(Id, Option<RangeKind>)> {
        g[n].src[1..]
            .iter()
            .map(|&r| (g[r].src[0], g.range_kind(r)))
            .collect()
    };
    let apart = |a: Id, b: Id| !g.any(a, |x, _| x == b) && !g.any(b, |x, _| x == a);
    let mut loops: Vec<Vec<Id>> = Vec::new();
    for &n in reductions {
        match loops
            .iter_mut()
            .find(|l| shape(l[0]) == shape(n) && l.iter().all(|&m| apart(m, n)))
        {
            Some(sharing) => sharing.push(n),
            None => loops.push(vec![n]),
        }
    }
    loops
}
