//! The workgroup's part of a tile plan, applied: the axes of a kernel's output become ranges over the launch and ranges inside a workgroup.

use super::rangeify::Expander;
use crate::ir::hints::{CausalSkip, FusedSum, StagedTile};
use crate::ir::mma::tile_axes;
use crate::ir::nest::{Nest, adds, host_bound};
use crate::plan::{AxisPart, Workgroup};
use crate::propose::{ProposalContext, axes};
use gristmill_uop::{Graph, Id, Op, RangeKind};
use rustc_hash::FxHashMap;

/// The nests of a workgroup: ranges that the launch is spread over are `Global`.
pub struct Split {
    /// In the order of the nests that were given.
    pub nests: Vec<Id>,
    /// Workgroups for which this holds compute nothing that is read.
    pub skip: Option<Id>,
    /// Where in a workgroup's chunk, or behind it, rows begin that this step writes.
    pub fresh: Option<Id>,
}

/// Rewrites the nests as the plan says.
pub fn split(g: &mut Graph, x: &mut Expander, nests: &[Id], plan: &Workgroup, around: &ProposalContext) -> Split {
    let axes = axes(g, nests);
    let tiles = around.derived.is_tiled(around.node).then(|| tile_axes::kind(around.target.machine.kind));
    let inside = nests.iter().any(|&n| adds(g, n)).then(Vec::new);
    let mut s = Splitter { x, map: FxHashMap::default(), order: Vec::new(), inside, tiles };
    s.cut(g, &axes, plan);
    let hint = around.hint.filter(|h| h.globals > 0);
    let skip = hint.and_then(|h| s.skip(g, &h.future?, &axes, around.node, h.tile));
    let fresh = hint.and_then(|h| s.fresh(g, &h.resident?, &axes, around.node));
    let fused = hint.and_then(|h| {
        let (f, mut order) = (h.fused?, g.toposort(nests).into_iter());
        let old = order.find(|&n| g.range_kind(n) == Some(RangeKind::Fused))?;
        Some((old, s.fused(g, &f, &axes, around.node, h.tile)?))
    });
    let (mut map, order, inside) = (s.map, s.order, s.inside.unwrap_or_default());
    map.extend(fused);
    let split_nest = |&nest: &Id| {
        let mut n = Nest::from_store(g, nest);
        let mut m = map.clone();
        n.offset = g.replace(n.offset, &mut m);
        n.value = g.replace(n.value, &mut m);
        n.only_where(g, &inside);
        // New inner ranges in the order chosen, then what was left alone.
        let left = n.closed.into_iter().filter(|r| !map.contains_key(r) && !order.contains(r));
        n.closed = order.iter().copied().chain(left).collect();
        n.store(g)
    };
    Split { nests: nests.iter().map(split_nest).collect(), skip, fresh }
}

/// Axes being cut: what stands for each, and the ranges that stay inside the workgroup.
struct Splitter<'a, 'b> {
    x: &'a mut Expander<'b>,
    /// Index expressions in place of axes.
    map: FxHashMap<Id, Id>,
    /// Inner ranges, outermost first.
    order: Vec<Id>,
    /// Of nests that add, whose indices are held within their axes: where these have not passed the end.
    inside: Option<Vec<Id>>,
    /// Of a product of tiles, whose buffers have room for whole ones, which ranges are a tile's.
    tiles: Option<RangeKind>,
}

