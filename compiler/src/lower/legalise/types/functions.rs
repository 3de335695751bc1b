//! Exponentials and logarithms by arithmetic, to a few units in the last place, with the
//! polynomials of the Cephes library.

use super::word_types::made;
use gristmill_uop::Scalar::{self, Bool, F32, I32};
use gristmill_uop::{Graph, Id, Op};

/// 1.5·2^23. Added to a float, it leaves the float's integer part in the low bits of
/// the 23-bit fraction.
const WHOLE: f32 = 12_582_912.0;
/// Bits of the float [`WHOLE`].
const WHOLE_BITS: i64 = 0x4b40_0000;

/// Returns an operation on floats, with exponentials and logarithms expanded to arithmetic.
pub fn function(g: &mut Graph, op: Op, src: &[Id]) -> Id {
    let mut f = Functions { g };
    match op {
        Op::Exp => f.exponential(src[0]),
        Op::Exp2 => f.power_of_two(src[0]),
        Op::Log => f.logarithm(src[0]),
        Op::Lt | Op::Eq => f.compared(op, src[0], src[1]),
        op => made(f.g, op, F32, src),
    }
}

/// Builds arithmetic on words.
pub struct Functions<'a> {
    pub g: &'a mut Graph,
}

impl Functions<'_> {
    pub fn float(&mut self, v: f32) -> Id {
        self.g.constant(F32, v.into())
    }
    fn whole(&mut self, v: i64) -> Id {
        self.g.int_of(I32, v)
    }
    pub fn bits(&mut self, to: Scalar, x: Id) -> Id {
        made(self.g, Op::Bitcast, to, &[x])
    }
    pub fn two(&mut self, op: Op, a: Id, b: Id) -> Id {
        let scalar = self.g.scalar(a);
        made(self.g, op, scalar, &[a, b])
    }
    pub fn compared(&mut self, op: Op, a: Id, b: Id) -> Id {
        made(self.g, op, Bool, &[a, b])
    }
    pub fn chosen(&mut self, when: Id, a: Id, b: Id) -> Id {
        let scalar = self.g.scalar(a);
        made(self.g, Op::Where, scalar, &[when, a, b])
    }
    pub fn with(&mut self, op: Op, a: Id, b: f32) -> Id {
        let b = self.float(b);
        self.two(op, a, b)
    }
    /// Rounds a float to an integer of fewer than 22 bits; returns it as a float and as an i32.
    fn rounded(&mut self, x: Id) -> [Id; 2] {
        let n = made(self.g, Op::Round, F32, &[x]);
        let behind = self.with(Op::Add, n, WHOLE);
        let (behind, first) = (self.bits(I32, behind), self.whole(-WHOLE_BITS));
        [n, self.two(Op::Add, behind, first)]
    }
    /// Evaluates a polynomial by Horner's scheme, highest coefficient first.
    fn polynomial(&mut self, x: Id, coefficients: &[f32]) -> Id {
        let first = self.float(coefficients[0]);
        coefficients[1..].iter().fold(first, |p, &c| {
            let c = self.float(c);
            made(self.g, Op::Fma, F32, &[p, x, c])
        })
    }
    /// Returns 2^k as a float, for an integer `k` within the normal exponent range.
    fn power(&mut self, k: Id) -> Id {
        let [zero, bits] = [127, 23].map(|v| self.whole(v));
        let k = self.two(Op::Add, k, zero);
        let k = self.two(Op::Shl, k, bits);
        self.bits(F32, k)
    }
    /// Returns e^r · 2^k for |r| ≤ ln 2 / 2; returns `y`, the argument, if it is NaN.
    fn scaled(&mut self, y: Id, r: Id, k: Id) -> Id {
        const COEFFICIENTS: [f32; 6] = [
            1.987_569_1e-4,
            1.398_199_9e-3,
            8.333_452e-3,
            4.166_579_6e-2,
            1.666_666_5e-1,
            0.5,
        ];
        let p = self.polynomial(r, &COEFFICIENTS);
        let (square, next) = (self.two(Op::Mul, r, r), self.with(Op::Add, r, 1.0));
        let p = made(self.g, Op::Fma, F32, &[p, square, next]);
        // The power is applied in two factors, because 2^k may be subnormal or may overflow by
        // itself.
        let one = self.whole(1);
        let (half, next) = (self.two(Op::Shr, k, one), self.two(Op::Add, k, one));
        let rest = self.two(Op::Shr, next, one);
        let [half, rest] = [half, rest].map(|k| self.power(k));
        let p = self.two(Op::Mul, p, half);
        let p = self.two(Op::Mul, p, rest);
        let is_number = self.compared(Op::Eq, y, y);
        self.chosen(is_number, p, y)
    }
    pub fn clamped(&mut self, y: Id, least: f32, most: f32) -> Id {
        let x = self.with(Op::Max, y, least);
        self.with(Op::Min, x, most)
    }
    /// Subtracts the larger part of `n·ln 2`, n·355/512, as an integer product: a compiler could
    /// contract two float products of `n`, which would lose the last bits.
    fn exponential(&mut self, y: Id) -> Id {
        let x = self.clamped(y, -104.0, 89.0);
        let powers = self.with(Op::Mul, x, std::f32::consts::LOG2_E);
        let [n, k] = self.rounded(powers);
        let by = self.whole(355);
        let large = self.two(Op::Mul, k, by);
        let large = made(self.g, Op::Cast, F32, &[large]);
        let large = self.with(Op::Mul, large, 1.0 / 512.0);
        let (x, small) = (self.two(Op::Sub, x, large), self.float(2.121_944_4e-4));
        let r = made(self.g, Op::Fma, F32, &[n, small, x]);
        self.scaled(y, r, k)
    }
    fn power_of_two(&mut self, y: Id) -> Id {
        let x = self.clamped(y, -150.0, 129.0);
        let [n, k] = self.rounded(x);
        let r = self.two(Op::Sub, x, n);
        let r = self.with(Op::Mul, r, std::f32::consts::LN_2);
        self.scaled(y, r, k)
    }
    fn logarithm(&mut self, x: Id) -> Id {
        // Subnormal numbers are first multiplied by 2^23.
        let (least, zero) = (self.float(f32::MIN_POSITIVE), self.float(0.0));
        let low = self.compared(Op::Lt, x, least);
        let normal = self.with(Op::Mul, x, 8_388_608.0);
        let normal = self.chosen(low, normal, x);
        let bits = self.bits(I32, normal);
        let [root, fraction, none, many, less] =
            [-0x3f35_04f3, 23, 0, -23, -1].map(|v| self.whole(v));
        let exponent = self.two(Op::Add, bits, root);
        let exponent = self.two(Op::Shr, exponent, fraction);
        let power = self.two(Op::Mul, exponent, less);
        let power = self.two(Op::Shl, power, fraction);
        let m = self.two(Op::Add, bits, power);
        let m = self.bits(F32, m);
        let (below, above) = (self.with(Op::Add, m, -1.0), self.with(Op::Add, m, 1.0));
        let f = self.two(Op::Div, below, above);
        let z = self.two(Op::Mul, f, f);
        let p = self.polynomial(z, &[0.222_222_22, 0.285_714_3, 0.4, 0.666_666_7, 2.0]);
        let more = self.chosen(low, many, none);
        let n = self.two(Op::Add, exponent, more);
        let (n, ln_2, p) = (
            made(self.g, Op::Cast, F32, &[n]),
            self.float(std::f32::consts::LN_2),
            self.two(Op::Mul, f, p),
        );
        let inside = made(self.g, Op::Fma, F32, &[n, ln_2, p]);
        let [infinite, least, not_a_number] =
            [f32::INFINITY, f32::NEG_INFINITY, f32::NAN].map(|v| self.float(v));
        let [positive, is_zero, finite] =
            [(Op::Lt, zero, x), (Op::Eq, x, zero), (Op::Lt, x, infinite)]
                .map(|(op, a, b)| self.compared(op, a, b));
        let outside = self.chosen(positive, infinite, not_a_number);
        let outside = self.chosen(is_zero, least, outside);
        let inside_it = self.two(Op::And, positive, finite);
        self.chosen(inside_it, inside, outside)
    }
}
