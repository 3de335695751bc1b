//! Which experts a token uses, and what they count, as data.

use super::super::Result;
use super::super::reader::Reader;
use super::super::step::Step;
use super::super::tensors::Weights;
use gristmill_tensor::nn;
use gristmill_tensor::tensor::Tensor;

/// How a router's logits become scores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
    /// As they are.
    Raw,
    /// sqrt(log(1 + e^s)) of each.
    SqrtSoftplus,
}

/// How the scores of the chosen become weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weighting {
    /// As they are.
    Plain,
    /// Divided by their sum.
    Normalised,
    /// Softmax over them.
    Softmax,
}

/// How a token's experts are chosen and weighted. A bias of the selection, `exp_probs_b`, is a matter of tensors.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Routing {
    /// How logits become scores.
    pub gating: Gating,
    /// Groups and how many of them a token may use, where selection is limited. Groups are runs of neighbours; one counts the sum of its two best.
    pub groups: Option<(usize, usize)>,
    /// How scores become weights.
    pub weighting: Weighting,
    /// Factor on the weights.
    pub scale: f64,
}

/// Smallest sum that weights are divided by: 2^-14, as in llama.cpp.
const FLOOR: f64 = 6.103515625e-5;

impl Routing {
    /// What the keys `expert_*` say of `used` of `count` experts. Where they say nothing of scores these are `gating`'s, and weights are `weighting`'s, or
    /// where a family leaves it to its files what `expert_weights_norm` says.
    pub(super) fn read(
        r: &Reader,
        gating: Gating,
        weighting: Option<Weighting>,
        [count, used]: [usize; 2],
    ) -> Result<Routing> {
        let normalised = r.bool("expert_weights_norm")?.unwrap_or(false);
        let by_key = if normalised { Weighting::Normalised } else { Weighting::Plain };
        let weighting = weighting.unwrap_or(by_key);
        let (gating, weighting) = match r.size_or("expert_gating_func", Some(0))? {
            0 => (gating, weighting),
            1 => (Gating::Softmax, weighting),
            2 => (Gating::Sigmoid, weighting),
            3 => (Gating::Raw, Weighting::Softmax),
            4 => (Gating::SqrtSoftplus, weighting),
            other => return r.unsupported("expert_gating_func", other),
        };
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
        Ok(Routing { gating, groups, weighting, scale })
    }
    /// In words, for people.
    pub(super) fn words(&self) -> String {
        let scores = match self.gating {
            Gating::Softmax => "softmax",
            Gating::Sigmoid => "sigmoid",
            Gating::Raw => "logits",
            Gating::SqrtSoftplus => "root of softplus",
        };
        let weights = match self.weighting {
            Weighting::Plain => "",
            Weighting::Normalised => "normalised, ",
            Weighting::Softmax => "softmax of the chosen, ",
        };
        format!("{scores}, weights {weights}times {}", self.scale)
    }
    /// The `used` experts and weights of rows `x [n, d]`: indices `[n, used]` i32 and weights `[n, used]` f32. The router reads f32 values throughout.
    pub(super) fn write<'g>(&self, s: &'g Step, w: &Weights, x: Tensor<'g>, used: usize) -> (Tensor<'g>, Tensor<'g>) {
        let mut logits = x.linear(s.weight(w, "ffn_gate_inp.weight"));
        if w.has("ffn_gate_inp.bias") {
            logits = logits + s.weight(w, "ffn_gate_inp.bias");
        }
        let p = match self.gating {
            Gating::Softmax => nn::softmax(logits),
            Gating::Sigmoid => logits.sigmoid(),
            Gating::Raw => logits,
            Gating::SqrtSoftplus => logits.softplus().sqrt(),
        };
        // The bias moves the selection only.
        let mut b = if w.has("exp_probs_b.bias") { p + s.weight(w, "exp_probs_b.bias") } else { p };
        if let Some((groups, used)) = self.groups {
            b = nn::group_limited(b, groups, used);
        }
        let chosen = nn::top_k(b, used);
        let mut weights = chosen.of(p);
        match self.weighting {
            Weighting::Plain => (),
            Weighting::Normalised => weights = weights / weights.sum(&[1]).maximum(FLOOR).unsqueeze(1),
            Weighting::Softmax => weights = nn::softmax(weights),
        }
        if self.scale != 1.0 {
            weights = weights * self.scale;
        }
        (chosen.index, weights)
    }
}
