//! Model files under format-neutral names, for crates that know no file format.

pub use crate::gguf::{Array, Error, Gguf as ModelFile, Metadata, OtherKind, TensorInfo, Value};
