//! Importance matrices: mean squares of the inputs of each matrix, by column.
//!
//! In llama.cpp's GGUF layout: for each weight the sums of squares `NAME.in_sum2 [in, matrices]`
//! and the numbers of rows `NAME.counts [1, matrices]`, in f32. The older layout, without a magic
//! number, has a list of names, counts and mean squares.

use crate::gguf::{self, Array, Gguf, Metadata, TensorDecl, Value, Writer};
use gristmill_encodings::F32;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
/// Metadata keys, and the value of `general.type`.
const TYPE: &str = "general.type";
const IMATRIX: &str = "imatrix";
const DATASETS: &str = "imatrix.datasets";
const CHUNK_COUNT: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";
/// Most entries and longest name of a file in the older layout, in bytes.
const MAX_ENTRIES: usize = 1 << 20;
const MAX_NAME: usize = 4096;

/// An importance matrix that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImportanceError {
    /// The file cannot be read or written.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// The older layout cannot be read.
    #[error("cannot read it: {0}")]
    Io(#[from] std::io::Error),
    /// The file is of another kind.
    #[error("the file is no importance matrix: {0}")]
    NotImportance(&'static str),
    /// An entry is malformed.
    #[error("the importance of {name} is malformed: {problem}")]
    Entry {
        /// Name of the weight.
        name: String,
        /// Fault of the entry, for messages.
        problem: &'static str,
    },
}

/// Sums of squares of the inputs of one weight.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Entry {
    /// Sums of squares, `[matrices, in]`.
    pub sums: Vec<f64>,
    /// Rows summed, for each matrix.
    pub counts: Vec<f64>,
}

impl Entry {
    /// Adds sums of squares `[matrices, in]` of so many rows of each matrix.
    pub fn add(&mut self, sums: &[f32], counts: &[f32]) {
        self.sums.resize(sums.len(), 0.0);
        self.counts.resize(counts.len(), 0.0);
        let add = |into: &mut [f64], of: &[f32]| {
            into.iter_mut()
                .zip(of)
                .for_each(|(into, &of)| *into += f64::from(of));
        };
        add(&mut self.sums, sums);
        add(&mut self.counts, counts);
    }
    /// Mean squares `[matrices, in]`; 1 for matrices without rows.
    fn means(&self) -> Vec<f32> {
        let width = self.sums.len() / self.counts.len().max(1);
        let matrices = self.sums.chunks(width.max(1)).zip(&self.counts);
        let means = matrices.flat_map(|(sums, &count)| {
            let mean = move |sum: &f64| if count > 0.0 { sum / count } else { 1.0 };
            sums.iter().map(mean)
        });
        means.map(|mean| mean as f32).collect()
    }
    fn check(&self, name: &str) -> Result<(), ImportanceError> {
        let problem = |problem| {
            Err(ImportanceError::Entry {
                name: name.into(),
                problem,
            })
        };
        let all = self.sums.iter().chain(&self.counts);
        if self.counts.is_empty() || !self.sums.len().is_multiple_of(self.counts.len()) {
            return problem("sums and counts do not fit");
        }
        match all.clone().all(|v| v.is_finite() && *v >= 0.0) {
            true => Ok(()),
            false => problem("a number is negative or not finite"),
        }
    }
}

/// Mean squares of the inputs of a model's weights, and the text behind them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Importance {
    /// Entry of each weight.
    pub entries: BTreeMap<String, Entry>,
    /// Files that it was made of.
    pub datasets: Vec<String>,
    /// Number of chunks of tokens.
    pub chunks: u32,
    /// Tokens of a chunk.
    pub chunk_size: u32,
}

