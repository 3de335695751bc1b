//! Contractions of a packed weight with many tokens, where the machine multiplies tiles of bf16: both sides are rounded to bf16, and products are added in
//! f32. A tile has no scales, so nothing is left to do for every 32 terms; the weight is unpacked with its scales once for all tokens of a workgroup.
//!
//! Activations in bf16 have a buffer of their own, since a tile is loaded from rows that are as far from one another as the first two; so have rows
//! that were gathered. So has the sum, whose readers want vectors.
//!
//! So are contractions of a weight stored as bf16.

use super::operands::{Operands, Suits, gathered, moved, repeats};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, ReduceOp, Scalar};

/// Fewest tokens, of a step whose number varies, for which a weight is unpacked to bf16: unpacking 16 rows of 32 takes 27 ns, their products with 16
/// tokens 8, and integer products 45 (Xeon, Q4_0). So unpacking pays
/// from about 16 tokens on where all are there; a step whose number varies has fewer than it is compiled for, and 128 was not measured against other numbers.
const LEAST: i64 = 128;
/// Fewest where the number is fixed, as in tiles of one expert: two tiles of 16. Not measured against 16.
const LEAST_FIXED: i64 = 32;

/// The contraction as one of tiles, and the nodes that have buffers for it.
pub struct Bf16Product {
    /// The sum.
    pub sum: Id,
    /// Activations, and what moves them to other rows.
    pub buffers: Vec<Id>,
}

/// Is the packed weight that `w` moves stored as bf16?
pub fn is_stored(g: &mut Graph, w: Id) -> bool {
    let below = |&x: &Id| (g[x].op.is_movement() || matches!(g[x].op, Op::Gather | Op::Decode)).then(|| g[x].src[0]);
    let buffer = std::iter::successors(Some(w), below).last().unwrap_or(w);
    let Arg::Packed(_, encoding) = g[buffer].arg else { return false };
    let zero = g.int(0);
    let value = encoding.decode(g, buffer, zero, zero);
    let narrow = |x: Id| g[x].op == Op::Cast && g.scalar(g[x].src[0]) == Scalar::BF16;
    narrow(value) && g[g[value].src[0]].op == Op::Load
}

/// How tiles suit a contraction of a weight of which so many elements of a row are unpacked together.
pub fn suits(g: &Graph, of: Operands, unit: i64, target: &Target) -> Suits {
    let Some(tile) = target.machine.tile_fragment().filter(|tile| tile.operand == Scalar::BF16) else {
        return Suits::Not;
    };
    let &[.., tokens, rows, _] = g.dims(of.x) else { return Suits::Not };
    let (rank, most) = (g.dims(of.x).len(), g.max_of(tokens));
    let whole = most % tile.rows == 0 && g.int_value(rows).is_some_and(|n| n % tile.columns == 0);
    let apart = repeats(g, of.weight, rank - 3) && repeats(g, of.x, rank - 2);
    if !whole || !apart || unit != tile.terms || g.scalar(of.base) != Scalar::F32 {
        return Suits::Not;
    }
    Suits::by(most >= if g.int_value(tokens).is_some() { LEAST_FIXED } else { LEAST })
}

/// The contraction, if tiles suit it, as a product of these.
pub fn product(g: &mut Graph, Operands { weight, x, base }: Operands) -> Bf16Product {
    let last = g.dims(x).len() - 1;
    let rounded = g[base].op == Op::Cast && g.scalar(g[base].src[0]) == Scalar::BF16;
    let narrow = if rounded { g[base].src[0] } else { g.cast(base, Scalar::BF16) };
    let x = moved(g, x, base, narrow);
    let buffers = std::iter::once(narrow).filter(|&n| g[n].op != Op::Param).chain(gathered(g, x)).collect();
    let weight = g.cast(weight, Scalar::BF16);
    let [weight, x] = [weight, x].map(|side| g.cast(side, Scalar::F32));
    let product = g.mul(weight, x);
    Bf16Product { sum: g.reduce(product, &[last], ReduceOp::Add), buffers }
}
