//! Prelude of each translation unit: types, conversions and helper functions, by instruction set.

use super::{tiles, vectors, words};
use crate::render::CONVERSIONS;

/// Scalar types: name, C type, bytes.
const SCALARS: &[(&str, &str, usize)] = &[
    ("i8", "signed char", 1),
    ("u8", "unsigned char", 1),
    ("i16", "short", 2),
    ("u16", "unsigned short", 2),
    ("i32", "int", 4),
    ("u32", "unsigned int", 4),
    ("i64", "long long", 8),
    ("u64", "unsigned long long", 8),
    ("f32", "float", 4),
    ("f64", "double", 8),
];
const LANES: &[usize] = &[4, 8, 16];

/// Builtins for widening: (conversion, lanes, required macro, expression of x).
///
/// gcc compiles a widening `__builtin_convertvector` to one scalar move per element.
const WIDENING: &[(&str, usize, &str, &str)] = &[
    (
        "u8_i32",
        16,
        "__AVX512F__",
        "(i32x16)__builtin_ia32_pmovzxbd512_mask((q16)x, (i32x16){}, (u16)-1)",
    ),
    (
        "i8_i32",
        16,
        "__AVX512F__",
        "(i32x16)__builtin_ia32_pmovsxbd512_mask((q16)x, (i32x16){}, (u16)-1)",
    ),
    (
        "u16_i32",
        16,
        "__AVX512F__",
        "(i32x16)__builtin_ia32_pmovzxwd512_mask((i16x16)x, (i32x16){}, (u16)-1)",
    ),
    (
        "i16_i32",
        16,
        "__AVX512F__",
        "(i32x16)__builtin_ia32_pmovsxwd512_mask((i16x16)x, (i32x16){}, (u16)-1)",
    ),
    (
        "u8_i32",
        8,
        "__AVX2__",
        "(i32x8)__builtin_ia32_pmovzxbd256((q16)(i64x2){(i64)x, 0})",
    ),
    (
        "i8_i32",
        8,
        "__AVX2__",
        "(i32x8)__builtin_ia32_pmovsxbd256((q16)(i64x2){(i64)x, 0})",
    ),
    (
        "u16_i32",
        8,
        "__AVX2__",
        "(i32x8)__builtin_ia32_pmovzxwd256((i16x8)x)",
    ),
    (
        "i16_i32",
        8,
        "__AVX2__",
        "(i32x8)__builtin_ia32_pmovsxwd256((i16x8)x)",
    ),
];

/// Returns the prelude. Its text is the same for all instruction sets; compiler
/// macros select the code.
pub fn prelude() -> String {
    let mut s = String::new();
    let mut line = |t: String| {
        s.push_str(&t);
        s.push('\n');
    };
    line(CLANG.into());
    for (name, c, bytes) in SCALARS {
        line(format!("typedef {c} {name};"));
        line(format!(
            "typedef {name} __attribute__((aligned(1), may_alias)) {name}_u;"
        ));
        for l in LANES {
            line(format!(
                "typedef {name} {name}x{l} __attribute__((vector_size({})));",
                bytes * l
            ));
            line(format!(
                "typedef {name}x{l} __attribute__((aligned(1), may_alias)) {name}x{l}_u;"
            ));
        }
    }
    line("typedef char q16 __attribute__((vector_size(16)));".into());
    line("typedef i64 i64x2 __attribute__((vector_size(16)));".into());
    line("#define INFINITE __builtin_inff()\n#define NOT_A_NUMBER __builtin_nanf(\"\")".into());
    line("#define FN static inline __attribute__((always_inline, unused))".into());
    line("FN f32 bits_i32_f32(i32 x) { union { i32 i; f32 f; } u = {x}; return u.f; }".into());
    line("FN i32 bits_f32_i32(f32 x) { union { f32 f; i32 i; } u = {x}; return u.i; }".into());
    line("FN f32 bits_u32_f32(u32 x) { union { u32 i; f32 f; } u = {x}; return u.f; }".into());
    line("FN u32 bits_f32_u32(f32 x) { union { f32 f; u32 i; } u = {x}; return u.i; }".into());
    for (from, to) in CONVERSIONS {
        for l in LANES {
            // Narrow integers convert through i32, which is one instruction on all targets.
            let x = if *to == "f32" && !from.ends_with("32") && !from.ends_with("64") {
                format!("cvt_{from}_i32_{l}(x)")
            } else {
                "x".into()
            };
            let generic = format!(
                "FN {to}x{l} cvt_{from}_{to}_{l}({from}x{l} x) {{ return __builtin_convertvector({x}, {to}x{l}); }}"
            );
            match WIDENING
                .iter()
                .find(|w| w.0 == format!("{from}_{to}") && w.1 == *l)
            {
                Some((_, _, needs, e)) => line(format!(
                    "#if defined({needs}) && !defined(__clang__)\nFN {to}x{l} cvt_{from}_{to}_{l}({from}x{l} x) {{ return {e}; }}\n#else\n{generic}\n#endif"
                )),
                None => line(generic),
            }
        }
    }
    line(HALF.into());
    for &l in LANES {
        line(vectors::functions(l));
        line(vectors::saturating(l));
    }
    line(vectors::saturating(1));
    line(SCALAR_FUNCTIONS.into());
    line(ATOMIC_ADDITIONS.into());
    line(words::functions(LANES));
    line(tiles::FUNCTIONS.into());
    s
}

