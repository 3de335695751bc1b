//! Mixture-of-experts dispatch: gathers rows for their experts and combines the outputs.

use super::group::{Sorted, Tiles, sorted, tiles};
use crate::dims;
use crate::tensor::Tensor;

/// Assignment of rows to experts, in one of three layouts that depend on the number of rows.
#[derive(Clone, Copy)]
pub enum Dispatch<'g> {
    /// One row with its experts `[k]`: expert parameters are gathered by this index.
    Beside(Tensor<'g>),
    /// A few rows: one slot per row and chosen expert, sorted by expert.
    Sorted(Sorted<'g>),
    /// Rows grouped into tiles of the given height; a tile's rows share one expert's weights.
    Tiles(Tiles<'g>, usize),
}

impl<'g> Dispatch<'g> {
    /// Chooses the layout for `index [rows, k]` (i32, below `experts`), with at most `most` rows.
    ///
    /// For more than one row, `height` is the height of tiles; `None` selects [`Dispatch::Sorted`].
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
        let Some(height) = height else {
            return Dispatch::Sorted(sorted(index, rows));
        };
        Dispatch::Tiles(tiles(index, rows, most, experts, height), height)
    }
    /// Arranges rows `x [rows, d]` in the layout that experts consume.
    pub fn spread(self, x: Tensor<'g>) -> Tensor<'g> {
        match self {
            Dispatch::Beside(_) => x,
            Dispatch::Sorted(s) => x.gather(s.token),
            Dispatch::Tiles(t, height) => {
                x.gather(t.token).reshape(dims![t.count, height, x.dim(1)])
            }
        }
    }
    /// Arranges values of rows `[rows, c]` as the last axes but one of what experts make.
    pub fn beside(self, x: Tensor<'g>) -> Tensor<'g> {
        match self {
            Dispatch::Beside(index) => x.expand(dims![index.dim(0), x.dim(1)]),
            _ => self.spread(x),
        }
    }
    /// Arranges rows of experts by tokens and their chosen experts: `[rows, k, d]`.
    pub fn of_slots(self, x: Tensor<'g>) -> Tensor<'g> {
        match self {
            Dispatch::Beside(index) => {
                let d = x.dim(x.rank() - 1);
                x.expand(dims![index.dim(0), d]).unsqueeze(0)
            }
            Dispatch::Sorted(s) => x.gather(s.place),
            Dispatch::Tiles(t, height) => {
                let rows = x.reshape(dims![t.count * height as i64, x.dim(2)]);
                rows.gather(t.row)
            }
        }
    }
    /// Gathers per-expert parameters `[experts, rest..]` to match the rows of [`Dispatch::spread`].
    ///
    /// Parameters are matrices `[out, in]` for a contraction, or biases `[out]` for its result.
    pub fn of_experts(self, parameter: Tensor<'g>) -> Tensor<'g> {
        match self {
            Dispatch::Beside(index) => parameter.gather(index),
            Dispatch::Sorted(s) => parameter.gather(s.expert),
            Dispatch::Tiles(t, _) => parameter.gather(t.expert).unsqueeze(1),
        }
    }
    /// Weights the experts' outputs with `weights [rows, k]` and sums them per row: `[rows, d]`.
    pub fn combine(self, made: Tensor<'g>, weights: Tensor<'g>) -> Tensor<'g> {
        match self {
            Dispatch::Beside(index) => (made * weights.reshape(dims![index.dim(0), 1]))
                .sum(&[0])
                .unsqueeze(0),
            Dispatch::Sorted(s) => (made.gather(s.place) * weights.unsqueeze(2)).sum(&[1]),
            Dispatch::Tiles(t, height) => {
                let made = made.reshape(dims![t.count * height as i64, made.dim(2)]);
                (made.gather(t.row) * weights.unsqueeze(2)).sum(&[1])
            }
        }
    }
}
