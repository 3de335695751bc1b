//! Workgroup shapes for MMA tile products (AMX, cooperative matrices).
//!
//! On a CPU core (`decompose/bf16.rs`), a workgroup has a panel of weight rows and multiplies
//! several token tiles at a time, so that each weight tile is dequantised once for all of them. On
//! a GPU (`decompose/cooperative.rs`), subgroups divide the rows and tokens of a workgroup.
//! `lower/mma/tiles.rs` turns the two innermost parts into tiles.

use crate::ir::nest::{divisor, host_bound};
use crate::plan::{AxisPart, Proposal, Workgroup, proposals};
use gristmill_uop::RangeKind::{self, Global, Loop, Upcast, Vector};
use gristmill_uop::fragment::Fragment;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id};

/// Token tiles at once: of eight tile registers, one holds the weight tile and three
/// alternate with activation tiles.
const TOKEN_TILES: i64 = 4;
/// Maximum token tiles at once: one register is left for the activations.
const MAX_TOKEN_TILES: i64 = 6;
/// Maximum rows of a panel, which is read again for every four token tiles. This many rows fit a 2
/// MiB L2 cache, and fewer panels reload activations less often.
const PANEL_ROWS: i64 = 512;
/// Minimum panels per core.
const PANELS: i64 = 4;

/// Axes of a tile product, by role.
pub struct Axes {
    /// Parts before all others: axes of the weight other than its rows.
    pub before: Vec<AxisPart>,
    /// Axis of the weight's rows.
    pub row: usize,
    /// Number of rows, a multiple of the tile.
    pub rows: i64,
    /// Axis of the tokens.
    pub token: usize,
    /// Number of tokens, a multiple of the tile, if constant.
    pub tokens: Option<i64>,
    /// Further token axes, as loops.
    pub others: Vec<usize>,
}

/// Candidate workgroups for products with that fragment.
pub fn tiles(axes: &Axes, of: &Fragment, target: &Target) -> Vec<Proposal<Workgroup>> {
    let high = axes.rows / of.columns;
    let (panels, most) = match axes.tokens {
        Some(_) => (target.machine.cpu_facts().expert_panels, high),
        None => (PANELS, PANEL_ROWS / of.columns),
    };
    let panel = (high / (panels * target.machine.units.max(1) as i64))
        .min(most)
        .max(1);
    let shape = |panel: i64, beside: i64| axes.shape(of, divisor(high, panel), beside);
    let others = [
        ("fewer tokens", shape(panel, TOKEN_TILES / 2)),
        ("more tokens", shape(panel, MAX_TOKEN_TILES)),
        ("smaller panels", shape((panel / 4).max(1), TOKEN_TILES)),
        ("larger panels", shape(4 * panel, TOKEN_TILES)),
    ];
    proposals(shape(panel, TOKEN_TILES), others)
}

impl Axes {
    /// A panel of that many row tiles, with a limited number of token tiles at once.
    fn shape(&self, of: &Fragment, panel: i64, beside: i64) -> Workgroup {
        let (row, token) = (self.row, self.token);
        let beside = self.tokens.map_or(beside, |n| divisor(n / of.rows, beside));
        let others = self.others.iter().map(|&i| AxisPart::rest(i, Loop, 1));
        let parts = [
            AxisPart::rest(token, Loop, beside * of.rows),
            AxisPart::new(row, Loop, panel, of.columns),
            AxisPart::new(token, Upcast, beside, of.rows),
            AxisPart::new(token, Vector, of.rows, 1),
            AxisPart::new(row, Vector, of.columns, 1),
        ];
        let first =
            self.before
                .iter()
                .copied()
                .chain([AxisPart::rest(row, Global, panel * of.columns)]);
        Workgroup {
            parts: first.chain(others).chain(parts).collect(),
        }
    }
}

/// Preferred and minimum rows and tokens of a workgroup of subgroups. Chosen by a prefill of 512
/// tokens with Youtu on an H100 (docs/experiments/109).
const OF_WORKGROUP: Tile = Tile {
    rows: 64,
    tokens: 128,
};
const MIN_OF_WORKGROUP: Tile = Tile {
    rows: 32,
    tokens: 64,
};

/// Weight rows and tokens of a workgroup.
#[derive(Clone, Copy)]
struct Tile {
    rows: i64,
    tokens: i64,
}

