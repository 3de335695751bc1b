//! The shape of a workgroup: which output axes the launch is spread over, and the tile of outputs one workgroup computes.
//!
//! Kernels fall into classes by what they reduce over. A contraction with a packed weight has *row* axes, on which the weight depends,
//! and *token* axes, on which it does not: a tile of rows × tokens is kept in registers, the weight decoded once for all its tokens.

use super::expand::Expander;
use super::kernel::{Draft, Surroundings};
use crate::derive::Derived;
use crate::lower::linear::WORDS;
use crate::threads::floor_power;
use crate::tiles::WARP;
use crate::together::outermost;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, Scalar};
use rustc_hash::{FxHashMap, FxHashSet};
use std::iter::successors;

/// A workgroup shape asked for by a derivation: how many leading axes the launch is spread over. The node has a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Hint {
    /// Leading axes over which the launch is spread; none for a node that only wants its buffer.
    pub globals: usize,
    /// Elements of the last of them in one workgroup.
    pub tile: i64,
    /// What they become: copies in registers, or a loop for the threads to share.
    pub inner: RangeKind,
    /// Nodes that only this kernel reads, and computes inside.
    pub inside: Vec<Id>,
    /// Those of them that are stages, also where they could be computed in place: threads share the work in another way than the reader's.
    pub staged: Vec<Id>,
    /// Workgroups whose results nobody reads.
    pub future: Option<Future>,
    /// A stage that both operands of matrix products are read from, as large as fits.
    pub resident: Option<Resident>,
}

impl Hint {
    /// A buffer, in whatever workgroups: readers want it in memory as it is, and nobody else wants what is inside.
    pub fn buffer(inside: Vec<Id>) -> Hint {
        Hint { globals: 0, tile: 1, inner: RangeKind::Loop, inside, staged: vec![], future: None, resident: None }
    }
}

/// A tile of a cache that a workgroup copies into a stage, before anything else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resident {
    /// The node that is staged.
    pub node: Id,
    /// Positions of a chunk, of which the first axis has the number.
    pub size: i64,
    /// Position of the first token, if what lies before it was there before this step: then a device need not wait for the step's other kernels.
    pub settled: Option<Id>,
    /// Tokens of the step, whose rows follow.
    pub tokens: Id,
}

/// What of a node nobody reads: elements of chunk c and token t with `c·size > first + t`. A device may leave workgroups out that compute
/// nothing else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Future {
    /// Axis of the chunks.
    pub chunk: usize,
    /// Axis of the tokens.
    pub token: usize,
    /// Positions of a chunk.
    pub size: i64,
    /// Position of the first token: a scalar.
    pub first: Id,
}

/// Rows that a workgroup keeps in registers beside several tokens: as many as leave half of the registers free, at most so many.
const MATMUL_ROWS: i64 = 4;
/// Elements made of one sum that a thread computes side by side, at most.
pub const COPIES: i64 = 4;
/// Rows of a panel that is read again for every tile of tokens: it stays in the L2 cache.
const PANEL_ROWS: i64 = 128;
/// Rows of a warp's matrix product, and tokens that a warp multiplies them with.
const WARP_ROWS: i64 = 16;
const WARP_TOKENS: i64 = 32;
/// Tokens that a thread multiplies a row with, where no matrix product does.
const TOKENS: i64 = 4;
/// Terms that a thread computes of what is no contraction of weights.
const TERMS: i64 = 4;
/// Registers of a thread beside its accumulators: addresses, words that wait, what is computed meanwhile (read off kernels of GLM on an H200).
const REGISTERS: i64 = 40;
/// Threads that share a row, at least: loads of neighbours are whole sectors of 32 bytes then.
const LEAST_OF_ROW: i64 = 8;
/// Workgroups for each multiprocessor beyond which another costs more than it spreads.
const WAVES: i64 = 16;
/// Below this many elements, one workgroup does everything.
const SMALL: i64 = 2048;

