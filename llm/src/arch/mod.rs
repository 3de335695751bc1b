//! Model architectures: hyper-parameters, tensor tables and the functions of a step.
//!
//! An architecture reads its hyper-parameters, checks every required tensor against them, and
//! describes a step as calls of captured functions ([`Model::build`]). It knows no device: a
//! runtime binds buffers to the slots. Layers with identical functions share one. Code shared by
//! several architectures is in the files of this folder.

mod attention;
mod bert;
mod cache;
mod decoder;
pub mod deepseek2;
mod draft;
mod embed_head;
mod encoder;
mod error;
mod feed_forward;
mod gemma2;
mod gemma3;
mod gemma4;
mod glm4moe;
mod gpt_oss;
mod granite;
pub mod hadamard;
mod llama;
mod lookup;
mod low_rank;
mod minimax_m2;
mod mistral3;
mod model;
mod modern_bert;
pub mod moe;
mod nomic_bert;
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
mod trained;
mod training;

pub use cache::{CacheExtent, CacheSpec, CacheTensor, CacheType, Component};
pub use draft::DRAFT_PROJECTION;
pub use error::{Error, Result};
pub use gemma4::{ASSISTANT_HEAD, ASSISTANT_PROJECTION};
pub use lookup::Tensors;
pub use low_rank::{AdapterScales, AppliedAdapter, LowRank, LowRankShape, MAX_CHOICES};
use model::ExtendedModel;
pub use model::{Architecture, Model, ModelInfo};
pub(crate) use plan::MAX_TEXTS;
pub use plan::{
    Bind, BoundCall, CachedExperts, CutBind, DraftOptions, DraftSource, ExpertBind, ExpertTile,
    Functions, Logits, Options, Plan, StepKind,
};
pub use pools::{CacheKinds, Pools};
pub use rope::RopeTable;
pub use step::StepBuilder;
pub use tensors::TensorSpec;
pub(crate) use tensors::scale_under_adapters;
pub use trained::{Trained, TrainingPlan, TrainingProducts, TrainingShape};
pub use training::{calibration_plan, training_plan};

use crate::gguf::Metadata;

/// All architectures that [`load`] supports.
pub static TABLE: &[Architecture] = &[
    bert::ARCHITECTURE,
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
    modern_bert::ARCHITECTURE,
    nomic_bert::ARCHITECTURE,
    olmo2::ARCHITECTURE,
    phi3::ARCHITECTURE,
    qwen2::ARCHITECTURE,
    qwen3::ARCHITECTURE,
    qwen35::ARCHITECTURE,
    qwen35::WITH_EXPERTS,
    qwen3moe::ARCHITECTURE,
];

/// Loads a model from a file's metadata and tensors.
///
/// # Errors
/// Returns an error if the architecture is unknown, or if a required key or tensor is missing
/// or has another shape.
pub fn load(metadata: &Metadata, tensors: &dyn Tensors) -> Result<Box<dyn Model>> {
    let model = (find(metadata)?.load)(metadata, tensors)?;
    let adapters = tensors.adapters();
    Ok(match adapters.is_empty() {
        true => model,
        false => Box::new(ExtendedModel {
            caches: model.caches().to_vec(),
            model,
            adapters,
        }),
    })
}

/// Returns a model whose caches have those of its draft block too, if it has one.
#[must_use]
pub fn with_draft_block(model: Box<dyn Model>) -> Box<dyn Model> {
    match model.draft_caches().is_empty() {
        true => model,
        false => Box::new(ExtendedModel {
            caches: [model.caches(), model.draft_caches()].concat(),
            adapters: model.adapters().to_vec(),
            model,
        }),
    }
}

/// Returns the tensors of the model that the metadata describes: see [`Architecture::tensors`].
///
/// # Errors
/// Returns an error if the architecture is unknown, or if the metadata lacks a key.
pub fn tensors(metadata: &Metadata, there: &dyn Tensors) -> Result<Vec<TensorSpec>> {
    (find(metadata)?.tensors)(metadata, there)
}

/// Returns whether the metadata is that of a text encoder.
///
/// # Errors
/// Returns an error if the architecture is absent or has the wrong type.
pub fn is_encoder(metadata: &Metadata) -> Result<bool> {
    let name = metadata.need("general.architecture", Metadata::str)?;
    Ok(is_encoder_name(name))
}

/// Returns whether an architecture is that of a text encoder.
pub(crate) fn is_encoder_name(architecture: &str) -> bool {
    encoder::NAMES.contains(&architecture)
}

/// Minimum Jaro-Winkler similarity, from 0 to 1, for an architecture to be suggested in an error.
/// `llama4` and `llama` have 0.96, `mamba` and `llama` 0.6.
const MIN_SIMILARITY: f64 = 0.8;

/// Returns the architecture named in the metadata.
///
/// # Errors
/// Returns an error with the supported architectures if it is unknown.
pub fn find(metadata: &Metadata) -> Result<&'static Architecture> {
    let name = metadata.need("general.architecture", Metadata::str)?;
    TABLE.iter().find(|a| a.name == name).ok_or_else(|| {
        let names = TABLE.iter().map(|a| a.name);
        let supported = names.clone().collect::<Vec<_>>().join(", ");
        let likeness = |other: &str| strsim::jaro_winkler(name, other);
        let nearest = names
            .max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
            .filter(|other| likeness(other) >= MIN_SIMILARITY);
        Error::Architecture {
            name: name.into(),
            nearest,
            supported,
        }
    })
}
