//! Rounds floats to 16-bit floats and to integers.

use super::functions::Functions;
use super::word_types::in_a_word;
use super::word_types::made;
use gristmill_uop::Scalar::{self, F32, U32};
use gristmill_uop::{Graph, Id, Op};

/// Returns the bits of a float, and the same without the sign.
fn magnitude(f: &mut Functions, x: Id) -> [Id; 2] {
    let (bits, rest) = (f.bits(U32, x), f.g.int_of(U32, 0x7fff_ffff));
    [bits, f.two(Op::And, bits, rest)]
}

/// Returns the bits of the nearest bf16, ties to even; NaN stays NaN.
pub fn to_bf16(g: &mut Graph, x: Id) -> Id {
    let mut f = Functions { g };
    let [bits, magnitude] = magnitude(&mut f, x);
    let [upper, odd] = [16, 1].map(|v| f.g.int_of(U32, v));
    let high = f.two(Op::Shr, bits, upper);
    let odd = f.two(Op::And, high, odd);
    let [half, quiet, infinite] = [0x7fff, 64, 0x7f80_0000].map(|v| f.g.int_of(U32, v));
    let rounded = f.two(Op::Add, bits, half);
    let rounded = f.two(Op::Add, rounded, odd);
    let rounded = f.two(Op::Shr, rounded, upper);
    let none = f.two(Op::Or, high, quiet);
    let is_none = f.compared(Op::Lt, infinite, magnitude);
    f.chosen(is_none, none, rounded)
}

/// Returns the bits of the nearest f16, ties to even; NaN stays NaN.
pub fn to_f16(g: &mut Graph, x: Id) -> Id {
    let mut f = Functions { g };
    let [bits, a] = magnitude(&mut f, x);
    let [sixteen, thirteen, one, sign] = [16, 13, 1, 0x8000].map(|v| f.g.int_of(U32, v));
    let high = f.two(Op::Shr, bits, sixteen);
    let sign = f.two(Op::And, high, sign);
    // Normal numbers: rebias the exponent by -112 and round off 13 bits of the fraction.
    let odd = f.two(Op::Shr, a, thirteen);
    let odd = f.two(Op::And, odd, one);
    let [less, normal_from, infinite_from, infinite] =
        [0xc800_0fff, 0x3880_0000, 0x477f_f000, 0x7f80_0000].map(|v| f.g.int_of(U32, v));
    let normal = f.two(Op::Add, a, less);
    let normal = f.two(Op::Add, normal, odd);
    let normal = f.two(Op::Shr, normal, thirteen);
    // Subnormal numbers: in x + 0.5 the last fraction bit is the smallest f16, so the addition
    // rounds.
    let (size, half_bits) = (f.bits(F32, a), f.g.int_of(U32, -0x3f00_0000));
    let small = f.with(Op::Add, size, 0.5);
    let small = f.bits(U32, small);
    let small = f.two(Op::Add, small, half_bits);
    let is_small = f.compared(Op::Lt, a, normal_from);
    let finite = f.chosen(is_small, small, normal);
    let [infinity, none] = [0x7c00, 0x7e00].map(|v| f.g.int_of(U32, v));
    let is_none = f.compared(Op::Lt, infinite, a);
    let large = f.chosen(is_none, none, infinity);
    let is_finite = f.compared(Op::Lt, a, infinite_from);
    let magnitude = f.chosen(is_finite, finite, large);
    f.two(Op::Or, sign, magnitude)
}

/// Converts a float to an integer, clamped to the type's range; NaN becomes 0. Machines leave the
/// conversion of values out of range undefined.
pub fn to_whole(g: &mut Graph, x: Id, to: Scalar) -> Id {
    let word = in_a_word(to);
    let (least, most) = to
        .range()
        .unwrap_or_else(|| unreachable!("a whole number: {to:?}"));
    // If a bound is not a float, the largest float below it is used.
    let (bound, exact) = (most as f32, most as f32 as i128 == i128::from(most));
    let mut f = Functions { g };
    let inside = f.clamped(
        x,
        least as f32,
        if exact { bound } else { bound.next_down() },
    );
    let inside = made(f.g, Op::Cast, word, &[inside]);
    let [none, most] = [0, most].map(|v| f.g.int_of(word, v));
    let is_number = f.compared(Op::Eq, x, x);
    if exact {
        return f.chosen(is_number, inside, none);
    }
    let outside = f.chosen(is_number, most, none);
    let bound = f.float(bound);
    let is_inside = f.compared(Op::Lt, x, bound);
    f.chosen(is_inside, inside, outside)
}