/// Chooses, and rewrites the nests of `out` accordingly: ranges that the launch is spread over become `Global`.
pub fn split(g: &mut Graph, x: &mut Expander, out: &mut Draft, node: Id, around: &Surroundings) {
    let nests = out.nests.clone();
    // Ranges that all nests share are the output's axes; a `Cat`'s axis has one range a part and stays inside the workgroup.
    let mut axes: Vec<Id> = g[nests[0]].src[3..].to_vec();
    for &n in &nests[1..] {
        axes.retain(|r| g[n].src[3..].contains(r));
    }
    let mut s = Splitter { x, map: FxHashMap::default(), order: Vec::new() };
    let threads = around.target.machine.kind == MachineKind::Gpu;
    let spread: Vec<Id> = axes.iter().copied().filter(|&r| threads || host_bound(g, r)).collect();
    if let Some(hint) = around.hints.get(&node).filter(|h| h.globals > 0) {
        let rank_of = leading(g, &axes, hint.globals, node);
        for (i, &r) in rank_of.iter().enumerate() {
            if i + 1 == rank_of.len() && hint.tile > 1 {
                s.tiled(g, r, hint.tile, RangeKind::Global, hint.inner);
            } else {
                s.global(g, r);
            }
        }
        out.when.skip = hint.future.and_then(|f| s.skip(g, &f, &axes, node, hint.tile));
        out.fresh = hint.resident.and_then(|r| s.fresh(g, &r, &axes, node));
    } else {
        let (rows, lanes, steps) = row_axes(g, &nests, around.derived);
        if rows.is_empty() {
            plain(g, &mut s, &spread, &nests, around);
        } else {
            // Reductions of one nest share a loop, and with it the registers; one inside another has them only while the other waits.
            let together = nests.iter().map(|&n| outermost(g, n).len()).max().unwrap_or(1);
            let axes = copies(g, &mut s, &nests, &axes);
            contraction(g, &mut s, &nests, &axes, &rows, [lanes, steps, together as i64], around);
        }
    }
    let (map, order) = (s.map, s.order);
    for nest in &mut out.nests {
        let (buffer, offset, value) = (g[*nest].src[0], g[*nest].src[1], g[*nest].src[2]);
        let old: Vec<Id> = g[*nest].src[3..].to_vec();
        let mut m = map.clone();
        let offset = g.substitute(offset, &mut m);
        let value = g.substitute(value, &mut m);
        // New inner ranges in the order chosen, then what was left alone.
        let mut closed: Vec<Id> = order.clone();
        closed.extend(old.iter().copied().filter(|r| !map.contains_key(r) && !order.contains(r)));
        *nest = g.store(buffer, offset, value, &closed);
    }
}

/// Workgroups of a launch that run at once.
pub fn room(target: &Target) -> i64 {
    target.resident() * target.machine.units as i64
}

/// The first `n` axes of the node that have a range.
fn leading(g: &Graph, axes: &[Id], n: usize, node: Id) -> Vec<Id> {
    let dims = g.shape(node);
    let ranged = dims[..n].iter().filter(|&&d| g.int_value(d) != Some(1)).count();
    axes[..ranged.min(axes.len())].to_vec()
}

/// How many workgroups of these nests a multiprocessor has registers for, as counted from their accumulators.
pub fn beside(g: &Graph, nests: &[Id], target: &Target) -> f64 {
    let accumulators = nests.iter().map(|&n| {
        let copies = g[n].src[3..].iter().filter(|&&r| g.range_kind(r) == Some(RangeKind::Upcast));
        copies.map(|&r| g.max_of(g[r].src[0])).product::<i64>() * outermost(g, n).len().max(1) as i64
    });
    let registers = REGISTERS + 2 * accumulators.max().unwrap_or(1);
    (target.machine.registers as i64 / (target.threads as i64 * registers)).max(1) as f64
}

struct Splitter<'a, 'b> {
    x: &'a mut Expander<'b>,
    map: FxHashMap<Id, Id>,
    /// Inner ranges, outermost first.
    order: Vec<Id>,
}

