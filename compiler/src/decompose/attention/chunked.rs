//! Builds the nodes of a chunked attention: positions, keys and values, scores, masks and weights.
//! `combine.rs` combines the partial results.

use super::paged::Pages;
use super::plan::{self, AttentionPlan, Divided, Fragments, buffered};
use super::tiled::AttentionShape;
use super::{bytes, tiled};
use crate::decompose::f16_split;
use crate::ir::hints::Hint;
use gristmill_uop::shape::{Dims, Scoring};
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, ReduceOp, Scalar};
use rustc_hash::FxHashMap;

/// Score of a masked position. Its exp is 0; it is finite so that a fully masked
/// chunk has a maximum.
pub const MASKED: f64 = -1e30;

/// Scores of a chunk's positions and their mask, both `[chunks, tokens, heads, chunk]`.
///
/// `unseen` is true where the token may not attend to the position.
#[derive(Clone, Copy)]
pub struct Scores {
    pub all: Id,
    pub unseen: Id,
}

/// Nodes that only the partial-result kernel reads.
#[derive(Default)]
pub struct Inside {
    pub all: Vec<Id>,
    /// The subset that has stages (workgroup memory).
    pub staged: Vec<Id>,
}

/// Softmax of each chunk: `[chunks, tokens, heads]`; scores and weights have a last axis `chunk`.
pub struct Softmax {
    /// Scores after the mask is applied.
    pub scores: Id,
    pub max: Id,
    pub weights: Id,
    pub sum: Id,
    /// Weighted sums of values, `[chunks, tokens, heads, depth]`.
    pub sums: Id,
    /// Whether weights, and so partial results, are rounded to f16 as the queries are.
    pub rounded: bool,
}

/// An attention with its KV cache split into chunks.
pub struct Chunked<'a> {
    pub target: &'a Target,
    pub q: Id,
    pub k: Id,
    pub v: Id,
    /// Position of the first token; with pages, the position of each row.
    pub first: Id,
    /// Block table, if the KV cache is paged.
    pub pages: Option<Pages>,
    /// Scale and soft cap of the scores.
    pub scoring: Scoring,
    pub shape: AttentionShape,
    pub kv_heads: Id,
    /// Query heads per KV head.
    pub group: Id,
    pub depth: Id,
    pub out_depth: Id,
    /// Number of positions per chunk.
    pub size: i64,
    /// Index of the first computed chunk: 0 without a window. With pages it is 0 too, and `real`
    /// starts at each row's own first chunk.
    pub base: Id,
    /// Sliding-window size in positions, the token's own included; `None` for full attention.
    pub window: Option<i64>,
    /// Attention sink of each head: a score without a value.
    pub sinks: Option<Id>,
    /// `real` is the position of (chunk, offset), `[chunks, chunk]`; `at` is the cache row read for
    /// it, clamped to the cache. With pages both are per token, `[chunks, tokens, chunk]`.
    pub real: Id,
    pub at: Id,
    /// Whether several tokens attend and each query head has its own KV head.
    pub own: bool,
    pub plan: AttentionPlan,
    /// Staged tile that both keys and values are read from, `[chunks, chunk, kv heads, depth]`.
    pub tile: Option<Id>,
}

/// The chunks of a step and the positions in them.
struct Grid {
    /// Number of chunks, and positions per chunk.
    chunks: Id,
    chunk: Id,
    /// Defined as in [`Chunked`].
    base: Id,
    real: Id,
}

/// Inputs that determine the chunks of a cache.
struct Division {
    /// Positions of the cache in use (context length).
    length: Id,
    /// Number of positions per chunk.
    size: i64,
    /// Upper bound on the number of chunks that overlap a window.
    most: i64,
    /// Sliding-window size in positions; `None` for full attention.
    window: Option<i64>,
}

