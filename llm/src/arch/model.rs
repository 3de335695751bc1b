//! What a model is to whoever runs it, and where its tensors are looked up.

use super::plan::{AttentionForm, Functions, Options, Plan, StateSpec};
use crate::gguf::Gguf;
use gristmill_uop::encoding::EncodingRef;

/// A model that can be run.
pub trait Model {
    /// `general.architecture`.
    fn architecture(&self) -> &'static str;
    /// Number of layers (draft blocks not counted): the number of states.
    fn layers(&self) -> usize;
    /// Length of a logits row.
    fn vocabulary(&self) -> usize;
    /// Length of a hidden row.
    fn width(&self) -> usize;
    /// Numbers that a partial result of attention takes for one token, all heads together.
    fn partial(&self, form: AttentionForm) -> usize;
    /// The longest context the model was made for, in tokens.
    fn context(&self) -> usize;
    /// Cosine and sine of every angle: `[positions, rope/2, 2]`, row-major.
    fn rope_table(&self, positions: usize) -> Vec<f32>;
    /// The state that each layer keeps.
    fn state(&self, options: &Options) -> StateSpec;
    /// Name and value of what was read from the file, for people.
    fn summary(&self) -> Vec<(&'static str, String)>;
    /// Remarks on the file that a user should see.
    fn warnings(&self) -> &[String];
    /// The calls of one step, in order. Functions are shared with every plan made with the same `functions`.
    fn plan(&self, options: &Options, functions: &mut Functions) -> Plan;
}

/// Where a model's tensors are looked up: a file, or a table in a test.
pub trait Tensors {
    /// Dims (the contiguous one first) and encoding of a tensor.
    fn find(&self, name: &str) -> Option<(Vec<u64>, EncodingRef)>;
}

impl Tensors for Gguf {
    fn find(&self, name: &str) -> Option<(Vec<u64>, EncodingRef)> {
        self.tensor(name).map(|t| (t.dims.clone(), t.encoding))
    }
}
