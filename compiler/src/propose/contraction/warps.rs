//! Tiles of rows and tokens for the warps of a workgroup, for matrix products.

use super::{Contraction, TOKENS, WARP_ROWS, of_halves};
use crate::cost::occupancy::resident_workgroups;
use crate::ir::mma::fragment::MmaSum;
use crate::ir::nest::{host_bound, power_divisor};
use crate::plan::{AxisPart, Proposal, Workgroup, proposals};
use gristmill_uop::RangeKind::{Global, Loop, Upcast, Vector};
use gristmill_uop::fragment::{MMA_I8, WGMMA_16};
use gristmill_uop::{Id, Op};

/// Tokens of a warp's matrix product.
const WARP_TOKENS: i64 = 32;
/// Minimum steps of a warp in a sum that warps share (split-K); with fewer, adding the
/// partial sums costs more.
const MIN_STEPS: i64 = 2;
/// Maximum warps that share a row's terms in products of a few tokens (docs/experiments/105).
const MAX_SHARING: i64 = 4;
/// Warps that share the columns of a product.
const GROUP: i64 = WGMMA_16.rows / WARP_ROWS;
/// Minimum column tiles of such a group: those of 16 tokens.
const MIN_GROUP_TILES: i64 = WGMMA_16.columns / WGMMA_TILE;
/// Columns of such a tile.
const WGMMA_TILE: i64 = MMA_I8.columns;

/// Division of rows and tokens among the warps of a workgroup.
#[derive(Clone, Copy)]
struct WarpTiles {
    /// Warps along the rows.
    rows: i64,
    /// Row tiles per warp.
    high: i64,
    /// Token tiles per warp.
    tiles: i64,
    /// Warps along the tokens.
    column_warps: i64,
    /// Whether four warps along the rows share the columns of a product (wgmma).
    group: bool,
}

