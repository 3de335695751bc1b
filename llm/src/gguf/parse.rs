//! Parses the header of one file to metadata and tensor infos. Every length is checked
//! before it is used.

use super::TensorInfo;
use super::error::{Error, Result};
use super::layout::{
    FIXED_HEADER, MAGIC, MAX_KEY, MAX_NAME, MAX_RANK, alignment, pad, tensor_bytes,
};
use super::metadata::Metadata;
use super::source::ByteSource;
use super::types::{self, TypeId};
use super::value::{ARRAY, Array, BOOL, STRING, Strings, Value, with_numbers};
use std::collections::HashSet;

/// Maximum bytes of a string value; chat templates and embedded vocabularies have a few MB.
const MAX_STRING: u64 = 16 << 20;
/// Maximum number of tensors and of keys; real files have some 10³.
const MAX_COUNT: u64 = 1_000_000;
const MAX_ARRAY: u64 = 1 << 30;
/// Minimum bytes of an entry: key length, one byte of key, value type, one byte of value.
const MIN_ENTRY: u64 = 8 + 1 + 4 + 1;
/// Minimum bytes of a tensor info: name length, one byte of name, rank, one dimension, type,
/// offset.
const MIN_INFO: u64 = 8 + 1 + 4 + 8 + 4 + 8;
/// Bytes read at a time.
const WINDOW: u64 = 256 << 10;

pub(super) fn parse(source: &dyn ByteSource, shard: usize) -> Result<(Metadata, Vec<TensorInfo>)> {
    let mut c = Cursor {
        source,
        at: 0,
        size: source.size(),
        window: Vec::new(),
        window_at: 0,
    };
    let magic = c.array::<4>("the magic number")?;
    if magic != MAGIC {
        return Err(Error::BadMagic(magic));
    }
    if c.size < FIXED_HEADER {
        return Err(Error::Truncated {
            what: "the header",
            offset: 0,
            need: FIXED_HEADER,
            remaining: c.size,
        });
    }
    let version = u32::from_le_bytes(c.array("the version")?);
    match version {
        2 | 3 => {}
        v if v != 0 && v & 0xFFFF == 0 => return Err(Error::OtherEndian(v)),
        v => return Err(Error::Version(v)),
    }
    let tensors = i64::from_le_bytes(c.array("the tensor count")?);
    let entries = i64::from_le_bytes(c.array("the metadata count")?);
    let tensors = c.count("tensors", tensors, MIN_INFO)?;
    let entries = c.count("metadata keys", entries, MIN_ENTRY)?;

    let mut metadata = Metadata::new();
    for _ in 0..entries {
        let key = c.name("metadata key", MAX_KEY)?;
        if metadata.contains(&key) {
            return Err(Error::DuplicateKey(key));
        }
        let value = c.value(&key)?;
        metadata.insert(key, value);
    }
    let alignment = alignment(&metadata)?;

    let mut infos = Vec::new();
    let mut names = HashSet::new();
    let mut end = 0;
    for _ in 0..tensors {
        let info = c.tensor_info(shard, alignment, &mut end)?;
        if !names.insert(info.name.clone()) {
            return Err(Error::DuplicateTensor(info.name));
        }
        infos.push(info);
    }
    // Offsets are relative to the start of the data section, which is known only here.
    let base = pad(c.at, alignment);
    for info in &mut infos {
        let offset = base.and_then(|b| b.checked_add(info.offset));
        let end = offset.and_then(|o| o.checked_add(info.bytes));
        match (offset, end) {
            (Some(offset), Some(end)) if end <= c.size => info.offset = offset,
            _ => {
                let (tensor, end) = (info.name.clone(), end.unwrap_or(u64::MAX));
                return Err(Error::DataTruncated {
                    tensor,
                    end,
                    len: c.size,
                });
            }
        }
    }
    Ok((metadata, infos))
}

