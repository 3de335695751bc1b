//! Mixture of experts: router, selection, routed and shared experts. `docs/deepseek2.md`, section 5.

use super::super::{Options, TokenClass};
use super::feed_forward::swiglu;
use super::hyper::{Experts, Gating};
use super::step::Step;
use super::weights::Weights;
use gristmill_tensor::dims;
use gristmill_tensor::nn;
use gristmill_tensor::tensor::Tensor;

/// Smallest sum that weights are divided by: 2^-14, as in llama.cpp.
const FLOOR: f64 = 6.103515625e-5;
/// Rows of a tile of tokens of one expert, in steps of at most `max` tokens: enough to unpack a weight once for several, few
/// enough that the mean waste (half a tile an expert) stays below the rows an expert gets.
fn tile(e: &Experts, max: usize, most: usize) -> usize {
    match max * e.used / e.count {
        0..8 => 4,
        8..32 => 8,
        // Of rows that fall to experts by chance few experts get more than two deviations above the mean.
        rows => (rows + 2 * rows.isqrt()).next_multiple_of(Options::TILE).min(most),
    }
}

/// Experts and weights of normed rows `x [n, d]`: indices `[n, k]` i32 and weights `[n, k]` f32. The router reads f32
/// values throughout.
fn route<'g>(s: &'g Step, e: &Experts, w: &Weights, x: Tensor<'g>) -> (Tensor<'g>, Tensor<'g>) {
    let scores = x.linear(s.weight(w, "ffn_gate_inp.weight"));
    let p = match e.gating {
        Gating::Softmax => nn::softmax(scores),
        Gating::Sigmoid => scores.sigmoid(),
        Gating::SoftmaxOfChosen => scores,
        Gating::SqrtSoftplus => scores.softplus().sqrt(),
    };
    // The bias moves the selection only.
    let mut b = if w.has("exp_probs_b.bias") { p + s.weight(w, "exp_probs_b.bias") } else { p };
    if let Some((groups, used)) = e.groups {
        b = nn::group_limited(b, groups, used);
    }
    let chosen = nn::top_k(b, e.used);
    let mut weights = chosen.of(p);
    if e.gating == Gating::SoftmaxOfChosen {
        weights = nn::softmax(weights);
    }
    if e.normalise {
        weights = weights / weights.sum(&[1]).maximum(FLOOR).unsqueeze(1);
    }
    if e.scale != 1.0 {
        weights = weights * e.scale;
    }
    (chosen.index, weights)
}

/// The feed-forward of normed rows `x [n, d]`: `Σ_j weight_j · expert_j(x)`, plus the shared expert.
pub(super) fn experts<'g>(s: &'g Step, e: &Experts, w: &Weights, x: Tensor<'g>) -> Tensor<'g> {
    let (index, weights) = route(s, e, w, x);
    let routed = match s.options.tokens {
        TokenClass::One => one_token(s, e, w, x, index, weights),
        TokenClass::Chunk { max } => chunk(s, e, w, x, index, weights, max),
    };
    if e.shared_ff == 0 {
        return routed;
    }
    routed + swiglu(s, w, x, ["ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight"])
}

/// `silu(gate·x) ⊙ (up·x)` with the experts `index [m]`: `x [b.., d]` to `[b.., ff]`, where `place` puts gathered weights
/// `[m, out, in]` beside `x`.
fn activations<'g>(
    s: &'g Step,
    e: &Experts,
    w: &Weights,
    index: Tensor<'g>,
    x: Tensor<'g>,
    place: impl Fn(Tensor<'g>) -> Tensor<'g>,
) -> Tensor<'g> {
    let project = |name: &str| x.contract(place(s.weight(w, name).gather(index)));
    let (gate, up) = if w.has("ffn_gate_up_exps.weight") {
        let both = project("ffn_gate_up_exps.weight");
        let last = both.rank() - 1;
        (both.slice(last, 0, e.ff), both.slice(last, e.ff, e.ff))
    } else {
        (project("ffn_gate_exps.weight"), project("ffn_up_exps.weight"))
    };
    gate.silu() * up
}

/// One row `x [1, d]`: the chosen experts side by side, addressed through `index [1, k]`.
fn one_token<'g>(
    s: &'g Step,
    e: &Experts,
    w: &Weights,
    x: Tensor<'g>,
    index: Tensor<'g>,
    weights: Tensor<'g>,
) -> Tensor<'g> {
    let index = index.squeeze(0);
    let a = activations(s, e, w, index, x, |w| w);
    let down = a.contract(s.weight(w, "ffn_down_exps.weight").gather(index));
    (down * weights.reshape(dims![e.used, 1])).sum(&[0]).unsqueeze(0)
}

/// Rows `x [n, d]` grouped into tiles of one expert each; every row of a tile shares its weights' address.
fn chunk<'g>(
    s: &'g Step,
    e: &Experts,
    w: &Weights,
    x: Tensor<'g>,
    index: Tensor<'g>,
    weights: Tensor<'g>,
    max: usize,
) -> Tensor<'g> {
    let d = x.dim(1);
    let height = tile(e, max, s.options.tile);
    let t = nn::tiles(index, s.tokens(), max, e.count, height);
    let rows = x.gather(t.token).reshape(dims![t.count, height, d]);
    let a = activations(s, e, w, t.expert, rows, |w| w.unsqueeze(1));
    let down = a.contract(s.weight(w, "ffn_down_exps.weight").gather(t.expert).unsqueeze(1));
    let down = down.reshape(dims![t.count * height as i64, d]);
    (down.gather(t.row) * weights.unsqueeze(2)).sum(&[1])
}
