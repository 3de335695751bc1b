//! Contractions of a packed weight with many tokens, where the machine multiplies tiles of bf16: both sides are rounded to bf16, and products are added in
//! f32. A tile has no scales, so nothing is left to do for every 32 terms; the weight is unpacked with its scales once for all tokens of a workgroup.
//!
//! Activations in bf16 have a buffer of their own, since a tile is loaded from rows that are as far from one another as the first two; so have rows
//! that were gathered. So has the sum, whose readers want vectors.
//!
//! So are contractions of a weight stored as bf16.

use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, ReduceOp, Scalar};

/// Fewest tokens, of a step whose number varies, for which a weight is unpacked to bf16: unpacking 16 rows of 32 takes 27 ns, their products with 16
/// tokens 8, and integer products 45 (Xeon, Q4_0).
const LEAST: i64 = 128;
/// Fewest where the number is fixed, as in tiles of one expert.
const LEAST_FIXED: i64 = 32;

/// The contraction as one of tiles, and the nodes that have buffers for it.
pub struct Product {
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

/// Σ over the last axis of `w` times `x`, both moved to the product's shape, as a product of tiles; `base` is what `x` moves the rows of, and so many elements
/// of a row are unpacked together. `None` where it does not fit the machine's.
pub fn product(g: &mut Graph, [w, x, base]: [Id; 3], unit: i64, target: &Target) -> Option<Product> {
    let tile = target.machine.tile_fragment().filter(|tile| tile.operand == Scalar::BF16)?;
    let rank = g.dims(x).len();
    let (tokens, rows) = (*g.dims(x).get(rank.checked_sub(3)?)?, g.dims(x)[rank - 2]);
    let most = g.max_of(tokens);
    let enough = if g.int_value(tokens).is_some() { LEAST_FIXED } else { LEAST };
    let whole = most % tile.rows == 0 && g.int_value(rows).is_some_and(|n| n % tile.columns == 0);
    let apart = repeats(g, w, rank - 3) && repeats(g, x, rank - 2);
    if most < enough || !whole || !apart || unit != tile.terms || g.scalar(base) != Scalar::F32 {
        return None;
    }
    let rounded = g[base].op == Op::Cast && g.scalar(g[base].src[0]) == Scalar::BF16;
    let narrow = if rounded { g[base].src[0] } else { g.cast(base, Scalar::BF16) };
    let x = moved(g, x, base, narrow);
    // What chooses rows may be dear, and each workgroup would choose all of them.
    let gathered = gathers(g, x).into_iter().flat_map(|of| [of, g[of].src[1]]);
    let buffers = std::iter::once(narrow).chain(gathered).filter(|&n| g[n].op != Op::Param).collect();
    let w = g.cast(w, Scalar::BF16);
    let [w, x] = [w, x].map(|side| g.cast(side, Scalar::F32));
    let product = g.mul(w, x);
    Some(Product { sum: g.reduce(product, &[rank - 1], ReduceOp::Add), buffers })
}

/// Is `x` the same along that axis, to begin with?
pub(super) fn repeats(g: &Graph, x: Id, axis: usize) -> bool {
    let n = &g[x];
    n.op == Op::Expand && g.int_value(g.dims(n.src[0])[axis]) == Some(1)
}

/// `x` with `new` in place of `base`, and of its type.
pub(super) fn moved(g: &mut Graph, x: Id, base: Id, new: Id) -> Id {
    if x == base {
        return new;
    }
    let n = g[x].clone();
    let mut src = n.src;
    src[0] = moved(g, src[0], base, new);
    let dtype = g[src[0]].dtype;
    g.intern(Node { op: n.op, dtype, src, arg: n.arg })
}

/// Rows that were gathered, of those that `x` moves.
pub(super) fn gathers(g: &Graph, x: Id) -> Vec<Id> {
    let below = |&x: &Id| (g[x].op.is_movement() || g[x].op == Op::Gather).then(|| g[x].src[0]);
    std::iter::successors(Some(x), below).filter(|&x| g[x].op == Op::Gather).collect()
}
