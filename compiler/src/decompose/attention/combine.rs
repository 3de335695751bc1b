//! Writes the partial result of each chunk, and combines partial results by their maxima and sums.

use super::chunked::{Chunked, Inside, MASKED, Softmax, outside};
use super::plan::{COLUMNS, settled};
use super::tiled::AttentionShape;
use crate::decompose::f16_split;
use crate::ir::hints::{CausalSkip, Hint, StagedTile};
use gristmill_uop::{Graph, Id, RangeKind, ReduceOp, Scalar};
use rustc_hash::FxHashMap;

/// Lower bound of a chunk's maximum when it is stored in f16.
const LOWEST: f32 = -60_000.0;

/// Builds the kernel of partial results: sums, maximum and sum of weights of a (chunk, token,
/// head), concatenated in a row.
pub fn partial(
    of: &Chunked,
    g: &mut Graph,
    softmax: &Softmax,
    mut kernel: Inside,
    hints: &mut FxHashMap<Id, Hint>,
) -> Id {
    let &Softmax {
        scores,
        max,
        weights,
        sum,
        sums,
        rounded,
    } = softmax;
    kernel.all.extend([scores, max, weights, sum, sums]);
    let columns = match rounded {
        true => rounded_columns(of, g, softmax, &mut kernel),
        false => [sums, column(of, g, max), column(of, g, sum)],
    };
    partials(of, g, &columns, kernel, hints)
}

/// Concatenates these columns, `[chunks, tokens, heads, ..]`, in a kernel of their own.
pub fn partials(
    of: &Chunked,
    g: &mut Graph,
    columns: &[Id],
    kernel: Inside,
    hints: &mut FxHashMap<Id, Hint>,
) -> Id {
    // Heads share a tile of the cache; if each head has its own KV head, tokens do. In the second
    // case heads are the outer axis, because they divide the work evenly: tokens skip the chunks in
    // their future, so chunks and tokens would not.
    let (order, back) = if of.own {
        ([2, 0, 1, 3], [1, 2, 0, 3])
    } else {
        ([0, 1, 2, 3], [0, 1, 2, 3])
    };
    let inner = if of.plan.fragments.is_some() {
        RangeKind::Loop
    } else {
        RangeKind::Upcast
    };
    let tile = of.plan.sharing;
    let columns: Vec<Id> = columns.iter().map(|&x| g.permute(x, &order)).collect();
    let parts = g.cat(&columns, 3);
    let &Chunked {
        size,
        base,
        first,
        window,
        ..
    } = of;
    let future = of.own.then_some(CausalSkip {
        chunk: 1,
        token: 2,
        size,
        base,
        first,
        window,
    });
    let resident = of.tile.map(|node| StagedTile {
        node,
        size,
        base,
        settled: settled(g, of.k, of.first).filter(|_| of.plan.ahead),
        tokens: of.shape.tokens,
    });
    let Inside {
        all: inside,
        staged,
    } = kernel;
    hints.insert(
        parts,
        Hint {
            globals: 3,
            tile,
            inner,
            staged,
            future,
            resident,
            ..Hint::buffer(inside)
        },
    );
    g.permute(parts, &back)
}

/// A column of partial results, stored twice so that rows start at multiples of four values.
pub fn column(of: &Chunked, g: &mut Graph, x: Id) -> Id {
    let AttentionShape {
        chunks,
        tokens,
        heads,
        ..
    } = of.shape;
    let one = g.int(1);
    let x = g.reshape(x, &[chunks, tokens, heads, one]);
    let two = g.int(COLUMNS);
    g.expand(x, &[chunks, tokens, heads, two])
}

/// Partial results in f16: the weighted mean, then maximum and sum as two f16 parts each.
fn rounded_columns(of: &Chunked, g: &mut Graph, softmax: &Softmax, kernel: &mut Inside) -> [Id; 3] {
    let AttentionShape {
        chunks,
        tokens,
        heads,
        ..
    } = of.shape;
    let &Softmax { max, sum, sums, .. } = softmax;
    let share = g.recip(sum);
    let shares = g.broadcast_back(share, of.out_depth);
    let mean = g.mul(sums, shares);
    // A fully masked chunk has the lowest maximum, −60,000, instead of −1e30.
    let lowest = g.f32(LOWEST);
    let most = g.max(max, lowest);
    let one = g.int(1);
    let [most_parts, sum_parts] = [most, sum].map(|x| {
        let x = g.reshape(x, &[chunks, tokens, heads, one]);
        let x = f16_split::parts(g, x, 1.0).all;
        kernel.all.push(x);
        let two = g.int(COLUMNS);
        g.reshape(x, &[chunks, tokens, heads, two])
    });
    kernel.all.extend([share, most, mean]);
    [g.cast(mean, Scalar::F16), most_parts, sum_parts]
}

