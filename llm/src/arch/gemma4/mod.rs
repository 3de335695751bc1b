//! `gemma4`: Gemma 4. Layers with windows and layers that see all positions differ in the sizes of their heads; the last layers may read the caches of
//! layers before them; every layer may get numbers of its own of each token; experts may stand beside the dense feed-forward.

mod hyper;
mod layer;

use super::attention::{Norms, Parts};
use super::cache::CacheSpec;
use super::ends::Ends;
use super::feed_forward;
use super::reader::Reader;
use super::rope::RopeTable;
use super::step::StepBuilder;
use super::tensors::{Checked, Table, TensorSpec};
use super::{Architecture, Model, ModelInfo, Result, Tensors};
use crate::gguf::{Metadata, Role};
use hyper::Hyper;

/// `general.architecture`.
const NAME: &str = "gemma4";

/// This architecture.
pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: NAME, load, tensors: |m, t| Ok(table(&Hyper::read(&Reader::new(m, NAME), t)?, t)) };

/// The model of a file.
fn load(metadata: &Metadata, tensors: &dyn Tensors) -> Result<Box<dyn Model>> {
    let r = &Reader::new(metadata, NAME);
    let hyper = Hyper::read(r, tensors)?;
    let h = &hyper;
    let info = ModelInfo {
        architecture: NAME,
        layers: h.layers,
        vocabulary: h.vocabulary,
        width: h.d,
        context: h.context,
        summary: h.summary(),
        warnings: Vec::new(),
    };
    let checked = Checked::new(table(h, tensors), h.layers, tensors)?;
    let rope = h.rope_tables(r, tensors)?;
    let caches = h.attention.iter().map(|a| a.cache()).collect();
    Ok(Box::new(Gemma4 { hyper, info, tensors: checked, caches, rope }))
}

/// All tensors, in the order of files.
fn table(h: &Hyper, there: &dyn Tensors) -> Vec<TensorSpec> {
    let mut t = Table::new(there);
    t.ends(h.vocabulary, h.d);
    t.optional("rope_freqs.weight", Role::Norm, &[h.pairs()]);
    if h.input > 0 {
        t.need("per_layer_token_embd.weight", Role::Matrix, &[h.vocabulary, h.layers * h.input]);
        t.need("per_layer_model_proj.weight", Role::Matrix, &[h.layers * h.input, h.d]);
        t.need("per_layer_proj_norm.weight", Role::Norm, &[h.input]);
    }
    for (layer, attention) in h.attention.iter().enumerate() {
        t.block(layer);
        // Of layers with a window none has keys for values.
        let keys_as_values = attention.window.is_none();
        let parts = Parts { before: true, norms: Norms::Heads, biases: false, sinks: false, keys_as_values };
        attention.tensors(&mut t, h.d, parts);
        t.need("post_attention_norm.weight", Role::Norm, &[h.d]);
        t.need("ffn_norm.weight", Role::Norm, &[h.d]);
        feed_forward::tensors(&mut t, h.ff[layer], h.d, false);
        t.need("post_ffw_norm.weight", Role::Norm, &[h.d]);
        if let Some(experts) = h.experts.as_ref().filter(|_| t.has("ffn_gate_inp.weight")) {
            t.need("ffn_gate_inp.scale", Role::Norm, &[h.d]);
            experts.tensors(&mut t, h.d);
            for norm in ["post_ffw_norm_1.weight", "pre_ffw_norm_2.weight", "post_ffw_norm_2.weight"] {
                t.need(norm, Role::Norm, &[h.d]);
            }
        }
        if h.input > 0 {
            t.need("inp_gate.weight", Role::Matrix, &[h.input, h.d]);
            t.need("proj.weight", Role::Matrix, &[h.d, h.input]);
            t.need("post_norm.weight", Role::Norm, &[h.d]);
        }
        t.optional("layer_output_scale.weight", Role::Norm, &[1]);
    }
    t.finish()
}

/// A model of this architecture.
struct Gemma4 {
    hyper: Hyper,
    info: ModelInfo,
    tensors: Checked,
    caches: Vec<CacheSpec>,
    rope: Vec<RopeTable>,
}

impl Model for Gemma4 {
    fn info(&self) -> &ModelInfo {
        &self.info
    }
    fn tensors(&self) -> &[TensorSpec] {
        &self.tensors.table
    }
    fn caches(&self) -> &[CacheSpec] {
        &self.caches
    }
    fn rope_tables(&self, _: usize) -> Vec<RopeTable> {
        self.rope.clone()
    }
    fn layer_input(&self) -> usize {
        self.hyper.input
    }
    fn build(&self, step: &mut StepBuilder) {
        let h = &self.hyper;
        let plain = Ends::plain(h.layers, h.d, h.vocabulary, h.eps);
        let ends = Ends { embedding_scale: (h.d as f64).sqrt(), cap: h.cap, ..plain };
        ends.embed(step, &self.tensors.globals);
        if h.input > 0 {
            layer::inputs(step, h, &self.tensors.globals);
        }
        for (layer, weights) in self.tensors.blocks.iter().enumerate() {
            layer::block(step, h, weights, layer);
        }
        ends.head(step, &self.tensors.globals);
    }
}
