//! Models: what a file's metadata and tensors say, and the functions a step calls.
//!
//! An architecture reads its hyper-parameters, checks every tensor it needs against them, and then describes a step as
//! calls of captured functions ([`Model::plan`]). It knows no device: a runtime binds buffers to the slots. Layers whose
//! functions compute the same share one.

pub mod deepseek2;
mod error;
mod model;
mod plan;

pub use error::{Error, Result};
pub use model::{Model, Tensors};
pub use plan::{AttentionForm, Bind, Call, Functions, Logits, Options, Plan, Plane, StateSpec, TokenClass};

use crate::gguf::Metadata;

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
        None => {
            let supported: Vec<&str> = TABLE.iter().map(|a| a.name).collect();
            Err(Error::Architecture { name: name.into(), supported: supported.join(", ") })
        }
    }
}
