//! Models: what a file's metadata and tensors say, and the functions a step calls.
//!
//! An architecture reads its hyper-parameters, checks every tensor it needs against them, and then describes a step as
//! calls of captured functions ([`Model::plan`]). It knows no device: a runtime binds buffers to the slots. Layers whose
//! functions compute the same share one.

pub mod deepseek2;
mod error;
mod plan;

pub use error::{Error, Result};
pub use plan::{AttentionForm, Bind, Call, Functions, Logits, Options, Plan, Plane, StateSpec, TokenClass};

use crate::gguf::{Gguf, Metadata};
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

/// One architecture.
pub struct Architecture {
    /// `general.architecture`.
    pub name: &'static str,
    /// Reads a model of it.
    pub load: fn(&Metadata, &dyn Tensors) -> Result<Box<dyn Model>>,
}

/// Every architecture.
pub static TABLE: &[Architecture] = &[Architecture { name: "deepseek2", load: deepseek2::load }];

/// The model of a file: its metadata and tensors.
///
/// # Errors
/// When its architecture is unknown, or it lacks something the architecture needs or has it in another shape.
pub fn load(metadata: &Metadata, tensors: &dyn Tensors) -> Result<Box<dyn Model>> {
    let name = metadata.need("general.architecture", Metadata::str)?;
    match TABLE.iter().find(|a| a.name == name) {
        Some(a) => (a.load)(metadata, tensors),
        None => Err(Error::Architecture(name.into())),
    }
}
