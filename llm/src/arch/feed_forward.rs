//! Gated feed-forward of a layer, also used for shared experts.

use super::step::StepFunction;
use super::tensors::{LayerWeights, TensorTable};
use crate::gguf::Role;
use gristmill_tensor::nn::Glu;
use gristmill_tensor::tensor::Tensor;

/// Adds the tensors of a dense feed-forward of width `ff` to the current block. If `fused`,
/// `ffn_up` holds the rows of the gate, then those of the up projection.
pub(super) fn tensors(t: &mut TensorTable, ff: usize, d: usize, fused: bool) {
    if !fused {
        t.need("ffn_gate.weight", Role::Matrix, &[ff, d]);
    }
    t.need("ffn_down.weight", t.down(), &[d, ff]);
    t.need(
        "ffn_up.weight",
        Role::Matrix,
        &[if fused { 2 * ff } else { ff }, d],
    );
}

/// Computes the dense feed-forward of a block for `x [n, d]`.
pub(super) fn dense<'g>(
    s: &'g StepFunction,
    w: &LayerWeights,
    glu: Glu,
    x: Tensor<'g>,
) -> Tensor<'g> {
    if w.has("ffn_gate.weight") {
        return gated(
            s,
            w,
            glu,
            x,
            ["ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"],
        );
    }
    let ff = w.get("ffn_down.weight").dims[1];
    let both = s.linear(w, x, "ffn_up.weight");
    s.linear(
        w,
        glu.apply(both.slice(1, 0, ff), both.slice(1, ff, ff)),
        "ffn_down.weight",
    )
}

/// Computes a gated feed-forward of `x [n, d]` from the tensors `names`: gate, up, down.
pub(super) fn gated<'g>(
    s: &'g StepFunction,
    w: &LayerWeights,
    glu: Glu,
    x: Tensor<'g>,
    names: [&str; 3],
) -> Tensor<'g> {
    let [gate, up, down] = names;
    let (gate, up) = (s.linear(w, x, gate), s.linear(w, x, up));
    s.linear(w, glu.apply(gate, up), down)
}
