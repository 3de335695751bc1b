//! bf16: the upper 16 bits of an f32.

use gristmill_uop::encoding::Encoding;

/// bfloat16, the upper 16 bits of an f32; one element per block.
pub static BF16: Encoding = Encoding { name: "bf16", elements: 1, bytes: 2, value: |b| b.bf16(0) };
