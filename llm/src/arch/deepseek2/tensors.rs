//! Tensor table of a `deepseek2` model.

use super::super::tensors::{TensorSpec, TensorTable};
use super::super::{Tensors, feed_forward};
use super::hyper::DeepseekHparams;
use crate::gguf::Role;

/// Lists all tensors in file order. Optional tensors are listed only if the file has them.
pub(super) fn table(h: &DeepseekHparams, there: &dyn Tensors) -> Vec<TensorSpec> {
    let mut t = TensorTable::new(there);
    t.embed_and_head(h.vocabulary, h.d);
    let block = |t: &mut TensorTable, layer: usize| {
        attention(h, t);
        t.need("ffn_norm.weight", Role::Norm, &[h.d]);
        match h.experts.as_ref().filter(|_| layer >= h.dense) {
            Some(experts) => experts.tensors(t, h.d),
            None => feed_forward::tensors(t, h.ff[layer.min(h.layers - 1)], h.d, false),
        }
    };
    t.blocks(h.layers, [h.vocabulary, h.d], &block);
    t.finish()
}

fn attention(h: &DeepseekHparams, t: &mut TensorTable) {
    let (d, heads, latent) = (h.d, h.heads, h.kv_rank);
    let q = heads * (h.nope + h.rope);
    t.need("attn_norm.weight", Role::Norm, &[d]);
    match h.q_rank {
        None => t.need("attn_q.weight", Role::Matrix, &[q, d]),
        Some(rank) => {
            t.need("attn_q_a.weight", Role::Matrix, &[rank, d]);
            t.need("attn_q_a_norm.weight", Role::Norm, &[rank]);
            t.need("attn_q_b.weight", Role::Matrix, &[q, rank]);
        }
    }
    t.need("attn_kv_a_mqa.weight", Role::Matrix, &[h.cached(), d]);
    t.need("attn_kv_a_norm.weight", Role::Norm, &[latent]);
    if h.split {
        t.need("attn_k_b.weight", Role::Matrix, &[heads, latent, h.nope]);
        t.need("attn_v_b.weight", Role::Matrix, &[heads, h.value, latent]);
    } else {
        t.need(
            "attn_kv_b.weight",
            Role::Matrix,
            &[heads * (h.nope + h.value), latent],
        );
    }
    t.need("attn_output.weight", Role::Matrix, &[d, heads * h.value]);
}
