//! Contractions (`propose/find_contraction.rs`) with a packed factor. They have *row* axes, on which the weight depends, and *token* axes, on which it does not: a tile of rows ×
//! tokens is kept in registers, the weight decoded once for all its tokens.

use super::around::ProposalContext;
use super::tiles::{self, tiles};
use crate::cost::occupancy::room;
use crate::decompose::f16_mma::TILE_OF_GROUPS;
use crate::ir::mma::fragment::MmaSum;
use crate::ir::nest::{distance, divisor, floor_power, host_bound, outermost_reductions, power_divisor};
use crate::lower::{REGISTERS_OF_INTEGER_SUMS, integer_sums_at_once};
use crate::plan::{AxisPart, Proposal, Workgroup, proposals};
use crate::propose::find_contraction::Factor;
use gristmill_uop::RangeKind::{Global, Loop, Upcast, Vector};
use gristmill_uop::fragment::{Fragment, MMA_I8, UNIT, WGMMA_16};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op, RangeKind, Scalar};
use std::iter::successors;

/// Rows that a workgroup keeps in registers beside several tokens: as many as leave half of the registers free, at most so many.
const MATMUL_ROWS: i64 = 4;
/// Tokens whose products with two vectors of rows a core adds up side by side. Two cores of Zen 5, Youtu Q4_0, tokens a second: prompts of 128 by eight tokens and one vector 293, so 318, of 512 by
/// 16 and one 262, so 294; of eight sequences, for which rows are read from memory, 206 by eight and 177 so (experiments, 123).
const TOKENS_OF_TWO_VECTORS: i64 = 4;
/// Tokens up to which a core takes one vector of rows after the other where there are no others, so that rows come from memory as one stream. DeepSeek-V2-Lite Q4_0, 8 sequences in tiles of two tokens, by one vector, two and
/// four, ms a step: a Xeon 246, 258 and 263; 16 sequences on two cores of Zen 5, tokens a second, by one and two: 87 and 84; in tiles of four tokens 32 make 102 by one and 104 by two (experiments, 125).
const TOKENS_OF_ONE_VECTOR: i64 = 2;
/// Elements made of one sum that a thread computes side by side, at most.
pub const COPIES: i64 = 4;
/// Rows of a panel that is read again for every tile of tokens: it stays in the L2 cache.
const PANEL_ROWS: i64 = 128;
/// Panels for each core, at least, where rows are enough: a core that is disturbed leaves some to others.
const PANELS_OF_A_CORE: i64 = 4;
/// The same where a workgroup reads its panel of one matrix after the other, each once: the longer a panel, the more rows follow one another. 16 sequences of DeepSeek-V2-Lite Q4_0 on two cores of Zen 5, tokens a
/// second: 66 to 70 with panels of 128 rows, 72 to 76 with two for each core, and 87 with one, in an hour when memory was half as fast again (experiments, 125).
const PANELS_READ_IN_TURN: i64 = 2;
/// Rows of a warp's matrix product, and tokens that a warp multiplies them with.
const WARP_ROWS: i64 = MMA_I8.rows;
const WARP_TOKENS: i64 = 32;
/// Steps that a warp has of a sum that several share, at least: fewer cost less than adding up what each has.
const LEAST_STEPS: i64 = 2;
/// Rounds of workgroups of products of a few tokens from which on two warps are enough for a row's terms, where fewer have four: the last round is a large part of few, and shorter workgroups make it shorter. GLM's experts of
/// eight sequences on an H100, by two and by four warps: gate and up, 2.9 rounds, 39.1 us and 35.4; down, 3.9 rounds, 23.4 and 26.4. Nothing between was measured.
const ROUNDS_OF_TWO_WARPS: i64 = 3;
/// Warps that share a row's terms for that, at most: by eight gate and up took 37.0 us.
const MOST_SHARING: i64 = 4;
/// Tiles of sums of a warp that unpacks halves: with 32 registers for them an H200's unit has room for two workgroups.
const UNPACKED_TILES: i64 = 8;
/// Warps that share the columns of a product.
const GROUP: i64 = WGMMA_16.rows / WARP_ROWS;
/// Tiles of sums of such a warp beside one another, of which there are two above one another: a workgroup has a unit to itself. Prompts of 2,048 tokens on an H200, by warps that
/// have columns of their own and so: Llama 3.1 8B's gate and up 1.81 and 1.30 ms, its down 922 and 614 us; GLM's output of attention 165 and 116.
const GROUP_TILES: i64 = TILE_OF_GROUPS[1] / WGMMA_TILE;
/// Fewest of them beside one another: of 16 tokens.
const LEAST_GROUP_TILES: i64 = WGMMA_16.columns / WGMMA_TILE;
/// Columns of such a tile.
const WGMMA_TILE: i64 = MMA_I8.columns;
/// Tokens that a thread multiplies a row with, where no matrix product does, and there are few.
const TOKENS: i64 = 4;
/// Tokens and rows whose products a thread adds up, larger tiles first: these load less for each product. A router of 64 rows with 2,048 tokens on an H200: 66 us by 4 tokens and a row,
/// which load 1.3 GB from the first-level caches, 31 by 4 and 4, 34 by 8 and 4, which leave no registers for a second workgroup.
const TILES_OF_THREADS: [[i64; 2]; 3] = [[4, 4], [4, 2], [TOKENS, 1]];
/// Steps of a row that each thread has at least where several subgroups share it, whose sums meet in shared memory: routers, whose few rows are long. Tokens a second on an H100 by one subgroup, by several with
/// 8 steps, with 16: gpt-oss-20b 570, 587, 587; GLM-4.7-Flash 587, 595, 590; DeepSeek-V2-Lite 1,003, 1,004, 1,017; Qwen3-30B-A3B 555, 559, 563; Gemma 4 26B-A4B 529, 536, 528; Qwen3.5 584 by all.
const STEPS_OF_SUBGROUPS: i64 = 8;
/// Threads that share a row, at least: loads of neighbours are whole sectors of 32 bytes then.
const LEAST_OF_ROW: i64 = 8;

