//! Applies the workgroup part of a tile plan: cuts the axes of a kernel's output into launch ranges
//! and ranges inside a workgroup.

use super::rangeify::Expander;
use crate::ir::hints::{CausalSkip, FusedSum, StagedTile};
use crate::ir::mma::tile_axes;
use crate::ir::nest::{Nest, adds, host_bound};
use crate::plan::{AxisPart, Workgroup};
use crate::propose::{ProposalContext, axes};
use gristmill_uop::{Graph, Id, Op, RangeKind};
use rustc_hash::FxHashMap;

/// The nests of a workgroup; launch ranges are `Global`.
pub struct Split {
    /// In the order of the given nests.
    pub nests: Vec<Id>,
    /// Condition under which no result of a workgroup is read.
    pub skip: Option<Id>,
    /// Row in a workgroup's chunk, or past its end, where the rows written by this step begin.
    pub fresh: Option<Id>,
}

/// Rewrites the nests according to the plan.
pub fn split(
    g: &mut Graph,
    x: &mut Expander,
    nests: &[Id],
    plan: &Workgroup,
    around: &ProposalContext,
) -> Split {
    let axes = axes(g, nests);
    let tiles = around
        .derived
        .is_tiled(around.node)
        .then(|| tile_axes::kind(around.target.machine.kind));
    let inside = nests.iter().any(|&n| adds(g, n)).then(Vec::new);
    let mut s = Splitter {
        x,
        map: FxHashMap::default(),
        order: Vec::new(),
        inside,
        tiles,
    };
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
        // New inner ranges in plan order, then the ranges that were not cut.
        let left = n
            .closed
            .into_iter()
            .filter(|r| !map.contains_key(r) && !order.contains(r));
        n.closed = order.iter().copied().chain(left).collect();
        n.store(g)
    };
    Split {
        nests: nests.iter().map(split_nest).collect(),
        skip,
        fresh,
    }
}

/// State of a cut: the index expression of each axis, and the ranges inside the workgroup.
struct Splitter<'a, 'b> {
    x: &'a mut Expander<'b>,
    /// Index expression in place of each axis.
    map: FxHashMap<Id, Id>,
    /// Inner ranges, outermost first.
    order: Vec<Id>,
    /// For adding nests with clamped indices: conditions that an index is not past the
    /// end of its axis.
    inside: Option<Vec<Id>>,
    /// For tile products, which have buffers padded to whole tiles: the kind of a tile's ranges.
    tiles: Option<RangeKind>,
}

