//! Checks a CPU's tile registers: each still holds the tile or the sum that an instruction reads.

use super::error::{Checked, LinearError};
use crate::lower::linear_ir::{Code, Statement, end_of_block};
use gristmill_uop::{Arg, Graph, Id, Op};
use rustc_hash::FxHashMap;

const RULE: &str = "a tile register holds what is read from it";

/// Checks the nests of a body, each from registers of unknown contents.
pub(super) fn check(g: &Graph, code: &Code) -> Checked {
    Walk {
        g,
        held: FxHashMap::default(),
    }
    .statements(&code.statements, 0)
}

struct Walk<'a> {
    g: &'a Graph,
    /// By register, the tile or the accumulator in it.
    held: FxHashMap<i32, Id>,
}

impl Walk<'_> {
    /// Walks statements in execution order; loops run twice.
    fn statements(&mut self, all: &[Statement], offset: usize) -> Checked {
        let mut at = 0;
        while at < all.len() {
            let end = at + end_of_block(&all[at..]);
            let times = match &all[at] {
                Statement::Nest { .. } => 1,
                Statement::Loop { .. } => 2,
                s => {
                    if !self.statement(s) {
                        let statement = offset + at;
                        let node = format!("statement {statement}");
                        return Err(LinearError {
                            rule: RULE,
                            statement,
                            node,
                        });
                    }
                    0
                }
            };
            for _ in 0..times {
                self.statements(&all[at + 1..end], offset + at + 1)?;
            }
            at = end.max(at) + 1;
        }
        Ok(())
    }
    /// Returns whether the statement reads what its registers hold.
    fn statement(&mut self, s: &Statement) -> bool {
        let g = self.g;
        match *s {
            Statement::Define(id) if matches!(g[id].op, Op::TileLoad | Op::TileRows) => {
                self.hold(id, id);
                true
            }
            Statement::Accumulator(acc) => {
                if let Some(product) = g[acc].src.get(1).and_then(|&sum| product(g, sum)) {
                    self.hold(product, acc);
                }
                true
            }
            // A subgroup's products have no registers.
            Statement::Accumulate(acc, value)
                if g[value].op == Op::TileMma && register(g, value).is_some() =>
            {
                let operands = g[value].src[..2].iter().map(|&tile| (tile, tile));
                std::iter::once((value, acc))
                    .chain(operands)
                    .all(|(of, held)| self.holds(of, |id| id == held))
            }
            Statement::WriteTile(_, _, _, sum) => product(g, sum)
                .is_none_or(|product| self.holds(product, |acc| g[acc].src.get(1) == Some(&sum))),
            _ => true,
        }
    }
    fn hold(&mut self, of: Id, id: Id) {
        if let Some(register) = register(self.g, of) {
            self.held.insert(register, id);
        }
    }
    /// Returns whether the register of a node, if it has one, holds such a tile.
    fn holds(&self, of: Id, is_right: impl Fn(Id) -> bool) -> bool {
        register(self.g, of)
            .is_none_or(|register| self.held.get(&register).is_some_and(|&held| is_right(held)))
    }
}

/// Returns the product of tiles that a sum adds up.
fn product(g: &Graph, sum: Id) -> Option<Id> {
    let terms = (g[sum].op == Op::Reduce).then(|| g[sum].src[0])?;
    (g[terms].op == Op::TileMma).then_some(terms)
}

/// Returns the register of a tile on a CPU. A GPU's operand tiles have positions instead, and its
/// products no argument.
fn register(g: &Graph, id: Id) -> Option<i32> {
    match (&g[id].op, &g[id].arg) {
        (Op::TileLoad | Op::TileRows | Op::TileMma, Arg::Ints(numbers)) => numbers.first().copied(),
        _ => None,
    }
}
