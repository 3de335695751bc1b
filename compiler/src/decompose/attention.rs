//! `ATTENTION` in terms of other ops: the cache is cut into chunks of positions, each chunk gives a partial result with its maximum and its
//! sum, and a second step combines the chunks. All heads of a workgroup share each tile of the cache. A workgroup is one
//! (chunk, token, group of heads); scores and probabilities of the chunk are its stages, by a hint: priced one by one, each of them looks
//! better in a buffer, where the workgroup's shape no longer holds.
//!
//! With m_c the maximum of a chunk's scores, l_c = Σ exp(s − m_c) and o_c = Σ exp(s − m_c)·v:
//! out = Σ_c exp(m_c − m)·o_c / Σ_c exp(m_c − m)·l_c, m = max m_c. Positions behind the token's own count as −1e30. Of queries that were rounded to
//! halves, partial results are halves too: o_c / l_c, with m_c and l_c in two parts.
//!
//! Where every head has keys or values of its own, tokens share the tiles instead, and chunks that lie in a token's future are left out.

mod bytes;
mod tiled;

use crate::halves;
use crate::schedule::workgroup::{Future, Hint, Resident, room};
use crate::tiles;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::shape::Dims;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, ReduceOp, Scalar};
use rustc_hash::FxHashMap;
use tiled::Shape;

/// Positions of a chunk.
const CHUNK: i64 = 128;
/// As many on a GPU, where a chunk is a workgroup's, unless the cache is long: a short context should still keep several busy.
const CHUNK_THREADS: i64 = 64;
/// Positions of a chunk where more than [`FEW`] tokens attend: every chunk leaves a partial result per token and head.
const CHUNK_MANY: i64 = 256;
const FEW: i64 = 64;
/// Tokens of a workgroup whose sums are matrix products: as many as there is room for in its stages.
const SHARING_TILED: i64 = 16;
/// Heads, or tokens, of a workgroup.
const SHARING: i64 = 4;
/// Columns of a maximum, and of a sum, beside a partial result.
const COLUMNS: i64 = 2;
/// What the maximum of a chunk counts as at least where it is stored in halves.
const LOWEST: f32 = -60_000.0;
/// Partial results above which one token's are combined by a kernel of its own. Whoever reads the combination would combine them anew in each of its
/// workgroups, of which a head has several: more bytes than a launch takes time for.
const MANY: i64 = 64;
/// Values of a head that a workgroup combines then: 256 bytes of each partial result, or 128 of halves.
const COMBINED: i64 = 64;

/// Positions of a chunk where at most so many tokens attend in one step, to a cache of so many rows.
pub fn chunk_positions(tokens: i64, rows: i64, target: &Target) -> i64 {
    match target.machine.kind {
        _ if tokens > FEW => CHUNK_MANY,
        // Partial results are written and read again: fewer, where every multiprocessor has a chunk.
        MachineKind::Gpu if rows <= target.machine.units as i64 * CHUNK_THREADS => CHUNK_THREADS,
        _ => CHUNK,
    }
}

/// The most positions that an attention of these sources may reach, which may be less than the cache has, and those of a chunk.
fn reach(g: &Graph, src: &[Id], target: &Target) -> (i64, i64) {
    let positions = g.max_of(src[4]).min(g.max_of(g.dims(src[1])[0]));
    let chunk = chunk_positions(g.max_of(g.dims(src[0])[0]), positions, target);
    (positions, chunk.min(positions.max(1)))
}

/// Replaces every `ATTENTION` below `roots`; workgroup shapes of the new nodes go to `hints`.
pub fn expand(g: &mut Graph, roots: &mut [Id], hints: &mut FxHashMap<Id, Hint>, target: &Target) {
    let order = g.toposort(roots);
    let mut map: FxHashMap<Id, Id> = FxHashMap::default();
    for id in order {
        if g[id].op == Op::Attention {
            let src: Vec<Id> = g[id].src.clone().iter().map(|&s| g.substitute(s, &mut map)).collect();
            let Arg::Float(scale) = g[id].arg else { continue };
            let new = chunked(g, &src, f64::from_bits(scale), hints, target);
            map.insert(id, new);
        }
    }
    for r in roots {
        *r = g.substitute(*r, &mut map);
    }
}

