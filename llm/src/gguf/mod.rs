//! The GGUF container, versions 2 and 3: reader and writer.
//!
//! A file has metadata (typed key–value pairs), tensor infos, and tensor data. [`Gguf`] reads the
//! first two when it opens a file and the data on request, with positioned reads from any number of
//! threads. Files are untrusted: every count, length, offset and size is checked against the file
//! before it is used, and nothing panics.
//!
//! Shapes are in the order of the format, the contiguous dimension first: a weight of
//! `{in, out}` has `out` rows.

mod error;
mod kind;
mod layout;
mod metadata;
mod parse;
mod side;
mod source;
mod split;
mod tensor;
pub mod types;
mod value;
mod virtual_file;
mod write;

pub use error::{Error, Result};
pub(crate) use kind::assistant_of;
pub use kind::{OtherKind, is_draft_block_path};
pub(crate) use layout::tensor_bytes;
pub use metadata::{Metadata, PerLayer};
pub use source::ByteSource;
pub use tensor::TensorInfo;
pub use types::Role;
pub use value::{Array, Strings, Value};
pub use virtual_file::{TensorData, VirtualFile};
pub use write::{TensorDecl, Writer};

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

/// An open GGUF model: one file or all shards of a split one.
pub struct Gguf {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    // The standard hasher, for the reason given in `Metadata`.
    index: HashMap<String, usize>,
    sources: Vec<Box<dyn ByteSource>>,
    attached: Vec<AttachedAdapter>,
}

/// An adapter whose tensors were added to a model.
#[derive(Clone, PartialEq, Debug)]
pub struct AttachedAdapter {
    /// Begin of the names of its tensors.
    pub prefix: String,
    /// `adapter.lora.alpha`; 0 for none.
    pub alpha: f32,
    /// Factor that its user chose.
    pub scale: f32,
    /// Number of adapters that it holds, if rows choose among them.
    pub choices: Option<usize>,
}

impl Gguf {
    /// Magic number at the start of a GGUF file.
    pub const MAGIC: [u8; 4] = layout::MAGIC;

