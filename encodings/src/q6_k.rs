//! q6_k: 256 six-bit numbers with offset 32; a signed 8-bit scale per 16, one f16 scale.

use crate::parts::two_bits;
use gristmill_uop::encoding::Encoding;

/// 256 six-bit numbers with offset 32; a signed 8-bit scale per 16, one f16 scale.
pub static Q6_K: Encoding = Encoding { name: "q6_k", elements: 256, bytes: 210, value: |b| {
    // Per 128 elements: 64 bytes hold 64 low and then 64 high nibbles, 32 bytes the high bit pairs
    // in four planes of 32.
    let low = (b.u8(b.k() / 128 * 64 + b.k() % 64) >> (b.k() / 64 % 2 * 4)) & 15;
    let high = two_bits(b, 128);
    b.f16(208) * b.i8(b.k() / 16 + 192) * ((low | (high << 4)) - 32)
} };
