//! Checkpoints of Hugging Face's transformers as GGUF models: `config.json`, `.safetensors` files
//! and a tokenizer, in the layout that llama.cpp's `convert_hf_to_gguf.py` writes.
//!
//! [`open`] reads the small files and the headers, and returns a model file of tensors that are
//! made when they are read: rows of the checkpoint in another order, stacked, or with another type.
//! Such a file can be written, quantised or run. Folders are untrusted: every size is checked
//! before memory is taken, and nothing outside the folder is read.

mod checkpoint;
mod config;
mod encoders;
mod error;
mod family;
mod folder;
mod heads;
mod hyper;
mod named;
mod names;
mod pieces;
mod plan;
mod special;
mod tensor;
mod tiktoken;
mod token_table;
mod vocab;
mod word_pieces;

pub use error::ConvertError;
pub use folder::is_checkpoint;

use crate::arch;
use crate::gguf::{Array, Gguf, Metadata, Value, VirtualFile, assistant_of};
use checkpoint::Checkpoint;
use config::CheckpointConfig;
use folder::{CheckpointFolder, Object};
use hyper::Keys;
use plan::{PlannedTensors, Planner};
use special::SpecialTokens;
use std::path::Path;
use std::sync::Arc;
use vocab::TokenizerFiles;

/// A checkpoint as a model file, with notes for the user.
pub struct Converted {
    /// The model, as a file.
    pub file: Gguf,
    /// Name of the type of the checkpoint's matrices: `f32`, `f16` or `bf16`.
    pub source_type: &'static str,
    /// Settings of the checkpoint that have no effect, to be shown to the user.
    pub warnings: Vec<String>,
}

/// Opens a checkpoint as a model file.
///
/// # Errors
/// When a file is missing or malformed, the model's family or a setting is not supported, or
/// tensors do not fit the configuration.
pub fn open(path: &Path) -> Result<Converted, ConvertError> {
    let folder = CheckpointFolder(path.to_owned());
    let hint = "give the folder of a model as transformers saves it, with config.json";
    let object = folder.need(config::FILE, hint)?;
    let config = CheckpointConfig::new(object.clone())?;
    let family = family::find(&config)?;
    let checkpoint = Arc::new(Checkpoint::open(&folder)?);

    let mut metadata = Metadata::new();
    general(&folder, family.architecture, &mut metadata)?;
    let mut keys = Keys {
        metadata: &mut metadata,
        architecture: family.architecture,
        warnings: Vec::new(),
        tensors: Vec::new(),
    };
    hyper::common(&config, &mut keys)?;
    (family.keys)(&config, &mut keys)?;
    if arch::is_encoder(keys.metadata)? {
        encoders::pooling(&folder, family.architecture, keys.metadata)?;
    }
    let (further, mut warnings) = (keys.tensors, keys.warnings);
    let planned = Planner::new(&checkpoint, &config, family)?.plan(further)?;
    blocks(
        &planned,
        config.layers()? as usize,
        family.architecture,
        &mut metadata,
    );
    let is_assistant = assistant_of(family.architecture).is_some();
    // The model that it drafts for has the tokenizer.
    if !is_assistant {
        tokenizer(&folder, &object, &config, &planned, &mut metadata)?;
    }

    let PlannedTensors {
        tensors,
        source_type,
        ..
    } = planned;
    let file = VirtualFile::new(&metadata, tensors)?;
    let file = Gguf::from_source(Box::new(file))?;
    // An assistant is checked against the model that it is added to.
    if !is_assistant {
        let model = arch::load(file.metadata(), &file)?;
        warnings.extend(unused(&file, model.as_ref()));
    }
    Ok(Converted {
        file,
        source_type,
        warnings,
    })
}

/// Writes the keys that say what the file is.
fn general(
    folder: &CheckpointFolder,
    architecture: &str,
    metadata: &mut Metadata,
) -> Result<(), ConvertError> {
    metadata.insert("general.architecture", architecture);
    metadata.insert("general.type", "model");
    let path = std::fs::canonicalize(&folder.0).map_err(ConvertError::io(&folder.0))?;
    if let Some(name) = path.file_name() {
        metadata.insert("general.name", name.to_string_lossy().into_owned());
    }
    Ok(())
}

/// Counts the blocks for draft tokens, which are the last ones.
fn blocks(planned: &PlannedTensors, layers: usize, architecture: &str, metadata: &mut Metadata) {
    let drafts = planned.blocks - layers;
    let key = |name: &str| format!("{architecture}.{name}");
    if drafts > 0 {
        metadata.insert(key("block_count"), planned.blocks as u32);
        metadata.insert(key("nextn_predict_layers"), drafts as u32);
    }
    let recurrent = key("attention.recurrent_layers");
    if let Some(Value::Array(Array::Bool(list))) = metadata.get(&recurrent) {
        let list = list
            .iter()
            .copied()
            .chain(std::iter::repeat_n(false, drafts));
        let list = Value::Array(Array::Bool(list.collect()));
        metadata.insert(recurrent, list);
    }
}

/// Writes the tokenizer and what `generation_config.json` recommends.
fn tokenizer(
    folder: &CheckpointFolder,
    object: &Object,
    config: &CheckpointConfig,
    planned: &PlannedTensors,
    metadata: &mut Metadata,
) -> Result<(), ConvertError> {
    let embedding = planned
        .tensors
        .iter()
        .find(|t| t.name == "token_embd.weight");
    let rows = embedding.and_then(|t| t.dims.get(1)).copied();
    let rows = rows
        .ok_or_else(|| ConvertError::tensor("model.embed_tokens.weight", "it is missing"))?
        as usize;
    let files = TokenizerFiles::read(folder)?;
    let vocab = files.vocab(metadata.need("general.architecture", Metadata::str)?, rows)?;
    vocab.write(metadata);
    let generation = folder.object("generation_config.json")?.unwrap_or_default();
    let special = SpecialTokens::read(&files)?;
    special.write(metadata, object, &generation, &config.class, rows);
    special::templates(folder, &files.settings, metadata)?;
    special::sampling(&generation, metadata);
    Ok(())
}

/// Warns of tensors that the model does not read.
fn unused(file: &Gguf, model: &dyn arch::Model) -> Option<String> {
    let layers = model.layers();
    let is_read = |name: &str| {
        let is_draft = || {
            let layer = name.strip_prefix("blk.")?.split('.').next()?.parse().ok();
            layer.map(|layer: usize| layer >= layers)
        };
        name.starts_with("rope_f")
            || is_draft() == Some(true)
            || model.tensors().iter().any(|spec| spec.name == name)
    };
    let names = file.tensors().iter().map(|t| t.name.as_str());
    let unread: Vec<&str> = names.filter(|name| !is_read(name)).collect();
    let first = unread.first()?;
    let count = unread.len();
    Some(format!(
        "{count} tensors are converted that this program does not use, such as {first}"
    ))
}
