//! tq2_0: 256 ternary elements in two bits each (a fourth value is possible), one f16 scale.

use crate::parts::two_bits;
use gristmill_uop::encoding::Encoding;

/// 256 ternary elements in two bits each (a fourth value is possible), one f16 scale.
pub static TQ2_0: Encoding = Encoding { name: "tq2_0", elements: 256, bytes: 66, value: |b| (two_bits(b, 0) - 1) * b.f16(64) };