impl Splitter<'_, '_> {
    fn new_range(&mut self, g: &mut Graph, bound: Id, kind: RangeKind) -> Id {
        let r = self.x.range(g, bound, kind);
        if kind != RangeKind::Global && g[r].op == Op::Range {
            self.order.push(r);
        }
        r
    }
    /// The whole axis over the launch.
    fn global(&mut self, g: &mut Graph, r: Id) {
        let bound = g[r].src[0];
        let new = self.new_range(g, bound, RangeKind::Global);
        self.map.insert(r, new);
    }
    /// The whole axis over the launch, whose host does not know how long it is: workgroups beyond its end repeat the last.
    fn at_most(&mut self, g: &mut Graph, r: Id) {
        let index = self.up_to(g, g[r].src[0]);
        self.map.insert(r, index);
    }
    /// An index over the launch, up to a bound that the host does not know.
    fn up_to(&mut self, g: &mut Graph, bound: Id) -> Id {
        let (most, minus) = (g.max_of(bound), g.int(-1));
        let most = g.int(most);
        let new = self.new_range(g, most, RangeKind::Global);
        let last = g.add(bound, minus);
        g.min(new, last)
    }
    /// Is every element of the workgroup one that nobody reads?
    fn skip(&mut self, g: &mut Graph, f: &Future, axes: &[Id], node: Id, tile: i64) -> Option<Id> {
        // Axes of one element have no range.
        let dims = g.shape(node);
        let ranged = |axis: usize| dims[..axis].iter().filter(|&&d| g.int_value(d) != Some(1)).count();
        let (chunk, token) = (*axes.get(ranged(f.chunk))?, *axes.get(ranged(f.token))?);
        let zero = g.int(0);
        let chunk = if g.int_value(dims[f.chunk]) == Some(1) { zero } else { self.map[&chunk] };
        let token = if g.int_value(dims[f.token]) == Some(1) { zero } else { self.map[&token] };
        // The last token of the tile.
        let inner: Vec<Id> =
            g.free_ranges(token).iter().copied().filter(|&r| g.range_kind(r) != Some(RangeKind::Global)).collect();
        let last = g.int(tile - 1);
        let mut map = FxHashMap::from_iter(inner.into_iter().map(|r| (r, last)));
        let token = g.substitute(token, &mut map);
        let first = self.x.dim(g, f.first);
        let (size, own) = (g.int(f.size), g.add(first, token));
        let begin = g.mul(chunk, size);
        Some(g.lt(own, begin))
    }
    /// Where in the workgroup's chunk, or behind it, the rows of the step's tokens begin.
    fn fresh(&mut self, g: &mut Graph, r: &Resident, axes: &[Id], node: Id) -> Option<Id> {
        let first = self.x.dim(g, r.settled?);
        let chunks = g.shape(node)[0];
        let chunk = if g.int_value(chunks) == Some(1) { g.int(0) } else { *self.map.get(axes.first()?)? };
        let size = g.int(r.size);
        let begin = g.mul(chunk, size);
        Some(g.sub(first, begin))
    }
    /// The axis stays inside the workgroup, as a loop at this place of the order.
    fn keep(&mut self, r: Id) {
        self.order.push(r);
    }
    /// The axis as tiles: the outer range of one kind, the inner of another.
    fn tiled(&mut self, g: &mut Graph, r: Id, tile: i64, outer: RangeKind, inner: RangeKind) {
        let o = self.tiles(g, r, tile, outer);
        self.within(g, r, o, tile, inner);
    }
    /// The outer range of an axis cut into tiles.
    fn tiles(&mut self, g: &mut Graph, r: Id, tile: i64, kind: RangeKind) -> Id {
        let bound = g[r].src[0];
        let (t, up) = (g.int(tile), g.int(tile - 1));
        let count = g.add(bound, up);
        let count = g.idiv(count, t);
        match kind {
            RangeKind::Global if !host_bound(g, r) => self.up_to(g, count),
            _ => self.new_range(g, count, kind),
        }
    }
    /// The inner range of an axis cut into tiles, of which `outer` is the number. Where the tile does not divide the bound, the last
    /// tile's surplus repeats the last element: it computes and writes the same value again.
    fn within(&mut self, g: &mut Graph, r: Id, outer: Id, tile: i64, kind: RangeKind) {
        let bound = g[r].src[0];
        let t = g.int(tile);
        let i = self.new_range(g, t, kind);
        let start = g.mul(outer, t);
        let mut index = g.add(start, i);
        if g.int_value(bound).is_none_or(|b| b % tile != 0) {
            let minus = g.int(-1);
            let last = g.add(bound, minus);
            index = g.min(index, last);
        }
        self.map.insert(r, index);
    }
    /// An axis cut into (workgroups, a loop of `per_group`, registers of `tile`, lanes), which divide it; the loop's range comes from the caller, who
    /// may want others between.
    fn nested(&mut self, g: &mut Graph, r: Id, group: Id, within: Id, per_group: i64, [tile, lanes]: [i64; 2]) {
        let (per, t, l) = (g.int(per_group), g.int(tile), g.int(lanes));
        let i = self.new_range(g, t, RangeKind::Upcast);
        let lane = self.new_range(g, l, RangeKind::Loop);
        let at = g.mul(group, per);
        let at = g.add(at, within);
        let at = g.mul(at, t);
        let at = g.add(at, i);
        let at = g.mul(at, l);
        let at = g.add(at, lane);
        self.map.insert(r, at);
    }
}

