//! q2_k: 256 two-bit numbers; a four-bit scale and minimum per 16, one f16 scale of each.

use crate::parts::two_bits;
use gristmill_uop::encoding::Encoding;

/// 256 two-bit numbers; a four-bit scale and minimum per 16, one f16 scale of each.
pub static Q2_K: Encoding = Encoding { name: "q2_k", elements: 256, bytes: 84, value: |b| {
    let pair = b.u8(b.k() / 16);
    let (scale, minimum) = (b.f16(80) * (pair & 15), b.f16(82) * (pair >> 4));
    scale * two_bits(b, 16) - minimum
} };
