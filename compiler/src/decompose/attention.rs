//! `ATTENTION` in terms of other ops: the cache is cut into chunks of positions, each chunk gives a partial result with its maximum and its
//! sum, and a second step combines the chunks. Of a window there are only the chunks that it meets. All heads of a workgroup share each tile of the cache. A workgroup is one
//! (chunk, token, group of heads); scores and probabilities of the chunk are its stages, by a hint: priced one by one, each of them looks
//! better in a buffer, where the workgroup's shape no longer holds.
//!
//! With m_c the maximum of a chunk's scores, l_c = Σ exp(s − m_c) and o_c = Σ exp(s − m_c)·v:
//! out = Σ_c exp(m_c − m)·o_c / Σ_c exp(m_c − m)·l_c, m = max m_c. Positions behind the token's own count as −1e30. Of queries that were rounded to
//! halves, partial results are halves too: o_c / l_c, with m_c and l_c in two parts.
//!
//! A sink is a term of the last sum, and counts for m: no chunk has it.
//!
//! Rows of several sequences (`PAGED_ATTENTION`, `paged.rs`) are tokens that have a position and rows of the cache each: what a workgroup reads depends on its token.
//!
//! Where every head has keys or values of its own, tokens share the tiles instead, and chunks that lie in a token's future are left out.

mod bytes;
mod paged;
pub mod plan;
mod price;
mod tiled;

use super::f16_split;
use crate::decision::{Alternative, Decider, Decision};
use crate::request::{CausalSkip, Hint, StagedTile};
use crate::tile::Proposal;
use gristmill_uop::function::Function;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::shape::{Dims, PagedSources};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, ReduceOp, Scalar};
use paged::Pages;
pub use plan::chunk_positions;
use plan::{AttentionPlan, COMBINED_APART, Divided, Fragments, chunk_of, settled};
use rustc_hash::FxHashMap;
use tiled::Shape;

/// Columns of a maximum, and of a sum, beside a partial result.
const COLUMNS: i64 = 2;
/// Score of a position that a token does not see: exp of it is 0, and it is finite, so that a chunk that is all masked has a maximum.
const MASKED: f64 = -1e30;
/// What the maximum of a chunk counts as at least where it is stored in halves.
const LOWEST: f32 = -60_000.0;
/// Values of a head that a workgroup combines then: 256 bytes of each partial result, or 128 of halves.
const COMBINED: i64 = 64;

/// Replaces every `ATTENTION` of a function below `roots`, divided as is decided; workgroup shapes of the new nodes go to `hints`.
pub fn expand(
    g: &mut Graph,
    roots: &mut [Id],
    hints: &mut FxHashMap<Id, Hint>,
    target: &Target,
    function: &str,
    decider: &mut Decider,
) {
    let order = g.toposort(roots);
    let mut map: FxHashMap<Id, Id> = FxHashMap::default();
    for id in order {
        if matches!(g[id].op, Op::Attention | Op::PagedAttention) {
            let Arg::Float(scale) = g[id].arg else { continue };
            let mut node = g[id].clone();
            node.src.iter_mut().for_each(|s| *s = g.substitute(*s, &mut map));
            let (mut src, pages) = match node.op {
                Op::PagedAttention => paged::in_rows(g, &PagedSources::of(g, &node)),
                _ => (node.src.to_vec(), None),
            };
            if plan::tokens_share(g, &src) {
                let heads = g.shape(src[0])[1];
                src[1] = of_every_head(g, src[1], heads);
                src[2] = of_every_head(g, src[2], heads);
            }
            let site = format!("{function} {}", g.show_dims(&g.shape(id)));
            let plan = decided(g, &src, target, site, decider);
            let new = Chunked::new(g, &src, pages, f64::from_bits(scale), plan, target).nodes(g, hints);
            map.insert(id, new);
        }
    }
    for r in roots {
        *r = g.substitute(*r, &mut map);
    }
}

