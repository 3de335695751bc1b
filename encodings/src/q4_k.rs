//! q4_k: 256 four-bit numbers; a six-bit scale and minimum per 32, one f16 scale of each.

use crate::parts::{nibble_of_256, six_bit_pair};
use gristmill_uop::encoding::Encoding;

/// 256 four-bit numbers; a six-bit scale and minimum per 32, one f16 scale of each.
pub static Q4_K: Encoding = Encoding { name: "q4_k", elements: 256, bytes: 144, value: |b| {
    let (scale, minimum) = six_bit_pair(b, 4);
    b.f16(0) * scale * nibble_of_256(b, 16) - b.f16(2) * minimum
} };
