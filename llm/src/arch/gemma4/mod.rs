//! `gemma4`: Gemma 4.
//!
//! Windowed and full-attention layers differ in head sizes. Optional: the last layers read the KV
//! caches of earlier layers, every layer gets a token input of its own, and experts are added to
//! the dense feed-forward. An assistant drafts tokens.

mod assistant;
mod hyper;
mod layer;

use super::attention::{Norms, QkvTensors};
use super::cache::CacheSpec;
use super::embed_head::EmbedAndHead;
use super::feed_forward;
use super::reader::Reader;
use super::rope::RopeTable;
use super::step::StepBuilder;
use super::tensors::{Checked, TensorSpec, TensorTable};
use super::{Architecture, Model, ModelInfo, Result, Tensors};
use crate::gguf::{Metadata, Role};
use assistant::Assistant;
pub use assistant::{BEFORE as ASSISTANT_PROJECTION, HEAD as ASSISTANT_HEAD};
use hyper::Gemma4Hparams;

/// Value of `general.architecture`.
const NAME: &str = "gemma4";

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    load,
    tensors: |m, t| {
        let hyper = Gemma4Hparams::read(&Reader::new(m, NAME), t)?;
        let assistant = Assistant::read(m, &hyper, t)?;
        Ok(table(&hyper, assistant.as_ref(), t))
    },
};

/// Loads a model from metadata and tensors.
fn load(metadata: &Metadata, tensors: &dyn Tensors) -> Result<Box<dyn Model>> {
    let r = &Reader::new(metadata, NAME);
    let hyper = Gemma4Hparams::read(r, tensors)?;
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
    let mut assistant = Assistant::read(metadata, h, tensors)?;
    let table = table(h, assistant.as_ref(), tensors);
    let checked = Checked::new(table, h.layers, tensors)?;
    let mut rope = h.rope_tables(r, tensors)?.to_vec();
    if let Some(assistant) = &mut assistant {
        assistant.add_rope_tables(metadata, tensors, &mut rope)?;
    }
    let caches = h.attention.iter().map(|a| a.cache()).collect();
    Ok(Box::new(Gemma4 {
        hyper,
        assistant,
        info,
        tensors: checked,
        caches,
        rope,
    }))
}

/// Lists all tensors in file order.
fn table(h: &Gemma4Hparams, assistant: Option<&Assistant>, there: &dyn Tensors) -> Vec<TensorSpec> {
    let mut t = TensorTable::new(there);
    t.embed_and_head(h.vocabulary, h.d);
    t.optional("rope_freqs.weight", Role::Norm, &[h.pairs()]);
    if h.input > 0 {
        t.need(
            "per_layer_token_embd.weight",
            Role::Matrix,
            &[h.vocabulary, h.layers * h.input],
        );
        t.need(
            "per_layer_model_proj.weight",
            Role::Matrix,
            &[h.layers * h.input, h.d],
        );
        t.need("per_layer_proj_norm.weight", Role::Norm, &[h.input]);
    }
    for (layer, attention) in h.attention.iter().enumerate() {
        t.block(layer);
        // Windowed layers always have a value matrix.
        let keys_as_values = attention.window.is_none();
        let parts = QkvTensors {
            before: true,
            norms: Norms::Heads,
            biases: false,
            sinks: false,
            keys_as_values,
        };
        attention.tensors(&mut t, h.d, parts);
        t.need("post_attention_norm.weight", Role::Norm, &[h.d]);
        t.need("ffn_norm.weight", Role::Norm, &[h.d]);
        feed_forward::tensors(&mut t, h.ff[layer], h.d, false);
        t.need("post_ffw_norm.weight", Role::Norm, &[h.d]);
        if let Some(experts) = h.experts.as_ref().filter(|_| t.has("ffn_gate_inp.weight")) {
            t.need("ffn_gate_inp.scale", Role::Norm, &[h.d]);
            experts.tensors(&mut t, h.d);
            for norm in [
                "post_ffw_norm_1.weight",
                "pre_ffw_norm_2.weight",
                "post_ffw_norm_2.weight",
            ] {
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
    if let Some(assistant) = assistant {
        assistant.tensors(&mut t, h);
    }
    t.finish()
}

/// A loaded `gemma4` model.
struct Gemma4 {
    hyper: Gemma4Hparams,
    assistant: Option<Assistant>,
    info: ModelInfo,
    tensors: Checked,
    caches: Vec<CacheSpec>,
    rope: Vec<RopeTable>,
}

impl Gemma4 {
    /// Returns embedding and head.
    fn ends(&self) -> EmbedAndHead {
        let h = &self.hyper;
        EmbedAndHead {
            embedding_scale: (h.d as f64).sqrt(),
            cap: h.cap,
            ..EmbedAndHead::plain(h.layers, h.d, h.vocabulary, h.eps)
        }
    }
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
    fn draft_layers(&self) -> &[usize] {
        self.assistant.as_ref().map_or(&[], |of| &of.read)
    }
    fn build_draft(&self, step: &mut StepBuilder) {
        if let Some(assistant) = &self.assistant {
            assistant.build(step, &self.ends(), &self.tensors);
        }
    }
    fn build(&self, step: &mut StepBuilder) {
        let (h, ends) = (&self.hyper, self.ends());
        ends.embed(step, &self.tensors.globals);
        if h.input > 0 {
            layer::inputs(step, h, &self.tensors.globals);
        }
        for (layer, weights) in self.tensors.blocks.iter().enumerate().take(h.layers) {
            layer::block(step, h, weights, layer);
        }
        ends.head(step, &self.tensors.globals);
    }
}