/// `x [positions, kv heads, d]` as rows that every head has for itself, `[positions, heads, d]`.
fn of_every_head(g: &mut Graph, x: Id, heads: Id) -> Id {
    let (dims, one) = (g.shape(x), g.int(1));
    let [positions, kv_heads, d] = dims[..] else { unreachable!("keys and values have three axes: {dims:?}") };
    let group = g.int(g.max_of(heads) / g.max_of(kv_heads));
    let x = g.reshape(x, &[positions, kv_heads, one, d]);
    let x = g.expand(x, &[positions, kv_heads, group, d]);
    g.reshape(x, &[positions, heads, d])
}

/// The part of a division's price that another must save: the price knows workgroups, bytes and operations, but of what overlaps in a kernel nothing.
const MARGIN: f64 = 0.5;

/// How an attention of these sources is divided: by price, where another plan than the first could be so much cheaper.
fn decided(g: &Graph, src: &[Id], target: &Target, site: String, decider: &mut Decider) -> AttentionPlan {
    let divided = Divided::of(g, src, target);
    let (mut all, of) = (divided.proposals(), divided.attended());
    let option = |p: &Proposal<AttentionPlan>| {
        let seconds = price::seconds(&of, &p.plan, target);
        Alternative { name: p.name, plan: p.plan.to_string(), seconds }
    };
    let options = all.iter().map(option).collect();
    let decision = Decision { margin: MARGIN, ..Decision::new("attention", site, options) };
    all.swap_remove(decider.choose(decision)).plan
}

