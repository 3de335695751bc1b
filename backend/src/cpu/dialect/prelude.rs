//! What every translation unit begins with: types, conversions and the few functions that have no operator, per instruction set.

use super::{tiles, words};
use crate::render::CONVERSIONS;
use std::fmt::Write;

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

/// gcc turns `__builtin_convertvector` to a wider element into one scalar move an element, so widening has builtins of its own there:
/// (conversion, lanes, needs, expression of x).
const WIDENING: &[(&str, usize, &str, &str)] = &[
    ("u8_i32", 16, "__AVX512F__", "(i32x16)__builtin_ia32_pmovzxbd512_mask((q16)x, (i32x16){}, (u16)-1)"),
    ("i8_i32", 16, "__AVX512F__", "(i32x16)__builtin_ia32_pmovsxbd512_mask((q16)x, (i32x16){}, (u16)-1)"),
    ("u16_i32", 16, "__AVX512F__", "(i32x16)__builtin_ia32_pmovzxwd512_mask((i16x16)x, (i32x16){}, (u16)-1)"),
    ("i16_i32", 16, "__AVX512F__", "(i32x16)__builtin_ia32_pmovsxwd512_mask((i16x16)x, (i32x16){}, (u16)-1)"),
    ("u8_i32", 8, "__AVX2__", "(i32x8)__builtin_ia32_pmovzxbd256((q16)(i64x2){(i64)x, 0})"),
    ("i8_i32", 8, "__AVX2__", "(i32x8)__builtin_ia32_pmovsxbd256((q16)(i64x2){(i64)x, 0})"),
    ("u16_i32", 8, "__AVX2__", "(i32x8)__builtin_ia32_pmovzxwd256((i16x8)x)"),
    ("i16_i32", 8, "__AVX2__", "(i32x8)__builtin_ia32_pmovsxwd256((i16x8)x)"),
];

/// The prelude. The same text serves every instruction set; what the compiler was told it may use decides.
pub fn prelude() -> String {
    let mut s = String::new();
    let mut line = |t: String| {
        s.push_str(&t);
        s.push('\n');
    };
    for (name, c, bytes) in SCALARS {
        line(format!("typedef {c} {name};"));
        line(format!("typedef {name} __attribute__((aligned(1), may_alias)) {name}_u;"));
        for l in LANES {
            line(format!("typedef {name} {name}x{l} __attribute__((vector_size({})));", bytes * l));
            line(format!("typedef {name}x{l} __attribute__((aligned(1), may_alias)) {name}x{l}_u;"));
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
            // Narrow integers by way of i32, whose conversion is one instruction everywhere.
            let x = if *to == "f32" && !from.ends_with("32") && !from.ends_with("64") {
                format!("cvt_{from}_i32_{l}(x)")
            } else {
                "x".into()
            };
            let generic = format!(
                "FN {to}x{l} cvt_{from}_{to}_{l}({from}x{l} x) {{ return __builtin_convertvector({x}, {to}x{l}); }}"
            );
            match WIDENING.iter().find(|w| w.0 == format!("{from}_{to}") && w.1 == *l) {
                Some((_, _, needs, e)) => line(format!(
                    "#if defined({needs}) && !defined(__clang__)\nFN {to}x{l} cvt_{from}_{to}_{l}({from}x{l} x) {{ return {e}; }}\n#else\n{generic}\n#endif"
                )),
                None => line(generic),
            }
        }
    }
    line(HALF.into());
    for &l in LANES {
        line(vector_functions(l));
        line(saturating(l));
    }
    line(saturating(1));
    line(SCALAR_FUNCTIONS.into());
    line(ATOMIC_ADDITIONS.into());
    line(words::functions(LANES));
    line(tiles::FUNCTIONS.into());
    s
}

/// Additions to memory that exclude one another. Where a language has one for whole numbers alone, a float is exchanged if nobody has changed it meanwhile.
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

/// binary16 and bfloat16, one at a time: by instruction where there is one, else by integer code (round to nearest even).
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

