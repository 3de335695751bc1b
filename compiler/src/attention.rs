//! `ATTENTION` in terms of other ops: the cache is cut into chunks of positions, each chunk gives a partial result with its maximum and its
//! sum, and a second step combines the chunks. All heads of a workgroup share each tile of the cache. A workgroup is one
//! (chunk, token, group of heads); scores and probabilities of the chunk are its stages, by a hint: priced one by one, each of them looks
//! better in a buffer, where the workgroup's shape no longer holds.
//!
//! With m_c the maximum of a chunk's scores, l_c = Σ exp(s − m_c) and o_c = Σ exp(s − m_c)·v:
//! out = Σ_c exp(m_c − m)·o_c / Σ_c exp(m_c − m)·l_c, m = max m_c. Positions behind the token's own count as −1e30.
//!
//! Where every head has keys or values of its own, tokens share the tiles instead, and chunks that lie in a token's future are left out.

use crate::schedule::workgroup::{Future, Hint};
use gristmill_uop::shape::Dims;
use gristmill_uop::target::Style;
use gristmill_uop::{Arg, Graph, Id, Op, ReduceOp, Scalar};
use rustc_hash::FxHashMap;

/// Positions of a chunk.
const CHUNK: i64 = 128;
/// As many on a GPU, where a chunk is a workgroup's: a short context should still keep several busy.
const CHUNK_THREADS: i64 = 64;
/// Positions of a chunk where more than [`FEW`] tokens attend: every chunk leaves a partial result per token and head.
const CHUNK_MANY: i64 = 256;
const FEW: i64 = 64;
/// Heads, or tokens, of a workgroup.
const SHARING: i64 = 4;

/// Positions of a chunk where at most so many tokens attend in one step.
pub fn chunk_positions(tokens: i64, style: Style) -> i64 {
    match style {
        _ if tokens > FEW => CHUNK_MANY,
        Style::Cpu => CHUNK,
        Style::Gpu => CHUNK_THREADS,
    }
}

/// Replaces every `ATTENTION` below `roots`; workgroup shapes of the new nodes go to `hints`.
pub fn expand(g: &mut Graph, roots: &mut [Id], hints: &mut FxHashMap<Id, Hint>, style: Style) {
    let order = g.toposort(roots);
    let mut map: FxHashMap<Id, Id> = FxHashMap::default();
    for id in order {
        if g[id].op == Op::Attention {
            let src: Vec<Id> = g[id].src.clone().iter().map(|&s| g.substitute(s, &mut map)).collect();
            let Arg::Float(scale) = g[id].arg else { continue };
            let new = chunked(g, &src, f64::from_bits(scale), hints, style);
            map.insert(id, new);
        }
    }
    for r in roots {
        *r = g.substitute(*r, &mut map);
    }
}

