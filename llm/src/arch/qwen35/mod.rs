//! `qwen35` and `qwen35moe`: Qwen3.5. Of every few layers the last one attends, with gates on what its heads give; the others are gated delta nets, which
//! keep a state instead of a row for every token. Blocks for draft tokens are left out.

mod hyper;
mod layer;

use super::attention::{Norms, Parts};
use super::cache::CacheSpec;
use super::ends::Ends;
use super::feed_forward;
use super::rope::RopeTable;
use super::step::StepBuilder;
use super::tensors::{Checked, Table, TensorSpec};
use super::{Architecture, Model, ModelInfo, Result, Tensors};
use crate::gguf::{Metadata, Role};
use hyper::{DeltaNet, Hyper};

/// This architecture.
pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen35",
    load: |m, t| load("qwen35", false, m, t),
    tensors: |m, t| Ok(table(&Hyper::read("qwen35", false, m, t)?, t)),
};

/// The same with experts.
pub(super) const WITH_EXPERTS: Architecture = Architecture {
    name: "qwen35moe",
    load: |m, t| load("qwen35moe", true, m, t),
    tensors: |m, t| Ok(table(&Hyper::read("qwen35moe", true, m, t)?, t)),
};

/// The model of a file.
fn load(name: &'static str, experts: bool, metadata: &Metadata, tensors: &dyn Tensors) -> Result<Box<dyn Model>> {
    let hyper = Hyper::read(name, experts, metadata, tensors)?;
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
    let cache = |layer| if h.attends(layer) { h.attention.cache() } else { h.delta.cache() };
    let caches = (0..h.layers).map(cache).collect();
    Ok(Box::new(Qwen35 { hyper, info, tensors: checked, caches }))
}

/// All tensors, in the order of files.
fn table(h: &Hyper, there: &dyn Tensors) -> Vec<TensorSpec> {
    let mut t = Table::new(there);
    t.ends(h.vocabulary, h.d);
    for layer in 0..h.layers {
        t.block(layer);
        match h.attends(layer) {
            true => {
                let parts =
                    Parts { before: true, norms: Norms::Heads, biases: false, sinks: false, keys_as_values: false };
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

fn delta_net(t: &mut Table, n: &DeltaNet, d: usize) {
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

/// A model of this architecture.
struct Qwen35 {
    hyper: Hyper,
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
        let ends = Ends::plain(h.layers, h.d, h.vocabulary, h.eps);
        ends.embed(step, &self.tensors.globals);
        for (layer, weights) in self.tensors.blocks.iter().enumerate() {
            layer::block(step, h, weights, layer);
        }
        ends.head(step, &self.tensors.globals);
    }
}
