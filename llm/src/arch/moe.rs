//! Mixture of experts: router, selection, routed and shared experts. `docs/deepseek2.md`, section 5.

use super::Result;
use super::feed_forward::swiglu;
use super::plan::{Options, TokenClass};
use super::reader::Reader;
use super::step::Step;
use super::tensors::{Table, Weights};
use crate::gguf::Role;
use gristmill_tensor::dims;
use gristmill_tensor::nn;
use gristmill_tensor::tensor::Tensor;

/// How router scores become probabilities.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
    /// The scores themselves; softmax over the chosen ones afterwards.
    SoftmaxOfChosen,
    /// sqrt(log(1 + e^s)) of each.
    SqrtSoftplus,
}

/// Mixture of experts.
#[derive(Clone, PartialEq, Debug)]
pub struct Experts {
    /// Routed experts.
    pub count: usize,
    /// Of which each token uses that many.
    pub used: usize,
    /// Width of an expert.
    pub ff: usize,
    /// Width of the shared expert, 0 if there is none.
    pub shared_ff: usize,
    /// How scores become probabilities.
    pub gating: Gating,
    /// Are the weights of the chosen divided by their sum?
    pub normalise: bool,
    /// Factor on the weights.
    pub scale: f64,
    /// Groups and how many of them a token may use, where selection is limited.
    pub groups: Option<(usize, usize)>,
}

impl Gating {
    /// What `expert_gating_func` says; `None` where the key is absent.
    pub(super) fn read(r: &Reader) -> Result<Option<Gating>> {
        Ok(Some(match r.size_or("expert_gating_func", Some(0))? {
            0 => return Ok(None),
            1 => Gating::Softmax,
            2 => Gating::Sigmoid,
            3 => Gating::SoftmaxOfChosen,
            4 => Gating::SqrtSoftplus,
            other => return r.unsupported("expert_gating_func", other),
        }))
    }
    /// In words, for people.
    fn words(self) -> &'static str {
        match self {
            Gating::Softmax => "softmax",
            Gating::Sigmoid => "sigmoid",
            Gating::SoftmaxOfChosen => "softmax of the chosen",
            Gating::SqrtSoftplus => "root of softplus",
        }
    }
}

impl Experts {
    /// What the keys `expert_*` say, if there are experts; `gating` and `normalise` are told apart by family.
    pub(super) fn read(r: &Reader, gating: Gating, normalise: bool) -> Result<Option<Experts>> {
        let count = r.size_or("expert_count", Some(0))?;
        if count == 0 {
            return Ok(None);
        }
        r.check("expert_count", count, count <= 512, "at most 512")?;
        let used = r.size("expert_used_count")?;
        r.check("expert_used_count", used, used <= count, "at most expert_count")?;
        let ff = r.size("expert_feed_forward_length")?;
        let shared = r.size_or("expert_shared_count", Some(0))?;
        r.check("expert_shared_count", shared, shared <= 512, "at most 512")?;
        // 0 and 1 both say that there is none.
        let scale = r.float("expert_weights_scale")?.filter(|&s| s != 0.0).unwrap_or(1.0);
        let groups = match r.size_or("expert_group_count", Some(0))? {
            0 | 1 => None,
            g => {
                let kept = r.size("expert_group_used_count")?;
                let divides = g < count && count.is_multiple_of(g);
                r.check("expert_group_count", g, divides, "a proper divisor of expert_count")?;
                let enough = kept <= g && used <= kept * (count / g);
                let expected = "at most expert_group_count, with enough experts in them";
                r.check("expert_group_used_count", kept, enough, expected)?;
                Some((g, kept))
            }
        };
        Ok(Some(Experts { count, used, ff, shared_ff: shared * ff, gating, normalise, scale, groups }))
    }
    /// Lists their tensors, of rows of `d`, in the current block.
    pub(super) fn tensors(&self, t: &mut Table, d: usize) {
        t.need("ffn_gate_inp.weight", Role::Router, &[self.count, d]);
        t.optional("exp_probs_b.bias", Role::Bias, &[self.count]);
        let Role::Down(layer) = t.down() else { unreachable!("the role of a down projection") };
        let down = |t: &mut Table| t.need("ffn_down_exps.weight", Role::ExpertsDown(layer), &[self.count, d, self.ff]);
        if t.has("ffn_gate_up_exps.weight") {
            t.need("ffn_gate_up_exps.weight", Role::Experts, &[self.count, 2 * self.ff, d]);
            down(t);
        } else {
            t.need("ffn_gate_exps.weight", Role::Experts, &[self.count, self.ff, d]);
            down(t);
            t.need("ffn_up_exps.weight", Role::Experts, &[self.count, self.ff, d]);
        }
        if self.shared_ff > 0 {
            t.need("ffn_gate_shexp.weight", Role::Matrix, &[self.shared_ff, d]);
            t.need("ffn_down_shexp.weight", t.down(), &[d, self.shared_ff]);
            t.need("ffn_up_shexp.weight", Role::Matrix, &[self.shared_ff, d]);
        }
    }
    /// In words, for people.
    pub(super) fn summary(&self) -> [(&'static str, String); 3] {
        let groups = self.groups.map_or(String::new(), |(n, used)| format!(", from {used} of {n} groups"));
        let weights = if self.normalise { "normalised, " } else { "" };
        let shared = if self.shared_ff > 0 { format!("width {}", self.shared_ff) } else { "none".into() };
        [
            ("experts", format!("{}, of which {} are used{groups}; width {}", self.count, self.used, self.ff)),
            ("shared expert", shared),
            ("gating", format!("{}, weights {weights}times {}", self.gating.words(), self.scale)),
        ]
    }
}

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
