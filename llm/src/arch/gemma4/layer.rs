//! A block of `gemma4`: attention, then a feed-forward with optional experts, each with pre- and
//! post-norms and a residual addition. Then comes the optional per-layer token input, and a scale
//! of the output.

use super::super::step::{StepBuilder, StepFunction};
use super::super::tensors::LayerWeights;
use super::super::{Bind, feed_forward, moe};
use super::hyper::Gemma4Hparams;
use gristmill_tensor::dims;
use gristmill_tensor::nn::{self, Glu};
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;
use std::f64::consts::FRAC_1_SQRT_2;

/// Builds the per-layer inputs from token ids and the embedding: `[n, layers·input]`.
pub(super) fn inputs(step: &mut StepBuilder, h: &Gemma4Hparams, globals: &LayerWeights) {
    step.call("inputs", |s| {
        let n = s.tokens();
        let tokens = s.input("tokens", Bind::Tokens, dims![n], Scalar::I32);
        let rows = s.weight(globals, "per_layer_token_embd.weight");
        let rows = rows.gather(tokens.clamp_index(h.vocabulary - 1)) * (h.input as f64).sqrt();
        let x = s.hidden(0, h.d);
        let made = x.linear(s.weight(globals, "per_layer_model_proj.weight"))
            * (1.0 / (h.d as f64).sqrt());
        let made = made.reshape(dims![n, h.layers, h.input]);
        let made = nn::rms_norm(made, s.weight(globals, "per_layer_proj_norm.weight"), h.eps);
        let made = made.reshape(dims![n, h.layers * h.input]);
        s.output("inputs", Bind::LayerInput(0), (rows + made) * FRAC_1_SQRT_2);
    });
}

/// Builds block `layer`: maps hidden rows `[n, d]` to hidden rows and updates the KV cache.
pub(super) fn block(step: &mut StepBuilder, h: &Gemma4Hparams, w: &LayerWeights, layer: usize) {
    let (attention, routed) = (&h.attention[layer], w.has("ffn_gate_inp.weight"));
    let mut part = if routed { "moe" } else { "dense" }.to_string();
    for (kind, is) in [
        (".window", attention.window.is_some()),
        (".reading", attention.reads.is_some()),
    ] {
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
                // The router's input is `x` with an RMS norm and a scale of its own.
                let router = nn::rms(x, h.eps)
                    * (1.0 / (h.d as f64).sqrt())
                    * s.weight(w, "ffn_gate_inp.scale");
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

/// Projects the layer's token input, gated by rows `x [n, d]`, to `[n, d]`.
fn own<'g>(
    s: &'g StepFunction,
    h: &Gemma4Hparams,
    w: &LayerWeights,
    layer: usize,
    x: Tensor<'g>,
) -> Tensor<'g> {
    let gate = s.linear(w, x, "inp_gate.weight");
    let gated = Glu::Geglu.apply(gate, s.layer_input(layer, h.layers, h.input));
    s.linear(w, gated, "proj.weight")
}
