//! iq3_s: 256 elements in groups of 4 as indices into a grid of 512 points, with a sign bit per
//! element; a 4-bit scale per 32, one f16 scale.

use crate::grids::{self, FOUR_OF_EIGHT, sign};
use crate::parts::nibble_scale;
use gristmill_uop::encoding::Encoding;

/// 256 elements in groups of 4 as indices into a grid of 512 points, with a sign bit each; a 4-bit
/// scale per 32, one f16 scale.
pub static IQ3_S: Encoding = Encoding { name: "iq3_s", elements: 256, bytes: 110, value: |b| {
    let high = (b.u8(b.k() / 32 + 66) >> (b.k() % 32 / 4)) & 1;
    let level = FOUR_OF_EIGHT.level(b, b.u8(b.k() / 4 + 2) | (high << 8), &grids::IQ3_S);
    let scale = nibble_scale(b, 106, 32) * 2 + 1;
    b.f16(0) * scale * (level | (sign(b, b.u8(b.k() / 8 + 74)) << 3)).of_table(ODD)
} };

/// Odd magnitudes, then the same negated: indexed by `level | sign << 3`.
const ODD: &[i32] = &[1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15];
