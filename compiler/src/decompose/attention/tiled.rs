//! Attention's two products as f16 MMA (`crate::ir::mma::fragment`). An f16 cache is used as it is;
//! f32 values are split into two f16 parts.

use crate::decompose::f16_split;
use gristmill_uop::{Graph, Id, Op, Scalar};

/// Dimensions of an attention's intermediates: chunks, tokens, heads, positions per chunk.
pub(super) struct AttentionShape {
    pub chunks: Id,
    pub tokens: Id,
    pub heads: Id,
    pub chunk: Id,
}

/// Queries in the form that the score product reads.
pub(super) struct Queries {
    /// Rounded queries that are materialised; every workgroup copies its rows from them.
    pub buffers: Vec<Id>,
    /// Stage that the product reads.
    stage: Id,
    /// f16 parts, `[tokens, cuts, heads, parts, depth]`.
    parts: Id,
    /// Factor applied to the sums.
    scale: f64,
}

/// Splits queries `q [tokens, heads, depth]` into f16 parts and `cut` parts of the depth.
///
/// `scale` is folded into f32 queries and applied to the sums of f16 ones. `buffered` materialises
/// rounded queries once for all workgroups.
pub(super) fn queries(
    g: &mut Graph,
    q: Id,
    shape: &AttentionShape,
    scale: f64,
    cut: i64,
    buffered: bool,
) -> Queries {
    let &AttentionShape { tokens, heads, .. } = shape;
    let depth = g.max_of(g.shape(q)[2]);
    // f16 queries stay as they are; f32 queries are scaled before they are split.
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
        Op::Cast if buffered && rounded && parts != stage => {
            buffers.push(std::mem::replace(&mut stage, parts))
        }
        _ => {}
    }
    Queries {
        buffers,
        stage,
        parts,
        scale: after,
    }
}

/// Returns the intermediates of the scores, and the scores `[chunks, tokens, heads, chunk]`.
///
/// `keys` has shape `[chunks, tokens, heads, chunk, depth]`. Intermediates: the queries' stage, the
/// sums over each of `cut` parts of the depth, and, if there are several, their sum.
pub(super) fn scores(
    g: &mut Graph,
    of: &Queries,
    keys: Id,
    shape: &AttentionShape,
    cut: i64,
) -> (Vec<Id>, Id) {
    let &AttentionShape {
        chunks,
        tokens,
        heads,
        chunk,
        ..
    } = shape;
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
    let mut scores = if cut == 1 {
        g.reshape(sums, &[chunks, tokens, heads, chunk])
    } else {
        g.sum(sums, &[2])
    };
    found.extend((cut > 1).then_some(scores));
    if of.scale != 1.0 {
        let scale = g.constant(Scalar::F32, of.scale);
        scores = g.mul(scores, scale);
    }
    (found, scores)
}

/// Splits f32 `x [positions, heads, d]` into f16 parts; returns them also as
/// `[positions, heads, 2·d]`.
///
/// The two parts of a row follow one another.
pub(super) fn joined_parts(g: &mut Graph, x: Id) -> (Id, Id) {
    let mut dims = g.shape(x);
    let parts = f16_split::parts(g, x, 1.0).all;
    let two = g.int(2);
    dims[2] = g.mul(two, dims[2]);
    (parts, g.reshape(parts, &dims))
}

/// Range of the value sums: each chunk, or all chunks.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Over {
    Chunk,
    All,
}

/// Returns the weights' f16 parts and the weighted sums of `values`.
///
/// Weights are `p [chunks, tokens, heads, chunk]`, values `[chunks, tokens, heads, chunk, depth]`,
/// or both f16 parts of each row. Sums are `[chunks, tokens, heads, depth]`, or `[tokens, heads,
/// depth]` over all chunks.
pub(super) fn weighted(
    g: &mut Graph,
    p: Id,
    values: Id,
    shape: &AttentionShape,
    depth: Id,
    over: Over,
) -> (Id, Id) {
    let &AttentionShape {
        chunks,
        tokens,
        heads,
        chunk,
        ..
    } = shape;
    let one = g.int(1);
    let width = *g.shape(values).last().expect("rows of values");
    let of_value = g.int(g.max_of(width) / g.max_of(depth));
    let parts = f16_split::parts(g, p, 1.0);
    let of_weight = g.shape(parts.all)[3];
    let dims = [chunks, tokens, heads, of_weight, chunk, of_value, depth];
    let weights = g.reshape(
        parts.all,
        &[chunks, tokens, heads, of_weight, chunk, one, one],
    );
    let weights = g.expand(weights, &dims);
    let weights = g.cast(weights, Scalar::F32);
    let values = g.reshape(
        values,
        &[chunks, tokens, heads, one, chunk, of_value, depth],
    );
    let values = g.expand(values, &dims);
    let values = g.cast(values, Scalar::F32);
    let products = g.mul(weights, values);
    let axes: &[usize] = if over == Over::All {
        &[0, 3, 4, 5]
    } else {
        &[3, 4, 5]
    };
    (parts.stage, g.sum(products, axes))
}
