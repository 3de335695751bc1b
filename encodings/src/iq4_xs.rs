//! iq4_xs: 256 four-bit codes into the table of iq4_nl; a six-bit scale with offset 32 per
//! 32, one f16 scale.

use crate::parts::IQ4;
use gristmill_uop::encoding::Encoding;

/// 256 four-bit codes into the table of iq4_nl; a six-bit scale with offset 32 per
/// 32, one f16 scale.
pub static IQ4_XS: Encoding = Encoding { name: "iq4_xs", elements: 256, bytes: 136, value: |b| {
    let group = b.k() / 32;
    let low = (b.u8(group / 2 + 4) >> (group % 2 * 4)) & 15;
    let high = (b.u16(2) >> (group * 2)) & 3;
    let code = (b.u8(b.k() / 32 * 16 + b.k() % 16 + 8) >> (b.k() / 16 % 2 * 4)) & 15;
    b.f16(0) * ((low | (high << 4)) - 32) * code.of_table(IQ4)
} };
