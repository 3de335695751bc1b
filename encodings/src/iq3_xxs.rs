//! iq3_xxs: 256 elements in groups of 4 as indices into a grid of 256 points, with 7 sign bits per
//! 8; a 4-bit scale per 32, one f16 scale.

use crate::grids::{self, FOUR_OF_EIGHT, even_signs, sign};
use gristmill_uop::encoding::Encoding;

/// 256 elements in groups of 4 as indices into a grid of 256 points, with 7 sign bits per 8; a
/// 4-bit scale per 32, one f16 scale.
pub static IQ3_XXS: Encoding = Encoding { name: "iq3_xxs", elements: 256, bytes: 98, value: |b| {
    let level = FOUR_OF_EIGHT.level(b, b.u8(b.k() / 4 + 2), &grids::IQ3_XXS);
    // Per 32 elements: four groups of 7 signs, and the scale.
    let rest = b.u32(b.k() / 32 * 4 + 66);
    let signs = even_signs((rest >> (b.k() % 32 / 8 * 7)) & 127);
    let scale = ((rest >> 28) & 15) * 2 + 1;
    b.f16(0) * 0.25 * scale * (level | (sign(b, signs) << 3)).of_table(EIGHT)
} };

/// Eight magnitudes, then the same negated: indexed by `level | sign << 3`.
const EIGHT: &[i32] = &[4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62];
