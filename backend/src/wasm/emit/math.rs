//! Functions on vectors of four floats, with the constants of the C dialect's prelude.

use super::locals::{FunctionBody, Local, LocalKind};
use wasm_encoder::Instruction as I;

/// Vector arithmetic of a function, by the instructions that the engine has.
pub(super) struct Math<'a> {
    pub b: &'a mut FunctionBody,
    /// Whether relaxed SIMD may be used, which has multiply-adds rounded once.
    pub relaxed: bool,
}

impl Math<'_> {
    fn add(&mut self, a: Local, b: Local) -> Local {
        self.b.v2(I::F32x4Add, a, b)
    }
    fn sub(&mut self, a: Local, b: Local) -> Local {
        self.b.v2(I::F32x4Sub, a, b)
    }
    fn mul(&mut self, a: Local, b: Local) -> Local {
        self.b.v2(I::F32x4Mul, a, b)
    }
    /// Multiply-add, rounded once where the engine can.
    pub fn fma(&mut self, a: Local, b: Local, c: Local) -> Local {
        if self.relaxed {
            return self
                .b
                .ternary(LocalKind::V128, I::F32x4RelaxedMadd, [a, b, c]);
        }
        let product = self.mul(a, b);
        self.add(product, c)
    }
    /// Multiply-add with a constant as the last operand.
    fn fma_const(&mut self, a: Local, b: Local, c: f32) -> Local {
        let c = self.b.floats(c);
        self.fma(a, b, c)
    }
    /// Bounds a value from both sides.
    fn clamp(&mut self, x: Local, bottom: f32, top: f32) -> Local {
        let (top, bottom) = (self.b.floats(top), self.b.floats(bottom));
        // `pmin(x, top)` is `top < x ? top : x`: a NaN stays.
        let x = self.b.v2(I::F32x4PMin, x, top);
        self.b.v2(I::F32x4PMax, x, bottom)
    }
    /// Rounds to the nearest integer.
    fn nearest(&mut self, x: Local) -> Local {
        self.b.v1(I::F32x4Nearest, x)
    }
    /// e^x: x = n ln 2 + r.
    pub fn exp(&mut self, x: Local) -> Local {
        let x = self.clamp(x, -104.0, 88.8);
        let log2e = self.b.floats(std::f32::consts::LOG2_E);
        let scaled = self.mul(x, log2e);
        let n = self.nearest(scaled);
        let (high, low) = (self.b.floats(-0.693_359_4), self.b.floats(2.121_944_4e-4));
        let r = self.fma(n, high, x);
        let r = self.fma(n, low, r);
        self.scaled(r, n)
    }
    /// 2^x: x = n + r / ln 2.
    pub fn exp2(&mut self, x: Local) -> Local {
        let x = self.clamp(x, -150.0, 128.5);
        let n = self.nearest(x);
        let (rest, ln2) = (self.sub(x, n), self.b.floats(std::f32::consts::LN_2));
        let r = self.mul(rest, ln2);
        self.scaled(r, n)
    }
    /// e^r 2^n for |r| <= ln 2 / 2: a polynomial of degree 6, and exponent bits in two steps.
    fn scaled(&mut self, r: Local, n: Local) -> Local {
        let mut p = self.b.floats(1.398_199_9e-3);
        for c in [8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5, 1.0, 1.0] {
            p = self.fma_const(p, r, c);
        }
        let k = self.b.v1(I::I32x4TruncSatF32x4S, n);
        let half = self.b.shift(I::I32x4ShrS, k, 1);
        let rest = self.b.v2(I::I32x4Sub, k, half);
        let bias = self.b.ints(127);
        for part in [half, rest] {
            let exponent = self.b.v2(I::I32x4Add, part, bias);
            let factor = self.b.shift(I::I32x4Shl, exponent, 23);
            p = self.mul(p, factor);
        }
        p
    }
    /// Natural logarithm: x = m 2^e with m in [sqrt(1/2), sqrt(2)), atanh series in
    /// s = (m-1)/(m+1). Denormals are scaled first.
    pub fn log(&mut self, x: Local) -> Local {
        let (normal, two23) = (self.b.floats(f32::MIN_POSITIVE), self.b.floats(8_388_608.0));
        let low = self.b.v2(I::F32x4Lt, x, normal);
        let large = self.mul(x, two23);
        let bits = self.b.select(low, large, x);
        let root = self.b.ints(0x3f35_04f3);
        let above = self.b.v2(I::I32x4Sub, bits, root);
        let e = self.b.shift(I::I32x4ShrS, above, 23);
        let shifted = self.b.shift(I::I32x4Shl, e, 23);
        let m = self.b.v2(I::I32x4Sub, bits, shifted);
        let one = self.b.floats(1.0);
        let (less, more) = (self.sub(m, one), self.add(m, one));
        let f = self.b.v2(I::F32x4Div, less, more);
        let z = self.mul(f, f);
        let mut p = self.b.floats(0.222_222_22);
        for c in [0.285_714_3, 0.4, 0.666_666_7, 2.0] {
            p = self.fma_const(p, z, c);
        }
        let by = self.b.ints(23);
        let by = self.b.v2(I::V128And, low, by);
        let e = self.b.v2(I::I32x4Sub, e, by);
        let n = self.b.v1(I::F32x4ConvertI32x4S, e);
        let (product, ln2) = (self.mul(f, p), self.b.floats(std::f32::consts::LN_2));
        let r = self.fma(n, ln2, product);
        self.log_of_special(x, r)
    }
    /// Returns `r` where x is positive and finite, else the logarithm of 0, infinity and NaN.
    fn log_of_special(&mut self, x: Local, r: Local) -> Local {
        let (zero, infinite) = (self.b.floats(0.0), self.b.floats(f32::INFINITY));
        let (least, nan) = (self.b.floats(f32::NEG_INFINITY), self.b.floats(f32::NAN));
        let positive = self.b.v2(I::F32x4Gt, x, zero);
        let none = self.b.v2(I::F32x4Eq, x, zero);
        let other = self.b.select(positive, infinite, nan);
        let other = self.b.select(none, least, other);
        let below = self.b.v2(I::F32x4Lt, x, infinite);
        let usual = self.b.v2(I::V128And, positive, below);
        self.b.select(usual, r, other)
    }
    /// f16 bits in 32-bit lanes as f32. A number is scaled by 2^112, which is exact for
    /// denormals too; infinity and NaN get their exponent.
    pub fn widened_f16(&mut self, x: Local) -> Local {
        let (sign, rest) = (self.b.ints(0x8000), self.b.ints(0x7fff));
        let sign = self.b.v2(I::V128And, x, sign);
        let sign = self.b.shift(I::I32x4Shl, sign, 16);
        let rest = self.b.v2(I::V128And, x, rest);
        let mantissa = self.b.shift(I::I32x4Shl, rest, 13);
        let scale = self.b.ints((127 + 112) << 23);
        let number = self.mul(mantissa, scale);
        let largest = self.b.ints(0x7bff);
        let special = self.b.v2(I::I32x4GtS, rest, largest);
        let exponent = self.b.ints(0x7f80_0000);
        let exponent = self.b.v2(I::V128And, special, exponent);
        let number = self.b.v2(I::V128Or, number, exponent);
        self.b.v2(I::V128Or, number, sign)
    }
    /// f32 rounded to f16, to nearest even, as bits in 32-bit lanes.
    pub fn rounded_f16(&mut self, x: Local) -> Local {
        let (high, rest) = (self.b.ints(0x8000_0000), self.b.ints(0x7fff_ffff));
        let sign = self.b.v2(I::V128And, x, high);
        let sign = self.b.shift(I::I32x4ShrU, sign, 16);
        let x = self.b.v2(I::V128And, x, rest);
        // Normal numbers: the mantissa is rounded by an addition.
        let odd = self.b.shift(I::I32x4ShrU, x, 13);
        let one = self.b.ints(1);
        let odd = self.b.v2(I::V128And, odd, one);
        let bias = self.b.ints(0xfff_u32.wrapping_sub(0x3800_0000));
        let y = self.b.v2(I::I32x4Add, x, bias);
        let y = self.b.v2(I::I32x4Add, y, odd);
        let normal = self.b.shift(I::I32x4ShrS, y, 13);
        let infinite = self.b.ints(0x7c00);
        let normal = self.b.v2(I::I32x4MinS, normal, infinite);
        // Small ones: 0.5 has the last bit of an f16 denormal as its own last bit.
        let half = self.b.floats(0.5);
        let sum = self.add(x, half);
        let half_bits = self.b.ints(0x3f00_0000);
        let small = self.b.v2(I::I32x4Sub, sum, half_bits);
        let least = self.b.ints(0x3880_0000);
        let is_small = self.b.v2(I::I32x4LtS, x, least);
        let number = self.b.select(is_small, small, normal);
        let infinity = self.b.ints(0x7f80_0000);
        let is_nan = self.b.v2(I::I32x4GtS, x, infinity);
        let nan = self.b.ints(0x7e00);
        let number = self.b.select(is_nan, nan, number);
        self.b.v2(I::V128Or, number, sign)
    }
    /// bf16 bits in 32-bit lanes as f32.
    pub fn widened_bf16(&mut self, x: Local) -> Local {
        self.b.shift(I::I32x4Shl, x, 16)
    }
    /// f32 rounded to bf16, to nearest even, as bits in 32-bit lanes.
    pub fn rounded_bf16(&mut self, x: Local) -> Local {
        let top = self.b.shift(I::I32x4ShrU, x, 16);
        let (one, below) = (self.b.ints(1), self.b.ints(0x7fff));
        let odd = self.b.v2(I::V128And, top, one);
        let sum = self.b.v2(I::I32x4Add, x, below);
        let sum = self.b.v2(I::I32x4Add, sum, odd);
        let even = self.b.shift(I::I32x4ShrU, sum, 16);
        let quiet = self.b.ints(64);
        let nan = self.b.v2(I::V128Or, top, quiet);
        let is_number = self.b.v2(I::F32x4Eq, x, x);
        self.b.select(is_number, even, nan)
    }
}
