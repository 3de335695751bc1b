//! Contractions of a packed weight with many tokens on a CPU tile unit (AMX, bf16). Both operands
//! are rounded to bf16, and products accumulate in f32.
//!
//! A tile has no scales, so no work remains per group of 32 terms: the weight is dequantised with
//! its scales once for all tokens of a workgroup.
//!
//! Materialised: bf16 activations and gathered rows, because a tile is loaded from equidistant
//! rows, and the sum, because its readers are vectorised.
//!
//! Contractions of a weight stored as bf16 take the same form.

use super::operands::{Operands, Suits, gathered, moved, repeats};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, ReduceOp, Scalar};

/// Minimum tokens with a fixed token count, such as tiles of one expert: two tiles of 16. Not
/// measured against 16.
const MIN_FIXED: i64 = 32;

/// A contraction on bf16 tiles, and the nodes it materialises.
pub struct Bf16Product {
    /// Reduction node of the contraction.
    pub sum: Id,
    /// Rounded activations, and the gathers that move them to other rows.
    pub buffers: Vec<Id>,
}

/// Returns whether the packed weight below `w` is stored as bf16.
pub fn is_stored(g: &mut Graph, w: Id) -> bool {
    let below = |&x: &Id| {
        (g[x].op.is_movement() || matches!(g[x].op, Op::Gather | Op::Decode)).then(|| g[x].src[0])
    };
    let buffer = std::iter::successors(Some(w), below).last().unwrap_or(w);
    let Arg::Packed(_, encoding) = g[buffer].arg else {
        return false;
    };
    let zero = g.int(0);
    let value = encoding.decode(g, buffer, zero, zero);
    let narrow = |x: Id| g[x].op == Op::Cast && g.scalar(g[x].src[0]) == Scalar::BF16;
    narrow(value) && g[g[value].src[0]].op == Op::Load
}

/// Returns how bf16 tiles suit a contraction with a weight that is dequantised in
/// units of `unit` elements.
pub fn suits(g: &Graph, of: Operands, unit: i64, target: &Target) -> Suits {
    let Some(tile) = target
        .machine
        .tile_fragment()
        .filter(|tile| tile.operand == Scalar::BF16)
    else {
        return Suits::Not;
    };
    let &[.., tokens, rows, _] = g.dims(of.x) else {
        return Suits::Not;
    };
    let (rank, most) = (g.dims(of.x).len(), g.max_of(tokens));
    let whole = most % tile.rows == 0 && g.int_value(rows).is_some_and(|n| n % tile.columns == 0);
    let apart = repeats(g, of.weight, rank - 3) && repeats(g, of.x, rank - 2);
    if !whole || !apart || unit != tile.terms || g.scalar(of.base) != Scalar::F32 {
        return Suits::Not;
    }
    Suits::by(
        most >= if g.int_value(tokens).is_some() {
            MIN_FIXED
        } else {
            target.machine.cpu_facts().tile_tokens
        },
    )
}

/// Rewrites a contraction as a product of bf16 operands; [`suits`] must allow it.
pub fn product(g: &mut Graph, Operands { weight, x, base }: Operands) -> Bf16Product {
    let last = g.dims(x).len() - 1;
    let rounded = g[base].op == Op::Cast && g.scalar(g[base].src[0]) == Scalar::BF16;
    let narrow = if rounded {
        g[base].src[0]
    } else {
        g.cast(base, Scalar::BF16)
    };
    let x = moved(g, x, base, narrow);
    let buffers = std::iter::once(narrow)
        .filter(|&n| g[n].op != Op::Param)
        .chain(gathered(g, x))
        .collect();
    let weight = g.cast(weight, Scalar::BF16);
    let [weight, x] = [weight, x].map(|side| g.cast(side, Scalar::F32));
    let product = g.mul(weight, x);
    Bf16Product {
        sum: g.reduce(product, &[last], ReduceOp::Add),
        buffers,
    }
}
