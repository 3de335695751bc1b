//! q5_1: 32 five-bit numbers, an f16 scale and an f16 minimum; the fifth
//! bits are stored separately.

use crate::parts::five_bits;
use gristmill_uop::encoding::Encoding;

/// 32 five-bit numbers, an f16 scale and an f16 minimum; the fifth bits are stored separately.
pub static Q5_1: Encoding = Encoding { name: "q5_1", elements: 32, bytes: 24, value: |b| five_bits(b, 8, 4) * b.f16(0) + b.f16(2) };
