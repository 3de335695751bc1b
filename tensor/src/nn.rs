//! Building blocks of neural networks, as expressions over captured tensors.

mod dispatch;
mod embedding;
mod glu;
mod group;
mod select;

pub use dispatch::Dispatch;
pub use embedding::embedding_gradient;
pub use glu::{Glu, gelu, gelu_erf};
pub use group::{Sorted, Tiles, sorted, tiles};
pub use select::{TopK, group_limited, rank, top_k};

use crate::dims;
use crate::tensor::{Dim, Tensor};

/// Returns `x / sqrt(mean(x²) + eps) · w` over the last axis of `x [.., d]`, `w [d]`.
pub fn rms_norm<'g>(x: Tensor<'g>, w: Tensor<'g>, eps: f64) -> Tensor<'g> {
    rms(x, eps) * w
}

/// Returns [`rms_norm`] without weights; the length of the last axis must be a constant.
pub fn rms(x: Tensor<'_>, eps: f64) -> Tensor<'_> {
    let last = x.rank() - 1;
    let (dims, c) = (x.dims(), x.capture());
    let d = c
        .graph
        .borrow()
        .int_value(dims[last])
        .expect("a norm over an axis of known length");
    let mean = (x * x).sum(&[last]) * (1.0 / d as f64);
    x * (mean + eps).sqrt().recip().unsqueeze(last)
}

/// Returns `(x − mean(x)) / sqrt(variance(x) + eps) · w` over the last axis of `x [.., d]`; its
/// length must be a constant.
pub fn layer_norm<'g>(x: Tensor<'g>, w: Tensor<'g>, eps: f64) -> Tensor<'g> {
    let last = x.rank() - 1;
    let (dims, c) = (x.dims(), x.capture());
    let d = c.graph.borrow().int_value(dims[last]);
    let d = d.expect("a norm over an axis of known length");
    let mean = x.sum(&[last]) * (1.0 / d as f64);
    rms(x - mean.unsqueeze(last), eps) * w
}

/// Returns `cap · tanh(x / cap)`, which is close to `x` for `|x|` much smaller than `cap`.
pub fn soft_cap(x: Tensor<'_>, cap: f64) -> Tensor<'_> {
    // tanh y = 2 sigmoid(2 y) - 1, which does not overflow for any y.
    (x * (2.0 / cap)).sigmoid() * (2.0 * cap) - cap
}

/// Softmax over the last axis, with the row's maximum subtracted before the exponential.
pub fn softmax(x: Tensor<'_>) -> Tensor<'_> {
    let last = x.rank() - 1;
    let e = (x - x.max(&[last]).unsqueeze(last)).exp();
    e * e.sum(&[last]).recip().unsqueeze(last)
}

/// Which two elements of a head RoPE rotates together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pairing {
    /// Elements `2k` and `2k + 1` form a pair.
    Interleaved,
    /// Elements `k` and `k + rope/2` form a pair.
    Halves,
}

/// Applies rotary position embedding to `x [tokens, heads, rope]`.
///
/// Token `t` is rotated by the angles in `rows [t]` of `rows [tokens, rope/2, 2]`, which holds
/// cosine and sine of each pair.
pub fn rope<'g>(x: Tensor<'g>, rows: Tensor<'g>, pairing: Pairing) -> Tensor<'g> {
    let (tokens, heads, pairs) = (x.dim(0), x.dim(1), rows.dim(1));
    let angle = |i: usize| match pairing {
        Pairing::Interleaved => {
            rows.slice(2, i, 1)
                .reshape(&[tokens, Dim::Size(1), pairs, Dim::Size(1)])
        }
        Pairing::Halves => {
            rows.slice(2, i, 1)
                .reshape(&[tokens, Dim::Size(1), Dim::Size(1), pairs])
        }
    };
    let (cos, sin) = (angle(0), angle(1));
    let (dims, axis): (&[Dim], usize) = match pairing {
        Pairing::Interleaved => (dims![tokens, heads, pairs, 2], 3),
        Pairing::Halves => (dims![tokens, heads, 2, pairs], 2),
    };
    let x4 = x.reshape(dims);
    let (a, b) = (x4.slice(axis, 0, 1), x4.slice(axis, 1, 1));
    Tensor::cat(&[a * cos - b * sin, a * sin + b * cos], axis).reshape(&[tokens, heads, x.dim(2)])
}
