//! nvfp4 (NVIDIA): 64 e2m1 numbers, an unsigned e4m3 scale per 16.

use crate::parts::E2M1;
use gristmill_uop::encoding::Encoding;

/// NVIDIA's four-bit floats: 64 e2m1 numbers, an unsigned e4m3 scale per 16.
pub static NVFP4: Encoding = Encoding { name: "nvfp4", elements: 64, bytes: 36, value: |b| {
    // 16 elements occupy eight bytes, low nibbles first.
    let code = (b.u8(b.k() / 16 * 8 + b.k() % 8 + 4) >> (b.k() / 8 % 2 * 4)) & 15;
    // Bit 7 is ignored. 0x7f, which would be NaN, decodes to 0, as in ggml; 0xff does not.
    let byte = b.u8(b.k() / 16);
    let scale = (byte ^ 127).less_than(1, b.int(0), byte & 127);
    // Shifted left by seven, the bits are the exponent and mantissa of an f16, which has exponent
    // bias 15 instead of 7: the result is 2^8 too small. The table doubles the codes, which leaves
    // 2^7.
    (scale << 7).bits_as_f16() * 128.0 * code.of_table(E2M1)
} };
