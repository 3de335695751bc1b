//! Recognises codes and scales in the decode expression of a block format.

use super::{CodePart, Kind, Leaf, Parts};
use gristmill_uop::{Arg, Id, Node, Op, Scalar, Sources};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

impl Parts<'_> {
    /// Returns `id` with its leaves replaced by holes; `None` if that is impossible.
    pub(super) fn strip(&mut self, id: Id) -> Option<Id> {
        if let Some(known) = self.memo.get(&id) {
            return *known;
        }
        let new = self.stripped(id);
        self.memo.insert(id, new);
        new
    }
    fn stripped(&mut self, id: Id) -> Option<Id> {
        let n = self.p.graph[id].clone();
        if n.op == Op::Const {
            return Some(id);
        }
        let every = self.every(id);
        let float = n.dtype.scalar.is_float();
        if n.op == Op::Load && matches!(n.dtype.scalar, Scalar::U8 | Scalar::I8) {
            // A loaded byte is treated as an integer.
            let number = self.p.graph.cast(id, Scalar::I32);
            return self.strip(number);
        }
        if n.op == Op::Load {
            // A value that every element has for itself is not an integer code with a scale.
            return (every >= 4).then(|| {
                self.leaf(
                    id,
                    Kind::Scale {
                        every,
                        stored: n.dtype.scalar,
                        offset: 0,
                        plane: 0,
                    },
                )
            });
        }
        if !float && n.dtype.scalar != Scalar::I64 && n.dtype.scalar != Scalar::Bool {
            let (lo, hi) = self.p.graph.bounds(id)?;
            if every >= 4 {
                let byte = [Scalar::U8, Scalar::I8]
                    .into_iter()
                    .find(|s| s.range().is_some_and(|r| r.0 <= lo && hi <= r.1));
                if let Some(stored) = byte {
                    return Some(self.leaf(
                        id,
                        Kind::Scale {
                            every,
                            stored,
                            offset: 0,
                            plane: 0,
                        },
                    ));
                }
            } else if !(n.op == Op::Table
                || n.op == Op::Add && self.p.graph[n.src[1]].op == Op::Const)
                && hi - lo < 256
            {
                return self.code(id, lo, hi);
            }
        }
        let src: Option<Sources> = n.src.iter().map(|&s| self.strip(s)).collect();
        Some(self.p.graph.build(n.op, n.dtype, src?, n.arg))
    }
    /// A code between `lo` and `hi`, stored with an offset so that it starts at 0.
    fn code(&mut self, id: Id, lo: i64, hi: i64) -> Option<Id> {
        let least = 32 / self.p.unit;
        let needed = (64 - ((hi - lo) as u64).leading_zeros() as i64).max(1);
        let bits = (needed as u64).next_multiple_of(least as u64) as i64;
        let mut parts = Vec::new();
        let mut shift = 0;
        for size in [8, 4, 2, 1] {
            if bits & size != 0 {
                parts.push(CodePart {
                    bits: size,
                    kept: (needed - shift).min(size),
                    shift,
                    offset: 0,
                    plane: 0,
                });
                shift += size;
            }
        }
        let scalar = self.p.graph.scalar(id);
        let minus = self.p.graph.int_of(scalar, -lo);
        let source = self.p.graph.add(id, minus);
        let hole = self.leaf(source, Kind::Code { parts });
        let lo = self.p.graph.int_of(scalar, lo);
        Some(self.p.graph.add(hole, lo))
    }
    fn leaf(&mut self, source: Id, kind: Kind) -> Id {
        let dtype = self.p.graph[source].dtype;
        let number = self.p.graph.int(self.p.leaves.len() as i64);
        let hole = self.p.graph.intern(Node {
            op: Op::Index,
            dtype,
            src: smallvec![number],
            arg: Arg::None,
        });
        self.p.leaves.push(Leaf { hole, source, kind });
        hole
    }
    /// The largest number of consecutive elements that share the value of `id`.
    fn every(&mut self, id: Id) -> i64 {
        let (element, elements) = (self.p.element, self.p.elements);
        let g = &mut self.p.graph;
        if !g.any(id, |n, _| n == element) {
            return elements;
        }
        for size in (2..elements).rev().filter(|s| elements % s == 0) {
            let (outer, inner) = (
                g.var("outer", 0, elements / size - 1),
                g.var("inner", 0, size - 1),
            );
            let step = g.int(size);
            let k = g.mul(outer, step);
            let k = g.add(k, inner);
            let new = g.substitute(id, &mut FxHashMap::from_iter([(element, k)]));
            if !g.any(new, |n, _| n == inner) {
                return size;
            }
        }
        1
    }
}