impl Contraction<'_> {
    /// Rows and tokens as tiles of warps, in the lane layout of the matrix product
    /// (`lower/mma/int8.rs`): lane 4g + t has rows g + 8i and tokens 2t + j.
    pub(super) fn matrix_products(
        &self,
        token: usize,
        nests: &[Id],
        group: bool,
    ) -> Vec<Proposal<Workgroup>> {
        let of_tokens: i64 = self
            .tokens
            .iter()
            .filter(|&&i| i != token)
            .map(|&i| self.g.max_of(self.bound(i)))
            .product();
        let (others, most) = (self.others * of_tokens, self.g.max_of(self.bound(token)));
        let halves = of_halves(self.g, nests);
        let of_warp = self.warp_tiles(others, most, self.tiles_of_warp(others, most, halves));
        let of_group = if group && halves {
            self.tiles_of_group(others, most, nests)
        } else {
            None
        };
        let first = of_group.unwrap_or(of_warp);
        let of = |w: WarpTiles| self.tiles_of_warps(token, w);
        let others = self
            .other_tiles(first)
            .into_iter()
            .chain([("each warp by itself", of_warp)])
            .map(|(name, tiles)| (name, of(tiles)));
        let threads =
            host_bound(self.g, self.axes[token]).then(|| self.tokens_of_threads(token, TOKENS, 1));
        proposals(
            of(first),
            others.chain(threads.map(|plan| ("without fragments", plan))),
        )
    }
    /// Tiles that differ from the heuristic's in one respect, by name.
    fn other_tiles(&self, first: WarpTiles) -> [(&'static str, WarpTiles); 6] {
        let WarpTiles {
            rows,
            high,
            tiles,
            column_warps,
            ..
        } = first;
        let taller = if self.rows / WARP_ROWS % (2 * high * rows) == 0 {
            2 * high
        } else {
            high
        };
        let high = |high: i64| WarpTiles { high, ..first };
        let tokens = |tiles: i64| WarpTiles { tiles, ..first };
        let along_tokens = WarpTiles {
            rows: 1,
            column_warps: column_warps * rows,
            group: false,
            ..first
        };
        let along_terms = WarpTiles {
            rows: (rows / 2).max(1),
            ..first
        };
        [
            ("fewer rows", high(1)),
            ("more rows", high(taller)),
            ("fewer tokens", tokens((tiles / 2).max(1))),
            ("more tokens", tokens(2 * tiles)),
            ("warps along tokens", along_tokens),
            ("warps along terms", along_terms),
        ]
    }
    fn tiles_of_warps(&self, token: usize, tiles: WarpTiles) -> Workgroup {
        let WarpTiles {
            rows,
            high,
            tiles,
            column_warps,
            group,
        } = tiles;
        let block = if host_bound(self.g, self.axes[token]) {
            Global
        } else {
            Loop
        };
        let (row, of_warp) = (self.row, WARP_ROWS * high);
        // Warps that share the columns of a product have adjacent rows.
        let together = if group { GROUP.min(rows) } else { 1 };
        let parts = [
            AxisPart::rest(row, Global, rows * of_warp),
            AxisPart::rest(token, block, 8 * tiles * column_warps),
            AxisPart::new(row, Vector, rows / together, together * of_warp),
            AxisPart::new(token, Vector, column_warps, 8 * tiles),
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
    /// Tiles for groups of four warps (wgmma): the largest, then smaller ones until nearly
    /// every multiprocessor has work.
    fn tiles_of_group(&self, others: i64, most: i64, nests: &[Id]) -> Option<WarpTiles> {
        let rows = power_divisor(self.rows / WARP_ROWS, self.warps());
        // Other sums in the same kernel need a second workgroup per unit.
        let g = self.g;
        let alone = g
            .toposort(nests)
            .into_iter()
            .all(|n| g[n].op != Op::Reduce || MmaSum::unpacked(g, n).is_some());
        let widest = self.target.machine.gpu_facts().warpgroup_tile_tokens / WGMMA_TILE;
        let tiles = if alone { widest } else { widest / 2 };
        let tiles = tiles.min(up_to_power((most + 7) / 8));
        let high = if alone && self.sums == 1 && self.rows / WARP_ROWS % (2 * rows) == 0 {
            2
        } else {
            1
        };
        let mut of = WarpTiles {
            rows,
            high,
            tiles,
            column_warps: self.warps() / rows,
            group: true,
        };
        let too_few = |of: WarpTiles| {
            4 * self.groups(of, others, most) < 3 * self.target.machine.units as i64
        };
        while too_few(of) && (of.high > 1 || of.tiles > MIN_GROUP_TILES) {
            if of.high > 1 {
                of.high = 1
            } else {
                of.tiles /= 2
            }
        }
        (rows >= GROUP && tiles >= MIN_GROUP_TILES).then_some(of)
    }
    /// Tiles per warp: up to [`WARP_TOKENS`] tokens share its rows. Warps divide rows first;
    /// remaining warps divide tokens.
    fn tiles_of_warp(&self, others: i64, most: i64, halves: bool) -> WarpTiles {
        let (n, warps) = (self.rows, self.warps());
        let tiles = up_to_power((most + 7) / 8).min(WARP_TOKENS / 8);
        let rows = power_divisor(n / WARP_ROWS, warps);
        let column_warps = up_to_power(most / (8 * tiles)).min(warps / rows);
        // Two row tiles per warp, as long as every multiprocessor has work.
        let twice = WarpTiles {
            rows,
            high: 2,
            tiles,
            column_warps,
            group: false,
        };
        // Half-precision products load one step at a time, so each multiprocessor should
        // have its full occupancy.
        let wanted = if halves { self.target.resident() } else { 1 };
        let is_enough =
            self.groups(twice, others, most) >= wanted * self.target.machine.units as i64;
        // Sums of twice the rows would leave no registers for another workgroup, or load partial
        // cache lines of each row.
        let facts = self.target.machine.gpu_facts();
        let has_room =
            !halves || tiles > 1 && self.sums * 2 * tiles <= facts.dequantising_warp_tiles;
        let high = if n / WARP_ROWS % (2 * rows) == 0 && is_enough && has_room {
            2
        } else {
            1
        };
        // Two warps that alternate over a row's terms load whole cache lines.
        let lines = halves && tiles * column_warps == 1 && rows > 1 && self.steps % 2 == 0;
        let of = WarpTiles {
            high,
            rows: if lines { rows / 2 } else { rows },
            ..twice
        };
        let few = self.groups(of, others, most)
            < facts.waves_of_two_warps * resident_workgroups(self.target);
        let shared = self
            .shared_terms(of)
            .filter(|of| lines && few && self.warps() / (of.rows * column_warps) <= MAX_SHARING);
        shared.unwrap_or(of)
    }
    /// Doubles the warps that share the terms of sums (split-K), if there are enough steps. No
    /// weight is then read or dequantised twice.
    fn shared_terms(&self, of: WarpTiles) -> Option<WarpTiles> {
        let sharing = self.warps() / (of.rows / 2).max(1) / of.column_warps;
        let shared = of.rows > 1 && sharing * MIN_STEPS <= self.steps && self.steps % sharing == 0;
        shared.then_some(WarpTiles {
            rows: of.rows / 2,
            ..of
        })
    }
    fn warps(&self) -> i64 {
        (self.target.threads as i64 / MMA_I8.sums.lanes()).max(1)
    }
    /// Workgroups of such tiles, for `others` elements of other axes and at most `most` tokens.
    fn groups(&self, of: WarpTiles, others: i64, most: i64) -> i64 {
        let tokens = 8 * of.tiles * of.column_warps;
        others * (self.rows / WARP_ROWS / (of.rows * of.high)) * ((most + tokens - 1) / tokens)
    }
    /// Shrinks the tiles of warps until every multiprocessor has work.
    fn warp_tiles(&self, others: i64, most: i64, mut of: WarpTiles) -> WarpTiles {
        while self.groups(of, others, most) < self.target.machine.units as i64 {
            if let Some(shared) = self.shared_terms(of) {
                of = shared;
                continue;
            }
            match of {
                WarpTiles {
                    tiles: 1,
                    column_warps: 1,
                    high: 1,
                    ..
                } => break,
                WarpTiles {
                    tiles: 1,
                    column_warps: 1,
                    ..
                } => of.high /= 2,
                WarpTiles { tiles: 1, .. } => of.column_warps /= 2,
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
