//! Conversions between narrow numbers and words.

use super::functions;
use super::made::made;
use gristmill_uop::{Graph, Id, Op, Scalar};

/// A conversion in words.
pub fn cast(g: &mut Graph, x: Id, to: Scalar) -> Id {
    let from = g.scalar(x);
    cast_in_words(g, x, from, to)
}

/// The same of a value of that type.
pub fn cast_in_words(g: &mut Graph, x: Id, from: Scalar, to: Scalar) -> Id {
    use Scalar::{BF16, Bool, F32, I32, U16, U32};
    let by = |g: &mut Graph, through: Scalar| {
        let x = cast(g, x, through);
        cast(g, x, to)
    };
    match (from, to) {
        _ if from == to => x,
        (BF16, F32) => {
            let bits = made(g, Op::Bitcast, U16, &[x]);
            let bits = made(g, Op::Cast, U32, &[bits]);
            let by = g.int_of(U32, 16);
            let bits = made(g, Op::Shl, U32, &[bits, by]);
            made(g, Op::Bitcast, F32, &[bits])
        }
        (F32, BF16) => {
            let bits = functions::rounded_to_bf16(g, x);
            let bits = made(g, Op::Cast, U16, &[bits]);
            made(g, Op::Bitcast, BF16, &[bits])
        }
        _ if from.is_half() && to != F32 || to.is_half() && from != F32 => by(g, F32),
        // What is no number is none that is 0, and comparisons of floats do not say so.
        (F32, Bool) => {
            let (zero, rest) = (g.int_of(U32, 0), g.int_of(U32, 0x7fff_ffff));
            let bits = made(g, Op::Bitcast, U32, &[x]);
            let bits = made(g, Op::And, U32, &[bits, rest]);
            made(g, Op::Lt, Bool, &[zero, bits])
        }
        (F32, to) if to.is_int() && to.bytes() < 4 => {
            let (least, most) = to.range().expect("an integer has bounds");
            let [least, most] = [least, most].map(|v| g.int_of(I32, v));
            let whole = made(g, Op::Cast, I32, &[x]);
            let whole = made(g, Op::Max, I32, &[whole, least]);
            let whole = made(g, Op::Min, I32, &[whole, most]);
            made(g, Op::Cast, to, &[whole])
        }
        _ => made(g, Op::Cast, to, &[x]),
    }
}
