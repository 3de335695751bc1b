//! Workgroup shapes for contractions (`propose/find_contraction.rs`) with a packed factor.
//!
//! The weight depends on the *row* axes and not on the *token* axes. A tile of rows × tokens is
//! kept in registers, and the weight is dequantised once for all of its tokens.

mod warps;

use super::context::ProposalContext;
use super::tiles::{self, tiles};
use crate::ir::mma::fragment::MmaSum;
use crate::ir::nest::{distance, divisor, floor_power, host_bound, outermost_reductions};
use crate::lower::{REGISTERS_OF_INTEGER_SUMS, integer_sums_at_once};
use crate::plan::{AxisPart, Proposal, Workgroup, proposals};
use crate::propose::find_contraction::Factor;
use gristmill_uop::RangeKind::{Global, Loop, Upcast};
use gristmill_uop::fragment::{Fragment, MMA_I8, UNIT};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op, RangeKind, Scalar};
use std::iter::successors;

/// Maximum rows per thread with several tokens; half of the registers stay free.
const MATMUL_ROWS: i64 = 4;
/// Maximum elements that a thread computes from one sum.
pub const COPIES: i64 = 4;
/// Rows of a panel that is read again for every token tile; it stays in the L2 cache.
const PANEL_ROWS: i64 = 128;
/// Minimum panels per core, if there are enough rows: other cores take over from a
/// core that is interrupted.
const PANELS_OF_A_CORE: i64 = 4;
/// Rows of a warp's matrix product.
const WARP_ROWS: i64 = MMA_I8.rows;
/// Tokens per row and thread, for few tokens without matrix products.
const TOKENS: i64 = 4;
/// Tokens and rows of a thread, larger tiles first, which load less per product (the sizes are
/// compared in docs/experiments/103).
const TILES_OF_THREADS: [[i64; 2]; 3] = [[4, 4], [4, 2], [TOKENS, 1]];
/// Minimum threads per row: loads then cover whole sectors of 32 bytes.
const MIN_OF_ROW: i64 = 8;

/// Axes of a contraction by role, each by its index.
struct Contraction<'a> {
    g: &'a Graph,
    axes: &'a [Id],
    target: &'a Target,
    /// Maximum workgroups of a single-token contraction.
    max_workgroups: i64,
    /// Parts that all proposals share and that come first: copies, and weight axes
    /// other than the rows.
    before: Vec<AxisPart>,
    /// The row axis that is cut.
    row: usize,
    /// Number of groups of interleaved rows.
    rows: i64,
    /// Interleaved rows: the lanes of vectors.
    lanes: i64,
    /// Steps of a row.
    steps: i64,
    /// Elements of the other weight axes: heads, experts.
    others: i64,
    /// Axes that the weight does not depend on.
    tokens: Vec<usize>,
    /// The last token axis with more than one element.
    token: Option<usize>,
    /// Sums that share a loop, and thus the registers.
    sums: i64,
}

/// Candidate workgroups for nests that contract the packed weight `rows`.
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

/// For one token on a GPU: workgroups half as large as the heuristic's, with twice the threads per
/// row, if each unit would get fewer than two.
///
/// With two workgroups a unit computes while one of them waits, but each repeats the work fused
/// into its kernel, so the better choice depends on fusion.
pub fn smaller(
    g: &Graph,
    nests: &[Id],
    axes: &[Id],
    rows: &Factor,
    around: &ProposalContext,
) -> Option<Workgroup> {
    let of = Contraction::new(g, nests, axes, rows, around)
        .ok()
        .filter(|of| of.token.is_none())?;
    let (target, of_row) = (around.target, of.threads_of_one_row());
    let few = of.groups_of_one_token(of_row) < 2 * target.machine.units as i64;
    let has_steps = 2 * of_row <= of.steps.min(target.machine.subgroup);
    let groups = target.threads as i64 / of_row;
    (target.grouping && few && has_steps)
        .then(|| of.half_as_large(of.tile_of_one_token(groups), groups))
}

/// Threads for a row with that many steps: a subgroup, or a smaller power of two that divides the
/// steps, else about half the steps.
fn threads_of_row(steps: i64, subgroup: i64) -> i64 {
    let mut lanes = successors(Some(subgroup), |l| Some(l / 2)).take_while(|&l| l >= MIN_OF_ROW);
    lanes
        .find(|l| steps % l == 0)
        .unwrap_or_else(|| floor_power(steps / 2).clamp(MIN_OF_ROW.min(subgroup), subgroup))
}

