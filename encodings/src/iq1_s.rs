//! iq1_s: 256 elements in groups of 8 as indices into a grid of 2,048 points; a 3-bit scale and a
//! shift sign per 32, one f16 scale.

use crate::grids::{self, EIGHT_OF_THREE};
use gristmill_uop::encoding::Encoding;

/// 256 elements in groups of 8 as indices into a grid of 2,048 points; a 3-bit scale and a shift
/// sign per 32, one f16 scale.
pub static IQ1_S: Encoding = Encoding { name: "iq1_s", elements: 256, bytes: 50, value: |b| {
    // Per 32 elements: the high three bits of four indices, the scale, and the sign of the shift.
    let rest = b.u16(b.k() / 32 * 2 + 34);
    let high = (rest >> (b.k() % 32 / 8 * 3)) & 7;
    let level = EIGHT_OF_THREE.level(b, b.u8(b.k() / 8 + 2) | (high << 8), &grids::IQ1);
    let scale = ((rest >> 12) & 7) * 2 + 1;
    // The value is `level - 1 ± 1/8`: an integer code plus a term common to the 32 elements, which
    // stays separate.
    let shift = (rest >> 15) * -2 - 7;
    b.f16(0) * scale * (level.as_f32() + shift.as_f32() * 0.125)
} };
