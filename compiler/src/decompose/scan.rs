//! Lowers `SCAN`, the recurrence of gated linear attention and gated DeltaNet, in one
//! of two equivalent forms.
//!
//! A single token reads, updates and writes the whole state. Several tokens are processed in
//! chunks: the states of chunks follow from one another, and everything inside a chunk is matrix
//! products (arXiv 2406.06484 and 2412.06464).
//!
//! With S the state before a chunk, A_i the sum of its gates up to token i and L_ij = exp(A_i −
//! A_j) for j ≤ i, token i adds u_i k_iᵀ, where
//!
//! ```text
//! u_i = r_i (v_i − exp(A_i) S k_i − Σ_{j<i} L_ij (k_j·k_i) u_j), so
//! u = T (r v) − T (r exp(A) k) S, with T = (1 + [r_i L_ij (k_i·k_j)]_{j<i})⁻¹
//! S q after token i = exp(A_i) S q_i + Σ_{j≤i} L_ij (q_i·k_j) u_j
//! S after the chunk = exp(A_last) S + Σ_j exp(A_last − A_j) u_j k_jᵀ
//! ```
//!
//! Without rates, u = v. Tokens after the last have gates, rates and values of 0, which leave the
//! state unchanged. Sums of gates between two tokens are computed directly: after strong decays,
//! differences of prefix sums would cancel.

use gristmill_uop::op::Op;
use gristmill_uop::shape::ScanSources;
use gristmill_uop::{Arg, Graph, Id, Sources};
use rustc_hash::FxHashMap;

/// Tokens per chunk, at most; a power of two. Longer chunks need more work inside a chunk and fewer
/// sequential states between chunks. Other lengths were not measured.
pub const CHUNK: i64 = 32;

/// Replaces every `SCAN` below `roots`.
pub fn expand(g: &mut Graph, roots: &mut [Id]) {
    let mut map: FxHashMap<Id, Id> = FxHashMap::default();
    let mut done: FxHashMap<Sources, [Id; 2]> = FxHashMap::default();
    for id in g.toposort(roots) {
        let Arg::Int(which) = g[id].arg else { continue };
        if g[id].op != Op::Scan {
            continue;
        }
        let src: Sources = g[id]
            .src
            .clone()
            .iter()
            .map(|&s| g.substitute(s, &mut map))
            .collect();
        let both = match done.get(&src) {
            Some(&both) => both,
            None => {
                let of = ScanSources::from_sources(&src);
                let tokens = g.shape(of.queries)[0];
                let both = if g.int_value(tokens) == Some(1) {
                    one_token(g, &of)
                } else {
                    Chunked::new(g, &of).nodes(g)
                };
                done.insert(src, both);
                both
            }
        };
        map.insert(id, both[usize::from(which == 1)]);
    }
    if !map.is_empty() {
        roots
            .iter_mut()
            .for_each(|r| *r = g.substitute(*r, &mut map));
    }
}

/// Expands `x`, whose axes are `axes` of `full` in ascending order, to `full`.
fn over(g: &mut Graph, x: Id, axes: &[usize], full: &[Id]) -> Id {
    let one = g.int(1);
    let dims: Vec<Id> = (0..full.len())
        .map(|a| if axes.contains(&a) { full[a] } else { one })
        .collect();
    let x = g.reshape(x, &dims);
    g.expand(x, full)
}

/// Multiplies `x` and `y`, each expanded from its axes to `full`, and sums over the last axis.
fn contract(g: &mut Graph, [x, y]: [(Id, &[usize]); 2], full: &[Id]) -> Id {
    let (x, y) = (over(g, x.0, x.1, full), over(g, y.0, y.1, full));
    let product = g.mul(x, y);
    g.sum(product, &[full.len() - 1])
}

