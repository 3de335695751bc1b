//! Distributes a GPU's nests over the threads of a workgroup, as their plans say.
//!
//! Loops over outputs are flattened and distributed over *groups* of threads (`Vector`); the ranges
//! of reductions are distributed over the *lanes* of a group (`VectorReduce`), and a cooperative
//! reduction combines the partial results. The plan chooses whether neighbouring threads are the
//! lanes of a group or the groups. The order of the new range numbers expresses this: threads are
//! mapped row-major to the ranges of their nest, by number.
//!
//! Every plan is legal for any nest. If a count does not divide, surplus outputs repeat the last
//! one, and surplus terms of a reduction are its identity.

use super::fuse_reductions::fuse_reductions;
use super::{accumulators, fragment_tiling};
use crate::ir::nest::{
    Nest, Ranges, adds, divisor, floor_power, identity, outermost_reductions, strided,
};
use crate::plan::nest_view::{NestView, divided, fixed, is, most, reductions, walked};
use crate::plan::{Along, Counted, NestPlan, ThreadSum, Threads};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, ReduceOp};
use rustc_hash::FxHashMap;

/// Fuses a nest's reductions over the same terms into one loop. Proposals for
/// threads assume this form.
pub fn fused(g: &mut Graph, store: Id) -> Id {
    let nest = Nest::from_store(g, store);
    let all = reductions(g, nest.value);
    let value = fuse_reductions(g, nest.value, &all);
    Nest { value, ..nest }.store(g)
}

/// Rewrites a nest's ranges for the threads of a workgroup. For all plans but `Warps` and
/// `Accumulators`, the nest must come from [`fused`].
pub fn nest(g: &mut Graph, store: Id, plan: &NestPlan, target: &Target, ranges: &mut Ranges) -> Id {
    match plan {
        NestPlan::Warps(warps) => {
            fragment_tiling::nest(g, store, warps, &target.machine, ranges).unwrap_or(store)
        }
        NestPlan::Threads(plan) => {
            let threads = target.threads as i64;
            let inside = adds(g, store).then(Vec::new);
            Sharing {
                g,
                ranges,
                threads,
                plan,
                steps: FxHashMap::default(),
                inside,
            }
            .nest(store)
        }
        NestPlan::Counted(plan) => counted(g, store, plan, ranges),
        NestPlan::Accumulators(plan) => accumulators::nest(g, store, plan, ranges).unwrap_or(store),
        NestPlan::Serial | NestPlan::Vectors(_) | NestPlan::Tiles => store,
    }
}

/// Rewrites a nest with threads that are already mapped: unrolls its sums, and splits outermost
/// sums over `lanes` copies of these threads (split-K within the workgroup).
fn counted(g: &mut Graph, store: Id, plan: &Counted, ranges: &mut Ranges) -> Id {
    let mut nest = Nest::from_store(g, store);
    let lane = (plan.lanes > 1).then(|| beside_threads(g, &mut nest, plan.lanes, ranges));
    let outermost = outermost_reductions(g, nest.value);
    let mut cuts: FxHashMap<(Id, i64, bool), Vec<Id>> = FxHashMap::default();
    let mut map = FxHashMap::default();
    let walks = |g: &Graph, n: Id| {
        walked(g, n)
            .into_iter()
            .max_by_key(|&r| most(g, r))
            .map(|r| (n, r))
    };
    let sums: Vec<(Id, Id)> = reductions(g, nest.value)
        .into_iter()
        .filter_map(|n| walks(g, n))
        .collect();
    for (i, (n, r)) in sums.into_iter().enumerate() {
        let node = g[n].clone();
        // A loop with data-dependent length is stepped by all lanes together: values past its end
        // may not be numbers.
        let (Arg::Reduce(op, _), Some(bound)) = (node.arg, fixed(g, r)) else {
            continue;
        };
        let divides = |by: i64| bound % by == 0;
        let lane = lane.filter(|_| outermost.contains(&n) && divides(plan.lanes));
        let lanes = if lane.is_some() { plan.lanes } else { 1 };
        let wide = plan
            .steps
            .get(i)
            .copied()
            .filter(|w| divides(lanes * w))
            .unwrap_or(1);
        let parts = cuts.entry((r, wide, lane.is_some())).or_insert_with(|| {
            let step = ranges.fixed(g, bound / wide / lanes, RangeKind::Reduce);
            [step]
                .into_iter()
                .chain(lane)
                .chain([ranges.fixed(g, wide, RangeKind::Unroll)])
                .collect()
        });
        let strides = [lanes * wide, wide, 1];
        let strides = if lane.is_some() {
            &strides[..]
        } else {
            &[wide, 1][..]
        };
        let at: Vec<(Id, i64)> = parts.iter().copied().zip(strides.iter().copied()).collect();
        let at = strided(g, &at);
        let inner = g.substitute(node.src[0], &mut FxHashMap::from_iter([(r, at)]));
        let mut all: Vec<Id> = node.src[1..].iter().copied().filter(|&x| x != r).collect();
        all.extend(parts.iter().copied().filter(|&x| g[x].op == Op::Range));
        map.insert(n, g.reduce_ranges(inner, &all, op));
    }
    let value = g.substitute(nest.value, &mut map);
    Nest { value, ..nest }.store(g)
}

