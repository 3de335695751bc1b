//! i32: whole numbers such as token ids, not quantised.

use gristmill_uop::encoding::Encoding;

/// Two's complement integers of 32 bits, one element per block; exact in f32 up to 2^24.
pub static I32: Encoding = Encoding {
    name: "i32",
    elements: 1,
    bytes: 4,
    value: |b| b.u32(0).as_f32(),
};
