//! A nest that is one sum of products of halves over whole tiles, which warps can multiply (`map/fragment_tiling.rs`).
//!
//! It has outputs of *rows*, on which one operand depends, and *columns*, on which the other does; the latter's values are f32 in two parts
//! (`decompose/f16_split.rs`), over which the sum goes as well, or halves. A tile is as high as the machine's fragment, and as wide, two parts being two columns.

use crate::ir::mma::fragment::{MmaSum, along, enough};
use crate::ir::nest::Nest;
use gristmill_uop::fragment::Fragment;
use gristmill_uop::machine::Machine;
use gristmill_uop::{Graph, Id, Op, RangeKind};

/// The nest, taken apart.
pub struct MmaProduct {
    /// The nest.
    pub nest: Nest,
    /// The reduction.
    pub id: Id,
    /// Its operands.
    pub sum: MmaSum,
    /// What multiplies them.
    pub of: &'static Fragment,
    /// The range of rows, and tiles of them.
    pub row: Id,
    /// Tiles of rows.
    pub high: i64,
    /// The range of columns.
    pub column: Id,
    /// Outputs beside one another.
    pub outputs: i64,
    /// A range on which both operands depend, or neither.
    pub both: Option<Id>,
    /// The range of the terms, and their number.
    pub term: Id,
    /// Terms.
    pub terms: i64,
    /// Ranges of the sum besides: on which columns do not depend, and a loop that nests share.
    pub alone: Vec<Id>,
}

impl MmaProduct {
    /// The product that a nest is, if it is one that the machine's warps multiply.
    pub fn from_store(g: &Graph, store: Id, machine: &Machine) -> Option<MmaProduct> {
        let nest = Nest::from_store(g, store);
        let sums: Vec<Id> = g.toposort(&[nest.value]).into_iter().filter(|&n| g[n].op == Op::Reduce).collect();
        let &[id] = &sums[..] else { return None };
        let sum = MmaSum::from_node(g, id)?;
        let of = machine.subgroup_fragment(sum.operand)?;
        let both = [Some(sum), MmaSum::from_node(g, id)?.turned(g)].into_iter().flatten();
        let mut found: Vec<MmaProduct> =
            both.filter_map(|sum| MmaProduct::with(g, nest.clone(), id, sum, of)).collect();
        // A lane's columns are neighbours, which are written together where the output's are.
        found.sort_by_key(|p| g.linear(p.nest.offset).coefficient(p.column) != 1);
        found.into_iter().next()
    }
    /// The same product with columns that are neighbours where it is written, if both operands are in stages: as several warps have it, who divide its rows.
    pub fn of_stages(g: &Graph, store: Id, machine: &Machine) -> Option<MmaProduct> {
        let MmaProduct { nest, id, of, sum, .. } = MmaProduct::from_store(g, store, machine)?;
        if sum.part.is_some() || !sum.staged_rows(g) || !sum.staged_columns(g) {
            return None;
        }
        let turned = MmaSum::from_node(g, id)?.exchanged();
        let both = [sum, turned].into_iter();
        let mut found = both.filter_map(|sum| MmaProduct::with(g, nest.clone(), id, sum, of));
        found.find(|p| p.both.is_none() && g.linear(p.nest.offset).coefficient(p.column) == 1)
    }
    /// The product with these operands.
    fn with(g: &Graph, nest: Nest, id: Id, sum: MmaSum, of: &'static Fragment) -> Option<MmaProduct> {
        let bound = |r: Id| g.int_value(g[r].src[0]);
        let depends = |x: Id, r: &Id| g.free_ranges(x).contains(r);
        let others = g[id].src[1..].iter().copied().filter(|&r| Some(r) != sum.part);
        let is_shared = |r: &Id| g.range_kind(*r) == Some(RangeKind::Fused);
        let (common, alone): (Vec<Id>, Vec<Id>) = others.partition(|r| depends(sum.columns, r) && !is_shared(r));
        let &[term] = &common[..] else { return None };
        let terms = bound(term).filter(|n| n % of.terms == 0)?;
        let (rows, rest): (Vec<Id>, Vec<Id>) =
            nest.closed.iter().partition(|r| depends(sum.rows, r) && !depends(sum.columns, r));
        let (columns, both): (Vec<Id>, Vec<Id>) =
            rest.iter().partition(|r| depends(sum.columns, r) && !depends(sum.rows, r));
        let (&[row], &[column]) = (&rows[..], &columns[..]) else { return None };
        let loops = |r: &Id| g.range_kind(*r) == Some(RangeKind::Loop) && bound(*r).is_some();
        let high = bound(row).filter(|n| n % of.rows == 0)? / of.rows;
        let outputs = bound(column).filter(|&n| n >= enough(of))?;
        if !nest.closed.iter().all(loops) || both.len() > 1 || !depends(sum.rows, &term) {
            return None;
        }
        let both = both.first().copied();
        Some(MmaProduct { nest, id, sum, of, row, high, column, outputs, both, term, terms, alone })
    }
    /// Is it a sum in a loop that nests share? What a warp does not keep at once, the loop is run again for.
    pub fn is_fused(&self, g: &Graph) -> bool {
        self.alone.iter().any(|&r| g.range_kind(r) == Some(RangeKind::Fused))
    }
    /// Is an operand in a stage?
    pub fn is_staged(&self, g: &Graph) -> bool {
        self.sum.staged_rows(g) || self.sum.staged_columns(g)
    }
    /// Outputs of a lane: as many as it has columns, or one of two parts.
    pub fn of_lane(&self) -> i64 {
        if self.sum.part.is_some() { 1 } else { along(self.of.sums.registers, false).count }
    }
    /// Outputs of a tile.
    pub fn of_tile(&self) -> i64 {
        along(self.of.sums.lanes, false).count * self.of_lane()
    }
    /// Tiles beside one another.
    pub fn tiles_beside(&self) -> i64 {
        (self.outputs + self.of_tile() - 1) / self.of_tile()
    }
    /// Elements of the range on which both operands depend.
    pub fn of_both(&self, g: &Graph) -> Option<i64> {
        self.both.map(|r| g.max_of(g[r].src[0]))
    }
}
