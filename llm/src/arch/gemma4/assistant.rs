//! The assistant of a `gemma4` model: layers with queries alone, which read the model's KV cache
//! and draft tokens.
//!
//! For the token `x` at position `p`, and the model's hidden row `h` at `p − 1`:
//!
//! ```text
//! y = pre_projection [√d · embedding of x, rms(h, output_norm)]
//! y = layer(y)                            for each; queries are rotated to position p
//! logits = head(rms(y, own output_norm))
//! h' = post_projection(rms(y, own output_norm))
//! ```
//!
//! A layer reads the KV cache of the model's last layer of its kind that has one, at positions
//! before `p`: from `p − window + 1` on if the kind is windowed. A further draft has the drafted
//! token for `x` and `h'` for `rms(h, output_norm)`, and stays at position `p`.
//! Names of keys and tensors: llama.cpp; formula: transformers' `Gemma4AssistantForCausalLM`.

use super::super::attention::{Grouped, Norms, QkvTensors};
use super::super::embed_head::{EMBEDDING, EmbedAndHead, OUTPUT_NORM};
use super::super::plan::{Bind, DraftSource};
use super::super::reader::Reader;
use super::super::rope::{RopeTable, Scaling};
use super::super::step::{StepBuilder, StepFunction};
use super::super::tensors::{Checked, LayerWeights, TensorTable};
use super::super::{Error, Result, Tensors, feed_forward};
use super::hyper::{Gemma4Hparams, Heads, rope_tables, scaling};
use crate::gguf::{Metadata, Role};
use gristmill_tensor::dims;
use gristmill_tensor::nn::{self, Glu, Pairing};
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::shape::Scoring;

/// Prefix of the keys of an assistant.
const NAME: &str = "gemma4-assistant";
/// Name of an assistant's first matrix: models that have it have an assistant.
pub const BEFORE: &str = "assistant.nextn.pre_projection.weight";
/// Name of the matrix of an assistant's head.
pub const HEAD: &str = "assistant.token_embd.weight";
/// Further tensors of an assistant outside its layers, which are blocks after the model's.
const AFTER: &str = "assistant.nextn.post_projection.weight";
const NORM: &str = "assistant.output_norm.weight";
const FREQUENCIES: &str = "assistant.rope_freqs.weight";
/// Tensors of a clustered head: a row of each cluster, the token ids cluster by cluster, and the
/// place of each id among them.
const CENTROIDS: &str = "assistant.masked_embd_centroids.weight";
const CLUSTER_TOKENS: &str = "assistant.cluster_tokens";
const CLUSTER_PLACES: &str = "assistant.cluster_places";
/// Default of the number of clusters with scored tokens.
const CHOSEN: u32 = 32;

/// Equal clusters of the vocabulary, of which a row's head scores some.
#[derive(Clone, Copy)]
struct Clusters {
    count: usize,
    /// Number of tokens of a cluster; all clusters are equal.
    size: usize,
    /// Number of clusters, those with the largest products, that get logits of their tokens.
    chosen: usize,
}

