//! What a tensor with values is: numbers, or a piece of a graph over other tensors.

use super::values::Values;
use crate::capture::{Capture, Dim};
use crate::tensor::Tensor as Captured;
use gristmill_compiler::ir::layout::Layout;
use gristmill_runtime::{Buffer, DeviceId};
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::function::Storage;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// Numbers, or what is to be computed of others. A clone is the same tensor: what is realized of one is realized of both.
#[derive(Clone)]
pub struct Tensor(pub(super) Rc<LazyNode>);

/// What a tensor is, and what is known of its value.
pub(super) struct LazyNode {
    /// Length of each axis.
    pub dims: Vec<usize>,
    /// How its elements are stored.
    pub storage: Storage,
    pub state: RefCell<State>,
}

/// What is known of a tensor's value.
pub(super) enum State {
    /// Its bytes, on the host, and where they have been copied to.
    Host(Rc<[u8]>, Vec<Copied>),
    /// What a device computed.
    Computed(Arc<dyn gristmill_runtime::Device>, Buffer),
    /// What will compute it.
    Deferred(Rc<Deferred>),
}

/// A copy of a tensor's bytes on a device.
#[derive(Clone)]
pub(super) struct Copied {
    pub device: DeviceId,
    pub layout: Layout,
    pub buffer: Buffer,
}

/// A piece of a graph: what is computed of the captured sources.
type Body = dyn for<'g> Fn(&'g Capture, &[Captured<'g>]) -> Captured<'g>;

/// A piece of a graph that has not been computed.
pub(super) struct Deferred {
    pub sources: Vec<Tensor>,
    pub body: Box<Body>,
}

impl LazyNode {
    /// The tensor as a slot of a function: its next one.
    pub fn slot<'g>(&self, capture: &'g Capture, name: &str) -> Captured<'g> {
        match self.storage {
            Storage::Plain(scalar) => {
                let dims: Vec<Dim> = self.dims.iter().map(|&d| d.into()).collect();
                capture.input(name, &dims, scalar)
            }
            Storage::Packed(encoding) => capture.weight(name, &self.dims, encoding),
        }
    }
    /// Bytes of its elements.
    pub fn bytes(&self) -> usize {
        bytes(self.storage, &self.dims)
    }
}

/// Bytes of a tensor of these dims; its making has checked that they can be counted.
fn bytes(storage: Storage, dims: &[usize]) -> usize {
    let sizes: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
    storage.bytes(&sizes).unwrap_or_else(|| panic!("{dims:?} of {storage:?} is no number of bytes"))
}

impl Tensor {
    fn new(dims: Vec<usize>, storage: Storage, state: State) -> Tensor {
        assert!(!dims.contains(&0), "a tensor of dims {dims:?} has no elements");
        Tensor(Rc::new(LazyNode { dims, storage, state: RefCell::new(state) }))
    }
    /// Rows in a packed format, as a file has them: `bytes` are the blocks of the last axis, row after row. Used, they are f32.
    ///
    /// # Panics
    /// When rows are not whole blocks, or there are more or fewer bytes than the dims have.
    pub fn packed(encoding: EncodingRef, dims: &[usize], data: Vec<u8>) -> Tensor {
        let storage = Storage::Packed(encoding);
        let wanted = bytes(storage, dims);
        assert_eq!(data.len(), wanted, "bytes of {dims:?} in blocks of {}", encoding.name);
        Tensor::new(dims.to_vec(), storage, State::Host(data.into(), vec![]))
    }
    /// What an expression over captured tensors makes of these: whatever a captured function can say, and not only what has a method here.
    ///
    /// ```no_run
    /// use gristmill_tensor::eager::Tensor;
    /// use gristmill_tensor::nn;
    /// let (x, w) = (Tensor::from([[3.0f32, 4.0]]), Tensor::from([1.0f32, 1.0]));
    /// let y = Tensor::from_fn([&x, &w], |_, [x, w]| nn::rms_norm(x, w, 1e-5));
    /// ```
    ///
    /// # Panics
    /// When the expression does, or its dims are not numbers.
    pub fn from_fn<const N: usize>(
        sources: [&Tensor; N],
        body: impl for<'g> Fn(&'g Capture, [Captured<'g>; N]) -> Captured<'g> + 'static,
    ) -> Tensor {
        Tensor::deferred(sources.into_iter().cloned().collect(), move |capture, x| {
            body(capture, x.try_into().unwrap_or_else(|_| unreachable!("as many as there are sources")))
        })
    }
    /// The same of any number of tensors.
    pub(super) fn deferred(
        sources: Vec<Tensor>,
        body: impl for<'g> Fn(&'g Capture, &[Captured<'g>]) -> Captured<'g> + 'static,
    ) -> Tensor {
        let capture = Capture::new("shape");
        let captured: Vec<Captured> = sources.iter().map(|s| s.0.slot(&capture, "x")).collect();
        let value = body(&capture, &captured);
        let g = capture.graph.borrow();
        let length = |&d| g.int_value(d).unwrap_or_else(|| panic!("{value:?} has dims that are no numbers"));
        let dims = value.dims().iter().map(|d| length(d) as usize).collect();
        let storage = Storage::Plain(g.scalar(value.id()));
        let deferred = Deferred { sources, body: Box::new(body) };
        Tensor::new(dims, storage, State::Deferred(Rc::new(deferred)))
    }
    /// Length of each axis; empty for a scalar.
    pub fn dims(&self) -> &[usize] {
        &self.0.dims
    }
}

impl<V: Values> From<V> for Tensor {
    fn from(values: V) -> Tensor {
        let (mut dims, mut bytes) = (Vec::new(), Vec::new());
        values.dims(&mut dims);
        values.put(&mut bytes);
        let storage = Storage::Plain(<V::Element as super::values::Element>::SCALAR);
        Tensor::new(dims, storage, State::Host(bytes.into(), vec![]))
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.0.storage {
            Storage::Plain(scalar) => write!(f, "{} {:?}", scalar.name(), self.0.dims),
            Storage::Packed(encoding) => write!(f, "{} {:?}", encoding.name, self.0.dims),
        }
    }
}
