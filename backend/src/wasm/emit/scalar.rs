//! Operations on scalars.

use super::locals::{Local, LocalKind, scalar_kind};
use super::writer::FunctionWriter;
use gristmill_uop::{Id, Op, Scalar};
use wasm_encoder::{Ieee32, Ieee64, Instruction as I};

impl FunctionWriter<'_> {
    /// Applies the operation of a node to a lane of each source; returns a scalar of its type.
    pub fn scalar(&mut self, id: Id, s: &[Local]) -> Local {
        let n = &self.g[id];
        let (op, to) = (n.op, n.dtype.scalar);
        let from = n.src.first().map_or(to, |&x| self.g.scalar(x));
        let kind = match self.form(id).kind {
            LocalKind::V128 => scalar_kind(to, true),
            kind => kind,
        };
        if from.is_half() && op.is_float_arithmetic() {
            let wide: Vec<Local> = s
                .iter()
                .map(|&x| self.cast_scalar(from, Scalar::F32, x, LocalKind::F32))
                .collect();
            let result = self.arithmetic(op, Scalar::F32, &wide);
            return match to.is_half() {
                true => self.cast_scalar(Scalar::F32, to, result, LocalKind::I32),
                false => result,
            };
        }
        match op {
            Op::Cast => self.cast_scalar(from, to, s[0], kind),
            Op::Bitcast => {
                let word = self.word(s[0]);
                let word = self.normal(word, to);
                self.reinterpreted(word, to)
            }
            Op::Where => {
                let (a, b) = (self.widened(s[1], kind), self.widened(s[2], kind));
                self.b.ternary(kind, I::Select, [a, b, s[0]])
            }
            Op::Dot4 | Op::SignedDot4 | Op::Dot2 | Op::Halves | Op::Half | Op::Table4 => {
                self.first_lane(id, s)
            }
            _ => self.arithmetic_in(op, from, s, kind, id),
        }
    }
    /// Applies an operation on integers in 64 bits where an operand needs them.
    fn arithmetic_in(
        &mut self,
        op: Op,
        from: Scalar,
        s: &[Local],
        kind: LocalKind,
        id: Id,
    ) -> Local {
        let modular = matches!(
            op,
            Op::Add | Op::Sub | Op::Mul | Op::And | Op::Or | Op::Xor | Op::Shl
        );
        let any_wide = s.iter().any(|x| x.kind == LocalKind::I64);
        let wide = match modular {
            true => kind == LocalKind::I64,
            false => kind == LocalKind::I64 || any_wide,
        };
        let integers = !from.is_float();
        let s: Vec<Local> = match (integers, wide) {
            (true, true) => s.iter().map(|&x| self.widened(x, LocalKind::I64)).collect(),
            (true, false) => s.iter().map(|&x| self.widened(x, LocalKind::I32)).collect(),
            (false, _) => s.to_vec(),
        };
        let result = self.arithmetic(op, from, &s);
        let to = self.g.scalar(id);
        match (result.kind, kind) {
            (LocalKind::I64, LocalKind::I32) => self.widened(result, LocalKind::I32),
            _ => self.normal(result, to),
        }
    }
    /// Wraps a word to a narrow integer type.
    pub fn normal(&mut self, value: Local, to: Scalar) -> Local {
        if value.kind != LocalKind::I32 {
            return value;
        }
        match to {
            Scalar::U8 => self.and(value, 255),
            Scalar::U16 | Scalar::F16 | Scalar::BF16 => self.and(value, 0xffff),
            Scalar::I8 => self.b.unary(LocalKind::I32, I::I32Extend8S, value),
            Scalar::I16 => self.b.unary(LocalKind::I32, I::I32Extend16S, value),
            _ => value,
        }
    }
    /// Returns the bits of a value.
    pub fn word(&mut self, value: Local) -> Local {
        match value.kind {
            LocalKind::F32 => self.b.unary(LocalKind::I32, I::I32ReinterpretF32, value),
            LocalKind::F64 => self.b.unary(LocalKind::I64, I::I64ReinterpretF64, value),
            _ => value,
        }
    }
    /// Returns bits as a value of that type.
    pub fn reinterpreted(&mut self, word: Local, to: Scalar) -> Local {
        match to {
            Scalar::F32 => self.b.unary(LocalKind::F32, I::F32ReinterpretI32, word),
            Scalar::F64 => {
                let word = self.widened(word, LocalKind::I64);
                self.b.unary(LocalKind::F64, I::F64ReinterpretI64, word)
            }
            Scalar::I64 => self.widened(word, LocalKind::I64),
            _ => word,
        }
    }
    /// Computes an operation of four lanes for the first one.
    fn first_lane(&mut self, id: Id, s: &[Local]) -> Local {
        let vectors: Vec<Local> = s
            .iter()
            .map(|&x| {
                let x = self.widened(x, LocalKind::I32);
                let splat = match x.kind {
                    LocalKind::F32 => I::F32x4Splat,
                    _ => I::I32x4Splat,
                };
                self.b.v1(splat, x)
            })
            .collect();
        let result = self.vector(id, &vectors);
        self.extract(result, self.g.scalar(id), 0)
    }
    /// Applies arithmetic on values of type `of`; integers are not wrapped to a narrow type.
    pub fn arithmetic(&mut self, op: Op, of: Scalar, s: &[Local]) -> Local {
        match s[0].kind {
            LocalKind::F32 => self.float(op, s),
            LocalKind::F64 => self.double(op, s),
            LocalKind::I64 => self.long(op, s),
            _ => self.integer(op, of, s),
        }
    }
    fn float(&mut self, op: Op, s: &[Local]) -> Local {
        let (one, two) = match op {
            Op::Neg => (Some(I::F32Neg), None),
            Op::Sqrt => (Some(I::F32Sqrt), None),
            Op::Round => (Some(I::F32Nearest), None),
            Op::Add => (None, Some(I::F32Add)),
            Op::Sub => (None, Some(I::F32Sub)),
            Op::Mul => (None, Some(I::F32Mul)),
            Op::Div => (None, Some(I::F32Div)),
            _ => (None, None),
        };
        if let Some(one) = one {
            return self.b.unary(LocalKind::F32, one, s[0]);
        }
        if let Some(two) = two {
            return self.b.binary(LocalKind::F32, two, s[0], s[1]);
        }
        match op {
            Op::Lt => self.b.binary(LocalKind::I32, I::F32Lt, s[0], s[1]),
            Op::Eq => self.b.binary(LocalKind::I32, I::F32Eq, s[0], s[1]),
            Op::Max => self.picked(I::F32Gt, s),
            Op::Min => self.picked(I::F32Lt, s),
            Op::Recip => {
                let one = self
                    .b
                    .nullary(LocalKind::F32, I::F32Const(Ieee32::new(0x3f80_0000)));
                self.b.binary(LocalKind::F32, I::F32Div, one, s[0])
            }
            Op::Exp | Op::Exp2 | Op::Log | Op::Fma => {
                let s: Vec<Local> = s.iter().map(|&x| self.b.v1(I::F32x4Splat, x)).collect();
                let result = self.vector_arithmetic(op, Scalar::F32, &s);
                self.extract(result, Scalar::F32, 0)
            }
            _ => unreachable!("{op:?} of floats"),
        }
    }
    /// Returns the first of two operands if the comparison holds, else the second.
    fn picked(&mut self, compare: I<'static>, s: &[Local]) -> Local {
        let holds = self.b.binary(LocalKind::I32, compare, s[0], s[1]);
        self.b.ternary(s[0].kind, I::Select, [s[0], s[1], holds])
    }
    fn double(&mut self, op: Op, s: &[Local]) -> Local {
        let kind = LocalKind::F64;
        match op {
            Op::Neg => self.b.unary(kind, I::F64Neg, s[0]),
            Op::Sqrt => self.b.unary(kind, I::F64Sqrt, s[0]),
            Op::Round => self.b.unary(kind, I::F64Nearest, s[0]),
            Op::Add => self.b.binary(kind, I::F64Add, s[0], s[1]),
            Op::Sub => self.b.binary(kind, I::F64Sub, s[0], s[1]),
            Op::Mul => self.b.binary(kind, I::F64Mul, s[0], s[1]),
            Op::Div => self.b.binary(kind, I::F64Div, s[0], s[1]),
            Op::Lt => self.b.binary(LocalKind::I32, I::F64Lt, s[0], s[1]),
            Op::Eq => self.b.binary(LocalKind::I32, I::F64Eq, s[0], s[1]),
            Op::Max => self.picked(I::F64Gt, s),
            Op::Min => self.picked(I::F64Lt, s),
            Op::Recip => {
                let one = self
                    .b
                    .nullary(kind, I::F64Const(Ieee64::new(1f64.to_bits())));
                self.b.binary(kind, I::F64Div, one, s[0])
            }
            Op::Fma => {
                let product = self.b.binary(kind, I::F64Mul, s[0], s[1]);
                self.b.binary(kind, I::F64Add, product, s[2])
            }
            _ => unreachable!("{op:?} of 64-bit floats"),
        }
    }
    fn long(&mut self, op: Op, s: &[Local]) -> Local {
        let kind = LocalKind::I64;
        match op {
            Op::Add => self.b.binary(kind, I::I64Add, s[0], s[1]),
            Op::Sub => self.b.binary(kind, I::I64Sub, s[0], s[1]),
            Op::Mul => self.b.binary(kind, I::I64Mul, s[0], s[1]),
            Op::And => self.b.binary(kind, I::I64And, s[0], s[1]),
            Op::Or => self.b.binary(kind, I::I64Or, s[0], s[1]),
            Op::Xor => self.b.binary(kind, I::I64Xor, s[0], s[1]),
            Op::Shl => self.b.binary(kind, I::I64Shl, s[0], s[1]),
            Op::Shr => self.b.binary(kind, I::I64ShrS, s[0], s[1]),
            Op::Lt => self.b.binary(LocalKind::I32, I::I64LtS, s[0], s[1]),
            Op::Eq => self.b.binary(LocalKind::I32, I::I64Eq, s[0], s[1]),
            Op::Max => self.picked(I::I64GtS, s),
            Op::Min => self.picked(I::I64LtS, s),
            Op::IDiv | Op::Mod => {
                let rest = self.b.binary(kind, I::I64RemS, s[0], s[1]);
                let zero = self.b.nullary(kind, I::I64Const(0));
                let below = self.b.binary(LocalKind::I32, I::I64LtS, rest, zero);
                if op == Op::IDiv {
                    let quotient = self.b.binary(kind, I::I64DivS, s[0], s[1]);
                    let below = self.b.unary(kind, I::I64ExtendI32U, below);
                    return self.b.binary(kind, I::I64Sub, quotient, below);
                }
                let more = self.b.ternary(kind, I::Select, [s[1], zero, below]);
                self.b.binary(kind, I::I64Add, rest, more)
            }
            _ => unreachable!("{op:?} of 64-bit integers"),
        }
    }
    fn integer(&mut self, op: Op, of: Scalar, s: &[Local]) -> Local {
        let kind = LocalKind::I32;
        let unsigned = of == Scalar::U32;
        let either = |signed: I<'static>, other: I<'static>| if unsigned { other } else { signed };
        match op {
            Op::Add => self.b.binary(kind, I::I32Add, s[0], s[1]),
            Op::Sub => self.b.binary(kind, I::I32Sub, s[0], s[1]),
            Op::Mul => self.b.binary(kind, I::I32Mul, s[0], s[1]),
            Op::And => self.b.binary(kind, I::I32And, s[0], s[1]),
            Op::Or => self.b.binary(kind, I::I32Or, s[0], s[1]),
            Op::Xor => self.b.binary(kind, I::I32Xor, s[0], s[1]),
            Op::Shl => self.b.binary(kind, I::I32Shl, s[0], s[1]),
            Op::Shr => self
                .b
                .binary(kind, either(I::I32ShrS, I::I32ShrU), s[0], s[1]),
            Op::Lt => self
                .b
                .binary(kind, either(I::I32LtS, I::I32LtU), s[0], s[1]),
            Op::Eq => self.b.binary(kind, I::I32Eq, s[0], s[1]),
            Op::Max => self.picked(either(I::I32GtS, I::I32GtU), s),
            Op::Min => self.picked(either(I::I32LtS, I::I32LtU), s),
            Op::IDiv if unsigned => self.b.binary(kind, I::I32DivU, s[0], s[1]),
            Op::Mod if unsigned => self.b.binary(kind, I::I32RemU, s[0], s[1]),
            Op::IDiv | Op::Mod => self.floored(op, s),
            _ => unreachable!("{op:?} of integers"),
        }
    }
    /// Quotient or remainder by a positive divisor, rounded down.
    fn floored(&mut self, op: Op, s: &[Local]) -> Local {
        let kind = LocalKind::I32;
        let rest = self.b.binary(kind, I::I32RemS, s[0], s[1]);
        let zero = self.b.nullary(kind, I::I32Const(0));
        let below = self.b.binary(kind, I::I32LtS, rest, zero);
        if op == Op::IDiv {
            let quotient = self.b.binary(kind, I::I32DivS, s[0], s[1]);
            return self.b.binary(kind, I::I32Sub, quotient, below);
        }
        let more = self.b.ternary(kind, I::Select, [s[1], zero, below]);
        self.b.binary(kind, I::I32Add, rest, more)
    }
    /// Converts a scalar to another type, held in that kind.
    pub fn cast_scalar(&mut self, from: Scalar, to: Scalar, x: Local, kind: LocalKind) -> Local {
        if from == to {
            return self.widened(x, kind);
        }
        match (from, to) {
            (Scalar::F16 | Scalar::BF16, _) => {
                let vector = self.b.v1(I::I32x4Splat, x);
                let wide = self.widen_half(vector, from);
                let wide = self.extract(wide, Scalar::F32, 0);
                self.cast_scalar(Scalar::F32, to, wide, kind)
            }
            (Scalar::F32, Scalar::F16 | Scalar::BF16) => {
                let vector = self.b.v1(I::F32x4Splat, x);
                let half = self.rounded_half(vector, to);
                self.extract(half, to, 0)
            }
            (_, Scalar::F16 | Scalar::BF16) => {
                let wide = self.cast_scalar(from, Scalar::F32, x, LocalKind::F32);
                self.cast_scalar(Scalar::F32, to, wide, kind)
            }
            (Scalar::F32 | Scalar::F64, _) => self.cast_float(to, x, kind),
            (_, Scalar::F32 | Scalar::F64) => self.cast_integer(from, to, x),
            (_, Scalar::Bool) => {
                let zero = match x.kind {
                    LocalKind::I64 => I::I64Eqz,
                    _ => I::I32Eqz,
                };
                let none = self.b.unary(LocalKind::I32, zero, x);
                self.b.unary(LocalKind::I32, I::I32Eqz, none)
            }
            (Scalar::U32, Scalar::I64) if kind == LocalKind::I64 => {
                self.b.unary(LocalKind::I64, I::I64ExtendI32U, x)
            }
            _ => {
                let x = self.widened(x, kind);
                self.normal(x, to)
            }
        }
    }
    fn cast_integer(&mut self, from: Scalar, to: Scalar, x: Local) -> Local {
        let single = to == Scalar::F32;
        let kind = Self::wide_kind(to);
        let op = match (x.kind, from == Scalar::U32, single) {
            (LocalKind::I64, _, true) => I::F32ConvertI64S,
            (LocalKind::I64, _, false) => I::F64ConvertI64S,
            (_, true, true) => I::F32ConvertI32U,
            (_, true, false) => I::F64ConvertI32U,
            (_, false, true) => I::F32ConvertI32S,
            (_, false, false) => I::F64ConvertI32S,
        };
        self.b.unary(kind, op, x)
    }
    /// Converts a float: truncated and saturated to integers, NaN to 0.
    fn cast_float(&mut self, to: Scalar, x: Local, kind: LocalKind) -> Local {
        let single = x.kind == LocalKind::F32;
        let either = |a: I<'static>, b: I<'static>| if single { a } else { b };
        match to {
            Scalar::F32 => self.b.unary(LocalKind::F32, I::F32DemoteF64, x),
            Scalar::F64 => self.b.unary(LocalKind::F64, I::F64PromoteF32, x),
            Scalar::Bool => {
                let (zero, ne) = match single {
                    true => (I::F32Const(Ieee32::new(0)), I::F32Ne),
                    false => (I::F64Const(Ieee64::new(0)), I::F64Ne),
                };
                let zero = self.b.nullary(x.kind, zero);
                self.b.binary(LocalKind::I32, ne, x, zero)
            }
            Scalar::I64 => {
                let op = either(I::I64TruncSatF32S, I::I64TruncSatF64S);
                let long = self.b.unary(LocalKind::I64, op, x);
                self.widened(long, kind)
            }
            Scalar::U32 => {
                let op = either(I::I32TruncSatF32U, I::I32TruncSatF64U);
                self.b.unary(LocalKind::I32, op, x)
            }
            _ => {
                let op = either(I::I32TruncSatF32S, I::I32TruncSatF64S);
                let word = self.b.unary(LocalKind::I32, op, x);
                let Some((low, high)) = to.range().filter(|_| to != Scalar::I32) else {
                    return word;
                };
                let low = self.b.nullary(LocalKind::I32, I::I32Const(low as i32));
                let high = self.b.nullary(LocalKind::I32, I::I32Const(high as i32));
                let word = self.picked(I::I32GtS, &[word, low]);
                self.picked(I::I32LtS, &[word, high])
            }
        }
    }
    /// Reads an entry of a table in memory.
    pub fn entry(&mut self, address: u32, index: Local, scalar: Scalar) -> Local {
        self.b.get(index);
        self.b.op(I::I32Const(2));
        self.b.op(I::I32Shl);
        let memory = super::access::at(address, 2);
        let (kind, load) = match scalar {
            Scalar::F32 => (LocalKind::F32, I::F32Load(memory)),
            _ => (LocalKind::I32, I::I32Load(memory)),
        };
        self.b.op(load);
        self.b.keep(kind)
    }
}