impl Clusters {
    fn read(r: &Reader, vocabulary: usize, tensors: &dyn Tensors) -> Result<Option<Clusters>> {
        let all = [CENTROIDS, CLUSTER_TOKENS, CLUSTER_PLACES];
        let [Some((dims, _)), Some(_), Some(_)] = all.map(|name| tensors.find(name)) else {
            return Ok(None);
        };
        let count = dims.get(1).map_or(0, |&n| n as usize);
        let divides = count > 0 && vocabulary.is_multiple_of(count);
        r.check("centroids", count, divides, "a divisor of the vocabulary")?;
        let chosen = r.size_or("centroid_top_k", Some(CHOSEN))?;
        let good = chosen > 0 && chosen <= count;
        r.check(
            "centroid_top_k",
            chosen,
            good,
            "1 to the number of centroids",
        )?;
        Ok(Some(Clusters {
            count,
            size: vocabulary / count,
            chosen,
        }))
    }
    /// Returns the logits `[n, vocabulary]` of rows `x [n, d]`. Those of tokens of other clusters
    /// are less than all of the chosen ones.
    fn logits<'g>(self, s: &'g StepFunction, globals: &LayerWeights, x: Tensor<'g>) -> Tensor<'g> {
        let (n, vocabulary) = (s.tokens(), self.count * self.size);
        let scores = s.linear(globals, x, CENTROIDS);
        let chosen = nn::top_k(scores, self.chosen).index;
        let within = x.capture().iota(dims![1, 1, self.size], 2);
        let places = chosen.unsqueeze(2) * self.size as i64 + within;
        let ids = s.weight(globals, CLUSTER_TOKENS).gather(places);
        let ids = ids.cast(Scalar::I32).clamp_index(vocabulary - 1);
        let (d, scored) = (x.dim(1), self.chosen * self.size);
        let rows = s.weight(globals, HEAD).gather(ids);
        let logits = x.contract(rows.reshape(dims![n, scored, d]));
        let logits = logits.reshape(dims![n * scored as i64]);
        // A token's logit is found by the rank of its cluster and its place there.
        let places = s.weight(globals, CLUSTER_PLACES).cast(Scalar::I32);
        let places = places.clamp_index(vocabulary - 1);
        let (cluster, place) = (places / self.size as i64, places % self.size as i64);
        let by_cluster = nn::rank(scores).reshape(dims![n * self.count as i64]);
        let row = x.capture().iota(dims![n, vocabulary], 0);
        let rank = by_cluster.gather(row * self.count as i64 + cluster.unsqueeze(0));
        let at = rank.minimum(self.chosen as i64 - 1) * self.size as i64 + place.unsqueeze(0);
        let own = logits.gather(row * scored as i64 + at);
        rank.lt(self.chosen as i64).select(own, f64::from(f32::MIN))
    }
}

/// Hyper-parameters of an assistant.
pub(super) struct Assistant {
    /// Width of a hidden row.
    d: usize,
    /// Attention of each layer.
    attention: Vec<Grouped>,
    /// Width of the feed-forward of each layer.
    ff: Vec<usize>,
    /// Layer of the model that gives each layer its KV cache.
    pub read: Vec<usize>,
    /// Clusters of the head; `None` if all tokens are scored.
    clusters: Option<Clusters>,
    eps: f64,
    kinds: [Heads; 2],
    scaling: Scaling,
}

/// Returns the error of a value that is not the model's, unless it is.
fn same(r: &Reader, key: &str, [found, own]: [usize; 2]) -> Result<()> {
    match found == own {
        true => Ok(()),
        false => Err(Error::OtherModel {
            key: r.key(key),
            found: found.to_string(),
            own: own.to_string(),
        }),
    }
}

