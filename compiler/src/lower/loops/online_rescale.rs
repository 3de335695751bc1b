//! Sums in a loop that nests share that are multiplied by something in each iteration (`loop_carried.rs`): which accumulators, and by what in each lane.

use crate::ir::nest::replaced;
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, Sources};
use rustc_hash::FxHashMap;

/// What reductions are multiplied by: of a product's sums, each by itself.
#[derive(Default)]
pub struct Rescaled {
    factors: FxHashMap<Id, FxHashMap<i64, Id>>,
}

impl Rescaled {
    /// A value of one element without what is rescaled, which is kept here.
    pub fn without(&mut self, g: &mut Graph, value: Id) -> Id {
        for n in g.toposort(&[value]) {
            if g[n].op == Op::Rescaled {
                self.note(g, g[n].src[0], g[n].src[1]);
            }
        }
        replaced(g, value, |g, n| (g[n].op == Op::Rescaled).then(|| g[n].src[0]))
    }
    /// The sums that a value is made of, by their lanes.
    fn note(&mut self, g: &Graph, value: Id, factor: Id) {
        let mut stack = vec![(value, 0)];
        while let Some((n, lane)) = stack.pop() {
            let node = &g[n];
            match node.op {
                Op::Reduce if node.src[1..].iter().any(|&r| g.range_kind(r) == Some(RangeKind::Fused)) => {
                    self.factors.entry(n).or_default().insert(lane, factor);
                }
                Op::Part => stack.push((node.src[0], g.int_value(node.src[1]).unwrap_or(0))),
                _ => stack.extend(node.src.iter().map(|&s| (s, lane))),
            }
        }
    }
    /// What a reduction is multiplied by: of a vector a vector, in whose other lanes is nothing that is read.
    pub fn factor(&self, g: &mut Graph, reduction: Id) -> Option<Id> {
        let of_lanes = self.factors.get(&reduction)?;
        let dtype = g[reduction].dtype;
        if dtype.lanes == 1 {
            return of_lanes.get(&0).copied();
        }
        let one = g.f32(1.0);
        let src: Sources = (0..dtype.lanes as i64).map(|lane| of_lanes.get(&lane).copied().unwrap_or(one)).collect();
        Some(g.intern(Node { op: Op::Pack, dtype, src, arg: Arg::None }))
    }
}
