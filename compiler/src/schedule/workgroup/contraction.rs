//! Contractions with a packed weight. They have *row* axes, on which the weight depends, and *token* axes, on which it does not: a tile of rows ×
//! tokens is kept in registers, the weight decoded once for all its tokens.

use super::splitter::{Around, Splitter, host_bound};
use crate::decompose::int8::Derived;
use crate::fragment::WARP;
use crate::nest::{divisor, floor_power, outermost_reductions, power_divisor, strided};
use crate::price::occupancy::WORDS;
use gristmill_uop::machine::MMA_I8;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, Scalar};
use rustc_hash::FxHashSet;
use std::iter::successors;

/// Rows that a workgroup keeps in registers beside several tokens: as many as leave half of the registers free, at most so many.
const MATMUL_ROWS: i64 = 4;
/// Elements made of one sum that a thread computes side by side, at most.
pub const COPIES: i64 = 4;
/// Rows of a panel that is read again for every tile of tokens: it stays in the L2 cache.
const PANEL_ROWS: i64 = 128;
/// Rows of a warp's matrix product, and tokens that a warp multiplies them with.
const WARP_ROWS: i64 = MMA_I8.rows;
const WARP_TOKENS: i64 = 32;
/// Tokens that a thread multiplies a row with, where no matrix product does.
const TOKENS: i64 = 4;
/// Threads that share a row, at least: loads of neighbours are whole sectors of 32 bytes then.
const LEAST_OF_ROW: i64 = 8;

/// What a contraction reads of its packed operand.
struct Rows {
    /// Closed ranges on which it depends.
    axes: FxHashSet<Id>,
    /// How many of its rows are interleaved.
    lanes: i64,
    /// How many steps a row takes.
    steps: i64,
}

/// The axes of a contraction, by what they are.
struct Contraction<'a> {
    around: &'a Around<'a>,
    /// The axis of rows that is cut.
    row: Id,
    /// Groups of as many rows as are interleaved.
    rows: i64,
    /// Rows that are interleaved: the lanes of vectors.
    lanes: i64,
    /// Steps of a row.
    steps: i64,
    /// Elements of the other axes of the weight: heads, experts.
    others: i64,
    /// Axes on which the weight does not depend.
    tokens: Vec<Id>,
    /// The last of these with more than one element.
    token: Option<Id>,
    /// Sums that share a loop, and with it the registers.
    sums: i64,
}

/// Cuts the axes of nests that contract a packed weight. Are they such nests?
pub fn contraction(g: &mut Graph, s: &mut Splitter, nests: &[Id], axes: &[Id], around: &Around) -> bool {
    let read = rows_read(g, nests, around.derived);
    if read.axes.is_empty() {
        return false;
    }
    // Reductions of one nest share a loop, and with it the registers; one inside another has them only while the other waits.
    let sums = nests.iter().map(|&n| outermost_reductions(g, n).len()).max().unwrap_or(1) as i64;
    let axes = copies(g, s, nests, axes);
    let (row_axes, tokens): (Vec<Id>, Vec<Id>) = axes.iter().partition(|&r| read.axes.contains(r));
    let row = row_axes.iter().copied().rev().find(|&r| host_bound(g, r) && g.int_value(g[r].src[0]).is_some());
    other_row_axes(g, s, &row_axes, row, around.target);
    let Some(row) = row else {
        for &r in &tokens {
            if host_bound(g, r) { s.global(g, r) } else { s.keep(r) }
        }
        return true;
    };
    // Rows that are interleaved become the lanes of vectors: what follows counts groups of them.
    let whole = g.max_of(g[row].src[0]);
    let lanes = if whole % read.lanes == 0 { read.lanes } else { 1 };
    let others = row_axes.iter().filter(|&&r| r != row).map(|&r| g.max_of(g[r].src[0])).product();
    let token = tokens.iter().copied().rev().find(|&r| g.max_of(g[r].src[0]) > 1);
    let c = Contraction { around, row, rows: whole / lanes, lanes, steps: read.steps, others, tokens, token, sums };
    let gpu = around.target.machine.kind == MachineKind::Gpu;
    let products = in_integers(g, nests) && around.target.machine.fragment(Scalar::I8).is_some();
    match token {
        None if gpu => c.one_token_of_threads(g, s),
        None => c.one_token(g, s),
        // No matrix product: threads share the sums, a few tokens each.
        Some(token) if gpu && !products && host_bound(g, token) => c.few_tokens_of_threads(g, s, token),
        Some(token) if gpu && c.rows % WARP_ROWS == 0 => c.matrix_products(g, s, token),
        Some(token) => c.panel(g, s, token),
    }
    true
}