fn chunked(g: &mut Graph, src: &[Id], scale: f64, hints: &mut FxHashMap<Id, Hint>, style: Style) -> Id {
    let [q, k, v, first, length] = *src else { unreachable!("attention takes five sources") };
    let (qd, kd, vd) = (g.shape(q), g.shape(k), g.shape(v));
    let (tokens, heads, depth) = (qd[0], qd[1], qd[2]);
    let (kv_heads, out_depth) = (kd[1], vd[2]);
    let (h, kvh) = (g.max_of(heads), g.max_of(kv_heads));
    let positions = g.max_of(kd[0]);
    let c = chunk_positions(g.max_of(tokens), style).min(positions.max(1));
    let chunk = g.int(c);
    // The number of chunks in use.
    let up = g.int(c - 1);
    let chunks = g.add(length, up);
    let chunks = g.idiv(chunks, chunk);
    // Position of (chunk, offset), held inside the cache.
    let grid: Dims = [chunks, chunk].into_iter().collect();
    let (a, b) = (g.iota(&grid, 0), g.iota(&grid, 1));
    let start = g.mul(a, chunk);
    let mut at = g.add(start, b);
    if g.int_value(kd[0]).is_none_or(|n| n % c != 0) {
        let minus = g.int(-1);
        let last = g.add(kd[0], minus);
        at = g.min(at, last);
    }
    let real = g.add(start, b);
    // [chunks, tokens, heads, chunk, depth]: chunks first, so that no stride depends on how long the context may become and short contexts
    // touch little of the intermediates.
    let group = g.int(h / kvh);
    let full = |g: &mut Graph, x: Id, d: Id| -> Id {
        // rows [chunks, chunk, kv heads, d] -> [chunks, tokens, heads, chunk, d]
        let x = g.gather(x, at);
        let x = g.permute(x, &[0, 2, 1, 3]);
        let one = g.int(1);
        let x = g.reshape(x, &[chunks, one, kv_heads, one, chunk, d]);
        let x = g.expand(x, &[chunks, tokens, kv_heads, group, chunk, d]);
        g.reshape(x, &[chunks, tokens, heads, chunk, d])
    };
    let one = g.int(1);
    let keys = full(g, k, depth);
    let queries = g.reshape(q, &[one, tokens, heads, one, depth]);
    let queries = g.expand(queries, &[chunks, tokens, heads, chunk, depth]);
    let products = g.mul(queries, keys);
    let scores = g.sum(products, &[4]);
    let mut inside = vec![scores];
    let factor = g.constant(Scalar::F32, scale);
    let scores = g.mul(scores, factor);
    // Causal mask.
    let dims = [chunks, tokens, heads, chunk];
    let t = g.iota(&dims, 1);
    let own = g.add(t, first);
    let position = g.reshape(real, &[chunks, one, one, chunk]);
    let position = g.expand(position, &dims);
    let future = g.lt(own, position);
    let low = g.constant(Scalar::F32, -1e30);
    let scores = g.select(future, low, scores);
    let m = g.reduce(scores, &[3], ReduceOp::Max);
    let spread = |g: &mut Graph, x: Id, d: Id| g.broadcast_back(x, d);
    let m_all = spread(g, m, chunk);
    let p = g.sub(scores, m_all);
    let p = g.exp(p);
    let l = g.sum(p, &[3]);
    let values = full(g, v, out_depth);
    let weights = spread(g, p, out_depth);
    let o = g.mul(weights, values);
    let o = g.sum(o, &[3]);
    let column = |g: &mut Graph, x: Id| g.reshape(x, &[chunks, tokens, heads, one]);
    let (mc, lc) = (column(g, m), column(g, l));
    inside.extend([scores, m, p, l, o]);
    let many = g.max_of(tokens) > 1;
    // Who shares a tile of the cache: heads, or, where each has rows of its own, tokens. Then heads come first, which divide the work evenly:
    // a token reads no chunk of its future, so chunks and tokens would not.
    let own = kvh == h && many;
    let (order, back) = if own { ([2, 0, 1, 3], [1, 2, 0, 3]) } else { ([0, 1, 2, 3], [0, 1, 2, 3]) };
    let tile = if own { SHARING } else { (1..=SHARING.min(h)).rev().find(|d| h % d == 0).unwrap_or(1) };
    let [o, mc, lc] = [o, mc, lc].map(|x| g.permute(x, &order));
    let parts = g.cat(&[o, mc, lc], 3);
    let future = own.then_some(Future { chunk: 1, token: 2, size: c, first });
    hints.insert(parts, Hint { globals: 3, tile, inside, future });
    let parts = g.permute(parts, &back);
    // Combine.
    let d = g.max_of(out_depth);
    let mut o = g.slice(parts, 3, 0, d);
    let m = g.slice(parts, 3, d, 1);
    let l = g.slice(parts, 3, d + 1, 1);
    let flat = [chunks, tokens, heads];
    let (mut m, mut l) = (g.reshape(m, &flat), g.reshape(l, &flat));
    if own {
        // What was not computed counts as nothing.
        let (at, t) = (g.iota(&flat, 0), g.iota(&flat, 1));
        let (begin, own) = (g.mul(at, chunk), g.add(t, first));
        let absent = g.lt(own, begin);
        let (zero, low) = (g.f32(0.0), g.constant(Scalar::F32, -1e30));
        m = g.select(absent, low, m);
        l = g.select(absent, zero, l);
        let absent = spread(g, absent, out_depth);
        o = g.select(absent, zero, o);
    }
    let best = g.reduce(m, &[0], ReduceOp::Max);
    let best = g.reshape(best, &[one, tokens, heads]);
    let best = g.expand(best, &flat);
    let w = g.sub(m, best);
    let w = g.exp(w);
    let wl = g.mul(w, l);
    let total = g.sum(wl, &[0]);
    let w = spread(g, w, out_depth);
    let o = g.mul(w, o);
    let o = g.sum(o, &[0]);
    let total = g.recip(total);
    let total = spread(g, total, out_depth);
    g.mul(o, total)
}
