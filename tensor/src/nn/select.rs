//! Top-k selection without sorting: an element's rank is the number of elements before it.
//!
//! For the 64 to 512 scores of a router, pairwise comparison is a few thousand operations a token
//! in one kernel; a sort would be many dependent steps.

use crate::dims;
use crate::tensor::{Dim, Tensor};
use gristmill_uop::dtype::Scalar;

/// Rank of each element of the last axis in descending order, i32; ties go to the lower index.
pub fn rank(b: Tensor<'_>) -> Tensor<'_> {
    let last = b.rank() - 1;
    let n = b.dim(last);
    // [.., i, j]: true if j comes before i.
    let (bi, bj) = (b.unsqueeze(last + 1), b.unsqueeze(last));
    let pairs = dims![n, n];
    let earlier = b.capture().iota(pairs, 1).lt(b.capture().iota(pairs, 0));
    let before = bi.lt(bj) | (bi.equals(bj) & earlier);
    before.cast(Scalar::I32).sum(&[last + 1])
}

/// The `k` largest scores of every row.
#[derive(Clone, Copy)]
pub struct TopK<'g> {
    /// Their indices, largest first: `[rows, k]` i32, each below `n` for any scores (NaN included).
    pub index: Tensor<'g>,
    /// One-hot selection, `[rows, k, n]` bool: true if element `i` has rank `r`.
    hot: Tensor<'g>,
}

/// Selects the `k` largest of every row of scores `b [rows, n]`.
pub fn top_k<'g>(b: Tensor<'g>, k: usize) -> TopK<'g> {
    let c = b.capture();
    let n = b.dim(1);
    let place = c.iota(dims![1, k, n], 1);
    let hot = rank(b).unsqueeze(1).equals(place);
    let index = (hot.cast(Scalar::I32) * c.iota(dims![1, k, n], 2)).sum(&[2]);
    let size = c.graph.borrow().max_of(b.dims()[1]) as usize;
    TopK {
        index: index.clamp_index(size - 1),
        hot,
    }
}

impl<'g> TopK<'g> {
    /// Gathers the chosen elements of `p [rows, n]`: `[rows, k]`.
    pub fn select(self, p: Tensor<'g>) -> Tensor<'g> {
        self.hot.select(p.unsqueeze(1), 0.0).sum(&[2])
    }
}

/// Masks scores `b [rows, n]` outside the best `used` of `groups` equal runs with `f32::MIN`.
///
/// The score of a group is the sum of its two largest elements.
pub fn group_limited<'g>(b: Tensor<'g>, groups: usize, used: usize) -> Tensor<'g> {
    let n = b.capture().graph.borrow().max_of(b.dims()[1]) as usize;
    let (rows, size) = (b.dim(0), n / groups);
    let grouped = b.reshape(dims![rows, groups, size]);
    let best_two = rank(grouped).lt(2).select(grouped, 0.0).sum(&[2]);
    let kept = rank(best_two).lt(used as i64).unsqueeze(2);
    kept.select(grouped, f64::from(f32::MIN))
        .reshape(&[rows, Dim::Size(n)])
}
