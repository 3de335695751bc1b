//! Attention's two sums as sums of products of halves (`crate::ir::mma::fragment`): a cache of halves as it is, and f32 values in two parts.

use crate::decompose::f16_split;
use gristmill_uop::{Graph, Id, Op, Scalar};

/// Dims of what attention computes: chunks of the cache, tokens, heads, positions of a chunk.
pub(super) struct AttentionShape {
    pub chunks: Id,
    pub tokens: Id,
    pub heads: Id,
    pub chunk: Id,
}

/// Queries as scores are summed over them.
pub(super) struct Queries {
    /// Rounded queries that have buffers, from which every workgroup copies its own.
    pub buffers: Vec<Id>,
    /// The stage that products are read from.
    stage: Id,
    /// The queries' parts, `[tokens, cuts, heads, parts, depth]`.
    parts: Id,
    /// What sums are multiplied by.
    scale: f64,
}

/// The queries `q [tokens, heads, depth]` of scores times `scale`, whose sums are cut into `cut` parts of the depth; `buffered` where so many workgroups read them that
/// rounded ones are computed once for all.
pub(super) fn queries(g: &mut Graph, q: Id, shape: &AttentionShape, scale: f64, cut: i64, buffered: bool) -> Queries {
    let &AttentionShape { tokens, heads, .. } = shape;
    let depth = g.max_of(g.shape(q)[2]);
    // Halves stay what they are; of f32 values, each part has the scale already.
    let rounded = f16_split::rounded(g, q);
    let (before, after) = if rounded { (1.0, scale) } else { (scale, 1.0) };
    let halves = f16_split::parts(g, q, before);
    let (of_query, cuts, depth) = (g.shape(halves.all)[2], g.int(cut), g.int(depth / cut));
    let parts = g.reshape(halves.all, &[tokens, heads, of_query, cuts, depth]);
    let parts = g.permute(parts, &[0, 3, 1, 2, 4]);
    let mut stage = halves.stage;
    let mut buffers = Vec::new();
    match g[stage].op {
        Op::Cat if buffered && rounded => buffers = g[stage].src[..g[stage].src.len() - 1].to_vec(),
        Op::Cast if buffered && rounded && parts != stage => buffers.push(std::mem::replace(&mut stage, parts)),
        _ => {}
    }
    Queries { buffers, stage, parts, scale: after }
}

/// Scores `[chunks, tokens, heads, chunk]` of these queries and `keys [chunks, tokens, heads, chunk, depth]`; before them what they are made of: the queries' stage, the
/// sums over each of `cut` parts of the depth, and, of several, their sum.
pub(super) fn scores(g: &mut Graph, of: &Queries, keys: Id, shape: &AttentionShape, cut: i64) -> (Vec<Id>, Id) {
    let &AttentionShape { chunks, tokens, heads, chunk, .. } = shape;
    let dims = g.shape(of.parts);
    let (one, cuts, of_query, depth) = (g.int(1), dims[1], dims[3], dims[4]);
    let queries = g.reshape(of.parts, &[one, tokens, cuts, heads, one, of_query, depth]);
    let dims = [chunks, tokens, cuts, heads, chunk, of_query, depth];
    let queries = g.expand(queries, &dims);
    let queries = g.cast(queries, Scalar::F32);
    let keys = g.reshape(keys, &[chunks, tokens, heads, chunk, cuts, depth]);
    let keys = g.permute(keys, &[0, 1, 4, 2, 3, 5]);
    let keys = g.reshape(keys, &[chunks, tokens, cuts, heads, chunk, one, depth]);
    let keys = g.expand(keys, &dims);
    let products = g.mul(queries, keys);
    let sums = g.sum(products, &[5, 6]);
    let mut found = vec![of.stage, sums];
    let mut scores = if cut == 1 { g.reshape(sums, &[chunks, tokens, heads, chunk]) } else { g.sum(sums, &[2]) };
    found.extend((cut > 1).then_some(scores));
    if of.scale != 1.0 {
        let scale = g.constant(Scalar::F32, of.scale);
        scores = g.mul(scores, scale);
    }
    (found, scores)
}

/// `x [positions, heads, d]`, f32, in parts, and these as `[positions, heads, 2·d]`, the parts of a row after one another.
pub(super) fn joined_parts(g: &mut Graph, x: Id) -> (Id, Id) {
    let mut dims = g.shape(x);
    let parts = f16_split::parts(g, x, 1.0).all;
    let two = g.int(2);
    dims[2] = g.mul(two, dims[2]);
    (parts, g.reshape(parts, &dims))
}

/// Positions that values are summed over: those of each chunk, or all.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Over {
    Chunk,
    All,
}

/// Sums `[chunks, tokens, heads, depth]`, or `[tokens, heads, depth]` over all, of `values [chunks, tokens, heads, chunk, depth]`, or the two parts of each row, with weights
/// `p [chunks, tokens, heads, chunk]`; before them the weights' parts.
pub(super) fn weighted(g: &mut Graph, p: Id, values: Id, shape: &AttentionShape, depth: Id, over: Over) -> (Id, Id) {
    let &AttentionShape { chunks, tokens, heads, chunk, .. } = shape;
    let one = g.int(1);
    let width = *g.shape(values).last().expect("rows of values");
    let of_value = g.int(g.max_of(width) / g.max_of(depth));
    let parts = f16_split::parts(g, p, 1.0);
    let of_weight = g.shape(parts.all)[3];
    let dims = [chunks, tokens, heads, of_weight, chunk, of_value, depth];
    let weights = g.reshape(parts.all, &[chunks, tokens, heads, of_weight, chunk, one, one]);
    let weights = g.expand(weights, &dims);
    let weights = g.cast(weights, Scalar::F32);
    let values = g.reshape(values, &[chunks, tokens, heads, one, chunk, of_value, depth]);
    let values = g.expand(values, &dims);
    let values = g.cast(values, Scalar::F32);
    let products = g.mul(weights, values);
    let axes: &[usize] = if over == Over::All { &[0, 3, 4, 5] } else { &[3, 4, 5] };
    (parts.stage, g.sum(products, axes))
}