impl Splitter<'_, '_> {
    /// Cuts the axes into the plan's parts, outermost first.
    ///
    /// Surplus iterations past the end of an axis repeat the last element: they compute and write
    /// the same value again. A whole surplus tile repeats the last tile; rows past the end within
    /// the last tile are computed from the buffer's padding.
    fn cut(&mut self, g: &mut Graph, axes: &[Id], plan: &Workgroup) {
        for (i, part) in plan.parts.iter().enumerate() {
            let Some(&r) = axes.get(part.axis) else {
                continue;
            };
            let of_axis = |p: &&AxisPart| p.axis == part.axis;
            let several = plan.parts.iter().filter(of_axis).count() > 1;
            // A loop over a whole axis keeps its range and only takes its place in the order.
            if part.kind == RangeKind::Loop && !several {
                self.order.push(r);
                continue;
            }
            // Rows that are added in order stay one loop.
            if g.range_kind(r) == Some(RangeKind::Reduce) {
                continue;
            }
            let (at, stride) = (self.part(g, r, part), g.int(part.stride));
            let at = g.mul(at, stride);
            let mut index = match self.map.get(&r) {
                Some(&outer) => g.add(outer, at),
                None => at,
            };
            let rest = plan
                .parts
                .iter()
                .filter(of_axis)
                .find(|p| p.count.is_none())
                .map_or(1, |p| p.stride);
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
    /// Elements to repeat together at the end of the axis, if this part is the last
    /// one that selects them.
    fn repeated(&self, part: &AxisPart, inner: &[&AxisPart]) -> Option<i64> {
        match inner {
            [] if self.is_tile(part) => None,
            [] => Some(1),
            [lanes] if self.is_tile(lanes) => lanes.count,
            _ => None,
        }
    }
    /// Whether its elements are those of a tile.
    fn is_tile(&self, part: &AxisPart) -> bool {
        self.tiles == Some(part.kind)
    }
    /// Start of the last group of `step` elements of the axis `r`.
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
    /// A launch index with a bound that the host cannot evaluate: surplus
    /// workgroups repeat the last.
    fn up_to(&mut self, g: &mut Graph, bound: Id) -> Id {
        let (most, minus) = (g.max_of(bound), g.int(-1));
        let most = g.int(most);
        let new = self.new_range(g, most, RangeKind::Global);
        let last = g.add(bound, minus);
        self.ends(g, new, bound);
        g.min(new, last)
    }
    /// Records the condition that an index is below its bound.
    fn ends(&mut self, g: &mut Graph, index: Id, bound: Id) {
        if let Some(inside) = &mut self.inside {
            inside.push(g.lt(index, bound));
        }
    }
    /// The condition that no element of the workgroup is read.
    fn skip(
        &mut self,
        g: &mut Graph,
        f: &CausalSkip,
        axes: &[Id],
        node: Id,
        tile: i64,
    ) -> Option<Id> {
        // Axes with one element have no range.
        let dims = g.shape(node);
        let ranged = |axis: usize| {
            dims[..axis]
                .iter()
                .filter(|&&d| g.int_value(d) != Some(1))
                .count()
        };
        let (chunk, token) = (*axes.get(ranged(f.chunk))?, *axes.get(ranged(f.token))?);
        let zero = g.int(0);
        let chunk = if g.int_value(dims[f.chunk]) == Some(1) {
            zero
        } else {
            self.map[&chunk]
        };
        let token = if g.int_value(dims[f.token]) == Some(1) {
            zero
        } else {
            self.map[&token]
        };
        let (first, base) = (self.x.dim(g, f.first), self.x.dim(g, f.base));
        let (size, chunk) = (g.int(f.size), g.add(base, chunk));
        let begin = g.mul(chunk, size);
        // The tile's last token precedes the chunk, or the chunk ends before the
        // first token's window.
        let last = position(g, token, first, tile - 1);
        let Some(window) = f.window else {
            return Some(g.lt(last, begin));
        };
        let own = position(g, token, first, 0);
        let (ahead, passed) = (g.sub(begin, last), g.sub(own, begin));
        let reach = g.int(2 - window - f.size);
        let behind = g.add(passed, reach);
        let outside = g.max(ahead, behind);
        Some(g.lt(zero, outside))
    }
    /// Replaces the shared loop over chunks by one that ends with the last chunk visible to a
    /// token of the workgroup.
    fn fused(
        &mut self,
        g: &mut Graph,
        f: &FusedSum,
        axes: &[Id],
        node: Id,
        tile: i64,
    ) -> Option<Id> {
        let dims = g.shape(node);
        let ranged = dims[..f.token]
            .iter()
            .filter(|&&d| g.int_value(d) != Some(1))
            .count();
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
    /// Row in the workgroup's chunk, or past its end, where the rows of this step's tokens begin.
    fn fresh(&mut self, g: &mut Graph, r: &StagedTile, axes: &[Id], node: Id) -> Option<Id> {
        let first = self.x.dim(g, r.settled?);
        let chunks = g.shape(node)[0];
        let chunk = if g.int_value(chunks) == Some(1) {
            g.int(0)
        } else {
            *self.map.get(axes.first()?)?
        };
        let (size, base) = (g.int(r.size), self.x.dim(g, r.base));
        let chunk = g.add(base, chunk);
        let begin = g.mul(chunk, size);
        Some(g.sub(first, begin))
    }
}

/// The position of token `number` in a workgroup's tile; `token` is the tile's token index.
fn position(g: &mut Graph, token: Id, first: Id, number: i64) -> Id {
    let inner: Vec<Id> = g
        .free_ranges(token)
        .iter()
        .copied()
        .filter(|&r| g.range_kind(r) != Some(RangeKind::Global))
        .collect();
    let number = g.int(number);
    let mut map = FxHashMap::from_iter(inner.into_iter().map(|r| (r, number)));
    let token = g.substitute(token, &mut map);
    g.add(first, token)
}
