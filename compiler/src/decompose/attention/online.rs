//! Attention as one loop over the visible chunks of the KV cache (online softmax,
//! as in flash attention).
//!
//! The loop carries the running maximum of the scores and the running sums of weights and of
//! weighted values, which are rescaled when the maximum grows. In the graph it is a softmax over
//! all chunks; loop fusion (`lower/loops/loop_carried.rs`) turns it into a single pass.

use super::chunked::{Chunked, Inside, MASKED, Scores};
use crate::decompose::f16_split;
use crate::ir::hints::{FusedSum, Hint};
use gristmill_uop::shape::Scoring;
use gristmill_uop::{Graph, Id, RangeKind, ReduceOp, Scalar};
use rustc_hash::FxHashMap;

/// Scales scores by log₂ e, so that weights are exp2 of scores: exp would cost
/// one more multiplication each.
pub fn in_powers_of_two(of: Scoring) -> Scoring {
    let base = std::f64::consts::LOG2_E;
    Scoring {
        scale: of.scale * base,
        cap: of.cap.map(|cap| cap * base),
    }
}

/// Builds the attention output `[tokens, heads, depth]`; `of.scoring` must be in powers of two.
pub fn attended(mut of: Chunked, g: &mut Graph, hints: &mut FxHashMap<Id, Hint>) -> Id {
    let plan = of.plan;
    let mut kernel = Inside::default();
    let keys = of.keys(g, &mut kernel, hints);
    let Scores { all: raw, unseen } = of.scores(g, keys, &mut kernel, hints);
    let low = g.constant(Scalar::F32, MASKED);
    let scores = g.select(unseen, low, raw);
    // Masked scores are staged, so the mask is applied once for all readers.
    if plan.fragments.is_some_and(|f| f.cut == 1) {
        kernel.staged.pop();
    }
    kernel.staged.push(scores);
    let most = g.reduce(scores, &[0, 3], ReduceOp::Max);
    let weights = of.weights_below(g, scores, most);
    let total = g.sum(weights, &[0, 3]);
    let sums = of.summed(g, weights, &mut kernel, hints);
    kernel.all.extend([scores, most, weights, total, sums]);
    kernel.staged.extend([most, total]);
    let share = of.shares(g, most, total, &mut kernel);
    let shares = g.broadcast_back(share, of.out_depth);
    let out = g.mul(sums, shares);
    // Heads come first, because they divide the work evenly: later tokens see more positions.
    let out = g.permute(out, &[1, 0, 2]);
    let (sums_of, staged) = ([sums, total], of.stages_rows());
    let fused = FusedSum {
        sums: sums_of,
        most,
        token: 1,
        size: plan.chunk,
        base: of.base,
        first: of.first,
        staged,
    };
    let Inside {
        all: inside,
        staged,
    } = kernel;
    let (tile, inner) = (plan.sharing, RangeKind::Loop);
    hints.insert(
        out,
        Hint {
            globals: 2,
            tile,
            inner,
            inside,
            staged,
            fused: Some(fused),
            ..Hint::buffer(vec![])
        },
    );
    g.permute(out, &[1, 0, 2])
}

impl Chunked<'_> {
    /// Computes weights `[chunks, tokens, heads, chunk]`: exp2(score − maximum of the token and
    /// head), rounded to f16 if the queries are.
    fn weights_below(&self, g: &mut Graph, scores: Id, most: Id) -> Id {
        let (dims, one) = (g.shape(scores), g.int(1));
        let most = g.reshape(most, &[one, dims[1], dims[2], one]);
        let most = g.expand(most, &dims);
        let below = g.sub(scores, most);
        let weights = g.exp2(below);
        if !f16_split::rounded(g, self.q) {
            return weights;
        }
        let half = g.cast(weights, Scalar::F16);
        g.cast(half, Scalar::F32)
    }
    /// Computes the normalisation `[tokens, heads]`: 1 / (sum of weights, the sink included).
    fn shares(&self, g: &mut Graph, most: Id, total: Id, kernel: &mut Inside) -> Id {
        let Some(sinks) = self.sinks else {
            let share = g.recip(total);
            kernel.all.push(share);
            return share;
        };
        let dims = g.shape(most);
        let one = g.int(1);
        let sinks = g.reshape(sinks, &[one, dims[1]]);
        let sinks = g.expand(sinks, &dims);
        let base = g.constant(Scalar::F32, std::f64::consts::LOG2_E);
        let sinks = g.mul(sinks, base);
        let best = g.max(most, sinks);
        let [own, sink] = [most, sinks].map(|x| {
            let below = g.sub(x, best);
            g.exp2(below)
        });
        let seen = g.mul(total, own);
        let all = g.add(seen, sink);
        let share = g.recip(all);
        let share = g.mul(own, share);
        kernel.all.extend([best, own, sink, seen, all, share]);
        share
    }
}
