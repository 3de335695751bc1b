//! GGUF files, model architectures, tokenizers, chat templates, sampling and scheduling.

pub mod arch;
pub mod chat;
pub mod convert;
pub mod engine;
mod error;
pub mod gguf;
pub mod language;
mod load;
mod module_names;
pub mod perplexity;
pub mod placement;
pub mod pooling;
pub mod quantise;
mod read_exact;
pub mod rerank;
mod rewrite;
mod safetensors_file;
pub mod sampling;
pub mod sched;
pub mod synth;
pub mod tokenizer;
pub mod traffic;
pub mod train;

pub use sched::generation;

/// Model files under format-neutral names, for crates that know no file format.
pub mod file {
    pub use crate::gguf::{
        Array, ByteSource, Error, Gguf as ModelFile, Metadata, OtherKind, TensorInfo, Value,
        is_draft_block_path,
    };
}