/// Can the host evaluate the bound of this range before the launch?
fn host_bound(g: &Graph, r: Id) -> bool {
    !g.any(g[r].src[0], |_, n| matches!(n.op, Op::Load | Op::Range))
}

/// Closed ranges on which the packed operand of a contraction depends, none if there is no such contraction; and how many of its rows are
/// interleaved, and how many steps a row takes.
fn row_axes(g: &Graph, nests: &[Id], derived: &Derived) -> (FxHashSet<Id>, i64, i64) {
    let mut rows = FxHashSet::default();
    let (mut lanes, mut steps) = (1, 1);
    for &nest in nests {
        let closed = &g[nest].src[3..];
        for n in g.toposort(&[nest]) {
            if g[n].op != Op::Reduce {
                continue;
            }
            for m in g.toposort(&[g[n].src[0]]) {
                if g[m].op == Op::Load
                    && let Arg::Packed(slot, _) = g[g[m].src[0]].arg
                {
                    let free = g.free_ranges(m);
                    if free.iter().any(|r| g[n].src[1..].contains(r)) {
                        let walked = g[n].src[1..].iter().filter(|&&r| g.range_kind(r) == Some(RangeKind::Reduce));
                        steps = walked.map(|&r| g.max_of(g[r].src[0])).max().unwrap_or(1).max(steps);
                        lanes = derived.layouts.get(&slot).map_or(lanes, |l| lanes.max(l.0.lanes()));
                        rows.extend(free.iter().copied().filter(|r| closed.contains(r)));
                    }
                }
            }
        }
    }
    (rows, lanes, steps)
}

/// Threads that share a row of so many steps, as `threads.rs` will have it: a subgroup, or fewer that divide the steps, or half as many as there are.
fn threads_of_row(steps: i64, subgroup: i64) -> i64 {
    let mut lanes = successors(Some(subgroup), |l| Some(l / 2)).take_while(|&l| l >= LEAST_OF_ROW);
    lanes.find(|l| steps % l == 0).unwrap_or_else(|| floor_power(steps / 2).clamp(LEAST_OF_ROW.min(subgroup), subgroup))
}

/// The largest divisor of `n` that is at most `limit`.
fn divisor(n: i64, limit: i64) -> i64 {
    (1..=limit.min(n)).rev().find(|d| n % d == 0).unwrap_or(1)
}

/// Along axes of what is made of the sums alone, the sums are the same: copies, if they are few. Returns the other axes.
fn copies(g: &mut Graph, s: &mut Splitter, nests: &[Id], axes: &[Id]) -> Vec<Id> {
    let order = g.toposort(nests);
    let sums: Vec<Id> = order.into_iter().filter(|&n| matches!(g[n].op, Op::Reduce | Op::Index)).collect();
    let alone = |g: &Graph, r: Id| {
        let few = g.int_value(g[r].src[0]).is_some_and(|n| n <= COPIES);
        few && !sums.iter().any(|&n| g.free_ranges(n).contains(&r))
    };
    let (copies, axes): (Vec<Id>, Vec<Id>) = axes.iter().partition(|&&r| alone(g, r));
    for r in copies {
        let bound = g[r].src[0];
        let new = s.new_range(g, bound, RangeKind::Upcast);
        s.map.insert(r, new);
    }
    axes
}

/// Are there sums of products of integers?
fn in_integers(g: &Graph, nests: &[Id]) -> bool {
    g.toposort(nests).iter().any(|&n| matches!(g[n].op, Op::Dot4 | Op::SignedDot4))
}

