//! Selection and weighting of a token's experts.

use super::super::Result;
use super::super::reader::Reader;
use super::super::step::StepFunction;
use super::super::tensors::LayerWeights;
use gristmill_tensor::nn;
use gristmill_tensor::tensor::Tensor;

/// Function that turns router logits into scores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
    /// The logits without any function.
    Raw,
    /// `sqrt(log(1 + e^s))` of each logit.
    SqrtSoftplus,
}

/// Function that turns the chosen experts' scores into weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weighting {
    /// The scores without any function.
    Plain,
    /// Scores divided by their sum.
    Normalised,
    /// Softmax over the chosen scores.
    Softmax,
}

/// Selection and weighting of a token's experts. The selection bias `exp_probs_b` depends on the
/// tensors, not on this.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Routing {
    /// Function from logits to scores.
    pub gating: Gating,
    /// Number of groups and of groups a token may use, for group-limited selection. A group is a
    /// range of adjacent experts; its score is the sum of its two best experts.
    pub groups: Option<(usize, usize)>,
    /// Function from scores to weights.
    pub weighting: Weighting,
    /// Factor on the weights.
    pub scale: f64,
}

/// Minimum divisor of normalised weights: 2^-14, as in llama.cpp.
const FLOOR: f64 = 6.103515625e-5;

impl Routing {
    /// Reads the keys `expert_*` for `used` of `count` experts. `gating` and `weighting` are the
    /// defaults; without a default weighting, `expert_weights_norm` decides.
    pub(super) fn read(
        r: &Reader,
        gating: Gating,
        weighting: Option<Weighting>,
        [count, used]: [usize; 2],
    ) -> Result<Routing> {
        let normalised = r.bool("expert_weights_norm")?.unwrap_or(false);
        let by_key = if normalised {
            Weighting::Normalised
        } else {
            Weighting::Plain
        };
        let weighting = weighting.unwrap_or(by_key);
        let (gating, weighting) = match r.size_or("expert_gating_func", Some(0))? {
            0 => (gating, weighting),
            1 => (Gating::Softmax, weighting),
            2 => (Gating::Sigmoid, weighting),
            3 => (Gating::Raw, Weighting::Softmax),
            4 => (Gating::SqrtSoftplus, weighting),
            other => return r.unsupported("expert_gating_func", other),
        };
        // Both 0 and 1 mean no scale.
        let scale = r
            .float("expert_weights_scale")?
            .filter(|&s| s != 0.0)
            .unwrap_or(1.0);
        let groups = match r.size_or("expert_group_count", Some(0))? {
            0 | 1 => None,
            g => {
                let kept = r.size("expert_group_used_count")?;
                let divides = g < count && count.is_multiple_of(g);
                r.check(
                    "expert_group_count",
                    g,
                    divides,
                    "a proper divisor of expert_count",
                )?;
                let enough = kept <= g && used <= kept * (count / g);
                let expected = "at most expert_group_count, with enough experts in them";
                r.check("expert_group_used_count", kept, enough, expected)?;
                Some((g, kept))
            }
        };
        Ok(Routing {
            gating,
            groups,
            weighting,
            scale,
        })
    }
    /// Returns a description for display.
    pub(super) fn description(&self) -> String {
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
    /// Computes expert indices `[n, used]` i32 and weights `[n, used]` f32 of rows `x [n, d]`.
    /// Router inputs and arithmetic are f32.
    pub(super) fn write<'g>(
        &self,
        s: &'g StepFunction,
        w: &LayerWeights,
        x: Tensor<'g>,
        used: usize,
    ) -> (Tensor<'g>, Tensor<'g>) {
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
        // The bias affects the selection only, not the weights.
        let mut b = if w.has("exp_probs_b.bias") {
            p + s.weight(w, "exp_probs_b.bias")
        } else {
            p
        };
        if let Some((groups, used)) = self.groups {
            b = nn::group_limited(b, groups, used);
        }
        let chosen = nn::top_k(b, used);
        let mut weights = chosen.select(p);
        match self.weighting {
            Weighting::Plain => (),
            Weighting::Normalised => {
                weights = weights / weights.sum(&[1]).maximum(FLOOR).unsqueeze(1)
            }
            Weighting::Softmax => weights = nn::softmax(weights),
        }
        if self.scale != 1.0 {
            weights = weights * self.scale;
        }
        (chosen.index, weights)
    }
}
