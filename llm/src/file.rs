//! Model files, under names that do not speak of the format: for the crates above, which know none.

pub use crate::gguf::{Array, Error, Gguf as ModelFile, Metadata, TensorInfo, Value};