fn contraction(
    g: &mut Graph,
    s: &mut Splitter,
    nests: &[Id],
    axes: &[Id],
    rows: &FxHashSet<Id>,
    [lanes, steps, together]: [i64; 3],
    around: &Surroundings,
) {
    let (row_axes, tokens): (Vec<Id>, Vec<Id>) = axes.iter().partition(|&r| rows.contains(r));
    let row = row_axes.iter().copied().rev().find(|&r| host_bound(g, r) && g.int_value(g[r].src[0]).is_some());
    let many = tokens.iter().any(|&r| g.max_of(g[r].src[0]) > 1);
    // Axes whose bound is data come first inside the workgroup; other axes of the weight (heads, experts) over the launch.
    for &r in &row_axes {
        if Some(r) == row {
            continue;
        }
        match host_bound(g, r) {
            true => s.global(g, r),
            false if around.target.machine.kind == MachineKind::Gpu => s.at_most(g, r),
            false => s.keep(r),
        }
    }
    let Some(row) = row else {
        for &r in &tokens {
            if host_bound(g, r) { s.global(g, r) } else { s.keep(r) }
        }
        return;
    };
    // Rows that are interleaved become the lanes of vectors: what follows counts groups of them.
    let whole = g.max_of(g[row].src[0]);
    let lanes = if whole % lanes == 0 { lanes } else { 1 };
    let n = whole / lanes;
    if !many {
        let groups = around.target.tuning.groups.max(1) as i64;
        let tile = divisor(n, if lanes > 1 { groups } else { 4 * groups });
        if around.target.machine.kind == MachineKind::Gpu {
            // A row for each group of threads; where there are many rows so many that all workgroups run at once: what a workgroup stages is staged
            // as rarely as possible, and nobody waits for another's end.
            let others: i64 = row_axes.iter().filter(|&&r| r != row).map(|&r| g.max_of(g[r].src[0])).product();
            // Rows enough for nearly every multiprocessor, if more threads of a row make them so.
            let (threads, workers) = (around.target.threads as i64, around.target.machine.units as i64);
            let idle = |l: i64| 4 * (n * others * l / threads) < 3 * workers;
            let subgroup = around.target.machine.subgroup;
            let first = threads_of_row(steps, subgroup);
            let of_row = [1, 2, 4].map(|times| first * times).into_iter().find(|&l| !idle(l));
            let of_row = of_row.unwrap_or(subgroup).min(subgroup);
            let groups = threads / of_row;
            let share = (n * others + around.room - 1) / around.room;
            let tile = [1, 2, 4].into_iter().filter(|t| n % t == 0).find(|t| t * groups >= share);
            let tile = tile.unwrap_or_else(|| divisor(n, 4));
            let per_group = divisor(n / tile, groups.max(share / tile));
            let (bound, per) = (g.int(n / tile / per_group), g.int(per_group));
            let group = s.new_range(g, bound, RangeKind::Global);
            let within = s.new_range(g, per, RangeKind::Loop);
            s.nested(g, row, group, within, per_group, [tile, lanes]);
        } else {
            let (bound, zero) = (g.int(n / tile), g.int(0));
            let group = s.new_range(g, bound, RangeKind::Global);
            s.nested(g, row, group, zero, 1, [tile, lanes]);
        }
        return;
    }
    let last_token = tokens.iter().copied().rev().find(|&r| g.max_of(g[r].src[0]) > 1);
    if around.target.machine.kind == MachineKind::Gpu
        && (!in_integers(g, nests) || around.target.machine.fragment(Scalar::I8).is_none())
        && let Some(token) = last_token
        && host_bound(g, token)
    {
        // No matrix product: threads share the sums, a few tokens each.
        for &r in tokens.iter().filter(|&&r| r != token) {
            if host_bound(g, r) { s.global(g, r) } else { s.at_most(g, r) }
        }
        s.tiled(g, token, TOKENS, RangeKind::Global, RangeKind::Upcast);
        let per_group =
            divisor(n, around.target.threads as i64 / threads_of_row(steps, around.target.machine.subgroup));
        let (bound, per) = (g.int(n / per_group), g.int(per_group));
        let group = s.new_range(g, bound, RangeKind::Global);
        let within = s.new_range(g, per, RangeKind::Loop);
        s.nested(g, row, group, within, per_group, [1, lanes]);
        return;
    }
    if around.target.machine.kind == MachineKind::Gpu
        && n % WARP_ROWS == 0
        && let Some(token) = last_token
    {
        for &r in tokens.iter().filter(|&&r| r != token) {
            if host_bound(g, r) { s.global(g, r) } else { s.at_most(g, r) }
        }
        let others = axes.iter().filter(|&&r| r != row && r != token).map(|&r| g.max_of(g[r].src[0])).product();
        warps(g, s, row, [n, others], token, around.target);
        return;
    }
    // Panel of rows per workgroup, tiles of tokens inside, rows of the panel inside these.
    // With interleaved rows an accumulator is a vector of rows and one token, and a word of each quad of a group waits beside them.
    let tokens_most = around.target.tuning.tokens.max(1) as i64;
    let few = (tokens_most / 2).max(1);
    let most = match lanes {
        1 => few,
        _ => (around.target.registers.saturating_sub(WORDS) as i64 / 4 * 4).max(4).min(tokens_most),
    };
    let token_tile = last_token.map_or(1, |r| match g.int_value(g[r].src[0]) {
        Some(b) => divisor(b, most).max(if b > most { most.min(4) } else { 1 }),
        None if g.max_of(g[r].src[0]) < 16 * most => most.min(few),
        None => most,
    });
    let room = (around.target.registers as i64 / 2 / token_tile / together.max(1)).clamp(1, MATMUL_ROWS);
    let tile = if lanes > 1 { 1 } else { divisor(n, room) };
    let limit = (n / (4 * around.target.machine.units.max(1) as i64)).clamp(tile, (PANEL_ROWS / lanes).max(1)) / tile;
    let per_panel = divisor(n / tile, limit);
    let (panels, rows_of_panel) = (g.int(n / tile / per_panel), g.int(per_panel));
    let panel = s.new_range(g, panels, RangeKind::Global);
    for &r in tokens.iter().filter(|&&r| Some(r) != last_token) {
        s.keep(r);
    }
    if let Some(r) = last_token {
        let token_tiles = s.tiles(g, r, token_tile, RangeKind::Loop);
        let in_panel = s.new_range(g, rows_of_panel, RangeKind::Loop);
        s.within(g, r, token_tiles, token_tile, RangeKind::Upcast);
        s.nested(g, row, panel, in_panel, per_panel, [tile, lanes]);
    }
}

