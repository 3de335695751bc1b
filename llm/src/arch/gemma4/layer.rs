//! A block: attention and a feed-forward, with experts beside it perhaps, each normed and added to the rows that it reads; then what the layer makes of its
//! own numbers of each token, and a factor on all of it.

use super::super::step::{Step, StepBuilder};
use super::super::tensors::Weights;
use super::super::{Bind, feed_forward, moe};
use super::hyper::Hyper;
use gristmill_tensor::dims;
use gristmill_tensor::nn::{self, Glu};
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;
use std::f64::consts::FRAC_1_SQRT_2;

/// What each layer gets of every token, of ids and of the embedding: `[n, layers·input]`.
pub(super) fn inputs(step: &mut StepBuilder, h: &Hyper, globals: &Weights) {
    step.call("inputs", |s| {
        let n = s.tokens();
        let tokens = s.input("tokens", Bind::Tokens, dims![n], Scalar::I32);
        let rows = s.weight(globals, "per_layer_token_embd.weight");
        let rows = rows.gather(tokens.clamp_index(h.vocabulary - 1)) * (h.input as f64).sqrt();
        let x = s.hidden(0, h.d);
        let made = x.linear(s.weight(globals, "per_layer_model_proj.weight")) * (1.0 / (h.d as f64).sqrt());
        let made = made.reshape(dims![n, h.layers, h.input]);
        let made = nn::rms_norm(made, s.weight(globals, "per_layer_proj_norm.weight"), h.eps);
        let made = made.reshape(dims![n, h.layers * h.input]);
        s.output("inputs", Bind::LayerInput(0), (rows + made) * FRAC_1_SQRT_2);
    });
}

/// Block `layer`: hidden rows `[n, d]` and the cache to hidden rows and the cache with the rows of these tokens.
pub(super) fn block(step: &mut StepBuilder, h: &Hyper, w: &Weights, layer: usize) {
    let (attention, routed) = (&h.attention[layer], w.has("ffn_gate_inp.weight"));
    let mut part = if routed { "moe" } else { "dense" }.to_string();
    for (kind, is) in [(".window", attention.window.is_some()), (".reading", attention.reads.is_some())] {
        if is {
            part.push_str(kind);
        }
    }
    step.call(&part, |s| {
        let norm = |x, name| nn::rms_norm(x, s.weight(w, name), h.eps);
        let x = s.hidden(layer, h.d);
        let a = attention.write(s, w, layer, norm(x, "attn_norm.weight"));
        let x = x + norm(a, "post_attention_norm.weight");
        let dense = feed_forward::dense(s, w, Glu::Geglu, norm(x, "ffn_norm.weight"));
        let ffn = match &h.experts {
            Some(experts) if routed => {
                let dense = norm(dense, "post_ffw_norm_1.weight");
                // The router reads the rows themselves.
                let router = nn::rms(x, h.eps) * (1.0 / (h.d as f64).sqrt()) * s.weight(w, "ffn_gate_inp.scale");
                let chosen = moe::routed(s, experts, w, router, norm(x, "pre_ffw_norm_2.weight"));
                dense + norm(chosen, "post_ffw_norm_2.weight")
            }
            _ => dense,
        };
        let mut x = x + norm(ffn, "post_ffw_norm.weight");
        if h.input > 0 {
            x = x + norm(own(s, h, w, layer, x), "post_norm.weight");
        }
        if w.has("layer_output_scale.weight") {
            x = x * s.weight(w, "layer_output_scale.weight");
        }
        s.output("y", Bind::Hidden(layer + 1), x);
    });
}

/// What the layer makes of its own numbers of each token, gated by rows `x [n, d]`: `[n, d]`.
fn own<'g>(s: &'g Step, h: &Hyper, w: &Weights, layer: usize, x: Tensor<'g>) -> Tensor<'g> {
    let gate = s.linear(w, x, "inp_gate.weight");
    let gated = Glu::Geglu.of(gate, s.layer_input(layer, h.layers, h.input));
    s.linear(w, gated, "proj.weight")
}
