//! Contractions of a packed weight with many tokens, where a GPU's subgroups multiply tiles that they load and write as a whole (`uop/src/fragment.rs`): both sides are rounded to
//! halves, and products are added in f32. Nobody knows which thread holds what, so a weight is unpacked into a stage, some terms of a workgroup's rows at a time, and the loop over
//! terms is shared by who unpacks and who multiplies.
//!
//! Activations have a buffer of their own, row by row, since a tile is loaded from rows that are as far from one another as the first two; so have rows that were gathered. So has
//! the sum, which is written as a whole.

use super::bf16::Bf16Product;
use super::f16_mma::shifted;
use super::operands::{Operands, Suits, gathered, moved, repeats};
use crate::ir::layout::Packing;
use gristmill_uop::fragment::Fragment;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, ReduceOp, Scalar};

/// Terms that a stage has at once, the first of these that divides a row: of 64 a row of halves is a line of memory, and barriers are half as many as with 32
/// (which was not measured against 64 alone).
const TERMS: [i64; 2] = [64, 32];
/// Fewest tokens that share what is unpacked: of fewer most of a tile's columns would be empty. Not measured between 16, a tile's, and 64.
const LEAST: i64 = 32;

/// Such a contraction.
pub struct Staged {
    /// The sum, whose first axis of terms is a loop that a workgroup's nests share, and what has buffers for it.
    pub product: Bf16Product,
    /// The weight's halves, which have a stage.
    pub half: Id,
}

/// The machine's product of tiles, of a subgroup's.
fn fragment(target: &Target) -> Option<&'static Fragment> {
    target.machine.tile_fragment().filter(|_| target.machine.kind == MachineKind::Gpu)
}

/// Terms that a stage has at once of rows of so many, if these are several steps of whole tiles.
fn at_once(terms: i64, tile: &Fragment) -> Option<i64> {
    TERMS.into_iter().find(|n| terms % n == 0 && terms / n > 1 && n % tile.terms == 0)
}

/// How a subgroup's tiles suit a contraction. Scales that are powers of two of any size f16 has not.
pub fn suits(g: &Graph, of: Operands, packing: &Packing, target: &Target) -> Suits {
    let Some(tile) = fragment(target) else { return Suits::Not };
    let &[.., tokens, rows, terms] = g.dims(of.x) else { return Suits::Not };
    let (rank, most) = (g.dims(of.x).len(), g.max_of(tokens));
    let steps = g.int_value(terms).and_then(|terms| at_once(terms, tile));
    let whole = most % tile.rows == 0 && g.int_value(rows).is_some_and(|n| n % tile.columns == 0);
    let apart = repeats(g, of.weight, rank - 3) && repeats(g, of.x, rank - 2);
    let fits = steps.is_some() && packing.scales_of_bits().is_none() && g.scalar(of.base) == Scalar::F32;
    if !whole || !apart || !fits {
        return Suits::Not;
    }
    Suits::by(most >= LEAST)
}

/// The contraction, if a subgroup's tiles suit it, as a product of these.
pub fn product(g: &mut Graph, Operands { weight, x, base }: Operands, target: &Target) -> Staged {
    let (rank, terms) = (g.dims(x).len(), g.dims(x).last().map_or(0, |&dim| g.max_of(dim)));
    let steps = fragment(target).and_then(|tile| at_once(terms, tile));
    let Some(at_once) = steps else { unreachable!("{terms} terms in no steps of tiles") };
    // What the tokens share, below the movement that repeats it for them.
    let of_rows = g[weight].src[0];
    let (narrow, weight) = shifted(g, base, of_rows);
    let rounded = g.cast(narrow, Scalar::F16);
    let x = moved(g, x, base, rounded);
    let buffers = std::iter::once(rounded).chain(gathered(g, x)).collect();
    let weight = by_steps(g, weight, at_once);
    let half = g.cast(weight, Scalar::F16);
    let x = by_steps(g, x, at_once);
    let [wide, x] = [half, x].map(|side| g.cast(side, Scalar::F32));
    let shape = g.shape(x);
    let wide = g.expand(wide, &shape);
    let product = g.mul(wide, x);
    let sum = g.reduce(product, &[0, rank], ReduceOp::Add);
    Staged { product: Bf16Product { sum, buffers }, half }
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