/// Buffered read position in the header.
struct Cursor<'a> {
    source: &'a dyn ByteSource,
    at: u64,
    size: u64,
    /// Bytes of the file starting at `window_at`.
    window: Vec<u8>,
    window_at: u64,
}

macro_rules! read_values {
    (ints { $($ii:literal $I:ident $it:ident;)* } floats { $($fi:literal $F:ident $ft:ident;)* }) => {
        impl Cursor<'_> {
            fn value(&mut self, key: &str) -> Result<Value> {
                const WHAT: &str = "a metadata value";
                Ok(match i32::from_le_bytes(self.array("a value type")?) {
                    $($ii => Value::$I($it::from_le_bytes(self.array(WHAT)?)),)*
                    $($fi => Value::$F($ft::from_le_bytes(self.array(WHAT)?)),)*
                    BOOL => Value::Bool(self.array::<1>(WHAT)? != [0]),
                    STRING => Value::Str(self.string("a string value", MAX_STRING)?.to_vec()),
                    ARRAY => Value::Array(self.elements(key)?),
                    id => return Err(Error::ValueType { key: key.into(), id }),
                })
            }

            fn elements(&mut self, key: &str) -> Result<Array> {
                let id = i32::from_le_bytes(self.array("an element type")?);
                let count = u64::from_le_bytes(self.array("an array length")?);
                Ok(match id {
                    $($ii => Array::$I(self.numbers(key, count, $it::from_le_bytes)?),)*
                    $($fi => Array::$F(self.numbers(key, count, $ft::from_le_bytes)?),)*
                    BOOL => Array::Bool(self.numbers(key, count, |b: [u8; 1]| b != [0])?),
                    STRING => Array::Str(self.strings(key, count)?),
                    ARRAY => return Err(Error::NestedArray { key: key.into() }),
                    id => return Err(Error::ValueType { key: key.into(), id }),
                })
            }
        }
    };
}
with_numbers!(read_values);

