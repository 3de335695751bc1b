//! Table of quantisation formats, independent of any file format.
//!
//! Each format is one file with one [`Encoding`], plus one line of the table below. The order
//! of the f32 operations in an encoding is part of the format: it reproduces ggml's
//! dequantisation bit for bit.

use gristmill_uop::encoding::{Encoding, EncodingRef};

mod grids;
mod i32;
mod parts;
mod quantise;

pub use i32::I32;
pub use quantise::Quantiser;

macro_rules! table { ($($module:ident $id:ident;)*) => {
    $(mod $module; pub use $module::$id;)*
    /// All formats, in no particular order.
    pub static TABLE: &[EncodingRef] = &[$(&$id),*];
} }
table! {
    f32 F32;
    f16 F16;
    bf16 BF16;
    q8_0 Q8_0;
    q4_0 Q4_0;
    q4_1 Q4_1;
    q5_0 Q5_0;
    q5_1 Q5_1;
    q2_k Q2_K;
    q3_k Q3_K;
    q4_k Q4_K;
    q5_k Q5_K;
    q6_k Q6_K;
    iq4_nl IQ4_NL;
    iq4_xs IQ4_XS;
    mxfp4 MXFP4;
    nvfp4 NVFP4;
    iq2_xxs IQ2_XXS;
    iq2_xs IQ2_XS;
    iq2_s IQ2_S;
    iq3_xxs IQ3_XXS;
    iq3_s IQ3_S;
    iq1_s IQ1_S;
    iq1_m IQ1_M;
    tq1_0 TQ1_0;
    tq2_0 TQ2_0;
}

/// Formats of tables of numbers, which are no weights; not in [`TABLE`].
pub static NUMBERS: &[EncodingRef] = &[&I32];

/// Looks up a format by its lower-case name.
pub fn by_name(name: &str) -> Option<EncodingRef> {
    let mut all = TABLE.iter().chain(NUMBERS).copied();
    all.find(|e: &&Encoding| e.name == name)
}