/// Queries that meet a cache of bytes as the kernels have them, encoded in eight bits. Did that change anything?
pub fn encode(g: &mut Graph, roots: &mut [Id], target: &Target) -> bool {
    let mut map: FxHashMap<Id, Id> = FxHashMap::default();
    // Not whether the map is empty: substitution enters every node that it passes.
    let mut encoded = false;
    for id in g.toposort(roots) {
        if g[id].op == Op::Attention {
            let mut src = g[id].src.clone();
            for s in &mut src {
                *s = g.substitute(*s, &mut map);
            }
            if let Some(rows) = bytes::rows(g, [src[0], src[1]], reach(g, &src, target).1, target) {
                src[0] = bytes::queries(g, src[0], &rows).0;
                let n = g[id].clone();
                let new = g.build(n.op, n.dtype, src, n.arg);
                map.insert(id, new);
                encoded = true;
            }
        }
    }
    for r in roots {
        *r = g.substitute(*r, &mut map);
    }
    encoded
}

/// Sums as matrix products of halves.
struct Plan {
    /// Heads, or tokens, of a workgroup.
    sharing: i64,
    /// Parts that the depth is cut into, each summed by warps of its own.
    cut: i64,
    /// Does a workgroup have its tile of the cache in a stage? It reads it for scores and for values.
    resident: bool,
}

/// Rows of halves that both keys and values are read from, the values from their beginning.
fn shared_rows(g: &Graph, k: Id, v: Id) -> bool {
    let from_zero = || g[v].src[1..].chunks(2).all(|window| g.int_value(window[0]) == Some(0));
    halves::are_halves(g, k) && g[v].op == Op::Shrink && g[v].src[0] == k && from_zero()
}

/// The position `first` of a cache that this step writes from there on, and nowhere else.
fn settled(g: &Graph, cache: Id, first: Id) -> Option<Id> {
    let n = &g[cache];
    match n.op {
        Op::Assign => (n.src[2] == first).then_some(first),
        Op::Cast | Op::Reshape => settled(g, n.src[0], first),
        _ => None,
    }
}

/// Can warps multiply these keys and values, and are there enough heads or tokens beside one another?
fn plan(g: &Graph, [q, k, v]: [Id; 3], shape: &Shape, own: bool, group: i64, target: &Target) -> Option<Plan> {
    let [c, depth, out] = [shape.chunk, g.shape(k)[2], g.shape(v)[2]].map(|d| g.max_of(d));
    let tokens = g.max_of(shape.tokens);
    // All heads of a group read each row of the cache once. A short context has few chunks: then heads are divided, as long as all workgroups of a
    // full cache run at once.
    let chunks = (shape.positions + c - 1) / c * tokens.max(1);
    let groups = (room(target) / chunks).max(1);
    let divided = ((group + groups - 1) / groups + tiles::ENOUGH - 1) / tiles::ENOUGH * tiles::ENOUGH;
    let sharing = if own { SHARING_TILED.min(tokens) } else { divided.min(group) };
    let whole = [c, depth, out].iter().all(|n| n % tiles::ROWS == 0);
    let halves = halves::are_halves(g, k) && (own || halves::are_halves(g, v));
    if target.machine.fragment(Scalar::F16).is_none() || sharing < tiles::ENOUGH || !whole || !halves {
        return None;
    }
    // Where a chunk has fewer tiles than a workgroup warps, each of them has a part of the depth.
    let warps = target.threads as i64 / tiles::WARP;
    let cuts = (1..=warps).filter(|n| warps % n == 0 && depth % (n * 2 * tiles::TERMS) == 0);
    let cut = cuts.take_while(|n| n * (c / tiles::ROWS) <= warps).last().unwrap_or(1);
    // The tile and queries, parts of scores, their sum, and weights in halves beside what they are made of.
    let bytes = |cut: i64| 2 * (c + sharing) * (depth + tiles::ROWS) + sharing * c * (4 * cut + 8);
    let fits = |cut: i64| bytes(cut) <= target.machine.shared_per_workgroup as i64;
    let resident = !own && shared_rows(g, k, v) && halves::rounded(g, q) && fits(cut);
    // Warps that share a tile of rows have two of them each, and read the queries half as often.
    let halved = resident && cut == 1 && depth % (4 * tiles::TERMS) == 0 && fits(2);
    Some(Plan { sharing, cut: if halved { 2 } else { cut }, resident })
}

