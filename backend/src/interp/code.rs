//! What a kernel is compiled to: per nest a tree of loops with flat, typed instructions.

use gristmill_uop::Id;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::op::{Op, ReduceOp};
use std::sync::Arc;

/// Number of a register.
pub(super) type Reg = u32;

/// How a register holds its lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bank {
    /// Integers and booleans, as i64 within the range of their type.
    Int,
    /// f32, and f16 and bf16 as the f32 of the same value.
    F32,
    /// f64.
    F64,
}

impl Bank {
    /// The bank of a type.
    pub(super) fn from_scalar(s: Scalar) -> Bank {
        match s {
            Scalar::F64 => Bank::F64,
            Scalar::F32 | Scalar::F16 | Scalar::BF16 => Bank::F32,
            _ => Bank::Int,
        }
    }
}

/// One buffer as an instruction sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferSlot {
    /// Position among the kernel's buffers: parameters first, then locals.
    pub buffer: u32,
    /// Bytes of one unit of the offset.
    pub unit: usize,
}

/// What an instruction does with its lanes.
#[derive(Clone, Debug)]
pub(super) enum InstrKind {
    /// An elementwise op on operands of that bank.
    Apply(Op, Bank),
    /// From one type to another.
    Cast(Scalar),
    /// The bits of one type read as another.
    Bitcast(Scalar),
    /// Entry of a table.
    Table(Arc<[i32]>),
    /// Entries of a table at the four bytes of a word.
    Table4(Arc<[i32]>),
    /// Source 0 is the offset.
    Load(BufferSlot),
    /// Source 0 is the offset, 1 the value; `dtype` is that of the value.
    Store(BufferSlot),
    /// The same, added to what is there.
    Add(BufferSlot),
    /// `out` is set to what a reduction starts with.
    Start(ReduceOp),
    /// The lanes of source 0, in order, are combined into lane 0 of `out`.
    Accumulate(ReduceOp),
}

/// One instruction. `dtype` is the type of its result; `safe` says that bounds have shown an integer result to fit it and
/// the operands to be valid.
#[derive(Clone, Debug)]
pub(super) struct Instr {
    pub kind: InstrKind,
    pub safe: bool,
    pub dtype: Scalar,
    pub out: Reg,
    pub src: [Reg; 3],
}

/// An instruction or a loop.
#[derive(Clone, Debug)]
pub(super) enum CodeStep {
    Do(Instr),
    Loop(Loop),
}

/// How often a loop runs.
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
    /// 0: no modulo.
    pub size: i64,
}

/// A loop. One without a loop inside runs in strips of many lanes; the others one iteration at a time, in lane 0.
#[derive(Clone, Debug)]
pub(super) struct Loop {
    pub bound: Bound,
    pub indices: Vec<Index>,
    /// Registers set outside, whose lane 0 is copied to all lanes before strips are run.
    pub splats: Vec<(Reg, Bank)>,
    pub body: Vec<CodeStep>,
    pub strips: bool,
}

/// A body: its share of the launch and its nests.
#[derive(Clone, Debug, Default)]
pub(super) struct BodyCode {
    /// Index register and bound of every range over workgroups, in the order of their numbers.
    pub globals: Vec<(Reg, Id)>,
    /// The nests, in order.
    pub nests: Vec<Vec<CodeStep>>,
    /// How many of the first nests are run for the first workgroup only.
    pub once: usize,
    /// Its locals among those of the kernel.
    pub locals: std::ops::Range<usize>,
    /// Those that are kept from workgroup to workgroup.
    pub staged: Vec<usize>,
}

/// A compiled kernel.
#[derive(Clone, Debug, Default)]
pub(super) struct Code {
    pub bodies: Vec<BodyCode>,
    /// Registers that hold one value throughout, in every lane.
    pub ints: Vec<(Reg, i64)>,
    pub floats: Vec<(Reg, Scalar, f64)>,
    pub vars: Vec<(Reg, Arc<str>)>,
    /// Number of registers.
    pub registers: u32,
    /// Bytes of each local, by its position after the parameters.
    pub locals: Vec<usize>,
}
