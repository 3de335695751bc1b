//! Captures a function: slots, constants and outputs of a body written with tensors.
//!
//! ```
//! use gristmill_tensor::{dims, function::Capture};
//! use gristmill_uop::Scalar;
//! let c = Capture::new("double");
//! let n = c.var("n", 1, 8);
//! let x = c.input("x", dims![n, 4], Scalar::F32);
//! c.output("y", x + x);
//! let function = c.finish();
//! assert_eq!(function.slots[1].dims, [8, 4]);
//! ```

pub use crate::capture::Capture;
use crate::capture::Dim;
use crate::tensor::Tensor;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::function::{Function, SlotKind, Storage};
use gristmill_uop::{Arg, Graph, Id, text};
use rustc_hash::FxHashMap;
use std::fmt;

impl Capture {
    /// Wraps a node of this function's graph as a tensor.
    pub fn tensor(&self, id: Id) -> Tensor<'_> {
        Tensor { capture: self, id }
    }
    fn plain(&self, name: &str, kind: SlotKind, dims: &[Dim], scalar: Scalar) -> Tensor<'_> {
        let dims = self.ids(dims);
        let slot = self.slot(name, kind, &dims, Storage::Plain(scalar));
        let id = self.graph.borrow_mut().param(slot, &dims, scalar);
        self.tensor(id)
    }
    /// Adds a slot for an activation or a table that the function reads.
    pub fn input(&self, name: &str, dims: &[Dim], scalar: Scalar) -> Tensor<'_> {
        self.plain(name, SlotKind::Input, dims, scalar)
    }
    /// Adds a slot for a state that the function reads and writes.
    pub fn state(&self, name: &str, dims: &[Dim], scalar: Scalar) -> Tensor<'_> {
        self.plain(name, SlotKind::State, dims, scalar)
    }
    /// Adds a slot for a packed weight and returns its dequantised f32 values.
    ///
    /// # Panics
    /// If the last axis is not a whole number of the encoding's blocks.
    pub fn weight(&self, name: &str, dims: &[usize], encoding: EncodingRef) -> Tensor<'_> {
        let sizes: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
        let storage = Storage::Packed(encoding);
        assert!(
            storage.bytes(&sizes).is_some(),
            "{name}: rows of {dims:?} are not whole blocks of {encoding:?}"
        );
        let ids: Vec<Id> = dims.iter().map(|&d| self.id_of(Dim::Size(d))).collect();
        let slot = self.slot(name, SlotKind::Weight, &ids, storage);
        let mut g = self.graph.borrow_mut();
        let packed = g.packed(slot, &sizes, encoding);
        let id = g.decode(packed);
        drop(g);
        self.tensor(id)
    }
    /// Declares a scalar i64 variable in `min..=max`, set at each replay.
    pub fn var(&self, name: &str, min: usize, max: usize) -> Tensor<'_> {
        let id = self.graph.borrow_mut().var(name, min as i64, max as i64);
        self.tensor(id)
    }
    /// A scalar i64 constant, the type of lengths and positions.
    pub fn int(&self, v: usize) -> Tensor<'_> {
        let id = self.graph.borrow_mut().int(v as i64);
        self.tensor(id)
    }
    /// A scalar constant of the given type; an f32 constant is rounded to f32.
    pub fn constant(&self, v: f64, scalar: Scalar) -> Tensor<'_> {
        let v = if scalar == Scalar::F32 {
            f64::from(v as f32)
        } else {
            v
        };
        let id = self.graph.borrow_mut().constant(scalar, v);
        self.tensor(id)
    }
    /// The index along `axis` of a tensor of these dims, as i32.
    pub fn iota(&self, dims: &[Dim], axis: usize) -> Tensor<'_> {
        let dims = self.ids(dims);
        let mut g = self.graph.borrow_mut();
        let id = g.iota(&dims, axis);
        let id = g.cast(id, Scalar::I32);
        drop(g);
        self.tensor(id)
    }
    /// Adds an output slot for a value and returns the slot.
    pub fn output(&self, name: &str, value: Tensor<'_>) -> u32 {
        let slot = self.slot(
            name,
            SlotKind::Output,
            &value.dims(),
            Storage::Plain(value.scalar()),
        );
        self.outputs.borrow_mut().push((slot, value.id));
        slot
    }
    /// Makes a state's last version an output and returns the state's slot.
    ///
    /// `assigned` is a chain of [`Tensor::assign`] and [`Tensor::scatter_add`] from the state on.
    ///
    /// # Panics
    /// If the chain does not start at a state.
    pub fn output_state(&self, assigned: Tensor<'_>) -> u32 {
        let g = self.graph.borrow();
        let mut base = assigned.id;
        while g[base].op.is_version() {
            base = g[base].src[0];
        }
        let Arg::Param(slot) = g[base].arg else {
            panic!("{assigned:?} is no version of a state")
        };
        assert_eq!(
            self.slots.borrow()[slot as usize].kind,
            SlotKind::State,
            "slot {slot} is no state"
        );
        self.outputs.borrow_mut().push((slot, assigned.id));
        slot
    }
}

/// Content hash of a function, independent of its name: equal keys mean the same function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub [u8; 32]);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Computes the content key of a function.
pub trait ContentKey {
    /// Hashes the nodes that the outputs depend on, in topological order, and all slots.
    ///
    /// Slots count by kind, dims and storage, and packed formats by their descriptions. Names of
    /// the function and of its slots do not count; names of variables and formats do.
    fn key(&self) -> Key;
}

impl ContentKey for Function {
    fn key(&self) -> Key {
        let roots: Vec<Id> = self.outputs.iter().map(|o| o.1).collect();
        let order = self.graph.toposort(&roots);
        let number: FxHashMap<Id, usize> =
            order.iter().enumerate().map(|(i, &id)| (id, i)).collect();
        let mut text = String::new();
        use fmt::Write;
        let mut line =
            |args: fmt::Arguments<'_>| text.write_fmt(args).expect("writing to a string");
        for id in order {
            let node = &self.graph[id];
            line(format_args!(
                "{} {} {:?}",
                node.op.name(),
                node.dtype,
                node.arg
            ));
            node.src
                .iter()
                .for_each(|s| line(format_args!(" {}", number[s])));
            line(format_args!("\n"));
        }
        let mut formats: Vec<EncodingRef> = Vec::new();
        for s in &self.slots {
            line(format_args!("{:?} {:?} {:?}\n", s.kind, s.dims, s.storage));
            if let Storage::Packed(e) = s.storage
                && !formats.contains(&e)
            {
                formats.push(e);
            }
        }
        formats
            .into_iter()
            .for_each(|e| line(format_args!("{}\n", described(e))));
        for (slot, id) in &self.outputs {
            line(format_args!("{slot} = {}\n", number[id]));
        }
        Key(*blake3::hash(text.as_bytes()).as_bytes())
    }
}

/// A format's description as text, so that a changed format changes the key.
fn described(e: EncodingRef) -> String {
    let mut g = Graph::new();
    let buffer = g.packed(0, &[e.elements as i64], e);
    let zero = g.int(0);
    let k = g.var("k", 0, e.elements as i64 - 1);
    let value = e.decode(&mut g, buffer, zero, k);
    format!(
        "{} {} {}\n{}",
        e.name,
        e.elements,
        e.bytes,
        text::print(&g, &[value])
    )
}
