//! Vectorises ranges of kind `Vector` and `VectorReduce`.
//!
//! A load along the range is one vector load. A value that does not depend on the range stays
//! scalar, and is splatted where it meets a vector. Anything else is packed lane by lane, which is
//! always legal.

use gristmill_uop::fold::{self, Value};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, DType, Graph, Id, Node, Op, RangeKind, Scalar, Sources};
use rustc_hash::FxHashMap;
use smallvec::smallvec;
use std::sync::Arc;

/// Entries of a lookup table that fits in a vector register.
const TABLE: i64 = 16;

/// Returns `id` with its vector ranges replaced by vector operations.
pub fn vectorise(g: &mut Graph, id: Id, target: &Target) -> Id {
    let mut v = Vectoriser {
        g,
        table_lookup: target.machine.table_lookup,
        memo: FxHashMap::default(),
    };
    // The nest's own lane range, if it has one.
    let lane =
        v.g.free_ranges(id)
            .iter()
            .copied()
            .find(|&r| v.g.range_kind(r) == Some(RangeKind::Vector));
    v.value(id, lane)
}

/// Splats `x` to `lanes` lanes, unless it already has them.
pub fn splat(g: &mut Graph, x: Id, lanes: u16) -> Id {
    if g[x].dtype.lanes == lanes {
        return x;
    }
    let dtype = g[x].dtype.with_lanes(lanes);
    g.build(Op::Splat, dtype, smallvec![x] as Sources, Arg::None)
}

struct Vectoriser<'a> {
    g: &'a mut Graph,
    table_lookup: bool,
    memo: FxHashMap<(Id, Option<Id>), Id>,
}

