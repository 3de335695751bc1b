//! OCP microscaling: 32 e2m1 numbers, one scale that is a power of two.

use crate::parts::{E2M1, nibble};
use gristmill_uop::encoding::Encoding;

/// OCP microscaling: 32 e2m1 numbers, one scale that is a power of two.
pub static MXFP4: Encoding = Encoding { name: "mxfp4", elements: 32, bytes: 17, value: |b| {
    // The e2m1 values are doubled to be whole, so the scale is 2^(e-128) and not 2^(e-127).
    let e = b.u8(0);
    // Its bits: for e = 0 and 1 a denormal, 2^21 << e; from 2 on the exponent field e - 1. Products, since a shift
    // would be out of range on the side not taken.
    let bits = e.less_than(2, ((e & 1) + 1) * (1 << 21), (e - 1) * (1 << 23));
    nibble(b, 1).of_table(E2M1) * bits.bits_as_f32()
} };
