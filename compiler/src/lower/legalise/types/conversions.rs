//! Conversions between scalar types that are held in 32-bit words.

use super::rounding;
use super::word_types::made;
use super::word_types::{in_a_word, type_of};
use gristmill_uop::Scalar::{self, BF16, Bool, F16, F32, I32, I64, U32};
use gristmill_uop::fold::Value;
use gristmill_uop::{Graph, Id, Op};

/// Returns a constant in its legalised type; a half becomes its bits.
pub fn constant(g: &mut Graph, id: Id) -> Id {
    let word = type_of(g, id);
    match (g.scalar(id), g.int_value(id), g.float_value(id)) {
        (own, _, Some(v)) if own.is_half() => {
            g.int_of(U32, Value::Float(v).bitcast(own, Scalar::U16).int())
        }
        (own, Some(v), _) if own != word => g.int_of(word, v),
        _ => id,
    }
}

/// Converts between word types: keeps an integer that fits in both, and truncates it otherwise.
pub fn retyped(g: &mut Graph, x: Id, to: Scalar) -> Id {
    match (g.scalar(x), g.int_value(x)) {
        (own, _) if own == to => x,
        (_, Some(v)) if to.is_int() => g.int_of(to, v),
        (Bool, _) if to == I64 => {
            let x = made(g, Op::Cast, I32, &[x]);
            made(g, Op::Cast, I64, &[x])
        }
        _ => made(g, Op::Cast, to, &[x]),
    }
}

/// Converts a number of unknown range.
pub fn cast(g: &mut Graph, x: Id, from: Scalar, to: Scalar) -> Id {
    cast_to(g, x, (from, to), in_a_word(to), false)
}

/// Converts a number to the word type `word`; `fits` says that the number is known to fit
/// in the target type.
pub fn cast_to(g: &mut Graph, x: Id, (from, to): (Scalar, Scalar), word: Scalar, fits: bool) -> Id {
    match (from, to) {
        _ if from == to => x,
        (F16, F32) => made(g, Op::Half, F32, &[x]),
        (BF16, F32) => {
            let by = g.int_of(U32, 16);
            let bits = made(g, Op::Shl, U32, &[x, by]);
            made(g, Op::Bitcast, F32, &[bits])
        }
        (F32, F16) => rounding::to_f16(g, x),
        (F32, BF16) => rounding::to_bf16(g, x),
        _ if from.is_half() || to.is_half() => {
            let x = cast(g, x, from, F32);
            cast(g, x, F32, to)
        }
        // NaN is true as a bool, which a comparison of floats does not guarantee; so the bits are
        // compared.
        (F32, Bool) => {
            let (zero, rest) = (g.int_of(U32, 0), g.int_of(U32, 0x7fff_ffff));
            let bits = made(g, Op::Bitcast, U32, &[x]);
            let bits = made(g, Op::And, U32, &[bits, rest]);
            made(g, Op::Lt, Bool, &[zero, bits])
        }
        (F32, to) => rounding::to_whole(g, x, to),
        (_, Bool | F32) => made(g, Op::Cast, to, &[x]),
        _ if fits || contains(to, from) => retyped(g, x, word),
        _ => {
            let x = retyped(g, x, word);
            wrapped(g, x, to)
        }
    }
}

fn contains(of: Scalar, other: Scalar) -> bool {
    of.range()
        .zip(other.range())
        .is_some_and(|(of, other)| of.0 <= other.0 && other.1 <= of.1)
}

/// Wraps an integer to the width of a narrower type.
pub fn wrapped(g: &mut Graph, x: Id, to: Scalar) -> Id {
    let bits = 8 * to.bytes() as i64;
    match in_a_word(to) {
        word if word == to => x,
        U32 => {
            let mask = g.int_of(U32, (1 << bits) - 1);
            made(g, Op::And, U32, &[x, mask])
        }
        // Shift up to the highest bits, then down with sign extension.
        word => {
            let by = g.int_of(U32, 32 - bits);
            let x = made(g, Op::Shl, word, &[x, by]);
            made(g, Op::Shr, word, &[x, by])
        }
    }
}

/// Reinterprets the bits of a number as another type.
pub fn bits(g: &mut Graph, x: Id, (from, to): (Scalar, Scalar)) -> Id {
    // A half is held as its bits.
    let number = |of: Scalar| if of.is_half() { Scalar::U16 } else { of };
    match (number(from), number(to)) {
        (F32, to) | (to, F32) if to != F32 => {
            made(g, Op::Bitcast, if from == F32 { to } else { F32 }, &[x])
        }
        (from, to) => cast(g, x, from, to),
    }
}
