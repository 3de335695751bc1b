//! IEEE binary16.

use gristmill_uop::encoding::Encoding;

/// IEEE binary16.
pub static F16: Encoding = Encoding { name: "f16", elements: 1, bytes: 2, value: |b| b.f16(0) };