fn chunked(g: &mut Graph, src: &[Id], scale: f64, hints: &mut FxHashMap<Id, Hint>, target: &Target) -> Id {
    let [q, k, v, first, length] = *src else { unreachable!("attention takes five sources") };
    let (qd, kd, vd) = (g.shape(q), g.shape(k), g.shape(v));
    let (tokens, heads, depth) = (qd[0], qd[1], qd[2]);
    let (kv_heads, out_depth) = (kd[1], vd[2]);
    let (h, kvh) = (g.max_of(heads), g.max_of(kv_heads));
    let (positions, c) = reach(g, src, target);
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
    let one = g.int(1);
    let (mut inside, mut staged) = (Vec::new(), Vec::new());
    let many = g.max_of(tokens) > 1;
    let own = kvh == h && many;
    let shape = Shape { chunks, tokens, heads, chunk, positions };
    let plan = plan(g, [q, k, v], &shape, own, h / kvh, target);
    // [chunks, chunk, kv heads, depth]: the tile of the cache that keys and values are read from.
    let tile = plan.as_ref().filter(|p| p.resident).map(|_| {
        let half = halves::narrow(g, k);
        g.gather(half, at)
    });
    let rows = |g: &mut Graph, x: Id, d: Id| -> Id {
        let x = match tile {
            Some(tile) => {
                let part = g.slice(tile, 3, 0, g.max_of(d));
                g.cast(part, Scalar::F32)
            }
            None => g.gather(x, at),
        };
        // rows [chunks, chunk, kv heads, d] -> [chunks, tokens, heads, chunk, d]
        let x = g.permute(x, &[0, 2, 1, 3]);
        let one = g.int(1);
        let x = g.reshape(x, &[chunks, one, kv_heads, one, chunk, d]);
        let x = g.expand(x, &[chunks, tokens, kv_heads, group, chunk, d]);
        g.reshape(x, &[chunks, tokens, heads, chunk, d])
    };
    let of_bytes = bytes::rows(g, [q, k], c, target);
    let keys = match &of_bytes {
        Some(of) => {
            let (keys, stages) = bytes::keys(g, of, at, &shape);
            inside.extend(stages);
            staged.extend(stages);
            keys
        }
        None => rows(g, k, depth),
    };
    let q = of_bytes.map_or(q, |of| {
        // Every chunk would encode them anew.
        let (queries, codes) = bytes::queries(g, q, &of);
        hints.insert(codes, Hint::buffer(vec![]));
        queries
    });
    inside.extend(tile);
    staged.extend(tile);
    let resident = tile.map(|node| Resident { node, size: c, settled: settled(g, k, first), tokens });
    let scores = match &plan {
        Some(plan) => {
            let (sums, scores) = tiled::scores(g, q, keys, &shape, scale, plan.cut);
            staged.extend(&sums[..2]);
            inside.extend(sums);
            scores
        }
        None => {
            let queries = g.reshape(q, &[one, tokens, heads, one, depth]);
            let queries = g.expand(queries, &[chunks, tokens, heads, chunk, depth]);
            let products = g.mul(queries, keys);
            let scores = g.sum(products, &[4]);
            inside.push(scores);
            let factor = g.constant(Scalar::F32, scale);
            g.mul(scores, factor)
        }
    };
    inside.push(scores);
    // Causal mask.
    let dims = [chunks, tokens, heads, chunk];
    let t = g.iota(&dims, 1);
    let mine = g.add(t, first);
    let position = g.reshape(real, &[chunks, one, one, chunk]);
    let position = g.expand(position, &dims);
    let future = g.lt(mine, position);
    let low = g.constant(Scalar::F32, -1e30);
    let scores = g.select(future, low, scores);
    let m = g.reduce(scores, &[3], ReduceOp::Max);
    let spread = |g: &mut Graph, x: Id, d: Id| g.broadcast_back(x, d);
    let m_all = spread(g, m, chunk);
    let p = g.sub(scores, m_all);
    let mut p = g.exp(p);
    // Weights of rounded queries are rounded like them, and so are partial results.
    let rounded = plan.is_some() && halves::rounded(g, q);
    if rounded {
        let half = g.cast(p, Scalar::F16);
        p = g.cast(half, Scalar::F32);
    }
    let l = g.sum(p, &[3]);
    let o = if plan.is_some() {
        let exact = halves::are_halves(g, v);
        let values = match exact {
            true => v,
            false => {
                let (parts, values) = tiled::joined_parts(g, v);
                hints.insert(parts, Hint::buffer(halves::computed(g, v)));
                values
            }
        };
        let width = *g.shape(values).last().expect("rows of values");
        let values = rows(g, values, width);
        let (weights, o) = tiled::weighted(g, p, values, &shape, out_depth);
        inside.push(weights);
        staged.push(weights);
        o
    } else {
        let values = rows(g, v, out_depth);
        let weights = spread(g, p, out_depth);
        let o = g.mul(weights, values);
        g.sum(o, &[3])
    };
    // Each twice, so that rows of partial results begin at multiples of four values.
    let column = |g: &mut Graph, x: Id| {
        let x = g.reshape(x, &[chunks, tokens, heads, one]);
        let two = g.int(COLUMNS);
        g.expand(x, &[chunks, tokens, heads, two])
    };
    inside.extend([scores, m, p, l, o]);
    let (o, mc, lc) = if rounded {
        let share = g.recip(l);
        let shares = spread(g, share, out_depth);
        let o = g.mul(o, shares);
        // Of a chunk that is all masked, the maximum is as low as a half goes.
        let lowest = g.f32(LOWEST);
        let most = g.max(m, lowest);
        let [mc, lc] = [most, l].map(|x| {
            let x = g.reshape(x, &[chunks, tokens, heads, one]);
            let x = halves::parts(g, x, 1.0).all;
            inside.push(x);
            let two = g.int(COLUMNS);
            g.reshape(x, &[chunks, tokens, heads, two])
        });
        inside.extend([share, most, o]);
        (g.cast(o, Scalar::F16), mc, lc)
    } else {
        (o, column(g, m), column(g, l))
    };
    // Who shares a tile of the cache: heads, or, where each has rows of its own, tokens. Then heads come first, which divide the work evenly:
    // a token reads no chunk of its future, so chunks and tokens would not.
    let (order, back) = if own { ([2, 0, 1, 3], [1, 2, 0, 3]) } else { ([0, 1, 2, 3], [0, 1, 2, 3]) };
    let (tile, inner) = match &plan {
        Some(plan) => (plan.sharing, RangeKind::Loop),
        None if own => (SHARING, RangeKind::Upcast),
        None => ((1..=SHARING.min(h)).rev().find(|d| h % d == 0).unwrap_or(1), RangeKind::Upcast),
    };
    let [o, mc, lc] = [o, mc, lc].map(|x| g.permute(x, &order));
    let parts = g.cat(&[o, mc, lc], 3);
    let future = own.then_some(Future { chunk: 1, token: 2, size: c, first });
    hints.insert(parts, Hint { globals: 3, tile, inner, inside, staged, future, resident });
    let parts = g.permute(parts, &back);
    // Combine.
    let d = g.max_of(out_depth);
    let mut o = g.slice(parts, 3, 0, d);
    let of = |g: &mut Graph, at: i64| {
        let x = g.slice(parts, 3, at, 1);
        if !rounded {
            return x;
        }
        let [high, low] = [x, g.slice(parts, 3, at + 1, 1)].map(|x| g.cast(x, Scalar::F32));
        g.add(high, low)
    };
    let (m, l) = (of(g, d), of(g, d + COLUMNS));
    if rounded {
        o = g.cast(o, Scalar::F32);
    }
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
    let best_of_all = g.reshape(best, &[one, tokens, heads]);
    let best_of_all = g.expand(best_of_all, &flat);
    let w = g.sub(m, best_of_all);
    let w = g.exp(w);
    let wl = g.mul(w, l);
    let total = g.sum(wl, &[0]);
    let weights = spread(g, if rounded { wl } else { w }, out_depth);
    let o = g.mul(weights, o);
    let o = g.sum(o, &[0]);
    let share = g.recip(total);
    let shares = spread(g, share, out_depth);
    let combined = g.mul(o, shares);
    if target.machine.kind == MachineKind::Gpu && !many && (positions + c - 1) / c > MANY {
        let inside = vec![best, w, total, share, o];
        let (tile, inner) = (COMBINED, RangeKind::Loop);
        hints.insert(combined, Hint { globals: 3, tile, inner, inside, staged: vec![], future: None, resident: None });
    }
    combined
}
