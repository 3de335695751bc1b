//! Lanes: a range of kind `Vector` or `VectorReduce` becomes vector-typed ops. A load along the range is one vector load; what does not
//! depend on it stays scalar and is splatted where it meets a vector; anything else is packed lane by lane, which is always legal.

use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, Scalar, Sources};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

/// `id` without vector ranges.
pub fn vectorise(g: &mut Graph, id: Id) -> Id {
    let mut v = Vectoriser { g, memo: FxHashMap::default() };
    // The lanes of the nest itself, if it has any.
    let lane = v.g.free_ranges(id).iter().copied().find(|&r| v.g.range_kind(r) == Some(RangeKind::Vector));
    v.value(id, lane)
}

struct Vectoriser<'a> {
    g: &'a mut Graph,
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
        if self.g[x].dtype.lanes == lanes {
            return x;
        }
        let dtype = self.g[x].dtype.with_lanes(lanes);
        self.g.build(Op::Splat, dtype, smallvec![x] as Sources, Arg::None)
    }
    /// The image of `id`: a vector if it depends on `lane`.
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
        if src == n.src { id } else { self.g.intern(Node { src, ..n }) }
    }
    /// A node outside any lanes; reductions inside may have lanes of their own.
    fn scalar(&mut self, id: Id) -> Id {
        let n = self.g[id].clone();
        if n.op == Op::Reduce {
            let own = n.src[1..].iter().copied().find(|&r| self.g.range_kind(r) == Some(RangeKind::VectorReduce));
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
                    self.g.intern(Node { op: Op::Reduce, dtype, src, arg: n.arg.clone() })
                };
                return self.g.intern(Node { op: Op::Fold, dtype: n.dtype, src: smallvec![partial], arg: n.arg });
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
            Op::Range => self.g.intern(Node { op: Op::Lanes, dtype, src: smallvec![], arg: Arg::None }),
            // A narrow index is made narrow, not narrowed.
            Op::Cast if n.src[0] == lane && n.dtype.scalar == Scalar::I32 => {
                self.g.intern(Node { op: Op::Lanes, dtype, src: smallvec![], arg: Arg::None })
            }
            Op::Load => {
                let sum = self.g.linear(n.src[1]);
                let unit = match self.g[n.src[0]].arg {
                    Arg::Packed(..) => n.dtype.scalar.bytes() as i64,
                    _ => 1,
                };
                let straight = sum.coefficient(lane) == unit
                    && sum.terms.iter().all(|&(t, _)| t == lane || !self.depends(t, lane));
                if straight {
                    let at = self.at_lane(n.src[1], lane, 0);
                    let at = self.value(at, None);
                    return self.g.intern(Node { op: Op::Load, dtype, src: smallvec![n.src[0], at], arg: Arg::None });
                }
                self.packed(id, lane, lanes)
            }
            Op::Reduce => {
                let value = self.value(n.src[0], Some(lane));
                let mut src: Sources = smallvec![value];
                src.extend(n.src[1..].iter().copied());
                self.g.intern(Node { op: Op::Reduce, dtype, src, arg: n.arg })
            }
            _ if n.op.is_elementwise() => {
                let mut src = Sources::new();
                for &s in &n.src {
                    let v = self.value(s, Some(lane));
                    src.push(self.splat(v, lanes));
                }
                self.g.intern(Node { op: n.op, dtype, src, arg: n.arg })
            }
            _ => self.packed(id, lane, lanes),
        }
    }
    fn at_lane(&mut self, id: Id, lane: Id, i: i64) -> Id {
        let c = self.g.int(i);
        let mut map = FxHashMap::from_iter([(lane, c)]);
        self.g.substitute(id, &mut map)
    }
    /// Lane by lane.
    fn packed(&mut self, id: Id, lane: Id, lanes: u16) -> Id {
        let dtype = self.g[id].dtype.with_lanes(lanes);
        let mut src = Sources::new();
        for i in 0..lanes as i64 {
            let one = self.at_lane(id, lane, i);
            src.push(self.value(one, None));
        }
        self.g.intern(Node { op: Op::Pack, dtype, src, arg: Arg::None })
    }
}
