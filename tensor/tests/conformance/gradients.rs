//! Gradients of layers: products back through packed weights, attention, experts, recurrences.

use crate::harness::{Case, Fill, Within};
use gristmill_encodings::{F16, F32, Q4_0, Q4_K};
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::grad::{grad, pullback};
use gristmill_tensor::nn::{self, Glu};
use gristmill_tensor::tensor::{Recurrence, Tensor};
use gristmill_uop::shape::Scoring;
use gristmill_uop::{EncodingRef, Scalar};

/// Gradients of `Σ y·dy` with respect to `of` as outputs.
fn gradients<'g>(c: &'g Capture, y: Tensor<'g>, of: &[Tensor<'g>]) {
    rounded_gradients(c, y, of, Scalar::F32);
}

/// The same by products of factors of type `operands`.
fn rounded_gradients<'g>(c: &'g Capture, y: Tensor<'g>, of: &[Tensor<'g>], operands: Scalar) {
    let dims: Vec<_> = y.dims().into_iter().map(Into::into).collect();
    let dy = c.input("dy", &dims, Scalar::F32);
    for dx in pullback(&[(y, dy)], of, operands) {
        c.output("dx", dx);
    }
}

/// A feed-forward with an adapter: gradients of its input, of the norm, and of the adapter.
fn feed_forward(e: EncodingRef, tokens: usize) -> Case {
    let (d, ff, rank) = (e.elements.max(64), 2 * e.elements.max(32), 4);
    Case::new(format!("{tokens} tokens, {}", e.name), |c| {
        let x = c.input("x", dims![tokens, d], Scalar::F32);
        let norm = c.input("norm", dims![d], Scalar::F32);
        let a = c.input("a", dims![rank, d], Scalar::F32);
        let b = c.input("b", dims![ff, rank], Scalar::F32);
        let y = nn::rms_norm(x, norm, 1e-5);
        let gate = y.contract_in_f32(c.weight("gate", &[ff, d], e));
        let gate = gate + y.linear(a).linear(b) * 0.5;
        let up = y.contract_in_f32(c.weight("up", &[ff, d], e));
        let down = c.weight("down", &[d, ff], e);
        let y = x + Glu::Swiglu.apply(gate, up).contract_in_f32(down);
        gradients(c, y, &[x, norm, a, b]);
    })
    .within(Within::Scale(5e-5))
}

/// `x wᵀ` of factors rounded to a type.
fn product<'g>(x: Tensor<'g>, w: Tensor<'g>, to: Scalar) -> Tensor<'g> {
    x.rounded(to).contract_in_f32(w.rounded(to))
}

/// A packed layer with an adapter whose products have bf16 operands.
fn layer_of_halves(e: EncodingRef, [tokens, d, out, rank]: [usize; 4]) -> Case {
    let to = Scalar::BF16;
    Case::new(format!("{tokens} tokens, {} by halves", e.name), |c| {
        let x = c.input("x", dims![tokens, d], Scalar::F32);
        let a = c.input("a", dims![rank, d], Scalar::F32);
        let b = c.input("b", dims![out, rank], Scalar::F32);
        let y = x.contract_in_f32(c.weight("w", &[out, d], e));
        let y = y + product(product(x, a, to), b, to) * 0.5;
        rounded_gradients(c, y, &[x, a, b], to);
    })
    .within(Within::Scale(2e-3))
}

/// A gated feed-forward behind a norm, whose gradients are products of bf16.
fn feed_forward_of_halves(e: EncodingRef, [tokens, d, ff]: [usize; 3]) -> Case {
    Case::new(
        format!("{tokens} tokens, {} feed-forward by halves", e.name),
        |c| {
            let x = c.input("x", dims![tokens, d], Scalar::F32);
            let norm = c.input("norm", dims![d], Scalar::F32);
            let a = c.input("a", dims![16, d], Scalar::F32);
            let b = c.input("b", dims![ff, 16], Scalar::F32);
            let y = nn::rms_norm(x, norm, 1e-5);
            let gate = y.contract_in_f32(c.weight("gate", &[ff, d], e));
            let gate = gate + product(product(y, a, Scalar::BF16), b, Scalar::BF16) * 0.5;
            let up = y.contract_in_f32(c.weight("up", &[ff, d], e));
            let down = c.weight("down", &[d, ff], e);
            let y = x + Glu::Swiglu.apply(gate, up).contract_in_f32(down);
            rounded_gradients(c, y, &[x, norm, a, b], Scalar::BF16);
        },
    )
    .within(Within::Scale(2e-3))
}

