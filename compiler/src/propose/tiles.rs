//! Products of tiles. Of a core (`decompose/bf16.rs`): a panel of rows of the weight for each workgroup, in it some tiles of tokens at a time, for which a tile of the
//! weight is unpacked once. Of a GPU's subgroups (`decompose/cooperative.rs`): rows and tokens of a workgroup, which its subgroups divide. `lower/mma/tiles.rs` makes tiles of the two
//! innermost parts.

use crate::ir::nest::{divisor, host_bound};
use crate::plan::{AxisPart, Proposal, Workgroup, proposals};
use gristmill_uop::RangeKind::{self, Global, Loop, Upcast, Vector};
use gristmill_uop::fragment::Fragment;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id};

/// Tiles of tokens beside one another: of eight registers, one has the weight's tile and three take turns with the activations'.
const TOKEN_TILES: i64 = 4;
/// Most of them: one register is left for the activations.
const MOST_TOKEN_TILES: i64 = 6;
/// Rows of a panel that is read again for every four tiles of tokens: with these it stays in an L2 cache of 2 MiB, and the fewer panels there are the
/// less often activations come from further away.
const PANEL_ROWS: i64 = 512;
/// Panels for each core.
const PANELS: i64 = 4;
/// Where data decides which weight meets a tile of tokens: of the weight nothing is read again, the tokens come from the cache that all share, with every
/// panel. V2-Lite's gate and up of 512 tokens on one core: 113 ms a layer with four panels for each core of two, 102 with one; two leave work to share where
/// a core is held up.
const CHOSEN_PANELS: i64 = 2;

/// The axes of such a product, by what they are.
pub struct Axes {
    /// Parts that come before: axes of the weight beside its rows.
    pub before: Vec<AxisPart>,
    /// The axis of the weight's rows.
    pub row: usize,
    /// How many there are: whole tiles.
    pub rows: i64,
    /// The axis of tokens.
    pub token: usize,
    /// How many there are, where that is fixed: whole tiles.
    pub tokens: Option<i64>,
    /// Further axes of tokens.
    pub others: Vec<usize>,
}

/// What a workgroup could compute, by products of that fragment.
pub fn tiles(axes: &Axes, of: &Fragment, target: &Target) -> Vec<Proposal<Workgroup>> {
    let high = axes.rows / of.columns;
    let (panels, most) = match axes.tokens {
        Some(_) => (CHOSEN_PANELS, high),
        None => (PANELS, PANEL_ROWS / of.columns),
    };
    let panel = (high / (panels * target.machine.units.max(1) as i64)).min(most).max(1);
    let shape = |panel: i64, beside: i64| axes.shape(of, divisor(high, panel), beside);
    let others = [
        ("fewer tokens", shape(panel, TOKEN_TILES / 2)),
        ("more tokens", shape(panel, MOST_TOKEN_TILES)),
        ("smaller panels", shape((panel / 4).max(1), TOKEN_TILES)),
        ("larger panels", shape(4 * panel, TOKEN_TILES)),
    ];
    proposals(shape(panel, TOKEN_TILES), others)
}

impl Axes {
    /// Panels of so many tiles of rows, and at most so many tiles of tokens beside one another.
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
        let first = self.before.iter().copied().chain([AxisPart::rest(row, Global, panel * of.columns)]);
        Workgroup { parts: first.chain(others).chain(parts).collect() }
    }
}

/// Rows and tokens of a workgroup of subgroups, and fewest of them. Prompts of 512 of Youtu on an H100 (experiments, 109), gate with up and down, us, by rows and tokens: 64 and 128 222 and 154; 128 and
/// 128 227 and 213; 64 and 256 233 and 230; 32 and 128 362 and 198; 64 and 64 344 and 214.
const OF_WORKGROUP: Tile = Tile { rows: 64, tokens: 128 };
const LEAST_OF_WORKGROUP: Tile = Tile { rows: 32, tokens: 64 };

/// Rows of the weight and tokens that a workgroup has.
#[derive(Clone, Copy)]
struct Tile {
    rows: i64,
    tokens: i64,
}

/// What a workgroup could compute of a product of subgroups' tiles, whose last axes are tokens and rows of the weight.
pub fn of_subgroups(g: &Graph, axes: &[Id], target: &Target) -> Option<Vec<Proposal<Workgroup>>> {
    let of = target.machine.tile_fragment()?;
    let &[ref before @ .., token, row] = axes else { return None };
    let size = |axis: Id| g.max_of(g[axis].src[0]);
    let others = before.iter().map(|&axis| size(axis)).product();
    let block = if host_bound(g, token) { Global } else { Loop };
    let (token_axis, row_axis) = (before.len(), before.len() + 1);
    let before = (0..before.len()).map(|i| AxisPart::rest(i, Global, 1)).collect();
    let of_axes =
        OfSubgroups { before, row: row_axis, rows: size(row), token: token_axis, tokens: size(token), others, block };
    Some(of_axes.proposals(of, target))
}

/// The axes of such a product.
struct OfSubgroups {
    /// Parts that come before: other axes of the weight, and of tokens.
    before: Vec<AxisPart>,
    /// The axis of the weight's rows.
    row: usize,
    /// How many there are: whole tiles.
    rows: i64,
    /// The axis of tokens.
    token: usize,
    /// How many there are at most: whole tiles.
    tokens: i64,
    /// Elements of the other axes.
    others: i64,
    /// What tiles of tokens are spread over.
    block: RangeKind,
}

impl OfSubgroups {
    /// What a workgroup could compute, by products of that fragment.
    fn proposals(&self, of: &Fragment, target: &Target) -> Vec<Proposal<Workgroup>> {
        let mut first = OF_WORKGROUP;
        // Smaller ones, until nearly every unit has something to do.
        let groups =
            |of: Tile| self.others * (self.rows / of.rows).max(1) * ((self.tokens + of.tokens - 1) / of.tokens);
        while 4 * groups(first) < 3 * target.machine.units as i64 {
            match first {
                Tile { rows, .. } if rows > LEAST_OF_WORKGROUP.rows => first.rows /= 2,
                Tile { tokens, .. } if tokens > LEAST_OF_WORKGROUP.tokens => first.tokens /= 2,
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
    /// At most so many rows and tokens of a workgroup.
    fn shape(&self, of: &Fragment, most: Tile, target: &Target) -> Workgroup {
        let (row, token) = (self.row, self.token);
        let high = divisor(self.rows / of.columns, most.rows / of.columns);
        let wide = divisor(self.tokens / of.rows, most.tokens / of.rows);
        // Subgroups along the tokens, so that each half of an activation is loaded once; those that are left along the rows. With four of eight along 128 rows gate and up took 378 us.
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
        Workgroup { parts: self.before.iter().copied().chain(parts).collect() }
    }
}
