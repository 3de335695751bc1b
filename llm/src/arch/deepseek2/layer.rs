//! A block of `deepseek2`: latent attention and a feed-forward. `docs/deepseek2.md`, section 3.

use super::super::Bind;
use super::super::feed_forward;
use super::super::moe;
use super::super::step::{AttentionMask, StepBuilder, StepFunction};
use super::super::tensors::LayerWeights;
use super::hyper::DeepseekHparams;
use gristmill_tensor::dims;
use gristmill_tensor::nn::{self, Glu, Pairing};
use gristmill_tensor::tensor::{Dim, Tensor};

/// Builds block `layer`: maps hidden rows `[n, d]` to hidden rows and updates the latent KV cache.
pub(super) fn block(step: &mut StepBuilder, h: &DeepseekHparams, w: &LayerWeights, layer: usize) {
    let routed = w.has("ffn_gate_inp.weight");
    step.call(if routed { "moe" } else { "dense" }, |s| {
        let x = s.hidden(layer, h.d);
        let x = x + attention(
            s,
            h,
            w,
            layer,
            nn::rms_norm(x, s.weight(w, "attn_norm.weight"), h.eps),
        );
        let y = nn::rms_norm(x, s.weight(w, "ffn_norm.weight"), h.eps);
        let ffn = match &h.experts {
            Some(e) if routed => moe::experts(s, e, w, y),
            _ => feed_forward::dense(s, w, Glu::Swiglu, y),
        };
        s.output("y", Bind::Hidden(layer + 1), x + ffn);
    });
}

/// Returns the per-head matrices of keys `[heads, nope, kv_rank]` and values
/// `[heads, value, kv_rank]`.
///
/// The older format holds both in one tensor: per head `nope` rows for keys, then `value` rows.
/// The newer format has separate tensors, with the keys' matrix transposed. Both results are
/// views; no data is repacked.
fn latent_heads<'g>(
    s: &'g StepFunction,
    h: &DeepseekHparams,
    w: &LayerWeights,
) -> (Tensor<'g>, Tensor<'g>) {
    if h.split {
        return (
            s.weight(w, "attn_k_b.weight").permute(&[0, 2, 1]),
            s.weight(w, "attn_v_b.weight"),
        );
    }
    let both = s
        .weight(w, "attn_kv_b.weight")
        .reshape(dims![h.heads, h.nope + h.value, h.kv_rank]);
    (both.slice(1, 0, h.nope), both.slice(1, h.nope, h.value))
}

/// Computes multi-head latent attention of normed rows `x [n, d]` and writes their cache
/// rows. Returns `[n, d]`.
fn attention<'g>(
    s: &'g StepFunction,
    h: &DeepseekHparams,
    w: &LayerWeights,
    layer: usize,
    x: Tensor<'g>,
) -> Tensor<'g> {
    let (n, heads) = (s.tokens(), h.heads);
    let turns = s.rope(0, h.rope);
    let q = match h.q_rank {
        None => s.linear(w, x, "attn_q.weight"),
        Some(_) => {
            let latent = s.linear(w, x, "attn_q_a.weight");
            let latent = nn::rms_norm(latent, s.weight(w, "attn_q_a_norm.weight"), h.latent_eps);
            s.linear(w, latent, "attn_q_b.weight")
        }
    };
    let q = q.reshape(dims![n, heads, h.nope + h.rope]);
    let q_nope = q.slice(2, 0, h.nope);
    let q_pe = nn::rope(q.slice(2, h.nope, h.rope), turns, Pairing::Interleaved);

    // One cache row per token: the normed latent, then the rotated key that all heads share.
    let row = s.linear(w, x, "attn_kv_a_mqa.weight");
    let latent = nn::rms_norm(
        row.slice(1, 0, h.kv_rank),
        s.weight(w, "attn_kv_a_norm.weight"),
        h.latent_eps,
    );
    let key = nn::rope(
        row.slice(1, h.kv_rank, h.rope).unsqueeze(1),
        turns,
        Pairing::Interleaved,
    )
    .squeeze(1);
    let (cache, _) = s.cached(layer, 0, h.cache(), Tensor::cat(&[latent, key], 1));

    // Keys and values of every head at every position, as the definition states them. The compiler
    // decides (`alternatives`) whether they are ever materialised.
    let (k_b, v_b) = latent_heads(s, h, w);
    let sight = AttentionMask {
        scores: h.score_scale.into(),
        window: None,
        sinks: None,
    };
    let rows = s.visible(cache);
    let keys = rows.map(|rows| {
        let at = rows.rank() - 1;
        let key = rows
            .slice(at, h.kv_rank, h.rope)
            .unsqueeze(at)
            .expand(&each(rows, &[heads, h.rope]));
        Tensor::cat(&[of_heads(h, rows, k_b), key], at + 1)
    });
    let values = rows.map(|rows| of_heads(h, rows, v_b));
    let heads_out = s.attention(&[q_nope, q_pe], [keys, values], sight);
    s.linear(
        w,
        heads_out.reshape(dims![n, heads * h.value]),
        "attn_output.weight",
    )
}

/// Returns the axes of cached rows without the last, followed by `rest`.
fn each(rows: Tensor, rest: &[usize]) -> Vec<Dim> {
    let positions = rows.dims().into_iter().take(rows.rank() - 1).map(Dim::Of);
    positions
        .chain(rest.iter().copied().map(Dim::Size))
        .collect()
}

/// Multiplies the latents of cached rows by the matrix of every head.
fn of_heads<'g>(h: &DeepseekHparams, rows: Tensor<'g>, matrices: Tensor<'g>) -> Tensor<'g> {
    let at = rows.rank() - 1;
    let latents = rows
        .slice(at, 0, h.kv_rank)
        .reshape(&each(rows, &[1, 1, h.kv_rank]));
    (matrices * latents).sum(&[at + 2])
}
