//! Types of C that values have, what becomes of a value of one as another, and constants.

use crate::names::unprintable;
use gristmill_uop::{DType, Graph, Id, Scalar};
use half::{bf16, f16};

/// Conversions between vectors that have a function in the prelude; others are written out. Between f16 or bf16 and f32, and from f32 to
/// integers, there are always functions.
pub const CONVERSIONS: &[(&str, &str)] = &[
    ("u8", "i32"),
    ("i8", "i32"),
    ("u16", "i32"),
    ("i16", "i32"),
    ("i32", "u8"),
    ("i32", "i8"),
    ("i32", "f32"),
    ("i32", "i16"),
    ("i64", "i32"),
    ("i32", "i64"),
    ("i64", "f32"),
    ("u8", "f32"),
    ("i8", "f32"),
];

/// C type of a value.
pub fn type_of(d: DType) -> String {
    let scalar = match d.scalar {
        // Truth is a mask in vectors, 0 or 1 alone.
        Scalar::Bool => "i32",
        Scalar::F16 | Scalar::BF16 => "u16",
        s => s.name(),
    };
    if d.lanes == 1 { scalar.into() } else { format!("{scalar}x{}", d.lanes) }
}

/// The text of a sum; of halves in f32, and rounded.
pub fn sum(d: DType, a: &str, b: &str) -> String {
    let wide = DType { scalar: if d.scalar.is_half() { Scalar::F32 } else { d.scalar }, ..d };
    cast(wide, d, &format!("({} + {})", cast(d, wide, a), cast(d, wide, b)))
}

/// C type of an element in memory.
pub fn stored(d: DType) -> String {
    match d.scalar {
        Scalar::Bool => type_of(DType { scalar: Scalar::U8, ..d }),
        _ => type_of(d),
    }
}

/// One lane of a vector of that type: truth is a mask there.
pub fn lane(d: DType, x: &str) -> String {
    if d.scalar == Scalar::Bool && d.lanes > 1 { format!("-({x})") } else { x.into() }
}

/// How a vector comparison of that type becomes a mask of i32.
pub fn mask(of: DType) -> String {
    match of.scalar.bytes() {
        _ if of.scalar == Scalar::Bool => format!("(i32x{})", of.lanes),
        4 => format!("(i32x{})", of.lanes),
        bytes => format!("cvt_i{}_i32_{}", 8 * bytes, of.lanes),
    }
}

/// `x` of one type as another.
pub fn cast(from: DType, to: DType, x: &str) -> String {
    let l = to.lanes;
    match (from.scalar, to.scalar) {
        (a, b) if a == b => x.into(),
        (Scalar::Bool, s) if l > 1 => {
            cast(Scalar::I32.one().with_lanes(l), s.one().with_lanes(l), &format!("({x} & 1)"))
        }
        (Scalar::F16 | Scalar::BF16, Scalar::F32) | (Scalar::F32, Scalar::F16 | Scalar::BF16) => {
            format!("cvt_{}_{}_{l}({x})", from.scalar.name(), to.scalar.name())
        }
        (Scalar::F16 | Scalar::BF16, _) => {
            let middle = format!("cvt_{}_f32_{l}({x})", from.scalar.name());
            cast(Scalar::F32.one().with_lanes(l), to, &middle)
        }
        (_, Scalar::F16 | Scalar::BF16) => {
            let middle = cast(from, Scalar::F32.one().with_lanes(l), x);
            format!("cvt_f32_{}_{l}({middle})", to.scalar.name())
        }
        (Scalar::F32, b) if b.is_int() => format!("cvt_f32_{}_{l}({x})", b.name()),
        (_, Scalar::Bool) if l == 1 => format!("{x} != 0"),
        (_, Scalar::Bool) => format!("{}({x} != 0)", mask(from)),
        _ if l == 1 => format!("({})({x})", type_of(to)),
        (a, b) if CONVERSIONS.contains(&(a.name(), b.name())) => format!("cvt_{}_{}_{l}({x})", a.name(), b.name()),
        _ => format!("__builtin_convertvector({x}, {})", type_of(to)),
    }
}

/// A constant's text.
pub fn literal(g: &Graph, id: Id) -> String {
    match (g.int_value(id), g.float_value(id)) {
        (_, Some(v)) if g.scalar(id) == Scalar::F16 => f16::from_f64(v).to_bits().to_string(),
        (_, Some(v)) if g.scalar(id) == Scalar::BF16 => bf16::from_f64(v).to_bits().to_string(),
        (Some(v), _) if v == i64::MIN => "(-9223372036854775807 - 1)".into(),
        (Some(v), _) if g.scalar(id) == Scalar::I32 && v == i32::MIN as i64 => "(-2147483647 - 1)".into(),
        (Some(v), _) if v < 0 => format!("({v})"),
        (Some(v), _) => v.to_string(),
        (_, Some(v)) if v.is_infinite() => if v > 0.0 { "INFINITE" } else { "(-INFINITE)" }.into(),
        (_, Some(v)) if v.is_nan() => "NOT_A_NUMBER".into(),
        // Hexadecimal would be exact too; nine digits are, and can be read.
        (_, Some(v)) => format!("({:.9e}f)", v as f32),
        (None, None) => unprintable(g, id),
    }
}