/// Partitions the axes: those along which the sums are constant, if short, become copies in a
/// thread; then the others.
fn copies(g: &Graph, nests: &[Id], axes: &[Id]) -> (Vec<usize>, Vec<usize>) {
    let order = g.toposort(nests);
    let sums: Vec<Id> = order
        .into_iter()
        .filter(|&n| matches!(g[n].op, Op::Reduce | Op::Index))
        .collect();
    let alone = |r: Id| {
        let few = g.int_value(g[r].src[0]).is_some_and(|n| n <= COPIES);
        few && !sums.iter().any(|&n| g.free_ranges(n).contains(&r))
    };
    (0..axes.len()).partition(|&i| alone(axes[i]))
}

/// Whether the nests contain sums of integer products.
fn in_integers(g: &Graph, nests: &[Id]) -> bool {
    g.toposort(nests)
        .iter()
        .any(|&n| matches!(g[n].op, Op::Dot4 | Op::SignedDot4))
}

impl<'a> Contraction<'a> {
    /// Classifies the axes. If no row axis can be cut, returns the only
    /// possible workgroup as `Err`.
    fn new(
        g: &'a Graph,
        nests: &[Id],
        axes: &'a [Id],
        rows: &Factor,
        around: &ProposalContext<'a>,
    ) -> Result<Contraction<'a>, Workgroup> {
        let gpu = around.target.machine.kind == MachineKind::Gpu;
        let (copies, left) = copies(g, nests, axes);
        let (row_axes, tokens): (Vec<usize>, Vec<usize>) =
            left.iter().partition(|&&i| rows.loops.contains(&axes[i]));
        let row = row_axes
            .iter()
            .copied()
            .rev()
            .find(|&i| host_bound(g, axes[i]) && g.int_value(g[axes[i]].src[0]).is_some());
        // Other weight axes (heads, experts) are spread over the launch. On a CPU, those with a
        // data-dependent bound become outer loops of the workgroup.
        let other_rows = row_axes.iter().filter(|&&i| Some(i) != row);
        let over = |i: usize| {
            if gpu || host_bound(g, axes[i]) {
                Global
            } else {
                Loop
            }
        };
        let before = copies.into_iter().map(|i| AxisPart::rest(i, Upcast, 1));
        let before: Vec<AxisPart> = before
            .chain(other_rows.clone().map(|&i| AxisPart::rest(i, over(i), 1)))
            .collect();
        let Some(row) = row else {
            let kind = |i: usize| if host_bound(g, axes[i]) { Global } else { Loop };
            let tokens = tokens.iter().map(|&i| AxisPart::rest(i, kind(i), 1));
            return Err(Workgroup {
                parts: before.into_iter().chain(tokens).collect(),
            });
        };
        let size = |i: usize| g.max_of(g[axes[i]].src[0]);
        let others = other_rows.map(|&i| size(i)).product();
        // Reductions of one nest share a loop and its registers; a nested reduction uses registers
        // only while the outer one waits.
        let sums = nests
            .iter()
            .map(|&n| outermost_reductions(g, n).len())
            .max()
            .unwrap_or(1) as i64;
        // Interleaved rows become vector lanes; from here on, rows are counted in groups of them.
        let whole = size(row);
        let lanes = if whole % rows.lanes == 0 {
            rows.lanes
        } else {
            1
        };
        let token = tokens.iter().copied().rev().find(|&i| size(i) > 1);
        let (target, max_workgroups, steps) = (around.target, around.max_workgroups, rows.steps);
        let rows = whole / lanes;
        Ok(Contraction {
            g,
            axes,
            target,
            max_workgroups,
            before,
            row,
            rows,
            lanes,
            steps,
            others,
            tokens,
            token,
            sums,
        })
    }
    /// Whether half-precision products read columns in wgmma order, where the next term
    /// is a unit away.
    fn reads_units(&self, nests: &[Id]) -> bool {
        let g = self.g;
        g.toposort(nests).into_iter().any(|n| {
            let Some(sum) = MmaSum::unpacked(g, n) else {
                return false;
            };
            let address = g[sum.columns].src[1];
            g[n].src[1..]
                .iter()
                .any(|&term| distance(g, address, &[(term, 1)]) == UNIT)
        })
    }
    /// Candidates for its class of contraction, by the number of tokens and the
    /// machine's matrix instructions.
    fn class(self, nests: &[Id], around: &ProposalContext) -> Vec<Proposal<Workgroup>> {
        let machine = &self.target.machine;
        let gpu = machine.kind == MachineKind::Gpu;
        let of_bytes = in_integers(self.g, nests) && machine.fragment(Scalar::I8).is_some();
        // Tiles of warps divide rows and tokens among all lanes, so the workgroup must
        // consist of whole warps.
        let of_warps = self.target.threads as i64 % MMA_I8.sums.lanes() == 0;
        let products = of_warps && (of_bytes || of_halves(self.g, nests));
        match (self.token, machine.tile_fragment()) {
            (Some(token), Some(tile)) if around.derived.tiled.contains_key(&around.node) => {
                self.products_of_tiles(token, tile)
            }
            (None, _) if gpu => self.one_token_of_threads(),
            (None, _) => self.one_token(),
            // Without matrix products, threads share the sums of a few tokens each.
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
    /// Token tiles of a core's tile product.
    fn products_of_tiles(self, token: usize, tile: &Fragment) -> Vec<Proposal<Workgroup>> {
        let tokens = self.g.int_value(self.bound(token));
        let others = self.tokens.into_iter().filter(|&i| i != token).collect();
        let (before, row, rows) = (self.before, self.row, self.rows * self.lanes);
        tiles(
            &tiles::Axes {
                before,
                row,
                rows,
                token,
                tokens,
                others,
            },
            tile,
            self.target,
        )
    }
    fn bound(&self, axis: usize) -> Id {
        self.g[self.axes[axis]].src[0]
    }
    fn workgroup(&self, parts: impl IntoIterator<Item = AxisPart>) -> Workgroup {
        Workgroup {
            parts: self.before.iter().copied().chain(parts).collect(),
        }
    }
    /// Token axes other than the last one.
    fn other_tokens(&self, kind: RangeKind) -> impl Iterator<Item = AxisPart> + '_ {
        self.tokens
            .iter()
            .filter(|&&i| Some(i) != self.token)
            .map(move |&i| AxisPart::rest(i, kind, 1))
    }
    /// One token on a CPU: a few rows per workgroup.
    fn one_token(&self) -> Vec<Proposal<Workgroup>> {
        let groups = self.target.tuning.groups.max(1) as i64;
        let most = if self.lanes > 1 { groups } else { 4 * groups };
        let of = |most: i64| self.workgroup(self.rows_of_groups(1, divisor(self.rows, most)));
        proposals(
            of(most),
            [
                ("fewer rows", of((most / 2).max(1))),
                ("more rows", of(2 * most)),
            ],
        )
    }
    /// One token on a GPU: a row per group of threads, or several so that all workgroups run in one
    /// wave: staging is then repeated as rarely as possible and there is no tail wave.
    fn one_token_of_threads(&self) -> Vec<Proposal<Workgroup>> {
        let (n, groups) = (
            self.rows,
            self.target.threads as i64 / self.threads_of_one_row(),
        );
        let tile = self.tile_of_one_token(groups);
        let of = |tile: i64, groups: i64| self.rows_of_one_token(tile, groups);
        let (fewer, more) = (
            of(divisor(n, (tile / 2).max(1)), groups),
            of(divisor(n, 2 * tile), groups),
        );
        let others = [
            ("fewer rows", fewer),
            ("more rows", more),
            ("smaller workgroups", self.half_as_large(tile, groups)),
        ];
        proposals(
            of(tile, groups),
            others
                .into_iter()
                .chain([("larger workgroups", of(tile, 2 * groups))]),
        )
    }
    /// Threads per row: enough to give nearly every multiprocessor work. Several subgroups share a
    /// row only if each thread keeps enough steps.
    fn threads_of_one_row(&self) -> i64 {
        let (threads, subgroup) = (self.target.threads as i64, self.target.machine.subgroup);
        let first = threads_of_row(self.steps, subgroup);
        let idle = |l: i64| 4 * self.groups_of_one_token(l) < 3 * self.target.machine.units as i64;
        let of_row = [1, 2, 4]
            .map(|times| first * times)
            .into_iter()
            .find(|&l| !self.target.grouping || !idle(l));
        let mut of_row = of_row.unwrap_or(i64::MAX).min(subgroup);
        let least = self.target.machine.gpu_facts().subgroup_steps;
        let can_be_more = |l: i64| l <= threads && self.steps % l == 0 && self.steps / l >= least;
        while self.target.grouping && idle(of_row) && can_be_more(2 * of_row) {
            of_row *= 2;
        }
        of_row
    }
    /// Workgroups, if each group of `of_row` threads has one row.
    fn groups_of_one_token(&self, of_row: i64) -> i64 {
        self.rows * self.others * of_row / self.target.threads as i64
    }
    /// Rows per workgroup, if all workgroups run in one wave.
    fn share(&self) -> i64 {
        (self.rows * self.others + self.max_workgroups - 1) / self.max_workgroups
    }
    /// Rows per thread, with that many thread groups per workgroup.
    fn tile_of_one_token(&self, groups: i64) -> i64 {
        let tile = [1, 2, 4]
            .into_iter()
            .filter(|t| self.rows % t == 0)
            .find(|t| t * groups >= self.share());
        tile.unwrap_or_else(|| divisor(self.rows, 4))
    }
    fn rows_of_one_token(&self, tile: i64, groups: i64) -> Workgroup {
        // Prefers the same number of rows for each thread group: surplus groups repeat the last
        // row. gpt-oss experts on an H100, 2,880 rows, four per thread, in workgroups of 20 and 16
        // tiles: 32 and 19 us.
        let (rows, most) = (self.rows / tile, groups.max(self.share() / tile));
        let whole = if rows % groups == 0 { groups } else { 1 };
        self.workgroup(self.rows_of_groups(whole * divisor(rows / whole, most / whole), tile))
    }
    /// A workgroup of half as many thread groups, each with twice the threads.
    fn half_as_large(&self, tile: i64, groups: i64) -> Workgroup {
        self.workgroup(self.rows_of_groups(divisor(self.rows / tile, (groups / 2).max(1)), tile))
    }
    /// Few tokens on a GPU without matrix products: threads share the sums of a few tokens and,
    /// with many tokens, of a few rows.
    fn few_tokens_of_threads(&self, token: usize) -> Vec<Proposal<Workgroup>> {
        let most = self.g.max_of(self.bound(token));
        let resident = self.target.machine.units as i64 * self.target.resident();
        let groups = |&[tokens, rows]: &[i64; 2]| {
            let of_group = rows * divisor(self.rows / rows, self.groups_of_threads());
            self.others * (self.rows / of_group) * ((most + tokens - 1) / tokens)
        };
        let fits = |of: &[i64; 2]| self.rows % of[1] == 0 && groups(of) >= resident;
        let [tokens, rows] = match self.target.tuning.tokens > 1 {
            true => TILES_OF_THREADS
                .into_iter()
                .find(fits)
                .unwrap_or([TOKENS, 1]),
            false => [1, 1],
        };
        let of = |tokens: i64, rows: i64| self.tokens_of_threads(token, tokens, rows);
        let (fewer, one_row) = (of((tokens / 2).max(1), rows), of(tokens, 1));
        proposals(
            of(tokens, rows),
            [
                ("fewer tokens", fewer),
                ("more tokens", of(2 * tokens, rows)),
                ("one row", one_row),
            ],
        )
    }
    /// Thread groups of a workgroup; each group shares sums.
    fn groups_of_threads(&self) -> i64 {
        self.target.threads as i64 / threads_of_row(self.steps, self.target.machine.subgroup)
    }
    fn tokens_of_threads(&self, token: usize, tokens: i64, rows: i64) -> Workgroup {
        let tiles = [
            AxisPart::rest(token, Global, tokens),
            AxisPart::new(token, Upcast, tokens, 1),
        ];
        let per_group = divisor(self.rows / rows, self.groups_of_threads());
        self.workgroup(
            self.other_tokens(Global)
                .chain(tiles)
                .chain(self.rows_of_groups(per_group, rows)),
        )
    }
    /// Rows as workgroups, then `per_group` steps or thread groups, then `tile` rows in registers.
    fn rows_of_groups(&self, per_group: i64, tile: i64) -> [AxisPart; 4] {
        let (row, lanes) = (self.row, self.lanes);
        [
            AxisPart::rest(row, Global, per_group * tile * lanes),
            AxisPart::new(row, Loop, per_group, tile * lanes),
            AxisPart::new(row, Upcast, tile, lanes),
            AxisPart::new(row, Loop, lanes, 1),
        ]
    }
    /// A panel of rows per workgroup, token tiles inside it, and the panel's rows inside these.
    fn panel(&self, token: usize, nests: &[Id]) -> Vec<Proposal<Workgroup>> {
        let (n, lanes, target) = (self.rows, self.lanes, self.target);
        let of_bytes = lanes > 1 && in_integers(self.g, nests);
        let (tile, accumulators) = match (of_bytes, lanes) {
            (true, _) => (
                self.tokens_of_bytes(token),
                integer_sums_at_once(target) as i64,
            ),
            (false, 1) => (
                self.token_tile(token),
                target.registers as i64 / 2 / self.sums.max(1),
            ),
            (false, _) => (self.token_tile(token), 1),
        };
        let facts = target.machine.cpu_facts();
        let few =
            of_bytes && tile <= facts.one_vector_tokens && self.g.max_of(self.bound(token)) <= tile;
        let rows = if few { 1 } else { MATMUL_ROWS };
        let in_turn = few && self.before.iter().any(|part| part.kind == Loop);
        let of = |token_tile: i64, most_rows: i64, of_panel: i64| {
            let tile = divisor(n, (accumulators / token_tile).clamp(1, most_rows));
            let (most, panels) = if in_turn {
                (n, facts.panels_read_once)
            } else {
                ((of_panel / lanes).max(1), PANELS_OF_A_CORE)
            };
            let limit = (n / (panels * target.machine.units.max(1) as i64))
                .clamp(tile.min(most), most)
                / tile;
            let per_panel = divisor(n / tile, limit);
            let [panel, in_panel, of_tile, of_lane] = self.rows_of_groups(per_panel, tile);
            let tiles = [
                AxisPart::rest(token, Loop, token_tile),
                in_panel,
                AxisPart::new(token, Upcast, token_tile, 1),
            ];
            let parts = [panel]
                .into_iter()
                .chain(self.other_tokens(Loop))
                .chain(tiles);
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
    /// Token tile in registers, for interleaved rows and int8 activations: all tokens, if one
    /// vector of rows has enough accumulators, so that each weight is read once; otherwise a few,
    /// which leaves accumulators for a second vector of rows.
    fn tokens_of_bytes(&self, token: usize) -> i64 {
        let (bound, sums) = (self.bound(token), integer_sums_at_once(self.target) as i64);
        let most = if self.g.max_of(bound) <= sums {
            sums
        } else {
            self.target.machine.cpu_facts().two_vector_tokens
        };
        let most = most.min(self.target.tuning.tokens.max(1) as i64);
        self.g
            .int_value(bound)
            .map_or(most, |fixed| fixed.min(most))
    }
    /// Token tile in registers for other types, or without interleaved rows. With interleaved rows,
    /// an accumulator is a vector of rows for one token.
    fn token_tile(&self, token: usize) -> i64 {
        let (g, target, bound) = (self.g, self.target, self.bound(token));
        let tokens_most = target.tuning.tokens.max(1) as i64;
        let few = (tokens_most / 2).max(1);
        let most = match self.lanes {
            1 => few,
            _ => (target.registers.saturating_sub(REGISTERS_OF_INTEGER_SUMS) as i64 / 4 * 4)
                .max(4)
                .min(tokens_most),
        };
        match g.int_value(bound) {
            Some(b) => divisor(b, most).max(if b > most { most.min(4) } else { 1 }),
            None if g.max_of(bound) < 16 * most => most.min(few),
            None => most,
        }
    }
}

/// Whether the nests contain half-precision sums over dequantised rows.
fn of_halves(g: &Graph, nests: &[Id]) -> bool {
    g.toposort(nests)
        .iter()
        .any(|&n| MmaSum::unpacked(g, n).is_some())
}
