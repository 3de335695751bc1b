//! 256 elements of a grid of 512 points of eight; per 16 a four-bit scale, one f16 scale.

use crate::grids::{self, even_signs, one_of_three};
use crate::parts::nibble_scale;
use gristmill_uop::encoding::Encoding;

/// 256 elements of a grid of 512 points of eight; per 16 a four-bit scale, one f16 scale.
pub static IQ2_XS: Encoding = Encoding { name: "iq2_xs", elements: 256, bytes: 74, value: |b| {
    // Nine bits of index below seven signs.
    let both = b.u16(b.k() / 8 * 2 + 2);
    let scale = nibble_scale(b, 66, 16) * 2 + 1;
    b.f16(0) * 0.125 * scale * one_of_three(b, both & 511, &grids::IQ2_XS, even_signs(both >> 9))
} };
