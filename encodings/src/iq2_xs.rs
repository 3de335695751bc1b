//! iq2_xs: 256 elements in groups of 8 as indices into a grid of 512 points, with 7 sign bits each;
//! a 4-bit scale per 16, one f16 scale.

use crate::grids::{self, even_signs, one_of_three};
use crate::parts::nibble_scale;
use gristmill_uop::encoding::Encoding;

/// 256 elements in groups of 8 as indices into a grid of 512 points, with 7 sign bits each; a 4-bit
/// scale per 16, one f16 scale.
pub static IQ2_XS: Encoding = Encoding { name: "iq2_xs", elements: 256, bytes: 74, value: |b| {
    // Low nine bits: the index; high seven bits: the signs.
    let both = b.u16(b.k() / 8 * 2 + 2);
    let scale = nibble_scale(b, 66, 16) * 2 + 1;
    b.f16(0) * 0.125 * scale * one_of_three(b, both & 511, &grids::IQ2_XS, even_signs(both >> 9))
} };
