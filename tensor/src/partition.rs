//! Cuts a function in two places, so that some of its weights may be on another device.
//!
//! A layer whose experts are in host memory is one captured function like any other. [`partition`]
//! finds which of its nodes must run where those weights are: the cut that moves the fewest bytes
//! ([`cut`]), which for experts is normed rows, expert indices and weights on the way out and one
//! row per token on the way back. What does not wait for the other device is a part of its own.

mod cut;
mod nodes;
mod part;
mod sides;

pub use cut::Cut;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;
use gristmill_uop::{Id, Op};
use part::PartBuilder;
pub use part::{Part, PartSlot};
use sides::{Side, Sides};

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

/// A function as parts for two devices.
#[derive(Clone, Debug)]
pub struct Partition {
    /// Parts in a valid order. The part beside the away part, if there is one, comes before it and
    /// neither reads what the other writes.
    pub parts: Vec<Part>,
    /// Values that a part computes and a later one reads.
    pub values: Vec<CutValue>,
}

/// Cuts `function` so that the slots that are away are read by one part alone, and every other slot
/// by the other parts. `None` if there is no such cut: a result of one side
/// would pass through the other twice, or only values that no slot can hold separate them.
pub fn partition(function: &Function, by: Cut) -> Option<Partition> {
    let g = &function.graph;
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    let order = g.toposort(&roots);
    let sides = Sides::new(function, &order, by)?;
    let mut values: Vec<Id> = Vec::new();
    let mut parts = Vec::new();
    // From the last to the first, since each part must return what later ones read.
    for side in [Side::After, Side::Away, Side::Beside, Side::Before] {
        let mut outputs: Vec<(PartSlot, Id)> = Vec::new();
        for &(slot, id) in &function.outputs {
            if sides.at(id) == side {
                outputs.push((PartSlot::Whole(slot), id));
            }
        }
        for (number, &id) in values.iter().enumerate() {
            if sides.at(id) == side {
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

/// Returns a function as one part, without the slots that its results do not need.
///
/// # Panics
/// If a result is a packed weight.
pub fn without_unused_slots(function: &Function) -> Part {
    let outputs = function.outputs.iter();
    let outputs: Vec<_> = outputs
        .map(|&(slot, id)| (PartSlot::Whole(slot), id))
        .collect();
    let (sides, mut values) = (Sides::anywhere(&function.graph), Vec::new());
    let builder = PartBuilder::new(function, &sides, Side::Anywhere, &mut values);
    builder
        .build(&outputs)
        .unwrap_or_else(|| unreachable!("nothing is read from another part"))
}

#[cfg(test)]
mod tests;
