//! `qwen35` and `qwen35moe`: Qwen3.5. Every few layers one uses attention with output gates; the
//! others are gated delta nets with a recurrent state in place of a KV cache.

mod hyper;
mod layer;

use super::attention::{Norms, QkvTensors};
use super::cache::CacheSpec;
use super::embed_head::EmbedAndHead;
use super::feed_forward;
use super::rope::RopeTable;
use super::step::StepBuilder;
use super::tensors::{Checked, TensorSpec, TensorTable};
use super::{Architecture, Model, ModelInfo, Result, Tensors};
use crate::gguf::{Metadata, Role};
use hyper::{DeltaNet, Qwen35Hparams};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen35",
    load: |m, t| load("qwen35", false, m, t),
    tensors: |m, t| Ok(table(&Qwen35Hparams::read("qwen35", false, m, t)?, t)),
};

/// The mixture-of-experts variant.
pub(super) const WITH_EXPERTS: Architecture = Architecture {
    name: "qwen35moe",
    load: |m, t| load("qwen35moe", true, m, t),
    tensors: |m, t| Ok(table(&Qwen35Hparams::read("qwen35moe", true, m, t)?, t)),
};

/// Loads a model from metadata and tensors.
fn load(
    name: &'static str,
    experts: bool,
    metadata: &Metadata,
    tensors: &dyn Tensors,
) -> Result<Box<dyn Model>> {
    let hyper = Qwen35Hparams::read(name, experts, metadata, tensors)?;
    let h = &hyper;
    let info = ModelInfo {
        architecture: name,
        layers: h.layers,
        vocabulary: h.vocabulary,
        width: h.d,
        context: h.context,
        summary: h.summary(),
        warnings: Vec::new(),
    };
    let checked = Checked::new(table(h, tensors), h.layers, tensors)?;
    let cache = |layer| {
        if h.attends(layer) {
            h.attention.cache()
        } else {
            h.delta.cache()
        }
    };
    let caches = (0..h.layers).map(cache).collect();
    let blocks = h.layers..h.layers + checked.draft_blocks();
    Ok(Box::new(Qwen35 {
        draft_caches: blocks.map(cache).collect(),
        hyper,
        info,
        tensors: checked,
        caches,
    }))
}

/// Lists all tensors in file order.
fn table(h: &Qwen35Hparams, there: &dyn Tensors) -> Vec<TensorSpec> {
    let mut t = TensorTable::new(there);
    t.embed_and_head(h.vocabulary, h.d);
    let block = |t: &mut TensorTable, layer: usize| {
        match h.attends(layer) {
            true => {
                let parts = QkvTensors {
                    before: true,
                    norms: Norms::Heads,
                    biases: false,
                    sinks: false,
                    keys_as_values: false,
                };
                h.attention.tensors(t, h.d, parts);
            }
            false => delta_net(t, &h.delta, h.d),
        }
        t.need("post_attention_norm.weight", Role::Norm, &[h.d]);
        match &h.experts {
            Some(experts) => experts.tensors(t, h.d),
            None => feed_forward::tensors(t, h.ff, h.d, false),
        }
    };
    t.blocks(h.layers, [h.vocabulary, h.d], &block);
    t.finish()
}

fn delta_net(t: &mut TensorTable, n: &DeltaNet, d: usize) {
    let [_, values] = n.widths();
    t.need("attn_norm.weight", Role::Norm, &[d]);
    t.need("attn_qkv.weight", Role::Matrix, &[n.channels(), d]);
    t.need("attn_gate.weight", Role::Matrix, &[values, d]);
    t.need("ssm_conv1d.weight", Role::Norm, &[n.channels(), n.kernel]);
    t.need("ssm_dt.bias", Role::Bias, &[n.heads]);
    t.need("ssm_a", Role::Norm, &[n.heads]);
    t.need("ssm_alpha.weight", Role::Matrix, &[n.heads, d]);
    t.need("ssm_beta.weight", Role::Matrix, &[n.heads, d]);
    t.need("ssm_norm.weight", Role::Norm, &[n.width]);
    t.need("ssm_out.weight", Role::Matrix, &[d, values]);
}

/// A loaded `qwen35` or `qwen35moe` model.
struct Qwen35 {
    hyper: Qwen35Hparams,
    info: ModelInfo,
    tensors: Checked,
    caches: Vec<CacheSpec>,
    draft_caches: Vec<CacheSpec>,
}

impl Qwen35 {
    fn ends(&self) -> EmbedAndHead {
        let h = &self.hyper;
        EmbedAndHead::plain(h.layers, h.d, h.vocabulary, h.eps)
    }
}

impl Model for Qwen35 {
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
        vec![RopeTable::new(self.hyper.frequencies.clone())]
    }
    fn build(&self, step: &mut StepBuilder) {
        let (h, ends) = (&self.hyper, self.ends());
        ends.embed(step, &self.tensors.globals);
        for (layer, weights) in self.tensors.layers() {
            layer::block(step, h, weights, layer);
        }
        ends.head(step, &self.tensors.globals);
    }
    fn draft_caches(&self) -> &[CacheSpec] {
        &self.draft_caches
    }
    fn build_draft(&self, step: &mut StepBuilder) {
        self.ends()
            .draft(step, &self.tensors, &|step, layer, weights| {
                layer::block(step, &self.hyper, weights, layer);
            });
    }
}