/// Builtins that clang lacks: without the masks of gcc's, and those that clang 22 replaced by
/// generic ones.
const CLANG: &str = r#"
#if defined(__clang__)
#define __builtin_ia32_permvarsf512_mask(t, i, other, mask) __builtin_ia32_permvarsf512(t, i)
#define __builtin_ia32_permvarsi512_mask(t, i, other, mask) __builtin_ia32_permvarsi512(t, i)
#if defined(__FMA__) && !__has_builtin(__builtin_ia32_vfmaddps)
#define __builtin_ia32_vfmaddps(a, b, c) __builtin_elementwise_fma(a, b, c)
#define __builtin_ia32_vfmaddps256(a, b, c) __builtin_elementwise_fma(a, b, c)
#endif
#if defined(__F16C__) && !__has_builtin(__builtin_ia32_vcvtph2ps)
typedef _Float16 f16x8 __attribute__((vector_size(16)));
#define __builtin_ia32_vcvtph2ps(x) __builtin_convertvector(__builtin_shufflevector((f16x8)(x), (f16x8)(x), 0, 1, 2, 3), f32x4)
#define __builtin_ia32_vcvtph2ps256(x) __builtin_convertvector((f16x8)(x), f32x8)
#endif
#endif"#;

/// Atomic additions to memory; floats use a compare-exchange loop.
const ATOMIC_ADDITIONS: &str = r#"
typedef u32 __attribute__((may_alias)) u32_bits;
FN void add_i32(i32 *p, i32 x) { __atomic_fetch_add(p, x, __ATOMIC_RELAXED); }
FN void add_f32(f32 *p, f32 x) {
  u32_bits *q = (u32_bits *)p;
  u32 old = __atomic_load_n(q, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(q, &old, bits_f32_u32(bits_u32_f32(old) + x), 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}
FN void add_f16(u16 *p, u16 x) {
  u16 old = __atomic_load_n(p, __ATOMIC_RELAXED);
  f32 y = cvt_f16_f32_1(x);
  while (!__atomic_compare_exchange_n(p, &old, cvt_f32_f16_1(cvt_f16_f32_1(old) + y), 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}
"#;

/// Scalar conversions of f16 and bf16: by instruction, else by integer code
/// (round to nearest even).
const HALF: &str = r#"
#if defined(__F16C__)
FN f32 cvt_f16_f32_1(u16 x) { return ((f32x4)__builtin_ia32_vcvtph2ps((i16x8){(i16)x}))[0]; }
FN u16 cvt_f32_f16_1(f32 x) { return (u16)((i16x8)__builtin_ia32_vcvtps2ph((f32x4){x}, 0))[0]; }
#elif defined(__aarch64__)
FN f32 cvt_f16_f32_1(u16 x) { union { u16 i; __fp16 f; } u = {x}; return u.f; }
FN u16 cvt_f32_f16_1(f32 x) { union { __fp16 f; u16 i; } u = {(__fp16)x}; return u.i; }
#else
FN f32 cvt_f16_f32_1(u16 x) {
  u32 sign = (u32)(x & 0x8000) << 16, e = (x >> 10) & 31, m = x & 1023;
  if (e == 0) { f32 v = (f32)m * 5.9604644775390625e-8f; return sign ? -v : v; }
  u32 b = e == 31 ? 0x7f800000u | (m << 13) : ((e + 112) << 23) | (m << 13);
  return bits_u32_f32(sign | b);
}
FN u16 cvt_f32_f16_1(f32 f) {
  u32 x = bits_f32_u32(f), sign = (x >> 16) & 0x8000; x &= 0x7fffffff;
  if (x >= 0x7f800000) return (u16)(sign | (x > 0x7f800000 ? 0x7e00 : 0x7c00));
  if (x < 0x38800000) {
    f32 v = bits_u32_f32(x) + 0.5f;
    return (u16)(sign | (bits_f32_u32(v) - 0x3f000000));
  }
  x += 0xfff + ((x >> 13) & 1);
  return (u16)(sign | (x >= 0x47800000 ? 0x7c00 : (x - 0x38000000) >> 13));
}
#endif
FN f32 cvt_bf16_f32_1(u16 x) { return bits_u32_f32((u32)x << 16); }
FN u16 cvt_f32_bf16_1(f32 f) {
  u32 x = bits_f32_u32(f);
  if ((x & 0x7fffffff) > 0x7f800000) return (u16)((x >> 16) | 64);
  return (u16)((x + 0x7fff + ((x >> 16) & 1)) >> 16);
}
"#;

const SCALAR_FUNCTIONS: &str = r#"
FN f32 exp_1(f32 x) { return exp_4((f32x4){x, x, x, x})[0]; }
FN f32 exp2_1(f32 x) { return exp2_4((f32x4){x, x, x, x})[0]; }
FN f32 log_1(f32 x) { return log_4((f32x4){x, x, x, x})[0]; }
FN f32 sqrt_1(f32 x) { return __builtin_sqrtf(x); }
FN f32 round_1(f32 x) { return round_4((f32x4){x, x, x, x})[0]; }
#if defined(__FMA__) || defined(__aarch64__)
FN f32 fma_1(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
#else
FN f32 fma_1(f32 a, f32 b, f32 c) { return a * b + c; }
#endif
"#;