impl Grid {
    /// The grid for a contiguous or paged cache and tokens from position `first` on.
    fn for_cache(g: &mut Graph, first: Id, pages: Option<&Pages>, of: &Division) -> Grid {
        match pages {
            None => Grid::new(g, first, of),
            Some(pages) => {
                let own = pages.positions(g, first);
                Grid::in_pages(g, own, of)
            }
        }
    }
    /// The grid for tokens from position `first` on. With a window it has only the
    /// chunks that overlap it.
    fn new(g: &mut Graph, first: Id, of: &Division) -> Grid {
        let &Division {
            length,
            size,
            most,
            window,
        } = of;
        let (mut chunks, chunk) = in_use(g, length, size);
        let mut base = g.int(0);
        if let Some(window) = window {
            base = first_chunk(g, first, window, chunk);
            // The bounds hold in every step, but interval analysis cannot derive
            // them from the difference.
            let (used, one, most) = (g.sub(chunks, base), g.int(1), g.int(most));
            let used = g.max(used, one);
            chunks = g.min(used, most);
        }
        let grid: Dims = [chunks, chunk].into_iter().collect();
        let (a, b) = (g.iota(&grid, 0), g.iota(&grid, 1));
        let number = g.add(base, a);
        let start = g.mul(number, chunk);
        let real = g.add(start, b);
        Grid {
            chunks,
            chunk,
            base,
            real,
        }
    }
    /// The grid for rows of several sequences at positions `own [tokens]`.
    ///
    /// All positions are below the length. With a window each row starts at its own first chunk.
    fn in_pages(g: &mut Graph, own: Id, of: &Division) -> Grid {
        let &Division {
            length,
            size,
            most,
            window,
        } = of;
        let (mut chunks, chunk) = in_use(g, length, size);
        if window.is_some() {
            let most = g.int(most);
            chunks = g.min(chunks, most);
        }
        let tokens = g.shape(own)[0];
        let dims: Dims = [chunks, tokens, chunk].into_iter().collect();
        let mut number = g.iota(&dims, 0);
        if let Some(window) = window {
            let one = g.int(1);
            let of_row = first_chunk(g, own, window, chunk);
            let of_row = g.reshape(of_row, &[one, tokens, one]);
            let of_row = g.expand(of_row, &dims);
            number = g.add(of_row, number);
        }
        let (start, offset) = (g.mul(number, chunk), g.iota(&dims, 2));
        let real = g.add(start, offset);
        Grid {
            chunks,
            chunk,
            base: g.int(0),
            real,
        }
    }
}

/// Returns ⌈length / size⌉ and `size` as nodes.
fn in_use(g: &mut Graph, length: Id, size: i64) -> (Id, Id) {
    let (chunk, up) = (g.int(size), g.int(size - 1));
    let up = g.add(length, up);
    (g.idiv(up, chunk), chunk)
}

/// Gathers the rows of `k` at `at` as a staged tile, if the plan stages one for all products.
fn staged_tile(g: &mut Graph, k: Id, at: Id, plan: &AttentionPlan) -> Option<Id> {
    plan.fragments
        .filter(|f| f.staged && !plan.online)
        .map(|_| {
            let half = f16_split::narrow(g, k);
            g.gather(half, at)
        })
}

