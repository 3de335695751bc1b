//! Functions on words as packed bytes: dot products of four bytes, tables of
//! 16, by instruction set.

use std::fmt::Write;

/// Portable code on single bytes.
const BYTES: &str = r#"
FN i32 dot4_any_bytes(u32 a, u32 b, i32 c) {
  return c + (i32)(a & 255) * (i8)b + (i32)(a >> 8 & 255) * (i8)(b >> 8) + (i32)(a >> 16 & 255) * (i8)(b >> 16) + (i32)(a >> 24) * (i8)(b >> 24);
}
FN i32 dot4_signed_bytes(u32 a, u32 b, i32 c) {
  return c + (i32)(i8)a * (i8)b + (i32)(i8)(a >> 8) * (i8)(b >> 8) + (i32)(i8)(a >> 16) * (i8)(b >> 16) + (i32)(i8)(a >> 24) * (i8)(b >> 24);
}
FN u32 dot2_bytes(u32 a, u32 b, u32 c) {
  return ((u32)dot4_any_bytes(a & 0xffff, b, (i32)c) & 0xffff) | (u32)dot4_any_bytes(a >> 16, b >> 16, (i32)(c >> 16)) << 16;
}
FN i32 halves_1(u32 x, i32 c) { return c + (i16)x + (i16)(x >> 16); }
FN u32 table4_bytes(u8x16 t, u32 x) {
  return (u32)t[x & 15] | (u32)t[x >> 8 & 15] << 8 | (u32)t[x >> 16 & 15] << 16 | (u32)t[x >> 24 & 15] << 24;
}
"#;

/// A single word, computed as the first of four: 512 products of a row take 0.5 us, byte by byte
/// 1.4 (EPYC, AVX2).
const ONE: &str = r#"
FN i32 dot4_any_1(u32 a, u32 b, i32 c) { return dot4_any_4((u32x4){a}, (u32x4){b}, (i32x4){c})[0]; }
FN i32 dot4_small_1(u32 a, u32 b, i32 c) { return dot4_small_4((u32x4){a}, (u32x4){b}, (i32x4){c})[0]; }
FN i32 dot4_signed_1(u32 a, u32 b, i32 c) { return dot4_signed_4((u32x4){a}, (u32x4){b}, (i32x4){c})[0]; }
FN u32 dot2_1(u32 a, u32 b, u32 c) { return dot2_4((u32x4){a}, (u32x4){b}, (u32x4){c})[0]; }
FN u32 table4_1(u8x16 t, u32 x) { return table4_4(t, (u32x4){x})[0]; }
"#;

/// An implementation: lanes, preprocessor condition, function bodies.
///
/// `any` is for all bytes, `small` for bytes whose two products fit 16 bits. The
/// first match is used.
struct Way {
    lanes: usize,
    needs: &'static str,
    any: &'static str,
    small: &'static str,
}

/// Returns an implementation that uses one instruction for both bodies.
const fn one(lanes: usize, needs: &'static str, body: &'static str) -> Way {
    Way {
        lanes,
        needs,
        any: body,
        small: body,
    }
}

const DOT4: &[Way] = &[
    one(
        16,
        "defined(__AVX512VNNI__) && defined(__clang__)",
        "return (i32x16)__builtin_ia32_vpdpbusd512(c, (i32x16)a, (i32x16)b);",
    ),
    one(
        16,
        "defined(__AVX512VNNI__)",
        "return (i32x16)__builtin_ia32_vpdpbusd_v16si(c, (i32x16)a, (i32x16)b);",
    ),
    one(
        8,
        "(defined(__AVXVNNI__) || defined(__AVX512VNNI__) && defined(__AVX512VL__)) && defined(__clang__)",
        "return (i32x8)__builtin_ia32_vpdpbusd256(c, (i32x8)a, (i32x8)b);",
    ),
    one(
        8,
        "defined(__AVXVNNI__) || defined(__AVX512VNNI__) && defined(__AVX512VL__)",
        "return (i32x8)__builtin_ia32_vpdpbusd_v8si(c, (i32x8)a, (i32x8)b);",
    ),
    one(
        4,
        "(defined(__AVXVNNI__) || defined(__AVX512VNNI__) && defined(__AVX512VL__)) && defined(__clang__)",
        "return (i32x4)__builtin_ia32_vpdpbusd128(c, (i32x4)a, (i32x4)b);",
    ),
    one(
        4,
        "defined(__AVXVNNI__) || defined(__AVX512VNNI__) && defined(__AVX512VL__)",
        "return (i32x4)__builtin_ia32_vpdpbusd_v4si(c, (i32x4)a, (i32x4)b);",
    ),
    Way {
        lanes: 8,
        needs: "defined(__AVX2__)",
        any: "i16x16 x = (i16x16)a, y = (i16x16)b; \
              i16x16 lo = x & 255, hi = (i16x16)((u16x16)x >> 8), p = (i16x16)((u16x16)y << 8) >> 8, q = y >> 8; \
              return c + (i32x8)__builtin_ia32_pmaddwd256(lo, p) + (i32x8)__builtin_ia32_pmaddwd256(hi, q);",
        small: "i16x16 ones = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}; \
                return c + (i32x8)__builtin_ia32_pmaddwd256((i16x16)__builtin_ia32_pmaddubsw256((q32)a, (q32)b), ones);",
    },
    Way {
        lanes: 4,
        needs: "defined(__ARM_FEATURE_DOTPROD)",
        any: "i8x16 x = (i8x16)(a ^ 0x80808080u), y = (i8x16)b, ones = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}; i32x4 s = {0, 0, 0, 0}; \
              __asm__(\"sdot %0.4s, %1.16b, %2.16b\" : \"+w\"(c) : \"w\"(x), \"w\"(y)); \
              __asm__(\"sdot %0.4s, %1.16b, %2.16b\" : \"+w\"(s) : \"w\"(ones), \"w\"(y)); return c + (s << 7);",
        small: "__asm__(\"sdot %0.4s, %1.16b, %2.16b\" : \"+w\"(c) : \"w\"((i8x16)a), \"w\"((i8x16)b)); return c;",
    },
    Way {
        lanes: 4,
        needs: "defined(__SSSE3__)",
        any: SSE2_ANY,
        small: "i16x8 ones = {1,1,1,1,1,1,1,1}; \
                return c + (i32x4)__builtin_ia32_pmaddwd128((i16x8)__builtin_ia32_pmaddubsw128((q16)a, (q16)b), ones);",
    },
    one(4, "defined(__SSE2__)", SSE2_ANY),
];

