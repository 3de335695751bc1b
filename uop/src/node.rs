//! A node of a graph: op, dtype, sources, argument.

use crate::custom::CustomRef;
use crate::dtype::DType;
use crate::encoding::EncodingRef;
use crate::id::Id;
use crate::op::{Op, RangeKind, ReduceOp};
use smallvec::SmallVec;
use std::sync::Arc;

/// Sources of a node, in the order of the op table.
pub type Sources = SmallVec<[Id; 3]>;
/// Axis numbers of a tensor, from 0.
pub type Axes = SmallVec<[u8; 6]>;

/// Argument of a node, in addition to its sources.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Arg {
    /// No argument besides the sources.
    None,
    /// A signed 64-bit integer.
    Int(i64),
    /// The bits of an f64.
    Float(u64),
    /// The bits of two f64: a factor, and the cap of the scaled value.
    Capped(u64, u64),
    /// A list of axes.
    Axes(Axes),
    /// Reduction: the combining op, and (at tensor level) the axes.
    Reduce(ReduceOp, Axes),
    /// A range: its number and its mapping to hardware.
    Range(u32, RangeKind),
    /// A variable: name, smallest and largest value.
    Var(Arc<str>, i64, i64),
    /// Slot of a function.
    Param(u32),
    /// Slot of a function that holds packed blocks.
    Packed(u32, EncodingRef),
    /// A user-written kernel.
    Custom(CustomRef),
    /// A constant lookup table.
    Ints(Arc<[i32]>),
}

impl Arg {
    /// Builds a float argument from its value.
    pub fn float(v: f64) -> Arg {
        Arg::Float(v.to_bits())
    }
}

/// One operation: op, dtype, sources, argument.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    /// Operation of the node.
    pub op: Op,
    /// Type of the result.
    pub dtype: DType,
    /// Ids of the operands.
    pub src: Sources,
    /// Argument; its variant depends on the op.
    pub arg: Arg,
}

impl Node {
    /// Number of a range; 0 for other nodes.
    pub fn range_number(&self) -> u32 {
        match self.arg {
            Arg::Range(n, _) => n,
            _ => 0,
        }
    }
}
