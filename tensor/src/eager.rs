//! Eager-style tensors: values on the host or a device, with lazy evaluation over capture.
//!
//! A [`Tensor`] holds values or a deferred expression over other tensors. Operations compute
//! nothing. [`Tensor::realize`], or [`realize`] for several tensors, captures all pending
//! expressions as one function, compiles it once per graph and shapes, fuses it as the layers of a
//! model are fused, and runs it. [`Tensor::to_vec`] copies the elements to the host. The crate's
//! page is a tutorial.
//!
//! Dims are constants here. Functions with variable lengths, states and replayed calls are captured
//! by [`Capture`](crate::function::Capture) and run by the [`Jit`](crate::jit::Jit).
//!
//! A shape mismatch is a programming error: it panics, with the shapes, where the operation is
//! written. Failures of a device are returned as [`Error`](gristmill_runtime::Error).

mod node;
mod ops;
mod realize;
mod values;

pub use node::Tensor;
pub use realize::{device, realize, set_device, use_device};
pub use values::{Element, Values};
