//! Nodes of lazy tensors: values, or a deferred expression over other tensors.

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

/// A lazy tensor. Clones share their value: realizing one realizes all.
#[derive(Clone)]
pub struct Tensor(pub(super) Rc<LazyNode>);

/// Shape, storage and evaluation state of a tensor.
pub(super) struct LazyNode {
    /// Length of each axis; empty for a scalar.
    pub dims: Vec<usize>,
    pub storage: Storage,
    pub state: RefCell<State>,
}

/// Evaluation state of a tensor.
pub(super) enum State {
    /// Bytes on the host, and the copies of them on devices.
    Host(Rc<[u8]>, Vec<Copied>),
    /// A buffer of the device that computed it.
    Computed(Arc<dyn gristmill_runtime::Device>, Buffer),
    /// An expression that has not been computed.
    Deferred(Rc<Deferred>),
}

/// A copy of a tensor's bytes on a device, in one layout.
#[derive(Clone)]
pub(super) struct Copied {
    pub device: DeviceId,
    pub layout: Layout,
    pub buffer: Buffer,
}

/// Builds the expression from the captured sources.
type Body = dyn for<'g> Fn(&'g Capture, &[Captured<'g>]) -> Captured<'g>;

/// A deferred expression and its sources.
pub(super) struct Deferred {
    pub sources: Vec<Tensor>,
    pub body: Box<Body>,
}

impl LazyNode {
    /// Adds the tensor to a capture, as its next slot.
    pub fn slot<'g>(&self, capture: &'g Capture, name: &str) -> Captured<'g> {
        match self.storage {
            Storage::Plain(scalar) => {
                let dims: Vec<Dim> = self.dims.iter().map(|&d| d.into()).collect();
                capture.input(name, &dims, scalar)
            }
            Storage::Packed(encoding) => capture.weight(name, &self.dims, encoding),
        }
    }
    /// Size of the elements in bytes.
    pub fn bytes(&self) -> usize {
        bytes(self.storage, &self.dims)
    }
}

/// Size in bytes of a tensor; construction has checked that it does not overflow.
fn bytes(storage: Storage, dims: &[usize]) -> usize {
    let sizes: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
    storage
        .bytes(&sizes)
        .unwrap_or_else(|| panic!("{dims:?} of {storage:?} is no number of bytes"))
}

impl Tensor {
    fn new(dims: Vec<usize>, storage: Storage, state: State) -> Tensor {
        assert!(
            !dims.contains(&0),
            "a tensor of dims {dims:?} has no elements"
        );
        Tensor(Rc::new(LazyNode {
            dims,
            storage,
            state: RefCell::new(state),
        }))
    }
    /// Packed rows as in a file: `data` holds the blocks of the last axis, row after row.
    ///
    /// In expressions its elements are f32.
    ///
    /// # Panics
    /// If rows are not whole blocks, or the number of bytes does not match the dims.
    pub fn packed(encoding: EncodingRef, dims: &[usize], data: Vec<u8>) -> Tensor {
        let storage = Storage::Packed(encoding);
        let wanted = bytes(storage, dims);
        assert_eq!(
            data.len(),
            wanted,
            "bytes of {dims:?} in blocks of {}",
            encoding.name
        );
        Tensor::new(dims.to_vec(), storage, State::Host(data.into(), vec![]))
    }
    /// Defers any expression over captured tensors, including ops that have no method here.
    ///
    /// ```no_run
    /// use gristmill_tensor::eager::Tensor;
    /// use gristmill_tensor::nn;
    /// let (x, w) = (Tensor::from([[3.0f32, 4.0]]), Tensor::from([1.0f32, 1.0]));
    /// let y = Tensor::from_fn([&x, &w], |_, [x, w]| nn::rms_norm(x, w, 1e-5));
    /// ```
    ///
    /// # Panics
    /// If the expression panics, or its dims are not constants.
    pub fn from_fn<const N: usize>(
        sources: [&Tensor; N],
        body: impl for<'g> Fn(&'g Capture, [Captured<'g>; N]) -> Captured<'g> + 'static,
    ) -> Tensor {
        Tensor::deferred(sources.into_iter().cloned().collect(), move |capture, x| {
            body(
                capture,
                x.try_into()
                    .unwrap_or_else(|_| unreachable!("as many as there are sources")),
            )
        })
    }
    /// Like [`Tensor::from_fn`], for any number of sources.
    pub(super) fn deferred(
        sources: Vec<Tensor>,
        body: impl for<'g> Fn(&'g Capture, &[Captured<'g>]) -> Captured<'g> + 'static,
    ) -> Tensor {
        let capture = Capture::new("shape");
        let captured: Vec<Captured> = sources.iter().map(|s| s.0.slot(&capture, "x")).collect();
        let value = body(&capture, &captured);
        let g = capture.graph.borrow();
        let length = |&d| {
            g.int_value(d)
                .unwrap_or_else(|| panic!("{value:?} has dims that are no numbers"))
        };
        let dims = value.dims().iter().map(|d| length(d) as usize).collect();
        let storage = Storage::Plain(g.scalar(value.id()));
        let deferred = Deferred {
            sources,
            body: Box::new(body),
        };
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