/// Body for any bytes, widened to 16 bits.
const SSE2_ANY: &str = "i16x8 x = (i16x8)a, y = (i16x8)b; \
    i16x8 lo = x & 255, hi = (i16x8)((u16x8)x >> 8), p = (i16x8)((u16x8)y << 8) >> 8, q = y >> 8; \
    return c + (i32x4)__builtin_ia32_pmaddwd128(lo, p) + (i32x4)__builtin_ia32_pmaddwd128(hi, q);";

/// Products of signed bytes, with `b` at least −127: lanes, condition, body. Magnitudes of one side
/// are multiplied by the other with its sign applied, so that two products fit 16 bits.
const SIGNED4: &[(usize, &str, &str)] = &[
    (
        8,
        "defined(__AVX2__)",
        "i16x16 ones = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}; \
         return c + (i32x8)__builtin_ia32_pmaddwd256((i16x16)__builtin_ia32_pmaddubsw256(__builtin_ia32_psignb256((q32)a, (q32)a), __builtin_ia32_psignb256((q32)b, (q32)a)), ones);",
    ),
    (
        4,
        "defined(__SSSE3__)",
        "i16x8 ones = {1,1,1,1,1,1,1,1}; \
         return c + (i32x4)__builtin_ia32_pmaddwd128((i16x8)__builtin_ia32_pmaddubsw128(__builtin_ia32_psignb128((q16)a, (q16)a), __builtin_ia32_psignb128((q16)b, (q16)a)), ones);",
    ),
    (
        4,
        "defined(__ARM_FEATURE_DOTPROD)",
        "__asm__(\"sdot %0.4s, %1.16b, %2.16b\" : \"+w\"(c) : \"w\"((i8x16)a), \"w\"((i8x16)b)); return c;",
    ),
];

/// Products added in 16 bits: lanes, condition, bodies of `dot2` and `halves`.
const DOT2: &[(usize, &str, &str, &str)] = &[
    (
        8,
        "defined(__AVX2__)",
        "return (u32x8)((i16x16)c + (i16x16)__builtin_ia32_pmaddubsw256((q32)a, (q32)b));",
        "i16x16 ones = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}; return c + (i32x8)__builtin_ia32_pmaddwd256((i16x16)x, ones);",
    ),
    (
        4,
        "defined(__SSSE3__)",
        "return (u32x4)((i16x8)c + (i16x8)__builtin_ia32_pmaddubsw128((q16)a, (q16)b));",
        "i16x8 ones = {1,1,1,1,1,1,1,1}; return c + (i32x4)__builtin_ia32_pmaddwd128((i16x8)x, ones);",
    ),
];

