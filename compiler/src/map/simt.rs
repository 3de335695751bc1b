//! Optimise for a GPU: how a nest is shared among the threads of its workgroup.
//!
//! Loops over output elements are flattened and spread over *groups* of threads (`Vector`), the ranges of reductions over the *lanes* of a group
//! (`VectorReduce`), whose partial results are folded. Which threads are neighbours follows from memory: where the operands are contiguous
//! along the reduction, the lanes of a group are, where they are contiguous along the output, the groups are. The numbers of the new ranges
//! say so: threads are counted row-major over the ranges of their nest, in the order of their numbers.
//!
//! Every choice is legal for any nest. Where a count does not divide, surplus elements repeat the last one, and surplus terms of a reduction
//! count as its identity.

use super::fragment_tiling;
use super::fuse_reductions::fuse_reductions;
use crate::nest::{Nest, Ranges, floor_power, identity};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, ReduceOp, Scalar};
use rustc_hash::{FxHashMap, FxHashSet};

/// Bytes of the widest load.
const WIDEST: i64 = 16;
/// Lanes that are enough for loads of whole sectors.
const FEW: i64 = 8;
/// Steps of a reduction that are taken at once.
const STEPS: i64 = 4;
/// Steps that are taken at once of a reduction whose length is data, at most.
const WAITING: i64 = 18;
/// Most output elements of a thread that share an operand.
const REPEATED: i64 = 8;
/// Most accumulators of a thread.
const ACCUMULATORS: i64 = 32;

/// Rewrites a nest's ranges for the threads of a workgroup.
pub fn nest(g: &mut Graph, store: Id, target: &Target, ranges: &mut Ranges) -> Id {
    if target.machine.fragment(Scalar::F16).is_some()
        && let Some(nest) = fragment_tiling::nest(g, store, target.threads as i64, ranges)
    {
        return nest;
    }
    let (threads, subgroup) = (target.threads as i64, target.machine.subgroup);
    let mut o = Sharing { g, ranges, threads, subgroup, steps: FxHashMap::default() };
    o.nest(store)
}

struct Sharing<'a> {
    g: &'a mut Graph,
    ranges: &'a mut Ranges,
    threads: i64,
    /// Lanes that fold without a barrier.
    subgroup: i64,
    /// Ranges that a range of reductions was cut into, for lanes and a width: reductions over the same terms share their loop.
    steps: FxHashMap<(Id, Option<Id>, i64), [Id; 2]>,
}

/// What the operands of a nest are contiguous along.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Along {
    Output,
    Reduction,
}

/// The threads of a workgroup as groups of lanes.
struct Division {
    /// Lanes of a group.
    lanes: i64,
    /// Their range, if there are several.
    lane: Option<Id>,
    groups: i64,
    /// Their range, if there are several and elements for them.
    group: Option<Id>,
}

