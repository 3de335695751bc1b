//! Products of tiles (`decompose/bf16.rs`): a panel of rows of the weight for each workgroup, in it some tiles of tokens at a time, for which a tile of the
//! weight is unpacked once. `lower/tiles.rs` makes tiles of the two parts of kind `Vector`.

use crate::nest::divisor;
use crate::tile::plan::{Part, Proposal, Workgroup, proposals};
use gristmill_uop::RangeKind::{Global, Loop, Upcast, Vector};
use gristmill_uop::fragment::Fragment;
use gristmill_uop::target::Target;

/// Tiles of tokens beside one another: of eight registers, one has the weight's tile and three take turns with the activations'.
const BESIDE: i64 = 4;
/// Most of them: one register is left for the activations.
const MOST_BESIDE: i64 = 6;
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
    pub before: Vec<Part>,
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
        ("fewer tokens", shape(panel, BESIDE / 2)),
        ("more tokens", shape(panel, MOST_BESIDE)),
        ("smaller panels", shape((panel / 4).max(1), BESIDE)),
        ("larger panels", shape(4 * panel, BESIDE)),
    ];
    proposals(shape(panel, BESIDE), others)
}

impl Axes {
    /// Panels of so many tiles of rows, and at most so many tiles of tokens beside one another.
    fn shape(&self, of: &Fragment, panel: i64, beside: i64) -> Workgroup {
        let (row, token) = (self.row, self.token);
        let beside = self.tokens.map_or(beside, |n| divisor(n / of.rows, beside));
        let others = self.others.iter().map(|&i| Part::rest(i, Loop, 1));
        let parts = [
            Part::rest(token, Loop, beside * of.rows),
            Part::of(row, Loop, panel, of.columns),
            Part::of(token, Upcast, beside, of.rows),
            Part::of(token, Vector, of.rows, 1),
            Part::of(row, Vector, of.columns, 1),
        ];
        let first = self.before.iter().copied().chain([Part::rest(row, Global, panel * of.columns)]);
        Workgroup { parts: first.chain(others).chain(parts).collect() }
    }
}
