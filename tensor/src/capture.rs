//! A function during capture: its graph, slots and outputs.
//!
//! Its tensors (`tensor.rs`) are created from slots by the methods in `function.rs`.

use gristmill_uop::function::{Function, Slot, SlotKind, Storage};
use gristmill_uop::shape::Dims;
use gristmill_uop::{Graph, Id};
use rustc_hash::FxHashMap;
use std::cell::RefCell;

/// Length of an axis: a constant, or a scalar i64 tensor.
///
/// The scalar is a variable, or is read from the device under a static bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dim {
    /// A length that is known at capture.
    Size(usize),
    /// A scalar i64 index expression.
    Of(Id),
}

impl From<usize> for Dim {
    fn from(n: usize) -> Dim {
        Dim::Size(n)
    }
}
impl From<Id> for Dim {
    fn from(id: Id) -> Dim {
        Dim::Of(id)
    }
}
/// A function during capture: tensors add nodes to its graph.
pub struct Capture {
    name: String,
    pub(crate) graph: RefCell<Graph>,
    pub(crate) slots: RefCell<Vec<Slot>>,
    pub(crate) outputs: RefCell<Vec<(u32, Id)>>,
    /// Inverses of indices, by index: see [`Capture::set_inverse`].
    inverses: RefCell<FxHashMap<Id, Id>>,
}

impl Capture {
    /// Starts a function without slots.
    pub fn new(name: impl Into<String>) -> Capture {
        let (graph, slots, outputs, inverses) = Default::default();
        Capture {
            name: name.into(),
            graph,
            slots,
            outputs,
            inverses,
        }
    }
    /// States where an index `[n]` or `[a, b]` names each row: flat element `places[row, ..]`
    /// (i32, `[rows, m]`) of the index is `row`, or anything if the index does not name the row so
    /// often. The gradient of a gather by this index is then a sum of gathers.
    pub(crate) fn set_inverse(&self, index: Id, places: Id) {
        self.inverses.borrow_mut().insert(index, places);
    }
    pub(crate) fn inverse(&self, index: Id) -> Option<Id> {
        self.inverses.borrow().get(&index).copied()
    }
    pub(crate) fn id_of(&self, dim: Dim) -> Id {
        match dim {
            Dim::Size(n) => self.graph.borrow_mut().int(n as i64),
            Dim::Of(id) => id,
        }
    }
    pub(crate) fn ids(&self, dims: &[Dim]) -> Dims {
        dims.iter().map(|&d| self.id_of(d)).collect()
    }
    /// Number of slots so far, which is also the number of the next slot.
    pub fn slot_count(&self) -> usize {
        self.slots.borrow().len()
    }
    /// Adds a slot and returns its number.
    pub(crate) fn slot(&self, name: &str, kind: SlotKind, dims: &[Id], storage: Storage) -> u32 {
        let dims = dims
            .iter()
            .map(|&d| self.graph.borrow().max_of(d))
            .collect();
        let mut slots = self.slots.borrow_mut();
        slots.push(Slot {
            name: name.into(),
            kind,
            dims,
            storage,
        });
        slots.len() as u32 - 1
    }
    /// Ends the capture and returns the function.
    pub fn finish(self) -> Function {
        Function {
            name: self.name,
            graph: self.graph.into_inner(),
            slots: self.slots.into_inner(),
            outputs: self.outputs.into_inner(),
        }
    }
}
