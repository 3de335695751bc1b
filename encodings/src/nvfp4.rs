//! NVIDIA's four-bit floats: 64 e2m1 numbers, per 16 a scale of e4m3 without a sign.

use crate::parts::E2M1;
use gristmill_uop::encoding::Encoding;

/// NVIDIA's four-bit floats: 64 e2m1 numbers, per 16 a scale of e4m3 without a sign.
pub static NVFP4: Encoding = Encoding { name: "nvfp4", elements: 64, bytes: 36, value: |b| {
    // Of 16 elements eight bytes: low nibbles first.
    let code = (b.u8(b.k() / 16 * 8 + b.k() % 8 + 4) >> (b.k() / 8 % 2 * 4)) & 15;
    // The highest bit means nothing, and what would be NaN is 0 if it is not set, as in ggml.
    let byte = b.u8(b.k() / 16);
    let scale = (byte ^ 127).less_than(1, b.int(0), byte & 127);
    // Seven bits up they are a half's exponent and mantissa, whose exponents count from 15 instead of 7: 2^8 too small, and the
    // values of the codes are doubled.
    (scale << 7).bits_as_f16() * 128.0 * code.of_table(E2M1)
} };
