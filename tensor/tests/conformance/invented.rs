//! Test-only encodings: derivations from a description must not depend on the known formats.

use crate::harness::Case;
use crate::packed;
use gristmill_tensor::{dims, nn};
use gristmill_uop::{Encoding, EncodingRef, Scalar};

/// Blocks of 48: f16 scale, six 8-bit group scales, 3-bit table indices.
///
/// Two low bits of an index are packed four to a byte, the third bit is in a separate plane.
static PLANES: Encoding = Encoding {
    name: "test_planes",
    elements: 48,
    bytes: 2 + 6 + 12 + 6,
    value: |b| {
        let low = b.u8(b.k() % 12 + 8) >> (b.k() / 12 * 2) & 3;
        let high = b.u8(b.k() % 6 + 20) >> (b.k() / 6) & 1;
        let code = low | (high << 2);
        code.of_table(&[-29, -17, -8, -2, 3, 9, 18, 31]) * (b.i8(b.k() / 8 + 2) * b.f16(0))
    },
};

/// Blocks of 40, which a vector of 16 does not divide: bf16 offset and scale, 5-bit codes.
static FORTY: Encoding = Encoding {
    name: "test_forty",
    elements: 40,
    bytes: 4 + 20 + 5,
    value: |b| {
        let low = b.u8(b.k() % 20 + 4) >> (b.k() / 20 * 4) & 15;
        let high = b.u8(b.k() / 8 + 24) >> (b.k() % 8) & 1;
        (low | (high << 4)) * b.bf16(0) + b.bf16(2)
    },
};

/// Blocks of 16 with a table of 16 entries and additional 16-bit integers.
static SIXTEEN: Encoding = Encoding {
    name: "test_sixteen",
    elements: 16,
    bytes: 4 + 8 + 2,
    value: |b| {
        let q = b.u8(b.k() / 2 + 4) >> (b.k() % 2 * 4) & 15;
        let t = q.of_table(&[
            -128, -99, -80, -64, -48, -33, -20, -9, 1, 11, 22, 35, 50, 66, 87, 127,
        ]);
        t * b.f32(0) + (b.u16(12) & 255) * b.f32(0)
    },
};

/// All test-only encodings.
pub const ALL: [EncodingRef; 3] = [&PLANES, &FORTY, &SIXTEEN];

pub fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for e in ALL {
        let width = 4 * e.elements;
        out.push(packed::decoding_of(e));
        for (rows, many) in [(64, false), (33, false), (32, true), (6, true)] {
            out.push(packed::contraction(e, rows, many));
        }
        out.push(Case::new(format!("a block of {}", e.name), |c| {
            let x = c.input("x", dims![1, width], Scalar::F32);
            let y = nn::rms_norm(x, c.input("norm", dims![width], Scalar::F32), 1e-5);
            let w = |name: &str| c.weight(name, &[width, width], e);
            c.output(
                "y",
                x + nn::Glu::Swiglu
                    .apply(y.linear(w("gate")), y.linear(w("up")))
                    .linear(w("down")),
            );
        }));
    }
    out
}
