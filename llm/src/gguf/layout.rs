//! Size and offset arithmetic shared by reader and writer, with overflow checks.

use super::error::{Error, Result};
use super::metadata::Metadata;
use super::value::Value;
use gristmill_uop::encoding::EncodingRef;

pub(super) const MAGIC: [u8; 4] = *b"GGUF";
/// Bytes of magic, version and the two counts.
pub(super) const FIXED_HEADER: u64 = 24;
/// Maximum length of a tensor name; ggml stores names in 64 bytes with a terminator.
pub(super) const MAX_NAME: u64 = 63;
pub(super) const MAX_KEY: u64 = 65_535;
pub(super) const MAX_RANK: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;

/// Returns `general.alignment`, a power of two; 32 if absent.
pub(super) fn alignment(metadata: &Metadata) -> Result<u64> {
    match metadata.get("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::U32(a)) if a.is_power_of_two() => Ok(u64::from(*a)),
        Some(other) => Err(Error::Alignment(format!("{} {other}", other.type_name()))),
    }
}

/// Rounds `n` up to a multiple of `alignment` (a power of two); `None` on overflow.
pub(super) fn pad(n: u64, alignment: u64) -> Option<u64> {
    Some(n.checked_add(alignment - 1)? & !(alignment - 1))
}

/// Returns the bytes of a tensor, or an error if the shape is invalid for the encoding.
pub(crate) fn tensor_bytes(tensor: &str, dims: &[u64], encoding: EncodingRef) -> Result<u64> {
    let overflow = |what| Error::Overflow {
        tensor: tensor.into(),
        what,
    };
    let rank = u32::try_from(dims.len()).unwrap_or(u32::MAX);
    if rank == 0 || rank > MAX_RANK {
        return Err(Error::Rank {
            tensor: tensor.into(),
            rank,
        });
    }
    if let Some(axis) = dims.iter().position(|&n| n == 0) {
        return Err(Error::Dimension {
            tensor: tensor.into(),
            axis,
            size: 0,
        });
    }
    let elements = dims
        .iter()
        .try_fold(1u64, |product, &n| product.checked_mul(n));
    let elements = elements
        .filter(|&n| n < 1 << 63)
        .ok_or_else(|| overflow("elements"))?;
    if !dims[0].is_multiple_of(encoding.elements as u64) {
        return Err(Error::PartialBlock {
            tensor: tensor.into(),
            row: dims[0],
            encoding: encoding.name,
        });
    }
    let bytes = (elements / encoding.elements as u64).checked_mul(encoding.bytes as u64);
    bytes
        .filter(|&n| n < 1 << 63)
        .ok_or_else(|| overflow("bytes"))
}
