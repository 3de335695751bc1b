//! f16: IEEE 754 binary16.

use gristmill_uop::encoding::Encoding;

/// IEEE 754 binary16, one element per block.
pub static F16: Encoding = Encoding { name: "f16", elements: 1, bytes: 2, value: |b| b.f16(0) };
