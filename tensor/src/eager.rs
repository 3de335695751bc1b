//! Tensors that have values: a library's convenience over capture.
//!
//! A [`Tensor`] is numbers, or what is to be computed of others. Writing with it computes nothing; [`Tensor::realize`] (or [`realize`], of several)
//! captures everything that is still to be computed as one function, compiles it once for each graph and shapes, fused as a model's layers are, and runs it.
//! [`Tensor::to_vec`] brings the elements to the host. The crate's page is a tutorial.
//!
//! Dims are numbers here. Functions of variable lengths, with states and calls that are replayed, are captured by
//! [`Capture`](crate::function::Capture) and run by the [`Jit`](crate::jit::Jit).
//!
//! Shapes that do not fit are a mistake of the program and panic with the shapes, where the operation is written. What a device cannot do is an
//! [`Error`](gristmill_runtime::Error).

mod node;
mod ops;
mod realize;
mod values;

pub use node::Tensor;
pub use realize::{device, realize, set_device, use_device};
pub use values::{Element, Values};
