//! Operations on vectors of four 32-bit lanes.

use super::locals::{Local, LocalKind};
use super::writer::FunctionWriter;
use crate::names::unprintable;
use gristmill_uop::{Arg, Id, Op, Scalar};
use wasm_encoder::Instruction as I;

impl FunctionWriter<'_> {
    /// Returns whether an operation has instructions for four lanes: not division of integers, nor
    /// shifts by different numbers.
    pub fn has_vector_form(&self, id: Id) -> bool {
        let n = &self.g[id];
        match n.op {
            Op::IDiv | Op::Mod => self.power_of_two(id).is_some(),
            Op::Shl | Op::Shr => self.equal_shift(id).is_some(),
            _ => true,
        }
    }
    /// Returns the logarithm of a constant divisor that is a power of two.
    fn power_of_two(&self, id: Id) -> Option<u32> {
        let divisor = self.one_in_all_lanes(self.g[id].src[1])?;
        let divisor = u32::try_from(self.g.int_value(divisor)?).ok()?;
        divisor.is_power_of_two().then(|| divisor.trailing_zeros())
    }
    /// Returns the scalar that is in all lanes of a vector.
    fn one_in_all_lanes(&self, id: Id) -> Option<Id> {
        match self.g[id].op {
            Op::Const => Some(id),
            Op::Splat => Some(self.g[id].src[0]),
            _ => None,
        }
    }
    /// Returns the number of bits that all lanes are shifted by.
    fn equal_shift(&self, id: Id) -> Option<Id> {
        self.one_in_all_lanes(self.g[id].src[1])
    }
    /// Applies the operation of a node to a unit of each source.
    pub fn vector(&mut self, id: Id, s: &[Local]) -> Local {
        let n = &self.g[id];
        let (op, to) = (n.op, n.dtype.scalar);
        let from = n.src.first().map_or(to, |&x| self.g.scalar(x));
        if from.is_half() && op.is_float_arithmetic() {
            let wide: Vec<Local> = s.iter().map(|&x| self.widen_half(x, from)).collect();
            let result = self.vector_arithmetic(op, Scalar::F32, &wide);
            return match to.is_half() {
                true => self.rounded_half(result, to),
                false => result,
            };
        }
        match op {
            Op::Cast => self.cast_vector(from, to, s[0]),
            Op::Bitcast => self.normal_vector(s[0], to),
            Op::Where => self.b.select(s[0], s[1], s[2]),
            Op::Shl | Op::Shr => {
                let by = self
                    .equal_shift(id)
                    .unwrap_or_else(|| unprintable(self.g, id));
                self.shift_vector(op, from, s[0], by, to)
            }
            Op::IDiv | Op::Mod => {
                let bits = self
                    .power_of_two(id)
                    .unwrap_or_else(|| unprintable(self.g, id));
                self.by_power_of_two(op, from, s[0], bits)
            }
            Op::Dot4 => {
                let Arg::Int(most) = n.arg else {
                    unprintable(self.g, id)
                };
                self.dot4(most, s)
            }
            Op::SignedDot4 => self.signed_dot4(s),
            Op::Dot2 => {
                let Arg::Int(most) = n.arg else {
                    unprintable(self.g, id)
                };
                self.dot2(most, s)
            }
            Op::Halves => {
                let sums = self.b.v1(I::I32x4ExtAddPairwiseI16x8S, s[0]);
                self.b.v2(I::I32x4Add, sums, s[1])
            }
            Op::Half => {
                let low = self.b.ints(0xffff);
                let bits = self.b.v2(I::V128And, s[0], low);
                self.math().widened_f16(bits)
            }
            Op::Table4 => {
                let Arg::Ints(entries) = &n.arg else {
                    unprintable(self.g, id)
                };
                let bytes: Vec<u32> = entries.iter().map(|&v| v as u32).collect();
                let table = self.plane(&bytes, 0);
                self.b.v2(I::I8x16Swizzle, table, s[0])
            }
            _ => {
                let result = self.vector_arithmetic(op, from, s);
                self.normal_vector(result, to)
            }
        }
    }
    /// Shifts all lanes by one number.
    fn shift_vector(&mut self, op: Op, from: Scalar, x: Local, by: Id, to: Scalar) -> Local {
        let by = match self.g.int_value(by) {
            Some(bits) => self.b.nullary(LocalKind::I32, I::I32Const(bits as i32)),
            None => self.scalar_as(by, LocalKind::I32),
        };
        let signed = !matches!(from, Scalar::U8 | Scalar::U16 | Scalar::U32);
        let op = match (op, signed) {
            (Op::Shl, _) => I::I32x4Shl,
            (_, true) => I::I32x4ShrS,
            (_, false) => I::I32x4ShrU,
        };
        let shifted = self.b.binary(LocalKind::V128, op, x, by);
        self.normal_vector(shifted, to)
    }
    /// Quotient or remainder by a power of two, rounded down.
    fn by_power_of_two(&mut self, op: Op, from: Scalar, x: Local, bits: u32) -> Local {
        if op == Op::Mod {
            let mask = self.b.ints((1u32 << bits) - 1);
            return self.b.v2(I::V128And, x, mask);
        }
        let shift = match from {
            Scalar::U32 => I::I32x4ShrU,
            _ => I::I32x4ShrS,
        };
        self.b.shift(shift, x, bits as i32)
    }
    /// Wraps lanes to a narrow integer type.
    pub fn normal_vector(&mut self, x: Local, to: Scalar) -> Local {
        let mask = match to {
            Scalar::U8 => 255,
            Scalar::U16 | Scalar::F16 | Scalar::BF16 => 0xffff,
            Scalar::I8 | Scalar::I16 => {
                let bits = 32 - 8 * to.bytes() as i32;
                let high = self.b.shift(I::I32x4Shl, x, bits);
                return self.b.shift(I::I32x4ShrS, high, bits);
            }
            _ => return x,
        };
        let mask = self.b.ints(mask);
        self.b.v2(I::V128And, x, mask)
    }
    /// Applies arithmetic on lanes of type `of`; integers are not wrapped to a narrow type.
    pub fn vector_arithmetic(&mut self, op: Op, of: Scalar, s: &[Local]) -> Local {
        match op {
            Op::And => self.b.v2(I::V128And, s[0], s[1]),
            Op::Or => self.b.v2(I::V128Or, s[0], s[1]),
            Op::Xor => self.b.v2(I::V128Xor, s[0], s[1]),
            _ if of == Scalar::F32 => self.float_vector(op, s),
            _ => self.integer_vector(op, of, s),
        }
    }
    fn float_vector(&mut self, op: Op, s: &[Local]) -> Local {
        match op {
            Op::Neg => self.b.v1(I::F32x4Neg, s[0]),
            Op::Sqrt => self.b.v1(I::F32x4Sqrt, s[0]),
            Op::Round => self.b.v1(I::F32x4Nearest, s[0]),
            Op::Add => self.b.v2(I::F32x4Add, s[0], s[1]),
            Op::Sub => self.b.v2(I::F32x4Sub, s[0], s[1]),
            Op::Mul => self.b.v2(I::F32x4Mul, s[0], s[1]),
            Op::Div => self.b.v2(I::F32x4Div, s[0], s[1]),
            Op::Lt => self.b.v2(I::F32x4Lt, s[0], s[1]),
            Op::Eq => self.b.v2(I::F32x4Eq, s[0], s[1]),
            // `pmax(b, a)` is `b < a ? a : b`.
            Op::Max => self.b.v2(I::F32x4PMax, s[1], s[0]),
            Op::Min => self.b.v2(I::F32x4PMin, s[1], s[0]),
            Op::Recip => {
                let one = self.b.floats(1.0);
                self.b.v2(I::F32x4Div, one, s[0])
            }
            Op::Exp => self.math().exp(s[0]),
            Op::Exp2 => self.math().exp2(s[0]),
            Op::Log => self.math().log(s[0]),
            Op::Fma => self.math().fma(s[0], s[1], s[2]),
            _ => unreachable!("{op:?} of float vectors"),
        }
    }
    fn integer_vector(&mut self, op: Op, of: Scalar, s: &[Local]) -> Local {
        let unsigned = of == Scalar::U32;
        let either = |signed: I<'static>, other: I<'static>| if unsigned { other } else { signed };
        match op {
            Op::Add => self.b.v2(I::I32x4Add, s[0], s[1]),
            Op::Sub => self.b.v2(I::I32x4Sub, s[0], s[1]),
            Op::Mul => self.b.v2(I::I32x4Mul, s[0], s[1]),
            Op::Max => self.b.v2(either(I::I32x4MaxS, I::I32x4MaxU), s[0], s[1]),
            Op::Min => self.b.v2(either(I::I32x4MinS, I::I32x4MinU), s[0], s[1]),
            // Masks: false < true.
            Op::Lt if of == Scalar::Bool => self.b.v2(I::V128AndNot, s[1], s[0]),
            Op::Lt => self.b.v2(either(I::I32x4LtS, I::I32x4LtU), s[0], s[1]),
            Op::Eq => self.b.v2(I::I32x4Eq, s[0], s[1]),
            _ => unreachable!("{op:?} of integer vectors"),
        }
    }
    /// f16 or bf16 bits as f32.
    pub fn widen_half(&mut self, x: Local, from: Scalar) -> Local {
        match from {
            Scalar::F16 => self.math().widened_f16(x),
            _ => self.math().widened_bf16(x),
        }
    }
    /// f32 rounded to the bits of f16 or bf16.
    pub fn rounded_half(&mut self, x: Local, to: Scalar) -> Local {
        match to {
            Scalar::F16 => self.math().rounded_f16(x),
            _ => self.math().rounded_bf16(x),
        }
    }
    fn cast_vector(&mut self, from: Scalar, to: Scalar, x: Local) -> Local {
        match (from, to) {
            _ if from == to => x,
            (Scalar::Bool, _) => {
                let one = self.b.ints(1);
                let x = self.b.v2(I::V128And, x, one);
                self.cast_vector(Scalar::I32, to, x)
            }
            (Scalar::F16 | Scalar::BF16, _) => {
                let wide = self.widen_half(x, from);
                self.cast_vector(Scalar::F32, to, wide)
            }
            (Scalar::F32, Scalar::F16 | Scalar::BF16) => self.rounded_half(x, to),
            (_, Scalar::F16 | Scalar::BF16) => {
                let wide = self.cast_vector(from, Scalar::F32, x);
                self.rounded_half(wide, to)
            }
            (Scalar::F32, Scalar::Bool) => {
                let zero = self.b.floats(0.0);
                self.b.v2(I::F32x4Ne, x, zero)
            }
            (_, Scalar::Bool) => {
                let zero = self.b.ints(0);
                self.b.v2(I::I32x4Ne, x, zero)
            }
            (Scalar::F32, Scalar::U32) => self.b.v1(I::I32x4TruncSatF32x4U, x),
            (Scalar::F32, _) => self.saturated(x, to),
            (Scalar::U32, Scalar::F32) => self.b.v1(I::F32x4ConvertI32x4U, x),
            (_, Scalar::F32) => self.b.v1(I::F32x4ConvertI32x4S, x),
            _ => self.normal_vector(x, to),
        }
    }
    /// Truncates floats to integers of at most 32 bits, saturated; NaN becomes 0.
    fn saturated(&mut self, x: Local, to: Scalar) -> Local {
        let word = self.b.v1(I::I32x4TruncSatF32x4S, x);
        let narrow = matches!(to, Scalar::I8 | Scalar::U8 | Scalar::I16 | Scalar::U16);
        let Some((low, high)) = to.range().filter(|_| narrow) else {
            return word;
        };
        let (low, high) = (self.b.ints(low as u32), self.b.ints(high as u32));
        let word = self.b.v2(I::I32x4MaxS, word, low);
        self.b.v2(I::I32x4MinS, word, high)
    }
    /// Adds the products of unsigned bytes up to `most` with signed ones, four to each lane.
    fn dot4(&mut self, most: i64, s: &[Local]) -> Local {
        if self.features.relaxed && most <= i64::from(i8::MAX) {
            let op = I::I32x4RelaxedDotI8x16I7x16AddS;
            return self.b.ternary(LocalKind::V128, op, [s[1], s[0], s[2]]);
        }
        let a = self.unsigned_halves(s[0]);
        let b = self.signed_halves(s[1]);
        self.dot_halves(a, b, s[2])
    }
    /// Adds the products of signed bytes, four to each lane.
    fn signed_dot4(&mut self, s: &[Local]) -> Local {
        let (a, b) = (self.signed_halves(s[0]), self.signed_halves(s[1]));
        self.dot_halves(a, b, s[2])
    }
    /// The even and the odd bytes as unsigned 16-bit lanes.
    fn unsigned_halves(&mut self, x: Local) -> [Local; 2] {
        let low = self.b.ints(0x00ff_00ff);
        [
            self.b.v2(I::V128And, x, low),
            self.b.shift(I::I16x8ShrU, x, 8),
        ]
    }
    /// The even and the odd bytes as signed 16-bit lanes.
    fn signed_halves(&mut self, x: Local) -> [Local; 2] {
        let high = self.b.shift(I::I16x8Shl, x, 8);
        [
            self.b.shift(I::I16x8ShrS, high, 8),
            self.b.shift(I::I16x8ShrS, x, 8),
        ]
    }
    fn dot_halves(&mut self, a: [Local; 2], b: [Local; 2], mut sum: Local) -> Local {
        for (a, b) in a.into_iter().zip(b) {
            let product = self.b.v2(I::I32x4DotI16x8S, a, b);
            sum = self.b.v2(I::I32x4Add, sum, product);
        }
        sum
    }
    /// Adds two byte products to each 16-bit half of a word.
    fn dot2(&mut self, most: i64, s: &[Local]) -> Local {
        if self.features.relaxed && most <= i64::from(i8::MAX) {
            let products = self.b.v2(I::I16x8RelaxedDotI8x16I7x16S, s[1], s[0]);
            return self.b.v2(I::I16x8Add, s[2], products);
        }
        let (a, b) = (self.unsigned_halves(s[0]), self.signed_halves(s[1]));
        let mut sum = s[2];
        for (a, b) in a.into_iter().zip(b) {
            let product = self.b.v2(I::I16x8Mul, a, b);
            sum = self.b.v2(I::I16x8Add, sum, product);
        }
        sum
    }
    /// Byte `byte` of each of at most 16 words as a table of bytes.
    fn plane(&mut self, words: &[u32], byte: u32) -> Local {
        let bits = |(i, &word): (usize, &u32)| u128::from(word >> (8 * byte) & 255) << (8 * i);
        let table = words.iter().enumerate().map(bits).sum::<u128>();
        self.b.nullary(LocalKind::V128, I::V128Const(table as i128))
    }
    /// Looks each lane up in a table of at most 16 words, byte by byte of the words.
    pub fn look_up(&mut self, words: &[u32], index: Local) -> Local {
        // The upper bytes of a lane must find no entry: an index above 15 gives 0.
        let others = self.b.ints(0xffff_ff00);
        let fifteen = self.b.ints(15);
        let index = self.b.v2(I::V128And, index, fifteen);
        let index = self.b.v2(I::V128Or, index, others);
        let mut sum: Option<Local> = None;
        for byte in 0..4 {
            if words.iter().all(|word| word >> (8 * byte) & 255 == 0) {
                continue;
            }
            let table = self.plane(words, byte);
            let found = self.b.v2(I::I8x16Swizzle, table, index);
            let found = self.b.shift(I::I32x4Shl, found, 8 * byte as i32);
            sum = Some(match sum {
                Some(sum) => self.b.v2(I::V128Or, sum, found),
                None => found,
            });
        }
        sum.unwrap_or_else(|| self.b.ints(0))
    }
}
