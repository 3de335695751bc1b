//! Choosing the k largest without sorting: an element's rank is the number of elements before it.
//!
//! For the 64 to 512 scores of a router the pairwise comparison is a few thousand operations a token, and one
//! kernel; a sort would be many dependent steps.

use crate::dims;
use crate::tensor::{Dim, Tensor};
use gristmill_uop::dtype::Scalar;

/// The place of each element of the last axis in descending order, i32; of equal elements the first comes first.
pub fn rank(b: Tensor<'_>) -> Tensor<'_> {
    let last = b.rank() - 1;
    let n = b.dim(last);
    // [.., i, j]: does j come before i?
    let (bi, bj) = (b.unsqueeze(last + 1), b.unsqueeze(last));
    let pairs = dims![n, n];
    let earlier = b.capture().iota(pairs, 1).lt(b.capture().iota(pairs, 0));
    let before = bi.lt(bj) | (bi.equals(bj) & earlier);
    before.cast(Scalar::I32).sum(&[last + 1])
}

/// The `k` best of every row.
#[derive(Clone, Copy)]
pub struct TopK<'g> {
    /// Their indices, best first: `[rows, k]` i32, each below `n` whatever the scores are (NaN included).
    pub index: Tensor<'g>,
    /// `[rows, k, n]` bool: is element `i` the `r`-th best?
    hot: Tensor<'g>,
}

/// The `k` best of every row of scores `b [rows, n]`.
pub fn top_k<'g>(b: Tensor<'g>, k: usize) -> TopK<'g> {
    let c = b.capture();
    let n = b.dim(1);
    let place = c.iota(dims![1, k, n], 1);
    let hot = rank(b).unsqueeze(1).equals(place);
    let index = (hot.cast(Scalar::I32) * c.iota(dims![1, k, n], 2)).sum(&[2]);
    let size = c.graph.borrow().max_of(b.dims()[1]) as usize;
    TopK { index: index.clamp_index(size - 1), hot }
}

impl<'g> TopK<'g> {
    /// The chosen elements of `p [rows, n]`: `[rows, k]`.
    pub fn select(self, p: Tensor<'g>) -> Tensor<'g> {
        self.hot.select(p.unsqueeze(1), 0.0).sum(&[2])
    }
}

/// Scores `b [rows, n]` with those outside the best `used` of `groups` equal runs out of the race. A group is as good as
/// the sum of its two largest scores.
pub fn group_limited<'g>(b: Tensor<'g>, groups: usize, used: usize) -> Tensor<'g> {
    let n = b.capture().graph.borrow().max_of(b.dims()[1]) as usize;
    let (rows, size) = (b.dim(0), n / groups);
    let grouped = b.reshape(dims![rows, groups, size]);
    let best_two = rank(grouped).lt(2).select(grouped, 0.0).sum(&[2]);
    let kept = rank(best_two).lt(used as i64).unsqueeze(2);
    kept.select(grouped, f64::from(f32::MIN)).reshape(&[rows, Dim::Size(n)])
}
