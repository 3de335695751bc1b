//! Plain decoders: grouped-query attention and a gated feed-forward or experts, each with a
//! residual addition. [`Family`] holds the differences between families.

mod family;
mod hyper;

use super::attention::QkvTensors;
use super::cache::CacheSpec;
use super::embed_head::EmbedAndHead;
use super::feed_forward;
use super::moe;
use super::rope::RopeTable;
use super::step::StepBuilder;
use super::tensors::{Checked, LayerWeights, TensorSpec, TensorTable};
use super::{Bind, Model, ModelInfo, Result, Tensors};
use crate::gguf::{Metadata, Role};
pub(super) use family::{Family, Windows};
use gristmill_tensor::nn;
use hyper::{DecoderHparams, Rope};

impl Family {
    /// Returns the table of tensors for these hyper-parameters, in file order.
    fn tensors(&self, h: &DecoderHparams, there: &dyn Tensors) -> Vec<TensorSpec> {
        let mut t = TensorTable::new(there);
        t.embed_and_head(h.vocabulary, h.d);
        for name in [
            "rope_freqs.weight",
            "rope_factors_long.weight",
            "rope_factors_short.weight",
        ] {
            t.optional(name, Role::Norm, &[h.attention.rotated / 2]);
        }
        let block = |t: &mut TensorTable, layer: usize| {
            let &Family {
                pre_norms: before,
                norms,
                biases,
                sinks,
                ..
            } = self;
            let parts = QkvTensors {
                before,
                norms,
                biases,
                sinks,
                keys_as_values: false,
            };
            h.attention.tensors(t, h.d, parts);
            if self.post_norms {
                t.need("post_attention_norm.weight", Role::Norm, &[h.d]);
                t.need("post_ffw_norm.weight", Role::Norm, &[h.d]);
            }
            if self.pre_norms {
                t.need(self.ffn_norm, Role::Norm, &[h.d]);
            }
            match h.experts.as_ref().filter(|_| layer >= h.dense) {
                Some(experts) => experts.tensors(t, h.d),
                None => {
                    let width = h.ff[layer.min(h.layers - 1)];
                    feed_forward::tensors(t, width, h.d, self.fused_gate);
                }
            }
        };
        t.blocks(h.layers, [h.vocabulary, h.d], &block);
        t.finish()
    }
    /// Returns the tensor table for this metadata: see [`super::Architecture::tensors`].
    pub fn table(&self, metadata: &Metadata, there: &dyn Tensors) -> Result<Vec<TensorSpec>> {
        Ok(self.tensors(&DecoderHparams::read(self, metadata, there)?, there))
    }
    /// Loads a model of this family from metadata and tensors.
    pub fn load(&self, metadata: &Metadata, tensors: &dyn Tensors) -> Result<Box<dyn Model>> {
        let hyper = DecoderHparams::read(self, metadata, tensors)?;
        let h = &hyper;
        let info = ModelInfo {
            architecture: self.name,
            layers: h.layers,
            vocabulary: h.vocabulary,
            width: h.d,
            context: h.context,
            summary: h.summary(),
            warnings: Vec::new(),
        };
        let checked = Checked::new(self.tensors(h, tensors), h.layers, tensors)?;
        let rope = Rope::read(self, metadata, h, tensors)?;
        let cache = |layer| h.attention_of(layer).cache();
        let caches = (0..h.layers).map(cache).collect();
        let blocks = h.layers..h.layers + checked.draft_blocks();
        Ok(Box::new(Decoder {
            draft_caches: blocks.map(cache).collect(),
            hyper,
            info,
            tensors: checked,
            caches,
            rope,
            family: *self,
        }))
    }
}

/// A loaded model of a plain decoder family.
struct Decoder {
    hyper: DecoderHparams,
    info: ModelInfo,
    tensors: Checked,
    caches: Vec<CacheSpec>,
    draft_caches: Vec<CacheSpec>,
    rope: Rope,
    family: Family,
}

impl Decoder {
    fn ends(&self) -> EmbedAndHead {
        let h = &self.hyper;
        let plain = EmbedAndHead::plain(h.layers, h.d, h.vocabulary, h.eps);
        EmbedAndHead {
            embedding_scale: h.factors.embedding,
            logit_scale: h.factors.logits,
            cap: h.cap,
            ..plain
        }
    }
}

impl Model for Decoder {
    fn info(&self) -> &ModelInfo {
        &self.info
    }
    fn tensors(&self) -> &[TensorSpec] {
        &self.tensors.table
    }
    fn caches(&self) -> &[CacheSpec] {
        &self.caches
    }
    fn rope_tables(&self, context: usize) -> Vec<RopeTable> {
        self.rope.tables(context)
    }
    fn build(&self, step: &mut StepBuilder) {
        let (h, ends) = (&self.hyper, self.ends());
        ends.embed(step, &self.tensors.globals);
        for (layer, weights) in self.tensors.layers() {
            block(step, &self.family, h, weights, layer);
        }
        ends.head(step, &self.tensors.globals);
    }
    fn draft_caches(&self) -> &[CacheSpec] {
        &self.draft_caches
    }
    fn build_draft(&self, step: &mut StepBuilder) {
        self.ends()
            .draft(step, &self.tensors, &|step, layer, weights| {
                block(step, &self.family, &self.hyper, weights, layer);
            });
    }
}

/// Builds block `layer`: maps hidden rows `[n, d]` to hidden rows and updates the KV cache.
fn block(
    step: &mut StepBuilder,
    family: &Family,
    h: &DecoderHparams,
    w: &LayerWeights,
    layer: usize,
) {
    let routed = w.has("ffn_gate_inp.weight");
    let attention = h.attention_of(layer);
    let part = match (routed, attention.window.is_some()) {
        (false, false) => "dense",
        (false, true) => "dense.window",
        (true, false) => "moe",
        (true, true) => "moe.window",
    };
    step.call(part, |s| {
        let x = s.hidden(layer, h.d);
        let normed = |there, y, name| {
            if there {
                nn::rms_norm(y, s.weight(w, name), h.eps)
            } else {
                y
            }
        };
        let (pre, post) = (family.pre_norms, family.post_norms);
        let a = attention.write(s, w, layer, normed(pre, x, "attn_norm.weight"));
        let factor = h.factors.residual;
        let added = |x, y| if factor == 1.0 { x + y } else { x + y * factor };
        let x = added(x, normed(post, a, "post_attention_norm.weight"));
        let y = normed(pre, x, family.ffn_norm);
        let ffn = match &h.experts {
            Some(experts) if routed => moe::experts(s, experts, w, y),
            _ => feed_forward::dense(s, w, family.glu, y),
        };
        s.output(
            "y",
            Bind::Hidden(layer + 1),
            added(x, normed(post, ffn, "post_ffw_norm.weight")),
        );
    });
}
