//! The side of every node of a function that is cut.

use super::cut::{Cut, away_nodes};
use super::nodes::users;
use gristmill_uop::function::Function;
use gristmill_uop::{Graph, Id, Op};
use rustc_hash::FxHashSet;

/// Place of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// Does not depend on data: computed wherever it is read.
    Anywhere,
    /// At home, before the away part.
    Before,
    /// At home, neither before nor after it.
    Beside,
    Away,
    /// At home, after it.
    After,
}

/// The side of every node.
pub(super) struct Sides(Vec<Side>);

impl Sides {
    pub(super) fn at(&self, id: Id) -> Side {
        self.0[id.index()]
    }
    /// Returns the sides of a function that is not cut.
    pub(super) fn anywhere(g: &Graph) -> Sides {
        Sides(vec![Side::Anywhere; g.len()])
    }
    pub(super) fn new(function: &Function, order: &[Id], by: Cut) -> Option<Sides> {
        let g = &function.graph;
        let away = away_nodes(function, order, by)?;
        let mut data: FxHashSet<Id> = FxHashSet::default();
        for &id in order {
            if g[id].op == Op::Param || g[id].src.iter().any(|s| data.contains(s)) {
                data.insert(id);
            }
        }
        let after = users(g, order, &away);
        let mut begin: Vec<Id> = away.iter().flat_map(|&id| g[id].src.to_vec()).collect();
        // States are written in the first part, which reads them.
        let is_first = |&(slot, id): &(u32, Id)| g[id].op.is_version() || (by.is_early)(slot);
        let outputs = function.outputs.iter().copied();
        begin.extend(outputs.filter(is_first).map(|output| output.1));
        let before: FxHashSet<Id> = g.toposort(&begin).into_iter().collect();
        let mut sides = vec![Side::Anywhere; g.len()];
        for &id in order.iter().filter(|id| data.contains(id)) {
            sides[id.index()] = match id {
                id if away.contains(&id) => Side::Away,
                id if after.contains(&id) => Side::After,
                id if before.contains(&id) => Side::Before,
                _ => Side::Beside,
            };
        }
        let mut sides = Sides(sides);
        sides.drop_idle(g, order);
        Some(sides)
    }
    /// Moves what is beside the away part after it, unless that reads weights.
    fn drop_idle(&mut self, g: &Graph, order: &[Id]) {
        let works = |&id: &Id| self.at(id) == Side::Beside && g[id].op == Op::Decode;
        if !order.iter().any(works) {
            for side in self.0.iter_mut().filter(|side| **side == Side::Beside) {
                *side = Side::After;
            }
        }
    }
}
