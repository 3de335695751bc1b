//! Gradient of an embedding lookup.

use crate::dims;
use crate::tensor::{Dim, Tensor};

/// Gradient of an embedding table of `rows` rows, from the gradient of the gathered rows.
///
/// `index [n..]` are the gathered rows ([`Tensor::gather`]) and `dy [n.., rest..]` is their
/// gradient. The result is zero, with each row of `dy` added at its index.
pub fn embedding_gradient<'g>(dy: Tensor<'g>, index: Tensor<'g>, rows: usize) -> Tensor<'g> {
    let rest = &dy.dims()[index.rank()..];
    let dims: Vec<Dim> = dims![rows]
        .iter()
        .copied()
        .chain(rest.iter().map(|&d| Dim::Of(d)))
        .collect();
    dy.capture()
        .constant(0.0, dy.scalar())
        .expand(&dims)
        .scatter_add(dy, index)
}
