//! Gradient of attention.
//!
//! With scores `s = scale·q·k` (capped: `c·tanh(s/c)`), weights `p = softmax(s)` over the visible
//! positions and the sink, `o = p v` and `δ = do·o`:
//!
//! ```text
//! dv = pᵀ do,  dp = do vᵀ,  ds = p (dp − δ),  dq = scale·ds k,  dk = scale·dsᵀ q
//! dsink = −Σ p_sink δ,  and with a cap ds is multiplied by 1 − (s/c)²
//! ```
//!
//! The weights are computed again from queries and keys (FlashAttention-2, arXiv 2307.08691,
//! section 3.1). Query rows are processed in chunks, so that scores take bounded memory, and a
//! chunk of a step that starts at position 0 reads only the keys before its end.

use super::step::{Part, Step, dims_of, filled};
use crate::dims;
use crate::tensor::{Dim, Tensor};
use gristmill_uop::dtype::Scalar;
use gristmill_uop::shape::Scoring;

/// Query rows per chunk. Scores of 32 heads over 2,048 positions take 67 MB.
const CHUNK: usize = 256;

/// Sources and gradient of an attention in f32, heads first.
struct Sources<'g> {
    /// `[kv heads, group·tokens, d]`, and the gradient of the output.
    q: Tensor<'g>,
    d_out: Tensor<'g>,
    /// `δ` of every head and token, `[heads, tokens]`.
    delta: Tensor<'g>,
    /// `[kv heads, positions, d]`
    k: Tensor<'g>,
    v: Tensor<'g>,
    sinks: Option<Tensor<'g>>,
    /// True where a token sees a position: `[tokens, positions]`.
    visible: Tensor<'g>,
    scoring: Scoring,
    heads: usize,
    kv_heads: usize,
    /// Type that factors of matrix products are rounded to.
    operands: Scalar,
}

/// Gradients of a chunk of query rows.
struct Gradients<'g> {
    q: Tensor<'g>,
    k: Tensor<'g>,
    v: Tensor<'g>,
    sinks: Option<Tensor<'g>>,
}

pub(super) fn attention<'g>(s: &Step<'g>, needs: &dyn Fn(usize) -> bool) -> Vec<(usize, Part<'g>)> {
    let c = s.y.capture();
    let size = |t: Tensor<'g>, axis: usize| c.graph.borrow().int_value(t.dims()[axis]);
    let (tokens, positions) = (size(s.src[0], 0), size(s.src[1], 0));
    let starts_at_0 = c.graph.borrow().int_value(s.src[3].id) == Some(0);
    let chunks: Vec<(Dim, Dim, Dim)> = match (tokens, positions) {
        (Some(tokens), Some(positions)) => (0..tokens as usize)
            .step_by(CHUNK)
            .map(|begin| {
                let rows = CHUNK.min(tokens as usize - begin);
                let seen = match starts_at_0 {
                    true => (begin + rows).min(positions as usize),
                    false => positions as usize,
                };
                (begin.into(), rows.into(), seen.into())
            })
            .collect(),
        _ => vec![(0.into(), s.src[0].dim(0), s.src[1].dim(0))],
    };
    let mut total: Option<Gradients<'g>> = None;
    let mut of_queries = Vec::new();
    for (begin, rows, seen) in chunks {
        let mut part = Sources::new(s, begin, rows, seen).gradients();
        of_queries.push(part.q);
        part.k = padded(part.k, s.src[1].dim(0));
        part.v = padded(part.v, s.src[2].dim(0));
        total = Some(match total {
            None => part,
            Some(all) => Gradients {
                k: all.k + part.k,
                v: all.v + part.v,
                sinks: all.sinks.zip(part.sinks).map(|(a, b)| a + b),
                ..all
            },
        });
    }
    let Some(total) = total else {
        return Vec::new();
    };
    let mut out = vec![
        (0, Part::Whole(Tensor::cat(&of_queries, 0))),
        (1, Part::Whole(total.k)),
        (2, Part::Whole(total.v)),
    ];
    out.extend(total.sinks.map(|dy| (6, Part::Whole(dy))));
    out.retain(|o| needs(o.0));
    out
}

/// Appends rows of zeros to `x [n, ..]` up to `rows`.
fn padded<'g>(x: Tensor<'g>, rows: Dim) -> Tensor<'g> {
    let c = x.capture();
    let [own, all] = [x.dim(0), rows].map(|d| c.id_of(d));
    if own == all {
        return x;
    }
    let missing = c.tensor(all) - c.tensor(own);
    let mut dims = dims_of(x);
    dims[0] = missing.into();
    Tensor::cat(&[x, filled(c, 0.0, &dims)], 0)
}