/// Axes whose bound is data come first inside the workgroup; other axes of the weight (heads, experts) over the launch.
fn other_row_axes(g: &mut Graph, s: &mut Splitter, axes: &[Id], row: Option<Id>, target: &Target) {
    for &r in axes.iter().filter(|&&r| Some(r) != row) {
        match host_bound(g, r) {
            true => s.global(g, r),
            false if target.machine.kind == MachineKind::Gpu => s.at_most(g, r),
            false => s.keep(r),
        }
    }
}

/// What the nests read of packed operands along their rows; no axes if there is no such contraction.
fn rows_read(g: &Graph, nests: &[Id], derived: &Derived) -> Rows {
    let mut rows = Rows { axes: FxHashSet::default(), lanes: 1, steps: 1 };
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
                        rows.steps = walked.map(|&r| g.max_of(g[r].src[0])).max().unwrap_or(1).max(rows.steps);
                        rows.lanes = derived.layouts.get(&slot).map_or(rows.lanes, |l| rows.lanes.max(l.0.lanes()));
                        rows.axes.extend(free.iter().copied().filter(|r| closed.contains(r)));
                    }
                }
            }
        }
    }
    rows
}

/// Threads that share a row of so many steps, as `map/simt.rs` will have it: a subgroup, or fewer that divide the steps, or half as many as there are.
fn threads_of_row(steps: i64, subgroup: i64) -> i64 {
    let mut lanes = successors(Some(subgroup), |l| Some(l / 2)).take_while(|&l| l >= LEAST_OF_ROW);
    lanes.find(|l| steps % l == 0).unwrap_or_else(|| floor_power(steps / 2).clamp(LEAST_OF_ROW.min(subgroup), subgroup))
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

impl Contraction<'_> {
    fn target(&self) -> &Target {
        self.around.target
    }
    /// Token axes but the last one, over the launch.
    fn other_tokens(&self, g: &mut Graph, s: &mut Splitter) {
        for &r in self.tokens.iter().filter(|&&r| Some(r) != self.token) {
            if host_bound(g, r) { s.global(g, r) } else { s.at_most(g, r) }
        }
    }
    /// One token on a CPU: a few rows for each workgroup.
    fn one_token(&self, g: &mut Graph, s: &mut Splitter) {
        let groups = self.target().tuning.groups.max(1) as i64;
        let tile = divisor(self.rows, if self.lanes > 1 { groups } else { 4 * groups });
        let (bound, zero) = (g.int(self.rows / tile), g.int(0));
        let group = s.new_range(g, bound, RangeKind::Global);
        s.nested(g, self.row, group, zero, 1, [tile, self.lanes]);
    }
    /// One token on a GPU: a row for each group of threads; where there are many rows so many that all workgroups run at once: what a workgroup
    /// stages is staged as rarely as possible, and nobody waits for another's end.
    fn one_token_of_threads(&self, g: &mut Graph, s: &mut Splitter) {
        let n = self.rows;
        // Rows enough for nearly every multiprocessor, if more threads of a row make them so.
        let (threads, workers) = (self.target().threads as i64, self.target().machine.units as i64);
        let idle = |l: i64| 4 * (n * self.others * l / threads) < 3 * workers;
        let subgroup = self.target().machine.subgroup;
        let first = threads_of_row(self.steps, subgroup);
        let of_row = [1, 2, 4].map(|times| first * times).into_iter().find(|&l| !idle(l));
        let of_row = of_row.unwrap_or(subgroup).min(subgroup);
        let groups = threads / of_row;
        let share = (n * self.others + self.around.room - 1) / self.around.room;
        let tile = [1, 2, 4].into_iter().filter(|t| n % t == 0).find(|t| t * groups >= share);
        let tile = tile.unwrap_or_else(|| divisor(n, 4));
        let per_group = divisor(n / tile, groups.max(share / tile));
        self.rows_of_groups(g, s, per_group, tile);
    }
    /// Some tokens on a GPU, without matrix products: threads share the sums, a few tokens each.
    fn few_tokens_of_threads(&self, g: &mut Graph, s: &mut Splitter, token: Id) {
        self.other_tokens(g, s);
        let tokens = if self.target().tuning.tokens > 1 { TOKENS } else { 1 };
        s.tiled(g, token, tokens, RangeKind::Global, RangeKind::Upcast);
        let of_row = threads_of_row(self.steps, self.target().machine.subgroup);
        let per_group = divisor(self.rows, self.target().threads as i64 / of_row);
        self.rows_of_groups(g, s, per_group, 1);
    }
    /// Rows as (workgroups, `per_group` steps or groups of threads, `tile` in registers).
    fn rows_of_groups(&self, g: &mut Graph, s: &mut Splitter, per_group: i64, tile: i64) {
        let (bound, per) = (g.int(self.rows / tile / per_group), g.int(per_group));
        let group = s.new_range(g, bound, RangeKind::Global);
        let within = s.new_range(g, per, RangeKind::Loop);
        s.nested(g, self.row, group, within, per_group, [tile, self.lanes]);
    }
    /// A panel of rows per workgroup, tiles of tokens inside, rows of the panel inside these.
    fn panel(&self, g: &mut Graph, s: &mut Splitter, token: Id) {
        let (n, lanes, target) = (self.rows, self.lanes, self.target());
        let token_tile = self.token_tile(g, token);
        let room = (target.registers as i64 / 2 / token_tile / self.sums.max(1)).clamp(1, MATMUL_ROWS);
        let tile = if lanes > 1 { 1 } else { divisor(n, room) };
        let limit = (n / (4 * target.machine.units.max(1) as i64)).clamp(tile, (PANEL_ROWS / lanes).max(1)) / tile;
        let per_panel = divisor(n / tile, limit);
        let (panels, rows_of_panel) = (g.int(n / tile / per_panel), g.int(per_panel));
        let panel = s.new_range(g, panels, RangeKind::Global);
        for &r in self.tokens.iter().filter(|&&r| r != token) {
            s.keep(r);
        }
        let token_tiles = s.tiles(g, token, token_tile, RangeKind::Loop);
        let in_panel = s.new_range(g, rows_of_panel, RangeKind::Loop);
        s.within(g, token, token_tiles, token_tile, RangeKind::Upcast);
        s.nested(g, self.row, panel, in_panel, per_panel, [tile, lanes]);
    }
    /// Tokens beside one another in registers. With interleaved rows an accumulator is a vector of rows and one token, and a word of each quad of a
    /// group waits beside them.
    fn token_tile(&self, g: &Graph, token: Id) -> i64 {
        let target = self.target();
        let tokens_most = target.tuning.tokens.max(1) as i64;
        let few = (tokens_most / 2).max(1);
        let most = match self.lanes {
            1 => few,
            _ => (target.registers.saturating_sub(WORDS) as i64 / 4 * 4).max(4).min(tokens_most),
        };
        match g.int_value(g[token].src[0]) {
            Some(b) => divisor(b, most).max(if b > most { most.min(4) } else { 1 }),
            None if g.max_of(g[token].src[0]) < 16 * most => most.min(few),
            None => most,
        }
    }
    /// Rows and tokens as tiles of warps, laid out over a warp as its matrix product wants them (`lower/mma.rs`): lane 4g + t has rows g + 8i and
    /// tokens 2t + j.
    fn matrix_products(&self, g: &mut Graph, s: &mut Splitter, token: Id) {
        self.other_tokens(g, s);
        let of_tokens: i64 = self.tokens.iter().filter(|&&r| r != token).map(|&r| g.max_of(g[r].src[0])).product();
        let bound = g[token].src[0];
        let WarpTiles { rows, high, tiles, beside } = self.warp_tiles(self.others * of_tokens, g.max_of(bound));
        let (panels, tile) = (g.int(self.rows / WARP_ROWS / rows / high), g.int(8 * tiles * beside));
        let panel = s.new_range(g, panels, RangeKind::Global);
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
        let of_warp = WARP_ROWS * high;
        let row_parts = [(panel, rows * of_warp), (warp_row, of_warp), (copy_row, WARP_ROWS), (i, 8), (lane_group, 1)];
        let of_row = strided(g, &row_parts);
        let token_parts = [(block, 8 * tiles * beside), (warp_token, 8 * tiles), (copy, 8), (lane, 2), (j, 1)];
        let mut of_token = strided(g, &token_parts);
        if g.int_value(bound).is_none_or(|b| b % (8 * tiles * beside) != 0) {
            let minus = g.int(-1);
            let last = g.add(bound, minus);
            of_token = g.min(of_token, last);
        }
        s.map.insert(self.row, of_row);
        s.map.insert(token, of_token);
    }
    /// Tiles of the warps of a workgroup, where the axes beside rows and tokens have `others` elements, and there are at most so many tokens.
    fn warp_tiles(&self, others: i64, most: i64) -> WarpTiles {
        let (n, target) = (self.rows, self.target());
        let warps = (target.threads as i64 / WARP).max(1);
        // Tokens of a warp: as many as rows share; and of the warps of a workgroup, as many side by side as there are rows, the others for more tokens.
        let up_to_power = |n: i64| (n.max(1) as u64).next_power_of_two() as i64;
        let mut tiles = up_to_power((most + 7) / 8).min(WARP_TOKENS / 8);
        let rows = power_divisor(n / WARP_ROWS, warps);
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
        if target.tuning.tokens == 1 {
            (high, tiles) = (1, 1);
        }
        WarpTiles { rows, high, tiles, beside }
    }
}

/// How the warps of a workgroup share rows and tokens.
struct WarpTiles {
    /// Warps side by side along the rows.
    rows: i64,
    /// Tiles of rows of each.
    high: i64,
    /// Tiles of tokens of each.
    tiles: i64,
    /// Warps side by side along the tokens.
    beside: i64,
}
