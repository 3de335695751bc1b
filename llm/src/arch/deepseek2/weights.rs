//! The tensors a model must have, with the dims its hyper-parameters demand.

use super::super::{Error, Result, Tensors};
use super::hyper::Hyper;
use gristmill_uop::encoding::EncodingRef;
use std::collections::HashMap;

/// A packed tensor of the model.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Weight {
    /// Its name in the file.
    pub name: String,
    /// Row-major: rows first, elements of a row last.
    pub dims: Vec<usize>,
    /// How it is packed.
    pub encoding: EncodingRef,
}

/// The tensors of one block, or those of no block, by the part of their name that all blocks share.
#[derive(Clone, Default, Debug)]
pub(super) struct Weights(HashMap<&'static str, Weight>);

impl Weights {
    /// The tensor of that name, which was checked to exist.
    pub fn get(&self, name: &str) -> &Weight {
        self.0.get(name).unwrap_or_else(|| panic!("{name} is not among the tensors demanded"))
    }
    /// Was it demanded?
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
    fn demand(&mut self, tensors: &dyn Tensors, prefix: &str, wanted: &[(&'static str, &[usize])]) -> Result<()> {
        for &(short, dims) in wanted {
            let name = format!("{prefix}{short}");
            let Some((found, encoding)) = tensors.find(&name) else { return Err(Error::MissingTensor(name)) };
            let expected: Vec<u64> = dims.iter().rev().map(|&d| d as u64).collect();
            // Axes of length 1 at the end are a matter of taste.
            let trim = |d: &[u64]| d.iter().rposition(|&n| n != 1).map_or(0, |i| i + 1);
            if found[..trim(&found)] != expected[..trim(&expected)] {
                return Err(Error::Shape { tensor: name, found, expected });
            }
            self.0.insert(short, Weight { name, dims: dims.to_vec(), encoding });
        }
        Ok(())
    }
}

/// Embedding, output norm and head. A file without a head uses the embedding for it.
pub(super) fn globals(h: &Hyper, tensors: &dyn Tensors) -> Result<Weights> {
    let mut w = Weights::default();
    w.demand(tensors, "", &[("token_embd.weight", &[h.vocabulary, h.d]), ("output_norm.weight", &[h.d])])?;
    if tensors.find("output.weight").is_some() {
        w.demand(tensors, "", &[("output.weight", &[h.vocabulary, h.d])])?;
    }
    Ok(w)
}

/// The tensors of block `layer`, all dims row-major.
pub(super) fn block(h: &Hyper, layer: usize, tensors: &dyn Tensors) -> Result<Weights> {
    let prefix = format!("blk.{layer}.");
    let mut w = Weights::default();
    let (d, heads, latent) = (h.d, h.heads, h.kv_rank);
    let q = heads * (h.nope + h.rope);
    let mut need = |wanted: &[(&'static str, &[usize])]| w.demand(tensors, &prefix, wanted);
    need(&[
        ("attn_norm.weight", &[d]),
        ("attn_kv_a_mqa.weight", &[h.cached(), d]),
        ("attn_kv_a_norm.weight", &[latent]),
        ("attn_output.weight", &[d, heads * h.value]),
        ("ffn_norm.weight", &[d]),
    ])?;
    match h.q_rank {
        None => need(&[("attn_q.weight", &[q, d])])?,
        Some(rank) => need(&[
            ("attn_q_a.weight", &[rank, d]),
            ("attn_q_a_norm.weight", &[rank]),
            ("attn_q_b.weight", &[q, rank]),
        ])?,
    }
    match h.split {
        true => need(&[("attn_k_b.weight", &[heads, latent, h.nope]), ("attn_v_b.weight", &[heads, h.value, latent])])?,
        false => need(&[("attn_kv_b.weight", &[heads * (h.nope + h.value), latent])])?,
    }
    let Some(e) = h.experts.as_ref().filter(|_| layer >= h.dense) else {
        let ff = h.ff[layer];
        need(&[("ffn_gate.weight", &[ff, d]), ("ffn_up.weight", &[ff, d]), ("ffn_down.weight", &[d, ff])])?;
        return Ok(w);
    };
    need(&[("ffn_gate_inp.weight", &[e.count, d]), ("ffn_down_exps.weight", &[e.count, d, e.ff])])?;
    if tensors.find(&format!("{prefix}ffn_gate_up_exps.weight")).is_some() {
        need(&[("ffn_gate_up_exps.weight", &[e.count, 2 * e.ff, d])])?;
    } else {
        need(&[("ffn_gate_exps.weight", &[e.count, e.ff, d]), ("ffn_up_exps.weight", &[e.count, e.ff, d])])?;
    }
    if tensors.find(&format!("{prefix}exp_probs_b.bias")).is_some() {
        need(&[("exp_probs_b.bias", &[e.count])])?;
    }
    if e.shared_ff > 0 {
        need(&[
            ("ffn_gate_shexp.weight", &[e.shared_ff, d]),
            ("ffn_up_shexp.weight", &[e.shared_ff, d]),
            ("ffn_down_shexp.weight", &[d, e.shared_ff]),
        ])?;
    }
    Ok(w)
}
