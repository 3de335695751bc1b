//! Locals of a function: values of nodes, and temporaries of one statement.
//!
//! A value is a list of units. A vector of elements of at most 32 bits has one unit of 128 bits for
//! four lanes, each widened to 32 bits: bytes and 16-bit integers by zeros or by their sign, a bool
//! as a mask of 0 or -1. A vector of 64-bit elements has a scalar unit for each lane. Scalars are
//! one unit; a bool is 0 or 1, an f16 or bf16 its bits. 64-bit integers that are known to fit 32
//! bits are held in 32.

use gristmill_uop::{DType, Graph, Id, Scalar};
use wasm_encoder::{Instruction as I, ValType};

/// Lanes of a unit of 128 bits.
pub(super) const LANES: usize = 4;

/// Type of a local.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum LocalKind {
    I32,
    I64,
    F32,
    F64,
    V128,
}

impl LocalKind {
    pub fn wasm(self) -> ValType {
        match self {
            LocalKind::I32 => ValType::I32,
            LocalKind::I64 => ValType::I64,
            LocalKind::F32 => ValType::F32,
            LocalKind::F64 => ValType::F64,
            LocalKind::V128 => ValType::V128,
        }
    }
}

/// One local with its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Local {
    pub index: u32,
    pub kind: LocalKind,
}

/// How the values of a node are held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ValueForm {
    pub kind: LocalKind,
    pub units: usize,
}

/// LocalKind of a scalar of that type; `narrow` if a 64-bit integer fits 32 bits.
pub(super) fn scalar_kind(scalar: Scalar, narrow: bool) -> LocalKind {
    match scalar {
        Scalar::F32 => LocalKind::F32,
        Scalar::F64 => LocalKind::F64,
        Scalar::I64 if !narrow => LocalKind::I64,
        _ => LocalKind::I32,
    }
}

/// Returns whether a 64-bit integer is known to fit 32 bits.
pub(super) fn is_narrow(g: &Graph, id: Id) -> bool {
    g.scalar(id) == Scalar::I64 && g.within(id, i32::MIN.into(), i32::MAX.into())
}

/// Returns how the values of a node are held.
pub(super) fn form(g: &Graph, id: Id) -> ValueForm {
    let DType { scalar, lanes } = g[id].dtype;
    let (kind, lanes) = (scalar_kind(scalar, is_narrow(g, id)), lanes as usize);
    if lanes > 1 && lanes % LANES == 0 && !matches!(kind, LocalKind::I64 | LocalKind::F64) {
        return ValueForm {
            kind: LocalKind::V128,
            units: lanes / LANES,
        };
    }
    ValueForm { kind, units: lanes }
}

/// The instructions of a function and its locals.
pub(super) struct FunctionBody {
    pub code: Vec<I<'static>>,
    /// Number of parameters, which are the first locals.
    params: u32,
    kinds: Vec<LocalKind>,
    /// Temporaries that may be used again.
    free: Vec<Local>,
    /// Temporaries of the current statement.
    used: Vec<Local>,
}

impl FunctionBody {
    pub fn new(params: u32) -> FunctionBody {
        FunctionBody {
            code: Vec::new(),
            params,
            kinds: Vec::new(),
            free: Vec::new(),
            used: Vec::new(),
        }
    }
    /// Returns the types of the locals after the parameters, as runs.
    pub fn runs(&self) -> Vec<(u32, ValType)> {
        let mut runs: Vec<(u32, ValType)> = Vec::new();
        for kind in &self.kinds {
            match runs.last_mut() {
                Some((count, last)) if *last == kind.wasm() => *count += 1,
                _ => runs.push((1, kind.wasm())),
            }
        }
        runs
    }
    pub fn op(&mut self, op: I<'static>) {
        self.code.push(op);
    }
    /// Adds a local that keeps its value.
    pub fn local(&mut self, kind: LocalKind) -> Local {
        self.kinds.push(kind);
        Local {
            index: self.params + self.kinds.len() as u32 - 1,
            kind,
        }
    }
    /// Returns a local that keeps its value until the end of the statement.
    pub fn temporary(&mut self, kind: LocalKind) -> Local {
        let found = self.free.iter().rposition(|l| l.kind == kind);
        let local = match found {
            Some(i) => self.free.swap_remove(i),
            None => self.local(kind),
        };
        self.used.push(local);
        local
    }
    /// Ends a statement: its temporaries may be used again.
    pub fn end_statement(&mut self) {
        self.free.append(&mut self.used);
    }
    pub fn get(&mut self, local: Local) {
        self.op(I::LocalGet(local.index));
    }
    pub fn set(&mut self, local: Local) {
        self.op(I::LocalSet(local.index));
    }
    /// Moves the value on the stack to a temporary.
    pub fn keep(&mut self, kind: LocalKind) -> Local {
        let local = self.temporary(kind);
        self.set(local);
        local
    }
    /// Applies an operation without operands, such as a constant.
    pub fn nullary(&mut self, kind: LocalKind, op: I<'static>) -> Local {
        self.op(op);
        self.keep(kind)
    }
    /// Applies an operation with one operand.
    pub fn unary(&mut self, kind: LocalKind, op: I<'static>, a: Local) -> Local {
        self.get(a);
        self.op(op);
        self.keep(kind)
    }
    /// Applies an operation with two operands.
    pub fn binary(&mut self, kind: LocalKind, op: I<'static>, a: Local, b: Local) -> Local {
        self.get(a);
        self.unary_after(kind, op, b)
    }
    fn unary_after(&mut self, kind: LocalKind, op: I<'static>, b: Local) -> Local {
        self.get(b);
        self.op(op);
        self.keep(kind)
    }
    /// Applies an operation with three operands.
    pub fn ternary(&mut self, kind: LocalKind, op: I<'static>, [a, b, c]: [Local; 3]) -> Local {
        self.get(a);
        self.get(b);
        self.unary_after(kind, op, c)
    }
    /// Applies an operation on vectors to one.
    pub fn v1(&mut self, op: I<'static>, a: Local) -> Local {
        self.unary(LocalKind::V128, op, a)
    }
    /// Applies an operation on vectors to two.
    pub fn v2(&mut self, op: I<'static>, a: Local, b: Local) -> Local {
        self.binary(LocalKind::V128, op, a, b)
    }
    /// Selects lanes of `a` where the mask is set, else of `b`.
    pub fn select(&mut self, mask: Local, a: Local, b: Local) -> Local {
        self.ternary(LocalKind::V128, I::V128Bitselect, [a, b, mask])
    }
    /// Shifts the 32-bit lanes of a vector by a constant.
    pub fn shift(&mut self, op: I<'static>, a: Local, by: i32) -> Local {
        self.get(a);
        self.op(I::I32Const(by));
        self.op(op);
        self.keep(LocalKind::V128)
    }
    /// Constant vector of four 32-bit lanes.
    pub fn lanes(&mut self, lanes: [u32; 4]) -> Local {
        self.nullary(LocalKind::V128, I::V128Const(constant(lanes)))
    }
    /// Constant vector with one 32-bit integer in all lanes.
    pub fn ints(&mut self, v: u32) -> Local {
        self.lanes([v; 4])
    }
    /// Constant vector with one float in all lanes.
    pub fn floats(&mut self, v: f32) -> Local {
        self.ints(v.to_bits())
    }
}

/// Bits of a vector of 32-bit lanes.
pub(super) fn constant(lanes: [u32; 4]) -> i128 {
    let bits = |(i, &lane): (usize, &u32)| u128::from(lane) << (32 * i);
    lanes.iter().enumerate().map(bits).sum::<u128>() as i128
}
