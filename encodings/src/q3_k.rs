//! 256 three-bit numbers around 4; per 16 a six-bit scale around 32, one f16 scale.

use crate::parts::two_bits;
use gristmill_uop::encoding::Encoding;

/// 256 three-bit numbers around 4; per 16 a six-bit scale around 32, one f16 scale.
pub static Q3_K: Encoding = Encoding { name: "q3_k", elements: 256, bytes: 110, value: |b| {
    let third = (b.u8(b.k() % 32) >> (b.k() / 32)) & 1;
    let q = (two_bits(b, 32) | (third << 2)) - 4;
    // Sixteen scales in 12 bytes: eight bytes of low halves, then four bytes of four high pairs.
    let low = (b.u8(b.k() / 16 % 8 + 96) >> (b.k() / 128 * 4)) & 15;
    let high = (b.u8(b.k() / 16 % 4 + 104) >> (b.k() / 64 * 2)) & 3;
    b.f16(108) * ((low | (high << 4)) - 32) * q
} };