/// Partial results as f32: values `[chunks, tokens, heads, depth]`, maxima and sums of weights
/// `[chunks, tokens, heads]`.
struct Partial {
    values: Id,
    max: Id,
    sum: Id,
}

/// Reads the columns of partial results. Chunks that were not computed contribute nothing.
fn read_back(of: &Chunked, g: &mut Graph, parts: Id, rounded: bool) -> Partial {
    let AttentionShape {
        chunks,
        tokens,
        heads,
        ..
    } = of.shape;
    let d = g.max_of(of.out_depth);
    let mut values = g.slice(parts, 3, 0, d);
    let (max, sum) = (
        column_of(g, parts, d, rounded),
        column_of(g, parts, d + COLUMNS, rounded),
    );
    if rounded {
        values = g.cast(values, Scalar::F32);
    }
    let flat = [chunks, tokens, heads];
    let (mut max, mut sum) = (g.reshape(max, &flat), g.reshape(sum, &flat));
    if of.own {
        let absent = absent(of, g);
        let (zero, low) = (g.f32(0.0), g.constant(Scalar::F32, MASKED));
        (max, sum) = (g.select(absent, low, max), g.select(absent, zero, sum));
        let absent = g.broadcast_back(absent, of.out_depth);
        values = g.select(absent, zero, values);
    }
    Partial { values, max, sum }
}

/// Combines partial results into the attention's output, `[tokens, heads, depth]`.
pub fn combined(
    of: &Chunked,
    g: &mut Graph,
    parts: Id,
    rounded: bool,
    hints: &mut FxHashMap<Id, Hint>,
) -> Id {
    let AttentionShape {
        chunks,
        tokens,
        heads,
        ..
    } = of.shape;
    let flat = [chunks, tokens, heads];
    let Partial {
        values: o,
        max: m,
        sum: l,
    } = read_back(of, g, parts, rounded);
    let mut best = g.reduce(m, &[0], ReduceOp::Max);
    let mut inside = vec![best];
    let sinks = of.sinks.map(|sinks| {
        let one = g.int(1);
        let sinks = g.reshape(sinks, &[one, heads]);
        g.expand(sinks, &[tokens, heads])
    });
    if let Some(sinks) = sinks {
        best = g.max(best, sinks);
        inside.push(best);
    }
    let one = g.int(1);
    let best_of_all = g.reshape(best, &[one, tokens, heads]);
    let best_of_all = g.expand(best_of_all, &flat);
    let w = g.sub(m, best_of_all);
    let w = g.exp(w);
    let wl = g.mul(w, l);
    let mut total = g.sum(wl, &[0]);
    inside.extend([w, total]);
    if let Some(sinks) = sinks {
        let sink = g.sub(sinks, best);
        let sink = g.exp(sink);
        total = g.add(total, sink);
        inside.push(total);
    }
    let weights = g.broadcast_back(if rounded { wl } else { w }, of.out_depth);
    let o = g.mul(weights, o);
    let o = g.sum(o, &[0]);
    let share = g.recip(total);
    let shares = g.broadcast_back(share, of.out_depth);
    let combined = g.mul(o, shares);
    if of.plan.combine_kernel {
        inside.extend([share, o]);
        let tile = of.target.machine.gpu_facts().combined_values;
        let inner = RangeKind::Loop;
        hints.insert(
            combined,
            Hint {
                globals: 3,
                tile,
                inner,
                ..Hint::buffer(inside)
            },
        );
    }
    combined
}

/// Marks chunks of `[chunks, tokens, heads]` that lie outside a token's view;
/// they are not computed.
fn absent(of: &Chunked, g: &mut Graph) -> Id {
    let AttentionShape {
        chunks,
        tokens,
        heads,
        chunk,
    } = of.shape;
    let flat = [chunks, tokens, heads];
    let (at, t) = (g.iota(&flat, 0), g.iota(&flat, 1));
    let at = g.add(of.base, at);
    let (begin, own) = (g.mul(at, chunk), g.add(t, of.first));
    match of.window {
        None => g.lt(own, begin),
        Some(window) => outside(g, begin, own, window + of.size - 2),
    }
}

/// Reads the column at `at` of partial results as `[.., 1]`; an f16 column is the sum
/// of its two parts.
fn column_of(g: &mut Graph, parts: Id, at: i64, rounded: bool) -> Id {
    let x = g.slice(parts, 3, at, 1);
    if !rounded {
        return x;
    }
    let [high, low] = [x, g.slice(parts, 3, at + 1, 1)].map(|x| g.cast(x, Scalar::F32));
    g.add(high, low)
}
