//! Semantics of elementwise ops on numbers: one definition for constant folding, both reference
//! interpreters and the rule tests.

use crate::dtype::Scalar;
use crate::op::Op;
use half::{bf16, f16};

/// A number: integers and booleans exact, floats in f64 (rounded to a dtype where one is given).
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value {
    /// An integer or boolean.
    Int(i64),
    /// A float, in f64.
    Float(f64),
}

/// Rounds `v` to odd as f32, so that a further rounding to a half gives the same result
/// as rounding `v` directly.
///
/// If bits are lost, the last bit is set to odd, so a value near the midpoint of two f16 values is
/// never mistaken for the midpoint. `half::f16::from_f64` and `half::bf16::from_f64` make that
/// mistake: they ignore the low 32 bits.
pub fn rounded_to_odd(v: f64) -> f32 {
    let near = v as f32;
    let lost = f64::from(near) != v && near.is_finite();
    if !lost || near.to_bits() % 2 == 1 {
        return near;
    }
    let bits = near.to_bits();
    f32::from_bits(if f64::from(near).abs() > v.abs() {
        bits - 1
    } else {
        bits + 1
    })
}

impl Value {
    /// Converts to a float.
    pub fn float(self) -> f64 {
        match self {
            Value::Int(v) => v as f64,
            Value::Float(v) => v,
        }
    }
    /// Converts to an integer; a float is truncated.
    pub fn int(self) -> i64 {
        match self {
            Value::Int(v) => v,
            Value::Float(v) => v as i64,
        }
    }
    /// Returns the value after storing it as type `s`: integers wrap, floats round to nearest even.
    #[inline]
    pub fn stored_as(self, s: Scalar) -> Value {
        match s {
            Scalar::F64 => Value::Float(self.float()),
            // An integer is rounded once, not first to f64.
            Scalar::F32 => Value::Float(match self {
                Value::Int(v) => v as f32 as f64,
                Value::Float(v) => v as f32 as f64,
            }),
            Scalar::F16 => Value::Float(f16::from_f32(rounded_to_odd(self.float())).to_f64()),
            Scalar::BF16 => Value::Float(bf16::from_f32(rounded_to_odd(self.float())).to_f64()),
            Scalar::Bool => Value::Int((self != Value::Int(0) && self != Value::Float(0.0)) as i64),
            Scalar::I8 => Value::Int(self.int() as i8 as i64),
            Scalar::U8 => Value::Int(self.int() as u8 as i64),
            Scalar::I16 => Value::Int(self.int() as i16 as i64),
            Scalar::U16 => Value::Int(self.int() as u16 as i64),
            Scalar::I32 => Value::Int(self.int() as i32 as i64),
            Scalar::U32 => Value::Int(self.int() as u32 as i64),
            Scalar::I64 => Value::Int(self.int()),
        }
    }
    /// Reinterprets the bits of this value, stored as `from`, as `to` (of the same size).
    pub fn bitcast(self, from: Scalar, to: Scalar) -> Value {
        let bits = match from {
            Scalar::F64 => self.float().to_bits(),
            Scalar::F32 => (self.float() as f32).to_bits() as u64,
            Scalar::F16 => f16::from_f32(rounded_to_odd(self.float())).to_bits() as u64,
            Scalar::BF16 => bf16::from_f32(rounded_to_odd(self.float())).to_bits() as u64,
            _ => self.int() as u64,
        };
        match to {
            Scalar::F64 => Value::Float(f64::from_bits(bits)),
            Scalar::F32 => Value::Float(f32::from_bits(bits as u32) as f64),
            Scalar::F16 => Value::Float(f16::from_bits(bits as u16).to_f64()),
            Scalar::BF16 => Value::Float(bf16::from_bits(bits as u16).to_f64()),
            _ => Value::Int(bits as i64).stored_as(to),
        }
    }
}

