//! Attention whose heads share keys and values in groups: any ratio, keys and values apart in the cache.

use super::cache::{CacheSpec, Component};
use super::step::{Sight, Step, Views};
use super::tensors::{Table, Weights};
use crate::gguf::Role;
use gristmill_tensor::dims;
use gristmill_tensor::nn::{self, Pairing};
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::shape::Scoring;

/// What an attention is, in numbers.
#[derive(Clone, PartialEq, Debug)]
pub struct Grouped {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values, a divisor of those.
    pub kv_heads: usize,
    /// Width of a head's query and key.
    pub key: usize,
    /// Width of its value.
    pub value: usize,
    /// Of the width of a key, the first so many rotate.
    pub rotated: usize,
    /// Which elements rotate together.
    pub pairing: Pairing,
    /// What products of queries and keys become.
    pub scores: Scoring,
    /// Added to the mean square in the norms of heads.
    pub eps: f64,
    /// The tables of rotations of keys and of queries.
    pub tables: [usize; 2],
    /// Positions that a token sees, its own included, unless it sees all before it.
    pub window: Option<usize>,
    /// Have heads gates? Then the rows of a head's query are followed by as many whose sigmoids multiply what the head gives, of the same width.
    pub gated: bool,
    /// Is every head's value normed, to a mean square of 1, before it is cached?
    pub normed_values: bool,
    /// The layer whose cache it reads, where it has no keys and values of its own.
    pub reads: Option<usize>,
}

/// Norms of queries and keys, before they rotate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Norms {
    /// None.
    No,
    /// Of every head, with the same weights.
    Heads,
    /// Of every head where the file has them.
    HeadsIfThere,
    /// Of all heads together.
    Whole,
}

/// Tensors of an attention that a family has or has not.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    /// A norm of what it reads.
    pub before: bool,
    /// Norms of queries and keys.
    pub norms: Norms,
    /// Biases of queries, keys and values. Where they are not demanded, those that are there are used.
    pub biases: bool,
    /// A logit of each head that takes a part of the weights and has no value.
    pub sinks: bool,
    /// May the matrix of values be absent? Values are then what keys are made of.
    pub keys_as_values: bool,
}