impl<'g> Sources<'g> {
    /// Query rows `begin..begin + rows`, and the first `seen` positions.
    fn new(s: &Step<'g>, begin: Dim, rows: Dim, seen: Dim) -> Sources<'g> {
        let c = s.y.capture();
        let fixed = |t: Tensor<'g>, axis: usize| {
            let length = c.graph.borrow().int_value(t.dims()[axis]);
            length.expect("heads have a constant number and width") as usize
        };
        let (heads, kv_heads) = (fixed(s.src[0], 1), fixed(s.src[1], 1));
        let tokens_of = |x: Tensor<'g>| {
            let width = x.dim(2);
            let x = x.slice(0, begin, rows).permute(&[1, 0, 2]);
            let per_group = c.tensor(c.id_of(rows)) * (heads / kv_heads) as i64;
            x.reshape(dims![kv_heads, per_group, width])
        };
        let positions_of = |x: Tensor<'g>| x.slice(0, 0, seen).permute(&[1, 0, 2]);
        let dot = (s.dy * s.value()).sum(&[2]);
        let scoring = Scoring::from_arg(&s.arg).expect("attention has a scale");
        Sources {
            q: tokens_of(s.float(0)),
            d_out: tokens_of(s.dy),
            delta: dot.slice(0, begin, rows).permute(&[1, 0]),
            k: positions_of(s.float(1)),
            v: positions_of(s.float(2)),
            sinks: s.src.get(6).map(|_| s.float(6)),
            visible: visible(s, begin, rows, seen),
            scoring,
            heads,
            kv_heads,
            operands: s.operands,
        }
    }
    /// `y[b, m, n] = Σ_k x[b, m, k]·w[b, n, k]`
    fn product(&self, x: Tensor<'g>, w: Tensor<'g>) -> Tensor<'g> {
        x.rounded(self.operands)
            .matmul_transposed(w.rounded(self.operands))
    }
    /// Rows `[kv heads, group·tokens, n]` by head, `[heads, tokens, n]`.
    fn by_head(&self, x: Tensor<'g>) -> Tensor<'g> {
        x.reshape(&[Dim::Size(self.heads), self.visible.dim(0), x.dim(2)])
    }
    /// Rows `[heads, tokens, n]` by key head, `[kv heads, group·tokens, n]`.
    fn by_group(&self, x: Tensor<'g>) -> Tensor<'g> {
        x.reshape(&[Dim::Size(self.kv_heads), self.q.dim(1), x.dim(2)])
    }
    /// Rows by head to `[tokens, heads, n]`.
    fn by_token(&self, x: Tensor<'g>) -> Tensor<'g> {
        self.by_head(x).permute(&[1, 0, 2])
    }
    /// Scores after scale and cap, and their slope by the uncapped scores: `[heads, tokens,
    /// positions]`.
    fn scores(&self) -> (Tensor<'g>, Option<Tensor<'g>>) {
        let scores = self.by_head(self.product(self.q, self.k)) * self.scoring.scale;
        match self.scoring.cap {
            None => (scores, None),
            Some(cap) => {
                let capped = crate::nn::soft_cap(scores, cap);
                let part = capped * (1.0 / cap);
                (capped, Some(-(part * part) + 1.0))
            }
        }
    }
    /// Softmax weights `[heads, tokens, positions]`, and those of the sinks, `[heads, tokens]`.
    fn weights(&self, scores: Tensor<'g>) -> (Tensor<'g>, Option<Tensor<'g>>) {
        let seen = self
            .visible
            .unsqueeze(0)
            .select(scores, f64::from(f32::MIN));
        let sinks = self.sinks.map(|s| s.unsqueeze(1));
        let largest = seen.max(&[2]);
        let largest = sinks.map_or(largest, |s| largest.maximum(s));
        let terms = (seen - largest.unsqueeze(2)).exp();
        let of_sinks = sinks.map(|s| (s - largest).exp());
        let sum = terms.sum(&[2]);
        let sum = of_sinks.map_or(sum, |s| sum + s);
        (
            terms * sum.recip().unsqueeze(2),
            of_sinks.map(|s| s * sum.recip()),
        )
    }
    fn gradients(&self) -> Gradients<'g> {
        let (scores, slope) = self.scores();
        let (weights, of_sinks) = self.weights(scores);
        let d_weights = self.by_head(self.product(self.d_out, self.v));
        let d_scores = weights * (d_weights - self.delta.unsqueeze(2)) * self.scoring.scale;
        let d_scores = self.by_group(slope.map_or(d_scores, |slope| d_scores * slope));
        let turned = |x: Tensor<'g>| x.permute(&[0, 2, 1]);
        let back =
            |x: Tensor<'g>, y: Tensor<'g>| self.product(turned(x), turned(y)).permute(&[1, 0, 2]);
        Gradients {
            q: self.by_token(self.product(d_scores, turned(self.k))),
            k: back(d_scores, self.q),
            v: back(self.by_group(weights), self.d_out),
            sinks: of_sinks.map(|p| -(p * self.delta).sum(&[1])),
        }
    }
}

/// True where a token sees a position, `[rows, seen]`: see [`gristmill_uop::Graph::attention`].
fn visible<'g>(s: &Step<'g>, begin: Dim, rows: Dim, seen: Dim) -> Tensor<'g> {
    let c = s.y.capture();
    let pairs = [rows, seen];
    let wide = |axis: usize| c.iota(&pairs, axis).cast(Scalar::I64);
    let token = wide(0) + c.tensor(c.id_of(begin)) + s.src[3];
    let position = wide(1);
    let seen = position.lt(token + 1) & position.lt(s.src[4]);
    let window = s.src.get(5).and_then(|w| c.graph.borrow().int_value(w.id));
    match window {
        None | Some(0) => seen,
        Some(window) => seen & token.lt(position + window),
    }
}
