//! iq4_nl: 32 four-bit codes into a non-linear table that is finer around zero, one f16 scale.

use crate::parts::{IQ4, nibble};
use gristmill_uop::encoding::Encoding;

/// 32 four-bit codes into a non-linear table that is finer around zero, one f16 scale.
pub static IQ4_NL: Encoding = Encoding { name: "iq4_nl", elements: 32, bytes: 18, value: |b| nibble(b, 2).of_table(IQ4) * b.f16(0) };
