//! One node of a graph: op, dtype, sources, argument.

use crate::custom::CustomRef;
use crate::dtype::DType;
use crate::encoding::EncodingRef;
use crate::id::Id;
use crate::op::{Op, RangeKind, ReduceOp};
use smallvec::SmallVec;
use std::sync::Arc;

/// Sources of a node.
pub type Sources = SmallVec<[Id; 3]>;
/// A list of axes.
pub type Axes = SmallVec<[u8; 6]>;

/// What a node carries beside its sources.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Arg {
    /// Nothing.
    None,
    /// A whole number.
    Int(i64),
    /// The bits of an f64.
    Float(u64),
    /// The bits of two f64: a factor, and the cap of what it gives.
    Capped(u64, u64),
    /// Axes.
    Axes(Axes),
    /// Reduction: how, and (tensor level) over which axes.
    Reduce(ReduceOp, Axes),
    /// A range: its number and what it is mapped to.
    Range(u32, RangeKind),
    /// A variable: name, smallest and largest value.
    Var(Arc<str>, i64, i64),
    /// Slot of a function.
    Param(u32),
    /// Slot of a function that holds packed blocks.
    Packed(u32, EncodingRef),
    /// A kernel of the user's own.
    Custom(CustomRef),
    /// A constant table.
    Ints(Arc<[i32]>),
}

impl Arg {
    /// A float.
    pub fn float(v: f64) -> Arg {
        Arg::Float(v.to_bits())
    }
}

/// One operation: op, dtype, sources, argument.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    /// What it computes.
    pub op: Op,
    /// Of which type.
    pub dtype: DType,
    /// From what.
    pub src: Sources,
    /// With what argument.
    pub arg: Arg,
}

impl Node {
    /// Number of a range (0 for other nodes).
    pub fn range_number(&self) -> u32 {
        match self.arg {
            Arg::Range(n, _) => n,
            _ => 0,
        }
    }
}
