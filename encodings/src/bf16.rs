//! The upper half of an f32.

use gristmill_uop::encoding::Encoding;

/// The upper half of an f32.
pub static BF16: Encoding = Encoding { name: "bf16", elements: 1, bytes: 2, value: |b| b.bf16(0) };
