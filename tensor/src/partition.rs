//! Cuts a function in two places, so that some of its weights may be on another device.
//!
//! A layer whose experts are in host memory is one captured function like any other. [`partition`]
//! finds which of its nodes must run where those weights are: the cut that moves the fewest bytes
//! ([`cut`]), which for experts is normed rows, expert indices and weights on the way out and one
//! row per token on the way back. What does not wait for the other device is a part of its own.

mod cut;
mod part;

use cut::away_nodes;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::{Function, SlotKind};
use gristmill_uop::op::Class;
use gristmill_uop::{Arg, Graph, Id, Op};
use part::PartBuilder;
use rustc_hash::FxHashSet;

/// A value that one part computes and another reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CutValue {
    /// Largest value of each dim.
    pub dims: Vec<i64>,
    /// Type of the elements.
    pub scalar: Scalar,
    /// Whether the first dim is a variable or a sum of variables, and the others are constant.
    pub has_rows: bool,
}

impl CutValue {
    /// Largest size in bytes.
    pub fn bytes(&self) -> usize {
        self.dims.iter().map(|&d| d as usize).product::<usize>() * self.scalar.bytes()
    }
}

/// Origin of a part's slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartSlot {
    /// Slot of the whole function.
    Whole(u32),
    /// Index into [`Partition::values`].
    Value(usize),
}

/// One part of a function.
#[derive(Clone, Debug)]
pub struct Part {
    /// The part as a function of its own.
    pub function: Function,
    /// Whether it runs where the separated weights are.
    pub is_away: bool,
    /// Origin of each slot.
    pub slots: Vec<PartSlot>,
}

/// A function as parts for two devices.
#[derive(Clone, Debug)]
pub struct Partition {
    /// Parts in a valid order. The part beside the away part, if there is one, comes before it and
    /// neither reads what the other writes.
    pub parts: Vec<Part>,
    /// Values between parts.
    pub values: Vec<CutValue>,
}

/// Place of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
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

/// Cuts `function` so that the weight slots for which `is_away` holds are read by one part alone,
/// and every other slot by the other parts. `None` if there is no such cut: a result of one side
/// would pass through the other twice, or only values that no slot can hold separate them.
pub fn partition(function: &Function, is_away: &dyn Fn(u32) -> bool) -> Option<Partition> {
    let g = &function.graph;
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    let order = g.toposort(&roots);
    let sides = Sides::new(function, &order, is_away)?;
    let mut values: Vec<Id> = Vec::new();
    let mut parts = Vec::new();
    // From the last to the first, since each part must return what later ones read.
    for side in [Side::After, Side::Away, Side::Beside, Side::Before] {
        let mut outputs: Vec<(PartSlot, Id)> = Vec::new();
        for &(slot, id) in &function.outputs {
            if sides.of(id) == side {
                outputs.push((PartSlot::Whole(slot), id));
            }
        }
        for (number, &id) in values.iter().enumerate() {
            if sides.of(id) == side {
                outputs.push((PartSlot::Value(number), id));
            }
        }
        if !outputs.is_empty() {
            let part = PartBuilder::new(function, &sides, side, &mut values).build(&outputs)?;
            parts.push(part);
        }
    }
    parts.reverse();
    let value = |&id: &Id| CutValue {
        dims: g.dims(id).iter().map(|&d| g.max_of(d)).collect(),
        scalar: g.scalar(id),
        has_rows: match g.dims(id) {
            [] => false,
            [rows, rest @ ..] => {
                let is_fixed = |&d: &Id| g.int_value(d).is_some();
                matches!(g[*rows].op, Op::Var | Op::Add) && rest.iter().all(is_fixed)
            }
        },
    };
    Some(Partition {
        parts,
        values: values.iter().map(value).collect(),
    })
}

/// Returns whether a slot can hold values of this type.
fn is_storable(scalar: Scalar) -> bool {
    !matches!(scalar, Scalar::Bool | Scalar::I64)
}

/// The side of every node.
struct Sides(Vec<Side>);

impl Sides {
    fn of(&self, id: Id) -> Side {
        self.0[id.index()]
    }
    fn new(function: &Function, order: &[Id], is_away: &dyn Fn(u32) -> bool) -> Option<Sides> {
        let g = &function.graph;
        let away = away_nodes(function, order, is_away)?;
        let mut data: FxHashSet<Id> = FxHashSet::default();
        for &id in order {
            if g[id].op == Op::Param || g[id].src.iter().any(|s| data.contains(s)) {
                data.insert(id);
            }
        }
        let after = users(g, order, &away);
        let mut begin: Vec<Id> = away.iter().flat_map(|&id| g[id].src.to_vec()).collect();
        // States are written in the first part, which reads them.
        begin.extend(
            function
                .outputs
                .iter()
                .map(|o| o.1)
                .filter(|&id| g[id].op.is_version()),
        );
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
        let works = |&id: &Id| self.of(id) == Side::Beside && g[id].op == Op::Decode;
        if !order.iter().any(works) {
            for side in self.0.iter_mut().filter(|side| **side == Side::Beside) {
                *side = Side::After;
            }
        }
    }
}

/// Returns the nodes outside `of` that depend on a node of it.
fn users(g: &Graph, order: &[Id], of: &FxHashSet<Id>) -> FxHashSet<Id> {
    let mut users = FxHashSet::default();
    for &id in order {
        let mut src = g[id].src.iter();
        if !of.contains(&id) && src.any(|s| of.contains(s) || users.contains(s)) {
            users.insert(id);
        }
    }
    users
}

/// Returns whether a part computes the node again instead of reading it: slots, dequantised weights
/// and views of them.
fn is_free(function: &Function, id: Id) -> bool {
    let g = &function.graph;
    match slot_of(g, id) {
        Some(slot) => function.slots[slot as usize].kind != SlotKind::State,
        None => g[id].op == Op::Decode || g[id].op.class() == Class::Movement,
    }
}

fn slot_of(g: &Graph, id: Id) -> Option<u32> {
    match g[id].arg {
        Arg::Param(slot) | Arg::Packed(slot, _) if g[id].op == Op::Param => Some(slot),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
