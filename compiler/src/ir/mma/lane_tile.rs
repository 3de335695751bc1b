//! Matches the ranges of a nest with the digits of a fragment's sums, and derives the values in its
//! operands' registers from the fragment's layout (`uop/src/fragment.rs`).
//!
//! Any assignment of terms to lanes is valid as long as both operands agree. A register only knows
//! which of its lane's words it holds, and lowering loads as many words as one instruction brings.

use crate::ir::nest::ranges_of_kind;
use gristmill_uop::fragment::{Digit, Fragment, OperandLayout};
use gristmill_uop::{Graph, Id, RangeKind};
use rustc_hash::FxHashMap;

/// An operand of a fragment.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    /// The left operand: `rows × terms`.
    First,
    /// The right operand: `terms × columns`.
    Second,
}

impl Side {
    fn held(self, of: &Fragment) -> &OperandLayout {
        match self {
            Side::First => &of.first,
            Side::Second => &of.second,
        }
    }
    /// Step of a digit along the operand's outputs.
    fn output(self, d: &Digit) -> i64 {
        match self {
            Side::First => d.row,
            Side::Second => d.column,
        }
    }
    /// Step of a digit along the terms.
    fn term(self, d: &Digit) -> i64 {
        match self {
            Side::First => d.column,
            Side::Second => d.row,
        }
    }
}

/// A register of an operand.
pub(crate) struct Register {
    /// Index in place of each output range, in the lane that holds the register.
    pub at: FxHashMap<Id, Id>,
    /// Index of the word among the lane's words of terms.
    pub word: i64,
}

/// Ranges of a warp's tile of sums, paired with the digits of the fragment, the lowest first.
pub(crate) struct LaneTile {
    of: &'static Fragment,
    lanes: Vec<(Digit, Id)>,
    registers: Vec<(Digit, Id)>,
}

/// Whether the ranges of a nest are the digits of that fragment's sums, for products of
/// these rows and columns.
pub fn is_laid_out(g: &Graph, of: &'static Fragment, closed: &[Id], rows: Id, columns: Id) -> bool {
    LaneTile::from_ranges(g, of, closed, None).is_some_and(|tile| tile.fits(g, rows, columns))
}

impl LaneTile {
    /// The tile of a nest with these ranges, if its last thread ranges are the lane digits and
    /// its last `Upcast` ranges the register digits. The lowest register digit may be a range
    /// of the sum itself.
    pub fn from_ranges(
        g: &Graph,
        of: &'static Fragment,
        closed: &[Id],
        lowest: Option<Id>,
    ) -> Option<LaneTile> {
        let (threads, mut copies) = (
            ranges_of_kind(g, closed, RangeKind::Vector),
            ranges_of_kind(g, closed, RangeKind::Upcast),
        );
        copies.extend(lowest);
        let last = |ranges: &[Id], digits: &[Digit]| -> Option<Vec<(Digit, Id)>> {
            let pairs: Vec<(Digit, Id)> = digits
                .iter()
                .copied()
                .zip(ranges.iter().rev().copied())
                .collect();
            let fits = |(d, r): &(Digit, Id)| g.int_value(g[*r].src[0]) == Some(d.count);
            (pairs.len() == digits.len() && pairs.iter().all(fits)).then_some(pairs)
        };
        Some(LaneTile {
            of,
            lanes: last(&threads, of.sums.lanes)?,
            registers: last(&copies, of.sums.registers)?,
        })
    }
    pub fn ranges(&self) -> impl Iterator<Item = Id> + '_ {
        self.lanes.iter().chain(&self.registers).map(|d| d.1)
    }
    /// Output ranges of an operand.
    pub fn outputs(&self, side: Side) -> impl Iterator<Item = &(Digit, Id)> {
        self.lanes
            .iter()
            .chain(&self.registers)
            .filter(move |(d, _)| side.output(d) != 0)
    }
    /// Whether these are operands of its sums: each is constant along the other's outputs.
    pub fn fits(&self, g: &Graph, first: Id, second: Id) -> bool {
        let free = |x: Id, side: Side| {
            self.outputs(side)
                .all(|(_, r)| !g.free_ranges(x).contains(r))
        };
        free(first, Side::Second) && free(second, Side::First)
    }
    /// Index of the lane among those that share an output and divide its terms.
    pub fn part(&self, side: Side) -> Id {
        let shared = side
            .held(self.of)
            .lanes
            .iter()
            .zip(&self.lanes)
            .find(|(d, _)| side.term(d) != 0);
        shared
            .unwrap_or_else(|| unreachable!("lanes share terms: {}", self.of.name))
            .1
            .1
    }
    /// Words of terms that a lane holds for each output.
    pub fn words(&self, side: Side) -> i64 {
        side.held(self.of)
            .registers
            .iter()
            .filter(|d| side.term(d) != 0)
            .map(|d| d.count)
            .product()
    }
    /// The registers of an operand, in order.
    pub fn operand(&self, g: &mut Graph, side: Side) -> Vec<Register> {
        let held = side.held(self.of);
        (0..held.registers())
            .map(|number| self.register(g, side, held, number))
            .collect()
    }
    fn register(
        &self,
        g: &mut Graph,
        side: Side,
        held: &OperandLayout,
        mut number: i64,
    ) -> Register {
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
        // Index of the output that the lane holds.
        let mut index = g.int(output);
        for (d, &(_, lane)) in held
            .lanes
            .iter()
            .zip(&self.lanes)
            .filter(|(d, _)| side.output(d) != 0)
        {
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
        Register {
            at: at.collect(),
            word,
        }
    }
    /// Index of the register that holds an output's sum.
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
    /// The range of the lowest register digit, and its size.
    pub fn lowest(&self) -> (Id, i64) {
        let (d, r) = self.registers[0];
        (r, d.count)
    }
}