impl Importance {
    /// Reads a file of either layout.
    ///
    /// # Errors
    /// When the file cannot be read, is of another kind, or has malformed numbers.
    pub fn open(path: &Path) -> Result<Importance, ImportanceError> {
        match Gguf::open(path) {
            Ok(file) => Importance::from_gguf(&file),
            Err(gguf::Error::InFile { error, .. })
                if matches!(*error, gguf::Error::BadMagic(_)) =>
            {
                Importance::from_list(&std::fs::read(path)?)
            }
            Err(error) => Err(error.into()),
        }
    }
    /// Reads the GGUF layout.
    ///
    /// # Errors
    /// When the file is of another kind, or has malformed numbers.
    pub fn from_gguf(file: &Gguf) -> Result<Importance, ImportanceError> {
        let metadata = file.metadata();
        if metadata.str(TYPE)? != Some(IMATRIX) {
            return Err(ImportanceError::NotImportance(
                "its general.type is another",
            ));
        }
        let mut found = Importance {
            chunks: metadata.u32(CHUNK_COUNT)?.unwrap_or(0),
            chunk_size: metadata.u32(CHUNK_SIZE)?.unwrap_or(0),
            ..Importance::default()
        };
        if let Some(names) = metadata.strings(DATASETS)? {
            let name = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            found.datasets = names.iter().map(name).collect();
        }
        for info in file.tensors() {
            let Some(name) = info.name.strip_suffix(SUMS) else {
                continue;
            };
            let entry = Entry {
                sums: numbers(file, &info.name)?,
                counts: numbers(file, &format!("{name}{COUNTS}"))?,
            };
            entry.check(name)?;
            found.entries.insert(name.into(), entry);
        }
        match found.entries.is_empty() {
            true => Err(ImportanceError::NotImportance("it has no sums of squares")),
            false => Ok(found),
        }
    }
    /// Reads the older layout.
    fn from_list(bytes: &[u8]) -> Result<Importance, ImportanceError> {
        let mut reader = ListReader(bytes);
        let mut found = Importance::default();
        let count = reader.count(MAX_ENTRIES)?;
        for _ in 0..count {
            let len = reader.count(MAX_NAME)?;
            let name = String::from_utf8_lossy(reader.take(len)?).into_owned();
            let calls = f64::from(reader.int()?.max(1));
            let len = reader.count(bytes.len() / size_of::<f32>())?;
            let values = reader.take(len * size_of::<f32>())?.as_chunks().0;
            let entry = Entry {
                sums: values
                    .iter()
                    .map(|&v| f64::from(f32::from_le_bytes(v)))
                    .collect(),
                counts: vec![calls],
            };
            entry.check(&name)?;
            found.entries.insert(name, entry);
        }
        // Number of chunks and name of the text, if they are there.
        if let Ok(chunks) = reader.int() {
            found.chunks = chunks.max(0) as u32;
            let name = reader.count(MAX_NAME).and_then(|len| reader.take(len));
            found
                .datasets
                .extend(name.ok().map(|name| String::from_utf8_lossy(name).into()));
        }
        Ok(found)
    }
    /// Mean squares `[matrices, in]` of the inputs of a weight.
    pub(super) fn means(&self, name: &str) -> Option<Vec<f32>> {
        self.entries.get(name).map(Entry::means)
    }
    /// Writes the GGUF layout.
    ///
    /// # Errors
    /// When `out` fails, or a name is too long.
    pub fn write(&self, out: impl Write) -> Result<(), gguf::Error> {
        let mut metadata = Metadata::new();
        let mut datasets = gguf::Strings::default();
        self.datasets.iter().for_each(|name| datasets.push(name));
        metadata.insert(TYPE, IMATRIX);
        metadata.insert(DATASETS, Value::Array(Array::Str(datasets)));
        metadata.insert(CHUNK_COUNT, self.chunks);
        metadata.insert(CHUNK_SIZE, self.chunk_size);
        let tensors = self.entries.iter().flat_map(|(name, entry)| {
            let matrices = entry.counts.len() as u64;
            let width = entry.sums.len() as u64 / matrices.max(1);
            [
                (format!("{name}{SUMS}"), [width, matrices], &entry.sums),
                (format!("{name}{COUNTS}"), [1, matrices], &entry.counts),
            ]
        });
        let tensors: Vec<_> = tensors.collect();
        let declared = tensors.iter().map(|(name, dims, _)| TensorDecl {
            name,
            dims,
            encoding: &F32,
        });
        let declared: Vec<TensorDecl<'_>> = declared.collect();
        let mut writer = Writer::new(out, &metadata, &declared)?;
        for (_, _, values) in &tensors {
            let bytes: Vec<u8> = values
                .iter()
                .flat_map(|&v| (v as f32).to_le_bytes())
                .collect();
            writer.data(&bytes)?;
        }
        writer.finish().map(drop)
    }
}

/// Numbers of an f32 tensor.
fn numbers(file: &Gguf, name: &str) -> Result<Vec<f64>, ImportanceError> {
    let info = file
        .tensor(name)
        .filter(|info| info.encoding.name == F32.name);
    let Some(info) = info else {
        return Err(ImportanceError::Entry {
            name: name.into(),
            problem: "it is not there in f32",
        });
    };
    let mut bytes = vec![0; info.bytes as usize];
    file.read_tensor(info, &mut bytes)?;
    let values = bytes.as_chunks().0.iter();
    Ok(values.map(|&v| f64::from(f32::from_le_bytes(v))).collect())
}

/// Reads little-endian numbers of the older layout.
struct ListReader<'b>(&'b [u8]);

impl<'b> ListReader<'b> {
    fn take(&mut self, len: usize) -> Result<&'b [u8], ImportanceError> {
        let short = ImportanceError::NotImportance("it ends too early");
        let (now, later) = self.0.split_at_checked(len).ok_or(short)?;
        self.0 = later;
        Ok(now)
    }
    fn int(&mut self) -> Result<i32, ImportanceError> {
        let bytes = self.take(size_of::<i32>())?;
        Ok(i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }
    /// Reads a number from 1 to `most`.
    fn count(&mut self, most: usize) -> Result<usize, ImportanceError> {
        let count = usize::try_from(self.int()?)
            .ok()
            .filter(|n| (1..=most).contains(n));
        count.ok_or(ImportanceError::NotImportance("a length in it is wrong"))
    }
}
