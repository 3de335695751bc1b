//! Maps the ranges of a CPU's nest to loops, vector lanes and registers. A plan decides, or a
//! heuristic per kernel class:
//!
//! - an output axis along which all loads and the store are contiguous becomes vector lanes
//!   (attention's values, elementwise);
//! - otherwise each reduction is split into (blocks, unrolled, lanes): lanes along the contiguous
//!   axis of its operands, and a whole block of a packed operand per iteration, so that its
//!   scales are read once;
//! - remaining loops around a reduction are tiled into registers, with as many accumulators as fit.
//!
//! Every choice is legal for any nest; a loop that fits no rule stays scalar.

use super::fuse_reductions::fuse_reductions;
use crate::ir::nest::{Nest, Ranges, divisor, outermost_reductions};
use crate::plan::{NestPlan, OutputLanes, SumLanes, Vectors};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, ReduceOp};
use rustc_hash::FxHashMap;

/// Maximum number of sums that share a loop, times the copies of enclosing loops. Not measured:
/// more would save loads but leave no registers for operands (`docs/experiments/008` measures two).
const SUMS_OF_A_LOOP: i64 = 4;
/// Statements of a loop body above which it is not unrolled further. Not measured: longer bodies
/// hide more latency, but cost compile time and instruction fetch.
const MAX_STATEMENTS: i64 = 320;
/// Outputs per thread (usually tokens) from which accumulators take a quarter of the registers, not
/// half. Operand vectors stay live for all of them: gcc spilled 157 vectors per iteration of 8
/// tokens, and decoding ran at 118 instead of 158 tok/s (`docs/experiments/122`).
const MANY_TOKENS: i64 = 8;
/// Maximum unroll of a reduction without packed operands, in vectors, so that operands and
/// accumulators fit in registers. Attention at context depth 4,096: 29.5 to 26.5 ms per token with
/// a limit; four was not compared with other values (`docs/experiments/011`).
const PLAIN_UNROLL: i64 = 4;

/// How the terms of a sum are split.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Cut {
    /// Lanes of a vector.
    lanes: i64,
    /// Vectors per unrolled iteration.
    unroll: i64,
    block: i64,
}

/// Registers that a nest's sums already use.
#[derive(Clone, Copy)]
struct Registers {
    /// Copies of the enclosing loops.
    upcasts: i64,
    /// Accumulators of this sum after tiling.
    accumulators: i64,
}

/// Rewrites a nest's ranges for the target, by the plan or by the heuristic. Also returns the plan
/// that was applied; parts of a plan that do not fit stay loops.
pub fn nest(
    g: &mut Graph,
    store: Id,
    plan: Option<&Vectors>,
    target: &Target,
    ranges: &mut Ranges,
) -> (Id, NestPlan) {
    let lanes = target.machine.lanes as i64;
    if lanes <= 1 {
        return (store, NestPlan::Serial);
    }
    let registers = target.registers as i64;
    let mut o = Optimiser {
        g,
        ranges,
        registers,
        plan,
        made: Vectors::default(),
        cuts: FxHashMap::default(),
    };
    let store = o.fused(store);
    let store = o.output_lanes(store, lanes);
    let store = o.reduce_lanes(store, lanes);
    let store = o.tile(store);
    (store, NestPlan::Vectors(o.made))
}

struct Optimiser<'a> {
    g: &'a mut Graph,
    ranges: &'a mut Ranges,
    registers: i64,
    /// Given decisions; without a plan the heuristic decides.
    plan: Option<&'a Vectors>,
    made: Vectors,
    /// Ranges that a reduction's range was split into: reductions over the same
    /// terms share their loop.
    cuts: FxHashMap<(Id, Cut), [Id; 4]>,
}

/// Returns the largest of `lanes`, a half and a quarter of it (at least 4) that divides `n`.
fn fitting(n: i64, lanes: i64) -> Option<i64> {
    [lanes, lanes / 2, lanes / 4]
        .into_iter()
        .find(|&l| l >= 4 && n % l == 0)
}

