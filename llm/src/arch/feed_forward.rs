//! A feed-forward: a whole layer's, or one expert's that every token goes through.

use super::step::Step;
use super::tensors::{Table, Weights};
use crate::gguf::Role;
use gristmill_tensor::nn::Glu;
use gristmill_tensor::tensor::Tensor;

/// Lists the tensors of a dense one of width `ff`, of rows of `d`, in the current block. Of `fused` ones the matrix of `up` has the rows of the gate
/// first.
pub(super) fn tensors(t: &mut Table, ff: usize, d: usize, fused: bool) {
    if !fused {
        t.need("ffn_gate.weight", Role::Matrix, &[ff, d]);
    }
    t.need("ffn_down.weight", t.down(), &[d, ff]);
    t.need("ffn_up.weight", Role::Matrix, &[if fused { 2 * ff } else { ff }, d]);
}

/// The dense one of a block, of `x [n, d]`.
pub(super) fn dense<'g>(s: &'g Step, w: &Weights, glu: Glu, x: Tensor<'g>) -> Tensor<'g> {
    if w.has("ffn_gate.weight") {
        return gated(s, w, glu, x, ["ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"]);
    }
    let ff = w.get("ffn_down.weight").dims[1];
    let both = s.linear(w, x, "ffn_up.weight");
    s.linear(w, glu.of(both.slice(1, 0, ff), both.slice(1, ff, ff)), "ffn_down.weight")
}

/// A feed-forward of three tensors, of `x [n, d]`.
pub(super) fn gated<'g>(s: &'g Step, w: &Weights, glu: Glu, x: Tensor<'g>, names: [&str; 3]) -> Tensor<'g> {
    let [gate, up, down] = names;
    let (gate, up) = (s.linear(w, x, gate), s.linear(w, x, up));
    s.linear(w, glu.of(gate, up), down)
}
