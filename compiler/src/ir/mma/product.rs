//! Recognises a nest that is one sum of half-precision products over whole tiles, which warps can
//! multiply (`map/fragment_tiling.rs`).
//!
//! One operand depends on the output *rows*, the other on the output *columns*. Column values are
//! f16, bf16, or f32 values split into two parts (`decompose/f16_split.rs`), over which the sum
//! then runs as well. A tile is as high and as wide as the machine's fragment; two parts take two
//! columns.

use crate::ir::mma::fragment::{MmaSum, along, enough};
use crate::ir::nest::Nest;
use gristmill_uop::fragment::Fragment;
use gristmill_uop::machine::Machine;
use gristmill_uop::{Graph, Id, Op, RangeKind};

/// A matrix product recognised in a nest.
pub struct MmaProduct {
    /// The nest that contains the sum.
    pub nest: Nest,
    /// The reduction node in that nest.
    pub id: Id,
    /// Operands of the reduction.
    pub sum: MmaSum,
    /// The MMA fragment that multiplies them.
    pub of: &'static Fragment,
    /// Range of the output rows.
    pub row: Id,
    /// Number of row tiles.
    pub high: i64,
    /// Range of the output columns.
    pub column: Id,
    /// Number of output columns.
    pub outputs: i64,
    /// The batch range, on which both operands depend, if there is one.
    pub both: Option<Id>,
    /// Range of the terms (the K axis).
    pub term: Id,
    /// Number of terms, a multiple of the fragment's.
    pub terms: i64,
    /// Other ranges of the sum: those that the columns do not depend on, and a
    /// loop shared by nests.
    pub alone: Vec<Id>,
}

impl MmaProduct {
    /// Recognises a nest as a product that the machine's warps can multiply.
    pub fn from_store(g: &Graph, store: Id, machine: &Machine) -> Option<MmaProduct> {
        let nest = Nest::from_store(g, store);
        let sums: Vec<Id> = g
            .toposort(&[nest.value])
            .into_iter()
            .filter(|&n| g[n].op == Op::Reduce)
            .collect();
        let &[id] = &sums[..] else { return None };
        let sum = MmaSum::from_node(g, id)?;
        let of = machine.subgroup_fragment(sum.operand)?;
        let both = [Some(sum), MmaSum::from_node(g, id)?.turned(g)]
            .into_iter()
            .flatten();
        let mut found: Vec<MmaProduct> = both
            .filter_map(|sum| MmaProduct::with(g, nest.clone(), id, sum, of))
            .collect();
        // Prefers the orientation where columns are contiguous in the output, so that a lane writes
        // its columns with one store.
        found.sort_by_key(|p| g.linear(p.nest.offset).coefficient(p.column) != 1);
        found.into_iter().next()
    }
    /// The product with columns that are contiguous in the output, if both operands are in stages.
    /// Products of several warps (wgmma), which divide the rows, need this form.
    pub fn of_stages(g: &Graph, store: Id, machine: &Machine) -> Option<MmaProduct> {
        let MmaProduct {
            nest, id, of, sum, ..
        } = MmaProduct::from_store(g, store, machine)?;
        if sum.part.is_some() || !sum.staged_rows(g) || !sum.staged_columns(g) {
            return None;
        }
        let turned = MmaSum::from_node(g, id)?.exchanged();
        let both = [sum, turned].into_iter();
        let mut found = both.filter_map(|sum| MmaProduct::with(g, nest.clone(), id, sum, of));
        found.find(|p| p.both.is_none() && g.linear(p.nest.offset).coefficient(p.column) == 1)
    }
    /// The product with these operands, if its ranges fit.
    fn with(
        g: &Graph,
        nest: Nest,
        id: Id,
        sum: MmaSum,
        of: &'static Fragment,
    ) -> Option<MmaProduct> {
        let bound = |r: Id| g.int_value(g[r].src[0]);
        let depends = |x: Id, r: &Id| g.free_ranges(x).contains(r);
        let others = g[id].src[1..]
            .iter()
            .copied()
            .filter(|&r| Some(r) != sum.part);
        let is_shared = |r: &Id| g.range_kind(*r) == Some(RangeKind::Fused);
        let (common, alone): (Vec<Id>, Vec<Id>) =
            others.partition(|r| depends(sum.columns, r) && !is_shared(r));
        let &[term] = &common[..] else { return None };
        let terms = bound(term).filter(|n| n % of.terms == 0)?;
        let (rows, rest): (Vec<Id>, Vec<Id>) = nest
            .closed
            .iter()
            .partition(|r| depends(sum.rows, r) && !depends(sum.columns, r));
        let (columns, both): (Vec<Id>, Vec<Id>) = rest
            .iter()
            .partition(|r| depends(sum.columns, r) && !depends(sum.rows, r));
        let (&[row], &[column]) = (&rows[..], &columns[..]) else {
            return None;
        };
        let loops = |r: &Id| g.range_kind(*r) == Some(RangeKind::Loop) && bound(*r).is_some();
        let high = bound(row).filter(|n| n % of.rows == 0)? / of.rows;
        let outputs = bound(column).filter(|&n| n >= enough(of))?;
        if !nest.closed.iter().all(loops) || both.len() > 1 || !depends(sum.rows, &term) {
            return None;
        }
        let both = both.first().copied();
        Some(MmaProduct {
            nest,
            id,
            sum,
            of,
            row,
            high,
            column,
            outputs,
            both,
            term,
            terms,
            alone,
        })
    }
    /// Whether the sum is inside a loop that nests share. That loop runs again for tiles that a
    /// warp cannot keep at once.
    pub fn is_fused(&self, g: &Graph) -> bool {
        self.alone
            .iter()
            .any(|&r| g.range_kind(r) == Some(RangeKind::Fused))
    }
    /// Whether an operand is read from a stage.
    pub fn is_staged(&self, g: &Graph) -> bool {
        self.sum.staged_rows(g) || self.sum.staged_columns(g)
    }
    /// Outputs of a lane in one tile: its number of columns, or one for values in two parts.
    pub fn of_lane(&self) -> i64 {
        if self.sum.part.is_some() {
            1
        } else {
            along(self.of.sums.registers, false).count
        }
    }
    /// Output columns of one tile.
    pub fn of_tile(&self) -> i64 {
        along(self.of.sums.lanes, false).count * self.of_lane()
    }
    /// Number of column tiles.
    pub fn tiles_beside(&self) -> i64 {
        (self.outputs + self.of_tile() - 1) / self.of_tile()
    }
    /// Size of the batch range, if there is one.
    pub fn of_both(&self, g: &Graph) -> Option<i64> {
        self.both.map(|r| g.max_of(g[r].src[0]))
    }
}
