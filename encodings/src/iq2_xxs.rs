//! iq2_xxs: 256 elements in groups of 8 as indices into a grid of 256 points, with 7 sign bits
//! each; a 4-bit scale per 32, one f16 scale.

use crate::grids::{self, even_signs, one_of_three};
use gristmill_uop::encoding::Encoding;

/// 256 elements in groups of 8 as indices into a grid of 256 points, with 7 sign bits each; a 4-bit
/// scale per 32, one f16 scale.
pub static IQ2_XXS: Encoding = Encoding { name: "iq2_xxs", elements: 256, bytes: 66, value: |b| {
    // Per 32 elements: four index bytes, then 32 bits with four groups of 7 signs and the scale.
    let index = b.u8(b.k() / 32 * 8 + b.k() % 32 / 8 + 2);
    let rest = b.u32(b.k() / 32 * 8 + 6);
    let signs = even_signs((rest >> (b.k() % 32 / 8 * 7)) & 127);
    let scale = ((rest >> 28) & 15) * 2 + 1;
    b.f16(0) * 0.125 * scale * one_of_three(b, index, &grids::IQ2_XXS, signs)
} };