impl Sharing<'_> {
    fn range(&mut self, bound: Id, kind: RangeKind) -> Id {
        self.ranges.range(self.g, bound, kind)
    }
    fn fixed_range(&mut self, bound: i64, kind: RangeKind) -> Id {
        self.ranges.fixed(self.g, bound, kind)
    }
    fn most(&self, r: Id) -> i64 {
        self.g.max_of(self.g[r].src[0])
    }
    fn fixed(&self, r: Id) -> Option<i64> {
        self.g.int_value(self.g[r].src[0])
    }
    fn is(&self, r: Id, kind: RangeKind) -> bool {
        self.g.range_kind(r) == Some(kind)
    }

    fn nest(&mut self, store: Id) -> Id {
        let Nest { buffer, offset, value, mut closed } = Nest::of(self.g, store);
        if closed.iter().any(|&r| self.is(r, RangeKind::Vector)) {
            return self.stepped(store);
        }
        let value = fuse_reductions(self.g, value, &self.reductions(value));
        // Reductions that every output element has in common use all threads; the others the lanes of a group. What a reduction computes anew
        // for each of its terms, each lane does alone.
        let (own, common): (Vec<Id>, Vec<Id>) = self
            .reductions(value)
            .into_iter()
            .partition(|&n| self.g.free_ranges(n).iter().any(|&r| closed.contains(&r) && self.is(r, RangeKind::Loop)));
        let mut shared = self.shared(&closed, &own);
        let along = self.along(value, &own, &shared);
        let mut map = FxHashMap::default();
        if along == Along::Output {
            self.widen(value, &mut shared, &mut closed, &mut map);
        }
        if along == Along::Reduction {
            self.repeat(value, &own, &mut shared, &mut closed, &mut map);
        }
        let outputs: i64 = shared.iter().map(|&r| self.most(r)).product();
        let division = self.division(&own, outputs, along);
        // What is left of the output once the reductions are known is shared among the lanes of the group.
        let rest: Vec<Id> = closed
            .iter()
            .copied()
            .filter(|&r| self.is(r, RangeKind::Loop) && self.fixed(r).is_some() && !shared.contains(&r))
            .filter(|r| !own.iter().any(|&n| self.g.free_ranges(n).contains(r)))
            .collect();
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
        let left: Vec<Id> = closed.iter().copied().filter(|r| !indices.contains_key(r)).collect();
        map.extend(indices);
        // Loops that are left stay outside: what a workgroup does one after the other.
        let (loops, copies): (Vec<Id>, Vec<Id>) = left.into_iter().partition(|&r| self.is(r, RangeKind::Loop));
        let order: Vec<Id> = loops.into_iter().chain(order).chain(copies).collect();
        let offset = self.g.substitute(offset, &mut map);
        self.divide_reductions(value, &own, &common, &division, &mut map);
        let value = self.g.substitute(value, &mut map);
        Nest { buffer, offset, value, closed: order }.store(self.g)
    }

    /// How the threads are divided among so many output elements and the reductions that are their own: ranges numbered in the order of the threads.
    fn division(&mut self, own: &[Id], outputs: i64, along: Along) -> Division {
        let lanes = self.lanes(own, outputs, along);
        let groups = self.threads / lanes;
        let (mut lane, mut group) = (None, None);
        if along == Along::Output && lanes > 1 {
            lane = Some(self.fixed_range(lanes, RangeKind::VectorReduce));
        }
        if outputs > 1 && groups > 1 {
            group = Some(self.fixed_range(groups, RangeKind::Vector));
        }
        if along == Along::Reduction && lanes > 1 {
            lane = Some(self.fixed_range(lanes, RangeKind::VectorReduce));
        }
        Division { lanes, lane, groups, group }
    }

    /// Puts the reductions below `value`, each after its sources, into `map`: an output element's `own` over the lanes of its group, those that all have
    /// in `common` over all threads.
    fn divide_reductions(
        &mut self,
        value: Id,
        own: &[Id],
        common: &[Id],
        division: &Division,
        map: &mut FxHashMap<Id, Id>,
    ) {
        for n in self.g.toposort(&[value]) {
            let node = self.g[n].clone();
            if node.op != Op::Reduce {
                continue;
            }
            let src: Vec<Id> = node.src.iter().map(|&s| self.g.substitute(s, map)).collect();
            let Arg::Reduce(op, _) = node.arg else { continue };
            let new = if own.contains(&n) {
                self.reduction(src[0], &src[1..], op, division.lane, division.lanes)
            } else if common.contains(&n) {
                let lanes = self.lanes(&[n], 1, Along::Reduction);
                let lane = (lanes > 1).then(|| self.fixed_range(lanes, RangeKind::VectorReduce));
                self.reduction(src[0], &src[1..], op, lane, lanes)
            } else {
                self.g.reduce_ranges(src[0], &src[1..], op)
            };
            map.insert(n, new);
        }
    }

    /// A nest whose threads are counted already: several steps of a reduction at once, where that makes loads wide.
    fn stepped(&mut self, store: Id) -> Id {
        let nest = Nest::of(self.g, store);
        let value = fuse_reductions(self.g, nest.value, &self.reductions(nest.value));
        let mut map = FxHashMap::default();
        for n in self.reductions(value) {
            let node = self.g[n].clone();
            let Arg::Reduce(op, _) = node.arg else { continue };
            let Some(&r) = self.walked(n).iter().max_by_key(|&&r| self.most(r)) else { continue };
            let wide = if self.fixed(r).is_some_and(|b| b % STEPS == 0) { STEPS } else { 1 };
            let bound = self.most(r);
            let [step, part] = self.cut(r, None, wide, |o| {
                [o.fixed_range(bound / wide, RangeKind::Reduce), o.fixed_range(wide, RangeKind::Unroll)]
            });
            let w = self.g.int(wide);
            let at = self.g.mul(step, w);
            let at = self.g.add(at, part);
            let inner = self.g.substitute(node.src[0], &mut FxHashMap::from_iter([(r, at)]));
            let mut all: Vec<Id> = node.src[1..].iter().copied().filter(|&x| x != r).collect();
            all.extend([step, part].into_iter().filter(|&x| self.g[x].op == Op::Range));
            map.insert(n, self.g.reduce_ranges(inner, &all, op));
        }
        let value = self.g.substitute(value, &mut map);
        Nest { value, ..nest }.store(self.g)
    }

    /// Reductions below `value` that lanes share: those that depend on no range of a reduction around them, or what such a one sums up, if
    /// that is longer.
    fn reductions(&self, value: Id) -> Vec<Id> {
        let g = &*self.g;
        let all: Vec<Id> = g.toposort(&[value]).into_iter().filter(|&n| g[n].op == Op::Reduce).collect();
        let mut around: FxHashMap<Id, FxHashSet<Id>> = FxHashMap::default();
        for &outer in &all {
            for n in g.toposort(&[g[outer].src[0]]) {
                if g[n].op == Op::Reduce {
                    around.entry(n).or_default().extend(g[outer].src[1..].iter().copied());
                }
            }
        }
        let longest = |n: Id| self.walked(n).iter().map(|&r| self.most(r)).max().unwrap_or(1);
        let depends = |n: Id, on: Id| g.free_ranges(n).iter().any(|r| g[on].src[1..].contains(r));
        let mut found: Vec<Id> = all
            .iter()
            .copied()
            .filter(|n| around.get(n).is_none_or(|a| g.free_ranges(*n).iter().all(|r| !a.contains(r))))
            .collect();
        for n in found.clone() {
            let inner: Vec<Id> = all.iter().copied().filter(|&m| depends(m, n) && longest(m) > longest(n)).collect();
            if !inner.is_empty() {
                found.retain(|&x| x != n);
                found.extend(inner);
            }
        }
        found
    }

    /// Loops that are spread over threads: those on which every reduction depends (others would compute it again), and of those without a
    /// fixed bound only the outermost, if the others leave threads idle.
    fn shared(&self, closed: &[Id], reductions: &[Id]) -> Vec<Id> {
        let loops = closed.iter().copied().filter(|&r| self.is(r, RangeKind::Loop));
        let wanted: Vec<Id> = loops.filter(|r| reductions.iter().all(|&n| self.g.free_ranges(n).contains(r))).collect();
        let fixed: Vec<Id> = wanted.iter().copied().filter(|&r| self.fixed(r).is_some()).collect();
        let count: i64 = fixed.iter().map(|&r| self.most(r)).product();
        let open = wanted
            .iter()
            .copied()
            .find(|&r| self.fixed(r).is_none() && self.g.free_ranges(self.g[r].src[0]).is_empty());
        match open {
            Some(open) if count < self.threads => [open].into_iter().chain(fixed).collect(),
            _ => fixed,
        }
    }

    /// Loads from memory: offset, and the bytes of its unit.
    fn loads(&self, value: Id) -> Vec<(Id, i64)> {
        let g = &*self.g;
        let mut out = Vec::new();
        for n in g.toposort(&[value]) {
            let node = &g[n];
            if node.op == Op::Load && g[node.src[0]].op == Op::Param {
                out.push((node.src[1], g.unit_bytes(node.src[0])));
            }
        }
        out
    }

    fn along(&self, value: Id, reductions: &[Id], shared: &[Id]) -> Along {
        let Some(&last) = shared.last() else { return Along::Reduction };
        let inner: Vec<Id> = reductions.iter().flat_map(|&n| self.walked(n)).collect();
        let (mut output, mut reduction) = (0, 0);
        for (at, unit) in self.loads(value) {
            let sum = self.g.linear(at);
            let near = |r: Id| (1..=WIDEST).contains(&(sum.coefficient(r).abs() * unit));
            if near(last) {
                output += 1;
            } else if inner.iter().any(|&r| near(r)) {
                reduction += 1;
            }
        }
        if output > reduction { Along::Output } else { Along::Reduction }
    }

    /// Ranges that a reduction walks along, in a loop.
    fn walked(&self, n: Id) -> Vec<Id> {
        self.g[n].src[1..].iter().copied().filter(|&r| self.is(r, RangeKind::Reduce)).collect()
    }

    /// Lanes of a group: as many as outputs leave threads, and where neighbours read along the reduction a warp, if the reductions are long enough.
    fn lanes(&self, reductions: &[Id], outputs: i64, along: Along) -> i64 {
        let walks = reductions.iter().flat_map(|&n| self.walked(n).into_iter().map(move |r| (n, r)));
        let Some((n, r)) = walks.max_by_key(|x| self.most(x.1)) else { return 1 };
        let idle = floor_power(self.threads / outputs.clamp(1, self.threads));
        let wanted = match along {
            Along::Output => idle,
            Along::Reduction => idle.max(self.subgroup.min(self.threads)),
        };
        // So many that wide loads divide the terms among them, or at least single ones do; else half as many as there are terms.
        let divisor = |each: i64| {
            let bound = self.fixed(r)?;
            let enough = wanted.min(FEW.max(idle)).min(bound / each);
            (0..=wanted.ilog2()).rev().map(|i| 1 << i).find(|l| bound % (l * each) == 0).filter(|&l| l >= enough)
        };
        let wide = self.widest(self.g[n].src[0], r);
        let most = if idle >= FEW { idle } else { wanted };
        divisor(wide).or_else(|| divisor(1)).unwrap_or_else(|| most.min(floor_power(self.most(r) / 2)))
    }

    /// Loops over output elements that share an operand become copies, so that it is read once for all of them.
    fn repeat(
        &mut self,
        value: Id,
        own: &[Id],
        shared: &mut Vec<Id>,
        closed: &mut Vec<Id>,
        map: &mut FxHashMap<Id, Id>,
    ) {
        let walked: Vec<Id> = own.iter().flat_map(|&n| self.walked(n)).collect();
        let mut copies =
            closed.iter().filter(|&&r| self.is(r, RangeKind::Upcast)).map(|&r| self.most(r)).product::<i64>();
        let mut outputs: i64 = shared.iter().map(|&r| self.most(r)).product();
        let loads = self.loads(value);
        for r in shared.clone() {
            let Some(n) = self.fixed(r) else { continue };
            let walks = |at: Id| walked.iter().any(|w| self.g.free_ranges(at).contains(w));
            let again = loads.iter().any(|&(at, _)| walks(at) && !self.g.free_ranges(at).contains(&r));
            if !again || n * copies > REPEATED || outputs / n * self.subgroup < self.threads {
                continue;
            }
            let copy = self.fixed_range(n, RangeKind::Upcast);
            map.insert(r, copy);
            shared.retain(|&s| s != r);
            closed.retain(|&c| c != r);
            closed.push(copy);
            copies *= n;
            outputs /= n;
        }
    }

    /// Several neighbouring output elements for each thread, where operands are contiguous along them: the last loop as (loop, copies).
    fn widen(&mut self, value: Id, shared: &mut Vec<Id>, closed: &mut Vec<Id>, map: &mut FxHashMap<Id, Id>) {
        let Some(&last) = shared.last() else { return };
        let copies = closed.iter().filter(|&&r| self.is(r, RangeKind::Upcast)).map(|&r| self.most(r)).product::<i64>();
        // Threads before width: partial results that threads have to fold cost more than narrow loads.
        let each = shared.iter().map(|&r| self.most(r)).product::<i64>() / self.threads;
        let most = self.widest(value, last).min(ACCUMULATORS / copies.max(1)).min(each);
        let Some(bound) = self.fixed(last) else { return };
        let Some(wide) = (2..=most).rev().find(|w| bound % w == 0) else { return };
        let (outer, inner) =
            (self.fixed_range(bound / wide, RangeKind::Loop), self.fixed_range(wide, RangeKind::Upcast));
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
        closed.push(inner);
    }

    /// The ranges `shared` as (steps, groups of threads): `map` gets their indices.
    fn spread(&mut self, shared: &[Id], group: Id, groups: i64, map: &mut FxHashMap<Id, Id>) -> Option<Id> {
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

    /// A reduction whose terms are shared by `lanes` lanes, and read in wide loads.
    fn reduction(&mut self, value: Id, ranges: &[Id], op: ReduceOp, lane: Option<Id>, lanes: i64) -> Id {
        let walked: Vec<Id> = ranges.iter().copied().filter(|&r| self.is(r, RangeKind::Reduce)).collect();
        let Some(lane) = lane else { return self.g.reduce_ranges(value, ranges, op) };
        // The range whose terms divide among the lanes, or the longest.
        let Some(&r) =
            walked.iter().max_by_key(|&&r| (self.fixed(r).is_some_and(|b| b % lanes == 0), self.most(r).min(1 << 20)))
        else {
            // Straight code: every lane computes all of it, and one counts.
            return self.only_first(value, ranges, op, lane);
        };
        let bound = self.g[r].src[0];
        let wide = self.wide(value, r, lanes);
        let (by, w) = (self.g.int(lanes * wide), self.g.int(wide));
        let up = self.g.int(lanes * wide - 1);
        let steps = self.g.add(bound, up);
        let steps = self.g.idiv(steps, by);
        let [step, part] = self.cut(r, Some(lane), wide, |o| [o.steps(steps), o.fixed_range(wide, RangeKind::Unroll)]);
        let at = self.g.mul(step, by);
        let of_lane = self.g.mul(lane, w);
        let at = self.g.add(at, of_lane);
        let at = self.g.add(at, part);
        let divides = self.g.int_value(bound).is_some_and(|b| b % (lanes * wide) == 0);
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
        all.extend(stepped.into_iter().chain([part, lane]).filter(|&x| self.g[x].op == Op::Range));
        self.g.reduce_ranges(new, &all, op)
    }
    /// A loop over so many steps, in copies whose loads wait for memory together. Where the number is data there are whole rounds of copies: what is
    /// beyond the end counts as nothing.
    fn steps(&mut self, steps: Id) -> Id {
        let copies = match self.g.int_value(steps) {
            Some(n) if n <= STEPS => n,
            Some(n) => (1..=STEPS).rev().find(|c| n % c == 0).unwrap_or(1),
            None => {
                let most = self.g.max_of(steps).max(1);
                let rounds = (most + WAITING - 1) / WAITING;
                (most + rounds - 1) / rounds
            }
        };
        let (up, by) = (self.g.int(copies - 1), self.g.int(copies));
        let count = self.g.add(steps, up);
        let count = self.g.idiv(count, by);
        let (outer, inner) = (self.range(count, RangeKind::Reduce), self.fixed_range(copies, RangeKind::Unroll));
        let at = self.g.mul(outer, by);
        self.g.add(at, inner)
    }
    /// The ranges that a range of reductions is cut into, once for all of them.
    fn cut(&mut self, r: Id, lane: Option<Id>, wide: i64, make: impl FnOnce(&mut Self) -> [Id; 2]) -> [Id; 2] {
        if let Some(&known) = self.steps.get(&(r, lane, wide)) {
            return known;
        }
        let new = make(self);
        self.steps.insert((r, lane, wide), new);
        new
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
    /// Consecutive terms that a lane takes at once: a wide load, if the terms divide so.
    fn wide(&self, value: Id, r: Id, lanes: i64) -> i64 {
        let Some(bound) = self.fixed(r) else { return 1 };
        (1..=self.widest(value, r)).rev().find(|w| bound % (w * lanes) == 0).unwrap_or(1)
    }
    /// Elements in a wide load of the narrowest plain operand that is contiguous along `r`; one where there are packed ones too, of which a step is
    /// a wide load by itself.
    fn widest(&self, value: Id, r: Id) -> i64 {
        let g = &*self.g;
        let packed = |n: &gristmill_uop::Node| {
            n.op == Op::Load && matches!(g[n.src[0]].arg, Arg::Packed(_, e) if e.elements > 1)
        };
        if g.any(value, |n, node| packed(node) && g.free_ranges(n).contains(&r)) {
            return 1;
        }
        let mut most = 1;
        for n in g.toposort(&[value]) {
            let node = &g[n];
            if node.op != Op::Load || matches!(g[node.src[0]].arg, Arg::Packed(..)) {
                continue;
            }
            let sum = g.linear(node.src[1]);
            if sum.coefficient(r) == 1 && sum.terms.iter().all(|&(t, _)| t == r || !g.any(t, |x, _| x == r)) {
                most = most.max(WIDEST / node.dtype.scalar.bytes() as i64);
            }
        }
        most
    }
}
