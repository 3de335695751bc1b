//! Collects which accumulators of a shared loop are rescaled in each iteration (`loop_carried.rs`),
//! with the factor of each lane.

use crate::ir::nest::replaced;
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, Sources};
use rustc_hash::FxHashMap;

/// Rescale factors of reductions, by lane of an MMA product's sums.
#[derive(Default)]
pub struct Rescaled {
    factors: FxHashMap<Id, FxHashMap<i64, Id>>,
}

impl Rescaled {
    /// Removes the `Rescaled` operations from a scalar value and records their factors.
    pub fn without(&mut self, g: &mut Graph, value: Id) -> Id {
        for n in g.toposort(&[value]) {
            if g[n].op == Op::Rescaled {
                self.note(g, g[n].src[0], g[n].src[1]);
            }
        }
        replaced(g, value, |g, n| {
            (g[n].op == Op::Rescaled).then(|| g[n].src[0])
        })
    }
    /// Records the factor for every sum in a value, by lane.
    fn note(&mut self, g: &Graph, value: Id, factor: Id) {
        let mut stack = vec![(value, 0)];
        while let Some((n, lane)) = stack.pop() {
            let node = &g[n];
            match node.op {
                Op::Reduce
                    if node.src[1..]
                        .iter()
                        .any(|&r| g.range_kind(r) == Some(RangeKind::Fused)) =>
                {
                    self.factors.entry(n).or_default().insert(lane, factor);
                }
                Op::Part => stack.push((node.src[0], g.int_value(node.src[1]).unwrap_or(0))),
                _ => stack.extend(node.src.iter().map(|&s| (s, lane))),
            }
        }
    }
    /// Returns a reduction's factor: a vector for a vector, in which lanes without a factor are 1
    /// and are not read.
    pub fn factor(&self, g: &mut Graph, reduction: Id) -> Option<Id> {
        let of_lanes = self.factors.get(&reduction)?;
        let dtype = g[reduction].dtype;
        if dtype.lanes == 1 {
            return of_lanes.get(&0).copied();
        }
        let one = g.f32(1.0);
        let src: Sources = (0..dtype.lanes as i64)
            .map(|lane| of_lanes.get(&lane).copied().unwrap_or(one))
            .collect();
        Some(g.intern(Node {
            op: Op::Pack,
            dtype,
            src,
            arg: Arg::None,
        }))
    }
}