/// Candidate workgroups for products of subgroup tiles; the last two axes are
/// tokens and weight rows.
pub fn of_subgroups(g: &Graph, axes: &[Id], target: &Target) -> Option<Vec<Proposal<Workgroup>>> {
    let of = target.machine.tile_fragment()?;
    let &[ref before @ .., token, row] = axes else {
        return None;
    };
    let size = |axis: Id| g.max_of(g[axis].src[0]);
    let others = before.iter().map(|&axis| size(axis)).product();
    let block = if host_bound(g, token) { Global } else { Loop };
    let (token_axis, row_axis) = (before.len(), before.len() + 1);
    let before = (0..before.len())
        .map(|i| AxisPart::rest(i, Global, 1))
        .collect();
    let of_axes = OfSubgroups {
        before,
        row: row_axis,
        rows: size(row),
        token: token_axis,
        tokens: size(token),
        others,
        block,
    };
    Some(of_axes.proposals(of, target))
}

/// Axes of a subgroup product, by role.
struct OfSubgroups {
    /// Parts before all others: other axes of the weight and of tokens.
    before: Vec<AxisPart>,
    /// Axis of the weight's rows.
    row: usize,
    /// Number of rows, a multiple of the tile.
    rows: i64,
    /// Axis of the tokens.
    token: usize,
    /// Maximum number of tokens, padded to whole tiles.
    tokens: i64,
    /// Product of the sizes of the other axes.
    others: i64,
    /// Kind of the range over token tiles: `Global`, or `Loop` if the host does not know
    /// the number of tokens.
    block: RangeKind,
}

impl OfSubgroups {
    /// Candidate workgroups for products with that fragment.
    fn proposals(&self, of: &Fragment, target: &Target) -> Vec<Proposal<Workgroup>> {
        let mut first = OF_WORKGROUP;
        // Shrinks the workgroup until nearly every unit has work.
        let groups = |of: Tile| {
            self.others * (self.rows / of.rows).max(1) * ((self.tokens + of.tokens - 1) / of.tokens)
        };
        while 4 * groups(first) < 3 * target.machine.units as i64 {
            match first {
                Tile { rows, .. } if rows > MIN_OF_WORKGROUP.rows => first.rows /= 2,
                Tile { tokens, .. } if tokens > MIN_OF_WORKGROUP.tokens => first.tokens /= 2,
                _ => break,
            }
        }
        let shape = |rows: i64, tokens: i64| self.shape(of, Tile { rows, tokens }, target);
        let Tile { rows, tokens } = first;
        let others = [
            ("fewer tokens", shape(rows, tokens / 2)),
            ("more tokens", shape(rows, 2 * tokens)),
            ("fewer rows", shape((rows / 2).max(of.columns), tokens)),
            ("more rows", shape(2 * rows, tokens)),
        ];
        proposals(shape(rows, tokens), others)
    }
    /// A workgroup with at most that many rows and tokens.
    fn shape(&self, of: &Fragment, most: Tile, target: &Target) -> Workgroup {
        let (row, token) = (self.row, self.token);
        let high = divisor(self.rows / of.columns, most.rows / of.columns);
        let wide = divisor(self.tokens / of.rows, most.tokens / of.rows);
        // Subgroups divide the tokens first, so that each activation is loaded once, and remaining
        // ones divide the rows. With four of eight along 128 rows, gate and up took 378 us.
        let subgroups = (target.threads as i64 / target.machine.widest).max(1);
        let along_tokens = divisor(wide, subgroups);
        let along_rows = divisor(high, subgroups / along_tokens);
        let (tall, beside) = (high / along_rows, wide / along_tokens);
        let parts = [
            AxisPart::rest(row, Global, high * of.columns),
            AxisPart::rest(token, self.block, wide * of.rows),
            AxisPart::new(row, Vector, along_rows, tall * of.columns),
            AxisPart::new(token, Vector, along_tokens, beside * of.rows),
            AxisPart::new(row, Upcast, tall, of.columns),
            AxisPart::new(token, Upcast, beside, of.rows),
            AxisPart::new(token, RangeKind::Tile, of.rows, 1),
            AxisPart::new(row, RangeKind::Tile, of.columns, 1),
        ];
        Workgroup {
            parts: self.before.iter().copied().chain(parts).collect(),
        }
    }
}
