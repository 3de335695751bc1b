//! mxfp4 (OCP microscaling): 32 e2m1 numbers, one power-of-two scale.

use crate::parts::{E2M1, nibble};
use gristmill_uop::encoding::Encoding;

/// OCP microscaling: 32 e2m1 numbers, one power-of-two scale.
pub static MXFP4: Encoding = Encoding { name: "mxfp4", elements: 32, bytes: 17, value: |b| {
    // The table doubles the e2m1 values to make them integers, so the scale is 2^(e-128), not
    // 2^(e-127).
    let e = b.u8(0);
    // f32 bits of the scale: for e = 0 and 1 a denormal, 2^21 << e; from 2 on the exponent field e
    // - 1. Multiplications replace shifts because a shift would be out of range in the branch not
    // taken.
    let bits = e.less_than(2, ((e & 1) + 1) * (1 << 21), (e - 1) * (1 << 23));
    nibble(b, 1).of_table(E2M1) * bits.bits_as_f32()
} };