/// Numbers that a partial result takes for one row of queries and a chunk, of the largest attention of a function: of each head its values, with a maximum and a sum.
pub fn partial(function: &Function) -> usize {
    let g = &function.graph;
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    let all = g.toposort(&roots).into_iter().filter(|&n| matches!(g[n].op, Op::Attention | Op::PagedAttention));
    let numbers = |n: Id| g.max_of(g.dims(n)[1]) * (g.max_of(g.dims(n)[2]) + 2 * COLUMNS);
    all.map(numbers).max().unwrap_or(0) as usize
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
            if let Some(rows) = bytes::rows(g, [src[0], src[1]], chunk_of(g, &src, target), target) {
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

/// Nodes that only the kernel of the partial results reads.
#[derive(Default)]
struct Inside {
    all: Vec<Id>,
    /// Those of them that are stages.
    staged: Vec<Id>,
}

/// Each chunk's softmax, `[chunks, tokens, heads]` but for scores and weights, which are `[.., chunk]`.
struct Softmax {
    /// Masked.
    scores: Id,
    max: Id,
    weights: Id,
    sum: Id,
    /// Are weights, and so partial results, rounded to halves, as the queries are?
    rounded: bool,
}

/// An `ATTENTION`, with the chunks that its cache is cut into.
struct Chunked<'a> {
    target: &'a Target,
    q: Id,
    k: Id,
    v: Id,
    /// Position of the first token; of rows in pages that of each.
    first: Id,
    /// Where the cache's rows lie, unless they lie in the order of their positions.
    pages: Option<Pages>,
    scale: f64,
    shape: Shape,
    kv_heads: Id,
    /// Heads that share rows of the cache.
    group: Id,
    depth: Id,
    out_depth: Id,
    /// Positions of a chunk.
    size: i64,
    /// Number of the first chunk: 0 but for windows.
    base: Id,
    /// Chunks, at most.
    most: i64,
    /// Positions that a token sees, its own included, unless it sees all before it.
    window: Option<i64>,
    /// A score without a value for each head.
    sinks: Option<Id>,
    /// Position of (chunk, offset), `[chunks, chunk]`, and the row of the cache that is read for it: the same held inside the cache, or one of each token's own pages,
    /// `[chunks, tokens, chunk]`.
    real: Id,
    at: Id,
    /// Do several tokens attend, and has every head rows of its own?
    own: bool,
    plan: AttentionPlan,
    /// `[chunks, chunk, kv heads, depth]`: the tile of the cache that keys and values are read from, if there is one.
    tile: Option<Id>,
}

impl<'a> Chunked<'a> {
    fn new(
        g: &mut Graph,
        src: &[Id],
        pages: Option<Pages>,
        scale: f64,
        plan: AttentionPlan,
        target: &'a Target,
    ) -> Chunked<'a> {
        let &[q, k, v, first, length, ..] = src else { unreachable!("attention takes five sources: {src:?}") };
        let (qd, kd, vd) = (g.shape(q), g.shape(k), g.shape(v));
        let (tokens, heads, depth) = (qd[0], qd[1], qd[2]);
        let (h, kvh) = (g.max_of(heads), g.max_of(kd[1]));
        let (size, window) = (plan.chunk, plan::window(g, src));
        let most = Divided::of(g, src, target).attended().chunks(size, 1)[0];
        let chunk = g.int(size);
        // The number of chunks in use.
        let up = g.int(size - 1);
        let mut chunks = g.add(length, up);
        chunks = g.idiv(chunks, chunk);
        let mut base = g.int(0);
        if let Some(window) = window.filter(|_| pages.is_none()) {
            base = first_chunk(g, first, window, chunk);
            // What holds of every step is said, as bounds of the difference do not show it.
            let (used, one, most) = (g.sub(chunks, base), g.int(1), g.int(most));
            let used = g.max(used, one);
            chunks = g.min(used, most);
        }
        let grid: Dims = [chunks, chunk].into_iter().collect();
        let (a, b) = (g.iota(&grid, 0), g.iota(&grid, 1));
        let number = g.add(base, a);
        let start = g.mul(number, chunk);
        let real = g.add(start, b);
        let mut at = real;
        if g.int_value(kd[0]).is_none_or(|n| n % size != 0) {
            let minus = g.int(-1);
            let last = g.add(kd[0], minus);
            at = g.min(at, last);
        }
        let group = g.int(h / kvh);
        // Chunks first, so that no stride depends on how long the context may become and short contexts touch little of the intermediates.
        let shape = Shape { chunks, tokens, heads, chunk };
        let own = pages.is_none() && kvh == h && g.max_of(tokens) > 1;
        if let Some(pages) = &pages {
            at = pages.rows(g, real, first, &shape);
        }
        let tile = plan.fragments.filter(|f| f.staged).map(|_| {
            let half = f16_split::narrow(g, k);
            g.gather(half, at)
        });
        let (kv_heads, out_depth) = (kd[1], vd[2]);
        Chunked {
            target,
            q,
            k,
            v,
            first,
            pages,
            scale,
            shape,
            kv_heads,
            group,
            depth,
            out_depth,
            size,
            base,
            most,
            window,
            sinks: src.get(6).copied(),
            real,
            at,
            own,
            plan,
            tile,
        }
    }
    /// Its result: partial results of the chunks, combined.
    fn nodes(mut self, g: &mut Graph, hints: &mut FxHashMap<Id, Hint>) -> Id {
        let mut kernel = Inside::default();
        let keys = self.keys(g, &mut kernel, hints);
        let scores = self.scores(g, keys, &mut kernel);
        let softmax = self.softmax(g, scores);
        let sums = self.weighted(g, softmax.weights, &mut kernel, hints);
        let parts = self.partial(g, &softmax, sums, kernel, hints);
        self.combine(g, parts, softmax.rounded, hints)
    }
    /// The rows of `x` at the chunks' positions, as `[chunks, tokens, heads, chunk, d]`.
    fn rows(&self, g: &mut Graph, x: Id, d: Id) -> Id {
        let Shape { chunks, tokens, heads, chunk, .. } = self.shape;
        if self.pages.is_some() {
            // rows [chunks, tokens, chunk, kv heads, d]
            let x = g.gather(x, self.at);
            let x = g.permute(x, &[0, 1, 3, 2, 4]);
            let one = g.int(1);
            let x = g.reshape(x, &[chunks, tokens, self.kv_heads, one, chunk, d]);
            let x = g.expand(x, &[chunks, tokens, self.kv_heads, self.group, chunk, d]);
            return g.reshape(x, &[chunks, tokens, heads, chunk, d]);
        }
        let x = match self.tile {
            Some(tile) => {
                let part = g.slice(tile, 3, 0, g.max_of(d));
                g.cast(part, Scalar::F32)
            }
            None => g.gather(x, self.at),
        };
        // rows [chunks, chunk, kv heads, d] -> [chunks, tokens, heads, chunk, d]
        let x = g.permute(x, &[0, 2, 1, 3]);
        let one = g.int(1);
        let x = g.reshape(x, &[chunks, one, self.kv_heads, one, chunk, d]);
        let x = g.expand(x, &[chunks, tokens, self.kv_heads, self.group, chunk, d]);
        g.reshape(x, &[chunks, tokens, heads, chunk, d])
    }
    /// Keys of every chunk. Queries become what is multiplied with them: encoded, where the cache is of bytes.
    fn keys(&mut self, g: &mut Graph, kernel: &mut Inside, hints: &mut FxHashMap<Id, Hint>) -> Id {
        let of_bytes = match self.pages {
            Some(_) => None,
            None => bytes::rows(g, [self.q, self.k], self.size, self.target),
        };
        let keys = match of_bytes {
            Some(of) => {
                let (keys, stages) = bytes::keys(g, &of, self.at, &self.shape);
                kernel.all.extend(stages);
                kernel.staged.extend(stages);
                // Every chunk would encode them anew.
                let (queries, codes) = bytes::queries(g, self.q, &of);
                hints.insert(codes, Hint::buffer(vec![]));
                self.q = queries;
                keys
            }
            None => self.rows(g, self.k, self.depth),
        };
        kernel.all.extend(self.tile);
        kernel.staged.extend(self.tile);
        keys
    }
    /// Scores `[chunks, tokens, heads, chunk]`, with those of positions that a token does not see masked.
    fn scores(&self, g: &mut Graph, keys: Id, kernel: &mut Inside) -> Id {
        let Shape { chunks, tokens, heads, chunk, .. } = self.shape;
        let one = g.int(1);
        let scores = match self.plan.fragments {
            Some(Fragments { cut, .. }) => {
                let (sums, scores) = tiled::scores(g, self.q, keys, &self.shape, self.scale, cut);
                kernel.staged.extend(&sums[..2]);
                kernel.all.extend(sums);
                scores
            }
            None => {
                let queries = g.reshape(self.q, &[one, tokens, heads, one, self.depth]);
                let queries = g.expand(queries, &[chunks, tokens, heads, chunk, self.depth]);
                let products = g.mul(queries, keys);
                let scores = g.sum(products, &[4]);
                kernel.all.push(scores);
                let factor = g.constant(Scalar::F32, self.scale);
                g.mul(scores, factor)
            }
        };
        kernel.all.push(scores);
        let dims = [chunks, tokens, heads, chunk];
        let mine = match &self.pages {
            Some(pages) => {
                let own = pages.positions(g, self.first);
                let own = g.reshape(own, &[one, tokens, one, one]);
                g.expand(own, &dims)
            }
            None => {
                let t = g.iota(&dims, 1);
                g.add(t, self.first)
            }
        };
        let position = g.reshape(self.real, &[chunks, one, one, chunk]);
        let position = g.expand(position, &dims);
        let unseen = match self.window {
            None => g.lt(mine, position),
            Some(window) => outside(g, position, mine, window - 1),
        };
        let low = g.constant(Scalar::F32, MASKED);
        g.select(unseen, low, scores)
    }
    fn softmax(&self, g: &mut Graph, scores: Id) -> Softmax {
        let max = g.reduce(scores, &[3], ReduceOp::Max);
        let of_all = g.broadcast_back(max, self.shape.chunk);
        let weights = g.sub(scores, of_all);
        let mut weights = g.exp(weights);
        // Weights of rounded queries are rounded like them, and so are partial results.
        let rounded = self.plan.fragments.is_some() && f16_split::rounded(g, self.q);
        if rounded {
            let half = g.cast(weights, Scalar::F16);
            weights = g.cast(half, Scalar::F32);
        }
        let sum = g.sum(weights, &[3]);
        Softmax { scores, max, weights, sum, rounded }
    }
    /// Sums `[chunks, tokens, heads, depth]` of each chunk's values with these weights.
    fn weighted(&self, g: &mut Graph, weights: Id, kernel: &mut Inside, hints: &mut FxHashMap<Id, Hint>) -> Id {
        if self.plan.fragments.is_none() {
            let values = self.rows(g, self.v, self.out_depth);
            let weights = g.broadcast_back(weights, self.out_depth);
            let products = g.mul(weights, values);
            return g.sum(products, &[3]);
        }
        let values = match f16_split::are_halves(g, self.v) {
            true => self.v,
            false => {
                let (parts, values) = tiled::joined_parts(g, self.v);
                hints.insert(parts, Hint::buffer(f16_split::computed(g, self.v)));
                values
            }
        };
        let width = *g.shape(values).last().expect("rows of values");
        let values = self.rows(g, values, width);
        let (weights, sums) = tiled::weighted(g, weights, values, &self.shape, self.out_depth);
        kernel.all.push(weights);
        kernel.staged.push(weights);
        sums
    }
    /// Partial results: sums, maximum and sum of weights of each (chunk, token, head), joined in a row, by a kernel of their own.
    fn partial(
        &self,
        g: &mut Graph,
        softmax: &Softmax,
        sums: Id,
        mut kernel: Inside,
        hints: &mut FxHashMap<Id, Hint>,
    ) -> Id {
        let &Softmax { scores, max, weights, sum, rounded } = softmax;
        kernel.all.extend([scores, max, weights, sum, sums]);
        let columns = match rounded {
            true => self.rounded_columns(g, max, sum, sums, &mut kernel),
            false => [sums, self.column(g, max), self.column(g, sum)],
        };
        // Who shares a tile of the cache: heads, or, where each has rows of its own, tokens. Then heads come first, which divide the work evenly:
        // a token reads no chunk of its future, so chunks and tokens would not.
        let (order, back) = if self.own { ([2, 0, 1, 3], [1, 2, 0, 3]) } else { ([0, 1, 2, 3], [0, 1, 2, 3]) };
        let inner = if self.plan.fragments.is_some() { RangeKind::Loop } else { RangeKind::Upcast };
        let tile = self.plan.sharing;
        let columns = columns.map(|x| g.permute(x, &order));
        let parts = g.cat(&columns, 3);
        let &Chunked { size, base, first, window, .. } = self;
        let future = self.own.then_some(CausalSkip { chunk: 1, token: 2, size, base, first, window });
        let resident = self.tile.map(|node| StagedTile {
            node,
            size,
            base,
            settled: settled(g, self.k, self.first).filter(|_| self.plan.ahead),
            tokens: self.shape.tokens,
        });
        let Inside { all: inside, staged } = kernel;
        hints.insert(parts, Hint { globals: 3, tile, inner, inside, staged, future, resident });
        g.permute(parts, &back)
    }
    /// A column of partial results: twice, so that rows begin at multiples of four values.
    fn column(&self, g: &mut Graph, x: Id) -> Id {
        let Shape { chunks, tokens, heads, .. } = self.shape;
        let one = g.int(1);
        let x = g.reshape(x, &[chunks, tokens, heads, one]);
        let two = g.int(COLUMNS);
        g.expand(x, &[chunks, tokens, heads, two])
    }
    /// Partial results in halves: the weighted mean, and maximum and sum in two parts each.
    fn rounded_columns(&self, g: &mut Graph, max: Id, sum: Id, sums: Id, kernel: &mut Inside) -> [Id; 3] {
        let Shape { chunks, tokens, heads, .. } = self.shape;
        let share = g.recip(sum);
        let shares = g.broadcast_back(share, self.out_depth);
        let mean = g.mul(sums, shares);
        // Of a chunk that is all masked, the maximum is as low as a half goes.
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
    /// The result `[tokens, heads, depth]` of partial results.
    fn combine(&self, g: &mut Graph, parts: Id, rounded: bool, hints: &mut FxHashMap<Id, Hint>) -> Id {
        let Shape { chunks, tokens, heads, .. } = self.shape;
        let d = g.max_of(self.out_depth);
        let mut o = g.slice(parts, 3, 0, d);
        let (m, l) = (column_of(g, parts, d, rounded), column_of(g, parts, d + COLUMNS, rounded));
        if rounded {
            o = g.cast(o, Scalar::F32);
        }
        let flat = [chunks, tokens, heads];
        let (mut m, mut l) = (g.reshape(m, &flat), g.reshape(l, &flat));
        if self.own {
            // What was not computed counts as nothing.
            let (at, t) = (g.iota(&flat, 0), g.iota(&flat, 1));
            let at = g.add(self.base, at);
            let (begin, own) = (g.mul(at, self.shape.chunk), g.add(t, self.first));
            let absent = match self.window {
                None => g.lt(own, begin),
                Some(window) => outside(g, begin, own, window + self.size - 2),
            };
            let (zero, low) = (g.f32(0.0), g.constant(Scalar::F32, MASKED));
            m = g.select(absent, low, m);
            l = g.select(absent, zero, l);
            let absent = g.broadcast_back(absent, self.out_depth);
            o = g.select(absent, zero, o);
        }
        let mut best = g.reduce(m, &[0], ReduceOp::Max);
        let mut inside = vec![best];
        let sinks = self.sinks.map(|sinks| {
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
        let weights = g.broadcast_back(if rounded { wl } else { w }, self.out_depth);
        let o = g.mul(weights, o);
        let o = g.sum(o, &[0]);
        let share = g.recip(total);
        let shares = g.broadcast_back(share, self.out_depth);
        let combined = g.mul(o, shares);
        let one_token = g.max_of(tokens) <= 1;
        if self.target.machine.kind == MachineKind::Gpu && one_token && self.most > COMBINED_APART {
            inside.extend([share, o]);
            let (tile, inner) = (COMBINED, RangeKind::Loop);
            let hint = Hint { globals: 3, tile, inner, inside, staged: vec![], future: None, resident: None };
            hints.insert(combined, hint);
        }
        combined
    }
}

/// Number of the first chunk that the window of the token at `first` meets.
fn first_chunk(g: &mut Graph, first: Id, window: i64, chunk: Id) -> Id {
    let (back, zero) = (g.int(1 - window), g.int(0));
    let begin = g.add(first, back);
    let begin = g.max(begin, zero);
    g.idiv(begin, chunk)
}

/// Is `at` behind `own`, or more than `reach` before it?
fn outside(g: &mut Graph, at: Id, own: Id, reach: i64) -> Id {
    let (ahead, passed) = (g.sub(at, own), g.sub(own, at));
    let reach = g.int(-reach);
    let behind = g.add(passed, reach);
    let (far, zero) = (g.max(ahead, behind), g.int(0));
    g.lt(zero, far)
}

/// The column at `at` of partial results, `[.., 1]`: of rounded ones the sum of its two parts.
fn column_of(g: &mut Graph, parts: Id, at: i64, rounded: bool) -> Id {
    let x = g.slice(parts, 3, at, 1);
    if !rounded {
        return x;
    }
    let [high, low] = [x, g.slice(parts, 3, at + 1, 1)].map(|x| g.cast(x, Scalar::F32));
    g.add(high, low)
}