/// Adds a range of `lanes` copies of the nest's threads. It is outermost, so the threads of one
/// copy stay neighbours, as MMA products require.
fn beside_threads(g: &mut Graph, nest: &mut Nest, lanes: i64, ranges: &mut Ranges) -> Id {
    let lane = ranges.fixed(g, lanes, RangeKind::VectorReduce);
    let threads: Vec<Id> = nest
        .closed
        .iter()
        .copied()
        .filter(|&r| is(g, r, RangeKind::Vector))
        .collect();
    let mut map = FxHashMap::default();
    for r in threads {
        let again = ranges.range(g, g[r].src[0], RangeKind::Vector);
        map.insert(r, again);
    }
    nest.offset = g.substitute(nest.offset, &mut map.clone());
    nest.value = g.substitute(nest.value, &mut map.clone());
    for r in &mut nest.closed {
        *r = map.get(r).copied().unwrap_or(*r);
    }
    lane
}

struct Sharing<'a> {
    g: &'a mut Graph,
    ranges: &'a mut Ranges,
    threads: i64,
    plan: &'a Threads,
    /// Ranges that a reduction's range was split into, by lane range: reductions over the same
    /// terms share their loop.
    steps: FxHashMap<(Id, Id, ThreadSum), [Id; 2]>,
    /// For a nest that adds to its buffer: the conditions under which clamped
    /// indices are within bounds.
    inside: Option<Vec<Id>>,
}

/// Threads that share a reduction.
#[derive(Clone, Copy)]
struct Lanes {
    range: Id,
    count: i64,
}

/// The threads of a workgroup as groups of lanes.
struct Division {
    lanes: i64,
    /// Range of the lanes, if there are several.
    lane: Option<Id>,
    groups: i64,
    /// Range of the groups, if there are several and more than one output.
    group: Option<Id>,
}

