//! A captured function: a body over PARAM nodes.
//!
//! Calls bind buffers to its slots: the 46 equal layers of a model are 46 calls of one function,
//! which is compiled once. There is no fusion across calls.

use crate::dtype::Scalar;
use crate::encoding::EncodingRef;
use crate::graph::Graph;
use crate::id::Id;

/// Role of a slot in its function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SlotKind {
    /// Read-only: an activation or a table.
    Input,
    /// Read-only packed data, the same for every step.
    Weight,
    /// Read and written in place.
    State,
    /// Written by the function.
    Output,
}

/// Storage format of a slot's elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Storage {
    /// Unpacked elements of a scalar type.
    Plain(Scalar),
    /// Packed blocks along the last axis.
    Packed(EncodingRef),
}

impl Storage {
    /// Size of a tensor with these dims, bytes; `None` if a row is not a whole number of blocks
    /// or the size overflows.
    pub fn bytes(self, dims: &[i64]) -> Option<usize> {
        let rows = |d: &[i64]| {
            d.iter()
                .try_fold(1usize, |p, &n| p.checked_mul(usize::try_from(n).ok()?))
        };
        match self {
            Storage::Plain(s) => rows(dims)?.checked_mul(s.bytes()),
            Storage::Packed(e) => {
                let (last, front) = dims.split_last()?;
                rows(front)?.checked_mul(e.row_bytes(*last as usize)?)
            }
        }
    }
}

/// A parameter or result of a function.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    /// Name used in messages and kernels.
    pub name: String,
    /// Role of the slot.
    pub kind: SlotKind,
    /// Largest value of each dim.
    pub dims: Vec<i64>,
    /// Storage format of the elements.
    pub storage: Storage,
}

/// A captured function, ready to be compiled.
#[derive(Clone, Debug)]
pub struct Function {
    /// Name, as in `glm.moe.decode`.
    pub name: String,
    /// Graph of the body.
    pub graph: Graph,
    /// Slots, referred to by number from PARAM nodes.
    pub slots: Vec<Slot>,
    /// Outputs: slot and tensor-level node. A state slot is paired with an `Assign` chain that
    /// starts at its PARAM.
    pub outputs: Vec<(u32, Id)>,
}

impl Function {
    /// Returns the name with a hash of its weights' formats, if it has weights
    /// (`glm.moe.one~5c0e2f81`). Functions of different models may share a name
    /// while their weights differ.
    pub fn full_name(&self) -> String {
        let weights = self
            .slots
            .iter()
            .filter(|slot| slot.kind == SlotKind::Weight);
        let mut bytes = weights
            .flat_map(|slot| format!("{:?} {:?};", slot.dims, slot.storage).into_bytes())
            .peekable();
        if bytes.peek().is_none() {
            return self.name.clone();
        }
        // 32-bit FNV-1a hash.
        let mark = bytes.fold(0x811c_9dc5u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        format!("{}~{mark:08x}", self.name)
    }
}
