//! Mixture of experts: router, selection, routed and shared experts. `docs/deepseek2.md`, section
//! 5.
//!
//! A family defines the kind of experts ([`ExpertKind`]), a file their number and width. Biases,
//! factors and the layout of gate and up follow from the tensors in the file; a family names the
//! optional tensors that it requires.

mod routing;
#[cfg(test)]
mod tests;

use super::Result;
use super::feed_forward::gated;
use super::plan::{Bind, CachedExperts, ExpertBind, ExpertTile, Options, StepKind};
use super::reader::Reader;
use super::step::StepFunction;
use super::tensors::{LayerWeights, TensorTable, scale_of};
use crate::gguf::Role;
use gristmill_tensor::dims;
use gristmill_tensor::nn::{Dispatch, Glu};
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;
pub use routing::{Gating, Routing, Weighting};

/// Stem of the down projection of routed experts.
const DOWN: &str = "ffn_down_exps";

/// Properties of a family's experts, independent of their number.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertKind {
    /// Score function of router logits, if the file has no `expert_gating_func`.
    pub gating: Gating,
    /// Weight function of chosen scores; `None` if `expert_weights_norm` decides.
    pub weighting: Option<Weighting>,
    /// Gated activation of an expert.
    pub glu: Glu,
    /// Optional tensors that this family requires.
    pub needs: &'static [&'static str],
}

impl ExpertKind {
    /// The most common kind: softmax scores, normalised weights, SwiGLU.
    pub const SOFTMAX: ExpertKind = ExpertKind {
        gating: Gating::Softmax,
        weighting: Some(Weighting::Normalised),
        glu: Glu::Swiglu,
        needs: &[],
    };
}

/// Parameters of a mixture of experts.
#[derive(Clone, PartialEq, Debug)]
pub struct Experts {
    /// Number of routed experts.
    pub count: usize,
    /// Number of experts that each token uses.
    pub used: usize,
    /// Width of a routed expert's feed-forward.
    pub ff: usize,
    /// Width of the shared expert, 0 if there is none.
    pub shared_ff: usize,
    /// Selection and weighting of experts.
    pub routing: Routing,
    /// Gated activation of an expert.
    pub glu: Glu,
    /// Optional tensors that this family requires.
    pub needs: &'static [&'static str],
}