/// The axes of a contraction, by what they are; each by its number.
struct Contraction<'a> {
    g: &'a Graph,
    axes: &'a [Id],
    target: &'a Target,
    /// Workgroups of one token, at most.
    room: i64,
    /// Parts that come before those that differ between proposals: copies, and axes of the weight beside the rows.
    before: Vec<AxisPart>,
    /// The axis of rows that is cut.
    row: usize,
    /// Groups of as many rows as are interleaved.
    rows: i64,
    /// Rows that are interleaved: the lanes of vectors.
    lanes: i64,
    /// Steps of a row.
    steps: i64,
    /// Elements of the other axes of the weight: heads, experts.
    others: i64,
    /// Axes on which the weight does not depend.
    tokens: Vec<usize>,
    /// The last of these with more than one element.
    token: Option<usize>,
    /// Sums that share a loop, and with it the registers.
    sums: i64,
}

/// What a workgroup of nests that contract a packed weight, read as `rows` are, could compute.
pub fn contraction(
    g: &Graph,
    nests: &[Id],
    axes: &[Id],
    rows: &Factor,
    around: &ProposalContext,
) -> Vec<Proposal<Workgroup>> {
    match Contraction::new(g, nests, axes, rows, around) {
        Ok(of) => of.class(nests, around),
        Err(whole) => proposals(whole, []),
    }
}

/// Of one token on a GPU workgroups half as large as those proposed first, and rows with twice the threads, where those are too few for each unit to have two. One of two has something to do while the other waits, but each computes
/// for itself what is fused into its kernel: which is better goes by what is fused.
pub fn smaller(g: &Graph, nests: &[Id], axes: &[Id], rows: &Factor, around: &ProposalContext) -> Option<Workgroup> {
    let of = Contraction::new(g, nests, axes, rows, around).ok().filter(|of| of.token.is_none())?;
    let (target, of_row) = (around.target, of.threads_of_one_row());
    let few = of.groups_of_one_token(of_row) < 2 * target.machine.units as i64;
    let has_steps = 2 * of_row <= of.steps.min(target.machine.subgroup);
    let groups = target.threads as i64 / of_row;
    (target.grouping && few && has_steps).then(|| of.half_as_large(of.tile_of_one_token(groups), groups))
}

/// Threads that share a row of so many steps: a subgroup, or fewer that divide the steps, or half as many as there are.
fn threads_of_row(steps: i64, subgroup: i64) -> i64 {
    let mut lanes = successors(Some(subgroup), |l| Some(l / 2)).take_while(|&l| l >= LEAST_OF_ROW);
    lanes.find(|l| steps % l == 0).unwrap_or_else(|| floor_power(steps / 2).clamp(LEAST_OF_ROW.min(subgroup), subgroup))
}

