//! Compiled form of a kernel: for each nest, a tree of loops with flat, typed instructions.

use gristmill_uop::Id;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::op::{Op, ReduceOp};
use std::sync::Arc;

pub(super) type Reg = u32;

/// Representation of a register's lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bank {
    /// Integers and booleans, as i64 within the range of their type.
    Int,
    /// f32, and f16 and bf16 as the f32 of the same value.
    F32,
    F64,
}

impl Bank {
    /// Returns the bank of a type.
    pub(super) fn from_scalar(s: Scalar) -> Bank {
        match s {
            Scalar::F64 => Bank::F64,
            Scalar::F32 | Scalar::F16 | Scalar::BF16 => Bank::F32,
            _ => Bank::Int,
        }
    }
}

/// A buffer as an instruction addresses it.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferSlot {
    /// Index among the kernel's buffers: parameters first, then locals.
    pub buffer: u32,
    /// Bytes of one unit of the offset.
    pub unit: usize,
}

/// Operation of an instruction.
#[derive(Clone, Debug)]
pub(super) enum InstrKind {
    /// Elementwise op on operands of that bank.
    Apply(Op, Bank),
    /// Conversion from that type.
    Cast(Scalar),
    /// Reinterpretation of the bits of that type.
    Bitcast(Scalar),
    /// Lookup of a table's entry.
    Table(Arc<[i32]>),
    /// Lookup of a table's entries by the four bytes of a word.
    Table4(Arc<[i32]>),
    /// Load; source 0 is the offset.
    Load(BufferSlot),
    /// Store; source 0 is the offset, 1 the value of type `dtype`.
    Store(BufferSlot),
    /// Addition to memory, with the sources of `Store`.
    Add(BufferSlot),
    /// Sets `out` to the identity of a reduction.
    Start(ReduceOp),
    /// Combines the lanes of source 0, in order, into lane 0 of `out`.
    Accumulate(ReduceOp),
}

/// A typed instruction of a loop.
///
/// `dtype` is the type of its result. `safe` means that bounds prove that an integer result fits
/// `dtype` and that the operands are valid.
#[derive(Clone, Debug)]
pub(super) struct Instr {
    pub kind: InstrKind,
    pub safe: bool,
    pub dtype: Scalar,
    pub out: Reg,
    pub src: [Reg; 3],
}

#[derive(Clone, Debug)]
pub(super) enum CodeStep {
    Do(Instr),
    Loop(Loop),
}

/// Iteration count of a loop.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bound {
    Const(i64),
    Reg(Reg),
}

/// An index of a loop: `counter / stride % size`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Index {
    pub reg: Reg,
    pub stride: i64,
    /// 0 means no modulo.
    pub size: i64,
}

/// A loop. An innermost one runs in strips of many lanes, others one iteration at a time in lane 0.
#[derive(Clone, Debug)]
pub(super) struct Loop {
    pub bound: Bound,
    pub indices: Vec<Index>,
    /// Registers set outside the loop; lane 0 is broadcast before strips run.
    pub splats: Vec<(Reg, Bank)>,
    pub body: Vec<CodeStep>,
    pub strips: bool,
}

/// A body: its part of the launch and its nests.
#[derive(Clone, Debug, Default)]
pub(super) struct BodyCode {
    /// Index register and bound of each range over workgroups, ordered by number.
    pub globals: Vec<(Reg, Id)>,
    pub nests: Vec<Vec<CodeStep>>,
    /// Number of leading nests that run only for the first workgroup.
    pub once: usize,
    /// Range of its locals among those of the kernel.
    pub locals: std::ops::Range<usize>,
    /// Locals with contents that persist from workgroup to workgroup.
    pub staged: Vec<usize>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Code {
    pub bodies: Vec<BodyCode>,
    /// Registers with a constant value in all lanes; then those of variables.
    pub ints: Vec<(Reg, i64)>,
    pub floats: Vec<(Reg, Scalar, f64)>,
    pub vars: Vec<(Reg, Arc<str>)>,
    pub registers: u32,
    /// Bytes of each local, in the order of their slots after the parameters.
    pub locals: Vec<usize>,
}
