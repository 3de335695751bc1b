//! Lowers reductions over more threads than one subgroup operation covers: neighbours are reduced
//! by the operation, and the partial results through shared memory.
//!
//! Each thread writes its own, and after a barrier reduces those that it needs.

use crate::ir::nest::identity;
use crate::lower::linear_ir::rewriting::Rewriting;
use crate::lower::linear_ir::threads::ThreadIndex;
use crate::lower::linear_ir::{Code, Statement};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, ReduceOp, Scalar};
use smallvec::smallvec;

/// Reductions that go through shared memory together, sharing two barriers. The driver's compiler
/// keeps registers live across each barrier: a product of 16 sums per thread, without subgroups,
/// took a CPU driver 2.9 s to compile.
const AT_ONCE: usize = 4;
/// Bit in the number of a stage for reductions; plans and rings use no number with it.
const STAGES: i64 = 1 << 18;
/// Maximum threads of a workgroup with grouped reductions; larger workgroups lack the shared memory
/// (`MEETING` in `uop/src/adapter.rs`).
const THREADS_AT_ONCE: i64 = 256;

/// A reduction over lanes that are threads.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Fold {
    how: ReduceOp,
    /// Type in which values are reduced: a type that threads exchange, or 64 bits.
    of: Scalar,
    lanes: i64,
    /// Threads between consecutive lanes.
    stride: i64,
}

/// Returns whether a stage holds values of a cross-thread reduction within a nest.
pub fn is_meeting(g: &Graph, stage: Id) -> bool {
    let n = &g[stage];
    n.op == Op::Local && matches!(n.arg, Arg::Int(number) if number & STAGES != 0)
}

/// Lowers a body's reductions to subgroup reductions of single words, and adds the stages
/// of shared-memory reductions.
pub fn shared_memory_reduce(g: &mut Graph, mut code: Code, target: &Target) -> Code {
    let statements = std::mem::take(&mut code.statements);
    let (threads, neighbours) = (target.threads as i64, target.machine.folds);
    let (r, locals) = (Rewriting::new(g), code.locals);
    let mut of = Meetings {
        r,
        threads,
        neighbours,
        counted: vec![],
        nest: 0,
        locals,
    };
    for (i, s) in statements.iter().enumerate() {
        match s {
            Statement::Define(id) if of.r.g[*id].op == Op::Fold => {
                of.fold(*id, &statements[i + 1..])
            }
            Statement::Nest { threads, .. } => {
                // Values reduced by another nest belong to its scope.
                of.r.values.clear();
                of.r.push(s.clone());
                (of.nest, of.counted) = (of.r.out.len() - 1, threads.clone());
            }
            s => of.r.replaced(s),
        }
    }
    Code {
        statements: of.r.out,
        locals: of.locals,
        ..code
    }
}

struct Meetings<'a> {
    r: Rewriting<'a>,
    /// Threads of a workgroup.
    threads: i64,
    /// Maximum number of threads that one operation reduces.
    neighbours: i64,
    /// Thread indices of the open nest.
    counted: Vec<ThreadIndex>,
    /// Index of the open nest's statement.
    nest: usize,
    /// Stages of the body.
    locals: Vec<Id>,
}

