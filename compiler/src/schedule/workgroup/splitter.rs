//! Axes of a kernel's output, cut into ranges over the launch and ranges inside a workgroup.

use crate::decompose::int8::Derived;
use crate::request::{CausalSkip, Hint, StagedTile};
use crate::schedule::expand::Expander;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op, RangeKind};
use rustc_hash::FxHashMap;

/// What the shape of a workgroup follows from, besides its nests.
pub struct Around<'a> {
    /// The tensor-level node that is computed.
    pub node: Id,
    /// The shape that a decomposition asks for.
    pub hint: Option<&'a Hint>,
    /// Integer contractions and layouts.
    pub derived: &'a Derived,
    /// For whom.
    pub target: &'a Target,
    /// Workgroups that a contraction of one token should have at most.
    pub room: i64,
}

/// Axes being cut: what stands for each, and the ranges that stay inside the workgroup.
pub struct Splitter<'a, 'b> {
    pub x: &'a mut Expander<'b>,
    /// Index expressions in place of axes.
    pub map: FxHashMap<Id, Id>,
    /// Inner ranges, outermost first.
    pub order: Vec<Id>,
}

impl Splitter<'_, '_> {
    pub fn new_range(&mut self, g: &mut Graph, bound: Id, kind: RangeKind) -> Id {
        let r = self.x.ranges.range(g, bound, kind);
        if kind != RangeKind::Global && g[r].op == Op::Range {
            self.order.push(r);
        }
        r
    }
    /// The whole axis over the launch.
    pub fn global(&mut self, g: &mut Graph, r: Id) {
        let bound = g[r].src[0];
        let new = self.new_range(g, bound, RangeKind::Global);
        self.map.insert(r, new);
    }
    /// The whole axis over the launch, whose host does not know how long it is: workgroups beyond its end repeat the last.
    pub fn at_most(&mut self, g: &mut Graph, r: Id) {
        let index = self.up_to(g, g[r].src[0]);
        self.map.insert(r, index);
    }
    /// An index over the launch, up to a bound that the host does not know.
    pub fn up_to(&mut self, g: &mut Graph, bound: Id) -> Id {
        let (most, minus) = (g.max_of(bound), g.int(-1));
        let most = g.int(most);
        let new = self.new_range(g, most, RangeKind::Global);
        let last = g.add(bound, minus);
        g.min(new, last)
    }
    /// Is every element of the workgroup one that nobody reads?
    pub fn skip(&mut self, g: &mut Graph, f: &CausalSkip, axes: &[Id], node: Id, tile: i64) -> Option<Id> {
        // Axes of one element have no range.
        let dims = g.shape(node);
        let ranged = |axis: usize| dims[..axis].iter().filter(|&&d| g.int_value(d) != Some(1)).count();
        let (chunk, token) = (*axes.get(ranged(f.chunk))?, *axes.get(ranged(f.token))?);
        let zero = g.int(0);
        let chunk = if g.int_value(dims[f.chunk]) == Some(1) { zero } else { self.map[&chunk] };
        let token = if g.int_value(dims[f.token]) == Some(1) { zero } else { self.map[&token] };
        // The last token of the tile.
        let inner: Vec<Id> =
            g.free_ranges(token).iter().copied().filter(|&r| g.range_kind(r) != Some(RangeKind::Global)).collect();
        let last = g.int(tile - 1);
        let mut map = FxHashMap::from_iter(inner.into_iter().map(|r| (r, last)));
        let token = g.substitute(token, &mut map);
        let first = self.x.dim(g, f.first);
        let (size, own) = (g.int(f.size), g.add(first, token));
        let begin = g.mul(chunk, size);
        Some(g.lt(own, begin))
    }
    /// Where in the workgroup's chunk, or behind it, the rows of the step's tokens begin.
    pub fn fresh(&mut self, g: &mut Graph, r: &StagedTile, axes: &[Id], node: Id) -> Option<Id> {
        let first = self.x.dim(g, r.settled?);
        let chunks = g.shape(node)[0];
        let chunk = if g.int_value(chunks) == Some(1) { g.int(0) } else { *self.map.get(axes.first()?)? };
        let size = g.int(r.size);
        let begin = g.mul(chunk, size);
        Some(g.sub(first, begin))
    }
    /// The axis stays inside the workgroup, as a loop at this place of the order.
    pub fn keep(&mut self, r: Id) {
        self.order.push(r);
    }
    /// The axis as tiles: the outer range of one kind, the inner of another.
    pub fn tiled(&mut self, g: &mut Graph, r: Id, tile: i64, outer: RangeKind, inner: RangeKind) {
        let o = self.tiles(g, r, tile, outer);
        self.within(g, r, o, tile, inner);
    }
    /// The outer range of an axis cut into tiles.
    pub fn tiles(&mut self, g: &mut Graph, r: Id, tile: i64, kind: RangeKind) -> Id {
        let bound = g[r].src[0];
        let (t, up) = (g.int(tile), g.int(tile - 1));
        let count = g.add(bound, up);
        let count = g.idiv(count, t);
        match kind {
            RangeKind::Global if !host_bound(g, r) => self.up_to(g, count),
            _ => self.new_range(g, count, kind),
        }
    }
    /// The inner range of an axis cut into tiles, of which `outer` is the number. Where the tile does not divide the bound, the last
    /// tile's surplus repeats the last element: it computes and writes the same value again.
    pub fn within(&mut self, g: &mut Graph, r: Id, outer: Id, tile: i64, kind: RangeKind) {
        let bound = g[r].src[0];
        let t = g.int(tile);
        let i = self.new_range(g, t, kind);
        let start = g.mul(outer, t);
        let mut index = g.add(start, i);
        if g.int_value(bound).is_none_or(|b| b % tile != 0) {
            let minus = g.int(-1);
            let last = g.add(bound, minus);
            index = g.min(index, last);
        }
        self.map.insert(r, index);
    }
    /// An axis cut into (workgroups, a loop of `per_group`, registers of `tile`, lanes), which divide it; the loop's range comes from the caller, who
    /// may want others between.
    pub fn nested(&mut self, g: &mut Graph, r: Id, group: Id, within: Id, per_group: i64, [tile, lanes]: [i64; 2]) {
        let (per, t, l) = (g.int(per_group), g.int(tile), g.int(lanes));
        let i = self.new_range(g, t, RangeKind::Upcast);
        let lane = self.new_range(g, l, RangeKind::Loop);
        let at = g.mul(group, per);
        let at = g.add(at, within);
        let at = g.mul(at, t);
        let at = g.add(at, i);
        let at = g.mul(at, l);
        let at = g.add(at, lane);
        self.map.insert(r, at);
    }
}

/// Can the host evaluate the bound of this range before the launch?
pub fn host_bound(g: &Graph, r: Id) -> bool {
    !g.any(g[r].src[0], |_, n| matches!(n.op, Op::Load | Op::Range))
}
