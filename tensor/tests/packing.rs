//! Tests how packed formats split into fields for layouts with interleaved rows.

use gristmill_compiler::ir::layout::{Kind, Packing};
use gristmill_encodings::TABLE;
use gristmill_uop::EncodingRef;

/// Describes a format's fields: scales with their group size, codes with their bits and offsets.
fn shape(e: EncodingRef) -> String {
    let Some(p) = Packing::for_encoding(e) else {
        return "as in the file".into();
    };
    let mut out: Vec<String> = p
        .leaves
        .iter()
        .map(|l| match &l.kind {
            Kind::Scale { every, stored, .. } => format!("{} every {every}", stored.name()),
            Kind::Code { parts } => format!(
                "code {:?}",
                parts.iter().map(|p| p.bits).collect::<Vec<_>>()
            ),
        })
        .collect();
    out.sort();
    let zero = p
        .zero()
        .map_or(String::new(), |zero| format!(", zero {zero}"));
    format!(
        "{}{zero}; {} bytes, groups of {}",
        out.join(", "),
        p.bytes,
        p.group
    )
}

#[test]
fn every_format_is_taken_apart() {
    let all: Vec<String> = TABLE
        .iter()
        .map(|e| format!("{}: {}", e.name, shape(e)))
        .collect();
    insta::assert_snapshot!(all.join("\n"), @r"
    f32: as in the file
    f16: as in the file
    bf16: as in the file
    q8_0: code [8], f16 every 32, zero -128; 34 bytes, groups of 32
    q4_0: code [4], f16 every 32, zero -8; 18 bytes, groups of 32
    q4_1: code [4], f16 every 32, f16 every 32; 20 bytes, groups of 32
    q5_0: code [4, 1], f16 every 32, zero -16; 22 bytes, groups of 32
    q5_1: code [4, 1], f16 every 32, f16 every 32; 24 bytes, groups of 32
    q2_k: code [2], f16 every 256, f16 every 256, u8 every 16, u8 every 16; 100 bytes, groups of 16
    q3_k: code [2, 1], f16 every 256, i8 every 16, zero -4; 114 bytes, groups of 16
    q4_k: code [4], f16 every 256, f16 every 256, u8 every 32, u8 every 32; 148 bytes, groups of 32
    q5_k: code [4, 1], f16 every 256, f16 every 256, u8 every 32, u8 every 32; 180 bytes, groups of 32
    q6_k: code [4, 2], f16 every 256, i8 every 16, zero -32; 210 bytes, groups of 16
    iq4_nl: code [4], f16 every 32, zero -127; 18 bytes, groups of 32
    iq4_xs: code [4], f16 every 256, i8 every 32, zero -127; 138 bytes, groups of 32
    mxfp4: code [4], u8 every 32, u8 every 32, zero -12; 18 bytes, groups of 32
    nvfp4: code [4], u8 every 16, zero -12; 36 bytes, groups of 16
    iq2_xxs: code [2, 1], f16 every 256, u8 every 32, zero -43; 106 bytes, groups of 32
    iq2_xs: code [2, 1], f16 every 256, u8 every 16, zero -43; 114 bytes, groups of 16
    iq2_s: code [2, 1], f16 every 256, u8 every 16, zero -43; 114 bytes, groups of 16
    iq3_xxs: code [4], f16 every 256, u8 every 32, zero -62; 138 bytes, groups of 32
    iq3_s: code [4], f16 every 256, u8 every 32, zero -15; 138 bytes, groups of 32
    iq1_s: code [2], f16 every 256, i8 every 32, u8 every 32; 82 bytes, groups of 32
    iq1_m: code [2, 1], u8 every 16, u8 every 256, u8 every 256, u8 every 256, zero -9; 115 bytes, groups of 16
    tq1_0: code [2], f16 every 256, zero -1; 66 bytes, groups of 32
    tq2_0: code [2], f16 every 256, zero -1; 66 bytes, groups of 32
    ");
}
