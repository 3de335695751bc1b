//! Grouped-query attention with separate keys and values in the KV cache.

use super::cache::{CacheSpec, Component};
use super::step::{AttentionMask, StepFunction, Views};
use super::tensors::{LayerWeights, TensorTable};
use crate::gguf::Role;
use gristmill_tensor::dims;
use gristmill_tensor::nn::{self, Pairing};
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::shape::Scoring;

/// Shape and options of one layer's grouped-query attention.
#[derive(Clone, PartialEq, Debug)]
pub struct Grouped {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key-value heads, a divisor of `heads`.
    pub kv_heads: usize,
    /// Width of a query head and of a key head.
    pub key: usize,
    /// Width of a value head.
    pub value: usize,
    /// RoPE rotates the first `rotated` elements of a head, at most `key`.
    pub rotated: usize,
    /// Which elements of a head form a rotated pair.
    pub pairing: Pairing,
    /// Scale and soft cap of the attention scores.
    pub scores: Scoring,
    /// Epsilon of the RMS norms of heads.
    pub eps: f64,
    /// Indices of the RoPE tables of keys and of queries.
    pub tables: [usize; 2],
    /// Length of the sliding window, including the token's own position; `None` for full attention.
    pub window: Option<usize>,
    /// Adds an output gate. Each query head in the projection is followed by a gate of the same
    /// width; its sigmoid multiplies the head's output.
    pub gated: bool,
    /// Normalises each value head to a mean square of 1 before it is cached.
    pub normed_values: bool,
    /// Layer whose KV cache this layer reads; `None` if it has keys and values of its own.
    pub reads: Option<usize>,
}

/// RMS norms of queries and keys, applied before RoPE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Norms {
    No,
    /// One norm per head, with weights shared by all heads.
    Heads,
    /// Same as `Heads` if the file has the weights, otherwise no norm.
    HeadsIfThere,
    /// One norm over all heads together.
    Whole,
}

/// Optional tensors of an attention, chosen per model family.
#[derive(Clone, Copy)]
pub(super) struct QkvTensors {
    /// RMS norm of the attention's input (`attn_norm`).
    pub before: bool,
    pub norms: Norms,
    /// Requires biases of queries, keys and values. If false, biases present in the
    /// file are still used.
    pub biases: bool,
    /// Attention sinks: one logit per head that takes part in the softmax and has no value.
    pub sinks: bool,
    /// Allows a missing value matrix; the key projection then serves as values.
    pub keys_as_values: bool,
}