/// Rows and tokens as tiles of warps, laid out over a warp as its matrix product wants them (`lower/mma.rs`): lane 4g + t has rows g + 8i and tokens
/// 2t + j.
fn warps(g: &mut Graph, s: &mut Splitter, row: Id, [n, others]: [i64; 2], token: Id, target: &Target) {
    let warps = (target.threads as i64 / WARP).max(1);
    let most = g.max_of(g[token].src[0]);
    // Tokens of a warp: as many as rows share; and of the warps of a workgroup, as many side by side as there are rows, the others for more tokens.
    let up_to_power = |n: i64| (n.max(1) as u64).next_power_of_two() as i64;
    let mut tiles = up_to_power((most + 7) / 8).min(WARP_TOKENS / 8);
    let rows = (0..=warps.ilog2()).rev().map(|p| 1 << p).find(|p| n / WARP_ROWS % p == 0).unwrap_or(1);
    let mut beside = up_to_power(most / (8 * tiles)).min(warps / rows);
    // Rows of a warp, as long as every multiprocessor has something to do; fewer tokens, until it has.
    let groups = |rows: i64, tiles: i64, beside: i64| {
        others * (n / WARP_ROWS / rows) * ((most + 8 * tiles * beside - 1) / (8 * tiles * beside))
    };
    let mut high = 1;
    if n / WARP_ROWS % (2 * rows) == 0 && groups(2 * rows, tiles, beside) >= target.machine.units as i64 {
        high = 2;
    }
    while groups(rows * high, tiles, beside) < target.machine.units as i64 && tiles * beside > 1 {
        if tiles > 1 { tiles /= 2 } else { beside /= 2 }
    }
    let (panels, tile) = (g.int(n / WARP_ROWS / rows / high), g.int(8 * tiles * beside));
    let panel = s.new_range(g, panels, RangeKind::Global);
    let bound = g[token].src[0];
    let up = g.int(8 * tiles * beside - 1);
    let count = g.add(bound, up);
    let count = g.idiv(count, tile);
    let block = if host_bound(g, token) {
        s.new_range(g, count, RangeKind::Global)
    } else {
        s.new_range(g, count, RangeKind::Loop)
    };
    let mut range = |g: &mut Graph, n: i64, kind| {
        let n = g.int(n);
        s.new_range(g, n, kind)
    };
    let (warp_row, warp_token) = (range(g, rows, RangeKind::Vector), range(g, beside, RangeKind::Vector));
    let (lane_group, lane) = (range(g, 8, RangeKind::Vector), range(g, 4, RangeKind::Vector));
    let (copy_row, copy) = (range(g, high, RangeKind::Upcast), range(g, tiles, RangeKind::Upcast));
    let (i, j) = (range(g, 2, RangeKind::Upcast), range(g, 2, RangeKind::Upcast));
    let sum = |g: &mut Graph, parts: &[(Id, i64)]| {
        let mut at = g.int(0);
        for &(part, step) in parts {
            let step = g.int(step);
            let part = g.mul(part, step);
            at = g.add(at, part);
        }
        at
    };
    let of_warp = WARP_ROWS * high;
    let of_row =
        sum(g, &[(panel, rows * of_warp), (warp_row, of_warp), (copy_row, WARP_ROWS), (i, 8), (lane_group, 1)]);
    let mut of_token = sum(g, &[(block, 8 * tiles * beside), (warp_token, 8 * tiles), (copy, 8), (lane, 2), (j, 1)]);
    if g.int_value(bound).is_none_or(|b| b % (8 * tiles * beside) != 0) {
        let minus = g.int(-1);
        let last = g.add(bound, minus);
        of_token = g.min(of_token, last);
    }
    s.map.insert(row, of_row);
    s.map.insert(token, of_token);
}

