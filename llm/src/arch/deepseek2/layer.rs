//! A block: latent attention and a feed-forward. `docs/deepseek2.md`, section 3.

use super::super::Bind;
use super::super::feed_forward;
use super::super::moe;
use super::super::step::{Sight, Step, StepBuilder};
use super::super::tensors::Weights;
use super::hyper::Hyper;
use gristmill_tensor::dims;
use gristmill_tensor::nn::{self, Glu, Pairing};
use gristmill_tensor::tensor::{Dim, Tensor};

/// Block `layer`: hidden rows `[n, d]` and the cache to hidden rows and the cache with the rows of these tokens.
pub(super) fn block(step: &mut StepBuilder, h: &Hyper, w: &Weights, layer: usize) {
    let routed = w.has("ffn_gate_inp.weight");
    step.call(if routed { "moe" } else { "dense" }, |s| {
        let x = s.hidden(layer, h.d);
        let x = x + attention(s, h, w, layer, nn::rms_norm(x, s.weight(w, "attn_norm.weight"), h.eps));
        let y = nn::rms_norm(x, s.weight(w, "ffn_norm.weight"), h.eps);
        let ffn = match &h.experts {
            Some(e) if routed => moe::experts(s, e, w, y),
            _ => feed_forward::dense(s, w, Glu::Swiglu, y),
        };
        s.output("y", Bind::Hidden(layer + 1), x + ffn);
    });
}

/// The matrices of every head, of keys `[heads, nope, kv_rank]` and of values `[heads, value, kv_rank]`.
///
/// The older format holds both in one tensor, per head `nope` rows for keys, then `value` rows; the newer one has the keys' transposed. These are
/// views: nothing is packed again.
fn latent_heads<'g>(s: &'g Step, h: &Hyper, w: &Weights) -> (Tensor<'g>, Tensor<'g>) {
    if h.split {
        return (s.weight(w, "attn_k_b.weight").permute(&[0, 2, 1]), s.weight(w, "attn_v_b.weight"));
    }
    let both = s.weight(w, "attn_kv_b.weight").reshape(dims![h.heads, h.nope + h.value, h.kv_rank]);
    (both.slice(1, 0, h.nope), both.slice(1, h.nope, h.value))
}

/// Multi-head latent attention of normed rows `x [n, d]`; writes their rows into the cache. Returns `[n, d]`.
fn attention<'g>(s: &'g Step, h: &Hyper, w: &Weights, layer: usize, x: Tensor<'g>) -> Tensor<'g> {
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

    // One row a token: the normed latent, then the rotated key that all heads share.
    let row = s.linear(w, x, "attn_kv_a_mqa.weight");
    let latent = nn::rms_norm(row.slice(1, 0, h.kv_rank), s.weight(w, "attn_kv_a_norm.weight"), h.latent_eps);
    let key = nn::rope(row.slice(1, h.kv_rank, h.rope).unsqueeze(1), turns, Pairing::Interleaved).squeeze(1);
    let (cache, _) = s.cached(layer, 0, h.cache(), Tensor::cat(&[latent, key], 1));

    // Keys and values of every head at every position, as they are defined: whether any of them is ever computed is the compiler's choice (`alternatives`).
    let (k_b, v_b) = latent_heads(s, h, w);
    let sight = Sight { scores: h.score_scale.into(), window: None, sinks: None };
    let rows = s.seen(cache);
    let keys = rows.map(|rows| {
        let at = rows.rank() - 1;
        let key = rows.slice(at, h.kv_rank, h.rope).unsqueeze(at).expand(&each(rows, &[heads, h.rope]));
        Tensor::cat(&[of_heads(h, rows, k_b), key], at + 1)
    });
    let values = rows.map(|rows| of_heads(h, rows, v_b));
    let heads_out = s.attention(&[q_nope, q_pe], [keys, values], sight);
    s.linear(w, heads_out.reshape(dims![n, heads * h.value]), "attn_output.weight")
}

/// The axes of cached rows but for the last, then these.
fn each(rows: Tensor, rest: &[usize]) -> Vec<Dim> {
    let positions = rows.dims().into_iter().take(rows.rank() - 1).map(Dim::Of);
    positions.chain(rest.iter().copied().map(Dim::Size)).collect()
}

/// The latents of cached rows, as they are cached, whatever the weight is stored as, through the matrix of every head.
fn of_heads<'g>(h: &Hyper, rows: Tensor<'g>, matrices: Tensor<'g>) -> Tensor<'g> {
    let at = rows.rank() - 1;
    let latents = rows.slice(at, 0, h.kv_rank).reshape(&each(rows, &[1, 1, h.kv_rank]));
    (matrices * latents).sum(&[at + 2])
}