/// Experts that share dequantised weights with enough rows each.
fn experts_of_halves([tokens, d, ff]: [usize; 3]) -> Case {
    let (count, used, rank, to) = (2, 2, 16, Scalar::BF16);
    Case::new(format!("experts of {tokens} tokens by halves"), |c| {
        let x = c.input("x", dims![tokens, d], Scalar::F32);
        let router = c.input("router", dims![count, d], Scalar::F32);
        let a = c.input("a", dims![count, rank, d], Scalar::F32);
        let b = c.input("b", dims![count, ff, rank], Scalar::F32);
        let p = nn::softmax(x.linear(router));
        let chosen = nn::top_k(p, used);
        let sent = nn::Dispatch::new(chosen.index, c.int(tokens), tokens, count, Some(16));
        let rows = sent.spread(x);
        let y = rows.contract_in_f32(sent.of_experts(c.weight("w", &[count, ff, d], &Q4_0)));
        let low = product(rows, sent.of_experts(a), to);
        let y = y + product(low, sent.of_experts(b), to);
        let y = sent.combine(y.silu(), chosen.select(p));
        rounded_gradients(c, y, &[x, router, a, b], to);
    })
    .fill(1, Fill::Uniform(-1.0, 1.0))
    .within(Within::Scale(4e-3))
}

/// Attention whose forward pass reads f16 rows and whose gradients are products of bf16.
fn attention_of_halves([tokens, heads, width]: [usize; 3]) -> Case {
    Case::new(format!("attention of {tokens} tokens by halves"), |c| {
        let rows =
            |name: &str, heads: usize| c.input(name, dims![tokens, heads, width], Scalar::F32);
        let [q, k, v] = [rows("q", heads), rows("k", heads / 2), rows("v", heads / 2)];
        let [hq, hk, hv] = [q, k, v].map(|x| x.rounded(Scalar::F16));
        let seen = [c.int(0), c.int(tokens)];
        let scores = Scoring {
            scale: 0.25,
            cap: None,
        };
        let y = hq.attention_within([hk, hv], seen, scores, None, None);
        rounded_gradients(c, y, &[q, k, v], Scalar::BF16);
    })
    .within(Within::Scale(2e-3))
}

/// Cases for machines with matrix units.
pub fn of_halves() -> Vec<Case> {
    vec![
        layer_of_halves(&Q4_0, [128, 128, 192, 16]),
        layer_of_halves(&Q4_K, [128, 256, 64, 16]),
        layer_of_halves(&Q4_0, [128, 64, 96, 8]),
        feed_forward_of_halves(&Q4_0, [128, 64, 128]),
        experts_of_halves([160, 64, 32]),
        attention_of_halves([128, 4, 32]),
    ]
}

fn attention(name: &str, first: usize, window: Option<usize>, cap: Option<f64>) -> Case {
    Case::new(name, |c| {
        let q = c.input("q", dims![9, 4, 16], Scalar::F32);
        let k = c.input("k", dims![first + 9, 2, 16], Scalar::F32);
        let v = c.input("v", dims![first + 9, 2, 8], Scalar::F32);
        let sinks = cap.map(|_| c.input("sinks", dims![4], Scalar::F32));
        let scores = Scoring { scale: 0.5, cap };
        let seen = [c.int(first), c.int(first + 9)];
        let y = q.attention_within([k, v], seen, scores, window, sinks);
        let of: Vec<_> = [q, k, v].into_iter().chain(sinks).collect();
        gradients(c, y, &of);
    })
    .within(Within::Scale(5e-5))
}