impl Vectoriser<'_> {
    fn lanes(&self, lane: Id) -> u16 {
        self.g.int_value(self.g[lane].src[0]).unwrap_or(1) as u16
    }
    fn depends(&self, id: Id, lane: Id) -> bool {
        id == lane || self.g.free_ranges(id).contains(&lane)
    }
    fn splat(&mut self, x: Id, lanes: u16) -> Id {
        splat(self.g, x, lanes)
    }
    /// Returns the vectorised form of `id`: a vector if it depends on `lane`.
    fn value(&mut self, id: Id, lane: Option<Id>) -> Id {
        if let Some(&v) = self.memo.get(&(id, lane)) {
            return v;
        }
        let v = match lane {
            Some(l) if self.depends(id, l) => self.vector(id, l),
            _ => self.scalar(id),
        };
        self.memo.insert((id, lane), v);
        v
    }
    fn rebuild(&mut self, id: Id, src: Sources) -> Id {
        let n = self.g[id].clone();
        if src == n.src {
            id
        } else {
            self.g.intern(Node { src, ..n })
        }
    }
    /// Rebuilds a node outside any lanes; reductions below it may have their own lanes.
    fn scalar(&mut self, id: Id) -> Id {
        let n = self.g[id].clone();
        if n.op == Op::Reduce {
            let own = n.src[1..]
                .iter()
                .copied()
                .find(|&r| self.g.range_kind(r) == Some(RangeKind::VectorReduce));
            if let Some(lane) = own {
                let value = self.value(n.src[0], Some(lane));
                let lanes = self.lanes(lane);
                let value = self.splat(value, lanes);
                let mut src: Sources = smallvec![value];
                src.extend(n.src[1..].iter().copied().filter(|&r| r != lane));
                let dtype = n.dtype.with_lanes(lanes);
                let partial = if src.len() == 1 {
                    value
                } else {
                    self.g.intern(Node {
                        op: Op::Reduce,
                        dtype,
                        src,
                        arg: n.arg.clone(),
                    })
                };
                return self.g.intern(Node {
                    op: Op::Fold,
                    dtype: n.dtype,
                    src: smallvec![partial],
                    arg: n.arg,
                });
            }
        }
        let src: Sources = n.src.iter().map(|&s| self.value(s, None)).collect();
        self.rebuild(id, src)
    }
    fn vector(&mut self, id: Id, lane: Id) -> Id {
        let n = self.g[id].clone();
        let lanes = self.lanes(lane);
        let dtype = n.dtype.with_lanes(lanes);
        match n.op {
            Op::Range => self.g.intern(Node {
                op: Op::Lanes,
                dtype,
                src: smallvec![],
                arg: Arg::None,
            }),
            // Creates 32-bit lane indices directly instead of narrowing 64-bit ones.
            Op::Cast if n.src[0] == lane && n.dtype.scalar == Scalar::I32 => self.g.intern(Node {
                op: Op::Lanes,
                dtype,
                src: smallvec![],
                arg: Arg::None,
            }),
            Op::Cast
                if n.dtype.scalar == Scalar::F32 && self.table_lookup && lanes as i64 == TABLE =>
            {
                self.looked_up(n.src[0], lane, dtype)
            }
            Op::Load => self.load(id, lane, lanes),
            // A table in memory is looked up per lane; lanes with the same index share a lookup.
            Op::Table if matches!(&n.arg, Arg::Ints(t) if t.len() as i64 > TABLE) => {
                self.packed(id, lane, lanes)
            }
            Op::Reduce => {
                let value = self.value(n.src[0], Some(lane));
                let mut src: Sources = smallvec![value];
                src.extend(n.src[1..].iter().copied());
                self.g.intern(Node {
                    op: Op::Reduce,
                    dtype,
                    src,
                    arg: n.arg,
                })
            }
            _ if n.op.is_elementwise() => {
                let mut src = Sources::new();
                for &s in &n.src {
                    let v = self.value(s, Some(lane));
                    src.push(self.splat(v, lanes));
                }
                self.g.intern(Node {
                    op: n.op,
                    dtype,
                    src,
                    arg: n.arg,
                })
            }
            _ => self.packed(id, lane, lanes),
        }
    }
    /// Vectorises a conversion of `id` to f32, as a table lookup if it has such a form.
    fn looked_up(&mut self, id: Id, lane: Id, dtype: DType) -> Id {
        match self.as_table(id) {
            Some((index, table)) => {
                let index = self.value(index, Some(lane));
                self.g.intern(Node {
                    op: Op::Table,
                    dtype,
                    src: smallvec![index],
                    arg: Arg::Ints(table),
                })
            }
            None => {
                let x = self.value(id, Some(lane));
                self.g.intern(Node {
                    op: Op::Cast,
                    dtype,
                    src: smallvec![x],
                    arg: Arg::None,
                })
            }
        }
    }
    /// Vectorises a load: one vector load if the lanes are contiguous in memory.
    fn load(&mut self, id: Id, lane: Id, lanes: u16) -> Id {
        let n = self.g[id].clone();
        let sum = self.g.linear(n.src[1]);
        let unit = n.dtype.scalar.bytes() as i64 / self.g.unit_bytes(n.src[0]);
        let straight = sum.coefficient(lane) == unit
            && sum
                .terms
                .iter()
                .all(|&(t, _)| t == lane || !self.depends(t, lane));
        if straight {
            let at = self.at_lane(n.src[1], lane, 0);
            let at = self.value(at, None);
            return self.g.intern(Node {
                op: Op::Load,
                dtype: n.dtype.with_lanes(lanes),
                src: smallvec![n.src[0], at],
                arg: Arg::None,
            });
        }
        self.packed(id, lane, lanes)
    }
    /// Rewrites an integer function of four bits as a table lookup. Only these bits of the index
    /// count. The masking, zero point and conversion of any quantisation format become one lookup.
    fn as_table(&self, id: Id) -> Option<(Id, Arc<[i32]>)> {
        let g = &*self.g;
        // Walks down through operations with constants to the four bits.
        let mut chain = Vec::new();
        let mut at = id;
        loop {
            let n = &g[at];
            if n.dtype.scalar != Scalar::I32 {
                return None;
            }
            if n.op == Op::And && g.int_value(n.src[1]) == Some(TABLE - 1) {
                at = n.src[0];
                break;
            }
            if g.within(at, 0, TABLE - 1) {
                break;
            }
            let constant = n.src.get(1).is_none_or(|&c| g.int_value(c).is_some());
            if !matches!(n.op, Op::Add | Op::Mul | Op::Xor | Op::Or | Op::Table) || !constant {
                return None;
            }
            chain.push(at);
            at = n.src[0];
        }
        let entry = |i: i64| {
            chain.iter().rev().try_fold(i, |x, &step| {
                let n = &g[step];
                match (&n.arg, n.src.get(1)) {
                    (Arg::Ints(t), _) => t.get(x as usize).map(|&v| v as i64),
                    (_, Some(&c)) => {
                        let values = [Value::Int(x), Value::Int(g.int_value(c)?)];
                        fold::apply(n.op, &values, Scalar::I32).map(Value::int)
                    }
                    _ => None,
                }
            })
        };
        // Only entries that a float represents exactly.
        let table: Option<Vec<i32>> = (0..TABLE)
            .map(|i| entry(i).filter(|v| v.abs() <= 1 << 24).map(|v| v as i32))
            .collect();
        Some((at, table?.into()))
    }
    fn at_lane(&mut self, id: Id, lane: Id, i: i64) -> Id {
        let c = self.g.int(i);
        let mut map = FxHashMap::from_iter([(lane, c)]);
        self.g.substitute(id, &mut map)
    }
    /// Packs the values of the lanes, computed one by one.
    fn packed(&mut self, id: Id, lane: Id, lanes: u16) -> Id {
        let dtype = self.g[id].dtype.with_lanes(lanes);
        let mut src = Sources::new();
        for i in 0..lanes as i64 {
            let one = self.at_lane(id, lane, i);
            src.push(self.value(one, None));
        }
        self.g.intern(Node {
            op: Op::Pack,
            dtype,
            src,
            arg: Arg::None,
        })
    }
}
