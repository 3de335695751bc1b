//! Node builders: one short method per op, used by passes and encodings to write expressions.

use crate::dtype::{DType, Scalar};
use crate::fold::Value;
use crate::graph::Graph;
use crate::id::Id;
use crate::node::{Arg, Node, Sources};
use crate::op::{Op, RangeKind, ReduceOp};
use smallvec::smallvec;
use std::sync::Arc;

macro_rules! binary { ($($name:ident $op:ident;)*) => { $(
    #[doc = concat!("`", stringify!($op), "` of two values of one dtype.")]
    pub fn $name(&mut self, a: Id, b: Id) -> Id { self.binary(Op::$op, a, b) }
)* } }
macro_rules! unary { ($($name:ident $op:ident;)*) => { $(
    #[doc = concat!("`", stringify!($op), "` of a value.")]
    pub fn $name(&mut self, a: Id) -> Id { let d = self[a].dtype; self.build(Op::$op, d, smallvec![a] as Sources, Arg::None) }
)* } }

impl Graph {
    fn value(&mut self, dtype: DType, v: Value) -> Id {
        let arg = match v.stored_as(dtype.scalar) {
            Value::Int(v) => Arg::Int(v),
            Value::Float(v) => Arg::float(v),
        };
        self.intern(Node {
            op: Op::Const,
            dtype,
            src: smallvec![],
            arg,
        })
    }
    /// Builds a constant: `v` rounded to the type; integer types truncate.
    pub fn constant(&mut self, dtype: impl Into<DType>, v: f64) -> Id {
        self.value(dtype.into(), Value::Float(v))
    }
    /// Builds an integer constant; a value out of range wraps.
    pub fn int_of(&mut self, dtype: impl Into<DType>, v: i64) -> Id {
        self.value(dtype.into(), Value::Int(v))
    }
    /// Builds an index constant (i64).
    pub fn int(&mut self, v: i64) -> Id {
        self.int_of(Scalar::I64, v)
    }
    /// Builds an f32 constant.
    pub fn f32(&mut self, v: f32) -> Id {
        self.constant(Scalar::F32, v as f64)
    }
    /// Builds a scalar variable of a step, between `min` and `max` inclusive.
    pub fn var(&mut self, name: &str, min: i64, max: i64) -> Id {
        self.intern(Node {
            op: Op::Var,
            dtype: Scalar::I64.one(),
            src: smallvec![],
            arg: Arg::Var(Arc::from(name), min, max),
        })
    }
    /// Builds an index from 0 to `bound`, exclusive.
    pub fn range(&mut self, bound: Id, number: u32, kind: RangeKind) -> Id {
        self.build(
            Op::Range,
            Scalar::I64.one(),
            smallvec![bound] as Sources,
            Arg::Range(number, kind),
        )
    }
    /// Builds a binary elementwise op; both values have one dtype (and one shape at tensor level).
    pub fn binary(&mut self, op: Op, a: Id, b: Id) -> Id {
        let dtype = match op {
            Op::Lt | Op::Eq => Scalar::Bool.one().with_lanes(self[a].dtype.lanes),
            _ => self[a].dtype,
        };
        debug_assert!(
            matches!(op, Op::Shl | Op::Shr) || self[a].dtype == self[b].dtype,
            "{op:?} of {} and {}",
            self[a].dtype,
            self[b].dtype
        );
        self.build(op, dtype, smallvec![a, b] as Sources, Arg::None)
    }
    binary! { add Add; mul Mul; div Div; idiv IDiv; modulo Mod; max Max; min Min; and And; or Or; xor Xor; shl Shl; shr Shr; lt Lt; eq Eq; }
    unary! { neg Neg; exp Exp; exp2 Exp2; log Log; sqrt Sqrt; recip Recip; round Round; }