/// Experts with adapters, whose gradients are scattered sums.
fn experts(height: Option<usize>) -> Case {
    let (tokens, d, ff, count, used, rank) = (10, 64, 32, 4, 2, 4);
    let name = format!("experts in tiles of {height:?}");
    Case::new(name, |c| {
        let x = c.input("x", dims![tokens, d], Scalar::F32);
        let router = c.input("router", dims![count, d], Scalar::F32);
        let a = c.input("a", dims![count, rank, d], Scalar::F32);
        let b = c.input("b", dims![count, ff, rank], Scalar::F32);
        let p = nn::softmax(x.linear(router));
        let chosen = nn::top_k(p, used);
        let sent = nn::Dispatch::new(chosen.index, c.int(tokens), tokens, count, height);
        let rows = sent.spread(x);
        let w = c.weight("w", &[count, ff, d], &Q4_0);
        let y = rows.contract_in_f32(sent.of_experts(w));
        let low = rows.contract_in_f32(sent.of_experts(a));
        let y = y + low.contract_in_f32(sent.of_experts(b));
        let y = sent.combine(y.silu(), chosen.select(p));
        gradients(c, y, &[x, router, a, b]);
    })
    // Scores are far enough apart that rounding changes no choice.
    .fill(1, Fill::Uniform(-1.0, 1.0))
    .within(Within::Scale(5e-5))
}

fn recurrence(rates: bool) -> Case {
    let (tokens, heads, values, keys) = (7, 2, 4, 8);
    Case::new(format!("a recurrence, rates {rates}"), |c| {
        let state = c.input("state", dims![heads, values, keys], Scalar::F32);
        let rows =
            |name: &str, width: usize| c.input(name, dims![tokens, heads, width], Scalar::F32);
        let (queries, k, v) = (
            rows("queries", keys),
            rows("keys", keys),
            rows("values", values),
        );
        let gates = c.input("gates", dims![tokens, heads], Scalar::F32);
        let rate = rates.then(|| c.input("rates", dims![tokens, heads], Scalar::F32));
        let (read, _) = Recurrence {
            queries,
            keys: k * (1.0 / (keys as f64).sqrt()),
            values: v,
            gates: -gates.softplus(),
            rates: rate.map(Tensor::sigmoid),
        }
        .scan(state);
        let of: Vec<_> = [state, queries, k, v, gates]
            .into_iter()
            .chain(rate)
            .collect();
        gradients(c, read, &of);
    })
    .within(Within::Scale(5e-5))
}

/// Cross-entropy of a packed head, and the gradient of an embedding.
fn head() -> Case {
    let (tokens, d, vocabulary) = (6, 64, 96);
    Case::new("cross-entropy", |c| {
        let x = c.input("x", dims![tokens, d], Scalar::F32);
        let targets = c.input("targets", dims![tokens], Scalar::I32);
        let targets = targets.clamp_index(vocabulary - 1);
        let logits = x.contract_in_f32(c.weight("head", &[vocabulary, d], &Q4_0));
        let hot = c
            .iota(dims![tokens, vocabulary], 1)
            .equals(targets.unsqueeze(1));
        let loss = (nn::softmax(logits).log() * hot.cast(Scalar::F32)).sum(&[0, 1]);
        c.output("dx", grad(loss, &[x])[0]);
    })
    .fill(1, Fill::Whole(0, 96))
    .within(Within::Scale(5e-5))
}

pub fn cases() -> Vec<Case> {
    let encodings: [EncodingRef; 4] = [&F32, &F16, &Q4_0, &Q4_K];
    let mut out: Vec<Case> = encodings.into_iter().map(|e| feed_forward(e, 5)).collect();
    out.push(feed_forward(&Q4_0, 40));
    out.extend([
        attention("attention", 0, None, None),
        attention("attention after earlier positions", 3, None, None),
        attention("attention in a window", 0, Some(4), None),
        attention("attention with a cap and sinks", 0, None, Some(2.0)),
        experts(Some(4)),
        experts(None),
        recurrence(false),
        recurrence(true),
        head(),
    ]);
    out
}
