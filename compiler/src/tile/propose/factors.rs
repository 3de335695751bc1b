//! Contractions found by their index maps alone: a sum of products of two factors, each of which depends on output axes that the other does not. Whatever the
//! factors are (weights of floats, activations), a tile of both kinds of axes reads each of them once for several outputs.

use crate::nest::{host_bound, outermost_reductions};
use crate::tile::plan::{Part, Workgroup};
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, ReduceOp};

/// Outputs of a tile along one axis, in registers.
const TALL: i64 = 4;
/// Outputs of a tile along the other axis: lanes, or threads.
const WIDE: i64 = 64;

/// Two axes of the output, by number: on each depends one factor alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Factors {
    /// On which the first factor depends.
    pub rows: usize,
    /// On which the second does.
    pub columns: usize,
}

impl Factors {
    /// The last such axes of the first sum of products in these nests that has them.
    pub fn of(g: &Graph, nests: &[Id], axes: &[Id]) -> Option<Factors> {
        let sums = nests.iter().flat_map(|&n| outermost_reductions(g, n));
        let products =
            sums.filter(|&n| matches!(g[n].arg, Arg::Reduce(ReduceOp::Add, _)) && g[g[n].src[0]].op == Op::Mul);
        products.into_iter().find_map(|n| {
            let &[a, b] = &g[g[n].src[0]].src[..] else { return None };
            let summed = |x: Id| g.free_ranges(x).iter().any(|r| g[n].src[1..].contains(r));
            let alone = |x: Id, other: Id| {
                (0..axes.len()).rev().find(|&i| {
                    let on = |x: Id| g.free_ranges(x).contains(&axes[i]);
                    host_bound(g, axes[i]) && on(x) && !on(other)
                })
            };
            let found = Factors { rows: alone(a, b)?, columns: alone(b, a)? };
            (summed(a) && summed(b)).then_some(found)
        })
    }
    /// Tiles of both axes, the other axes of the output over the launch: rows in registers beside one another, columns for lanes or threads.
    pub fn tiled(self, g: &Graph, axes: &[Id]) -> Workgroup {
        let others = (0..axes.len()).filter(|&i| i != self.rows && i != self.columns);
        let over =
            |i: usize| Part::rest(i, if host_bound(g, axes[i]) { RangeKind::Global } else { RangeKind::Loop }, 1);
        let tile = [
            Part::rest(self.rows, RangeKind::Global, TALL),
            Part::rest(self.columns, RangeKind::Global, WIDE),
            Part::of(self.rows, RangeKind::Upcast, TALL, 1),
            Part::of(self.columns, RangeKind::Loop, WIDE, 1),
        ];
        Workgroup { parts: others.map(over).chain(tile).collect() }
    }
    /// The same with the axes in each other's place.
    pub fn turned(self) -> Factors {
        Factors { rows: self.columns, columns: self.rows }
    }
}