/// Everything else, for workgroups of threads: a few terms for each thread, the last axes inside.
fn for_threads(g: &mut Graph, s: &mut Splitter, spread: &[Id], total: i64, work: i64, target: &Target) {
    // As many elements as keep every thread busy, and as leave no more workgroups than the machine takes in a few rounds.
    let most = TERMS * target.threads as i64 / work.max(1);
    let share = (total / target.machine.units as i64).max(target.threads as i64 / 8);
    let mut left = most.max(total / (WAVES * target.machine.units as i64)).min(share).max(1);
    for &r in spread.iter().rev() {
        let bound = g.int_value(g[r].src[0]);
        let tile = bound.map_or(left.min(g.max_of(g[r].src[0])), |n| divisor(n, left));
        match bound {
            Some(n) if n <= left => left /= n,
            _ if tile > 1 => {
                s.tiled(g, r, tile, RangeKind::Global, RangeKind::Loop);
                left = 1;
            }
            _ => {
                if host_bound(g, r) {
                    s.global(g, r)
                } else {
                    s.at_most(g, r)
                }
                left = 1;
            }
        }
    }
}

/// Terms of a nest's longest reduction for each element: elements that have it in common share them.
fn terms(g: &Graph, nest: Id) -> i64 {
    let all = |ranges: &[Id]| -> i64 {
        let most = ranges.iter().map(|&r| g.bounds(g[r].src[0]).map_or(1, |b| b.1));
        most.fold(1, i64::saturating_mul)
    };
    let elements = all(&g[nest].src[3..]);
    let sums = g.toposort(&[nest]).into_iter().filter(|&n| g[n].op == Op::Reduce);
    let terms = sums.map(|n| all(g.free_ranges(g[n].src[0])) / elements.max(1));
    terms.max().unwrap_or(1).max(1)
}

/// Everything else: enough workgroups for the machine, the last axis inside.
fn plain(g: &mut Graph, s: &mut Splitter, spread: &[Id], nests: &[Id], around: &Surroundings) {
    let sizes: Vec<i64> = spread.iter().map(|&r| g.max_of(g[r].src[0])).collect();
    let total: i64 = sizes.iter().product();
    let work = nests.iter().map(|&n| terms(g, n)).max().unwrap_or(1);
    if around.target.machine.kind == MachineKind::Gpu {
        return for_threads(g, s, spread, total, work, around.target);
    }
    if total.saturating_mul(work) < SMALL {
        return;
    }
    let enough = 8 * around.target.machine.units.max(1) as i64;
    let mut groups = 1;
    for (i, (&r, &n)) in spread.iter().zip(&sizes).enumerate() {
        if groups >= enough {
            break;
        }
        let last = i + 1 == spread.len();
        if !last {
            s.global(g, r);
            groups *= n;
        } else if let Some(b) = g.int_value(g[r].src[0]) {
            // Chunks that vectors divide, if there are any.
            let chunk = divisor(b, 64).max(1);
            if chunk >= 4 || work > 64 {
                s.tiled(g, r, chunk, RangeKind::Global, RangeKind::Loop);
            }
        } else {
            s.tiled(g, r, 16, RangeKind::Global, RangeKind::Loop);
        }
    }
}
