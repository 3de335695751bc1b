//! Emits reductions: selects those that are ready, and opens and closes their loops.

use super::dot2_accumulate;
use super::updates::{AccumulatorUpdate, interleaved, multiplies_unpacked, terms};
use super::{Emitter, REGISTERS_OF_INTEGER_SUMS, integer_sums_at_once, substitute_raw};
use crate::ir::nest::identity;
use crate::lower::linear_ir::Statement;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::{Arg, Id, Node, Op, RangeKind, ReduceOp};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::smallvec;

impl Emitter<'_> {
    /// Defines all of `roots`, reductions first.
    pub(super) fn all(&mut self, roots: &[Id]) {
        self.reductions(roots, true);
        self.reductions(roots, false);
        for &r in roots {
            self.define(r);
        }
    }
    /// Emits the reductions below `roots`, each at its depth and after those that it needs;
    /// reductions with equal ranges and depth share a loop. With `loops`, only those that need a
    /// loop: the others are straight-line code, which may come later.
    fn reductions(&mut self, roots: &[Id], loops: bool) {
        while let Some(group) = self.ready(roots, loops) {
            self.reduce(&group);
        }
    }
    /// Returns a group of reductions below `roots` that are ready: none needs
    /// another open reduction first.
    fn ready(&self, roots: &[Id], loops: bool) -> Option<Vec<Id>> {
        let g = &*self.g;
        // Undefined nodes below the roots, in topological order.
        let mut order = Vec::new();
        let mut seen = FxHashSet::default();
        let mut stack: Vec<(Id, bool)> = roots.iter().rev().map(|&r| (r, false)).collect();
        while let Some((id, done)) = stack.pop() {
            if done {
                order.push(id);
                continue;
            }
            if self.is_defined(id) || !seen.insert(id) {
                continue;
            }
            stack.push((id, true));
            for &s in g[id].src.iter().rev() {
                stack.push((s, false));
            }
        }
        // Whether a node depends on an open reduction.
        let mut needs: FxHashMap<Id, bool> = FxHashMap::default();
        let mut first: Option<(Vec<Id>, usize)> = None;
        let mut group = Vec::new();
        for id in order {
            let node = &g[id];
            let below = node
                .src
                .iter()
                .any(|s| needs.get(s).copied().unwrap_or(false));
            let mut mine = below;
            if node.op == Op::Reduce
                && !(loops && self.is_straight(id))
                && let Some(depth) = self.depth(id)
            {
                mine = true;
                if !below {
                    let key = (node.src[1..].to_vec(), depth);
                    if first.is_none() {
                        first = Some(key.clone());
                    }
                    if first.as_ref() == Some(&key) && group.len() < self.most_at_once(id) {
                        group.push(id);
                    }
                }
            }
            needs.insert(id, mine);
        }
        (!group.is_empty()).then_some(group)
    }
    /// Returns whether a reduction is fully unrolled, without a loop.
    fn is_straight(&self, reduce: Id) -> bool {
        self.g[reduce].src[1..]
            .iter()
            .all(|&r| self.g.range_kind(r) == Some(RangeKind::Unroll))
    }
    /// Returns the largest number of reductions like this one that are computed together.
    fn most_at_once(&self, reduce: Id) -> usize {
        let terms = self.g[reduce].src[0];
        match self.is_straight(reduce) {
            true if self.is_of_bytes(reduce) => integer_sums_at_once(self.target),
            true => 1,
            // A loop over integer sums takes registers of its own; reductions beyond the register
            // budget go into another loop.
            false if self.g.any(terms, |_, n| n.op == Op::Reduce) => self
                .target
                .registers
                .saturating_sub(REGISTERS_OF_INTEGER_SUMS)
                .max(1),
            false => usize::MAX,
        }
    }
    /// Returns whether it is a CPU's unrolled sum of byte products. On a GPU the
    /// device's compiler schedules them.
    fn is_of_bytes(&self, reduce: Id) -> bool {
        let node = &self.g[reduce];
        node.op == Op::Reduce
            && matches!(self.g[node.src[0]].op, Op::Dot4 | Op::SignedDot4)
            && self.target.machine.kind == MachineKind::Cpu
            && self.is_straight(reduce)
    }
    /// Splits updates into runs: of single updates, or of as many as wait for byte
    /// sums that are interleaved.
    fn runs(&self, updates: Vec<AccumulatorUpdate>) -> Vec<Vec<AccumulatorUpdate>> {
        let waits = |u: &AccumulatorUpdate| {
            u.needs
                .iter()
                .any(|&need| self.g.any(need, |n, _| self.is_of_bytes(n)))
        };
        let of_bytes: Vec<bool> = updates.iter().map(waits).collect();
        if !of_bytes.contains(&true) {
            return updates.into_iter().map(|u| vec![u]).collect();
        }
        let (mut runs, mut waiting) = (vec![Vec::new()], 0);
        for (update, waits) in updates.into_iter().zip(of_bytes) {
            if waits && waiting == integer_sums_at_once(self.target) {
                runs.push(Vec::new());
                waiting = 0;
            }
            waiting += usize::from(waits);
            runs.last_mut().expect("one is open").push(update);
        }
        runs
    }
    /// Emits accumulator updates, each directly after its operands, which need no loops.
    fn add_up(&mut self, updates: Vec<AccumulatorUpdate>) {
        for run in self.runs(updates) {
            let all: Vec<Id> = run.iter().flat_map(|u| u.needs.iter().copied()).collect();
            self.reductions(&all, false);
            for AccumulatorUpdate { acc, value, needs } in run {
                for need in needs {
                    self.define(need);
                }
                self.push_here(Statement::Accumulate(acc, value));
            }
        }
    }
    /// Emits one loop that computes all reductions of the group.
    fn reduce(&mut self, group: &[Id]) {
        let depth = self.depth(group[0]).expect("the group is ready");
        // Suspends the loops inside the current depth; the new loop goes before them.
        let inner = self.scopes.split_off(depth + 1);
        let ranges: Vec<Id> = self.g[group[0]].src[1..].to_vec();
        let unrolled: Vec<Id> = ranges
            .iter()
            .copied()
            .filter(|&r| self.g.range_kind(r) == Some(RangeKind::Unroll))
            .collect();
        let mut copies = vec![FxHashMap::default()];
        for &r in &unrolled {
            copies = self.times(&copies, r);
        }
        let accumulators = self.accumulators(group);
        let before = self.scopes.len();
        self.open_all(
            ranges
                .iter()
                .copied()
                .filter(|r| !unrolled.contains(r))
                .collect(),
            &accumulators,
        );
        let mut values: Vec<(Id, Id, ReduceOp)> = Vec::new();
        for map in &copies {
            for &(id, acc, op) in &accumulators {
                let value = self.g[id].src[0];
                let value = substitute_raw(self.g, value, map);
                terms(self.g, value, op, &mut |term| values.push((acc, term, op)));
            }
        }
        if self.target.machine.pairs {
            values = dot2_accumulate::dot2_accumulate(self.g, values);
        }
        if values.iter().all(|v| multiplies_unpacked(self.g, v.1)) {
            values = interleaved(values);
        }
        let known: Vec<bool> = values.iter().map(|v| self.is_defined(v.1)).collect();
        let updates = values.into_iter().zip(known);
        let updates: Vec<AccumulatorUpdate> = updates
            .map(|(term, known)| AccumulatorUpdate::for_term(self.g, term, known))
            .collect();
        // Emits shared loops first, then each term as late as possible to keep register pressure
        // low.
        let all: Vec<Id> = updates
            .iter()
            .flat_map(|u| u.needs.iter().copied())
            .collect();
        self.reductions(&all, true);
        self.add_up(updates);
        while self.scopes.len() > before {
            self.close();
        }
        let here = self.scopes.last_mut().expect("the nest is open");
        for (id, acc, _) in accumulators {
            here.defined.insert(id);
            here.results.insert(id, acc);
        }
        self.scopes.extend(inner);
    }
    /// Opens an accumulator for each reduction of the group; returns the reductions with their
    /// accumulators and operations.
    fn accumulators(&mut self, group: &[Id]) -> Vec<(Id, Id, ReduceOp)> {
        let mut accumulators = Vec::new();
        for &id in group {
            let n = self.g[id].clone();
            let Arg::Reduce(op, _) = n.arg else {
                unreachable!("reduce without an op")
            };
            let first = identity(self.g, op, n.dtype);
            self.define(first);
            let acc = self.g.intern(Node {
                op: Op::Acc,
                dtype: n.dtype,
                src: smallvec![first, id],
                arg: Arg::None,
            });
            self.push_here(Statement::Accumulator(acc));
            accumulators.push((id, acc, op));
        }
        accumulators
    }
    /// Opens the loops of these accumulators, with the loop that nests share outermost.
    fn open_all(&mut self, mut loops: Vec<Id>, accumulators: &[(Id, Id, ReduceOp)]) {
        loops.sort_by_key(|&r| self.g.range_kind(r) != Some(RangeKind::Fused));
        for r in loops {
            self.open(r);
            if self.g.range_kind(r) == Some(RangeKind::Fused) {
                self.rescale(accumulators);
            }
        }
    }
    /// Multiplies the accumulators that are rescaled in each iteration of the loop
    /// just opened (online softmax).
    fn rescale(&mut self, accumulators: &[(Id, Id, ReduceOp)]) {
        for &(id, acc, _) in accumulators {
            let Some(factor) = self.rescaled.factor(self.g, id) else {
                continue;
            };
            self.define(factor);
            let (dtype, src) = (self.g[acc].dtype, smallvec![acc, factor]);
            let scaled = self.g.intern(Node {
                op: Op::Mul,
                dtype,
                src,
                arg: Arg::None,
            });
            self.push_here(Statement::Accumulate(acc, scaled));
        }
    }
}
