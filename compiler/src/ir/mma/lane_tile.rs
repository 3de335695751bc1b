//! How the ranges of a nest are the digits of a fragment's sums, and which values its operands' registers then hold: read off the fragment's row
//! (`uop/src/fragment.rs`).
//!
//! Which terms a lane holds is free, as long as both operands agree: a register is told which of the lane's words it has, and lowering takes for them what
//! one load brings.

use crate::ir::nest::ranges_of_kind;
use gristmill_uop::fragment::{Digit, Fragment, OperandLayout};
use gristmill_uop::{Graph, Id, RangeKind};
use rustc_hash::FxHashMap;

/// An operand of a fragment.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    /// `rows × terms`.
    First,
    /// `terms × columns`.
    Second,
}

impl Side {
    fn held(self, of: &Fragment) -> &OperandLayout {
        match self {
            Side::First => &of.first,
            Side::Second => &of.second,
        }
    }
    /// How far a digit moves along the outputs.
    fn output(self, d: &Digit) -> i64 {
        match self {
            Side::First => d.row,
            Side::Second => d.column,
        }
    }
    /// How far a digit moves along the terms.
    fn term(self, d: &Digit) -> i64 {
        match self {
            Side::First => d.column,
            Side::Second => d.row,
        }
    }
}

/// A register of an operand.
pub(crate) struct Register {
    /// What stands for the ranges of the operand's outputs in the lane that holds it.
    pub at: FxHashMap<Id, Id>,
    /// Which of the lane's words of terms it is.
    pub word: i64,
}

/// The ranges of a warp's tile of sums, by the digits of its row, the lowest first.
pub(crate) struct LaneTile {
    of: &'static Fragment,
    lanes: Vec<(Digit, Id)>,
    registers: Vec<(Digit, Id)>,
}

/// Are the ranges of a nest the digits of that fragment's sums, of products of these rows and columns?
pub fn is_laid_out(g: &Graph, of: &'static Fragment, closed: &[Id], rows: Id, columns: Id) -> bool {
    LaneTile::from_ranges(g, of, closed, None).is_some_and(|tile| tile.fits(g, rows, columns))
}

impl LaneTile {
    /// The tile of a nest of these ranges, if its last threads are the lane's digits, and its last `copies` the registers'. Of these the lowest may be a range of
    /// the sum itself.
    pub fn from_ranges(g: &Graph, of: &'static Fragment, closed: &[Id], lowest: Option<Id>) -> Option<LaneTile> {
        let (threads, mut copies) =
            (ranges_of_kind(g, closed, RangeKind::Vector), ranges_of_kind(g, closed, RangeKind::Upcast));
        copies.extend(lowest);
        let last = |ranges: &[Id], digits: &[Digit]| -> Option<Vec<(Digit, Id)>> {
            let pairs: Vec<(Digit, Id)> = digits.iter().copied().zip(ranges.iter().rev().copied()).collect();
            let fits = |(d, r): &(Digit, Id)| g.int_value(g[*r].src[0]) == Some(d.count);
            (pairs.len() == digits.len() && pairs.iter().all(fits)).then_some(pairs)
        };
        Some(LaneTile { of, lanes: last(&threads, of.sums.lanes)?, registers: last(&copies, of.sums.registers)? })
    }
    /// Its ranges.
    pub fn ranges(&self) -> impl Iterator<Item = Id> + '_ {
        self.lanes.iter().chain(&self.registers).map(|d| d.1)
    }
    /// Ranges of the outputs along a side.
    pub fn outputs(&self, side: Side) -> impl Iterator<Item = &(Digit, Id)> {
        self.lanes.iter().chain(&self.registers).filter(move |(d, _)| side.output(d) != 0)
    }
    /// Are these the operands of its sums, each the same along the other's outputs?
    pub fn fits(&self, g: &Graph, first: Id, second: Id) -> bool {
        let free = |x: Id, side: Side| self.outputs(side).all(|(_, r)| !g.free_ranges(x).contains(r));
        free(first, Side::Second) && free(second, Side::First)
    }
    /// The lane's number among those that share an output: they have its terms.
    pub fn part(&self, side: Side) -> Id {
        let shared = side.held(self.of).lanes.iter().zip(&self.lanes).find(|(d, _)| side.term(d) != 0);
        shared.unwrap_or_else(|| unreachable!("lanes share terms: {}", self.of.name)).1.1
    }
    /// Words of terms that a lane has of each output.
    pub fn words(&self, side: Side) -> i64 {
        side.held(self.of).registers.iter().filter(|d| side.term(d) != 0).map(|d| d.count).product()
    }
    /// The registers of an operand, in order.
    pub fn operand(&self, g: &mut Graph, side: Side) -> Vec<Register> {
        let held = side.held(self.of);
        (0..held.registers()).map(|number| self.register(g, side, held, number)).collect()
    }
    fn register(&self, g: &mut Graph, side: Side, held: &OperandLayout, mut number: i64) -> Register {
        let (mut word, mut words, mut output) = (0, 1, 0);
        for d in held.registers {
            let value = number % d.count;
            number /= d.count;
            output += value * side.output(d);
            if side.term(d) != 0 {
                word += value * words;
                words *= d.count;
            }
        }
        // The number of the output that the lane holds.
        let mut index = g.int(output);
        for (d, &(_, lane)) in held.lanes.iter().zip(&self.lanes).filter(|(d, _)| side.output(d) != 0) {
            let step = g.int(side.output(d));
            let step = g.mul(lane, step);
            index = g.add(index, step);
        }
        let outputs: Vec<(Digit, Id)> = self.outputs(side).copied().collect();
        let at = outputs.into_iter().map(|(d, r)| {
            let (by, count) = (g.int(side.output(&d)), g.int(d.count));
            let value = g.idiv(index, by);
            (r, g.modulo(value, count))
        });
        Register { at: at.collect(), word }
    }
    /// The number of the register that has an output's sum.
    pub fn sum(&self, g: &mut Graph) -> Id {
        let (mut at, mut step) = (g.int(0), 1);
        for (d, r) in &self.registers {
            let by = g.int(step);
            let part = g.mul(*r, by);
            at = g.add(at, part);
            step *= d.count;
        }
        at
    }
    /// The register of the sums, and its number in place of the lowest digit's range.
    pub fn lowest(&self) -> (Id, i64) {
        let (d, r) = self.registers[0];
        (r, d.count)
    }
}
