//! Hadamard transforms of heads around a quantised KV cache.

use super::super::hadamard::{BLOCK, block_of};
use super::super::plan::Bind;
use super::StepFunction;
use gristmill_tensor::dims;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;

impl StepFunction<'_> {
    /// Multiplies every head of `x [n, heads·width]` or `[n, heads, width]` by an orthonormal
    /// Hadamard matrix if the KV cache has scales. Returns `[n, heads, width]`, and `x` itself
    /// for other caches.
    ///
    /// Queries and keys are both transformed, which changes no score; values are transformed, and
    /// so is the result of attention, as the matrix is its own inverse. An outlier of a
    /// head is spread over its block, whose scale shrinks.
    pub fn transform<'g>(&'g self, x: Tensor<'g>, [heads, width]: [usize; 2]) -> Tensor<'g> {
        let block = block_of(width);
        if !self.options.cache.has_scales() || block < 2 {
            return x;
        }
        let signs = self
            .once(&self.hadamard, || {
                self.input("hadamard", Bind::Hadamard, dims![BLOCK, BLOCK], Scalar::F16)
            })
            .slice(0, 0, block)
            .slice(1, 0, block)
            .cast(Scalar::F32);
        let blocks = x.reshape(dims![x.dim(0), heads, width / block, block]);
        let sums = blocks.contract(signs) * (1.0 / (block as f64).sqrt());
        sums.reshape(dims![x.dim(0), heads, width])
    }
}