/// Axes of what is made of the sums alone, along which the sums are the same: they become copies, if they are few. And the other axes.
fn copies(g: &Graph, nests: &[Id], axes: &[Id]) -> (Vec<usize>, Vec<usize>) {
    let order = g.toposort(nests);
    let sums: Vec<Id> = order.into_iter().filter(|&n| matches!(g[n].op, Op::Reduce | Op::Index)).collect();
    let alone = |r: Id| {
        let few = g.int_value(g[r].src[0]).is_some_and(|n| n <= COPIES);
        few && !sums.iter().any(|&n| g.free_ranges(n).contains(&r))
    };
    (0..axes.len()).partition(|&i| alone(axes[i]))
}

/// Are there sums of products of integers?
fn in_integers(g: &Graph, nests: &[Id]) -> bool {
    g.toposort(nests).iter().any(|&n| matches!(g[n].op, Op::Dot4 | Op::SignedDot4))
}

impl<'a> Contraction<'a> {
    /// The axes by what they are; or, where no rows are cut, all that a workgroup can compute.
    fn new(
        g: &'a Graph,
        nests: &[Id],
        axes: &'a [Id],
        rows: &Factor,
        around: &ProposalContext<'a>,
    ) -> Result<Contraction<'a>, Workgroup> {
        let gpu = around.target.machine.kind == MachineKind::Gpu;
        let (copies, left) = copies(g, nests, axes);
        let (row_axes, tokens): (Vec<usize>, Vec<usize>) = left.iter().partition(|&&i| rows.loops.contains(&axes[i]));
        let row = row_axes
            .iter()
            .copied()
            .rev()
            .find(|&i| host_bound(g, axes[i]) && g.int_value(g[axes[i]].src[0]).is_some());
        // Other axes of the weight (heads, experts) over the launch; on a CPU those whose bound is data come first inside the workgroup.
        let other_rows = row_axes.iter().filter(|&&i| Some(i) != row);
        let over = |i: usize| if gpu || host_bound(g, axes[i]) { Global } else { Loop };
        let before = copies.into_iter().map(|i| AxisPart::rest(i, Upcast, 1));
        let before: Vec<AxisPart> = before.chain(other_rows.clone().map(|&i| AxisPart::rest(i, over(i), 1))).collect();
        let Some(row) = row else {
            let kind = |i: usize| if host_bound(g, axes[i]) { Global } else { Loop };
            let tokens = tokens.iter().map(|&i| AxisPart::rest(i, kind(i), 1));
            return Err(Workgroup { parts: before.into_iter().chain(tokens).collect() });
        };
        let size = |i: usize| g.max_of(g[axes[i]].src[0]);
        let others = other_rows.map(|&i| size(i)).product();
        // Reductions of one nest share a loop, and with it the registers; one inside another has them only while the other waits.
        let sums = nests.iter().map(|&n| outermost_reductions(g, n).len()).max().unwrap_or(1) as i64;
        // Rows that are interleaved become the lanes of vectors: what follows counts groups of them.
        let whole = size(row);
        let lanes = if whole % rows.lanes == 0 { rows.lanes } else { 1 };
        let token = tokens.iter().copied().rev().find(|&i| size(i) > 1);
        let (target, room, steps) = (around.target, around.room, rows.steps);
        let rows = whole / lanes;
        Ok(Contraction { g, axes, target, room, before, row, rows, lanes, steps, others, tokens, token, sums })
    }
    /// Do products of halves read columns whose order is that of several warps, in which a term's neighbour is a unit behind it?
    fn reads_units(&self, nests: &[Id]) -> bool {
        let g = self.g;
        g.toposort(nests).into_iter().any(|n| {
            let Some(sum) = MmaSum::unpacked(g, n) else { return false };
            let address = g[sum.columns].src[1];
            g[n].src[1..].iter().any(|&term| distance(g, address, &[(term, 1)]) == UNIT)
        })
    }
    /// What its class of contractions could be, by the number of tokens and what the machine multiplies.
    fn class(self, nests: &[Id], around: &ProposalContext) -> Vec<Proposal<Workgroup>> {
        let machine = &self.target.machine;
        let gpu = machine.kind == MachineKind::Gpu;
        let of_bytes = in_integers(self.g, nests) && machine.fragment(Scalar::I8).is_some();
        // A warp's rows and tokens are counted over its threads, so a workgroup without a whole warp has no such tile.
        let of_warps = self.target.threads as i64 % MMA_I8.sums.lanes() == 0;
        let products = of_warps && (of_bytes || of_halves(self.g, nests));
        match (self.token, machine.tile_fragment()) {
            (Some(token), Some(tile)) if around.derived.tiled.contains_key(&around.node) => {
                self.products_of_tiles(token, tile)
            }
            (None, _) if gpu => self.one_token_of_threads(),
            (None, _) => self.one_token(),
            // No matrix product: threads share the sums, a few tokens each.
            (Some(token), _) if gpu && !products && host_bound(self.g, self.axes[token]) => {
                self.few_tokens_of_threads(token)
            }
            (Some(token), _) if gpu && of_warps && self.rows % WARP_ROWS == 0 => {
                let group = self.reads_units(nests);
                self.matrix_products(token, nests, group)
            }
            (Some(token), _) => self.panel(token, nests),
        }
    }
    /// Tokens by tiles of a core's product.
    fn products_of_tiles(self, token: usize, tile: &Fragment) -> Vec<Proposal<Workgroup>> {
        let tokens = self.g.int_value(self.bound(token));
        let others = self.tokens.into_iter().filter(|&i| i != token).collect();
        let (before, row, rows) = (self.before, self.row, self.rows * self.lanes);
        tiles(&tiles::Axes { before, row, rows, token, tokens, others }, tile, self.target)
    }
    fn bound(&self, axis: usize) -> Id {
        self.g[self.axes[axis]].src[0]
    }
    fn workgroup(&self, parts: impl IntoIterator<Item = AxisPart>) -> Workgroup {
        Workgroup { parts: self.before.iter().copied().chain(parts).collect() }
    }
    /// Token axes but the last one.
    fn other_tokens(&self, kind: RangeKind) -> impl Iterator<Item = AxisPart> + '_ {
        self.tokens.iter().filter(|&&i| Some(i) != self.token).map(move |&i| AxisPart::rest(i, kind, 1))
    }
    /// One token on a CPU: a few rows for each workgroup.
    fn one_token(&self) -> Vec<Proposal<Workgroup>> {
        let groups = self.target.tuning.groups.max(1) as i64;
        let most = if self.lanes > 1 { groups } else { 4 * groups };
        let of = |most: i64| self.workgroup(self.rows_of_groups(1, divisor(self.rows, most)));
        proposals(of(most), [("fewer rows", of((most / 2).max(1))), ("more rows", of(2 * most))])
    }
    /// One token on a GPU: a row for each group of threads; where there are many rows so many that all workgroups run at once: what a workgroup
    /// stages is staged as rarely as possible, and nobody waits for another's end.
    fn one_token_of_threads(&self) -> Vec<Proposal<Workgroup>> {
        let (n, groups) = (self.rows, self.target.threads as i64 / self.threads_of_one_row());
        let tile = self.tile_of_one_token(groups);
        let of = |tile: i64, groups: i64| self.rows_of_one_token(tile, groups);
        let (fewer, more) = (of(divisor(n, (tile / 2).max(1)), groups), of(divisor(n, 2 * tile), groups));
        let others =
            [("fewer rows", fewer), ("more rows", more), ("smaller workgroups", self.half_as_large(tile, groups))];
        proposals(of(tile, groups), others.into_iter().chain([("larger workgroups", of(tile, 2 * groups))]))
    }
    /// Threads of a row: so many that there are rows for nearly every multiprocessor, if more threads of a row make them so; several subgroups only where these have many steps each.
    fn threads_of_one_row(&self) -> i64 {
        let (threads, subgroup) = (self.target.threads as i64, self.target.machine.subgroup);
        let first = threads_of_row(self.steps, subgroup);
        let idle = |l: i64| 4 * self.groups_of_one_token(l) < 3 * self.target.machine.units as i64;
        let of_row = [1, 2, 4].map(|times| first * times).into_iter().find(|&l| !self.target.grouping || !idle(l));
        let mut of_row = of_row.unwrap_or(i64::MAX).min(subgroup);
        let can_be_more = |l: i64| l <= threads && self.steps % l == 0 && self.steps / l >= STEPS_OF_SUBGROUPS;
        while self.target.grouping && idle(of_row) && can_be_more(2 * of_row) {
            of_row *= 2;
        }
        of_row
    }
    /// Workgroups that have a row for each group of so many threads.
    fn groups_of_one_token(&self, of_row: i64) -> i64 {
        self.rows * self.others * of_row / self.target.threads as i64
    }
    /// Rows of a workgroup, if all run at once.
    fn share(&self) -> i64 {
        (self.rows * self.others + self.room - 1) / self.room
    }
    /// Rows beside one another in a thread, where so many groups of threads have rows of their own.
    fn tile_of_one_token(&self, groups: i64) -> i64 {
        let tile = [1, 2, 4].into_iter().filter(|t| self.rows % t == 0).find(|t| t * groups >= self.share());
        tile.unwrap_or_else(|| divisor(self.rows, 4))
    }
    fn rows_of_one_token(&self, tile: i64, groups: i64) -> Workgroup {
        // As many for each group of threads, if that can be: of 20 rows side by side eight threads each are five warps of eight, and the others repeat the last row (gpt-oss's
        // experts, 2,880 rows, four of them beside one another in a thread, by 20 and by 16, H100: 32 us and 19).
        let (rows, most) = (self.rows / tile, groups.max(self.share() / tile));
        let whole = if rows % groups == 0 { groups } else { 1 };
        self.workgroup(self.rows_of_groups(whole * divisor(rows / whole, most / whole), tile))
    }
    /// For half as many groups of threads, each of which has twice the threads then.
    fn half_as_large(&self, tile: i64, groups: i64) -> Workgroup {
        self.workgroup(self.rows_of_groups(divisor(self.rows / tile, (groups / 2).max(1)), tile))
    }
    /// Some tokens on a GPU, without matrix products: threads share the sums, a few tokens each, and of many tokens a few rows too.
    fn few_tokens_of_threads(&self, token: usize) -> Vec<Proposal<Workgroup>> {
        let most = self.g.max_of(self.bound(token));
        let room = self.target.machine.units as i64 * self.target.resident();
        let groups = |&[tokens, rows]: &[i64; 2]| {
            let of_group = rows * divisor(self.rows / rows, self.groups_of_threads());
            self.others * (self.rows / of_group) * ((most + tokens - 1) / tokens)
        };
        let fits = |of: &[i64; 2]| self.rows % of[1] == 0 && groups(of) >= room;
        let [tokens, rows] = match self.target.tuning.tokens > 1 {
            true => TILES_OF_THREADS.into_iter().find(fits).unwrap_or([TOKENS, 1]),
            false => [1, 1],
        };
        let of = |tokens: i64, rows: i64| self.tokens_of_threads(token, tokens, rows);
        let (fewer, one_row) = (of((tokens / 2).max(1), rows), of(tokens, 1));
        proposals(
            of(tokens, rows),
            [("fewer tokens", fewer), ("more tokens", of(2 * tokens, rows)), ("one row", one_row)],
        )
    }
    /// Groups of threads of a workgroup, each of which shares sums.
    fn groups_of_threads(&self) -> i64 {
        self.target.threads as i64 / threads_of_row(self.steps, self.target.machine.subgroup)
    }
    fn tokens_of_threads(&self, token: usize, tokens: i64, rows: i64) -> Workgroup {
        let tiles = [AxisPart::rest(token, Global, tokens), AxisPart::new(token, Upcast, tokens, 1)];
        let per_group = divisor(self.rows / rows, self.groups_of_threads());
        self.workgroup(self.other_tokens(Global).chain(tiles).chain(self.rows_of_groups(per_group, rows)))
    }
    /// Rows as (workgroups, `per_group` steps or groups of threads, `tile` in registers).
    fn rows_of_groups(&self, per_group: i64, tile: i64) -> [AxisPart; 4] {
        let (row, lanes) = (self.row, self.lanes);
        [
            AxisPart::rest(row, Global, per_group * tile * lanes),
            AxisPart::new(row, Loop, per_group, tile * lanes),
            AxisPart::new(row, Upcast, tile, lanes),
            AxisPart::new(row, Loop, lanes, 1),
        ]
    }
    /// A panel of rows per workgroup, tiles of tokens inside, rows of the panel inside these.
    fn panel(&self, token: usize, nests: &[Id]) -> Vec<Proposal<Workgroup>> {
        let (n, lanes, target) = (self.rows, self.lanes, self.target);
        let of_bytes = lanes > 1 && in_integers(self.g, nests);
        let (tile, accumulators) = match (of_bytes, lanes) {
            (true, _) => (self.tokens_of_bytes(token), integer_sums_at_once(target) as i64),
            (false, 1) => (self.token_tile(token), target.registers as i64 / 2 / self.sums.max(1)),
            (false, _) => (self.token_tile(token), 1),
        };
        let few = of_bytes && tile <= TOKENS_OF_ONE_VECTOR && self.g.max_of(self.bound(token)) <= tile;
        let rows = if few { 1 } else { MATMUL_ROWS };
        let in_turn = few && self.before.iter().any(|part| part.kind == Loop);
        let of = |token_tile: i64, most_rows: i64, of_panel: i64| {
            let tile = divisor(n, (accumulators / token_tile).clamp(1, most_rows));
            let (most, panels) =
                if in_turn { (n, PANELS_READ_IN_TURN) } else { ((of_panel / lanes).max(1), PANELS_OF_A_CORE) };
            let limit = (n / (panels * target.machine.units.max(1) as i64)).clamp(tile.min(most), most) / tile;
            let per_panel = divisor(n / tile, limit);
            let [panel, in_panel, of_tile, of_lane] = self.rows_of_groups(per_panel, tile);
            let tiles =
                [AxisPart::rest(token, Loop, token_tile), in_panel, AxisPart::new(token, Upcast, token_tile, 1)];
            let parts = [panel].into_iter().chain(self.other_tokens(Loop)).chain(tiles);
            self.workgroup(parts.chain([of_tile, of_lane]))
        };
        let others = [
            ("fewer tokens", of((tile / 2).max(1), rows, PANEL_ROWS)),
            ("more tokens", of(2 * tile, rows, PANEL_ROWS)),
            ("one row", of(tile, 1, PANEL_ROWS)),
            ("more rows", of(tile, MATMUL_ROWS, PANEL_ROWS)),
            ("smaller panels", of(tile, rows, PANEL_ROWS / 4)),
            ("larger panels", of(tile, rows, 4 * PANEL_ROWS)),
        ];
        proposals(of(tile, rows, PANEL_ROWS), others)
    }
    /// Tokens beside one another in registers where interleaved rows are multiplied with them as bytes: all, if a vector of rows has no more sums with them than are added up at once, so that weights come
    /// from memory while all are multiplied; of more a few, which leave sums to a second vector of rows.
    fn tokens_of_bytes(&self, token: usize) -> i64 {
        let (bound, sums) = (self.bound(token), integer_sums_at_once(self.target) as i64);
        let most = if self.g.max_of(bound) <= sums { sums } else { TOKENS_OF_TWO_VECTORS };
        let most = most.min(self.target.tuning.tokens.max(1) as i64);
        self.g.int_value(bound).map_or(most, |fixed| fixed.min(most))
    }
    /// Tokens beside one another in registers, where no bytes are multiplied or rows are not interleaved. With interleaved rows an accumulator is a vector of rows and one token.
    fn token_tile(&self, token: usize) -> i64 {
        let (g, target, bound) = (self.g, self.target, self.bound(token));
        let tokens_most = target.tuning.tokens.max(1) as i64;
        let few = (tokens_most / 2).max(1);
        let most = match self.lanes {
            1 => few,
            _ => (target.registers.saturating_sub(REGISTERS_OF_INTEGER_SUMS) as i64 / 4 * 4).max(4).min(tokens_most),
        };
        match g.int_value(bound) {
            Some(b) => divisor(b, most).max(if b > most { most.min(4) } else { 1 }),
            None if g.max_of(bound) < 16 * most => most.min(few),
            None => most,
        }
    }
    /// Rows and tokens as tiles of warps, laid out over a warp as its matrix product wants them (`lower/mma/int8.rs`): lane 4g + t has rows g + 8i and
    /// tokens 2t + j.
    fn matrix_products(&self, token: usize, nests: &[Id], group: bool) -> Vec<Proposal<Workgroup>> {
        let of_tokens: i64 =
            self.tokens.iter().filter(|&&i| i != token).map(|&i| self.g.max_of(self.bound(i))).product();
        let (others, most) = (self.others * of_tokens, self.g.max_of(self.bound(token)));
        let halves = of_halves(self.g, nests);
        let of_warp = self.warp_tiles(others, most, self.tiles_of_warp(others, most, halves));
        let of_group = if group && halves { self.tiles_of_group(others, most, nests) } else { None };
        let first = of_group.unwrap_or(of_warp);
        let of = |w: WarpTiles| self.tiles_of_warps(token, w);
        let WarpTiles { rows, high, tiles, beside, .. } = first;
        let taller = if self.rows / WARP_ROWS % (2 * high * rows) == 0 { 2 * high } else { high };
        let others = [
            ("fewer rows", of(WarpTiles { high: 1, ..first })),
            ("more rows", of(WarpTiles { high: taller, ..first })),
            ("fewer tokens", of(WarpTiles { tiles: (tiles / 2).max(1), ..first })),
            ("more tokens", of(WarpTiles { tiles: 2 * tiles, ..first })),
            ("warps along tokens", of(WarpTiles { rows: 1, beside: beside * rows, group: false, ..first })),
            ("warps along terms", of(WarpTiles { rows: (rows / 2).max(1), ..first })),
            ("each warp by itself", of(of_warp)),
        ];
        let threads = host_bound(self.g, self.axes[token]).then(|| self.tokens_of_threads(token, TOKENS, 1));
        proposals(of(first), others.into_iter().chain(threads.map(|plan| ("without fragments", plan))))
    }
    fn tiles_of_warps(&self, token: usize, tiles: WarpTiles) -> Workgroup {
        let WarpTiles { rows, high, tiles, beside, group } = tiles;
        let block = if host_bound(self.g, self.axes[token]) { Global } else { Loop };
        let (row, of_warp) = (self.row, WARP_ROWS * high);
        // Warps that share the columns of a product have rows beside one another.
        let together = if group { GROUP.min(rows) } else { 1 };
        let parts = [
            AxisPart::rest(row, Global, rows * of_warp),
            AxisPart::rest(token, block, 8 * tiles * beside),
            AxisPart::new(row, Vector, rows / together, together * of_warp),
            AxisPart::new(token, Vector, beside, 8 * tiles),
            AxisPart::new(row, Vector, together, WARP_ROWS),
            AxisPart::new(row, Vector, 8, 1),
            AxisPart::new(token, Vector, 4, 2),
            AxisPart::new(row, Upcast, high, together * WARP_ROWS),
            AxisPart::new(token, Upcast, tiles, 8),
            AxisPart::new(row, Upcast, 2, 8),
            AxisPart::new(token, Upcast, 2, 1),
        ];
        self.workgroup(self.other_tokens(Global).chain(parts))
    }
    /// Tiles of four warps that share the columns of a product: the largest, smaller ones until nearly every multiprocessor has something to do.
    fn tiles_of_group(&self, others: i64, most: i64, nests: &[Id]) -> Option<WarpTiles> {
        let rows = power_divisor(self.rows / WARP_ROWS, self.warps());
        // What else is added up in the same kernel wants other workgroups beside it.
        let g = self.g;
        let alone = g.toposort(nests).into_iter().all(|n| g[n].op != Op::Reduce || MmaSum::unpacked(g, n).is_some());
        let tiles = if alone { GROUP_TILES } else { GROUP_TILES / 2 };
        let tiles = tiles.min(up_to_power((most + 7) / 8));
        let high = if alone && self.sums == 1 && self.rows / WARP_ROWS % (2 * rows) == 0 { 2 } else { 1 };
        let mut of = WarpTiles { rows, high, tiles, beside: self.warps() / rows, group: true };
        let too_few = |of: WarpTiles| 4 * self.groups(of, others, most) < 3 * self.target.machine.units as i64;
        while too_few(of) && (of.high > 1 || of.tiles > LEAST_GROUP_TILES) {
            if of.high > 1 { of.high = 1 } else { of.tiles /= 2 }
        }
        (rows >= GROUP && tiles >= LEAST_GROUP_TILES).then_some(of)
    }
    /// Tiles of a warp: as many tokens as rows share, and of the warps of a workgroup as many side by side as there are rows,
    /// the others for more tokens.
    fn tiles_of_warp(&self, others: i64, most: i64, halves: bool) -> WarpTiles {
        let (n, warps) = (self.rows, self.warps());
        let tiles = up_to_power((most + 7) / 8).min(WARP_TOKENS / 8);
        let rows = power_divisor(n / WARP_ROWS, warps);
        let beside = up_to_power(most / (8 * tiles)).min(warps / rows);
        // Rows of a warp, as long as every multiprocessor has something to do.
        let twice = WarpTiles { rows, high: 2, tiles, beside, group: false };
        // Halves are asked for a step at a time: every multiprocessor wants as many workgroups as it has room for.
        let wanted = if halves { self.target.resident() } else { 1 };
        let is_enough = self.groups(twice, others, most) >= wanted * self.target.machine.units as i64;
        // Sums of twice as many rows leave no registers for another workgroup, or read of each row a part of a line at a time.
        let has_room = !halves || tiles > 1 && self.sums * 2 * tiles <= UNPACKED_TILES;
        let high = if n / WARP_ROWS % (2 * rows) == 0 && is_enough && has_room { 2 } else { 1 };
        // Two warps that take turns with a row's terms read whole lines.
        let lines = halves && tiles * beside == 1 && rows > 1 && self.steps % 2 == 0;
        let of = WarpTiles { high, rows: if lines { rows / 2 } else { rows }, ..twice };
        let few = self.groups(of, others, most) < ROUNDS_OF_TWO_WARPS * room(self.target);
        let shared =
            self.shared_terms(of).filter(|of| lines && few && self.warps() / (of.rows * beside) <= MOST_SHARING);
        shared.unwrap_or(of)
    }
    /// With twice as many warps that share the terms of sums, as long as these have steps for them: they read and unpack no weight twice.
    fn shared_terms(&self, of: WarpTiles) -> Option<WarpTiles> {
        let sharing = self.warps() / (of.rows / 2).max(1) / of.beside;
        let shared = of.rows > 1 && sharing * LEAST_STEPS <= self.steps && self.steps % sharing == 0;
        shared.then_some(WarpTiles { rows: of.rows / 2, ..of })
    }
    fn warps(&self) -> i64 {
        (self.target.threads as i64 / MMA_I8.sums.lanes()).max(1)
    }
    /// Workgroups of such tiles, where the axes beside rows and tokens have `others` elements, and there are at most so many tokens.
    fn groups(&self, of: WarpTiles, others: i64, most: i64) -> i64 {
        let tokens = 8 * of.tiles * of.beside;
        others * (self.rows / WARP_ROWS / (of.rows * of.high)) * ((most + tokens - 1) / tokens)
    }
    /// Tiles of the warps of a workgroup: of fewer rows or tokens, until every multiprocessor has something to do.
    fn warp_tiles(&self, others: i64, most: i64, mut of: WarpTiles) -> WarpTiles {
        while self.groups(of, others, most) < self.target.machine.units as i64 {
            if let Some(shared) = self.shared_terms(of) {
                of = shared;
                continue;
            }
            match of {
                WarpTiles { tiles: 1, beside: 1, high: 1, .. } => break,
                WarpTiles { tiles: 1, beside: 1, .. } => of.high /= 2,
                WarpTiles { tiles: 1, .. } => of.beside /= 2,
                _ => of.tiles /= 2,
            }
        }
        if self.target.tuning.tokens == 1 {
            (of.high, of.tiles) = (1, 1);
        }
        of
    }
}

fn up_to_power(n: i64) -> i64 {
    (n.max(1) as u64).next_power_of_two() as i64
}

/// Are there sums of halves that are unpacked?
fn of_halves(g: &Graph, nests: &[Id]) -> bool {
    g.toposort(nests).iter().any(|&n| MmaSum::unpacked(g, n).is_some())
}

/// How the warps of a workgroup share rows and tokens.
#[derive(Clone, Copy)]
struct WarpTiles {
    /// Warps side by side along the rows.
    rows: i64,
    /// Tiles of rows of each.
    high: i64,
    /// Tiles of tokens of each.
    tiles: i64,
    /// Warps side by side along the tokens.
    beside: i64,
    /// Do four warps along the rows share the columns of a product?
    group: bool,
}