impl Experts {
    /// Reads the keys `expert_*`; `None` if the model has no experts.
    pub(super) fn read(r: &Reader, kind: &ExpertKind) -> Result<Option<Experts>> {
        let count = r.size_or("expert_count", Some(0))?;
        if count == 0 {
            return Ok(None);
        }
        r.check("expert_count", count, count <= 512, "at most 512")?;
        let used = r.size("expert_used_count")?;
        r.check(
            "expert_used_count",
            used,
            used <= count,
            "at most expert_count",
        )?;
        // Files of Mixtral have one width.
        let width = match r.has("expert_feed_forward_length") {
            true => "expert_feed_forward_length",
            false => "feed_forward_length",
        };
        let ff = r.size(width)?;
        let shared = r.size_or("expert_shared_count", Some(0))?;
        r.check("expert_shared_count", shared, shared <= 512, "at most 512")?;
        let shared_ff = match r.size_or("expert_shared_feed_forward_length", Some(0))? {
            0 => shared * ff,
            width => width,
        };
        let routing = Routing::read(r, kind.gating, kind.weighting, [count, used])?;
        Ok(Some(Experts {
            count,
            used,
            ff,
            shared_ff,
            routing,
            glu: kind.glu,
            needs: kind.needs,
        }))
    }
    /// Adds the experts' tensors for hidden width `d` to the current block.
    pub(super) fn tensors(&self, t: &mut TensorTable, d: usize) {
        let (count, ff) = (self.count, self.ff);
        let may = |t: &mut TensorTable, short: &'static str, role: Role, dims: &[usize]| match self
            .needs
            .contains(&short)
        {
            true => t.need(short, role, dims),
            false => t.optional(short, role, dims),
        };
        let Role::Down(layer) = t.down() else {
            unreachable!("the role of a down projection")
        };
        t.need("ffn_gate_inp.weight", Role::Router, &[count, d]);
        may(t, "ffn_gate_inp.bias", Role::Bias, &[count]);
        may(t, "exp_probs_b.bias", Role::Bias, &[count]);
        let down = |t: &mut TensorTable| {
            t.need(
                "ffn_down_exps.weight",
                Role::ExpertsDown(layer),
                &[count, d, ff],
            );
            may(t, "ffn_down_exps.bias", Role::Bias, &[count, d]);
            may(t, "ffn_down_exps.scale", Role::Norm, &[count]);
        };
        if t.has("ffn_gate_up_exps.weight") {
            t.need(
                "ffn_gate_up_exps.weight",
                Role::Experts,
                &[count, 2 * ff, d],
            );
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
    /// Returns a description for display.
    pub(super) fn summary(&self) -> [(&'static str, String); 3] {
        let groups = self.routing.groups.map_or(String::new(), |(n, used)| {
            format!(", from {used} of {n} groups")
        });
        let shared = if self.shared_ff > 0 {
            format!("width {}", self.shared_ff)
        } else {
            "none".into()
        };
        [
            (
                "experts",
                format!(
                    "{}, of which {} are used{groups}; width {}",
                    self.count, self.used, self.ff
                ),
            ),
            ("shared expert", shared),
            ("gating", self.routing.description()),
        ]
    }
    /// Returns where a step's experts are if some of them are cached: in decode steps without tiles
    /// of experts.
    fn cached(&self, options: &Options) -> Option<CachedExperts> {
        let is_decode = matches!(
            options.tokens,
            StepKind::Decode | StepKind::BatchedDecode { .. }
        );
        let is_tiled = self.tile(options.tokens.max(), options.tile).is_some();
        options.cached.filter(|_| is_decode && !is_tiled)
    }
    /// Returns the tokens per expert tile for steps of at most `max` tokens; `None` for no tiling.
    ///
    /// A tile dequantises a weight once for several tokens; it is small enough that the mean
    /// padding, half a tile per expert, stays below the tokens per expert.
    ///
    /// `None` if all tokens of a step together choose at most as many experts as there are: few
    /// tokens then share an expert. Measurements: `docs/experiments/113`,
    /// `docs/experiments/115`, `docs/experiments/125`.
    fn tile(&self, max: usize, tile: ExpertTile) -> Option<usize> {
        if max * self.used <= self.count {
            return None;
        }
        let mean = max * self.used / self.count;
        if let Some([tokens, _]) = tile
            .group
            .filter(|&[tokens, rows]| mean >= tokens && self.ff.is_multiple_of(rows))
        {
            return Some(tokens);
        }
        let rows = match mean {
            0..2 => 2,
            2..8 => 4,
            8..32 => 8,
            // With random routing few experts get more than two standard deviations above the mean.
            rows => (rows + 2 * rows.isqrt()).next_multiple_of(ExpertTile::WHOLE),
        };
        Some(rows.clamp(tile.least, tile.most))
    }
}

/// Computes the feed-forward of normed rows `x [n, d]`: `Σ_j weight_j · expert_j(x)`,
/// plus the shared expert.
pub(super) fn experts<'g>(
    s: &'g StepFunction,
    e: &Experts,
    w: &LayerWeights,
    x: Tensor<'g>,
) -> Tensor<'g> {
    let routed = routed(s, e, w, x, x);
    if e.shared_ff == 0 {
        return routed;
    }
    // The dot product of this vector with a row gates the whole shared expert.
    let gate = w.has("ffn_gate_inp_shexp.weight").then(|| {
        let vector = s.weight(w, "ffn_gate_inp_shexp.weight");
        x.linear(vector.unsqueeze(0)).sigmoid()
    });
    let names = [
        "ffn_gate_shexp.weight",
        "ffn_up_shexp.weight",
        "ffn_down_shexp.weight",
    ];
    let shared = gated(s, w, e.glu, x, names);
    routed + gate.map_or(shared, |gate| shared * gate)
}

/// Experts of rows, and the place of their weights.
#[derive(Clone, Copy)]
struct Chosen<'g> {
    /// Numbers of experts or slots, `[n, k]` i32.
    index: Tensor<'g>,
    /// Their weights, `[n, k]` f32.
    weights: Tensor<'g>,
    /// Number of slots, if the weights are there.
    slots: Option<usize>,
}