    /// Opens the file at `path`, and the other shards if it is the first of a split model.
    ///
    /// # Errors
    /// Returns [`Error::InFile`] with the path of the file that cannot be read or is malformed.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let at = |path: &Path| {
            let path = path.to_path_buf();
            move |error| Error::InFile {
                path,
                error: Box::new(error),
            }
        };
        let mut model = Self::one(Box::new(source::FileSource::open(path).map_err(at(path))?))
            .map_err(at(path))?;
        let count = split::count(&model.metadata).map_err(at(path))?;
        if count > 1 {
            let paths = split::siblings(path, count).map_err(at(path))?;
            for (no, path) in (0..count).zip(&paths).skip(1) {
                let source = source::FileSource::open(path)
                    .map_err(|error| split::named_missing(error, no, count))
                    .map_err(at(path))?;
                model
                    .add_shard(Box::new(source), no, count)
                    .map_err(at(path))?;
            }
            model.check_total().map_err(at(path))?;
        }
        Ok(model)
    }

    /// Checks the header and the tensor ranges of an open model or shard, without reading its data.
    ///
    /// # Errors
    /// Returns an error if the file is malformed or shorter than its tensors.
    pub fn check(file: File) -> Result<()> {
        Self::one(Box::new(source::FileSource::from_file(file)?)).map(drop)
    }

    /// Reads a model from memory: `&'static [u8]`, `Arc<[u8]>`, `Vec<u8>`.
    ///
    /// # Errors
    /// Returns an error if the bytes are malformed, or are one shard of several.
    pub fn from_bytes(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<Self> {
        Self::from_source(Box::new(source::MemorySource(bytes)))
    }

    /// Reads a model from any source with random access.
    ///
    /// # Errors
    /// Returns an error if the bytes are malformed, or are one shard of several.
    pub fn from_source(source: Box<dyn ByteSource>) -> Result<Self> {
        let model = Self::one(source)?;
        match split::count(&model.metadata)? {
            1 => Ok(model),
            n => Err(Error::Split(format!("this is one file of {n}"))),
        }
    }

    fn one(source: Box<dyn ByteSource>) -> Result<Self> {
        let (metadata, tensors) = parse::parse(source.as_ref(), 0)?;
        let index = tensors
            .iter()
            .enumerate()
            .map(|(i, t)| (t.name.clone(), i))
            .collect();
        Ok(Self {
            metadata,
            tensors,
            index,
            sources: vec![source],
            attached: Vec::new(),
        })
    }

    /// Adds the tensors of an adapter, which must fit the model; `scale` multiplies its effect.
    pub fn attach(&mut self, adapter: Gguf, alpha: f32, scale: f32) {
        self.attach_as(adapter, [alpha, scale], None);
    }

    /// Adds `count` adapters in one file, their matrices one after the other along the rank, among
    /// which each row of a step chooses.
    pub fn attach_choices(&mut self, adapters: Gguf, count: usize) {
        self.attach_as(adapters, [0.0, 1.0], Some(count));
    }

    fn attach_as(&mut self, adapter: Gguf, [alpha, scale]: [f32; 2], choices: Option<usize>) {
        let prefix = format!("adapter{}.", self.attached.len());
        let first = self.sources.len();
        for mut tensor in adapter.tensors {
            tensor.name = prefix.clone() + &tensor.name;
            tensor.shard += first;
            self.index.insert(tensor.name.clone(), self.tensors.len());
            self.tensors.push(tensor);
        }
        self.sources.extend(adapter.sources);
        self.attached.push(AttachedAdapter {
            prefix,
            alpha,
            scale,
            choices,
        });
    }

    /// Returns the adapters that were attached.
    pub fn attached(&self) -> &[AttachedAdapter] {
        &self.attached
    }

    fn add_shard(&mut self, source: Box<dyn ByteSource>, no: u32, count: u32) -> Result<()> {
        let (metadata, tensors) = parse::parse(source.as_ref(), self.sources.len())?;
        split::check(&metadata, no, count)?;
        for tensor in tensors {
            if self
                .index
                .insert(tensor.name.clone(), self.tensors.len())
                .is_some()
            {
                return Err(Error::DuplicateTensor(tensor.name));
            }
            self.tensors.push(tensor);
        }
        self.sources.push(source);
        Ok(())
    }

    fn check_total(&self) -> Result<()> {
        let declared = self.metadata.need("split.tensors.count", Metadata::u64)?;
        if declared == self.tensors.len() as u64 {
            return Ok(());
        }
        Err(Error::Split(format!(
            "{declared} tensors announced, {} found in all files",
            self.tensors.len()
        )))
    }

    /// Returns the metadata, that of the first file for a split model.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns all tensors in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Returns the tensor named `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    /// Returns `general.architecture`, the prefix of the model's own keys.
    ///
    /// # Errors
    /// Returns an error if it is absent, or if `general.type` says that the file is not a model.
    pub fn architecture(&self) -> Result<&str> {
        match self.metadata.other_kind()? {
            Some(kind) => Err(kind.into()),
            None => self.metadata.need("general.architecture", Metadata::str),
        }
    }

    /// Checks that the file is a model with weights.
    ///
    /// # Errors
    /// The errors of [`Gguf::architecture`]; when the file has a vocabulary and no tensors.
    pub fn check_weights(&self) -> Result<()> {
        self.architecture()?;
        match self.tensors.is_empty() {
            true => Err(OtherKind::Vocabulary.into()),
            false => Ok(()),
        }
    }

    /// Returns the number of files.
    pub fn shards(&self) -> usize {
        self.sources.len()
    }

    /// Returns the total length of all files in bytes.
    pub fn size(&self) -> u64 {
        self.sources.iter().map(|s| s.size()).sum()
    }

    /// Reads the whole data of `info` into `out`, which must have exactly `info.bytes` bytes. Safe
    /// to call from several threads at once.
    ///
    /// # Errors
    /// Returns an error if `out` has another length, or if the file cannot be read
    /// or has become shorter.
    pub fn read_tensor(&self, info: &TensorInfo, out: &mut [u8]) -> Result<()> {
        if out.len() as u64 != info.bytes {
            let (tensor, bytes, end) = (info.name.clone(), info.bytes, out.len() as u64);
            return Err(Error::Range {
                tensor,
                bytes,
                start: 0,
                end,
            });
        }
        self.read_range(info, 0, out)
    }

    /// Reads `out.len()` bytes of a tensor's data, starting at byte `start` of it.
    ///
    /// # Errors
    /// Returns an error if the range is not inside the tensor, or if the file cannot be read
    /// or has become shorter.
    pub fn read_range(&self, info: &TensorInfo, start: u64, out: &mut [u8]) -> Result<()> {
        let end = start.saturating_add(out.len() as u64);
        let source = self.sources.get(info.shard);
        match (source, info.offset.checked_add(start)) {
            (Some(source), Some(offset)) if end <= info.bytes => source
                .read_at(offset, out)
                .map_err(Error::io("cannot read tensor data")),
            _ => Err(Error::Range {
                tensor: info.name.clone(),
                bytes: info.bytes,
                start,
                end,
            }),
        }
    }

    /// Drops a byte range of a file from the page cache, because it will not be read again soon.
    pub fn release(&self, shard: usize, range: Range<u64>) {
        if let Some(source) = self.sources.get(shard) {
            source.release(range);
        }
    }
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (keys, tensors) = (self.metadata.len(), self.tensors.len());
        write!(
            f,
            "Gguf({keys} keys, {tensors} tensors, {} files)",
            self.sources.len()
        )
    }
}
