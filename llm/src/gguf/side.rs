//! Blocks for draft tokens in files of their own, `mtp-*.gguf`, as llama.cpp's converter writes
//! them.

use super::error::{Error, Result};
use super::metadata::Metadata;
use super::{Gguf, source};
use std::fs;
use std::path::{Path, PathBuf};

/// Begin of the names of such files.
const PREFIX: &str = "mtp-";

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
    /// Adds the block for draft tokens of a file beside the model's, unless the model has one:
    /// `mtp-NAME` beside `NAME`, or the only `mtp-*.gguf` of the folder if it fits. Returns its
    /// path if there is one.
    ///
    /// # Errors
    /// Returns an error if `mtp-NAME` cannot be read or does not fit.
    pub fn attach_draft_block_beside(&mut self, model: &Path) -> Result<Option<PathBuf>> {
        let has_block = Shape::read(self).is_ok_and(|own| own.drafts > 0);
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
        let only = only_side_file(folder);
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

/// Returns the side file of a folder, if there is exactly one.
fn only_side_file(folder: &Path) -> Option<PathBuf> {
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let entries = fs::read_dir(folder).ok()?.flatten();
    let is_side = |name: &str| name.starts_with(PREFIX) && name.ends_with(".gguf");
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