/// Functions of vectors of `l` floats.
fn vector_functions(l: usize) -> String {
    let mut s = String::new();
    let each = |f: &dyn Fn(usize) -> String| (0..l).map(f).collect::<Vec<_>>().join(", ");
    let splat = |v: &str| format!("(f32x{l}){{{}}}", each(&|_| v.into()));
    let isplat = |v: &str| format!("(i32x{l}){{{}}}", each(&|_| v.into()));
    // What is known to fit.
    let _ = writeln!(s, "FN i32x{l} whole_{l}(f32x{l} x) {{ return __builtin_convertvector(x, i32x{l}); }}");
    // Selection by a mask.
    for (t, bits) in [("i8", 8), ("u8", 8), ("i16", 16), ("u16", 16)] {
        let _ = writeln!(
            s,
            "FN {t}x{l} select_{t}x{l}(i32x{l} c, {t}x{l} a, {t}x{l} b) {{ {t}x{l} m = ({t}x{l})cvt_i32_i{bits}_{l}(c); return (a & m) | (b & ~m); }}"
        );
    }
    for t in ["f32", "i32", "u32"] {
        let _ = writeln!(
            s,
            "FN {t}x{l} select_{t}x{l}(i32x{l} c, {t}x{l} a, {t}x{l} b) {{ return ({t}x{l})(((i32x{l})a & c) | ((i32x{l})b & ~c)); }}"
        );
    }
    let _ = writeln!(
        s,
        "FN i64x{l} select_i64x{l}(i32x{l} c, i64x{l} a, i64x{l} b) {{ i64x{l} m = cvt_i32_i64_{l}(c); return (a & m) | (b & ~m); }}"
    );
    // Fused multiply-add: one rounding where the machine can.
    let builtin = match l {
        16 => Some(("__AVX512F__", "(f32x16)__builtin_ia32_vfmaddps512_mask(a, b, c, (u16)-1, 4)")),
        8 => Some(("__FMA__", "(f32x8)__builtin_ia32_vfmaddps256(a, b, c)")),
        _ => Some(("__FMA__", "(f32x4)__builtin_ia32_vfmaddps(a, b, c)")),
    };
    if let Some((needs, e)) = builtin {
        let _ = writeln!(
            s,
            "#if defined({needs})\nFN f32x{l} fma_{l}(f32x{l} a, f32x{l} b, f32x{l} c) {{ return {e}; }}\n#elif defined(__aarch64__)\nFN f32x{l} fma_{l}(f32x{l} a, f32x{l} b, f32x{l} c) {{ return (f32x{l}){{{lanes}}}; }}\n#else\nFN f32x{l} fma_{l}(f32x{l} a, f32x{l} b, f32x{l} c) {{ return a * b + c; }}\n#endif",
            // Compilers make `fmla` of these.
            lanes = each(&|i| format!("__builtin_fmaf(a[{i}], b[{i}], c[{i}])"))
        );
    }
    // f16 and bf16.
    let (half_in, half_out) = match l {
        16 => (
            "(f32x16)__builtin_ia32_vcvtph2ps512_mask((i16x16)x, (f32x16){}, (u16)-1, 4)",
            "(u16x16)__builtin_ia32_vcvtps2ph512_mask(x, 0, (i16x16){}, (u16)-1)",
        ),
        8 => ("(f32x8)__builtin_ia32_vcvtph2ps256((i16x8)x)", "(u16x8)__builtin_ia32_vcvtps2ph256(x, 0)"),
        // Written lane by lane, compilers convert lane by lane.
        _ => (
            "({ f32x4 y; __asm__(\"fcvtl %0.4s, %1.4h\" : \"=w\"(y) : \"w\"(x)); y; })",
            "({ u16x4 y; __asm__(\"fcvtn %0.4h, %1.4s\" : \"=w\"(y) : \"w\"(x)); y; })",
        ),
    };
    let needs = match l {
        16 => "__AVX512F__",
        8 => "__F16C__",
        _ => "__aarch64__",
    };
    let lane_in = each(&|i| format!("cvt_f16_f32_1(x[{i}])"));
    let lane_out = each(&|i| format!("cvt_f32_f16_1(x[{i}])"));
    let _ = writeln!(
        s,
        "#if defined({needs})\nFN f32x{l} cvt_f16_f32_{l}(u16x{l} x) {{ return {half_in}; }}\nFN u16x{l} cvt_f32_f16_{l}(f32x{l} x) {{ return {half_out}; }}\n#else\nFN f32x{l} cvt_f16_f32_{l}(u16x{l} x) {{ return (f32x{l}){{{lane_in}}}; }}\nFN u16x{l} cvt_f32_f16_{l}(f32x{l} x) {{ return (u16x{l}){{{lane_out}}}; }}\n#endif\nFN f32x{l} cvt_bf16_f32_{l}(u16x{l} x) {{ return (f32x{l})(cvt_u16_i32_{l}(x) << 16); }}\nFN u16x{l} cvt_f32_bf16_{l}(f32x{l} x) {{\n  u32x{l} b = (u32x{l})x, nan = (u32x{l})((b & 0x7fffffffu) > 0x7f800000u), even = b + 0x7fff + (b >> 16 & 1);\n  return __builtin_convertvector((nan & (b >> 16 | 64)) | (~nan & even >> 16), u16x{l});\n}}"
    );
    // Rounding to nearest even by adding and taking away 2^23 with the sign of x; from 2^23 on nothing is left to round.
    let magic = splat("12582912.0f");
    let _ = writeln!(
        s,
        "FN f32x{l} round_{l}(f32x{l} x) {{ i32x{l} sign = (i32x{l})x & {min}; f32x{l} m = (f32x{l})(sign | (i32x{l}){whole}); i32x{l} small = (i32x{l})((f32x{l})((i32x{l})x & ~{min}) < {whole}); return select_f32x{l}(small, (f32x{l})((i32x{l})((x + m) - m) | sign), x); }}",
        min = isplat("(-2147483647 - 1)"),
        whole = splat("8388608.0f"),
    );
    // e^r 2^n of |r| <= ln 2 / 2: a polynomial of degree 6 for e^r (error below 1 ulp), 2^n by the exponent bits in two steps, so that results near the
    // smallest normal number are right.
    let _ = writeln!(
        s,
        "FN f32x{l} scaled_{l}(f32x{l} r, f32x{l} n) {{\n  f32x{l} p = {c6};\n  p = fma_{l}(p, r, {c5}); p = fma_{l}(p, r, {c4}); p = fma_{l}(p, r, {c3}); p = fma_{l}(p, r, {c2}); p = fma_{l}(p, r, {one}); p = fma_{l}(p, r, {one});\n  i32x{l} k = whole_{l}(n), half = k >> 1;\n  f32x{l} a = (f32x{l})((half + {bias}) << 23), b = (f32x{l})((k - half + {bias}) << 23);\n  return p * a * b;\n}}",
        c6 = splat("1.3981999507e-3f"),
        c5 = splat("8.3334519073e-3f"),
        c4 = splat("4.1665795894e-2f"),
        c3 = splat("1.6666665459e-1f"),
        c2 = splat("5.0000001201e-1f"),
        one = splat("1.0f"),
        bias = isplat("127"),
    );
    // exp: x = n ln 2 + r; exp2: x = n + r / ln 2.
    let exponential = |name: &str, [top, bottom]: [&str; 2], [n, r]: [String; 2]| {
        let (top, bottom) = (splat(top), splat(bottom));
        format!(
            "FN f32x{l} {name}_{l}(f32x{l} x) {{\n  x = select_f32x{l}((i32x{l})(x > {top}), {top}, x);\n  x = select_f32x{l}((i32x{l})(x < {bottom}), {bottom}, x);\n  f32x{l} n = ({n} + {magic}) - {magic};\n  f32x{l} r = {r}\n  return scaled_{l}(r, n);\n}}\n"
        )
    };
    let (log2e, ln2a, ln2b) = (splat("1.44269504088896341f"), splat("-0.693359375f"), splat("2.12194440e-4f"));
    let of_e = [format!("x * {log2e}"), format!("fma_{l}(n, {ln2a}, x); r = fma_{l}(n, {ln2b}, r);")];
    s += &exponential("exp", ["88.8f", "-104.0f"], of_e);
    s += &exponential(
        "exp2",
        ["128.5f", "-150.0f"],
        ["x".into(), format!("(x - n) * {};", splat("0.693147180559945f"))],
    );
    // log: x = m 2^e with m in [sqrt(1/2), sqrt(2)); atanh series in s = (m-1)/(m+1). Denormals are made normal first.
    let _ = writeln!(
        s,
        "FN f32x{l} log_{l}(f32x{l} x) {{\n  i32x{l} low = (i32x{l})(x < {normal}); f32x{l} y = select_f32x{l}(low, x * {two23}, x);\n  i32x{l} b = (i32x{l})y; i32x{l} e = (b - {root}) >> 23;\n  f32x{l} m = (f32x{l})(b - (e << 23)); f32x{l} f = (m - {one}) / (m + {one}), z = f * f;\n  f32x{l} p = {c9}; p = fma_{l}(p, z, {c7}); p = fma_{l}(p, z, {c5}); p = fma_{l}(p, z, {c3}); p = fma_{l}(p, z, {c1});\n  f32x{l} n = cvt_i32_f32_{l}(e - (low & {isplat23}));\n  f32x{l} r = fma_{l}(n, {ln2}, f * p);\n  f32x{l} other = select_f32x{l}((i32x{l})(x == {zero}), -{inf}, select_f32x{l}((i32x{l})(x > {zero}), {inf}, {nan}));\n  return select_f32x{l}((i32x{l})((x > {zero}) & (x < {inf})), r, other);\n}}",
        normal = splat("1.17549435e-38f"),
        two23 = splat("8388608.0f"),
        isplat23 = isplat("23"),
        zero = splat("0.0f"),
        inf = splat("__builtin_inff()"),
        nan = splat("__builtin_nanf(\"\")"),
        root = isplat("0x3f3504f3"),
        one = splat("1.0f"),
        c9 = splat("0.22222222f"),
        c7 = splat("0.28571429f"),
        c5 = splat("0.4f"),
        c3 = splat("0.66666667f"),
        c1 = splat("2.0f"),
        ln2 = splat("0.693147180559945f"),
    );
    let _ = writeln!(
        s,
        "FN f32x{l} sqrt_{l}(f32x{l} x) {{ return (f32x{l}){{{}}}; }}",
        each(&|i| format!("__builtin_sqrtf(x[{i}])"))
    );
    // A table of 16 entries.
    let lookup = each(&|i| format!("t[i[{i}] & 15]"));
    let generic = format!("FN i32x{l} table_{l}(i32x16 t, i32x{l} i) {{ return (i32x{l}){{{lookup}}}; }}");
    match l {
        16 => {
            let _ = writeln!(
                s,
                "#if defined(__AVX512F__)\nFN f32x16 table_f32_16(f32x16 t, i32x16 i) {{ return (f32x16)__builtin_ia32_permvarsf512_mask(t, i, (f32x16){{}}, (u16)-1); }}\nFN i32x16 table_16(i32x16 t, i32x16 i) {{ return (i32x16)__builtin_ia32_permvarsi512_mask(t, i, (i32x16){{}}, (u16)-1); }}\n#else\nFN f32x16 table_f32_16(f32x16 t, i32x16 i) {{ return (f32x16){{{lookup}}}; }}\n{generic}\n#endif"
            );
        }
        8 => {
            let half = |at: usize| (at..at + 8).map(|i| i.to_string()).collect::<Vec<_>>().join(", ");
            let _ = writeln!(
                s,
                "#if defined(__AVX2__)\nFN i32x8 table_8(i32x16 t, i32x8 i) {{ i32x8 a = __builtin_shufflevector(t, t, {}), b = __builtin_shufflevector(t, t, {}); i32x8 x = (i32x8)__builtin_ia32_permvarsi256(a, i & 7), y = (i32x8)__builtin_ia32_permvarsi256(b, i & 7); return select_i32x8((i32x8)(i > 7), y, x); }}\n#else\n{generic}\n#endif",
                half(0),
                half(8)
            );
        }
        _ => {
            let _ = writeln!(s, "{generic}");
        }
    }
    // Folds: halves onto one another.
    for t in ["i8", "u8", "i16", "u16", "u32"] {
        for (how, combine) in [("add", "a + x[i]"), ("max", "a > x[i] ? a : x[i]")] {
            let _ = writeln!(
                s,
                "FN {t} fold_{how}_{t}_{l}({t}x{l} x) {{ {t} a = x[0]; for (i32 i = 1; i < {l}; i++) a = ({t})({combine}); return a; }}"
            );
        }
    }
    for t in ["f32", "i32", "i64"] {
        for (how, combine) in [("add", "a + b"), ("max", "a > b ? a : b")] {
            let mut body = String::new();
            let mut terms: Vec<String> = (0..l).map(|i| format!("x[{i}]")).collect();
            let mut count = 0;
            if how == "add" && l > 4 {
                // Down to four lanes by vectors.
                let mut n = l;
                let mut name = String::from("x");
                while n > 4 {
                    n /= 2;
                    let lo = (0..n).map(|i| i.to_string()).collect::<Vec<_>>().join(", ");
                    let hi = (n..2 * n).map(|i| i.to_string()).collect::<Vec<_>>().join(", ");
                    let _ = write!(
                        body,
                        "{t}x{n} y{n} = __builtin_shufflevector({name}, {name}, {lo}) + __builtin_shufflevector({name}, {name}, {hi}); "
                    );
                    name = format!("y{n}");
                }
                terms = (0..4).map(|i| format!("{name}[{i}]")).collect();
            }
            while terms.len() > 1 {
                let half = terms.len() / 2;
                let mut next = Vec::new();
                for i in 0..half {
                    let _ = write!(
                        body,
                        "{t} s{count}; {{ {t} a = {}, b = {}; s{count} = {combine}; }} ",
                        terms[i],
                        terms[i + half]
                    );
                    next.push(format!("s{count}"));
                    count += 1;
                }
                terms = next;
            }
            let _ = writeln!(s, "FN {t} fold_{how}_{t}_{l}({t}x{l} x) {{ {body}return {}; }}", terms[0]);
        }
    }
    s
}