/// Table lookups in each 128 bits of a vector: lanes, condition, body.
const TABLE4: &[(usize, &str, &str)] = &[
    (
        16,
        "defined(__AVX512BW__) && !defined(__clang__)",
        "q64 s = (q64)__builtin_shufflevector(t, t, SIXTEENS); \
         return (u32x16)__builtin_ia32_pshufb512_mask(s, (q64)x, s, ~0ull);",
    ),
    (
        16,
        "defined(__AVX512BW__)",
        "q64 s = (q64)__builtin_shufflevector(t, t, SIXTEENS); return (u32x16)__builtin_ia32_pshufb512(s, (q64)x);",
    ),
    (
        8,
        "defined(__AVX2__)",
        "q32 s = (q32)__builtin_shufflevector(t, t, SIXTEENS); return (u32x8)__builtin_ia32_pshufb256(s, (q32)x);",
    ),
    (
        4,
        "defined(__SSSE3__)",
        "return (u32x4)__builtin_ia32_pshufb128((q16)t, (q16)x);",
    ),
    (
        4,
        "defined(__aarch64__)",
        "u8x16 r; __asm__(\"tbl %0.16b, {%1.16b}, %2.16b\" : \"=w\"(r) : \"w\"(t), \"w\"((u8x16)x)); return (u32x4)r;",
    ),
];

/// Returns all functions for these lane counts, which include four.
pub fn functions(lanes: &[usize]) -> String {
    let mut s = String::from(
        "typedef char q32 __attribute__((vector_size(32)));\ntypedef char q64 __attribute__((vector_size(64)));\n",
    );
    s.push_str(BYTES);
    for &l in lanes {
        s += &[dot4(l), signed4(l), dot2(l), table4(l)].concat();
    }
    s.push_str(ONE);
    s
}

/// Renders a vector that is computed by lane.
fn each(t: &str, l: usize, f: impl Fn(usize) -> String) -> String {
    format!(
        "return ({t}x{l}){{{}}};",
        (0..l).map(f).collect::<Vec<_>>().join(", ")
    )
}

/// Renders a preprocessor chain of alternatives, with a portable one at the end.
fn first(ways: &[(&str, String)], everywhere: &str) -> String {
    let mut text = String::new();
    for (i, (needs, way)) in ways.iter().enumerate() {
        let _ = write!(
            text,
            "{} {needs}\n{way}",
            if i == 0 { "#if" } else { "#elif" }
        );
    }
    if ways.is_empty() {
        everywhere.into()
    } else {
        format!("{text}#else\n{everywhere}#endif\n")
    }
}

/// Returns dot products of unsigned with signed bytes, four added to each word.
fn dot4(l: usize) -> String {
    let function = |how: &str, body: &str| {
        format!("FN i32x{l} dot4_{how}_{l}(u32x{l} a, u32x{l} b, i32x{l} c) {{ {body} }}\n")
    };
    let both = |any: &str, small: &str| function("any", any) + &function("small", small);
    let ways: Vec<_> = DOT4
        .iter()
        .filter(|w| w.lanes == l)
        .map(|w| (w.needs, both(w.any, w.small)))
        .collect();
    let alone = each("i32", l, |i| {
        format!("dot4_any_bytes(a[{i}], b[{i}], c[{i}])")
    });
    first(&ways, &both(&alone, &alone))
}

/// Returns dot products of signed bytes.
fn signed4(l: usize) -> String {
    let signed = |body: &str| {
        format!("FN i32x{l} dot4_signed_{l}(u32x{l} a, u32x{l} b, i32x{l} c) {{ {body} }}\n")
    };
    let ways: Vec<_> = SIGNED4
        .iter()
        .filter(|w| w.0 == l)
        .map(|&(_, needs, body)| (needs, signed(body)))
        .collect();
    first(
        &ways,
        &signed(&each("i32", l, |i| {
            format!("dot4_signed_bytes(a[{i}], b[{i}], c[{i}])")
        })),
    )
}

/// Returns sums of two byte products in 16 bits each, and the sums of these.
fn dot2(l: usize) -> String {
    let both = |dot2: &str, halves: &str| {
        format!(
            "FN u32x{l} dot2_{l}(u32x{l} a, u32x{l} b, u32x{l} c) {{ {dot2} }}\nFN i32x{l} halves_{l}(u32x{l} x, i32x{l} c) {{ {halves} }}\n"
        )
    };
    let ways = DOT2
        .iter()
        .filter(|w| w.0 == l)
        .map(|&(_, needs, dot2, halves)| (needs, both(dot2, halves)));
    let alone = both(
        &each("u32", l, |i| format!("dot2_bytes(a[{i}], b[{i}], c[{i}])")),
        &each("i32", l, |i| format!("halves_1(x[{i}], c[{i}])")),
    );
    first(&ways.collect::<Vec<_>>(), &alone)
}

/// Returns byte lookups in a table of 16.
fn table4(l: usize) -> String {
    let sixteens = (0..4 * l)
        .map(|i| (i % 16).to_string())
        .collect::<Vec<_>>()
        .join(", ");
    let table = |body: &str| format!("FN u32x{l} table4_{l}(u8x16 t, u32x{l} x) {{ {body} }}\n");
    let ways = TABLE4.iter().filter(|w| w.0 == l);
    let ways = ways.map(|&(_, needs, body)| (needs, table(&body.replace("SIXTEENS", &sixteens))));
    first(
        &ways.collect::<Vec<_>>(),
        &table(&each("u32", l, |i| format!("table4_bytes(t, x[{i}])"))),
    )
}
