//! Plain f32.

use gristmill_uop::encoding::Encoding;

/// Plain f32.
pub static F32: Encoding = Encoding { name: "f32", elements: 1, bytes: 4, value: |b| b.f32(0) };
