//! 256 two-bit numbers; per 16 a four-bit scale and minimum, f16 scales of both.

use crate::parts::two_bits;
use gristmill_uop::encoding::Encoding;

/// 256 two-bit numbers; per 16 a four-bit scale and minimum, f16 scales of both.
pub static Q2_K: Encoding = Encoding { name: "q2_k", elements: 256, bytes: 84, value: |b| {
    let pair = b.u8(b.k() / 16);
    let (scale, minimum) = (b.f16(80) * (pair & 15), b.f16(82) * (pair >> 4));
    scale * two_bits(b, 16) - minimum
} };
