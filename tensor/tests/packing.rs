//! Tests how packed formats split into fields for layouts with interleaved rows, and repacking from
//! one layout into another.

use gristmill_backend::{Options, open};
use gristmill_compiler::ir::layout::{Kind, Layout, Packing};
use gristmill_encodings::TABLE;
use gristmill_runtime::{Buffer, Memory};
use gristmill_tensor::jit::Jit;
use gristmill_tensor::packer::PackKey;
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

/// Rows of a result, and those of a part of it.
const ROWS: usize = 96;
const PART: usize = 32;

/// Packs the parts of a result one after the other, the last one first, from rows in layout `from`.
fn packed_in_parts(jit: &mut Jit, from: &Buffer, key: PackKey, bytes: usize) -> Vec<u8> {
    let device = jit.device().clone();
    jit.prepare_packers(&[key]).expect("a kernel");
    let packer = jit.packer(key).expect("a packer");
    let result = device.alloc(bytes, Memory::Scratch).expect("memory");
    let part = from.len() * PART / ROWS;
    for first in (0..ROWS).step_by(PART).rev() {
        // A buffer of its own, as a part begins at any byte.
        let piece = device.alloc(part, Memory::Scratch).expect("memory");
        let mut rows = vec![0; part];
        let begin = first / PART * part;
        device.read(from, begin, &mut rows).expect("the rows");
        device.write(&piece, 0, &rows).expect("the rows");
        let mut step = packer.capture(&piece, &result).expect("a step");
        step.replay(&packer.first(first)).expect("packed");
    }
    let mut packed = vec![0; bytes];
    device.read(&result, 0, &mut packed).expect("the result");
    packed
}

/// Packs rows of a format from the file's layout to all others, and from each of those to planes.
fn check_packed(device: &str, e: EncodingRef) {
    let mut jit = Jit::new(open(device, &Options::default()).expect("a device"));
    let columns = 2 * e.elements;
    let dims = [ROWS as i64, columns as i64];
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let data: Vec<u8> = (0..ROWS * columns / e.elements * e.bytes)
        .map(|_| next())
        .collect();
    let main = jit.device().clone();
    let file = main.alloc(data.len(), Memory::Scratch).expect("memory");
    main.write(&file, 0, &data).expect("written");
    let mut whole = |layout: Layout| {
        let bytes = layout.bytes(e, &dims).expect("a layout");
        let packed = main.alloc(bytes, Memory::Scratch).expect("memory");
        jit.prepare_packers(&[(e, layout, columns)])
            .expect("a kernel");
        let packer = jit.packer((e, layout, columns)).expect("a packer");
        packer.pack(&file, &packed, ROWS).expect("packed");
        packed
    };
    let planes = whole(Layout::Planes);
    let froms = [Layout::Rows(8), Layout::Rows(16)].map(|layout| (layout, whole(layout)));
    let mut wanted = vec![0; planes.len()];
    main.read(&planes, 0, &mut wanted).expect("the planes");
    for (from, rows) in [(Layout::File, file.clone())].into_iter().chain(froms) {
        let key = PackKey {
            encoding: e,
            from,
            layout: Layout::Planes,
            columns,
            part: Some([PART, ROWS]),
        };
        let found = packed_in_parts(&mut jit, &rows, key, planes.len());
        assert_eq!(found, wanted, "{} from {from} on {device}", e.name);
    }
}

#[test]
fn rows_are_repacked_from_any_layout() {
    for e in TABLE.iter().filter(|e| Packing::for_encoding(e).is_some()) {
        check_packed("interp", e);
    }
    for name in ["q4_0", "q4_k", "q6_k", "mxfp4"] {
        let e = TABLE.iter().find(|e| e.name == name).expect("a format");
        check_packed("cpu", e);
    }
}
