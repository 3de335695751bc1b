//! q4_1: 32 four-bit numbers, an f16 scale and an f16 minimum.

use crate::parts::nibble;
use gristmill_uop::encoding::Encoding;

/// 32 four-bit numbers, an f16 scale and an f16 minimum.
pub static Q4_1: Encoding = Encoding { name: "q4_1", elements: 32, bytes: 20, value: |b| nibble(b, 4) * b.f16(0) + b.f16(2) };