/// Returns the output of one token and the state after it.
fn one_token(g: &mut Graph, of: &ScanSources) -> [Id; 2] {
    let full = g.shape(of.state);
    let [heads, values, _] = full[..] else {
        unreachable!("a state has three axes: {}", g.show_dims(&full))
    };
    let decay = g.exp(of.gates);
    let decay = over(g, decay, &[0], &full);
    let before = g.mul(of.state, decay);
    let key = over(g, of.keys, &[0, 2], &full);
    let mut u = g.reshape(of.values, &[heads, values]);
    if let Some(rates) = of.rates {
        let product = g.mul(before, key);
        let found = g.sum(product, &[2]);
        let missing = g.sub(u, found);
        let rates = over(g, rates, &[0], &[heads, values]);
        u = g.mul(rates, missing);
    }
    let u = over(g, u, &[0, 1], &full);
    let added = g.mul(u, key);
    let left = g.add(before, added);
    let query = over(g, of.queries, &[0, 2], &full);
    let product = g.mul(left, query);
    let read = g.sum(product, &[2]);
    let dims = g.shape(of.values);
    [g.reshape(read, &dims), left]
}

/// A recurrence in chunks. Axes: chunks, heads, tokens of a chunk, then the element axis.
struct Chunked {
    of: ScanSources,
    tokens: Id,
    /// Number of chunks, and tokens per chunk.
    count: i64,
    size: i64,
    chunks: Id,
    heads: Id,
    chunk: Id,
    values: Id,
    keys: Id,
    /// Token index in the chunks, `[chunks, chunk]`, clamped to the step, and
    /// whether the token exists.
    at: Id,
    there: Id,
}

/// Values computed for all chunks in parallel.
struct Inside {
    queries: Id,
    /// exp of the gates' sum up to each token, `[chunks, heads, chunk]`, and of all
    /// of them, `[chunks, heads]`.
    decay: Id,
    decay_of_all: Id,
    /// Keys times the decay from their token to the chunk's end.
    decayed: Id,
    /// `added` is the update to an empty state, `[chunks, heads, chunk, values]`.
    /// `taken` multiplies the incoming state and is subtracted, `[chunks, heads, chunk,
    /// keys]`; `None` without rates.
    added: Id,
    taken: Option<Id>,
    /// L_ij (q_i·k_j)
    scores: Id,
}

