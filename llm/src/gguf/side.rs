//! Blocks for draft tokens in files of their own, `mtp-*.gguf`, as llama.cpp's converter writes
//! them, and assistants: models that draft tokens for one other model, by its KV cache.

use super::error::{Error, Result};
use super::kind::{ASSISTANT, OtherKind, PREFIX, assistant_of};
use super::metadata::Metadata;
use super::{Gguf, TensorInfo, source, types};
use gristmill_uop::encoding::EncodingRef;
use std::fs;
use std::path::{Path, PathBuf};

/// Part of the names of assistants.
const PART: &str = "assistant";

/// Begin of the names of an assistant's tensors outside blocks, in the file of its model.
const OF_ASSISTANT: &str = "assistant.";
/// An assistant's tensor with all token ids, cluster by cluster, and those that are made of it: the
/// ids, and the place of each id among them, in f32.
const ORDERING: &str = "masked_embd_ordering";
const CLUSTER_TOKENS: &str = "assistant.cluster_tokens";
const CLUSTER_PLACES: &str = "assistant.cluster_places";

/// Keys of the number of blocks, and of those of them for draft tokens, without the architecture.
const BLOCKS: &str = "block_count";
const DRAFT_BLOCKS: &str = "nextn_predict_layers";

impl Gguf {
    /// Adds the tensors and counts of the block for draft tokens that another file has. Other
    /// tensors of that file, such as a copy of the embedding, are left out.
    ///
    /// # Errors
    /// Returns an error if the file is of another model, or has no such block.
    pub fn attach_draft_block(&mut self, side: Gguf) -> Result<()> {
        if side.is_assistant() {
            return self.attach_assistant(side);
        }
        let (own, other) = (Shape::read(self)?, Shape::read(&side)?);
        if own.architecture != other.architecture || own.width != other.width {
            return Err(Error::DraftBlock("it is of another model".into()));
        }
        if other.layers != own.layers || other.drafts == 0 {
            let [blocks, layers] = [other.drafts, other.layers];
            return Err(Error::DraftBlock(format!(
                "it has {blocks} blocks behind {layers} layers, and the model has {} layers",
                own.layers
            )));
        }
        let first = self.sources.len();
        for mut tensor in side.tensors {
            let is_of_block = block_of(&tensor.name).is_some_and(|block| block >= own.layers);
            if is_of_block && !self.index.contains_key(&tensor.name) {
                tensor.shard += first;
                self.index.insert(tensor.name.clone(), self.tensors.len());
                self.tensors.push(tensor);
            }
        }
        self.sources.extend(side.sources);
        let key = |name: &str| format!("{}.{name}", own.architecture);
        self.metadata.insert(key(BLOCKS), own.layers + other.drafts);
        self.metadata.insert(key(DRAFT_BLOCKS), other.drafts);
        Ok(())
    }
    /// Returns whether a tensor is of a block for draft tokens.
    pub fn is_of_draft_block(&self, tensor: &str) -> bool {
        let shape = Shape::read(self);
        shape.is_ok_and(|own| block_of(tensor).is_some_and(|block| block >= own.layers))
    }
    /// Returns whether the file is an assistant, which drafts tokens for another model.
    pub fn is_assistant(&self) -> bool {
        let kind = self.metadata().other_kind();
        kind.is_ok_and(|kind| kind == Some(OtherKind::Assistant))
    }
    /// Adds an assistant: its blocks follow those of the model, and its other tensors and its keys
    /// have prefixes of their own. One that was added before leaves.
    fn attach_assistant(&mut self, side: Gguf) -> Result<()> {
        let metadata = side.metadata();
        let other = metadata.need("general.architecture", Metadata::str)?;
        let (own, other) = (self.architecture()?.to_owned(), other.to_owned());
        if assistant_of(&other) != Some(&own) {
            let why = format!("it drafts for a model of another architecture, {own} is this one's");
            return Err(Error::DraftBlock(why));
        }
        let number = |file: &Gguf, key: String| file.metadata().need(&key, Metadata::u32);
        let width = number(self, format!("{own}.embedding_length"))?;
        let expected = number(&side, format!("{other}.embedding_length_out"))?;
        if width != expected {
            let why = format!("it is of a model of width {expected}, and this one's is {width}");
            return Err(Error::DraftBlock(why));
        }
        let layers = number(self, format!("{own}.{BLOCKS}"))?;
        let ids = side.cluster_tokens()?;
        self.remove_assistant(layers);
        let first = self.sources.len();
        let others = side.tensors.into_iter().filter(|of| of.name != ORDERING);
        for mut tensor in others {
            let block = tensor
                .name
                .strip_prefix("blk.")
                .and_then(|of| of.split_once('.'));
            let block = block.and_then(|(block, rest)| Some((block.parse::<u32>().ok()?, rest)));
            tensor.name = match block {
                Some((block, rest)) => format!("blk.{}.{rest}", layers.saturating_add(block)),
                None => format!("{OF_ASSISTANT}{}", tensor.name),
            };
            tensor.shard += first;
            self.index.insert(tensor.name.clone(), self.tensors.len());
            self.tensors.push(tensor);
        }
        self.sources.extend(side.sources);
        if let Some(ids) = ids {
            self.add_clusters(&ids);
        }
        let (of_side, of_model) = (format!("{other}."), format!("{own}{ASSISTANT}."));
        for (key, value) in side.metadata.iter() {
            if let Some(key) = key.strip_prefix(&of_side) {
                self.metadata
                    .insert(format!("{of_model}{key}"), value.clone());
            }
        }
        Ok(())
    }
    /// Returns the token ids of an assistant's clusters, which have each id once; `None` without
    /// clusters.
    fn cluster_tokens(&self) -> Result<Option<Vec<u32>>> {
        let Some(tensor) = self.tensor(ORDERING) else {
            return Ok(None);
        };
        let mut bytes = vec![0; tensor.bytes as usize];
        self.read_tensor(tensor, &mut bytes)?;
        let words = bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
        let ids: Vec<u32> = words.map(u32::from_le_bytes).collect();
        let mut seen = vec![false; ids.len()];
        let is_new = |&id: &u32| {
            let seen = seen.get_mut(id as usize);
            seen.is_some_and(|seen| !std::mem::replace(seen, true))
        };
        let are_numbers = tensor.encoding == &gristmill_encodings::I32 as EncodingRef;
        match are_numbers && ids.iter().all(is_new) {
            true => Ok(Some(ids)),
            false => Err(Error::DraftBlock(format!(
                "the tensor {ORDERING} has not each token once"
            ))),
        }
    }
    /// Adds the tensors of an assistant's clusters.
    fn add_clusters(&mut self, ids: &[u32]) {
        let mut places = vec![0u32; ids.len()];
        for (place, &id) in (0..).zip(ids) {
            places[id as usize] = place;
        }
        for (name, numbers) in [(CLUSTER_TOKENS, ids), (CLUSTER_PLACES, &places)] {
            let floats = numbers.iter().map(|&of| of as f32);
            let bytes: Vec<u8> = floats.flat_map(f32::to_le_bytes).collect();
            self.index.insert(name.to_owned(), self.tensors.len());
            self.tensors.push(TensorInfo {
                name: name.to_owned(),
                dims: vec![ids.len() as u64],
                encoding: &gristmill_encodings::F32,
                type_id: types::type_id(&gristmill_encodings::F32).unwrap_or_default(),
                shard: self.sources.len(),
                offset: 0,
                bytes: bytes.len() as u64,
            });
            self.sources.push(Box::new(source::MemorySource(bytes)));
        }
    }
    /// Removes the tensors of an assistant of a model of so many layers.
    fn remove_assistant(&mut self, layers: u32) {
        if !self
            .tensors
            .iter()
            .any(|of| of.name.starts_with(OF_ASSISTANT))
        {
            return;
        }
        let is_of_model = |name: &str| {
            let is_behind = block_of(name).is_some_and(|block| block >= layers);
            !(is_behind || name.starts_with(OF_ASSISTANT))
        };
        self.tensors.retain(|tensor| is_of_model(&tensor.name));
        let all = self.tensors.iter().enumerate();
        self.index = all.map(|(at, tensor)| (tensor.name.clone(), at)).collect();
    }
    /// Adds the block for draft tokens of a file beside the model's, unless the model has one:
    /// `mtp-NAME` beside `NAME`, or the only `mtp-*.gguf` or `*assistant*.gguf` of the folder if it
    /// fits. Returns its path if there is one.
    ///
    /// # Errors
    /// Returns an error if `mtp-NAME` cannot be read or does not fit.
    pub fn attach_draft_block_beside(&mut self, model: &Path) -> Result<Option<PathBuf>> {
        let has_assistant = self
            .tensors
            .iter()
            .any(|of| of.name.starts_with(OF_ASSISTANT));
        let has_block = has_assistant || Shape::read(self).is_ok_and(|own| own.drafts > 0);
        let name = model.file_name().and_then(|name| name.to_str());
        let (Some(name), false) = (name, has_block) else {
            return Ok(None);
        };
        let folder = model.parent().unwrap_or(Path::new(""));
        let named = folder.join(format!("{PREFIX}{name}"));
        if named.is_file() {
            let attached = open(&named).and_then(|side| self.attach_draft_block(side));
            return match attached {
                Ok(()) => Ok(Some(named)),
                Err(error) => Err(Error::InFile {
                    path: named,
                    error: Box::new(error),
                }),
            };
        }
        let only = only_side_file(folder, name);
        let fits = only.as_ref().is_some_and(|path| {
            let attached = open(path).and_then(|side| self.attach_draft_block(side));
            attached.is_ok()
        });
        Ok(only.filter(|_| fits))
    }
}

