//! Models: what a file's metadata and tensors say, and the functions a step calls.
//!
//! An architecture reads its hyper-parameters, checks every tensor it needs against them, and then describes a step as
//! calls of captured functions ([`Model::build`]). It knows no device: a runtime binds buffers to the slots. Layers whose
//! functions compute the same share one. What several architectures have is written once beside their folders.

mod attention;
mod cache;
mod decoder;
pub mod deepseek2;
mod ends;
mod error;
mod feed_forward;
mod gemma2;
mod gemma3;
mod gemma4;
mod glm4moe;
mod gpt_oss;
mod granite;
mod llama;
mod lookup;
mod minimax_m2;
mod mistral3;
mod model;
pub mod moe;
mod olmo2;
mod phi3;
mod plan;
mod pools;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen3moe;
mod reader;
pub mod rope;
mod step;
mod tensors;

pub use cache::{CacheSpec, Component, Holds, Plane};
pub use error::{Error, Result};
pub use lookup::Tensors;
pub use model::{Architecture, Model, ModelInfo};
pub use plan::{Bind, Call, ExpertTile, Functions, Logits, Options, Plan, TokenClass};
pub use pools::{CacheKinds, Pools};
pub use rope::RopeTable;
pub use step::StepBuilder;
pub use tensors::TensorSpec;

use crate::gguf::Metadata;

/// Every architecture.
pub static TABLE: &[Architecture] = &[
    deepseek2::ARCHITECTURE,
    glm4moe::ARCHITECTURE,
    gemma2::ARCHITECTURE,
    gemma3::ARCHITECTURE,
    gemma4::ARCHITECTURE,
    gpt_oss::ARCHITECTURE,
    granite::ARCHITECTURE,
    llama::ARCHITECTURE,
    minimax_m2::ARCHITECTURE,
    mistral3::ARCHITECTURE,
    olmo2::ARCHITECTURE,
    phi3::ARCHITECTURE,
    qwen2::ARCHITECTURE,
    qwen3::ARCHITECTURE,
    qwen35::ARCHITECTURE,
    qwen35::WITH_EXPERTS,
    qwen3moe::ARCHITECTURE,
];

/// The model of a file: its metadata and tensors.
///
/// # Errors
/// When its architecture is unknown, or it lacks something the architecture needs or has it in another shape.
pub fn load(metadata: &Metadata, tensors: &dyn Tensors) -> Result<Box<dyn Model>> {
    (find(metadata)?.load)(metadata, tensors)
}

/// The tensors of the model that this metadata describes: see [`Architecture::tensors`].
///
/// # Errors
/// When the architecture is unknown, or the metadata lacks something.
pub fn tensors(metadata: &Metadata, there: &dyn Tensors) -> Result<Vec<TensorSpec>> {
    (find(metadata)?.tensors)(metadata, there)
}

/// How alike two names are, from 0 to 1, for one to be told where the other is asked for: `llama4` and `llama` are at 0.96, `mamba` and `llama` at 0.6.
const ALIKE: f64 = 0.8;

/// The architecture that metadata names.
///
/// # Errors
/// When it is unknown, with those that are not.
pub fn find(metadata: &Metadata) -> Result<&'static Architecture> {
    let name = metadata.need("general.architecture", Metadata::str)?;
    TABLE.iter().find(|a| a.name == name).ok_or_else(|| {
        let names = TABLE.iter().map(|a| a.name);
        let supported = names.clone().collect::<Vec<_>>().join(", ");
        let likeness = |other: &str| strsim::jaro_winkler(name, other);
        let nearest = names.max_by(|a, b| likeness(a).total_cmp(&likeness(b))).filter(|other| likeness(other) >= ALIKE);
        Error::Architecture { name: name.into(), nearest, supported }
    })
}