impl Chunked {
    fn new(g: &mut Graph, of: &ScanSources) -> Chunked {
        let (state, tokens) = (g.shape(of.state), g.shape(of.queries)[0]);
        let most = g.max_of(tokens).max(1);
        let size = CHUNK.min(most.unsigned_abs().next_power_of_two() as i64);
        let count = (most + size - 1) / size;
        let (chunks, chunk) = (g.int(count), g.int(size));
        let grid = [chunks, chunk];
        let (a, b) = (g.iota(&grid, 0), g.iota(&grid, 1));
        let start = g.mul(a, chunk);
        let t = g.add(start, b);
        let minus = g.int(-1);
        let last = g.add(tokens, minus);
        let (at, there) = (g.min(t, last), g.lt(t, tokens));
        let &[heads, values, keys] = &state[..] else {
            unreachable!("a state has three axes")
        };
        Chunked {
            of: *of,
            tokens,
            count,
            size,
            chunks,
            heads,
            chunk,
            values,
            keys,
            at,
            there,
        }
    }
    fn pairs(&self) -> [Id; 4] {
        [self.chunks, self.heads, self.chunk, self.chunk]
    }
    fn with(&self, last: Id) -> [Id; 5] {
        let [a, b, c, d] = self.pairs();
        [a, b, c, d, last]
    }
    /// Gathers `x [tokens, heads, width]` by chunks: `[chunks, heads, chunk, width]`.
    fn rows(&self, g: &mut Graph, x: Id) -> Id {
        let x = g.gather(x, self.at);
        g.permute(x, &[0, 2, 1, 3])
    }
    /// Zeroes the values of missing tokens; the first axes of `x` are chunks, heads, tokens.
    fn masked(&self, g: &mut Graph, x: Id) -> Id {
        let dims = g.shape(x);
        let (there, zero) = (over(g, self.there, &[0, 2], &dims), g.f32(0.0));
        g.select(there, x, zero)
    }
    /// Gathers `x [tokens, heads]` by chunks, `[chunks, heads, chunk]`, with 0 for missing tokens.
    fn numbers(&self, g: &mut Graph, x: Id) -> Id {
        let x = g.gather(x, self.at);
        let x = g.permute(x, &[0, 2, 1]);
        self.masked(g, x)
    }
    /// Sums the gates where `chosen`, over the last axis of `full`, which is their token axis.
    fn gated(&self, g: &mut Graph, gates: Id, full: &[Id], chosen: Id) -> Id {
        let last = full.len() - 1;
        let (gates, zero) = (over(g, gates, &[0, 1, last], full), g.f32(0.0));
        let terms = g.select(chosen, gates, zero);
        g.sum(terms, &[last])
    }
    /// Inverts 1 + `below`, where `below` is strictly lower triangular.
    ///
    /// Diagonal blocks are inverted, then those of twice their size: `[[P, 0], [B, Q]]⁻¹ = [[P⁻¹,
    /// 0], [−Q⁻¹ B P⁻¹, Q⁻¹]]`.
    fn inverse(&self, g: &mut Graph, below: Id) -> Id {
        let (dims, full) = (self.pairs(), self.with(self.chunk));
        let (i, j) = (g.iota(&dims, 2), g.iota(&dims, 3));
        let (zero, one) = (g.f32(0.0), g.f32(1.0));
        let diagonal = g.eq(i, j);
        let mut inverse = g.select(diagonal, one, zero);
        inverse = if g.shape(inverse).is_empty() {
            g.spread(inverse, &dims)
        } else {
            inverse
        };
        let mut size = 1;
        while size < self.size {
            // The block B: rows of an odd block, columns of the even block before it.
            let (step, two, next) = (g.int(size), g.int(2), g.int(1));
            let (row, column) = (g.idiv(i, step), g.idiv(j, step));
            let parity = g.modulo(column, two);
            let after = g.add(column, next);
            let zero_index = g.int(0);
            let (even, beside) = (g.eq(parity, zero_index), g.eq(row, after));
            let corner = g.and(even, beside);
            let b = g.select(corner, below, zero);
            let product = match size {
                1 => b,
                _ => {
                    let turned = g.permute(inverse, &[0, 1, 3, 2]);
                    let right = contract(g, [(b, &[0, 1, 2, 4]), (turned, &[0, 1, 3, 4])], &full);
                    let turned = g.permute(right, &[0, 1, 3, 2]);
                    contract(
                        g,
                        [(inverse, &[0, 1, 2, 4]), (turned, &[0, 1, 3, 4])],
                        &full,
                    )
                }
            };
            inverse = g.sub(inverse, product);
            size *= 2;
        }
        inverse
    }
    /// Computes the values that do not depend on other chunks.
    fn inside(&self, g: &mut Graph) -> Inside {
        let of = &self.of;
        let [queries, keys, values] = [of.queries, of.keys, of.values].map(|x| self.rows(g, x));
        let gates = self.numbers(g, of.gates);
        let (dims, triples) = (self.pairs(), self.with(self.chunk));
        let (i, j) = (g.iota(&dims, 2), g.iota(&dims, 3));
        let (zero, one) = (g.f32(0.0), g.int(1));
        let (behind, before) = (g.lt(i, j), g.lt(j, i));
        let next = g.add(i, one);
        let until = g.lt(j, next);
        // Gates between j, exclusive, and i, inclusive.
        let [ti, tj, tt] = [2, 3, 4].map(|axis| g.iota(&triples, axis));
        let ti = g.add(ti, one);
        let (after_j, up_to_i) = (g.lt(tj, tt), g.lt(tt, ti));
        let between = g.and(after_j, up_to_i);
        let between = self.gated(g, gates, &triples, between);
        let between = g.exp(between);
        let between = g.select(until, between, zero);
        let [so_far, rest] = [until, behind].map(|chosen| {
            let sum = self.gated(g, gates, &dims, chosen);
            g.exp(sum)
        });
        let of_all = g.sum(gates, &[2]);
        let decay_of_all = g.exp(of_all);
        let of_keys = [self.chunks, self.heads, self.chunk, self.keys];
        let rest = over(g, rest, &[0, 1, 2], &of_keys);
        let decayed = g.mul(keys, rest);
        let full = self.with(self.keys);
        let products =
            |g: &mut Graph, x: Id| contract(g, [(x, &[0, 1, 2, 4]), (keys, &[0, 1, 3, 4])], &full);
        let scores = products(g, queries);
        let scores = g.mul(scores, between);
        let (added, taken) = match of.rates {
            None => (self.masked(g, values), None),
            Some(rates) => {
                let rates = self.numbers(g, rates);
                let gram = products(g, keys);
                let of_row = over(g, rates, &[0, 1, 2], &dims);
                let weight = g.mul(of_row, between);
                let below = g.mul(weight, gram);
                let below = g.select(before, below, zero);
                let inverse = self.inverse(g, below);
                let solve = |g: &mut Graph, x: Id, factor: Id| {
                    let dims = g.shape(x);
                    let (width, factor) = (dims[3], over(g, factor, &[0, 1, 2], &dims));
                    let x = g.mul(x, factor);
                    let x = g.permute(x, &[0, 1, 3, 2]);
                    let full = [self.chunks, self.heads, self.chunk, width, self.chunk];
                    contract(g, [(inverse, &[0, 1, 2, 4]), (x, &[0, 1, 3, 4])], &full)
                };
                let decayed_rates = g.mul(rates, so_far);
                (solve(g, values, rates), Some(solve(g, keys, decayed_rates)))
            }
        };
        Inside {
            queries,
            decay: so_far,
            decay_of_all,
            decayed,
            added,
            taken,
            scores,
        }
    }
    /// Chunk `at` of `x`, without the chunk axis.
    fn one(&self, g: &mut Graph, x: Id, at: i64) -> Id {
        let dims = g.shape(x);
        let x = g.slice(x, 0, at, 1);
        g.reshape(x, &dims[1..])
    }
    /// Prepends a chunk axis of length 1.
    fn unit(&self, g: &mut Graph, x: Id) -> Id {
        let one = g.int(1);
        let dims: Vec<Id> = std::iter::once(one).chain(g.shape(x)).collect();
        g.reshape(x, &dims)
    }
    /// Returns the output of every token, and the state after the last.
    fn nodes(&self, g: &mut Graph) -> [Id; 2] {
        let inside = self.inside(g);
        let (mut states, mut all_added) = (Vec::new(), Vec::new());
        let mut state = self.of.state;
        let matrix = g.shape(state);
        for at in 0..self.count {
            states.push(self.unit(g, state));
            let mut added = self.one(g, inside.added, at);
            if let Some(taken) = inside.taken {
                let taken = self.one(g, taken, at);
                let full = [self.heads, self.chunk, self.values, self.keys];
                let found = contract(g, [(taken, &[0, 1, 3]), (state, &[0, 2, 3])], &full);
                added = g.sub(added, found);
            }
            all_added.push(self.unit(g, added));
            let decayed = self.one(g, inside.decayed, at);
            let (u, k) = (g.permute(added, &[0, 2, 1]), g.permute(decayed, &[0, 2, 1]));
            let full = [self.heads, self.values, self.keys, self.chunk];
            let new = contract(g, [(u, &[0, 1, 3]), (k, &[0, 2, 3])], &full);
            let decay = self.one(g, inside.decay_of_all, at);
            let decay = over(g, decay, &[0], &matrix);
            let old = g.mul(state, decay);
            state = g.add(old, new);
        }
        let (states, added) = (g.cat(&states, 0), g.cat(&all_added, 0));
        [self.read(g, &inside, states, added), state]
    }
    /// Output of every token, `[tokens, heads, values]`, from the states before the chunks and
    /// the updates inside them.
    fn read(&self, g: &mut Graph, inside: &Inside, states: Id, added: Id) -> Id {
        let dims = [self.chunks, self.heads, self.chunk, self.values];
        let full = [self.chunks, self.heads, self.chunk, self.values, self.keys];
        let of_state = contract(
            g,
            [(inside.queries, &[0, 1, 2, 4]), (states, &[0, 1, 3, 4])],
            &full,
        );
        let decay = over(g, inside.decay, &[0, 1, 2], &dims);
        let of_state = g.mul(of_state, decay);
        let added = g.permute(added, &[0, 1, 3, 2]);
        let full = [self.chunks, self.heads, self.chunk, self.values, self.chunk];
        let of_chunk = contract(
            g,
            [(inside.scores, &[0, 1, 2, 4]), (added, &[0, 1, 3, 4])],
            &full,
        );
        let read = g.add(of_state, of_chunk);
        let read = g.permute(read, &[0, 2, 1, 3]);
        let all = g.int(self.count * self.size);
        let read = g.reshape(read, &[all, self.heads, self.values]);
        let zero = g.int(0);
        g.shrink(
            read,
            &[(zero, self.tokens), (zero, self.heads), (zero, self.values)],
        )
    }
}
