//! iq1_m: 256 elements in groups of 8 as indices into a grid of 2,048 points; a shift sign per 8, a
//! 3-bit scale per 16, one f16 scale.

use crate::grids::{self, EIGHT_OF_THREE};
use gristmill_uop::encoding::Encoding;

/// 256 elements in groups of 8 as indices into a grid of 2,048 points; a shift sign per 8, a 3-bit
/// scale per 16, one f16 scale.
pub static IQ1_M: Encoding = Encoding { name: "iq1_m", elements: 256, bytes: 56, value: |b| {
    // Per 8 elements: the high three bits of the index and the sign of the shift.
    let rest = b.u8(b.k() / 16 + 32) >> (b.k() / 8 % 2 * 4);
    let level = EIGHT_OF_THREE.level(b, b.u8(b.k() / 8) | ((rest & 7) << 8), &grids::IQ1);
    let scale = ((b.u16(b.k() / 64 * 2 + 48) >> (b.k() / 16 % 4 * 3)) & 7) * 2 + 1;
    // The top four bits of each of the four scale words make up the f16 scale.
    let part = |i: i64| (b.u16(48 + 2 * i) >> 12) << (4 * i);
    let d = (part(0) | part(1) | part(2) | part(3)).bits_as_f16();
    d * 0.125 * scale * (level | (((rest >> 3) & 1) << 2)).of_table(SHIFTED)
} };

/// Element values in eighths, indexed by `level | sign << 2`: level - 1, shifted up or down by 1/8.
/// Level 3 does not occur.
const SHIFTED: &[i32] = &[-7, 1, 9, 0, -9, -1, 7, 0];
