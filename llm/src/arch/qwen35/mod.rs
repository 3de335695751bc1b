//! `qwen35` and `qwen35moe`: Qwen3.5. Every few layers one uses attention with output gates; the
//! others are gated delta nets with a recurrent state in place of a KV cache. Blocks for draft
//! tokens are ignored.

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
    Ok(Box::new(Qwen35 {
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
    for layer in 0..h.layers {
        t.block(layer);
        match h.attends(layer) {
            true => {
                let parts = QkvTensors {
                    before: true,
                    norms: Norms::Heads,
                    biases: false,
                    sinks: false,
                    keys_as_values: false,
                };
                h.attention.tensors(&mut t, h.d, parts);
            }
            false => delta_net(&mut t, &h.delta, h.d),
        }
        t.need("post_attention_norm.weight", Role::Norm, &[h.d]);
        match &h.experts {
            Some(experts) => experts.tensors(&mut t, h.d),
            None => feed_forward::tensors(&mut t, h.ff, h.d, false),
        }
    }
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
        let h = &self.hyper;
        let ends = EmbedAndHead::plain(h.layers, h.d, h.vocabulary, h.eps);
        ends.embed(step, &self.tensors.globals);
        for (layer, weights) in self.tensors.blocks.iter().enumerate() {
            layer::block(step, h, weights, layer);
        }
        ends.head(step, &self.tensors.globals);
    }
}