/// Computes `Σ_j weight_j · expert_j(x)` for `x [n, d]`; `router [n, d]`, usually
/// `x`, selects the experts.
pub(super) fn routed<'g>(
    s: &'g StepFunction,
    e: &Experts,
    w: &LayerWeights,
    router: Tensor<'g>,
    x: Tensor<'g>,
) -> Tensor<'g> {
    let (index, weights) = e.routing.write(s, w, router, e.used);
    let Some(cached) = e.cached(s.options) else {
        let slots = None;
        return computed(
            s,
            e,
            w,
            x,
            Chosen {
                index,
                weights,
                slots,
            },
        );
    };
    let bind = Bind::Experts;
    s.output("experts", bind(ExpertBind::Chosen), index);
    s.output("expert_weights", bind(ExpertBind::ChosenWeights), weights);
    let given = |[index, weights]: [(&str, ExpertBind); 2], count: usize, slots| {
        let dims = dims![s.tokens(), count];
        Chosen {
            index: s.input(index.0, bind(index.1), dims, Scalar::I32),
            weights: s.input(weights.0, bind(weights.1), dims, Scalar::F32),
            slots,
        }
    };
    let hits = [
        ("hits", ExpertBind::Hits),
        ("hit_weights", ExpertBind::HitWeights),
    ];
    let misses = [
        ("misses", ExpertBind::Misses),
        ("miss_weights", ExpertBind::MissWeights),
    ];
    let hits = computed(s, e, w, x, given(hits, e.used, Some(cached.slots)));
    hits + computed(s, e, w, x, given(misses, cached.misses, None))
}

/// Computes the sum of given experts of rows `x [n, d]`.
fn computed<'g>(
    s: &'g StepFunction,
    e: &Experts,
    w: &LayerWeights,
    x: Tensor<'g>,
    chosen: Chosen<'g>,
) -> Tensor<'g> {
    let Chosen {
        index,
        mut weights,
        slots,
    } = chosen;
    let max = s.options.tokens.max();
    let count = slots.unwrap_or(e.count);
    let sent = Dispatch::new(index, s.tokens(), max, count, e.tile(max, s.options.tile));
    let rows = sent.spread(x);
    // A down projection without bias has its scale folded into the expert weights.
    let biased = w.has("ffn_down_exps.bias");
    let of_experts = |name: &str| s.of_experts(w, name, slots);
    let project = |x: Tensor<'g>, stem: &str| {
        let (matrix, bias) = (format!("{stem}.weight"), format!("{stem}.bias"));
        s.add_squares_of_experts(w, &matrix, x, (sent, index));
        let y = s.product(x, sent.of_experts(of_experts(&matrix)));
        let y = match scale_of(&matrix).filter(|scale| (stem != DOWN || biased) && w.has(scale)) {
            Some(scale) => y * sent.of_experts(of_experts(&scale).unsqueeze(1)),
            None => y,
        };
        let adapters = s.adapters_of(w, &matrix);
        let y = adapters.iter().fold(y, |y, adapter| {
            y + adapter.apply(
                s,
                x,
                |side| sent.of_experts(side),
                |of_token| sent.beside(of_token),
            )
        });
        if w.has(&bias) {
            y + sent.of_experts(of_experts(&bias))
        } else {
            y
        }
    };
    let (gate, up) = if w.has("ffn_gate_up_exps.weight") {
        let both = project(rows, "ffn_gate_up_exps");
        let last = both.rank() - 1;
        (both.slice(last, 0, e.ff), both.slice(last, e.ff, e.ff))
    } else {
        (project(rows, "ffn_gate_exps"), project(rows, "ffn_up_exps"))
    };
    let down = project(e.glu.apply(gate, up), DOWN);
    if w.has("ffn_down_exps.scale") && !biased {
        weights = weights * of_experts("ffn_down_exps.scale").gather(index);
    }
    sent.combine(down, weights)
}
