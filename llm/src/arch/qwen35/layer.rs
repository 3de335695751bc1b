//! A block of `qwen35`: gated attention or a gated delta net, then a feed-forward or experts, each
//! with a residual addition.

use super::super::step::{StepBuilder, StepFunction};
use super::super::tensors::LayerWeights;
use super::super::{Bind, feed_forward, moe};
use super::hyper::{DeltaNet, Qwen35Hparams};
use gristmill_tensor::dims;
use gristmill_tensor::nn::{self, Glu};
use gristmill_tensor::tensor::{Recurrence, Tensor};

/// Builds block `layer`: maps hidden rows `[n, d]` to hidden rows and updates its KV
/// cache or recurrent states.
pub(super) fn block(step: &mut StepBuilder, h: &Qwen35Hparams, w: &LayerWeights, layer: usize) {
    let part = match (h.attends(layer), h.experts.is_some()) {
        (true, false) => "dense",
        (true, true) => "moe",
        (false, false) => "delta",
        (false, true) => "delta_moe",
    };
    step.call(part, |s| {
        let x = s.hidden(layer, h.d);
        let y = nn::rms_norm(x, s.weight(w, "attn_norm.weight"), h.eps);
        let mixed = match h.attends(layer) {
            true => h.attention.write(s, w, layer, y),
            false => delta_net(s, &h.delta, h.eps, w, layer, y),
        };
        let x = x + mixed;
        let y = nn::rms_norm(x, s.weight(w, "post_attention_norm.weight"), h.eps);
        let ffn = match &h.experts {
            Some(experts) => moe::experts(s, experts, w, y),
            None => feed_forward::dense(s, w, Glu::Swiglu, y),
        };
        s.output("y", Bind::Hidden(layer + 1), x + ffn);
    });
}

/// Computes the gated delta net of normed rows `x [n, d]`. Returns `[n, d]`.
fn delta_net<'g>(
    s: &'g StepFunction,
    h: &DeltaNet,
    eps: f64,
    w: &LayerWeights,
    layer: usize,
    x: Tensor<'g>,
) -> Tensor<'g> {
    let (n, width, heads) = (s.tokens(), h.width, h.heads);
    let [keys, values] = h.widths();
    let mixed = convolution(s, h, w, layer, s.linear(w, x, "attn_qkv.weight"));
    // In batched decode the sequences' heads are concatenated along the head axis.
    let [sequences, tokens] = s.sequences();
    let all_heads = sequences * heads as i64;
    // Repeats the query and key heads to the number of value heads.
    let of_heads = |begin: usize| {
        let x = mixed
            .slice(1, begin, keys)
            .reshape(dims![n, h.key_heads, width]);
        let x = x * ((x * x).sum(&[2]) + eps).sqrt().recip().unsqueeze(2);
        let x = x
            .unsqueeze(1)
            .expand(dims![n, heads / h.key_heads, h.key_heads, width]);
        x.reshape(dims![tokens, all_heads, width])
    };
    let of_each_head = |x: Tensor<'g>| x.reshape(dims![tokens, all_heads]);
    let of = Recurrence {
        queries: of_heads(0) * (1.0 / (width as f64).sqrt()),
        keys: of_heads(keys),
        values: mixed
            .slice(1, 2 * keys, values)
            .reshape(dims![tokens, all_heads, width]),
        gates: of_each_head(
            (s.linear(w, x, "ssm_alpha.weight") + s.weight(w, "ssm_dt.bias")).softplus()
                * s.weight(w, "ssm_a"),
        ),
        rates: Some(of_each_head(s.linear(w, x, "ssm_beta.weight").sigmoid())),
    };
    let state = s.state(layer, 1, "state", &[heads, width, width]);
    let before = state.before.reshape(dims![all_heads, width, width]);
    let (read, all) = of.scan(before);
    let left = match s.kept_tokens() {
        None => all,
        // Neither decay nor update by a draft.
        Some(kept) => {
            let of_kept = Recurrence {
                gates: s.of_kept(of.gates, all_heads, kept),
                rates: of.rates.map(|rates| s.of_kept(rates, all_heads, kept)),
                ..of
            };
            of_kept.scan(before).1
        }
    };
    s.write_state(&state, left);
    let read = read.reshape(dims![n, heads, width]);
    let gate = s
        .linear(w, x, "attn_gate.weight")
        .reshape(dims![n, heads, width]);
    let out = nn::rms_norm(read, s.weight(w, "ssm_norm.weight"), eps) * gate.silu();
    s.linear(w, out.reshape(dims![n, values]), "ssm_out.weight")
}

/// Computes a causal depthwise convolution of `x [n, channels]`, then SiLU. The last tap belongs
/// to the current token.
fn convolution<'g>(
    s: &'g StepFunction,
    h: &DeltaNet,
    w: &LayerWeights,
    layer: usize,
    x: Tensor<'g>,
) -> Tensor<'g> {
    let (n, channels, kept) = (s.tokens(), h.channels(), h.kernel - 1);
    let ([_, tokens], (x, axis)) = (s.sequences(), s.sequence_rows(x));
    let state = s.state(layer, 0, "conv", &[kept, channels]);
    let all = Tensor::cat(&[state.before, x], axis);
    let last = s.kept_tokens().unwrap_or(tokens);
    s.write_state(&state, all.slice(axis, last, kept));
    let factors = s.weight(w, "ssm_conv1d.weight");
    let of =
        |j: usize| all.slice(axis, j, tokens) * factors.slice(1, j, 1).reshape(dims![channels]);
    let sum = (0..h.kernel)
        .map(of)
        .reduce(|a, b| a + b)
        .expect("a kernel of two at least");
    sum.reshape(dims![n, channels]).silu()
}
