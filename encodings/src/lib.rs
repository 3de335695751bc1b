//! The table of quantisation formats. A leaf: it only describes, and knows no file format.

use gristmill_uop::encoding::{Encoding, EncodingRef};

macro_rules! sizes { ($($id:ident $name:literal $e:literal $b:literal;)*) => {
    $(static $id: Encoding = Encoding { name: $name, elements: $e, bytes: $b, value: |b| b.int(0) };)*
    /// Every format, in no particular order.
    pub static TABLE: &[EncodingRef] = &[$(&$id),*];
} }
sizes! {
    F32 "f32" 1 4; F16 "f16" 1 2; BF16 "bf16" 1 2; Q8_0 "q8_0" 32 34; Q4_0 "q4_0" 32 18; Q4_1 "q4_1" 32 20;
    Q5_0 "q5_0" 32 22; Q5_1 "q5_1" 32 24; Q2_K "q2_k" 256 84; Q3_K "q3_k" 256 110; Q4_K "q4_k" 256 144;
    Q5_K "q5_k" 256 176; Q6_K "q6_k" 256 210; IQ4_NL "iq4_nl" 32 18; IQ4_XS "iq4_xs" 256 136; MXFP4 "mxfp4" 32 17;
}

/// The format of that (lower-case) name.
pub fn by_name(name: &str) -> Option<EncodingRef> {
    TABLE.iter().copied().find(|e| e.name == name)
}