impl Cursor<'_> {
    fn remaining(&self) -> u64 {
        self.size - self.at
    }

    /// Returns the next `n` bytes.
    fn take(&mut self, n: u64, what: &'static str) -> Result<&[u8]> {
        if n > self.remaining() {
            return Err(Error::Truncated {
                what,
                offset: self.at,
                need: n,
                remaining: self.remaining(),
            });
        }
        let inside =
            self.at >= self.window_at && self.at + n <= self.window_at + self.window.len() as u64;
        if !inside {
            let want = n.max(WINDOW.min(self.remaining()));
            let len =
                usize::try_from(want).map_err(|_| Error::OutOfMemory { what, bytes: want })?;
            self.window.clear();
            self.window
                .try_reserve(len)
                .map_err(|_| Error::OutOfMemory { what, bytes: want })?;
            self.window.resize(len, 0);
            self.window_at = self.at;
            self.source
                .read_at(self.at, &mut self.window)
                .map_err(Error::io("cannot read the header"))?;
        }
        let start = (self.at - self.window_at) as usize;
        self.at += n;
        Ok(&self.window[start..start + n as usize])
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    /// Checks a count from the header: that many of the smallest item must fit the
    /// rest of the file.
    fn count(&self, what: &'static str, count: i64, smallest: u64) -> Result<u64> {
        let limit = (self.remaining() / smallest).min(MAX_COUNT);
        u64::try_from(count)
            .ok()
            .filter(|&n| n <= limit)
            .ok_or(Error::Count { what, count, limit })
    }

    fn string(&mut self, what: &'static str, limit: u64) -> Result<&[u8]> {
        let offset = self.at;
        let len = u64::from_le_bytes(self.array(what)?);
        if len > limit {
            return Err(Error::TooLong {
                what,
                offset,
                len,
                limit,
            });
        }
        self.take(len, what)
    }

    /// Reads a non-empty UTF-8 string.
    fn name(&mut self, what: &'static str, limit: u64) -> Result<String> {
        let bytes = self.string(what, limit)?;
        if bytes.is_empty() {
            return Err(Error::Empty { what });
        }
        match std::str::from_utf8(bytes) {
            Ok(name) => Ok(name.into()),
            Err(_) => Err(Error::NotUtf8 {
                what,
                text: String::from_utf8_lossy(bytes).into_owned(),
            }),
        }
    }

    fn array_length(&self, key: &str, count: u64, smallest: u64) -> Result<usize> {
        let limit = (self.remaining() / smallest).min(MAX_ARRAY);
        let fits = usize::try_from(count).ok().filter(|_| count <= limit);
        fits.ok_or_else(|| Error::ArrayLength {
            key: key.into(),
            count,
            limit,
        })
    }

    fn numbers<const N: usize, T>(
        &mut self,
        key: &str,
        count: u64,
        from: fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        const WHAT: &str = "an array";
        let mut left = self.array_length(key, count, N as u64)?;
        let mut out = Vec::new();
        let bytes = count * size_of::<T>() as u64;
        out.try_reserve_exact(left)
            .map_err(|_| Error::OutOfMemory { what: WHAT, bytes })?;
        while left > 0 {
            let step = left.min(WINDOW as usize / N);
            let (chunks, _) = self.take((step * N) as u64, WHAT)?.as_chunks::<N>();
            out.extend(chunks.iter().map(|&c| from(c)));
            left -= step;
        }
        Ok(out)
    }

    fn strings(&mut self, key: &str, count: u64) -> Result<Strings> {
        const WHAT: &str = "an array of strings";
        let len = self.array_length(key, count, 8)?;
        let mut out = Strings::default();
        if !out.try_reserve(len, 0) {
            return Err(Error::OutOfMemory {
                what: WHAT,
                bytes: count.saturating_mul(8),
            });
        }
        for _ in 0..len {
            let text = self.string("a string of an array", MAX_STRING)?;
            if !out.try_reserve(1, text.len()) {
                return Err(Error::OutOfMemory {
                    what: WHAT,
                    bytes: text.len() as u64,
                });
            }
            out.push(text);
        }
        Ok(out)
    }

    /// Reads one tensor info. `end` is the padded end of the previous tensor's data, relative
    /// to the data section.
    fn tensor_info(&mut self, shard: usize, alignment: u64, end: &mut u64) -> Result<TensorInfo> {
        const WHAT: &str = "a tensor info";
        let name = self.name("tensor name", MAX_NAME)?;
        let rank = u32::from_le_bytes(self.array(WHAT)?);
        if rank == 0 || rank > MAX_RANK {
            return Err(Error::Rank { tensor: name, rank });
        }
        let mut dims = Vec::new();
        for axis in 0..rank as usize {
            let size = i64::from_le_bytes(self.array(WHAT)?);
            match u64::try_from(size) {
                Ok(n) if n > 0 => dims.push(n),
                _ => {
                    return Err(Error::Dimension {
                        tensor: name,
                        axis,
                        size,
                    });
                }
            }
        }
        let id = i32::from_le_bytes(self.array(WHAT)?);
        let encoding = match types::encoding(id) {
            TypeId::Known(encoding) => encoding,
            TypeId::Unsupported(encoding) => {
                return Err(Error::Unsupported {
                    tensor: name,
                    encoding,
                });
            }
            TypeId::Invalid => return Err(Error::TypeId { tensor: name, id }),
        };
        let bytes = tensor_bytes(&name, &dims, encoding)?;
        let offset = u64::from_le_bytes(self.array(WHAT)?);
        if offset != *end {
            return Err(Error::Offset {
                tensor: name,
                found: offset,
                expected: *end,
            });
        }
        let next = offset.checked_add(bytes).and_then(|e| pad(e, alignment));
        *end = next.ok_or_else(|| Error::Overflow {
            tensor: name.clone(),
            what: "bytes",
        })?;
        Ok(TensorInfo {
            name,
            dims,
            encoding,
            type_id: id,
            shard,
            offset,
            bytes,
        })
    }
}