impl Meetings<'_> {
    /// Returns the reduction of a `Fold` node.
    fn read_fold(&self, id: Id) -> Fold {
        let (g, n) = (&*self.r.g, &self.r.g[id]);
        let Arg::Reduce(how, _) = n.arg else {
            unreachable!("a fold without an op")
        };
        let stride = self
            .counted
            .iter()
            .find(|t| t.range == n.src[1])
            .map_or(1, ThreadIndex::stride);
        let of = match n.dtype.scalar {
            s if s.is_float() => Scalar::F32,
            Scalar::I64 if !g.within(id, i32::MIN.into(), i32::MAX.into()) => Scalar::I64,
            Scalar::U8 | Scalar::U16 | Scalar::U32 => Scalar::U32,
            _ => Scalar::I32,
        };
        Fold {
            how,
            of,
            lanes: g.max_of(g[n.src[1]].src[0]),
            stride,
        }
    }
    /// Returns how many threads one operation reduces.
    fn near(&self, of: &Fold) -> i64 {
        // No machine exchanges 64-bit integers between threads.
        let neighbours = if of.of == Scalar::I64 {
            1
        } else {
            self.neighbours
        };
        neighbours.max(of.stride).min(of.lanes * of.stride)
    }
    /// Lowers a reduction, together with later ones that can share its stage and barriers.
    fn fold(&mut self, id: Id, behind: &[Statement]) {
        if self.r.values.contains_key(&id) {
            return;
        }
        let of = self.read_fold(id);
        let all = self.alike(id, of, behind);
        let near: Vec<Id> = all.iter().map(|&id| self.of_neighbours(id, of)).collect();
        let folded = if self.near(&of) < of.lanes * of.stride {
            self.met(of, &near)
        } else {
            near
        };
        for (id, folded) in all.into_iter().zip(folded) {
            let own = self.r.g.scalar(id);
            let value = self.r.g.cast(folded, own);
            self.r.define(value);
            self.r.values.insert(id, value);
        }
    }
    /// Returns a reduction and later ones that can go through shared memory with it: their
    /// operands are known here.
    fn alike(&self, id: Id, of: Fold, behind: &[Statement]) -> Vec<Id> {
        let (g, mut all, mut made) = (&*self.r.g, vec![id], vec![id]);
        let meets = self.near(&of) < of.lanes * of.stride && g.scalar(id) == Scalar::F32;
        if !meets || self.threads > THREADS_AT_ONCE {
            return all;
        }
        // Past any statement other than a definition, accumulators may have changed.
        for s in behind {
            let Statement::Define(other) = *s else { break };
            let is_fold = g[other].op == Op::Fold && !self.r.values.contains_key(&other);
            let known = !g[other].src.iter().any(|s| made.contains(s));
            if is_fold
                && known
                && g.scalar(other) == Scalar::F32
                && self.read_fold(other) == of
                && all.len() < AT_ONCE
            {
                all.push(other);
            }
            made.push(other);
        }
        all
    }
    /// Reduces over neighbours by one operation, in the reduction's type.
    fn of_neighbours(&mut self, id: Id, of: Fold) -> Id {
        let [x, mut lanes] = [0, 1].map(|i| self.r.g[id].src[i]);
        let x = self.r.value(x);
        let x = self.r.g.cast(x, of.of);
        let near = self.near(&of) / of.stride;
        if near < of.lanes {
            lanes = self.index(near, [of.stride, near]);
        }
        let arg = self.r.g[id].arg.clone();
        let folded = Node {
            op: Op::Fold,
            dtype: of.of.one(),
            src: smallvec![x, lanes],
            arg,
        };
        let folded = if near > 1 { self.r.g.intern(folded) } else { x };
        self.r.define(folded);
        folded
    }
    /// Reduces one value per thread through shared memory.
    fn met(&mut self, of: Fold, values: &[Id]) -> Vec<Id> {
        let (width, span, near) = (
            if values.len() > 1 { AT_ONCE } else { 1 },
            of.lanes * of.stride,
            self.near(&of),
        );
        let stage = self.stage(of.of, width);
        let own = self.index(self.threads, [1, i64::MAX]);
        let at = self.times(own, width as i64);
        let nothing = self.r.g.int_of(of.of, 0);
        let padded: Vec<Id> = (0..width)
            .map(|i| values.get(i).copied().unwrap_or(nothing))
            .collect();
        self.r.define(at);
        self.r.push(Statement::Barrier);
        self.r.push(match padded[..] {
            [value] => Statement::Write(stage, at, value),
            _ => Statement::WideWrite(stage, at, width * of.of.bytes(), padded),
        });
        self.r.push(Statement::Barrier);
        // Threads at a distance of the number already reduced.
        let (groups, first) = (
            (self.threads + span - 1) / span,
            self.index(near, [1, near]),
        );
        let group = self.index(groups, [span, i64::MAX]);
        let count = self.r.g.int(span / near);
        let each = self.r.range(count, RangeKind::Reduce);
        let [group, each_at] = [(group, span), (each, near)].map(|(x, by)| self.times(x, by));
        let place = self.r.g.add(group, first);
        let place = self.r.g.add(place, each_at);
        let place = self.times(place, width as i64);
        self.sums(
            of,
            each,
            (0..values.len())
                .map(|i| (stage, place, i as i64))
                .collect(),
        )
    }
    /// Emits reductions of stage elements over a range; each term is a stage, an
    /// offset and a constant.
    fn sums(&mut self, of: Fold, each: Id, terms: Vec<(Id, Id, i64)>) -> Vec<Id> {
        let dtype = of.of.one();
        let first = identity(self.r.g, of.how, dtype);
        let mut sums = Vec::new();
        for &(stage, place, behind) in &terms {
            let g = &mut *self.r.g;
            let behind = g.int(behind);
            let at = g.add(place, behind);
            let load = g.load(stage, at, of.of);
            let sum = g.intern(Node {
                op: Op::Reduce,
                dtype,
                src: smallvec![load, each],
                arg: Arg::Reduce(of.how, smallvec![]),
            });
            let acc = g.intern(Node {
                op: Op::Acc,
                dtype,
                src: smallvec![first, sum],
                arg: Arg::None,
            });
            self.r.push(Statement::Accumulator(acc));
            sums.push((sum, acc, load));
        }
        self.r.push(Statement::Loop {
            range: each,
            step: 1,
            unroll: Some(1),
        });
        if let [(stage, place, _), _, ..] = terms[..] {
            self.r.define(place);
            let parts = sums
                .iter()
                .enumerate()
                .map(|(i, s)| (s.2, i * of.of.bytes()))
                .collect();
            self.r.push(Statement::Wide(
                stage,
                place,
                AT_ONCE * of.of.bytes(),
                parts,
            ));
        }
        for &(_, acc, load) in &sums {
            self.r.define(load);
            let src = smallvec![acc, load];
            let value = self.r.g.intern(Node {
                op: of.how.combine(),
                dtype,
                src,
                arg: Arg::None,
            });
            self.r.push(Statement::Accumulate(acc, value));
        }
        self.r.push(Statement::End);
        sums.into_iter().map(|s| s.0).collect()
    }
    /// Returns the stage for reductions in a type, with `width` values per thread.
    fn stage(&mut self, of: Scalar, width: usize) -> Id {
        let elements = self.r.g.int(self.threads * width as i64);
        let number = Arg::Int(STAGES + width as i64);
        let stage = self.r.g.intern(Node {
            op: Op::Local,
            dtype: of.one(),
            src: smallvec![elements],
            arg: number,
        });
        if !self.locals.contains(&stage) {
            self.locals.push(stage);
        }
        stage
    }
    fn times(&mut self, x: Id, by: i64) -> Id {
        let by = self.r.g.int(by);
        self.r.g.mul(x, by)
    }
    /// Returns a thread index of the open nest: with `divide` threads per
    /// index, repeating after `modulo`.
    fn index(&mut self, bound: i64, [divide, modulo]: [i64; 2]) -> Id {
        if bound == 1 {
            return self.r.g.int(0);
        }
        let counted =
            |t: &&ThreadIndex| t.stride() == divide && t.modulo.unwrap_or(i64::MAX) == modulo;
        if let Some(known) = self.counted.iter().find(counted) {
            return known.range;
        }
        let bound = self.r.g.int(bound);
        let range = self.r.range(bound, RangeKind::VectorReduce);
        let (divide, modulo) = (
            (divide > 1).then_some(divide),
            (modulo < i64::MAX).then_some(modulo),
        );
        self.counted.push(ThreadIndex {
            range,
            divide,
            modulo,
        });
        if let Statement::Nest { threads, .. } = &mut self.r.out[self.nest] {
            threads.clone_from(&self.counted);
        }
        range
    }
}

#[cfg(test)]
mod tests;