/// f32 to integers of `l` lanes: truncated, held within the type; no number becomes 0. The bounds are floats that the type holds; what
/// is above the upper one and not below the type's end becomes its largest value.
fn saturating(l: usize) -> String {
    let types = [
        ("i8", "-128.0f", "127.0f", "128.0f", "127"),
        ("u8", "0.0f", "255.0f", "256.0f", "255"),
        ("i16", "-32768.0f", "32767.0f", "32768.0f", "32767"),
        ("u16", "0.0f", "65535.0f", "65536.0f", "65535"),
        ("i32", "-2147483648.0f", "2147483520.0f", "2147483648.0f", "2147483647"),
        ("u32", "0.0f", "4294967040.0f", "4294967296.0f", "4294967295u"),
        ("i64", "-9223372036854775808.0f", "9223371487098961920.0f", "9223372036854775808.0f", "9223372036854775807ll"),
    ];
    let mut s = String::new();
    for (t, lo, hi, end, largest) in types {
        let exact = matches!(t, "i32" | "u32" | "i64");
        if l == 1 {
            let _ = writeln!(
                s,
                "FN {t} cvt_f32_{t}_1(f32 x) {{ return x >= {end} ? {largest} : x > {hi} ? ({t}){hi} : x > {lo} ? ({t})x : x <= {lo} ? ({t}){lo} : 0; }}"
            );
            continue;
        }
        let splat = |v: &str, t: &str| format!("({t}x{l}){{{}}}", vec![v; l].join(", "));
        let (lo, hi, end) = (splat(lo, "f32"), splat(hi, "f32"), splat(end, "f32"));
        let last = if exact {
            let (largest, zero) = (splat(largest, t), splat("0", t));
            format!("select_{t}x{l}((i32x{l})(x == x), select_{t}x{l}((i32x{l})(x >= {end}), {largest}, r), {zero})")
        } else {
            "r".into()
        };
        // A number first: the comparison with one that is none is false.
        let number = splat("0.0f", "f32");
        let _ = writeln!(
            s,
            "FN {t}x{l} cvt_f32_{t}_{l}(f32x{l} x) {{ f32x{l} y = select_f32x{l}((i32x{l})(x > {hi}), {hi}, select_f32x{l}((i32x{l})(x < {lo}), {lo}, x)); y = select_f32x{l}((i32x{l})(x == x), y, {number}); {t}x{l} r = __builtin_convertvector({from}, {t}x{l}); return {last}; }}",
            from = if exact { "y".into() } else { format!("whole_{l}(y)") },
        );
    }
    s
}
