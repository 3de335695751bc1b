//! q5_0: 32 five-bit numbers with offset 16, one f16 scale; the fifth bits are stored separately.

use crate::parts::five_bits;
use gristmill_uop::encoding::Encoding;

/// 32 five-bit numbers with offset 16, one f16 scale; the fifth bits are stored separately.
pub static Q5_0: Encoding = Encoding { name: "q5_0", elements: 32, bytes: 22, value: |b| (five_bits(b, 6, 2) - 16) * b.f16(0) };
