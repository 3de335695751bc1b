//! Writes the tensors of a model again: in pieces of rows, on several threads.

use crate::gguf::{self, Gguf, Metadata, TensorDecl, TensorInfo, Writer};
use gristmill_backend::parallel::parallel_for;
use gristmill_encodings::Quantiser;
use gristmill_tensor::evaluate;
use gristmill_uop::encoding::EncodingRef;
use std::collections::HashMap;
use std::io::Write;
use std::ops::Range;

/// Elements of a piece, apart from the rest of its last row.
const PIECE: usize = 1 << 17;
/// Pieces in memory, per thread.
const PIECES: usize = 4;
/// Prefix of the metadata keys of a split model.
const SPLIT: &str = "split.";
/// Metadata key of the type of most tensors.
pub(crate) const FILE_TYPE: &str = "general.file_type";

/// Names of the types that can be written.
pub fn writable_types() -> Vec<&'static str> {
    let all = gristmill_encodings::TABLE.iter().copied();
    all.filter(|e| Quantiser::new(e).is_some())
        .map(|e| e.name)
        .collect()
}

/// Looks up a type that can be written by its name, in any case of letters.
pub fn writable_type(name: &str) -> Option<EncodingRef> {
    let encoding = gristmill_encodings::by_name(&name.to_lowercase())?;
    Quantiser::new(encoding).map(|_| encoding)
}

/// The quantisers of the encodings of a model.
#[derive(Default)]
pub(crate) struct Quantisers(HashMap<&'static str, Quantiser>);

impl Quantisers {
    /// Derives the quantiser of an encoding; false if there is none.
    pub fn add(&mut self, encoding: EncodingRef) -> bool {
        if !self.0.contains_key(encoding.name)
            && let Some(quantiser) = Quantiser::new(encoding)
        {
            self.0.insert(encoding.name, quantiser);
        }
        self.0.contains_key(encoding.name)
    }
    /// Returns a quantiser that was added. Panics without one.
    pub fn get(&self, encoding: EncodingRef) -> &Quantiser {
        &self.0[encoding.name]
    }
    /// Decodes consecutive blocks, with a derived decoder where there is one.
    pub fn decode(&self, encoding: EncodingRef, bytes: &[u8]) -> Vec<f32> {
        let Some(quantiser) = self.0.get(encoding.name) else {
            let values = evaluate::decode(encoding, bytes).into_iter();
            return values.map(|v| v as f32).collect();
        };
        let mut out = vec![0.0; bytes.len() / encoding.bytes * encoding.elements];
        quantiser.decode(bytes, &mut out);
        out
    }
}

/// Rows of a tensor, read and encoded on any thread.
pub(crate) trait Rows: Sync {
    type Error: From<gguf::Error> + Send;
    /// Elements of a row, and number of rows.
    fn shape(&self) -> [usize; 2];
    /// Bytes of rows as they are written.
    fn encoded(&self, rows: Range<usize>) -> Result<Vec<u8>, Self::Error>;
}

/// Elements of a row of a tensor, rows of one matrix, and rows of all.
pub(crate) fn row_shape(info: &TensorInfo) -> [usize; 3] {
    let height = info.dims.get(1).map_or(1, |&n| n as usize);
    let rows = (info.elements() / info.dims[0]) as usize;
    [info.dims[0] as usize, height, rows]
}

/// Reads the bytes of rows of a tensor.
pub(crate) fn read_rows(
    file: &Gguf,
    info: &TensorInfo,
    rows: Range<usize>,
) -> Result<Vec<u8>, gguf::Error> {
    let [.., count] = row_shape(info);
    let row_bytes = info.bytes as usize / count;
    let mut bytes = vec![0; rows.len() * row_bytes];
    file.read_range(info, (rows.start * row_bytes) as u64, &mut bytes)?;
    Ok(bytes)
}

/// Ranges of rows, of about [`PIECE`] elements each.
fn pieces([width, rows]: [usize; 2]) -> Vec<Range<usize>> {
    let step = (PIECE / width).max(1);
    let piece = |start: usize| start..(start + step).min(rows);
    (0..rows).step_by(step).map(piece).collect()
}

/// Writes a model: `open` prepares the rows of the tensor of a number. `goes_on` gets the number of
/// tensor bytes written so far; `stopped` is the error if it returns false.
///
/// # Errors
/// When a file or the encoding of rows fails, or the caller stopped it.
pub(crate) fn write<R: Rows>(
    out: impl Write,
    metadata: &Metadata,
    declared: &[TensorDecl<'_>],
    threads: usize,
    open: impl Fn(usize) -> Result<R, R::Error>,
    (goes_on, stopped): (&mut dyn FnMut(u64) -> bool, R::Error),
) -> Result<(), R::Error> {
    let mut writer = Writer::new(out, metadata, declared)?;
    let mut written = 0;
    for number in 0..declared.len() {
        let rows = open(number)?;
        for window in pieces(rows.shape()).chunks(PIECES * threads) {
            let mut done: Vec<Vec<u8>> = vec![Vec::new(); window.len()];
            let keep = |number: usize, bytes: Vec<u8>| {
                done[number] = bytes;
                Ok::<(), R::Error>(())
            };
            let work = |number: usize| rows.encoded(window[number].clone());
            parallel_for(window.len(), threads, work, keep)?;
            for bytes in done {
                writer.data(&bytes)?;
                written += bytes.len() as u64;
            }
            if !goes_on(written) {
                return Err(stopped);
            }
        }
    }
    writer.finish()?;
    Ok(())
}

/// Metadata of a model that is written in one file with this `general.file_type`, or its own.
pub(crate) fn metadata(file: &Gguf, file_type: Option<Option<u32>>) -> Metadata {
    let is_kept = |key: &str| {
        let of_split = file.shards() > 1 && key.starts_with(SPLIT);
        let of_type = file_type.is_some() && key == FILE_TYPE;
        !of_split && !of_type
    };
    let mut out = Metadata::new();
    for (key, value) in file.metadata().iter().filter(|(key, _)| is_kept(key)) {
        out.insert(key, value.clone());
    }
    if let Some(id) = file_type.flatten() {
        out.insert(FILE_TYPE, id);
    }
    out
}