impl Optimiser<'_> {
    /// Fuses the sums of a few outputs into one loop: rows of weights are loaded in parallel, and
    /// their common operand is read once.
    fn fused(&mut self, store: Id) -> Id {
        let all = outermost_reductions(self.g, store);
        let few = self.upcasts(store) * all.len() as i64 <= SUMS_OF_A_LOOP;
        self.made.fused = self.plan.map_or(few, |p| p.fused);
        if !self.made.fused {
            return store;
        }
        let nest = Nest::from_store(self.g, store);
        let value = fuse_reductions(self.g, nest.value, &all);
        Nest { value, ..nest }.store(self.g)
    }
    fn range(&mut self, bound: i64, kind: RangeKind) -> Id {
        self.ranges.fixed(self.g, bound, kind)
    }
    fn closed(&self, store: Id) -> Vec<Id> {
        self.g[store].src[3..].to_vec()
    }
    fn fixed(&self, r: Id) -> Option<i64> {
        self.g.int_value(self.g[r].src[0])
    }
    fn upcasts(&self, store: Id) -> i64 {
        self.closed(store)
            .iter()
            .filter(|&&r| self.g.range_kind(r) == Some(RangeKind::Upcast))
            .map(|&r| self.fixed(r).unwrap_or(1))
            .product()
    }
    /// Replaces the range `from` by an expression over the ranges `into`, which take its position.
    fn split(&mut self, store: Id, from: Id, expression: Id, into: &[Id]) -> Id {
        let mut map = FxHashMap::from_iter([(from, expression)]);
        let Nest {
            buffer,
            offset,
            value,
            adds,
            closed: old,
        } = Nest::from_store(self.g, store);
        let mut closed = Vec::new();
        for r in old {
            if r == from {
                closed.extend(into.iter().copied().filter(|&i| self.g[i].op == Op::Range));
            } else {
                closed.push(r);
            }
        }
        let offset = self.g.substitute(offset, &mut map);
        let value = self.g.substitute(value, &mut map);
        Nest {
            buffer,
            offset,
            value,
            adds,
            closed,
        }
        .store(self.g)
    }
    /// Returns whether all loads below `id` that depend on the lane range are contiguous along it.
    fn contiguous(&self, id: Id, lane: Id) -> bool {
        let g = &*self.g;
        let mut depends: FxHashMap<Id, bool> = FxHashMap::default();
        for n in g.toposort(&[id]) {
            let node = &g[n];
            let mine = n == lane || node.src.iter().any(|s| depends[s]);
            depends.insert(n, mine);
            if !mine {
                continue;
            }
            if node.op == Op::Load {
                let unit = node.dtype.scalar.bytes() as i64 / g.unit_bytes(node.src[0]);
                if !self.stride_is(node.src[1], lane, unit) {
                    return false;
                }
            }
        }
        true
    }
    /// Returns whether the offset is `unit · lane` plus terms independent of the lane.
    fn stride_is(&self, offset: Id, lane: Id, unit: i64) -> bool {
        let sum = self.g.linear(offset);
        sum.coefficient(lane) == unit
            && sum
                .terms
                .iter()
                .all(|&(t, _)| t == lane || !self.g.any(t, |n, _| n == lane))
    }

    /// Maps an output axis to lanes.
    fn output_lanes(&mut self, store: Id, lanes: i64) -> Id {
        for (at, r) in self.closed(store).into_iter().enumerate().rev() {
            let given = self.plan.map(|p| p.output.filter(|o| o.at == at));
            // Rows that are added in order cannot be lanes.
            if self.g.range_kind(r) == Some(RangeKind::Reduce) {
                continue;
            }
            let Some(n) = self.fixed(r).filter(|_| given != Some(None)) else {
                continue;
            };
            let Some(l) = fitting(n, given.flatten().map_or(lanes, |o| o.lanes)) else {
                continue;
            };
            let lane = self.range(l, RangeKind::Vector);
            let outer = self.range(n / l, RangeKind::Loop);
            let by = self.g.int(l);
            let index = self.g.mul(outer, by);
            let index = self.g.add(index, lane);
            let new = self.split(store, r, index, &[outer, lane]);
            let (offset, value) = (self.g[new].src[1], self.g[new].src[2]);
            if self.stride_is(offset, lane, 1)
                && self.g.any(value, |n, _| n == lane)
                && self.contiguous(value, lane)
            {
                // Several vectors per iteration, so that a reduction does not wait for its own
                // additions.
                let reduces = self.g.any(value, |_, n| n.op == Op::Reduce);
                let room = self.registers / 2 / self.upcasts(new).max(1);
                let most = given
                    .flatten()
                    .map_or(if reduces { room.min(4) } else { 1 }, |o| o.copies);
                let copies = (1..=most).rev().find(|c| n / l % c == 0).unwrap_or(1);
                self.made.output = Some(OutputLanes {
                    at,
                    lanes: l,
                    copies,
                });
                return if copies > 1 {
                    self.tiled(new, outer, copies)
                } else {
                    new
                };
            }
        }
        store
    }

    /// Splits every reduction without lanes into blocks, unrolled copies and lanes.
    fn reduce_lanes(&mut self, store: Id, lanes: i64) -> Id {
        let nest = Nest::from_store(self.g, store);
        let upcasts = self.upcasts(store);
        let mut map: FxHashMap<Id, Id> = FxHashMap::default();
        for n in self.g.toposort(&[nest.value]) {
            let node = self.g[n].clone();
            if node.op == Op::Reduce {
                let src: Vec<Id> = node
                    .src
                    .iter()
                    .map(|&s| self.g.substitute(s, &mut map))
                    .collect();
                let Arg::Reduce(op, _) = node.arg else {
                    continue;
                };
                let has_lanes = self
                    .g
                    .free_ranges(src[0])
                    .iter()
                    .any(|&r| self.g.range_kind(r) == Some(RangeKind::Vector));
                let new = if has_lanes {
                    self.g.reduce_ranges(src[0], &src[1..], op)
                } else {
                    let registers = Registers {
                        upcasts,
                        accumulators: self.accumulators(store, n),
                    };
                    self.lanes_of(&src, lanes, registers, op)
                };
                map.insert(n, new);
            }
        }
        let value = self.g.substitute(nest.value, &mut map);
        Nest { value, ..nest }.store(self.g)
    }

    /// Returns the reduction of `src[0]` over the other sources, with lanes along one of
    /// them that is contiguous.
    fn lanes_of(&mut self, src: &[Id], lanes: i64, wanted: Registers, op: ReduceOp) -> Id {
        let (value, ranges) = (src[0], &src[1..]);
        let room = (self.registers / 2 / wanted.accumulators).max(1);
        let given = self
            .plan
            .map(|p| p.sums.get(self.made.sums.len()).copied().flatten());
        for (i, &r) in ranges.iter().enumerate().rev() {
            let mine = given.map(|g| g.filter(|s| s.at == i));
            let Some(n) = self.fixed(r).filter(|_| mine != Some(None)) else {
                continue;
            };
            let Some(l) = fitting(n, mine.flatten().map_or(lanes, |s| s.lanes)) else {
                continue;
            };
            // A whole block of the largest packed operand along this range, or a few vectors.
            let block = self.largest_block(value, r);
            let whole = match block {
                Some(b) if b > 1 && (n % b != 0 || b % l != 0) => continue,
                Some(b) if b > 1 => b,
                _ => {
                    let most = mine.flatten().map_or(PLAIN_UNROLL.min(room), |s| s.unroll);
                    (1..=most).rev().find(|u| n % (l * u) == 0).unwrap_or(1) * l
                }
            };
            let statements = (whole / l) * wanted.upcasts * if block.is_some() { 4 } else { 1 };
            let most = if statements <= MAX_STATEMENTS * 2 {
                whole / l
            } else {
                (whole / l).min(2)
            };
            let unroll = mine
                .flatten()
                .map_or(most, |s| divisor(whole / l, s.unroll));
            let [lane, u, inner, outer] = self.cut(
                r,
                n,
                Cut {
                    lanes: l,
                    unroll,
                    block: whole,
                },
            );
            let mut index = self.g.int(0);
            for (part, step) in [(outer, whole), (inner, l * unroll), (u, l), (lane, 1)] {
                let step = self.g.int(step);
                let scaled = self.g.mul(part, step);
                index = self.g.add(index, scaled);
            }
            let mut map = FxHashMap::from_iter([(r, index)]);
            let new = self.g.substitute(value, &mut map);
            if !self.contiguous(new, lane) {
                continue;
            }
            self.made.sums.push(Some(SumLanes {
                at: i,
                lanes: l,
                unroll,
            }));
            let mut all: Vec<Id> = ranges[..i].to_vec();
            all.extend(ranges[i + 1..].iter().copied());
            all.extend(
                [outer, inner, u, lane]
                    .into_iter()
                    .filter(|&x| self.g[x].op == Op::Range),
            );
            return self.g.reduce_ranges(new, &all, op);
        }
        self.made.sums.push(None);
        self.g.reduce_ranges(value, ranges, op)
    }

    /// Returns the elements of a block of the largest packed operand of `value` along a range.
    fn largest_block(&self, value: Id, r: Id) -> Option<i64> {
        self.g
            .toposort(&[value])
            .into_iter()
            .filter(|&m| self.g[m].op == Op::Load && self.g.any(m, |x, _| x == r))
            .filter_map(|m| match self.g[self.g[m].src[0]].arg {
                Arg::Packed(_, e) => Some(e.elements as i64),
                _ => None,
            })
            .max()
    }

    /// Splits a range of `n` terms into lanes, copies, and the loops within and over blocks.
    fn cut(&mut self, r: Id, n: i64, by: Cut) -> [Id; 4] {
        if let Some(&known) = self.cuts.get(&(r, by)) {
            return known;
        }
        let Cut {
            lanes,
            unroll,
            block,
        } = by;
        let lane = self.range(lanes, RangeKind::VectorReduce);
        let u = self.range(unroll, RangeKind::Unroll);
        let inner = self.range(block / lanes / unroll, RangeKind::Reduce);
        let new = [lane, u, inner, self.range(n / block, RangeKind::Reduce)];
        self.cuts.insert((r, by), new);
        new
    }

    /// Splits a loop into (loop, copies in registers).
    fn tiled(&mut self, store: Id, r: Id, copies: i64) -> Id {
        let n = self.fixed(r).unwrap_or(copies);
        let outer = self.range(n / copies, RangeKind::Loop);
        let inner = self.range(copies, RangeKind::Upcast);
        let by = self.g.int(copies);
        let index = self.g.mul(outer, by);
        let index = self.g.add(index, inner);
        self.split(store, r, index, &[outer, inner])
    }

    /// Tiles the loops around a reduction into registers.
    fn tile(&mut self, store: Id) -> Id {
        let value = self.g[store].src[2];
        if !self.g.any(value, |_, n| n.op == Op::Reduce) {
            return store;
        }
        let mut store = store;
        let loops = self.closed(store);
        self.made.copies = vec![1; loops.len()];
        for (at, r) in loops.into_iter().enumerate().rev() {
            let copies = match self.plan {
                Some(plan) => self.copies_given(r, plan.copies.get(at).copied().unwrap_or(1)),
                None => self.copies(store, r, self.upcasts(store)),
            };
            self.made.copies[at] = copies;
            if copies > 1 {
                store = self.tiled(store, r, copies);
            }
        }
        store
    }
    /// Returns a plan's number of copies of a loop, reduced to a divisor of its iterations.
    fn copies_given(&self, r: Id, copies: i64) -> i64 {
        match self.fixed(r) {
            Some(n) if self.g.range_kind(r) == Some(RangeKind::Loop) => divisor(n, copies),
            _ => 1,
        }
    }
    /// Returns the heuristic number of copies of a loop around a reduction, given
    /// the copies already made.
    fn copies(&self, store: Id, r: Id, upcasts: i64) -> i64 {
        let accumulators = self.registers / if upcasts >= MANY_TOKENS { 4 } else { 2 };
        let room = accumulators / upcasts.max(1);
        if room < 2 || self.g.range_kind(r) != Some(RangeKind::Loop) {
            return 1;
        }
        let Some(n) = self.fixed(r) else { return 1 };
        // Only if the reduction depends on the loop; otherwise it is hoisted.
        let dependent = self
            .g
            .toposort(&[self.g[store].src[2]])
            .into_iter()
            .any(|m| self.g[m].op == Op::Reduce && self.g.free_ranges(m).contains(&r));
        let most = if dependent { room.min(4) } else { 1 };
        (1..=most).rev().find(|c| n % c == 0).unwrap_or(1)
    }
    /// Returns the number of accumulators that a reduction will have after tiling.
    fn accumulators(&self, store: Id, reduce: Id) -> i64 {
        let mine = self.g.free_ranges(reduce);
        let (mut all, mut upcasts) = (1, self.upcasts(store));
        for r in self.closed(store).into_iter().rev() {
            let copies = match self.g.range_kind(r) {
                Some(RangeKind::Upcast) => self.fixed(r).unwrap_or(1),
                _ => self.copies(store, r, upcasts),
            };
            if self.g.range_kind(r) == Some(RangeKind::Loop) {
                upcasts *= copies;
            }
            if mine.contains(&r) {
                all *= copies;
            }
        }
        all
    }
}
