//! 32 five-bit numbers around 16, one f16 scale; the fifth bits stand apart.

use crate::parts::five_bits;
use gristmill_uop::encoding::Encoding;

/// 32 five-bit numbers around 16, one f16 scale; the fifth bits stand apart.
pub static Q5_0: Encoding = Encoding { name: "q5_0", elements: 32, bytes: 22, value: |b| (five_bits(b, 6, 2) - 16) * b.f16(0) };
