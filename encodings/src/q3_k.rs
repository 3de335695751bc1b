//! q3_k: 256 three-bit numbers with offset 4; a six-bit scale with offset 32 per 16, one f16 scale.

use crate::parts::two_bits;
use gristmill_uop::encoding::Encoding;

/// 256 three-bit numbers with offset 4; a six-bit scale with offset 32 per 16, one f16 scale.
pub static Q3_K: Encoding = Encoding { name: "q3_k", elements: 256, bytes: 110, value: |b| {
    let third = (b.u8(b.k() % 32) >> (b.k() / 32)) & 1;
    let q = (two_bits(b, 32) | (third << 2)) - 4;
    // 16 scales in 12 bytes: the low nibbles in eight bytes, then the high two bits in four bytes.
    let low = (b.u8(b.k() / 16 % 8 + 96) >> (b.k() / 128 * 4)) & 15;
    let high = (b.u8(b.k() / 16 % 4 + 104) >> (b.k() / 64 * 2)) & 3;
    b.f16(108) * ((low | (high << 4)) - 32) * q
} };