impl Assistant {
    /// Reads and validates the hyper-parameters of the assistant of a model; `None` without one.
    ///
    /// # Errors
    /// As for [`Gemma4Hparams::read`], and if it is the assistant of another model.
    pub fn read(
        metadata: &Metadata,
        model: &Gemma4Hparams,
        tensors: &dyn Tensors,
    ) -> Result<Option<Assistant>> {
        if tensors.find(BEFORE).is_none() {
            return Ok(None);
        }
        let r = &Reader::new(metadata, NAME);
        let (layers, d) = (r.size("block_count")?, r.size("embedding_length")?);
        r.check("block_count", layers, layers <= 64, "at most 64")?;
        same(
            r,
            "embedding_length_out",
            [r.size("embedding_length_out")?, model.d],
        )?;
        r.check("embedding_length", d, d <= model.d, "at most the model's")?;
        let head = tensors
            .find(HEAD)
            .ok_or(Error::MissingTensor(HEAD.into()))?;
        let rows = head.0.get(1).map_or(0, |&n| n as usize);
        same(r, "vocab_size", [rows, model.vocabulary])?;
        let eps = r.positive("attention.layer_norm_rms_epsilon", 0.0)?;
        let (kinds, context) = (Heads::read_kinds(r)?, model.context);
        let (attention, read) = attention(r, layers, (eps, kinds), model)?;
        let ff = r.each("feed_forward_length", layers)?;
        let is_positive = ff.iter().all(|&f| f > 0);
        r.check(
            "feed_forward_length",
            0,
            is_positive,
            "positive in every layer",
        )?;
        Ok(Some(Assistant {
            d,
            attention,
            ff,
            read,
            clusters: Clusters::read(r, model.vocabulary, tensors)?,
            eps,
            kinds,
            scaling: scaling(r, context, kinds)?,
        }))
    }
    /// Adds the RoPE tables of the layers to those of the model, unless they are the same.
    pub fn add_rope_tables(
        &mut self,
        metadata: &Metadata,
        tensors: &dyn Tensors,
        tables: &mut Vec<RopeTable>,
    ) -> Result<()> {
        let r = &Reader::new(metadata, NAME);
        let own = rope_tables((self.kinds, self.scaling), r, tensors, FREQUENCIES)?;
        let numbers = own.map(|table| {
            let known = tables.iter().position(|of| *of == table);
            known.unwrap_or_else(|| {
                tables.push(table);
                tables.len() - 1
            })
        });
        for attention in &mut self.attention {
            let table = numbers[usize::from(attention.window.is_some())];
            attention.tables = [table; 2];
        }
        Ok(())
    }
    /// Lists the tensors, which follow those of the model.
    pub fn tensors(&self, t: &mut TensorTable, model: &Gemma4Hparams) {
        t.globals();
        t.need(BEFORE, Role::Matrix, &[self.d, 2 * model.d]);
        t.need(AFTER, Role::Matrix, &[model.d, self.d]);
        t.need(HEAD, Role::Output, &[model.vocabulary, self.d]);
        t.need(NORM, Role::Norm, &[self.d]);
        t.optional(FREQUENCIES, Role::Norm, &[self.kinds[0].rotated / 2]);
        if let Some(of) = self.clusters {
            t.need(CENTROIDS, Role::Matrix, &[of.count, self.d]);
            t.need(CLUSTER_TOKENS, Role::Norm, &[model.vocabulary]);
            t.need(CLUSTER_PLACES, Role::Norm, &[model.vocabulary]);
        }
        for (layer, attention) in self.attention.iter().enumerate() {
            t.block(model.layers + layer);
            let parts = QkvTensors {
                before: true,
                norms: Norms::Heads,
                biases: false,
                sinks: false,
                keys_as_values: true,
            };
            attention.tensors(t, self.d, parts);
            t.need("post_attention_norm.weight", Role::Norm, &[self.d]);
            t.need("ffn_norm.weight", Role::Norm, &[self.d]);
            feed_forward::tensors(t, self.ff[layer], self.d, false);
            t.need("post_ffw_norm.weight", Role::Norm, &[self.d]);
            t.optional("layer_output_scale.weight", Role::Norm, &[1]);
        }
    }
    /// Builds a step; `ends` are embedding and head of the model.
    pub fn build(&self, step: &mut StepBuilder, ends: &EmbedAndHead, tensors: &Checked) {
        let Some(options) = step.options.draft else {
            return;
        };
        let globals = &tensors.globals;
        (step.drafts, step.is_ahead) = (true, true);
        step.call("assistant", |s| {
            let hidden = ends.hidden_before(s, options);
            let hidden = match options.source {
                DraftSource::Model => {
                    nn::rms_norm(hidden, s.weight(globals, OUTPUT_NORM), ends.eps)
                }
                DraftSource::Block => hidden,
            };
            let token = ends.embedding(s, (globals, EMBEDDING));
            let y = s.linear(globals, Tensor::cat(&[token, hidden], 1), BEFORE);
            s.output("y", Bind::Drafting(0), y);
        });
        let layers = self.attention.len();
        for layer in 0..layers {
            self.layer(step, &tensors.blocks[ends.layers + layer], layer);
        }
        step.call("assistant.after", |s| {
            let x = self.hidden(s, layers);
            let x = nn::rms_norm(x, s.weight(globals, NORM), self.eps);
            s.output("h", Bind::Drafted, s.linear(globals, x, AFTER));
        });
        match self.clusters {
            None => {
                let own = EmbedAndHead::plain(ends.layers, self.d, ends.vocabulary, self.eps);
                let weights = [(globals, NORM), (globals, HEAD)];
                own.logits(step, &Bind::Drafting(layers), weights);
            }
            Some(clusters) => step.head("assistant.clusters", |s| {
                let x = self.hidden(s, layers);
                let x = nn::rms_norm(x, s.weight(globals, NORM), self.eps);
                s.output("logits", Bind::Logits, clusters.logits(s, globals, x));
            }),
        }
        (step.drafts, step.is_ahead) = (false, false);
    }
    fn hidden<'g>(&self, s: &'g StepFunction, layer: usize) -> Tensor<'g> {
        let dims = dims![s.tokens(), self.d];
        s.input("x", Bind::Drafting(layer), dims, Scalar::F32)
    }
    fn layer(&self, step: &mut StepBuilder, w: &LayerWeights, layer: usize) {
        let attention = &self.attention[layer];
        let part = match attention.window {
            Some(_) => "assistant.layer.window",
            None => "assistant.layer",
        };
        step.call(part, |s| {
            let norm = |x, name| nn::rms_norm(x, s.weight(w, name), self.eps);
            let x = self.hidden(s, layer);
            let a = attention.write(s, w, layer, norm(x, "attn_norm.weight"));
            let x = x + norm(a, "post_attention_norm.weight");
            let ffn = feed_forward::dense(s, w, Glu::Geglu, norm(x, "ffn_norm.weight"));
            let x = x + norm(ffn, "post_ffw_norm.weight");
            let x = match w.has("layer_output_scale.weight") {
                true => x * s.weight(w, "layer_output_scale.weight"),
                false => x,
            };
            s.output("y", Bind::Drafting(layer + 1), x);
        });
    }
}

