//! GGUF writer: header first, then tensor data as a stream, so that memory use does not depend on
//! the model's size.

use super::error::{Error, Result};
use super::layout::{MAGIC, MAX_KEY, MAX_NAME, alignment, pad, tensor_bytes};
use super::metadata::Metadata;
use super::types::type_id;
use super::value::{Array, Value, with_numbers};
use gristmill_uop::encoding::EncodingRef;
use std::collections::HashSet;
use std::io::Write;

/// Declaration of a tensor to be written.
#[derive(Clone, Copy, Debug)]
pub struct TensorDecl<'a> {
    /// Name: 1 to 63 bytes, unique.
    pub name: &'a str,
    /// One to four sizes, the contiguous one first.
    pub dims: &'a [u64],
    /// Encoding of the data.
    pub encoding: EncodingRef,
}

/// Writes a GGUF file (version 3): metadata and tensor declarations first, then
/// tensor data in order.
pub struct Writer<W: Write> {
    out: W,
    /// Remaining tensors, last one first.
    left: Sizes,
    declared: u64,
    given: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the header and creates a writer for the tensor data.
    ///
    /// # Errors
    /// Returns an error if a declaration is one that the reader would refuse, or if `out` fails.
    pub fn new(mut out: W, metadata: &Metadata, tensors: &[TensorDecl<'_>]) -> Result<Self> {
        let (header, mut left) = encode_header(metadata, tensors)?;
        out.write_all(&header).map_err(Error::io("cannot write"))?;
        let declared = left.iter().map(|(bytes, _)| bytes).sum();
        left.reverse();
        Ok(Self {
            out,
            left,
            declared,
            given: 0,
        })
    }

    /// Writes the next bytes of tensor data; a call may end inside a tensor or span several.
    ///
    /// # Errors
    /// Returns an error if more bytes are given than the declared tensors take, or
    /// if the output fails.
    pub fn data(&mut self, mut bytes: &[u8]) -> Result<()> {
        let io = || Error::io("cannot write");
        self.given = self.given.saturating_add(bytes.len() as u64);
        while !bytes.is_empty() {
            let Some((left, padding)) = self.left.last_mut() else {
                return Err(Error::DataLength {
                    declared: self.declared,
                    given: self.given,
                });
            };
            let n = usize::try_from(*left).map_or(bytes.len(), |l| l.min(bytes.len()));
            let (now, later) = bytes.split_at(n);
            self.out.write_all(now).map_err(io())?;
            bytes = later;
            *left -= n as u64;
            if *left == 0 {
                std::io::copy(
                    &mut std::io::Read::take(std::io::repeat(0), *padding),
                    &mut self.out,
                )
                .map_err(io())?;
                self.left.pop();
            }
        }
        Ok(())
    }

    /// Returns the offsets of incomplete tensors, in bytes from the end of the data written so far.
    pub fn offsets(&self) -> Vec<u64> {
        let place = |at: &mut u64, &(bytes, padding): &(u64, u64)| {
            let offset = *at;
            *at += bytes + padding;
            Some(offset)
        };
        self.left.iter().rev().scan(0, place).collect()
    }

    /// Flushes and returns the output.
    ///
    /// # Errors
    /// Returns an error if tensor data is missing, or if the output fails.
    pub fn finish(mut self) -> Result<W> {
        if !self.left.is_empty() {
            return Err(Error::DataLength {
                declared: self.declared,
                given: self.given,
            });
        }
        self.out.flush().map_err(Error::io("cannot write"))?;
        Ok(self.out)
    }
}

/// Bytes of each tensor and of the padding after it.
type Sizes = Vec<(u64, u64)>;

/// Encodes the header and returns the sizes of the tensor data.
fn encode_header(metadata: &Metadata, tensors: &[TensorDecl<'_>]) -> Result<(Vec<u8>, Sizes)> {
    let alignment = alignment(metadata)?;
    let mut h = Vec::new();
    h.extend(MAGIC);
    h.extend(3u32.to_le_bytes());
    h.extend((tensors.len() as u64).to_le_bytes());
    h.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        name(&mut h, "metadata key", key, MAX_KEY)?;
        h.extend(value.type_id().to_le_bytes());
        put(&mut h, value);
    }
    let mut sizes = Vec::new();
    let mut names = HashSet::new();
    let mut offset = 0u64;
    for t in tensors {
        let overflow = || Error::Overflow {
            tensor: t.name.into(),
            what: "bytes",
        };
        let unsupported = || Error::Unsupported {
            tensor: t.name.into(),
            encoding: t.encoding.name,
        };
        if !names.insert(t.name) {
            return Err(Error::DuplicateTensor(t.name.into()));
        }
        let bytes = tensor_bytes(t.name, t.dims, t.encoding)?;
        let padded = pad(bytes, alignment).ok_or_else(overflow)?;
        name(&mut h, "tensor name", t.name, MAX_NAME)?;
        h.extend((t.dims.len() as u32).to_le_bytes());
        t.dims.iter().for_each(|n| h.extend(n.to_le_bytes()));
        h.extend(type_id(t.encoding).ok_or_else(unsupported)?.to_le_bytes());
        h.extend(offset.to_le_bytes());
        offset = offset.checked_add(padded).ok_or_else(overflow)?;
        sizes.push((bytes, padded - bytes));
    }
    // The header is in memory, so its padded length fits.
    let start = pad(h.len() as u64, alignment).unwrap_or(h.len() as u64);
    h.resize(start as usize, 0);
    Ok((h, sizes))
}

fn name(h: &mut Vec<u8>, what: &'static str, text: &str, limit: u64) -> Result<()> {
    match text.len() as u64 {
        0 => Err(Error::Empty { what }),
        len if len > limit => Err(Error::TooLong {
            what,
            offset: h.len() as u64,
            len,
            limit,
        }),
        _ => {
            string(h, text.as_bytes());
            Ok(())
        }
    }
}

fn string(h: &mut Vec<u8>, text: &[u8]) {
    h.extend((text.len() as u64).to_le_bytes());
    h.extend(text);
}

macro_rules! put_values {
    (ints { $($ii:literal $I:ident $it:ident;)* } floats { $($fi:literal $F:ident $ft:ident;)* }) => {
        fn put(h: &mut Vec<u8>, value: &Value) {
            match value {
                $(Value::$I(v) => h.extend(v.to_le_bytes()),)*
                $(Value::$F(v) => h.extend(v.to_le_bytes()),)*
                Value::Bool(v) => h.push(u8::from(*v)),
                Value::Str(v) => string(h, v),
                Value::Array(a) => {
                    h.extend(a.element_id().to_le_bytes());
                    h.extend((a.len() as u64).to_le_bytes());
                    match a {
                        $(Array::$I(v) => v.iter().for_each(|x| h.extend(x.to_le_bytes())),)*
                        $(Array::$F(v) => v.iter().for_each(|x| h.extend(x.to_le_bytes())),)*
                        Array::Bool(v) => h.extend(v.iter().map(|&b| u8::from(b))),
                        Array::Str(v) => v.iter().for_each(|s| string(h, s)),
                    }
                }
            }
        }
    };
}
with_numbers!(put_values);