impl<'a> Chunked<'a> {
    /// Builds shapes, positions and cache rows of the attention over `src`, divided by `plan`.
    pub fn new(
        g: &mut Graph,
        src: &[Id],
        pages: Option<Pages>,
        scoring: Scoring,
        plan: AttentionPlan,
        target: &'a Target,
    ) -> Chunked<'a> {
        let &[q, k, v, first, length, ..] = src else {
            unreachable!("attention takes five sources: {src:?}")
        };
        let (qd, kd, vd) = (g.shape(q), g.shape(k), g.shape(v));
        let (tokens, heads, depth) = (qd[0], qd[1], qd[2]);
        let (h, kvh) = (g.max_of(heads), g.max_of(kd[1]));
        let (size, window) = (plan.chunk, plan::window(g, src));
        let most = Divided::new(g, src, target).attended().chunks(size, 1)[0];
        let of = Division {
            length,
            size,
            most,
            window,
        };
        let Grid {
            chunks,
            chunk,
            base,
            real,
        } = Grid::for_cache(g, first, pages.as_ref(), &of);
        let group = g.int(h / kvh);
        // Chunks come first, so that no stride depends on the maximum context length and a short
        // context touches little of the intermediates.
        let shape = AttentionShape {
            chunks,
            tokens,
            heads,
            chunk,
        };
        let own = pages.is_none() && kvh == h && g.max_of(tokens) > 1;
        let at = match &pages {
            Some(pages) => pages.rows(g, real, first, &shape),
            None => inside(g, real, kd[0], size),
        };
        let tile = staged_tile(g, k, at, &plan);
        let (kv_heads, out_depth) = (kd[1], vd[2]);
        Chunked {
            target,
            q,
            k,
            v,
            first,
            pages,
            scoring,
            shape,
            kv_heads,
            group,
            depth,
            out_depth,
            size,
            base,
            window,
            sinks: src.get(6).copied(),
            real,
            at,
            own,
            plan,
            tile,
        }
    }
    /// Returns the softmax and value sums of every chunk, and the nodes internal to their kernel.
    pub fn softmax_of_chunks(
        &mut self,
        g: &mut Graph,
        hints: &mut FxHashMap<Id, Hint>,
    ) -> (Softmax, Inside) {
        let mut kernel = Inside::default();
        let keys = self.keys(g, &mut kernel, hints);
        let scores = self.scores(g, keys, &mut kernel, hints);
        let softmax = self.softmax(g, scores, &mut kernel, hints);
        (softmax, kernel)
    }
    /// Gathers the rows of `x` at the chunks' positions as `[chunks, tokens, heads, chunk, d]`.
    fn rows(&self, g: &mut Graph, x: Id, d: Id, kernel: &mut Inside) -> Id {
        let AttentionShape {
            chunks,
            tokens,
            heads,
            chunk,
            ..
        } = self.shape;
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
            None if self.stages_rows() && f16_split::are_halves(g, x) => {
                let half = f16_split::narrow(g, x);
                let tile = g.gather(half, self.at);
                kernel.all.push(tile);
                kernel.staged.push(tile);
                g.cast(tile, Scalar::F32)
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
    /// Returns the keys of every chunk. With an int8 cache it also replaces
    /// `self.q` by quantised queries.
    pub(super) fn keys(
        &mut self,
        g: &mut Graph,
        kernel: &mut Inside,
        hints: &mut FxHashMap<Id, Hint>,
    ) -> Id {
        let of_bytes = match self.pages {
            Some(_) => None,
            None => bytes::rows(g, self.q, self.k, self.size, self.target),
        };
        let keys = match of_bytes {
            Some(of) => {
                let (keys, stages) = bytes::keys(g, &of, self.at, &self.shape);
                kernel.all.extend(stages);
                kernel.staged.extend(stages);
                // Materialised: otherwise every chunk would quantise the queries again.
                let (queries, codes) = bytes::queries(g, self.q, &of);
                hints.insert(codes, Hint::buffer(vec![]));
                self.q = queries;
                keys
            }
            None => self.rows(g, self.k, self.depth, kernel),
        };
        kernel.all.extend(self.tile);
        kernel.staged.extend(self.tile);
        keys
    }
    /// Whether each loop iteration loads its rows of keys and of values into stages.
    pub(super) fn stages_rows(&self) -> bool {
        self.plan.online && self.plan.fragments.is_some_and(|f| f.staged)
    }
    /// Whether queries are rounded to f16 once, in a buffer, instead of by each workgroup.
    fn buffers_queries(&self, g: &Graph) -> bool {
        self.own && g.max_of(self.shape.tokens) > buffered(self.target)
    }
    /// Computes scaled and capped scores of these keys, and the mask.
    pub(super) fn scores(
        &self,
        g: &mut Graph,
        keys: Id,
        kernel: &mut Inside,
        hints: &mut FxHashMap<Id, Hint>,
    ) -> Scores {
        let one = g.int(1);
        let scores = match self.plan.fragments {
            Some(Fragments { cut, .. }) => self.scores_of_fragments(g, keys, cut, kernel, hints),
            None => self.scores_of_threads(g, keys, one, kernel),
        };
        let scores = self
            .scoring
            .cap
            .map_or(scores, |cap| self.capped(g, scores, cap, kernel));
        kernel.all.push(scores);
        Scores {
            all: scores,
            unseen: self.unseen(g, one),
        }
    }
    /// Computes scaled scores of these keys by MMA, with the depth in `cut` parts.
    fn scores_of_fragments(
        &self,
        g: &mut Graph,
        keys: Id,
        cut: i64,
        kernel: &mut Inside,
        hints: &mut FxHashMap<Id, Hint>,
    ) -> Id {
        let queries = tiled::queries(
            g,
            self.q,
            &self.shape,
            self.scoring.scale,
            cut,
            self.buffers_queries(g),
        );
        // Materialised: otherwise every chunk would compute and round the queries again.
        for &half in &queries.buffers {
            let mut inside = f16_split::computed(g, g[half].src[0]);
            // A sum that feeds another rounded part too (the rotated one) is not
            // fused into this one.
            let others: Vec<Id> = queries
                .buffers
                .iter()
                .copied()
                .filter(|&other| other != half)
                .collect();
            let read = g.toposort(&others);
            inside.retain(|sum| !read.contains(sum));
            hints.insert(half, Hint::buffer(inside));
        }
        let (sums, scores) = tiled::scores(g, &queries, keys, &self.shape, cut);
        kernel.staged.extend(&sums[..2]);
        kernel.all.extend(sums);
        scores
    }
    /// Computes scaled scores of these keys without MMA.
    fn scores_of_threads(&self, g: &mut Graph, keys: Id, one: Id, kernel: &mut Inside) -> Id {
        let AttentionShape {
            chunks,
            tokens,
            heads,
            chunk,
            ..
        } = self.shape;
        let queries = g.reshape(self.q, &[one, tokens, heads, one, self.depth]);
        let queries = g.expand(queries, &[chunks, tokens, heads, chunk, self.depth]);
        let products = g.mul(queries, keys);
        let scores = g.sum(products, &[4]);
        kernel.all.push(scores);
        let factor = g.constant(Scalar::F32, self.scoring.scale);
        g.mul(scores, factor)
    }
    /// Computes the mask: true where a token may not attend to a position.
    fn unseen(&self, g: &mut Graph, one: Id) -> Id {
        let AttentionShape {
            chunks,
            tokens,
            heads,
            chunk,
            ..
        } = self.shape;
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
        let rows = if self.pages.is_some() { tokens } else { one };
        let position = g.reshape(self.real, &[chunks, rows, one, chunk]);
        let position = g.expand(position, &dims);
        match self.window {
            None => g.lt(mine, position),
            Some(window) => outside(g, position, mine, window - 1),
        }
    }
    /// Applies the soft cap. After an MMA product the capped score is the one that is staged, so
    /// that the readers do not recompute an exponential.
    fn capped(&self, g: &mut Graph, scores: Id, cap: f64, kernel: &mut Inside) -> Id {
        let capped = soft_cap(g, scores, cap);
        if let Some(Fragments { cut, .. }) = self.plan.fragments {
            if cut == 1 {
                kernel.staged.pop();
            }
            kernel.staged.push(capped);
        }
        capped
    }
    fn softmax(
        &self,
        g: &mut Graph,
        scores: Scores,
        kernel: &mut Inside,
        hints: &mut FxHashMap<Id, Hint>,
    ) -> Softmax {
        let mut of = self.extremes(g, scores);
        of.sums = self.weighted(g, of.weights, kernel, hints);
        of
    }
    /// Computes maxima, weights and their sums. `sums` is a placeholder: the sum of the weights.
    fn extremes(&self, g: &mut Graph, Scores { all: raw, unseen }: Scores) -> Softmax {
        let low = g.constant(Scalar::F32, MASKED);
        let scores = g.select(unseen, low, raw);
        let max = g.reduce(scores, &[3], ReduceOp::Max);
        let of_all = g.broadcast_back(max, self.shape.chunk);
        // A workgroup of many tokens has room in its stages for one copy of the scores, so the
        // readers apply the mask.
        let apart =
            self.own && self.plan.fragments.is_some() && g.max_of(self.shape.tokens) > plan::FEW;
        let weights = g.sub(if apart { raw } else { scores }, of_all);
        let mut weights = g.exp(weights);
        if apart {
            let zero = g.f32(0.0);
            weights = g.select(unseen, zero, weights);
        }
        // With queries rounded to f16, weights and partial results are rounded to f16 too.
        let rounded = self.plan.fragments.is_some() && f16_split::rounded(g, self.q);
        if rounded {
            let half = g.cast(weights, Scalar::F16);
            weights = g.cast(half, Scalar::F32);
        }
        let sum = g.sum(weights, &[3]);
        Softmax {
            scores,
            max,
            weights,
            sum,
            sums: sum,
            rounded,
        }
    }
    /// Sums each chunk's values with these weights: `[chunks, tokens, heads, depth]`.
    fn weighted(
        &self,
        g: &mut Graph,
        weights: Id,
        kernel: &mut Inside,
        hints: &mut FxHashMap<Id, Hint>,
    ) -> Id {
        self.sums(g, weights, tiled::Over::Chunk, kernel, hints)
    }
    /// Sums the values of all chunks with these weights: `[tokens, heads, depth]`.
    pub(super) fn summed(
        &self,
        g: &mut Graph,
        weights: Id,
        kernel: &mut Inside,
        hints: &mut FxHashMap<Id, Hint>,
    ) -> Id {
        self.sums(g, weights, tiled::Over::All, kernel, hints)
    }
    fn sums(
        &self,
        g: &mut Graph,
        weights: Id,
        over: tiled::Over,
        kernel: &mut Inside,
        hints: &mut FxHashMap<Id, Hint>,
    ) -> Id {
        if self.plan.fragments.is_none() {
            let values = self.rows(g, self.v, self.out_depth, kernel);
            let weights = g.broadcast_back(weights, self.out_depth);
            let products = g.mul(weights, values);
            return g.sum(
                products,
                if over == tiled::Over::All {
                    &[0, 3]
                } else {
                    &[3]
                },
            );
        }
        let values = match f16_split::are_halves(g, self.v) {
            true => self.v,
            // A prefill's computed values are rounded to f16, as the weights and the rows of
            // an f16 cache are.
            false if f16_split::rounded(g, self.q) && g.max_of(self.shape.tokens) > plan::FEW => {
                let half = g.cast(self.v, Scalar::F16);
                hints.insert(half, Hint::buffer(f16_split::computed(g, self.v)));
                g.cast(half, Scalar::F32)
            }
            false => {
                let (parts, values) = tiled::joined_parts(g, self.v);
                hints.insert(parts, Hint::buffer(f16_split::computed(g, self.v)));
                values
            }
        };
        let width = *g.shape(values).last().expect("rows of values");
        let values = self.rows(g, values, width, kernel);
        let (weights, sums) =
            tiled::weighted(g, weights, values, &self.shape, self.out_depth, over);
        kernel.all.push(weights);
        kernel.staged.push(weights);
        sums
    }
}

/// `cap · tanh(x / cap)`, which is `2 cap / (1 + e^(−2x / cap)) − cap`.
fn soft_cap(g: &mut Graph, x: Id, cap: f64) -> Id {
    let exponent = g.constant(Scalar::F32, -2.0 * std::f64::consts::LOG2_E / cap);
    let exponent = g.mul(x, exponent);
    let (power, one) = (g.exp2(exponent), g.f32(1.0));
    let below = g.add(power, one);
    let share = g.recip(below);
    let (twice, minus) = (
        g.constant(Scalar::F32, 2.0 * cap),
        g.constant(Scalar::F32, -cap),
    );
    let above = g.mul(share, twice);
    g.add(above, minus)
}

/// Clamps the positions `real` to a cache of `rows` rows; no clamp if `size` divides `rows`.
fn inside(g: &mut Graph, real: Id, rows: Id, size: i64) -> Id {
    if g.int_value(rows).is_some_and(|n| n % size == 0) {
        return real;
    }
    let minus = g.int(-1);
    let last = g.add(rows, minus);
    g.min(real, last)
}

/// Index of the first chunk that overlaps the window of the token at `first`.
fn first_chunk(g: &mut Graph, first: Id, window: i64, chunk: Id) -> Id {
    let (back, zero) = (g.int(1 - window), g.int(0));
    let begin = g.add(first, back);
    let begin = g.max(begin, zero);
    g.idiv(begin, chunk)
}

/// Returns whether `at` is after `own`, or more than `reach` positions before it.
pub fn outside(g: &mut Graph, at: Id, own: Id, reach: i64) -> Id {
    let (ahead, passed) = (g.sub(at, own), g.sub(own, at));
    let reach = g.int(-reach);
    let behind = g.add(passed, reach);
    let (far, zero) = (g.max(ahead, behind), g.int(0));
    g.lt(zero, far)
}