fn open(path: &Path) -> Result<Gguf> {
    Gguf::from_source(Box::new(source::FileSource::open(path)?))
}

/// Returns the side file of a folder besides this model, if there is exactly one.
fn only_side_file(folder: &Path, model: &str) -> Option<PathBuf> {
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let entries = fs::read_dir(folder).ok()?.flatten();
    let is_side = |name: &str| {
        let is_named = name.starts_with(PREFIX) || name.to_lowercase().contains(PART);
        is_named && name.ends_with(".gguf") && name != model
    };
    let paths = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_side));
    let mut paths = paths.map(|entry| entry.path());
    let only = paths.next()?;
    paths.next().is_none().then_some(only)
}

/// Returns the number of the block that a tensor belongs to.
fn block_of(name: &str) -> Option<u32> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// What two files of one model have in common.
struct Shape {
    architecture: String,
    width: u32,
    layers: u32,
    /// Blocks for draft tokens.
    drafts: u32,
}

impl Shape {
    fn read(file: &Gguf) -> Result<Shape> {
        let architecture = file.architecture()?.to_owned();
        let (metadata, key) = (file.metadata(), |name: &str| {
            format!("{architecture}.{name}")
        });
        let blocks = metadata.need(&key(BLOCKS), Metadata::u32)?;
        let drafts = metadata.u32(&key(DRAFT_BLOCKS))?.unwrap_or(0);
        let layers = blocks.saturating_sub(drafts);
        // The key may be there without the tensors.
        let has_tensors = file
            .tensors
            .iter()
            .any(|tensor| block_of(&tensor.name) == Some(layers));
        Ok(Shape {
            width: metadata.need(&key("embedding_length"), Metadata::u32)?,
            layers,
            drafts: if has_tensors { drafts } else { 0 },
            architecture,
        })
    }
}
