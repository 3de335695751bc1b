//! q8_0: 32 signed bytes, one f16 scale.

use gristmill_uop::encoding::Encoding;

/// 32 signed bytes, one f16 scale.
pub static Q8_0: Encoding = Encoding { name: "q8_0", elements: 32, bytes: 34, value: |b| b.i8(b.k() + 2) * b.f16(0) };
