//! C types of values, conversions between them, and constants.

use crate::names::unprintable;
use gristmill_uop::{DType, Graph, Id, Scalar};
use half::{bf16, f16};

/// Vector conversions that are functions of the prelude.
///
/// The prelude also has those between f16 or bf16 and f32, and from f32 to
/// integers. Others use `__builtin_convertvector`.
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

/// Returns the C type of a value.
pub fn type_of(d: DType) -> String {
    let scalar = match d.scalar {
        // A bool is a mask (0 or -1) in vectors, and 0 or 1 as a scalar.
        Scalar::Bool => "i32",
        Scalar::F16 | Scalar::BF16 => "u16",
        s => s.name(),
    };
    if d.lanes == 1 {
        scalar.into()
    } else {
        format!("{scalar}x{}", d.lanes)
    }
}

/// Renders a sum; 16-bit floats are added in f32 and rounded.
pub fn sum(d: DType, a: &str, b: &str) -> String {
    let wide = DType {
        scalar: if d.scalar.is_half() {
            Scalar::F32
        } else {
            d.scalar
        },
        ..d
    };
    cast(
        wide,
        d,
        &format!("({} + {})", cast(d, wide, a), cast(d, wide, b)),
    )
}

/// Returns the C type of an element in memory.
pub fn stored(d: DType) -> String {
    match d.scalar {
        Scalar::Bool => type_of(DType {
            scalar: Scalar::U8,
            ..d
        }),
        _ => type_of(d),
    }
}

/// Renders a scalar as a lane of a vector of that type, where a bool is a mask.
pub fn lane(d: DType, x: &str) -> String {
    if d.scalar == Scalar::Bool && d.lanes > 1 {
        format!("-({x})")
    } else {
        x.into()
    }
}

/// Renders the conversion of a vector comparison's result to a mask of i32.
pub fn mask(of: DType) -> String {
    match of.scalar.bytes() {
        _ if of.scalar == Scalar::Bool => format!("(i32x{})", of.lanes),
        4 => format!("(i32x{})", of.lanes),
        bytes => format!("cvt_i{}_i32_{}", 8 * bytes, of.lanes),
    }
}

/// Renders `x` converted between types.
pub fn cast(from: DType, to: DType, x: &str) -> String {
    let l = to.lanes;
    match (from.scalar, to.scalar) {
        (a, b) if a == b => x.into(),
        (Scalar::Bool, s) if l > 1 => cast(
            Scalar::I32.one().with_lanes(l),
            s.one().with_lanes(l),
            &format!("({x} & 1)"),
        ),
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
        (a, b) if CONVERSIONS.contains(&(a.name(), b.name())) => {
            format!("cvt_{}_{}_{l}({x})", a.name(), b.name())
        }
        _ => format!("__builtin_convertvector({x}, {})", type_of(to)),
    }
}

/// Renders a constant as a literal.
pub fn literal(g: &Graph, id: Id) -> String {
    match (g.int_value(id), g.float_value(id)) {
        (_, Some(v)) if g.scalar(id) == Scalar::F16 => f16::from_f64(v).to_bits().to_string(),
        (_, Some(v)) if g.scalar(id) == Scalar::BF16 => bf16::from_f64(v).to_bits().to_string(),
        (Some(v), _) if v == i64::MIN => "(-9223372036854775807 - 1)".into(),
        (Some(v), _) if g.scalar(id) == Scalar::I32 && v == i32::MIN as i64 => {
            "(-2147483647 - 1)".into()
        }
        (Some(v), _) if v < 0 => format!("({v})"),
        (Some(v), _) => v.to_string(),
        (_, Some(v)) if v.is_infinite() => if v > 0.0 { "INFINITE" } else { "(-INFINITE)" }.into(),
        (_, Some(v)) if v.is_nan() => "NOT_A_NUMBER".into(),
        // Nine decimal digits are exact for f32, like hexadecimal, and readable.
        (_, Some(v)) => format!("({:.9e}f)", v as f32),
        (None, None) => unprintable(g, id),
    }
}