impl Grouped {
    /// Width of what a head's queries come from.
    fn query(&self) -> usize {
        if self.gated { 2 * self.key } else { self.key }
    }
    /// Widths of all queries, with their gates, keys and values of a token.
    fn widths(&self) -> [usize; 3] {
        [self.heads * self.query(), self.kv_heads * self.key, self.kv_heads * self.value]
    }
    /// Lists its tensors, of rows of `d`, in the current block.
    pub(super) fn tensors(&self, t: &mut Table, d: usize, parts: Parts) {
        let [q, k, v] = self.widths();
        let bias = |t: &mut Table, short, width| match parts.biases {
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
        t.need("attn_output.weight", Role::Matrix, &[d, self.heads * self.value]);
        t.optional("attn_output.bias", Role::Bias, &[d]);
    }
    /// What it keeps of every token: nothing, where it reads another layer's cache.
    pub(super) fn cache(&self) -> CacheSpec {
        if self.reads.is_some() { CacheSpec::default() } else { CacheSpec::of_rows(&self.components()) }
    }
    /// Attention of rows `x [n, d]` of layer `layer`; writes their keys and values into the cache. Returns `[n, d]`.
    pub(super) fn write<'g>(&self, s: &'g Step, w: &Weights, layer: usize, x: Tensor<'g>) -> Tensor<'g> {
        let n = s.tokens();
        let (q, own) = self.projected(s, w, x);
        // A head's query is followed by its gate.
        let (q, gate) = match self.gated {
            false => (q, None),
            true => {
                let q = q.reshape(dims![n, self.heads, self.query()]);
                (q.slice(2, 0, self.key), Some(q.slice(2, self.key, self.key).sigmoid()))
            }
        };
        let q = self.normed(s, w, q, self.heads, "attn_q_norm.weight");
        let (q, [k, v]) = match (own, self.reads) {
            (Some(own), _) => self.own(s, w, layer, q, own),
            (None, reads) => {
                let q = self.rotate(q, s.rope(self.tables[1], self.rotated));
                (q, self.rows(s, reads.expect("keys and values of its own, or another layer's")))
            }
        };
        let heads = |rows: Tensor<'g>, width: usize| rows.reshape(dims![rows.dim(0), self.kv_heads, width]);
        let (k, v) = (k.map(|k| heads(k, self.key)), v.map(|v| heads(v, self.value)));
        let sinks = w.has("attn_sinks.weight").then(|| s.weight(w, "attn_sinks.weight"));
        let out = s.attention(&[q], [k, v], Sight { scores: self.scores, window: self.window, sinks });
        let out = gate.map_or(out, |gate| out * gate).reshape(dims![n, self.heads * self.value]);
        linear(s, w, out, "attn_output")
    }
    /// Queries `[n, width]` of rows `x [n, d]`, and of a layer that has them keys and values. Values without a matrix of their own are the keys.
    fn projected<'g>(&self, s: &'g Step, w: &Weights, x: Tensor<'g>) -> (Tensor<'g>, Option<[Tensor<'g>; 2]>) {
        if w.has("attn_qkv.weight") {
            let all = linear(s, w, x, "attn_qkv");
            let [q, k, v] = self.widths();
            return (all.slice(1, 0, q), Some([all.slice(1, q, k), all.slice(1, q + k, v)]));
        }
        let q = linear(s, w, x, "attn_q");
        if self.reads.is_some() {
            return (q, None);
        }
        let k = linear(s, w, x, "attn_k");
        (q, Some([k, if w.has("attn_v.weight") { linear(s, w, x, "attn_v") } else { k }]))
    }
    /// Queries that have rotated, and the cache's keys and values once it has those of these tokens.
    fn own<'g>(
        &self,
        s: &'g Step,
        w: &Weights,
        layer: usize,
        q: Tensor<'g>,
        [k, v]: [Tensor<'g>; 2],
    ) -> (Tensor<'g>, [Views<Tensor<'g>>; 2]) {
        let n = s.tokens();
        let k = self.normed(s, w, k, self.kv_heads, "attn_k_norm.weight");
        let of_keys = s.rope(self.tables[0], self.rotated);
        let of_queries = if self.tables[0] == self.tables[1] { of_keys } else { s.rope(self.tables[1], self.rotated) };
        let (q, k) = (self.rotate(q, of_queries), self.rotate(k, of_keys));
        let [keys, values] = self.components();
        let v = match self.normed_values {
            false => v,
            true => nn::rms(v.reshape(dims![n, self.kv_heads, self.value]), self.eps).reshape(dims![n, values.width]),
        };
        let (k, next) = s.cached(layer, 0, keys, k.reshape(dims![n, keys.width]));
        let (v, _) = s.cached(layer, next, values, v);
        (q, [k, v])
    }
    /// The cache's keys and values of a layer that comes before and is like this one.
    fn rows<'g>(&self, s: &'g Step, layer: usize) -> [Views<Tensor<'g>>; 2] {
        let [keys, values] = self.components();
        let (k, next) = s.cache(layer, 0, keys);
        [k, s.cache(layer, next, values).0]
    }
    /// What a row of the cache has.
    fn components(&self) -> [Component; 2] {
        let [_, keys, values] = self.widths();
        [("keys", keys), ("values", values)].map(|(name, width)| Component { name, width, window: self.window })
    }
    /// Rows `x [n, heads·key]` as heads, normed where there are weights of that name: as many as what they go over has elements, a head or all of them.
    fn normed<'g>(&self, s: &'g Step, w: &Weights, x: Tensor<'g>, heads: usize, name: &str) -> Tensor<'g> {
        let split = dims![s.tokens(), heads, self.key];
        match w.has(name) {
            false => x.reshape(split),
            true if w.get(name).dims[0] == self.key => nn::rms_norm(x.reshape(split), s.weight(w, name), self.eps),
            true => nn::rms_norm(x, s.weight(w, name), self.eps).reshape(split),
        }
    }
    /// `x [n, heads, key]` with the first part of every head rotated.
    fn rotate<'g>(&self, x: Tensor<'g>, rows: Tensor<'g>) -> Tensor<'g> {
        if self.rotated == self.key {
            return nn::rope(x, rows, self.pairing);
        }
        let turned = nn::rope(x.slice(2, 0, self.rotated), rows, self.pairing);
        Tensor::cat(&[turned, x.slice(2, self.rotated, self.key - self.rotated)], 2)
    }
}

/// `x [n, in]` through the matrix of that name, with its bias if there is one.
fn linear<'g>(s: &'g Step, w: &Weights, x: Tensor<'g>, name: &str) -> Tensor<'g> {
    let (matrix, bias) = (format!("{name}.weight"), format!("{name}.bias"));
    let y = s.linear(w, x, &matrix);
    if w.has(&bias) { y + s.weight(w, &bias) } else { y }
}
