//! Contractions of a packed weight with many tokens, where a GPU's subgroups multiply tiles that they load and write as a whole (`uop/src/fragment.rs`): both sides are rounded to
//! halves, and products are added in f32. Nobody knows which thread holds what, so a weight is unpacked into a stage, some terms of a workgroup's rows at a time, and the loop over
//! terms is shared by who unpacks and who multiplies.
//!
//! Activations have a buffer of their own, row by row, since a tile is loaded from rows that are as far from one another as the first two; so have rows that were gathered. So has
//! the sum, which is written as a whole.

use super::bf16::{Product, gathers, moved, repeats};
use super::halves::shifted;
use crate::layout::Packing;
use gristmill_uop::fragment::Fragment;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op, ReduceOp, Scalar};

/// Terms that a stage has at once, the first of these that divides a row: of 64 a row of halves is a line of memory, and barriers are half as many as with 32.
const TERMS: [i64; 2] = [64, 32];
/// Fewest tokens that share what is unpacked: of fewer most of a tile's columns would be empty.
const LEAST: i64 = 32;

/// Such a contraction.
pub struct Staged {
    /// The sum, whose first axis of terms is a loop that a workgroup's nests share, and what has buffers for it.
    pub product: Product,
    /// The weight's halves, which have a stage.
    pub half: Id,
}

/// The machine's product of tiles, of a subgroup's.
fn fragment(target: &Target) -> Option<&'static Fragment> {
    target.machine.tile_fragment().filter(|_| target.machine.kind == MachineKind::Gpu)
}

/// Σ over the last axis of `w` times `x`, both moved to the product's shape, as a product of a subgroup's tiles; `base` is what `x` moves the rows of. `None` where it does not fit
/// the machine's, or scales are powers of two of any size, which f16 has not.
pub fn product(g: &mut Graph, [w, x, base]: [Id; 3], packing: &Packing, target: &Target) -> Option<Staged> {
    let tile = fragment(target)?;
    let dims = g.dims(x).to_vec();
    let &[.., tokens, rows, terms] = &dims[..] else { return None };
    let rank = dims.len();
    let (most, terms) = (g.max_of(tokens), g.int_value(terms)?);
    let at_once = TERMS.into_iter().find(|n| terms % n == 0 && terms / n > 1 && n % tile.terms == 0)?;
    let whole = most % tile.rows == 0 && g.int_value(rows).is_some_and(|n| n % tile.columns == 0);
    let apart = repeats(g, w, rank - 3) && repeats(g, x, rank - 2);
    if packing.scales_of_bits().is_some() || most < LEAST || !whole || !apart || g.scalar(base) != Scalar::F32 {
        return None;
    }
    // What the tokens share, below the movement that repeats it for them.
    let of_rows = g[w].src[0];
    let (narrow, w) = shifted(g, base, of_rows);
    let rounded = g.cast(narrow, Scalar::F16);
    let x = moved(g, x, base, rounded);
    let gathered = gathers(g, x).into_iter().flat_map(|of| [of, g[of].src[1]]);
    let buffers: Vec<Id> = std::iter::once(rounded).chain(gathered).filter(|&n| g[n].op != Op::Param).collect();
    let w = by_steps(g, w, at_once);
    let half = g.cast(w, Scalar::F16);
    let x = by_steps(g, x, at_once);
    let [wide, x] = [half, x].map(|side| g.cast(side, Scalar::F32));
    let shape = g.shape(x);
    let wide = g.expand(wide, &shape);
    let product = g.mul(wide, x);
    let sum = g.reduce(product, &[0, rank], ReduceOp::Add);
    Some(Staged { product: Product { sum, buffers }, half })
}

/// `x` with its last axis cut into steps of so many terms, which come first.
fn by_steps(g: &mut Graph, x: Id, terms: i64) -> Id {
    let mut cut = g.shape(x);
    let last = cut.pop().map_or(0, |dim| g.max_of(dim));
    let rank = cut.len();
    cut.extend([last / terms, terms].map(|n| g.int(n)));
    let x = g.reshape(x, &cut);
    let order: Vec<usize> = std::iter::once(rank).chain(0..rank).chain([rank + 1]).collect();
    g.permute(x, &order)
}
