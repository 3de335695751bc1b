//! The tensors of a model of these hyper-parameters.

use super::super::tensors::{Table, TensorSpec};
use super::super::{Tensors, feed_forward};
use super::hyper::Hyper;
use crate::gguf::Role;

/// All of them, in the order of files. Of tensors whose absence has a meaning, those that are there.
pub(super) fn table(h: &Hyper, there: &dyn Tensors) -> Vec<TensorSpec> {
    let mut t = Table::new(there);
    t.ends(h.vocabulary, h.d);
    for layer in 0..h.layers {
        t.block(layer);
        attention(h, &mut t);
        t.need("ffn_norm.weight", Role::Norm, &[h.d]);
        match h.experts.as_ref().filter(|_| layer >= h.dense) {
            Some(experts) => experts.tensors(&mut t, h.d),
            None => feed_forward::tensors(&mut t, h.ff[layer], h.d, false),
        }
    }
    t.finish()
}

fn attention(h: &Hyper, t: &mut Table) {
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
        t.need("attn_kv_b.weight", Role::Matrix, &[heads * (h.nope + h.value), latent]);
    }
    t.need("attn_output.weight", Role::Matrix, &[d, heads * h.value]);
}