impl Grouped {
    /// Width of a query head in the projection, including its gate.
    fn query(&self) -> usize {
        if self.gated { 2 * self.key } else { self.key }
    }
    /// Widths of one token's queries (with gates), keys and values over all heads.
    fn widths(&self) -> [usize; 3] {
        [
            self.heads * self.query(),
            self.kv_heads * self.key,
            self.kv_heads * self.value,
        ]
    }
    /// Adds the attention's tensors for hidden width `d` to the current block of the table.
    pub(super) fn tensors(&self, t: &mut TensorTable, d: usize, parts: QkvTensors) {
        let [q, k, v] = self.widths();
        let bias = |t: &mut TensorTable, short, width| match parts.biases {
            true => t.need(short, Role::Bias, &[width]),
            false => t.optional(short, Role::Bias, &[width]),
        };
        if parts.before {
            t.need("attn_norm.weight", Role::Norm, &[d]);
        }
        if t.has("attn_qkv.weight") {
            t.need("attn_qkv.weight", Role::Matrix, &[q + k + v, d]);
            bias(t, "attn_qkv.bias", q + k + v);
        } else {
            t.need("attn_q.weight", Role::Matrix, &[q, d]);
            bias(t, "attn_q.bias", q);
            if self.reads.is_none() {
                t.need("attn_k.weight", Role::Matrix, &[k, d]);
                bias(t, "attn_k.bias", k);
                if !parts.keys_as_values || t.has("attn_v.weight") {
                    t.need("attn_v.weight", t.down(), &[v, d]);
                    bias(t, "attn_v.bias", v);
                }
            }
        }
        let norms = [("attn_q_norm.weight", q), ("attn_k_norm.weight", k)];
        for &(short, whole) in &norms[..if self.reads.is_some() { 1 } else { 2 }] {
            match parts.norms {
                Norms::No => (),
                Norms::Heads => t.need(short, Role::Norm, &[self.key]),
                Norms::HeadsIfThere => t.optional(short, Role::Norm, &[self.key]),
                Norms::Whole => t.need(short, Role::Norm, &[whole]),
            }
        }
        if parts.sinks {
            t.need("attn_sinks.weight", Role::Bias, &[self.heads]);
        }
        t.need(
            "attn_output.weight",
            Role::Matrix,
            &[d, self.heads * self.value],
        );
        t.optional("attn_output.bias", Role::Bias, &[d]);
    }
    /// Returns the layer's cache layout; empty if the layer reads another layer's cache.
    pub(super) fn cache(&self) -> CacheSpec {
        if self.reads.is_some() {
            CacheSpec::default()
        } else {
            CacheSpec::from_components(&self.components())
        }
    }
    /// Computes attention of `x [n, d]` and writes keys and values to the cache. Returns `[n, d]`.
    pub(super) fn write<'g>(
        &self,
        s: &'g StepFunction,
        w: &LayerWeights,
        layer: usize,
        x: Tensor<'g>,
    ) -> Tensor<'g> {
        let n = s.tokens();
        let (q, own) = self.projected(s, w, x);
        // In the projection each head's query is followed by its gate.
        let (q, gate) = match self.gated {
            false => (q, None),
            true => {
                let q = q.reshape(dims![n, self.heads, self.query()]);
                (
                    q.slice(2, 0, self.key),
                    Some(q.slice(2, self.key, self.key).sigmoid()),
                )
            }
        };
        let q = self.normed(s, w, q, self.heads, "attn_q_norm.weight");
        let (q, [k, v]) = match (own, self.reads) {
            (Some(own), _) => self.projected_own(s, w, layer, q, own),
            (None, reads) => {
                let q = self.rotate(q, s.rope(self.tables[1], self.rotated));
                (
                    q,
                    self.rows(
                        s,
                        reads.expect("keys and values of its own, or another layer's"),
                    ),
                )
            }
        };
        let heads =
            |rows: Tensor<'g>, width: usize| rows.reshape(dims![rows.dim(0), self.kv_heads, width]);
        let (k, v) = (
            k.map(|k| heads(k, self.key)),
            v.map(|v| heads(v, self.value)),
        );
        let q = match self.transforms_keys(w) {
            true => s.transform(q, [self.heads, self.key]),
            false => q,
        };
        let sinks = w
            .has("attn_sinks.weight")
            .then(|| s.weight(w, "attn_sinks.weight"));
        let out = s.attention(
            &[q],
            [k, v],
            AttentionMask {
                scores: self.scores,
                window: self.window,
                sinks,
            },
        );
        let out = s.transform(out, [self.heads, self.value]);
        let out = gate
            .map_or(out, |gate| out * gate)
            .reshape(dims![n, self.heads * self.value]);
        linear(s, w, out, "attn_output")
    }
    /// Computes bidirectional attention of `x [n, d]` within each text of the step, without a
    /// cache. Returns `[n, d]`.
    pub(super) fn encode<'g>(
        &self,
        s: &'g StepFunction,
        w: &LayerWeights,
        x: Tensor<'g>,
    ) -> Tensor<'g> {
        let n = s.tokens();
        let (q, own) = self.projected(s, w, x);
        let [k, v] = own.expect("keys and values of its own");
        let q = q.reshape(dims![n, self.heads, self.key]);
        let k = k.reshape(dims![n, self.kv_heads, self.key]);
        let [q, k] = match self.rotated {
            0 => [q, k],
            rotated => {
                let rows = s.text_rope(self.tables[0], rotated);
                [q, k].map(|x| self.rotate(x, rows))
            }
        };
        let v = v.reshape(dims![n, self.kv_heads, self.value]);
        let out = s.text_attention([q, k, v], self.scores, self.window);
        let out = out.reshape(dims![n, self.heads * self.value]);
        linear(s, w, out, "attn_output")
    }
    /// Projects `x [n, d]` to queries `[n, width]` and, unless `reads` is set, to keys and values.
    /// Without a value matrix, values equal the key projection.
    fn projected<'g>(
        &self,
        s: &'g StepFunction,
        w: &LayerWeights,
        x: Tensor<'g>,
    ) -> (Tensor<'g>, Option<[Tensor<'g>; 2]>) {
        if w.has("attn_qkv.weight") {
            let all = linear(s, w, x, "attn_qkv");
            let [q, k, v] = self.widths();
            return (
                all.slice(1, 0, q),
                Some([all.slice(1, q, k), all.slice(1, q + k, v)]),
            );
        }
        let q = linear(s, w, x, "attn_q");
        if self.reads.is_some() {
            return (q, None);
        }
        let k = linear(s, w, x, "attn_k");
        (
            q,
            Some([
                k,
                if w.has("attn_v.weight") {
                    linear(s, w, x, "attn_v")
                } else {
                    k
                },
            ]),
        )
    }
    /// Applies norms and RoPE, writes keys and values, and returns queries and the updated cache.
    fn projected_own<'g>(
        &self,
        s: &'g StepFunction,
        w: &LayerWeights,
        layer: usize,
        q: Tensor<'g>,
        [k, v]: [Tensor<'g>; 2],
    ) -> (Tensor<'g>, [Views<Tensor<'g>>; 2]) {
        let n = s.tokens();
        let k = self.normed(s, w, k, self.kv_heads, "attn_k_norm.weight");
        let of_keys = s.rope(self.tables[0], self.rotated);
        let of_queries = if self.tables[0] == self.tables[1] {
            of_keys
        } else {
            s.rope(self.tables[1], self.rotated)
        };
        let (q, k) = (self.rotate(q, of_queries), self.rotate(k, of_keys));
        let k = match self.mean_of_keys(s, w) {
            Some(mean) => k - mean,
            None => k,
        };
        let k = match self.transforms_keys(w) {
            true => s.transform(k, [self.kv_heads, self.key]),
            false => k,
        };
        let [keys, values] = self.components();
        let v = match self.normed_values {
            false => v,
            true => nn::rms(v.reshape(dims![n, self.kv_heads, self.value]), self.eps)
                .reshape(dims![n, values.width]),
        };
        let v = s
            .transform(v, [self.kv_heads, self.value])
            .reshape(dims![n, values.width]);
        let (k, next) = s.cached(layer, 0, keys, k.reshape(dims![n, keys.width]));
        let (v, _) = s.cached(layer, next, values, v);
        (q, [k, v])
    }
    /// Returns true if a constant added to all scores of a query changes nothing: scores are not
    /// capped and no sinks take part.
    fn ignores_shifts(&self, w: &LayerWeights) -> bool {
        self.scores.cap.is_none() && !w.has("attn_sinks.weight")
    }
    /// Returns true if keys are transformed before a quantised cache. A large bias that cannot be
    /// subtracted is better left in few elements (docs/experiments/141). A layer that reads another
    /// layer's cache must answer as that layer does: families with such layers have neither score
    /// caps nor sinks.
    fn transforms_keys(&self, w: &LayerWeights) -> bool {
        self.ignores_shifts(w) || !has_plain_bias(w)
    }
    /// Returns a mean of the rotated bias of the keys, `[1, kv_heads, key]`, if the cache is
    /// quantised and the scores allow that a constant is subtracted from all keys.
    ///
    /// The softmax over positions does not change when all scores of a query change alike. A bias
    /// far larger than the rest of the keys (Qwen2.5's) would take most of the codes' range.
    fn mean_of_keys<'g>(&self, s: &'g StepFunction, w: &LayerWeights) -> Option<Tensor<'g>> {
        if !s.options.cache.is_quantised() || !self.ignores_shifts(w) || !has_plain_bias(w) {
            return None;
        }
        let [q, k, _] = self.widths();
        let bias = match ["attn_k.bias", "attn_qkv.bias"].map(|name| w.has(name)) {
            [true, _] => s.weight(w, "attn_k.bias"),
            [_, true] => s.weight(w, "attn_qkv.bias").slice(0, q, k),
            _ => return None,
        };
        let bias = bias.reshape(dims![1, self.kv_heads, self.key]);
        let mean = s.mean_rope(self.tables[0], self.rotated);
        Some(self.rotate(bias, mean))
    }
    /// Returns the cached keys and values of an earlier layer with the same shape.
    fn rows<'g>(&self, s: &'g StepFunction, layer: usize) -> [Views<Tensor<'g>>; 2] {
        let [keys, values] = self.components();
        let (k, next) = s.cache(layer, 0, keys);
        [k, s.cache(layer, next, values).0]
    }
    /// Returns the cache components: keys and values of all key-value heads.
    fn components(&self) -> [Component; 2] {
        let [_, keys, values] = self.widths();
        [("keys", keys), ("values", values)].map(|(name, width)| Component {
            name,
            width,
            window: self.window,
            is_key: name == "keys",
        })
    }
    /// Splits `x [n, heads·key]` into heads and applies the RMS norm `name` if it exists. The
    /// length of the weights decides whether the norm covers one head or all heads.
    fn normed<'g>(
        &self,
        s: &'g StepFunction,
        w: &LayerWeights,
        x: Tensor<'g>,
        heads: usize,
        name: &str,
    ) -> Tensor<'g> {
        let split = dims![s.tokens(), heads, self.key];
        match w.has(name) {
            false => x.reshape(split),
            true if w.get(name).dims[0] == self.key => {
                nn::rms_norm(x.reshape(split), s.weight(w, name), self.eps)
            }
            true => nn::rms_norm(x, s.weight(w, name), self.eps).reshape(split),
        }
    }
    /// Applies RoPE to the first `rotated` elements of every head of `x [n, heads, key]`.
    fn rotate<'g>(&self, x: Tensor<'g>, rows: Tensor<'g>) -> Tensor<'g> {
        if self.rotated == self.key {
            return nn::rope(x, rows, self.pairing);
        }
        let turned = nn::rope(x.slice(2, 0, self.rotated), rows, self.pairing);
        Tensor::cat(
            &[turned, x.slice(2, self.rotated, self.key - self.rotated)],
            2,
        )
    }
}

/// Returns true if keys have a bias that no norm follows.
fn has_plain_bias(w: &LayerWeights) -> bool {
    let biased = w.has("attn_k.bias") || w.has("attn_qkv.bias");
    biased && !w.has("attn_k_norm.weight")
}

/// Multiplies `x [n, in]` by the matrix `name` and adds its bias if there is one.
pub(super) fn linear<'g>(
    s: &'g StepFunction,
    w: &LayerWeights,
    x: Tensor<'g>,
    name: &str,
) -> Tensor<'g> {
    let (matrix, bias) = (format!("{name}.weight"), format!("{name}.bias"));
    let y = s.linear(w, x, &matrix);
    if w.has(&bias) {
        y + s.weight(w, &bias)
    } else {
        y
    }
}