impl Splitter<'_, '_> {
    /// The axes as the plan's parts, from the outermost on. Where an axis ends before its parts do, their surplus repeats the last element: it computes and
    /// writes the same value again. So does a whole tile; of the last one rows behind the end are computed too, from whatever lies there.
    fn cut(&mut self, g: &mut Graph, axes: &[Id], plan: &Workgroup) {
        for (i, part) in plan.parts.iter().enumerate() {
            let Some(&r) = axes.get(part.axis) else { continue };
            let of_axis = |p: &&AxisPart| p.axis == part.axis;
            let several = plan.parts.iter().filter(of_axis).count() > 1;
            // A loop over a whole axis is the loop that it is, at this place of the order.
            if part.kind == RangeKind::Loop && !several {
                self.order.push(r);
                continue;
            }
            // Rows that are added in an order stay one loop.
            if g.range_kind(r) == Some(RangeKind::Reduce) {
                continue;
            }
            let (at, stride) = (self.part(g, r, part), g.int(part.stride));
            let at = g.mul(at, stride);
            let mut index = match self.map.get(&r) {
                Some(&outer) => g.add(outer, at),
                None => at,
            };
            let rest = plan.parts.iter().filter(of_axis).find(|p| p.count.is_none()).map_or(1, |p| p.stride);
            let divides = g.int_value(g[r].src[0]).is_some_and(|b| b % rest == 0);
            let inner: Vec<&AxisPart> = plan.parts[i + 1..].iter().filter(of_axis).collect();
            if let Some(step) = self.repeated(part, &inner).filter(|_| several && !divides) {
                let last = self.last(g, r, step);
                self.ends(g, index, g[r].src[0]);
                index = g.min(index, last);
            }
            self.map.insert(r, index);
        }
    }
    /// Elements that are repeated together where the axis ends, if this part's range is the last that says which.
    fn repeated(&self, part: &AxisPart, inner: &[&AxisPart]) -> Option<i64> {
        match inner {
            [] if self.is_tile(part) => None,
            [] => Some(1),
            [lanes] if self.is_tile(lanes) => lanes.count,
            _ => None,
        }
    }
    /// Are its elements those of a tile?
    fn is_tile(&self, part: &AxisPart) -> bool {
        self.tiles == Some(part.kind)
    }
    /// Where the last `step` elements of the axis `r` begin, which is cut into so many.
    fn last(&self, g: &mut Graph, r: Id, step: i64) -> Id {
        let minus = g.int(-1);
        let last = g.add(g[r].src[0], minus);
        let step = g.int(step);
        let number = g.idiv(last, step);
        g.mul(number, step)
    }
    /// The range of a part of the axis `r`.
    fn part(&mut self, g: &mut Graph, r: Id, part: &AxisPart) -> Id {
        let count = match part.count {
            Some(n) => g.int(n),
            None => {
                let (by, up) = (g.int(part.stride), g.int(part.stride - 1));
                let count = g.add(g[r].src[0], up);
                g.idiv(count, by)
            }
        };
        match part.kind {
            RangeKind::Global if !host_bound(g, r) => self.up_to(g, count),
            _ => self.new_range(g, count, part.kind),
        }
    }
    fn new_range(&mut self, g: &mut Graph, bound: Id, kind: RangeKind) -> Id {
        let r = self.x.ranges.range(g, bound, kind);
        if kind != RangeKind::Global && g[r].op == Op::Range {
            self.order.push(r);
        }
        r
    }
    /// An index over the launch, up to a bound that the host does not know: workgroups beyond it repeat the last.
    fn up_to(&mut self, g: &mut Graph, bound: Id) -> Id {
        let (most, minus) = (g.max_of(bound), g.int(-1));
        let most = g.int(most);
        let new = self.new_range(g, most, RangeKind::Global);
        let last = g.add(bound, minus);
        self.ends(g, new, bound);
        g.min(new, last)
    }
    /// An index is held below a bound.
    fn ends(&mut self, g: &mut Graph, index: Id, bound: Id) {
        if let Some(inside) = &mut self.inside {
            inside.push(g.lt(index, bound));
        }
    }
    /// Is every element of the workgroup one that nobody reads?
    fn skip(&mut self, g: &mut Graph, f: &CausalSkip, axes: &[Id], node: Id, tile: i64) -> Option<Id> {
        // Axes of one element have no range.
        let dims = g.shape(node);
        let ranged = |axis: usize| dims[..axis].iter().filter(|&&d| g.int_value(d) != Some(1)).count();
        let (chunk, token) = (*axes.get(ranged(f.chunk))?, *axes.get(ranged(f.token))?);
        let zero = g.int(0);
        let chunk = if g.int_value(dims[f.chunk]) == Some(1) { zero } else { self.map[&chunk] };
        let token = if g.int_value(dims[f.token]) == Some(1) { zero } else { self.map[&token] };
        let (first, base) = (self.x.dim(g, f.first), self.x.dim(g, f.base));
        let (size, chunk) = (g.int(f.size), g.add(base, chunk));
        let begin = g.mul(chunk, size);
        // The last token of the tile is before the chunk, or the first one's window behind it.
        let last = position(g, token, first, tile - 1);
        let Some(window) = f.window else { return Some(g.lt(last, begin)) };
        let own = position(g, token, first, 0);
        let (ahead, passed) = (g.sub(begin, last), g.sub(own, begin));
        let reach = g.int(2 - window - f.size);
        let behind = g.add(passed, reach);
        let outside = g.max(ahead, behind);
        Some(g.lt(zero, outside))
    }
    /// The loop in place of the one over chunks that nests share, which ends with the last that a token of the workgroup sees.
    fn fused(&mut self, g: &mut Graph, f: &FusedSum, axes: &[Id], node: Id, tile: i64) -> Option<Id> {
        let dims = g.shape(node);
        let ranged = dims[..f.token].iter().filter(|&&d| g.int_value(d) != Some(1)).count();
        let token = match g.int_value(dims[f.token]) {
            Some(1) => g.int(0),
            _ => self.map[axes.get(ranged)?],
        };
        let (first, base, size) = (self.x.dim(g, f.first), self.x.dim(g, f.base), g.int(f.size));
        let last = position(g, token, first, tile - 1);
        let minus = g.int(-f.size);
        let begin = g.mul(base, minus);
        let seen = g.add(last, begin);
        let seen = g.add(seen, size);
        let count = g.idiv(seen, size);
        let new = self.x.ranges.range(g, count, RangeKind::Fused);
        self.x.shared = Some(new);
        Some(new)
    }
    /// Where in the workgroup's chunk, or behind it, the rows of the step's tokens begin.
    fn fresh(&mut self, g: &mut Graph, r: &StagedTile, axes: &[Id], node: Id) -> Option<Id> {
        let first = self.x.dim(g, r.settled?);
        let chunks = g.shape(node)[0];
        let chunk = if g.int_value(chunks) == Some(1) { g.int(0) } else { *self.map.get(axes.first()?)? };
        let (size, base) = (g.int(r.size), self.x.dim(g, r.base));
        let chunk = g.add(base, chunk);
        let begin = g.mul(chunk, size);
        Some(g.sub(first, begin))
    }
}

/// The position of the token of that number within a workgroup's tile of them, whose index is `token`.
fn position(g: &mut Graph, token: Id, first: Id, number: i64) -> Id {
    let inner: Vec<Id> =
        g.free_ranges(token).iter().copied().filter(|&r| g.range_kind(r) != Some(RangeKind::Global)).collect();
    let number = g.int(number);
    let mut map = FxHashMap::from_iter(inner.into_iter().map(|r| (r, number)));
    let token = g.substitute(token, &mut map);
    g.add(first, token)
}
