//! Attention whose scores are computed twice: for the maxima and sums of their exponentials, of which each chunk leaves two numbers a token and head, and again for the
//! weights, whose sums with values a workgroup adds up over all chunks that its tokens see. So nothing of a value's size is kept for a chunk, and tokens share the cache in
//! larger tiles: a prompt's scores are as many more products as values have, and partial results would be written and read for each.

use super::chunked::{Chunked, Inside, Softmax};
use super::combine::{column, partials, totals};
use super::plan::AttentionPlan;
use crate::decompose::f16_split;
use crate::request::{FusedSum, Hint};
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, RangeKind, Scalar};
use rustc_hash::FxHashMap;

/// The attention of these sources, `[tokens, heads, depth]`, its second pass in chunks of so many positions.
pub fn attended(
    g: &mut Graph,
    (src, scale): (&[Id], f64),
    (plan, size): (AttentionPlan, i64),
    target: &Target,
    hints: &mut FxHashMap<Id, Hint>,
) -> Id {
    let [most, share] = shares(g, (src, scale), plan, target, hints);
    let second = AttentionPlan { chunk: size, ..plan };
    let mut of = Chunked::new(g, src, None, scale, second, target);
    let mut kernel = Inside::default();
    let weights = of.weights_below(g, most, &mut kernel, hints);
    let sums = of.summed(g, weights, &mut kernel, hints);
    kernel.all.push(sums);
    let shares = g.broadcast_back(share, of.out_depth);
    let out = g.mul(sums, shares);
    // Heads come first, which divide the work evenly: the later a token the more it sees.
    let out = g.permute(out, &[1, 0, 2]);
    let fused = FusedSum { sum: sums, token: 1, size, base: of.base, first: of.first };
    let Inside { all: inside, staged } = kernel;
    let (tile, inner) = (plan.sharing, RangeKind::Loop);
    hints.insert(out, Hint { globals: 2, tile, inner, inside, staged, fused: Some(fused), ..Hint::buffer(vec![]) });
    g.permute(out, &[1, 0, 2])
}

/// The largest score of each token and head, and one over the sum of all exponentials of what they are below it.
fn shares(
    g: &mut Graph,
    (src, scale): (&[Id], f64),
    plan: AttentionPlan,
    target: &Target,
    hints: &mut FxHashMap<Id, Hint>,
) -> [Id; 2] {
    let mut of = Chunked::new(g, src, None, scale, plan, target);
    let (Softmax { scores, max, sum, .. }, mut kernel) = of.extremes_of_chunks(g, hints);
    kernel.all.extend([scores, max, sum]);
    let columns = [column(&of, g, max), column(&of, g, sum)];
    let parts = partials(&of, g, &columns, kernel, hints);
    let of_all = totals(&of, g, parts);
    let share = g.recip(of_all.total);
    hints.insert(of_all.most, Hint::buffer(vec![]));
    hints.insert(share, Hint::buffer(of_all.inside));
    [of_all.most, share]
}

impl Chunked<'_> {
    /// Weights `[chunks, tokens, heads, chunk]` in halves' precision: exponentials of what scores are below those of each token and head.
    fn weights_below(&mut self, g: &mut Graph, most: Id, kernel: &mut Inside, hints: &mut FxHashMap<Id, Hint>) -> Id {
        let keys = self.keys(g, kernel, hints);
        let (raw, unseen) = self.scores(g, keys, kernel, hints);
        let (dims, one) = (g.shape(raw), g.int(1));
        let most = g.reshape(most, &[one, dims[1], dims[2], one]);
        let most = g.expand(most, &dims);
        let (zero, below) = (g.f32(0.0), g.sub(raw, most));
        let weights = g.exp(below);
        let weights = g.select(unseen, zero, weights);
        if !f16_split::rounded(g, self.q) {
            return weights;
        }
        let half = g.cast(weights, Scalar::F16);
        g.cast(half, Scalar::F32)
    }
}
