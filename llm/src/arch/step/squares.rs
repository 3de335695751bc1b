//! Squares of the inputs of products, which a step adds up by column.

use super::super::plan::Bind;
use super::super::tensors::LayerWeights;
use super::super::trained::Trained;
use super::StepFunction;
use gristmill_tensor::dims;
use gristmill_tensor::nn::Dispatch;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;

impl StepFunction<'_> {
    /// Whether the step adds up squares.
    fn adds_squares(&self) -> bool {
        let trained = self.trained.as_ref();
        trained.is_some_and(|of| *of.trained == Trained::Nothing)
    }
    /// Adds the squares of the rows `x [.., in]` that a matrix multiplies.
    pub(in super::super) fn add_squares(&self, weights: &LayerWeights, name: &str, x: Tensor<'_>) {
        if !self.adds_squares() {
            return;
        }
        let rows: Vec<usize> = (0..x.rank() - 1).collect();
        let name = weights.get(name).name.clone();
        self.add_to("squares", Bind::Squares(name), (x * x).sum(&rows));
    }
    /// Adds the squares of the rows that stacked experts multiply, to those of the experts. `x` are
    /// the rows as `sent` arranges them, `index [tokens, k]` the experts of tokens.
    pub(in super::super) fn add_squares_of_experts<'g>(
        &'g self,
        weights: &LayerWeights,
        name: &str,
        x: Tensor<'g>,
        (sent, index): (Dispatch<'g>, Tensor<'g>),
    ) {
        if !self.adds_squares() {
            return;
        }
        let weight = weights.get(name);
        let (experts, width) = (weight.dims[0], x.dim(x.rank() - 1));
        let chosen_each = self.capture.tensor(index.dims()[1]).known();
        let count = self.options.tokens.max() * chosen_each.expect("a constant number of experts");
        let slots = sent.of_slots(x).reshape(dims![count, width]);
        let of_expert = dims![experts, count];
        let expert = index.reshape(dims![count]).unsqueeze(0);
        let chosen = expert
            .equals(self.capture.iota(of_expert, 0))
            .cast(Scalar::F32);
        let squares = chosen.contract_in_f32((slots * slots).permute(&[1, 0]));
        let name = weight.name.clone();
        self.add_to("squares", Bind::Squares(name.clone()), squares);
        self.add_to("rows", Bind::ExpertRows(name), chosen.sum(&[1]));
    }
}