impl Sharing<'_> {
    fn range(&mut self, bound: Id, kind: RangeKind) -> Id {
        self.ranges.range(self.g, bound, kind)
    }
    fn fixed_range(&mut self, bound: i64, kind: RangeKind) -> Id {
        self.ranges.fixed(self.g, bound, kind)
    }
    /// Returns a power of two that divides the threads.
    fn lanes(&self, wanted: i64) -> i64 {
        floor_power(wanted.min(self.threads))
    }

    fn nest(&mut self, store: Id) -> Id {
        let nest = Nest::from_store(self.g, store);
        let NestView {
            own,
            common,
            mut shared,
        } = NestView::new(self.g, &nest, self.threads);
        let sums = NestView {
            own: own.clone(),
            common,
            shared: vec![],
        }
        .sums(self.g, nest.value);
        let Nest {
            buffer,
            offset,
            value,
            adds,
            mut closed,
        } = nest;
        let (along, mut map) = (self.plan.along, FxHashMap::default());
        self.widen(&mut shared, &mut closed, &mut map);
        self.repeat(&mut shared, &mut closed, &mut map);
        let outputs: i64 = shared.iter().map(|&r| most(self.g, r)).product();
        // In an addition, surplus threads must be masked, since each element is added exactly once.
        let division = self.division(if adds { self.threads } else { outputs }, !own.is_empty());
        // Loops on which no reduction depends are distributed over the lanes of a group.
        let rest = self.independent_loops(&closed, &shared, &own);
        let mut order: Vec<Id> = Vec::new();
        let mut indices = FxHashMap::default();
        if let Some(group) = division.group {
            order.extend(self.spread(&shared, group, division.groups, &mut indices));
            order.push(group);
        }
        if !own.is_empty() && !rest.is_empty() && along == Along::Reduction && division.lanes > 1 {
            let lane = self.fixed_range(division.lanes, RangeKind::Vector);
            order.extend(self.spread(&rest, lane, division.lanes, &mut indices));
            order.push(lane);
        }
        for (_, index) in map.iter_mut() {
            *index = self.g.substitute(*index, &mut indices.clone());
        }
        let left: Vec<Id> = closed
            .iter()
            .copied()
            .filter(|r| !indices.contains_key(r))
            .collect();
        map.extend(indices);
        // Remaining loops stay outermost; a workgroup runs them in sequence.
        let stays = |&r: &Id| is(self.g, r, RangeKind::Loop) || is(self.g, r, RangeKind::Reduce);
        let (loops, copies): (Vec<Id>, Vec<Id>) = left.into_iter().partition(stays);
        let order: Vec<Id> = loops.into_iter().chain(order).chain(copies).collect();
        let offset = self.g.substitute(offset, &mut map);
        self.divide_reductions(value, &sums, &own, &division, &mut map);
        let value = self.g.substitute(value, &mut map);
        let mut nest = Nest {
            buffer,
            offset,
            value,
            adds,
            closed: order,
        };
        nest.only_where(self.g, self.inside.as_deref().unwrap_or_default());
        nest.store(self.g)
    }

    /// Returns the loops of fixed length that are not `shared`, and on which no sum of `own`
    /// depends.
    fn independent_loops(&self, closed: &[Id], shared: &[Id], own: &[Id]) -> Vec<Id> {
        closed
            .iter()
            .copied()
            .filter(|&r| {
                is(self.g, r, RangeKind::Loop) && fixed(self.g, r).is_some() && !shared.contains(&r)
            })
            .filter(|r| !own.iter().any(|&n| self.g.free_ranges(n).contains(r)))
            .collect()
    }

    /// Divides the threads between outputs and lanes; the new ranges are numbered in thread order.
    fn division(&mut self, outputs: i64, reduces: bool) -> Division {
        let lanes = if reduces {
            self.lanes(self.plan.lanes)
        } else {
            1
        };
        let groups = self.threads / lanes;
        let (mut lane, mut group) = (None, None);
        if self.plan.along == Along::Output && lanes > 1 {
            lane = Some(self.fixed_range(lanes, RangeKind::VectorReduce));
        }
        if outputs > 1 && groups > 1 {
            group = Some(self.fixed_range(groups, RangeKind::Vector));
        }
        if self.plan.along == Along::Reduction && lanes > 1 {
            lane = Some(self.fixed_range(lanes, RangeKind::VectorReduce));
        }
        Division {
            lanes,
            lane,
            groups,
            group,
        }
    }

    /// Rewrites the reductions below `value` into `map`, in topological order: an output's `own`
    /// sums over the lanes of its group, other `sums` over lanes of all threads.
    fn divide_reductions(
        &mut self,
        value: Id,
        sums: &[Id],
        own: &[Id],
        division: &Division,
        map: &mut FxHashMap<Id, Id>,
    ) {
        for n in self.g.toposort(&[value]) {
            let node = self.g[n].clone();
            if node.op != Op::Reduce {
                continue;
            }
            let src: Vec<Id> = node
                .src
                .iter()
                .map(|&s| self.g.substitute(s, map))
                .collect();
            let Arg::Reduce(op, _) = node.arg else {
                continue;
            };
            let new = match sums.iter().position(|&s| s == n) {
                Some(at) => {
                    let mut sum = ThreadSum {
                        common: None,
                        terms: 1,
                        steps: 1,
                    };
                    sum = self.plan.sums.get(at).copied().unwrap_or(sum);
                    let (mut lane, mut count) = (division.lane, division.lanes);
                    if !own.contains(&n) {
                        count = self.lanes(sum.common.unwrap_or(1));
                        lane =
                            (count > 1).then(|| self.fixed_range(count, RangeKind::VectorReduce));
                    }
                    match lane {
                        Some(range) => {
                            self.reduction(src[0], &src[1..], op, sum, Lanes { range, count })
                        }
                        None => self.g.reduce_ranges(src[0], &src[1..], op),
                    }
                }
                None => self.g.reduce_ranges(src[0], &src[1..], op),
            };
            map.insert(n, new);
        }
    }

    /// Turns loops over outputs into copies, so that shared operands are read once.
    fn repeat(&mut self, shared: &mut Vec<Id>, closed: &mut Vec<Id>, map: &mut FxHashMap<Id, Id>) {
        let nest = closed.clone();
        for r in self
            .plan
            .copies
            .iter()
            .filter_map(|&at| nest.get(at).copied())
        {
            let Some(n) = fixed(self.g, r).filter(|_| shared.contains(&r)) else {
                continue;
            };
            let copy = self.fixed_range(n, RangeKind::Upcast);
            map.insert(r, copy);
            shared.retain(|&s| s != r);
            closed.retain(|&c| c != r);
            closed.push(copy);
        }
    }

    /// Gives each thread several neighbouring outputs: splits the last loop into (loop, copies).
    fn widen(&mut self, shared: &mut Vec<Id>, closed: &mut Vec<Id>, map: &mut FxHashMap<Id, Id>) {
        let Some(&last) = shared.last().filter(|_| self.plan.width > 1) else {
            return;
        };
        let Some(bound) = fixed(self.g, last) else {
            return;
        };
        let wide = divisor(bound, self.plan.width);
        let (outer, inner) = (
            self.fixed_range(bound / wide, RangeKind::Loop),
            self.fixed_range(wide, RangeKind::Upcast),
        );
        let w = self.g.int(wide);
        let at = self.g.mul(outer, w);
        let at = self.g.add(at, inner);
        map.insert(last, at);
        for r in closed.iter_mut().filter(|r| **r == last) {
            *r = outer;
        }
        shared.pop();
        if self.g[outer].op == Op::Range {
            shared.push(outer);
        } else {
            closed.retain(|&r| r != outer);
        }
        closed.extend(Some(inner).filter(|&r| self.g[r].op == Op::Range));
    }

    /// Distributes the ranges `shared` over groups of threads, and adds their indices to `map`.
    /// Returns the remaining loop.
    fn spread(
        &mut self,
        shared: &[Id],
        group: Id,
        groups: i64,
        map: &mut FxHashMap<Id, Id>,
    ) -> Option<Id> {
        let bounds: Vec<Id> = shared.iter().map(|&r| self.g[r].src[0]).collect();
        let one = self.g.int(1);
        let total = bounds.iter().fold(one, |p, &b| self.g.mul(p, b));
        let (up, by, minus) = (self.g.int(groups - 1), self.g.int(groups), self.g.int(-1));
        let steps = self.g.add(total, up);
        let steps = self.g.idiv(steps, by);
        let step = self.range(steps, RangeKind::Loop);
        let at = self.g.mul(step, by);
        let mut index = self.g.add(at, group);
        if self.g.int_value(total).is_none_or(|n| n % groups != 0) {
            let last = self.g.add(total, minus);
            if let Some(inside) = &mut self.inside {
                inside.push(self.g.lt(index, total));
            }
            index = self.g.min(index, last);
        }
        for (i, (&r, &b)) in shared.iter().zip(&bounds).enumerate().rev() {
            if i == 0 {
                map.insert(r, index);
            } else {
                map.insert(r, self.g.modulo(index, b));
                index = self.g.idiv(index, b);
            }
        }
        (self.g[step].op == Op::Range).then_some(step)
    }

    /// Splits the terms of a reduction over lanes.
    fn reduction(
        &mut self,
        value: Id,
        ranges: &[Id],
        op: ReduceOp,
        plan: ThreadSum,
        of: Lanes,
    ) -> Id {
        let Lanes {
            range: lane,
            count: lanes,
        } = of;
        let walked: Vec<Id> = ranges
            .iter()
            .copied()
            .filter(|&r| is(self.g, r, RangeKind::Reduce))
            .collect();
        let Some(r) = divided(self.g, &walked, lanes) else {
            // Unrolled reductions are computed by every lane, and all but the first contribute the
            // identity.
            return self.only_first(value, ranges, op, lane);
        };
        let (bound, wide) = (self.g[r].src[0], plan.terms);
        let [step, part] = self.cut(r, of, plan);
        let (by, w) = (self.g.int(lanes * wide), self.g.int(wide));
        let at = self.g.mul(step, by);
        let of_lane = self.g.mul(lane, w);
        let at = self.g.add(at, of_lane);
        let at = self.g.add(at, part);
        let divides = self
            .g
            .int_value(bound)
            .is_some_and(|b| b % (lanes * wide) == 0 && (b / (lanes * wide)) % plan.steps == 0);
        let (mut index, minus) = (at, self.g.int(-1));
        if !divides {
            let last = self.g.add(bound, minus);
            index = self.g.min(at, last);
        }
        let mut map = FxHashMap::from_iter([(r, index)]);
        let mut new = self.g.substitute(value, &mut map);
        if !divides {
            let inside = self.g.lt(at, bound);
            let none = self.identity(value, op);
            new = self.g.select(inside, new, none);
        }
        let mut all: Vec<Id> = ranges.iter().copied().filter(|&x| x != r).collect();
        let stepped: Vec<Id> = self.g.free_ranges(step).to_vec();
        all.extend(
            stepped
                .into_iter()
                .chain([part, lane])
                .filter(|&x| self.g[x].op == Op::Range),
        );
        self.g.reduce_ranges(new, &all, op)
    }
    /// Splits a range into a step index and the neighbouring terms of a step,
    /// shared by equal reductions.
    fn cut(&mut self, r: Id, lanes: Lanes, plan: ThreadSum) -> [Id; 2] {
        if let Some(&known) = self.steps.get(&(r, lanes.range, plan)) {
            return known;
        }
        let at_once = lanes.count * plan.terms;
        let (by, up) = (self.g.int(at_once), self.g.int(at_once - 1));
        let steps = self.g.add(self.g[r].src[0], up);
        let steps = self.g.idiv(steps, by);
        let new = [
            self.steps(steps, plan.steps),
            self.fixed_range(plan.terms, RangeKind::Unroll),
        ];
        self.steps.insert((r, lanes.range, plan), new);
        new
    }
    /// Creates a loop over `steps`, with `copies` of them unrolled to have their loads in flight
    /// together. Steps past the end contribute the identity.
    fn steps(&mut self, steps: Id, copies: i64) -> Id {
        let (up, by) = (self.g.int(copies - 1), self.g.int(copies));
        let count = self.g.add(steps, up);
        let count = self.g.idiv(count, by);
        let (outer, inner) = (
            self.range(count, RangeKind::Reduce),
            self.fixed_range(copies, RangeKind::Unroll),
        );
        let at = self.g.mul(outer, by);
        self.g.add(at, inner)
    }
    fn only_first(&mut self, value: Id, ranges: &[Id], op: ReduceOp, lane: Id) -> Id {
        let (zero, none) = (self.g.int(0), self.identity(value, op));
        let first = self.g.eq(lane, zero);
        let value = self.g.select(first, value, none);
        let mut all = ranges.to_vec();
        all.push(lane);
        self.g.reduce_ranges(value, &all, op)
    }
    fn identity(&mut self, value: Id, op: ReduceOp) -> Id {
        identity(self.g, op, self.g[value].dtype)
    }
}
