//! Rows on their way to the experts that data chooses for them, and back.

use super::group::{Sorted, Tiles, sorted, tiles};
use crate::dims;
use crate::tensor::Tensor;

/// Which experts rows meet, and where. The one place that tells one row from several.
#[derive(Clone, Copy)]
pub enum Dispatch<'g> {
    /// One row beside its experts `[k]`: each is addressed through the index.
    Beside(Tensor<'g>),
    /// A few rows, each beside every expert that it chose: who chose the same come one after the other.
    Sorted(Sorted<'g>),
    /// Rows grouped into tiles of that height, of one expert each: the rows of a tile share its address.
    Tiles(Tiles<'g>, usize),
}

impl<'g> Dispatch<'g> {
    /// Rows that chose `index [rows, k]` (i32, below `experts`), at most `most` of them; of several, tiles have `height` rows, or there are none.
    pub fn new(
        index: Tensor<'g>,
        rows: Tensor<'g>,
        most: usize,
        experts: usize,
        height: Option<usize>,
    ) -> Dispatch<'g> {
        if index.dims()[0] == index.capture().int(1).id() {
            return Dispatch::Beside(index.squeeze(0));
        }
        let Some(height) = height else { return Dispatch::Sorted(sorted(index, rows)) };
        Dispatch::Tiles(tiles(index, rows, most, experts, height), height)
    }
    /// Rows `x [rows, d]` as experts take them.
    pub fn spread(self, x: Tensor<'g>) -> Tensor<'g> {
        match self {
            Dispatch::Beside(_) => x,
            Dispatch::Sorted(s) => x.gather(s.token),
            Dispatch::Tiles(t, height) => x.gather(t.token).reshape(dims![t.count, height, x.dim(1)]),
        }
    }
    /// What every expert has one of, `[experts, rest..]`, beside the rows that experts take: matrices `[out, in]` to contract them with, or biases
    /// `[out]` to add to that.
    pub fn of_experts(self, parameter: Tensor<'g>) -> Tensor<'g> {
        match self {
            Dispatch::Beside(index) => parameter.gather(index),
            Dispatch::Sorted(s) => parameter.gather(s.expert),
            Dispatch::Tiles(t, _) => parameter.gather(t.expert).unsqueeze(1),
        }
    }
    /// What experts made of the rows, weighted with `weights [rows, k]` and summed: `[rows, d]`.
    pub fn combine(self, made: Tensor<'g>, weights: Tensor<'g>) -> Tensor<'g> {
        match self {
            Dispatch::Beside(index) => (made * weights.reshape(dims![index.dim(0), 1])).sum(&[0]).unsqueeze(0),
            Dispatch::Sorted(s) => (made.gather(s.place) * weights.unsqueeze(2)).sum(&[1]),
            Dispatch::Tiles(t, height) => {
                let made = made.reshape(dims![t.count * height as i64, made.dim(2)]);
                (made.gather(t.row) * weights.unsqueeze(2)).sum(&[1])
            }
        }
    }
}
