//! q4_0: 32 four-bit numbers with offset 8, one f16 scale.

use crate::parts::nibble;
use gristmill_uop::encoding::Encoding;

/// 32 four-bit numbers with offset 8, one f16 scale.
pub static Q4_0: Encoding = Encoding { name: "q4_0", elements: 32, bytes: 18, value: |b| (nibble(b, 2) - 8) * b.f16(0) };
