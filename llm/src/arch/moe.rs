//! Mixture of experts: router, selection, routed and shared experts. `docs/deepseek2.md`, section 5.
//!
//! A family says what its experts are ([`Kind`]), a file how many and how wide. Biases, factors and the form of gate and up follow from the tensors that
//! are there; those that a family cannot be without it names.

mod routing;
#[cfg(test)]
mod tests;

use super::Result;
use super::feed_forward::gated;
use super::plan::ExpertTile;
use super::reader::Reader;
use super::step::Step;
use super::tensors::{Table, Weights, scale_of};
use crate::gguf::Role;
use gristmill_tensor::nn::{Dispatch, Glu};
use gristmill_tensor::tensor::Tensor;
pub use routing::{Gating, Routing, Weighting};

/// The matrices that experts' rows come down through.
const DOWN: &str = "ffn_down_exps";

/// What experts of a family are, whatever their numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// How logits become scores where a file does not say.
    pub gating: Gating,
    /// How scores become weights; `None` where `expert_weights_norm` says it.
    pub weighting: Option<Weighting>,
    /// What an expert does with gate and up.
    pub glu: Glu,
    /// Tensors that a file must have, of those that it may have.
    pub needs: &'static [&'static str],
}

impl Kind {
    /// Chosen by softmax, weights normalised, SwiGLU: what most are.
    pub const SOFTMAX: Kind =
        Kind { gating: Gating::Softmax, weighting: Some(Weighting::Normalised), glu: Glu::Swiglu, needs: &[] };
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
    /// How they are chosen and weighted.
    pub routing: Routing,
    /// What an expert does with gate and up.
    pub glu: Glu,
    /// Tensors that a file must have, of those that it may have.
    pub needs: &'static [&'static str],
}

impl Experts {
    /// What the keys `expert_*` say, if there are experts.
    pub(super) fn read(r: &Reader, kind: &Kind) -> Result<Option<Experts>> {
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
        let shared_ff = match r.size_or("expert_shared_feed_forward_length", Some(0))? {
            0 => shared * ff,
            width => width,
        };
        let routing = Routing::read(r, kind.gating, kind.weighting, [count, used])?;
        Ok(Some(Experts { count, used, ff, shared_ff, routing, glu: kind.glu, needs: kind.needs }))
    }
    /// Lists their tensors, of rows of `d`, in the current block.
    pub(super) fn tensors(&self, t: &mut Table, d: usize) {
        let (count, ff) = (self.count, self.ff);
        let may = |t: &mut Table, short: &'static str, role: Role, dims: &[usize]| match self.needs.contains(&short) {
            true => t.need(short, role, dims),
            false => t.optional(short, role, dims),
        };
        let Role::Down(layer) = t.down() else { unreachable!("the role of a down projection") };
        t.need("ffn_gate_inp.weight", Role::Router, &[count, d]);
        may(t, "ffn_gate_inp.bias", Role::Bias, &[count]);
        may(t, "exp_probs_b.bias", Role::Bias, &[count]);
        let down = |t: &mut Table| {
            t.need("ffn_down_exps.weight", Role::ExpertsDown(layer), &[count, d, ff]);
            may(t, "ffn_down_exps.bias", Role::Bias, &[count, d]);
            may(t, "ffn_down_exps.scale", Role::Norm, &[count]);
        };
        if t.has("ffn_gate_up_exps.weight") {
            t.need("ffn_gate_up_exps.weight", Role::Experts, &[count, 2 * ff, d]);
            may(t, "ffn_gate_up_exps.bias", Role::Bias, &[count, 2 * ff]);
            down(t);
        } else {
            t.need("ffn_gate_exps.weight", Role::Experts, &[count, ff, d]);
            may(t, "ffn_gate_exps.bias", Role::Bias, &[count, ff]);
            down(t);
            t.need("ffn_up_exps.weight", Role::Experts, &[count, ff, d]);
            may(t, "ffn_up_exps.bias", Role::Bias, &[count, ff]);
        }
        if self.shared_ff > 0 {
            may(t, "ffn_gate_inp_shexp.weight", Role::Router, &[d]);
            t.need("ffn_gate_shexp.weight", Role::Matrix, &[self.shared_ff, d]);
            t.need("ffn_down_shexp.weight", t.down(), &[d, self.shared_ff]);
            t.need("ffn_up_shexp.weight", Role::Matrix, &[self.shared_ff, d]);
        }
    }
    /// In words, for people.
    pub(super) fn summary(&self) -> [(&'static str, String); 3] {
        let groups = self.routing.groups.map_or(String::new(), |(n, used)| format!(", from {used} of {n} groups"));
        let shared = if self.shared_ff > 0 { format!("width {}", self.shared_ff) } else { "none".into() };
        [
            ("experts", format!("{}, of which {} are used{groups}; width {}", self.count, self.used, self.ff)),
            ("shared expert", shared),
            ("gating", self.routing.words()),
        ]
    }
    /// Rows of a tile of tokens of one expert, in steps of at most `max` tokens: enough to unpack a weight once for several, few
    /// enough that the mean waste (half a tile an expert) stays below the rows an expert gets.
    ///
    /// None where no more experts are chosen, by all rows of a step, than there are: then hardly two rows chose the same, and those that did meet it one after the other.
    /// V2-Lite Q4_0 on two cores of Zen 5, tokens a second of 4 rows, 8 and 16 (24, 48 and 96 choices of 64 experts) in tiles 36, 40 and 50, each row for itself 57, 60 and 52,
    /// sorted by expert 60, 67 (experiments, 113); in tiles of two 61, 74 and 87 where sorted 72, 84 and in tiles of four 74 (125). On an H100 4 rows of GLM Q4_0, 8 and 16 915, 1,381 and 1,965 in tiles, sorted 970, 1,440 and 2,320; of gpt-oss 544, 756 and 823, 874 (115).
    fn tile(&self, max: usize, tile: ExpertTile) -> Option<usize> {
        if max * self.used <= self.count {
            return None;
        }
        let mean = max * self.used / self.count;
        if let Some([tokens, _]) = tile.group.filter(|&[tokens, rows]| mean >= tokens && self.ff.is_multiple_of(rows)) {
            return Some(tokens);
        }
        let rows = match mean {
            0..2 => 2,
            2..8 => 4,
            8..32 => 8,
            // Of rows that fall to experts by chance few experts get more than two deviations above the mean.
            rows => (rows + 2 * rows.isqrt()).next_multiple_of(ExpertTile::WHOLE),
        };
        Some(rows.clamp(tile.least, tile.most))
    }
}

