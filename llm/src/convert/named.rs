//! What a tensor of a checkpoint is in a GGUF file.

/// Kind of a tensor of a checkpoint.
#[derive(Debug, PartialEq)]
pub(super) enum Named {
    /// It has no counterpart.
    Skipped,
    /// It is one tensor.
    One {
        layer: Option<usize>,
        /// Name in its block, or of the whole.
        name: String,
    },
    /// It is the matrix of one expert of the stack of this name.
    Expert {
        layer: usize,
        expert: usize,
        name: &'static str,
    },
    /// It has the matrices of all experts, or a part of them; the rest of its name.
    Experts { layer: usize, name: String },
    /// Its name is unknown.
    Unknown,
}
