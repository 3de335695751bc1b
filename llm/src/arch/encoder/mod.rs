//! Text encoders: blocks of bidirectional attention and a feed-forward, whose last hidden rows are
//! pooled to embeddings. [`Encoder`] holds the differences between families.

mod family;
mod hyper;

use super::attention::{Norms, QkvTensors, linear};
use super::cache::CacheSpec;
use super::embed_head::{EMBEDDING, EmbedAndHead, OUTPUT_NORM};
use super::rope::{RopeTable, Scaling, frequencies};
use super::step::{StepBuilder, StepFunction};
use super::tensors::{Checked, LayerWeights, TensorSpec, TensorTable};
use super::{Bind, Model, ModelInfo, Result, Tensors};
use crate::gguf::{Metadata, Role};
use family::TYPES;
pub(super) use family::{Encoder, FeedForward, NAMES};
use gristmill_tensor::nn::{self, Glu};
use gristmill_tensor::tensor::Tensor;
use hyper::EncoderHparams;

/// Row of each position of a text.
const POSITIONS: &str = "position_embd.weight";
impl Encoder {
    /// Returns the table of tensors for these hyper-parameters, in file order.
    fn tensors(&self, h: &EncoderHparams, there: &dyn Tensors) -> Vec<TensorSpec> {
        let mut t = TensorTable::new(there);
        t.need(EMBEDDING, Role::Matrix, &[h.vocabulary, h.d]);
        t.optional(TYPES, Role::Bias, &[h.types, h.d]);
        if self.learned_positions {
            t.need(POSITIONS, Role::Bias, &[h.context, h.d]);
        }
        t.need("token_embd_norm.weight", Role::Norm, &[h.d]);
        t.optional("token_embd_norm.bias", Role::Bias, &[h.d]);
        if self.pre_norms {
            t.need(OUTPUT_NORM, Role::Norm, &[h.d]);
        }
        for layer in 0..h.layers {
            t.block(layer);
            self.block_tensors(&mut t, h, layer);
        }
        t.finish()
    }
    fn block_tensors(&self, t: &mut TensorTable, h: &EncoderHparams, layer: usize) {
        let attention = h.attention_of(layer);
        let parts = QkvTensors {
            // The first block may have none: its input is normed already.
            before: self.pre_norms && layer > 0,
            norms: Norms::No,
            biases: false,
            sinks: false,
            keys_as_values: false,
        };
        if self.pre_norms && layer == 0 {
            t.optional("attn_norm.weight", Role::Norm, &[h.d]);
        }
        attention.tensors(t, h.d, parts);
        let norms: &[[&'static str; 2]] = match self.pre_norms {
            true => &[["ffn_norm.weight", "ffn_norm.bias"]],
            false => &[
                ["attn_output_norm.weight", "attn_output_norm.bias"],
                ["layer_output_norm.weight", "layer_output_norm.bias"],
            ],
        };
        for [weight, bias] in norms {
            t.need(weight, Role::Norm, &[h.d]);
            t.optional(bias, Role::Bias, &[h.d]);
        }
        let width = match self.feed_forward {
            FeedForward::Fused => 2 * h.ff,
            FeedForward::Plain | FeedForward::Gated => h.ff,
        };
        if self.feed_forward == FeedForward::Gated {
            t.need("ffn_gate.weight", Role::Matrix, &[h.ff, h.d]);
        }
        t.need("ffn_up.weight", Role::Matrix, &[width, h.d]);
        t.optional("ffn_up.bias", Role::Bias, &[width]);
        t.need("ffn_down.weight", t.down(), &[h.d, h.ff]);
        t.optional("ffn_down.bias", Role::Bias, &[h.d]);
    }
    /// Returns the tensor table for this metadata: see [`super::Architecture::tensors`].
    pub fn table(&self, metadata: &Metadata, there: &dyn Tensors) -> Result<Vec<TensorSpec>> {
        Ok(self.tensors(&EncoderHparams::read(self, metadata, there)?, there))
    }
    /// Loads a model of this family from metadata and tensors.
    pub fn load(&self, metadata: &Metadata, tensors: &dyn Tensors) -> Result<Box<dyn Model>> {
        let hyper = EncoderHparams::read(self, metadata, tensors)?;
        let info = ModelInfo {
            architecture: self.name,
            layers: hyper.layers,
            vocabulary: hyper.vocabulary,
            width: hyper.d,
            context: hyper.context,
            summary: hyper.summary(),
            warnings: Vec::new(),
        };
        let tensors = Checked::new(self.tensors(&hyper, tensors), hyper.layers, tensors)?;
        Ok(Box::new(EncoderModel {
            caches: vec![CacheSpec::default(); hyper.layers],
            family: *self,
            info,
            tensors,
            hyper,
        }))
    }
}

/// A loaded model of a family of encoders.
struct EncoderModel {
    family: Encoder,
    hyper: EncoderHparams,
    info: ModelInfo,
    tensors: Checked,
    /// Empty: a step has whole texts.
    caches: Vec<CacheSpec>,
}

impl EncoderModel {
    /// Builds the embedding: token ids `[n]` to normed hidden rows `[n, d]`.
    fn embed(&self, step: &mut StepBuilder) {
        let (h, w) = (&self.hyper, &self.tensors.globals);
        let tokens = EmbedAndHead::plain(h.layers, h.d, h.vocabulary, h.eps);
        step.call("embed", |s| {
            let mut x = tokens.embedding(s, (w, EMBEDDING));
            if w.has(TYPES) {
                x = x + s.weight(w, TYPES).slice(0, 0, 1);
            }
            if w.has(POSITIONS) {
                x = x + s.weight(w, POSITIONS).gather(s.text_positions(h.context));
            }
            let x = norm(s, w, "token_embd_norm", x, h.eps);
            s.output("x", Bind::Hidden(0), x);
        });
    }
    /// Builds block `layer`: hidden rows `[n, d]` to hidden rows.
    fn block(&self, step: &mut StepBuilder, layer: usize, w: &LayerWeights) {
        let (h, family) = (&self.hyper, &self.family);
        let attention = h.attention_of(layer);
        let part = match (attention.window.is_some(), w.has("attn_norm.weight")) {
            (false, true) => "block",
            (true, true) => "block.window",
            (false, false) => "first",
            (true, false) => "first.window",
        };
        let part = if family.pre_norms { part } else { "block" };
        step.call(part, |s| {
            let x = s.hidden(layer, h.d);
            let normed = |x, name| norm(s, w, name, x, h.eps);
            let y = if family.pre_norms {
                let inner = match w.has("attn_norm.weight") {
                    true => normed(x, "attn_norm"),
                    false => x,
                };
                let x = x + attention.encode(s, w, inner);
                x + self.feed_forward(s, w, normed(x, "ffn_norm"))
            } else {
                let x = normed(x + attention.encode(s, w, x), "attn_output_norm");
                normed(x + self.feed_forward(s, w, x), "layer_output_norm")
            };
            s.output("y", Bind::Hidden(layer + 1), y);
        });
    }
    /// Computes the feed-forward of a block for `x [n, d]`.
    fn feed_forward<'g>(&self, s: &'g StepFunction, w: &LayerWeights, x: Tensor<'g>) -> Tensor<'g> {
        let up = linear(s, w, x, "ffn_up");
        let inner = match self.family.feed_forward {
            FeedForward::Plain => nn::gelu_erf(up),
            FeedForward::Gated => Glu::Swiglu.apply(linear(s, w, x, "ffn_gate"), up),
            FeedForward::Fused => {
                let ff = self.hyper.ff;
                let [gate, up] = [up.slice(1, 0, ff), up.slice(1, ff, ff)];
                self.hyper.glu.apply(gate, up)
            }
        };
        linear(s, w, inner, "ffn_down")
    }
}

impl Model for EncoderModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }
    fn tensors(&self) -> &[TensorSpec] {
        &self.tensors.table
    }
    fn caches(&self) -> &[CacheSpec] {
        &self.caches
    }
    fn is_encoder(&self) -> bool {
        true
    }
    fn rope_tables(&self, _: usize) -> Vec<RopeTable> {
        let table = |&base: &f64| {
            let rotated = self.hyper.attention.rotated;
            RopeTable::new(frequencies(rotated, base, Scaling::None))
        };
        self.hyper.bases.iter().map(table).collect()
    }
    fn build(&self, step: &mut StepBuilder) {
        self.embed(step);
        for (layer, weights) in self.tensors.layers() {
            self.block(step, layer, weights);
        }
    }
}

/// Applies the layer norm `name`, with its bias if there is one.
fn norm<'g>(
    s: &'g StepFunction,
    w: &LayerWeights,
    name: &str,
    x: Tensor<'g>,
    eps: f64,
) -> Tensor<'g> {
    let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
    let y = nn::layer_norm(x, s.weight(w, &weight), eps);
    match w.has(&bias) {
        true => y + s.weight(w, &bias),
        false => y,
    }
}