/// Reads the attention of each layer, and the layers of the model that they read.
fn attention(
    r: &Reader,
    layers: usize,
    (eps, kinds): (f64, [Heads; 2]),
    model: &Gemma4Hparams,
) -> Result<(Vec<Grouped>, Vec<usize>)> {
    let heads = r.heads(layers)?;
    let kv_heads = r.each("attention.head_count_kv", layers)?;
    let within = r.bools("attention.sliding_window_pattern", layers)?;
    let window = r.size("attention.sliding_window")?;
    r.check("attention.sliding_window", window, window > 1, "at least 2")?;
    let (mut all, mut read) = (Vec::with_capacity(layers), Vec::new());
    for layer in 0..layers {
        let is_windowed = within[layer];
        let of_kind = |of: &Grouped| of.window.is_some() == is_windowed && of.reads.is_none();
        let Some(source) = model.attention.iter().rposition(of_kind) else {
            let found = format!("{is_windowed} for layer {layer}, a kind that it has no layers of");
            return r.unsupported("attention.sliding_window_pattern", found);
        };
        let own = &model.attention[source];
        let kind = kinds[usize::from(is_windowed)];
        let length = ["attention.key_length", "attention.key_length_swa"];
        same(r, length[usize::from(is_windowed)], [kind.key, own.key])?;
        same(
            r,
            "attention.head_count_kv",
            [kv_heads[layer], own.kv_heads],
        )?;
        if let Some(of_model) = own.window {
            same(r, "attention.sliding_window", [window, of_model])?;
        }
        let shares = heads.is_multiple_of(own.kv_heads);
        let expected = "a multiple of head_count_kv";
        r.check("attention.head_count", heads, shares, expected)?;
        read.push(source);
        all.push(Grouped {
            heads,
            kv_heads: own.kv_heads,
            key: kind.key,
            value: kind.key,
            rotated: kind.rotated,
            pairing: Pairing::Halves,
            scores: Scoring::from(1.0),
            eps,
            tables: [0, 0],
            // The token itself is the one position of its window without a row.
            window: own.window.map(|window| window - 1),
            gated: false,
            normed_values: true,
            reads: Some(source),
        });
    }
    Ok((all, read))
}
