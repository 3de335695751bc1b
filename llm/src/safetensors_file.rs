//! Tensors of a `.safetensors` file, read with `pread`.
//!
//! Files are untrusted. The header is bounded and checked by the crate `safetensors`, its data
//! length against the file; data is read on request.

use crate::read_exact::read_exact_at;
use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Bytes of the header's length.
const LENGTH: u64 = 8;
/// Longest header in bytes: one file of a model of a thousand experts has about 10 MB.
const LONGEST_HEADER: u64 = 64 << 20;

/// An error of opening a safetensors file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SafetensorsError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is no safetensors file.
    #[error("{0}")]
    Malformed(String),
}

/// An open safetensors file.
pub(crate) struct SafetensorsFile {
    file: File,
    /// Offset of the data.
    begin: u64,
    metadata: Metadata,
}

impl SafetensorsFile {
    /// Opens a file and reads its header.
    pub fn open(path: &Path) -> Result<SafetensorsFile, SafetensorsError> {
        let malformed = |problem: String| SafetensorsError::Malformed(problem);
        // Checked before opening, because opening a pipe blocks until it has a writer.
        let data = fs::metadata(path)?;
        if !data.is_file() {
            return Err(malformed("not a regular file".into()));
        }
        let size = data.len();
        let file = File::open(path)?;
        let mut length = [0; LENGTH as usize];
        if size < LENGTH {
            return Err(malformed("it is too short".into()));
        }
        read_exact_at(&file, &mut length, 0)?;
        let length = u64::from_le_bytes(length);
        if length > LONGEST_HEADER.min(size - LENGTH) {
            return Err(malformed(format!("a header of {length} bytes")));
        }
        let mut header = vec![0; length as usize];
        read_exact_at(&file, &mut header, LENGTH)?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| malformed(error.to_string()))?;
        let begin = LENGTH + length;
        let (found, declared) = (size - begin, metadata.data_len() as u64);
        if found != declared {
            return Err(malformed(format!(
                "{found} bytes of data, and {declared} declared"
            )));
        }
        Ok(SafetensorsFile {
            file,
            begin,
            metadata,
        })
    }
    /// Names of all tensors, in the order of their data.
    pub fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }
    /// Type, row-major shape and range of a tensor.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.metadata.info(name)
    }
    /// Fills `out` from byte `start` of a tensor's data.
    pub fn read_at(&self, info: &TensorInfo, start: u64, out: &mut [u8]) -> io::Result<()> {
        let (from, to) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        let end = start.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > to - from) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        read_exact_at(&self.file, out, self.begin + from + start)
    }
}

/// Bytes of an element; `None` for types that are not read.
pub(crate) fn element_bytes(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F64 => Some(8),
        Dtype::F32 => Some(4),
        Dtype::F16 | Dtype::BF16 => Some(2),
        Dtype::F8_E4M3 | Dtype::U8 => Some(1),
        _ => None,
    }
}

/// Decodes elements as f32; `None` for types that are not numbers of weights.
pub(crate) fn decode(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f32>> {
    let half = |convert: fn([u8; 2]) -> f32| {
        let pairs = bytes.as_chunks::<2>().0.iter();
        pairs.map(|&pair| convert(pair)).collect()
    };
    Some(match dtype {
        Dtype::F64 => {
            let words = bytes.as_chunks::<8>().0.iter();
            words.map(|&word| f64::from_le_bytes(word) as f32).collect()
        }
        Dtype::F32 => {
            let words = bytes.as_chunks::<4>().0.iter();
            words.map(|&word| f32::from_le_bytes(word)).collect()
        }
        Dtype::F16 => half(|pair| f16::from_le_bytes(pair).to_f32()),
        Dtype::BF16 => half(|pair| bf16::from_le_bytes(pair).to_f32()),
        Dtype::F8_E4M3 => bytes.iter().map(|&byte| from_e4m3(byte)).collect(),
        _ => return None,
    })
}

/// Value of an 8-bit float with four bits of exponent and three of mantissa, without infinities.
fn from_e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let value = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * f32::powi(2.0, exponent - 7),
    };
    if byte & 128 != 0 { -value } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_floats_have_the_values_of_the_specification() {
        for (byte, value) in [
            (0x00, 0.0),
            (0x01, 1.0 / 512.0),
            (0x08, 1.0 / 64.0),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0xb8, -1.0),
            (0x7e, 448.0),
        ] {
            assert_eq!(decode(Dtype::F8_E4M3, &[byte]), Some(vec![value]));
        }
        assert!(from_e4m3(0x7f).is_nan());
        assert_eq!(decode(Dtype::I32, &[0; 4]), None);
    }
}