    /// Builds `a - b`; for integers, `a + (-1)*b`.
    pub fn sub(&mut self, a: Id, b: Id) -> Id {
        let dtype = self[a].dtype;
        if dtype.scalar.is_float() {
            return self.binary(Op::Sub, a, b);
        }
        let minus = self.int_of(dtype, -1);
        let b = self.mul(minus, b);
        self.add(a, b)
    }
    /// Builds a select: `c ? a : b`.
    pub fn select(&mut self, c: Id, a: Id, b: Id) -> Id {
        let d = self[a].dtype;
        self.build(Op::Where, d, smallvec![c, a, b] as Sources, Arg::None)
    }
    /// Converts `x` to another scalar type.
    pub fn cast(&mut self, x: Id, to: Scalar) -> Id {
        let d = self[x].dtype;
        if d.scalar == to {
            x
        } else {
            self.build(
                Op::Cast,
                DType { scalar: to, ..d },
                smallvec![x] as Sources,
                Arg::None,
            )
        }
    }
    /// Reinterprets the bits of `x` as another type of the same size.
    pub fn bitcast(&mut self, x: Id, to: Scalar) -> Id {
        let d = self[x].dtype;
        self.build(
            Op::Bitcast,
            DType { scalar: to, ..d },
            smallvec![x] as Sources,
            Arg::None,
        )
    }
    /// Looks up entry `x` of a constant table.
    pub fn table(&mut self, x: Id, values: &[i32]) -> Id {
        let d = self[x].dtype;
        self.build(
            Op::Table,
            DType {
                scalar: Scalar::I32,
                ..d
            },
            smallvec![x] as Sources,
            Arg::Ints(values.into()),
        )
    }
    /// Builds `c` plus the dot product of the bytes of word `a` (unsigned, at most `most`)
    /// and of `b` (signed).
    pub fn dot4(&mut self, a: Id, b: Id, c: Id, most: i64) -> Id {
        let d = self[c].dtype;
        self.build(Op::Dot4, d, smallvec![a, b, c] as Sources, Arg::Int(most))
    }
    /// Builds `c` plus the dot product of the signed bytes of words `a` and `b`; those of `b`
    /// are at least −127.
    pub fn signed_dot4(&mut self, a: Id, b: Id, c: Id) -> Id {
        let d = self[c].dtype;
        self.build(Op::SignedDot4, d, smallvec![a, b, c] as Sources, Arg::None)
    }
    /// Adds to each 16-bit half of `c` the products of two bytes of word `a` (at most `most`) with
    /// those of `b` (signed).
    pub fn dot2(&mut self, a: Id, b: Id, c: Id, most: i64) -> Id {
        let d = self[c].dtype;
        self.build(Op::Dot2, d, smallvec![a, b, c] as Sources, Arg::Int(most))
    }
    /// Adds the two signed 16-bit halves of word `x` to `c`.
    pub fn halves(&mut self, x: Id, c: Id) -> Id {
        let d = self[c].dtype;
        self.build(Op::Halves, d, smallvec![x, c] as Sources, Arg::None)
    }
    /// Replaces every byte of word `x` by an entry of a table of 16 bytes.
    pub fn table4(&mut self, x: Id, values: &[i32]) -> Id {
        let d = self[x].dtype;
        self.build(
            Op::Table4,
            d,
            smallvec![x] as Sources,
            Arg::Ints(values.into()),
        )
    }
    /// Loads a `dtype` from `buffer` at `offset`, in elements, or in bytes of a packed buffer.
    pub fn load(&mut self, buffer: Id, offset: Id, dtype: impl Into<DType>) -> Id {
        self.build(
            Op::Load,
            dtype.into(),
            smallvec![buffer, offset] as Sources,
            Arg::None,
        )
    }
    /// Reduces `value` over ranges (kernel level).
    pub fn reduce_ranges(&mut self, value: Id, ranges: &[Id], op: ReduceOp) -> Id {
        let mut src: Sources = smallvec![value];
        src.extend(ranges.iter().copied());
        let d = self[value].dtype;
        self.build(Op::Reduce, d, src, Arg::Reduce(op, smallvec![]))
    }
    /// Stores `value` to `buffer` at `offset` for every index of `ranges`.
    pub fn store(&mut self, buffer: Id, offset: Id, value: Id, ranges: &[Id]) -> Id {
        let mut src: Sources = smallvec![buffer, offset, value];
        src.extend(ranges.iter().copied());
        let d = self[value].dtype;
        self.build(Op::Store, d, src, Arg::None)
    }
    /// Adds `value` to the element of `buffer` at `offset`, for every index of `ranges`. Ranges of
    /// kind `Reduce` run in order.
    pub fn add_to(&mut self, buffer: Id, offset: Id, value: Id, ranges: &[Id]) -> Id {
        let mut src: Sources = smallvec![buffer, offset, value];
        src.extend(ranges.iter().copied());
        let d = self[value].dtype;
        self.build(Op::Store, d, src, Arg::Reduce(ReduceOp::Add, smallvec![]))
    }
}
