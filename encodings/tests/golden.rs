//! Compares every format bit for bit with blocks dequantised by gguf-py 0.19: one block per format
//! in full, and many random blocks by checksum.

mod common;

use common::decode;
use gristmill_uop::encoding::EncodingRef;
use half::f16;
use sha2::{Digest, Sha256};

struct Golden {
    name: &'static str,
    /// Byte offsets of the first f16 field and of the second, if any.
    fields: (usize, Option<usize>),
    /// Expected elements 0, 1, 17 and the last.
    w: [f32; 4],
    sha256: &'static str,
}

#[expect(clippy::excessive_precision, reason = "as gguf-py prints them")]
#[rustfmt::skip]
const GOLDEN: &[Golden] = &[
    Golden { name: "q4_0", fields: (0, None), w: [-0.299926758, 0.199951172, -0.0999755859, 0.0], sha256: "c765b88b66dffca2" },
    Golden { name: "q4_1", fields: (0, Some(2)), w: [1.54837036, 0.448638916, 1.2484436, 1.2484436], sha256: "c0adbe23816327bd" },
    Golden { name: "q5_0", fields: (0, None), w: [0.899780273, -0.199951172, 0.0, 0.0999755859], sha256: "c5026b59771471d0" },
    Golden { name: "q5_1", fields: (0, Some(2)), w: [1.94827271, 2.44815063, 0.548614502, 0.548614502], sha256: "b2891258c5d09cc2" },
    Golden { name: "q8_0", fields: (0, None), w: [8.4979248, 12.1970215, -5.39868164, -4.79882812], sha256: "b1b2300167b46d26" },
    Golden { name: "iq4_nl", fields: (0, None), w: [-3.49914551, 2.49938965, -0.999755859, 0.0999755859], sha256: "17165bd31a9837d9" },
    Golden { name: "mxfp4", fields: (0, None), w: [0.0, 0.1875, 0.1875, 0.1875], sha256: "3330129a1f9233ad" },
    Golden { name: "q2_k", fields: (80, Some(82)), w: [3.29919434, 0.0, -0.146209717, 0.453643799], sha256: "8014a7e347267b86" },
    Golden { name: "q3_k", fields: (108, None), w: [8.09802246, -10.7973633, 12.796875, 4.19897461], sha256: "18d6caca5e008bc3" },
    Golden { name: "q4_k", fields: (0, Some(2)), w: [31.6061096, -2.48556519, -2.48556519, 4.89260864], sha256: "a0049d690cfa7ff5" },
    Golden { name: "q5_k", fields: (0, Some(2)), w: [81.1940002, -2.48556519, -2.48556519, 10.8911438], sha256: "5f9a83f45339de2d" },
    Golden { name: "q6_k", fields: (208, None), w: [-143.065063, 169.558594, 51.1875, -5.99853516], sha256: "88a9efc412b70f6b" },
    Golden { name: "iq4_xs", fields: (0, None), w: [6.49841309, -0.0999755859, 3.49914551, -1.59960938], sha256: "29463520ffc0e431" },
];

fn checksum(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .take(8)
        .map(|b| format!("{b:02x}"))
        .collect()
}

fn block(golden: &Golden, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|i| (37 * i + 11) as u8).collect();
    if golden.name == "mxfp4" {
        bytes[0] = 0x7b;
        return bytes;
    }
    bytes[golden.fields.0..][..2].copy_from_slice(&0x2e66u16.to_le_bytes());
    if let Some(at) = golden.fields.1 {
        bytes[at..][..2].copy_from_slice(&0x2a3du16.to_le_bytes());
    }
    bytes
}

#[test]
fn golden_blocks() {
    for golden in GOLDEN {
        let e = gristmill_encodings::by_name(golden.name).expect(golden.name);
        let w = decode(e, &block(golden, e.bytes));
        assert_eq!(
            [w[0], w[1], w[17], w[e.elements - 1]],
            golden.w,
            "{}",
            golden.name
        );
        let little: Vec<u8> = w.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(checksum(&little), golden.sha256, "{}", golden.name);
    }
}

