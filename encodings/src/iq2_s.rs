//! iq2_s: 256 elements in groups of 8 as indices into a grid of 1,024 points, with 8 sign bits
//! each; a 4-bit scale per 16, one f16 scale.

use crate::grids::{self, one_of_three};
use crate::parts::nibble_scale;
use gristmill_uop::encoding::Encoding;

/// 256 elements in groups of 8 as indices into a grid of 1,024 points, with 8 sign bits each; a
/// 4-bit scale per 16, one f16 scale.
pub static IQ2_S: Encoding = Encoding { name: "iq2_s", elements: 256, bytes: 82, value: |b| {
    let high = (b.u8(b.k() / 32 + 66) >> (b.k() % 32 / 8 * 2)) & 3;
    let index = b.u8(b.k() / 8 + 2) | (high << 8);
    let scale = nibble_scale(b, 74, 16) * 2 + 1;
    b.f16(0) * 0.125 * scale * one_of_three(b, index, &grids::IQ2_S, b.u8(b.k() / 8 + 34))
} };