/// The feed-forward of normed rows `x [n, d]`: `Σ_j weight_j · expert_j(x)`, plus the shared expert.
pub(super) fn experts<'g>(s: &'g Step, e: &Experts, w: &Weights, x: Tensor<'g>) -> Tensor<'g> {
    let routed = routed(s, e, w, x, x);
    if e.shared_ff == 0 {
        return routed;
    }
    // A vector, whose product with a row is the gate of the whole expert.
    let gate = w.has("ffn_gate_inp_shexp.weight").then(|| {
        let vector = s.weight(w, "ffn_gate_inp_shexp.weight");
        x.linear(vector.unsqueeze(0)).sigmoid()
    });
    let names = ["ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight"];
    let shared = gated(s, w, e.glu, x, names);
    routed + gate.map_or(shared, |gate| shared * gate)
}

/// `Σ_j weight_j · expert_j(x)` of rows `x [n, d]` with the experts that `router [n, d]`, mostly the same rows, is sent to.
pub(super) fn routed<'g>(s: &'g Step, e: &Experts, w: &Weights, router: Tensor<'g>, x: Tensor<'g>) -> Tensor<'g> {
    let (index, mut weights) = e.routing.write(s, w, router, e.used);
    let max = s.options.tokens.max();
    let sent = Dispatch::new(index, s.tokens(), max, e.count, e.tile(max, s.options.tile));
    let rows = sent.spread(x);
    // What comes down without a bias leaves the factor to the weights of experts.
    let biased = w.has("ffn_down_exps.bias");
    let project = |x: Tensor<'g>, stem: &str| {
        let (matrix, bias) = (format!("{stem}.weight"), format!("{stem}.bias"));
        let y = x.contract(sent.of_experts(s.weight(w, &matrix)));
        let y = match scale_of(&matrix).filter(|scale| (stem != DOWN || biased) && w.has(scale)) {
            Some(scale) => y * sent.of_experts(s.weight(w, &scale).unsqueeze(1)),
            None => y,
        };
        if w.has(&bias) { y + sent.of_experts(s.weight(w, &bias)) } else { y }
    };
    let (gate, up) = if w.has("ffn_gate_up_exps.weight") {
        let both = project(rows, "ffn_gate_up_exps");
        let last = both.rank() - 1;
        (both.slice(last, 0, e.ff), both.slice(last, e.ff, e.ff))
    } else {
        (project(rows, "ffn_gate_exps"), project(rows, "ffn_up_exps"))
    };
    let down = project(e.glu.of(gate, up), DOWN);
    if w.has("ffn_down_exps.scale") && !biased {
        weights = weights * s.weight(w, "ffn_down_exps.scale").gather(index);
    }
    sent.combine(down, weights)
}
