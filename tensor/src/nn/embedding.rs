//! Rows of a table, chosen by data: what a loss says of the table.

use crate::dims;
use crate::tensor::{Dim, Tensor};

/// The gradient of a table of `rows` rows, of which `index [n..]` chose some ([`Tensor::gather`]), by that of the rows chosen, `dy [n.., rest..]`: zeros, with each
/// row added where it came from.
pub fn embedding_gradient<'g>(dy: Tensor<'g>, index: Tensor<'g>, rows: usize) -> Tensor<'g> {
    let rest = &dy.dims()[index.rank()..];
    let dims: Vec<Dim> = dims![rows].iter().copied().chain(rest.iter().map(|&d| Dim::Of(d))).collect();
    dy.capture().constant(0.0, dy.scalar()).expand(&dims).scatter_add(dy, index)
}
