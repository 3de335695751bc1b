//! f32: IEEE 754 binary32, not quantised.

use gristmill_uop::encoding::Encoding;

/// IEEE 754 binary32, one element per block; not quantised.
pub static F32: Encoding = Encoding { name: "f32", elements: 1, bytes: 4, value: |b| b.f32(0) };
