//! q5_k: 256 five-bit numbers; a six-bit scale and minimum per 32, one f16 scale of each.

use crate::parts::{nibble_of_256, six_bit_pair};
use gristmill_uop::encoding::Encoding;

/// 256 five-bit numbers; a six-bit scale and minimum per 32, one f16 scale of each.
pub static Q5_K: Encoding = Encoding { name: "q5_k", elements: 256, bytes: 176, value: |b| {
    let (scale, minimum) = six_bit_pair(b, 4);
    let fifth = (b.u8(b.k() % 32 + 16) >> (b.k() / 32)) & 1;
    b.f16(0) * scale * (nibble_of_256(b, 48) | (fifth << 4)) - b.f16(2) * minimum
} };