/// Integer dot products of the golden blocks with `qa[i] = ((73 i + 19) mod 255) - 127`: Σ sc·q·qa
/// and, for formats with minima, Σ m·qa.
const DOTS: &[(&str, i64, i64)] = &[
    ("q4_0", 667, 0),
    ("q4_1", 2124, 0),
    ("q5_0", 361, 0),
    ("q5_1", -6272, 0),
    ("q8_0", -70934, 0),
    ("iq4_nl", 17260, 0),
    ("mxfp4", -2576, 0),
    ("q2_k", 14938, 5174),
    ("q3_k", -117528, 0),
    ("q4_k", -186573, 23464),
    ("q5_k", -702205, 23464),
    ("q6_k", 1807398, 0),
    ("iq4_xs", -3424642, 0),
];

/// Checks decoded values against the formulas of the integer dot products.
///
/// Σ w·qa = d·A − dmin·B, and d·A + m·Σqa for formats with a plain minimum, up to the rounding of
/// each decoded value to f32.
#[test]
fn integer_dots() {
    assert_eq!(DOTS.len(), GOLDEN.len());
    let (d, minimum) = (
        f16::from_bits(0x2e66).to_f64(),
        f16::from_bits(0x2a3d).to_f64(),
    );
    for (golden, &(name, a, b)) in GOLDEN.iter().zip(DOTS) {
        assert_eq!(golden.name, name);
        let e = gristmill_encodings::by_name(name).expect(name);
        let w = decode(e, &block(golden, e.bytes));
        let qa: Vec<f64> = (0..e.elements as i64)
            .map(|i| ((73 * i + 19) % 255 - 127) as f64)
            .collect();
        let sum: f64 = qa.iter().sum();
        assert_eq!(sum, if e.elements == 32 { 112.0 } else { -108.0 });
        let terms = || w.iter().zip(&qa).map(|(&w, q)| f64::from(w) * q);
        let (dot, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
        let scale = if name == "mxfp4" {
            2f64.powi(0x7b - 128)
        } else {
            d
        };
        // A format with an f16 minimum and no integer minima adds that minimum once per activation.
        let plain = if golden.fields.1.is_some() && b == 0 {
            minimum * sum
        } else {
            0.0
        };
        let expected = scale * a as f64 - minimum * b as f64 + plain;
        assert!(
            (dot - expected).abs() <= 1e-6 * size,
            "{name}: {dot} should be {expected}"
        );
    }
}

/// Random blocks per format. They cover seven eighths of the largest grid (2,048 points).
const BLOCKS: usize = 128;

/// Byte offsets of a format's f16 fields, and the checksum of its decoded random blocks.
#[rustfmt::skip]
const RANDOM: &[(&str, &[usize], &str)] = &[
    ("q4_0", &[0], "0a288d8be5264b44"),
    ("q4_1", &[0, 2], "bb945bd6239be989"),
    ("q5_0", &[0], "00a7896590cf4668"),
    ("q5_1", &[0, 2], "61bba1099a53bbf3"),
    ("q8_0", &[0], "33f02a42afb22c94"),
    ("iq4_nl", &[0], "2a0c427accecb68a"),
    ("mxfp4", &[], "ff75504d398c3ac7"),
    ("q2_k", &[80, 82], "2e89ee8d95979d14"),
    ("q3_k", &[108], "ffb4bf18d403e0c7"),
    ("q4_k", &[0, 2], "52c1495aee6425a4"),
    ("q5_k", &[0, 2], "0a701d3576b12e56"),
    ("q6_k", &[208], "d6386d53bbda4cbb"),
    ("iq4_xs", &[0], "b834bbb311db76c7"),
    ("nvfp4", &[], "8f60ec9f391e1d12"),
    ("iq2_xxs", &[0], "bba6f3fb904fd11e"),
    ("iq2_xs", &[0], "510b7a5860503df6"),
    ("iq2_s", &[0], "a76e44d972bf4bec"),
    ("iq3_xxs", &[0], "84b37c0454383873"),
    ("iq3_s", &[0], "3c729062a2d04e56"),
    ("iq1_s", &[0], "614cb908d19be646"),
    ("iq1_m", &[], "2f4b5c3a94d8c526"),
    ("tq1_0", &[52], "fc3a92b51d05d87e"),
    ("tq2_0", &[64], "64ae1c60ff37c510"),
];

/// Clears bits of `half` to make it a finite binary16, subnormal in every fourth block.
fn finite(half: u16, block: usize) -> u16 {
    let half = if half & 0x7c00 == 0x7c00 {
        half & 0xbfff
    } else {
        half
    };
    if block.is_multiple_of(4) {
        half & 0x83ff
    } else {
        half
    }
}

/// Generates blocks with a linear congruential generator (Numerical Recipes) and finite scales.
fn random_blocks(e: EncodingRef, fields: &[usize]) -> Vec<Vec<u8>> {
    let mut state = 1u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let block = |number| {
        let mut bytes: Vec<u8> = (0..e.bytes).map(|_| byte()).collect();
        for &at in fields {
            let half = finite(u16::from_le_bytes([bytes[at], bytes[at + 1]]), number);
            bytes[at..at + 2].copy_from_slice(&half.to_le_bytes());
        }
        if e.name == "iq1_m" {
            // The f16 scale is spread over the top four bits of four words.
            let half = (0..4).fold(0, |half, i| {
                half | u16::from(bytes[49 + 2 * i] >> 4) << (4 * i)
            });
            let half = finite(half, number);
            (0..4).for_each(|i| {
                bytes[49 + 2 * i] = bytes[49 + 2 * i] & 15 | ((half >> (4 * i) & 15) << 4) as u8
            });
        }
        bytes
    };
    (0..BLOCKS).map(block).collect()
}

#[test]
fn random_blocks_have_the_checksums_of_their_values() {
    for &(name, fields, sha256) in RANDOM {
        let e = gristmill_encodings::by_name(name).expect(name);
        let blocks = random_blocks(e, fields);
        let values = blocks.iter().flat_map(|bytes| decode(e, bytes));
        let little: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        assert_eq!(checksum(&little), sha256, "{name}");
    }
}

#[test]
fn every_block_format_has_golden_blocks() {
    for e in gristmill_encodings::TABLE {
        assert!(
            e.elements == 1 || RANDOM.iter().any(|r| r.0 == e.name),
            "{}",
            e.name
        );
        assert_eq!(gristmill_encodings::by_name(e.name), Some(*e));
    }
}

#[test]
fn all_halves() {
    let same = |a: f32, b: f32, bits: u16| {
        assert!(
            a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(),
            "{bits:#x}: {a} and {b}"
        )
    };
    for bits in 0..=u16::MAX {
        same(
            decode(&gristmill_encodings::F16, &bits.to_le_bytes())[0],
            f16::from_bits(bits).to_f32(),
            bits,
        );
        let wide = f32::from_bits((bits as u32) << 16);
        same(
            decode(&gristmill_encodings::BF16, &bits.to_le_bytes())[0],
            wide,
            bits,
        );
    }
    let pi = std::f32::consts::PI;
    assert_eq!(decode(&gristmill_encodings::F32, &pi.to_le_bytes()), [pi]);
}

#[test]
fn mxfp4_scales() {
    for e in 0..255u8 {
        let mut bytes = [0x11; 17]; // code 1: one half, doubled
        bytes[0] = e;
        let want = 2f64.powi(e as i32 - 128) as f32;
        assert_eq!(
            decode(&gristmill_encodings::MXFP4, &bytes),
            [want; 32],
            "e = {e}"
        );
    }
}