/// Applies `op` to `x` and stores the result as `out`.
///
/// Returns `None` for ops that are not elementwise arithmetic, for a division by zero, and for
/// `Bitcast` and `Table`, which need more than values.
#[inline]
pub fn apply(op: Op, x: &[Value], out: Scalar) -> Option<Value> {
    use Value::{Float, Int};
    let float = matches!(x.first(), Some(Float(_)));
    let f = |i: usize| x[i].float();
    let n = |i: usize| x[i].int();
    let either = |fl: fn(f64, f64) -> f64, int: fn(i64, i64) -> i64| {
        if float {
            Float(fl(f(0), f(1)))
        } else {
            Int(int(n(0), n(1)))
        }
    };
    let v = match op {
        Op::Cast => match x[0] {
            // A float out of range saturates, as in Rust and (with one more instruction) on every
            // target.
            Float(v) if !out.is_float() && out != Scalar::Bool => {
                let (lo, hi) = out.range()?;
                Int((v as i64).clamp(lo, hi))
            }
            v => v,
        },
        Op::Neg => Float(-f(0)),
        Op::Exp => Float(f(0).exp()),
        Op::Exp2 => Float(f(0).exp2()),
        Op::Log => Float(f(0).ln()),
        Op::Sqrt => Float(f(0).sqrt()),
        Op::Recip => Float(1.0 / f(0)),
        Op::Round => Float(f(0).round_ties_even()),
        Op::Add => either(|a, b| a + b, i64::wrapping_add),
        Op::Sub => either(|a, b| a - b, i64::wrapping_sub),
        Op::Mul => either(|a, b| a * b, i64::wrapping_mul),
        Op::Div => Float(f(0) / f(1)),
        Op::IDiv if n(1) > 0 => Int(n(0).div_euclid(n(1))),
        Op::Mod if n(1) > 0 => Int(n(0).rem_euclid(n(1))),
        Op::Max => either(f64::max, i64::max),
        Op::Min => either(f64::min, i64::min),
        Op::And => Int(n(0) & n(1)),
        Op::Or => Int(n(0) | n(1)),
        Op::Xor => Int(n(0) ^ n(1)),
        Op::Shl => Int(n(0).checked_shl(n(1) as u32)?),
        Op::Shr => Int(n(0).checked_shr(n(1) as u32)?),
        Op::Lt => Int(if float { f(0) < f(1) } else { n(0) < n(1) } as i64),
        Op::Eq => Int(if float { f(0) == f(1) } else { n(0) == n(1) } as i64),
        Op::Where => {
            if n(0) != 0 {
                x[1]
            } else {
                x[2]
            }
        }
        Op::Fma => Float(f(0).mul_add(f(1), f(2))),
        Op::Dot4 => Int(dot4(n(0), n(1), n(2))),
        Op::SignedDot4 => Int(signed_dot4(n(0), n(1), n(2))),
        Op::Dot2 => Int(dot2(n(0), n(1), n(2))),
        Op::Half => Float(f16::from_bits(n(0) as u16).to_f64()),
        Op::Halves => Int(halves(n(0), n(1))),
        _ => return None,
    };
    Some(v.stored_as(out))
}

/// Returns byte `i` of a word, sign-extended.
fn byte(word: i64, i: u32) -> i64 {
    ((word >> (8 * i)) as i8) as i64
}

/// [`Op::Dot4`]: `c` plus the products of the bytes of `a` with the signed bytes of `b`.
pub fn dot4(a: i64, b: i64, c: i64) -> i64 {
    (0..4).fold(c, |sum, i| sum + (a >> (8 * i) & 255) * byte(b, i))
}

/// [`Op::SignedDot4`]: `c` plus the products of the signed bytes of `a` and `b`.
pub fn signed_dot4(a: i64, b: i64, c: i64) -> i64 {
    (0..4).fold(c, |sum, i| sum + byte(a, i) * byte(b, i))
}

/// [`Op::Dot2`]: [`dot4`] of the lower and of the upper two bytes, added to the halves of `c`.
pub fn dot2(a: i64, b: i64, c: i64) -> i64 {
    let half = |low: i64, shift: u32| dot4(a & (0xffff << shift), b, low) & 0xffff;
    half(c, 0) | half(c >> 16, 16) << 16
}

/// [`Op::Halves`]: `c` plus the signed halves of `word`.
pub fn halves(word: i64, c: i64) -> i64 {
    c + word as i16 as i64 + (word >> 16) as i16 as i64
}
