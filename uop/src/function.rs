//! A captured function: a body over PARAMs. Calls bind buffers to its slots; the 46 equal layers of a model are 46 calls of one
//! function, compiled once. Edges between calls never fuse.

use crate::dtype::Scalar;
use crate::encoding::EncodingRef;
use crate::graph::Graph;
use crate::id::Id;

/// What a slot is to its function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SlotKind {
    /// Read: an activation, a table.
    Input,
    /// Read, packed, the same for every step.
    Weight,
    /// Read and written in place.
    State,
    /// Written.
    Output,
}

/// How the elements of a slot are stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Storage {
    /// Plain numbers.
    Plain(Scalar),
    /// Packed blocks along the last axis.
    Packed(EncodingRef),
}

impl Storage {
    /// Bytes of a tensor with these dims; `None` if a row is not a whole number of blocks or the size overflows.
    pub fn bytes(self, dims: &[i64]) -> Option<usize> {
        let rows = |d: &[i64]| d.iter().try_fold(1usize, |p, &n| p.checked_mul(usize::try_from(n).ok()?));
        match self {
            Storage::Plain(s) => rows(dims)?.checked_mul(s.bytes()),
            Storage::Packed(e) => {
                let (last, front) = dims.split_last()?;
                rows(front)?.checked_mul(e.row_bytes(*last as usize)?)
            }
        }
    }
}

/// A slot of a function.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    /// Name, for messages and kernels.
    pub name: String,
    /// What it is.
    pub kind: SlotKind,
    /// Largest dims.
    pub dims: Vec<i64>,
    /// How it is stored.
    pub storage: Storage,
}

/// A captured function.
#[derive(Clone, Debug)]
pub struct Function {
    /// Name: `glm.moe.decode`.
    pub name: String,
    /// The graph of its body.
    pub graph: Graph,
    /// Its slots; PARAM nodes refer to them by number.
    pub slots: Vec<Slot>,
    /// What it writes: slot and tensor-level node. A state's slot goes with an `Assign` chain that starts at its PARAM.
    pub outputs: Vec<(u32, Id)>,
}

impl Function {
    /// Its name, with a mark of its weights where it has some (`glm.moe.one~5c0e2f81`): functions of several models may have one name, and their weights differ.
    pub fn full_name(&self) -> String {
        let weights = self.slots.iter().filter(|slot| slot.kind == SlotKind::Weight);
        let mut bytes = weights.flat_map(|slot| format!("{:?} {:?};", slot.dims, slot.storage).into_bytes()).peekable();
        if bytes.peek().is_none() {
            return self.name.clone();
        }
        // FNV-1a of 32 bits.
        let mark = bytes.fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        format!("{}~{mark:08x}", self.name)
    }
}
