//! Contractions of a packed weight with many tokens by cooperative matrices of a GPU's subgroups
//! (`uop/src/fragment.rs`). Both operands are rounded to f16, and products accumulate in f32.
//!
//! The assignment of matrix elements to threads is unspecified, so fragments are loaded and stored
//! as a whole. A weight is dequantised into a stage, a K tile of a workgroup's rows at a time, and
//! the dequantising and multiplying nests share the loop over K.
//!
//! Materialised, row by row: activations and gathered rows, because a fragment is loaded from
//! equidistant rows, and the sum, which is stored as whole fragments.

use super::bf16::Bf16Product;
use super::f16_mma::shifted;
use super::operands::{Operands, Suits, gathered, moved, repeats};
use crate::ir::layout::Packing;
use gristmill_uop::fragment::Fragment;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, ReduceOp, Scalar};

/// Terms per K tile; the first that divides a row. 64 f16 elements are a cache line and halve the
/// barriers of 32. The two were not compared.
const TERMS: [i64; 2] = [64, 32];
/// Fewest tokens that share a dequantised weight: with fewer, most columns of a fragment are empty.
/// Nothing between 16, a fragment's columns, and 64 was measured.
const LEAST: i64 = 32;

/// A contraction by cooperative matrices.
pub struct Staged {
    /// The sum, with the shared K loop as its outer reduction axis, and its materialised nodes.
    pub product: Bf16Product,
    /// The weight in f16, which is staged.
    pub half: Id,
}

/// The GPU's cooperative-matrix fragment, if it has one.
fn fragment(target: &Target) -> Option<&'static Fragment> {
    target
        .machine
        .tile_fragment()
        .filter(|_| target.machine.kind == MachineKind::Gpu)
}

/// Terms per K tile for rows of `terms` terms, if they make several K tiles of whole fragments.
fn at_once(terms: i64, tile: &Fragment) -> Option<i64> {
    TERMS
        .into_iter()
        .find(|n| terms % n == 0 && terms / n > 1 && n % tile.terms == 0)
}

/// Returns how cooperative matrices suit a contraction.
///
/// f16 cannot hold scales that are arbitrary powers of two.
pub fn suits(g: &Graph, of: Operands, packing: &Packing, target: &Target) -> Suits {
    let Some(tile) = fragment(target) else {
        return Suits::Not;
    };
    let &[.., tokens, rows, terms] = g.dims(of.x) else {
        return Suits::Not;
    };
    let (rank, most) = (g.dims(of.x).len(), g.max_of(tokens));
    let steps = g.int_value(terms).and_then(|terms| at_once(terms, tile));
    let whole = most % tile.rows == 0 && g.int_value(rows).is_some_and(|n| n % tile.columns == 0);
    let apart = repeats(g, of.weight, rank - 3) && repeats(g, of.x, rank - 2);
    let fits =
        steps.is_some() && packing.scales_of_bits().is_none() && g.scalar(of.base) == Scalar::F32;
    if !whole || !apart || !fits {
        return Suits::Not;
    }
    Suits::by(most >= LEAST)
}

/// Rewrites a contraction as a product of staged f16 operands; [`suits`] must allow it.
pub fn product(g: &mut Graph, Operands { weight, x, base }: Operands, target: &Target) -> Staged {
    let (rank, terms) = (
        g.dims(x).len(),
        g.dims(x).last().map_or(0, |&dim| g.max_of(dim)),
    );
    let steps = fragment(target).and_then(|tile| at_once(terms, tile));
    let Some(at_once) = steps else {
        unreachable!("{terms} terms in no steps of tiles")
    };
    // The weight below the movement that repeats it for the tokens.
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
    Staged {
        product: Bf16Product { sum, buffers },
        half,
    }
}

/// Splits the last axis of `x` into K tiles of `terms` terms, and moves the tile axis to the front.
fn by_steps(g: &mut Graph, x: Id, terms: i64) -> Id {
    let mut cut = g.shape(x);
    let last = cut.pop().map_or(0, |dim| g.max_of(dim));
    let rank = cut.len();
    cut.extend([last / terms, terms].map(|n| g.int(n)));
    let x = g.reshape(x, &cut);
    let order: Vec<usize> = std::iter::once(rank)
        .chain(0..rank)
        .chain([rank + 1])
        .collect();
    g.permute(x, &order)
}
