//! Low-rank adapters of a weight within a step.

use super::super::low_rank::{LowRank, LowRankShape};
use super::super::plan::Bind;
use super::super::tensors::{LayerWeights, WeightInfo};
use super::StepFunction;
use gristmill_tensor::tensor::{Dim, Tensor};

/// Matrices and factor of one adapter of a weight.
pub(in super::super) struct WeightAdapter<'g> {
    a: Tensor<'g>,
    b: Tensor<'g>,
    scale: f64,
    /// Number of adapters whose matrices these are, one after the other, and the rank of each.
    choices: Option<[usize; 2]>,
}

impl<'g> WeightAdapter<'g> {
    /// Computes `scale · B (A x)` of rows `x [.., in]`. `of` selects the matrices of the rows'
    /// experts, and `spread` arranges values of tokens `[n, c]` as the rows.
    pub fn apply(
        &self,
        s: &'g StepFunction,
        x: Tensor<'g>,
        of: impl Fn(Tensor<'g>) -> Tensor<'g>,
        spread: impl Fn(Tensor<'g>) -> Tensor<'g>,
    ) -> Tensor<'g> {
        let low = s.float_product(x, of(self.a));
        let low = match self.choices {
            Some(sizes) => low * s.scales_of_ranks(low, sizes, spread),
            None => low,
        };
        let y = s.float_product(low, of(self.b));
        if self.scale == 1.0 { y } else { y * self.scale }
    }
}

impl StepFunction<'_> {
    /// Returns the adapters of a weight: the one that is trained, or those of the model.
    pub(in super::super) fn adapters_of(
        &self,
        weights: &LayerWeights,
        name: &str,
    ) -> Vec<WeightAdapter<'_>> {
        let w = weights.get(name);
        if self.is_training() {
            return self.trained_adapter(w).into_iter().collect();
        }
        let applied = self.adapters.iter().filter_map(|of| {
            let shape = *of.low_rank.shapes.get(&w.name)?;
            let [a, b] = LowRank::matrices(&w.name).map(|name| of.prefix.clone() + &name);
            let matrices = adapter(w, shape, |side, dims| {
                let (name, short) = [(&a, "lora_a"), (&b, "lora_b")][side];
                let slot = self.capture.weight(short, dims, &gristmill_encodings::F32);
                self.bound(Bind::Weight(name.clone()), slot)
            });
            Some(WeightAdapter {
                choices: of.choices.map(|n| [n, shape.rank / n]),
                ..matrices
            })
        });
        applied.collect()
    }
    /// The factor of each rank `[.., choices·r]` of rows `low`: that which its token gives the
    /// adapter.
    fn scales_of_ranks<'g>(
        &'g self,
        low: Tensor<'g>,
        [choices, rank]: [usize; 2],
        spread: impl Fn(Tensor<'g>) -> Tensor<'g>,
    ) -> Tensor<'g> {
        let last = low.rank() - 1;
        let scales = spread(self.adapter_scales(choices));
        let dims = |of: Tensor<'g>| -> Vec<Dim> { of.dims().into_iter().map(Dim::Of).collect() };
        let mut each = dims(scales.unsqueeze(scales.rank()));
        each[last + 1] = Dim::Size(rank);
        scales
            .unsqueeze(scales.rank())
            .expand(&each)
            .reshape(&dims(low))
    }
}

/// Creates the adapter of a weight; `matrix` makes matrix 0 or 1 (`A` or `B`) of these dims.
pub(super) fn adapter<'g>(
    w: &WeightInfo,
    LowRankShape { rank, scale }: LowRankShape,
    matrix: impl Fn(usize, &[usize]) -> Tensor<'g>,
) -> WeightAdapter<'g> {
    let [front @ .., out, width] = &w.dims[..] else {
        panic!("{} has an adapter and is no matrix", w.name)
    };
    let side = |number: usize, last: [usize; 2]| {
        let dims: Vec<usize> = front.iter().copied().chain(last).collect();
        matrix(number, &dims)
    };
    WeightAdapter {
        a: side(0, [rank, *width]),
        b: side(1, [*out, rank]),
        scale: f64::from(scale),
        choices: None,
    }
}
