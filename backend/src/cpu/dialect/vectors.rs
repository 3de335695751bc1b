//! Vector functions on floats and vector folds, in portable code with
//! special instructions where available.

use std::fmt::Write;

/// Returns all functions for vectors of `l` lanes.
pub fn functions(l: usize) -> String {
    // Conversion of values that are known to fit.
    let whole = format!(
        "FN i32x{l} whole_{l}(f32x{l} x) {{ return __builtin_convertvector(x, i32x{l}); }}\n"
    );
    let parts = [
        whole,
        selections(l),
        multiply_add(l),
        halves(l),
        rounding(l),
        exponentials(l),
        logarithm(l),
        root(l),
        table(l),
        folds(l),
    ];
    parts.concat()
}

/// Joins the text of each lane.
fn each(l: usize, f: impl Fn(usize) -> String) -> String {
    (0..l).map(f).collect::<Vec<_>>().join(", ")
}

/// Renders a vector of that type with `v` in all lanes.
fn splat(t: &str, l: usize, v: &str) -> String {
    format!("({t}x{l}){{{}}}", vec![v; l].join(", "))
}

/// Returns selections by a mask.
fn selections(l: usize) -> String {
    let mut s = String::new();
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
    s
}

/// Returns the multiply-add, fused where the instruction set has it.
fn multiply_add(l: usize) -> String {
    let (needs, e) = match l {
        16 => (
            "__AVX512F__",
            "(f32x16)__builtin_ia32_vfmaddps512_mask(a, b, c, (u16)-1, 4)",
        ),
        8 => ("__FMA__", "(f32x8)__builtin_ia32_vfmaddps256(a, b, c)"),
        _ => ("__FMA__", "(f32x4)__builtin_ia32_vfmaddps(a, b, c)"),
    };
    // Compilers generate `fmla` from these.
    let lanes = each(l, |i| format!("__builtin_fmaf(a[{i}], b[{i}], c[{i}])"));
    let head = format!("FN f32x{l} fma_{l}(f32x{l} a, f32x{l} b, f32x{l} c)");
    format!(
        "#if defined({needs})\n{head} {{ return {e}; }}\n#elif defined(__aarch64__)\n{head} {{ return (f32x{l}){{{lanes}}}; }}\n#else\n{head} {{ return a * b + c; }}\n#endif\n"
    )
}

/// Returns the conversions of f16 and bf16.
fn halves(l: usize) -> String {
    let (needs, half_in, half_out) = match l {
        16 => (
            "__AVX512F__",
            "(f32x16)__builtin_ia32_vcvtph2ps512_mask((i16x16)x, (f32x16){}, (u16)-1, 4)",
            "(u16x16)__builtin_ia32_vcvtps2ph512_mask(x, 0, (i16x16){}, (u16)-1)",
        ),
        8 => (
            "__F16C__",
            "(f32x8)__builtin_ia32_vcvtph2ps256((i16x8)x)",
            "(u16x8)__builtin_ia32_vcvtps2ph256(x, 0)",
        ),
        // If written by lane, compilers convert by lane.
        _ => (
            "__aarch64__",
            "({ f32x4 y; __asm__(\"fcvtl %0.4s, %1.4h\" : \"=w\"(y) : \"w\"(x)); y; })",
            "({ u16x4 y; __asm__(\"fcvtn %0.4h, %1.4s\" : \"=w\"(y) : \"w\"(x)); y; })",
        ),
    };
    let lane_in = each(l, |i| format!("cvt_f16_f32_1(x[{i}])"));
    let lane_out = each(l, |i| format!("cvt_f32_f16_1(x[{i}])"));
    format!(
        "#if defined({needs})\nFN f32x{l} cvt_f16_f32_{l}(u16x{l} x) {{ return {half_in}; }}\nFN u16x{l} cvt_f32_f16_{l}(f32x{l} x) {{ return {half_out}; }}\n#else\nFN f32x{l} cvt_f16_f32_{l}(u16x{l} x) {{ return (f32x{l}){{{lane_in}}}; }}\nFN u16x{l} cvt_f32_f16_{l}(f32x{l} x) {{ return (u16x{l}){{{lane_out}}}; }}\n#endif\nFN f32x{l} cvt_bf16_f32_{l}(u16x{l} x) {{ return (f32x{l})(cvt_u16_i32_{l}(x) << 16); }}\nFN u16x{l} cvt_f32_bf16_{l}(f32x{l} x) {{\n  u32x{l} b = (u32x{l})x, nan = (u32x{l})((b & 0x7fffffffu) > 0x7f800000u), even = b + 0x7fff + (b >> 16 & 1);\n  return __builtin_convertvector((nan & (b >> 16 | 64)) | (~nan & even >> 16), u16x{l});\n}}\n"
    )
}

/// Returns rounding to nearest even, by adding and subtracting 2^23 with the sign of x; values from
/// 2^23 on are integers.
fn rounding(l: usize) -> String {
    let (min, whole) = (
        splat("i32", l, "(-2147483647 - 1)"),
        splat("f32", l, "8388608.0f"),
    );
    format!(
        "FN f32x{l} round_{l}(f32x{l} x) {{ i32x{l} sign = (i32x{l})x & {min}; f32x{l} m = (f32x{l})(sign | (i32x{l}){whole}); i32x{l} small = (i32x{l})((f32x{l})((i32x{l})x & ~{min}) < {whole}); return select_f32x{l}(small, (f32x{l})((i32x{l})((x + m) - m) | sign), x); }}\n"
    )
}

/// Returns exp (x = n ln 2 + r) and exp2 (x = n + r / ln 2).
fn exponentials(l: usize) -> String {
    let splat = |v: &str| splat("f32", l, v);
    let magic = splat("12582912.0f");
    let exponential = |name: &str, [top, bottom]: [&str; 2], [n, r]: [String; 2]| {
        let (top, bottom) = (splat(top), splat(bottom));
        format!(
            "FN f32x{l} {name}_{l}(f32x{l} x) {{\n  x = select_f32x{l}((i32x{l})(x > {top}), {top}, x);\n  x = select_f32x{l}((i32x{l})(x < {bottom}), {bottom}, x);\n  f32x{l} n = ({n} + {magic}) - {magic};\n  f32x{l} r = {r}\n  return scaled_{l}(r, n);\n}}\n"
        )
    };
    let (log2e, ln2a, ln2b) = (
        splat("1.44269504088896341f"),
        splat("-0.693359375f"),
        splat("2.12194440e-4f"),
    );
    let of_e = [
        format!("x * {log2e}"),
        format!("fma_{l}(n, {ln2a}, x); r = fma_{l}(n, {ln2b}, r);"),
    ];
    let of_two = [
        "x".into(),
        format!("(x - n) * {};", splat("0.693147180559945f")),
    ];
    let exp = exponential("exp", ["88.8f", "-104.0f"], of_e);
    scaled(l) + &exp + &exponential("exp2", ["128.5f", "-150.0f"], of_two)
}

/// Returns e^r 2^n for |r| <= ln 2 / 2.
///
/// e^r is a polynomial of degree 6 (error below 1 ulp); 2^n is applied by exponent bits in two
/// steps, so that results near the smallest normal number are correct.
fn scaled(l: usize) -> String {
    let (splat, bias) = (|v: &str| splat("f32", l, v), splat("i32", l, "127"));
    format!(
        "FN f32x{l} scaled_{l}(f32x{l} r, f32x{l} n) {{\n  f32x{l} p = {c6};\n  p = fma_{l}(p, r, {c5}); p = fma_{l}(p, r, {c4}); p = fma_{l}(p, r, {c3}); p = fma_{l}(p, r, {c2}); p = fma_{l}(p, r, {one}); p = fma_{l}(p, r, {one});\n  i32x{l} k = whole_{l}(n), half = k >> 1;\n  f32x{l} a = (f32x{l})((half + {bias}) << 23), b = (f32x{l})((k - half + {bias}) << 23);\n  return p * a * b;\n}}\n",
        c6 = splat("1.3981999507e-3f"),
        c5 = splat("8.3334519073e-3f"),
        c4 = splat("4.1665795894e-2f"),
        c3 = splat("1.6666665459e-1f"),
        c2 = splat("5.0000001201e-1f"),
        one = splat("1.0f"),
    )
}

/// Returns log: x = m 2^e with m in [sqrt(1/2), sqrt(2)), atanh series in s = (m-1)/(m+1).
/// Denormals are scaled first.
fn logarithm(l: usize) -> String {
    let (splat, isplat) = (|v: &str| splat("f32", l, v), |v: &str| splat("i32", l, v));
    format!(
        "FN f32x{l} log_{l}(f32x{l} x) {{\n  i32x{l} low = (i32x{l})(x < {normal}); f32x{l} y = select_f32x{l}(low, x * {two23}, x);\n  i32x{l} b = (i32x{l})y; i32x{l} e = (b - {root}) >> 23;\n  f32x{l} m = (f32x{l})(b - (e << 23)); f32x{l} f = (m - {one}) / (m + {one}), z = f * f;\n  f32x{l} p = {c9}; p = fma_{l}(p, z, {c7}); p = fma_{l}(p, z, {c5}); p = fma_{l}(p, z, {c3}); p = fma_{l}(p, z, {c1});\n  f32x{l} n = cvt_i32_f32_{l}(e - (low & {by23}));\n  f32x{l} r = fma_{l}(n, {ln2}, f * p);\n  f32x{l} other = select_f32x{l}((i32x{l})(x == {zero}), -{inf}, select_f32x{l}((i32x{l})(x > {zero}), {inf}, {nan}));\n  return select_f32x{l}((i32x{l})((x > {zero}) & (x < {inf})), r, other);\n}}\n",
        normal = splat("1.17549435e-38f"),
        two23 = splat("8388608.0f"),
        by23 = isplat("23"),
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
    )
}

/// Returns square roots by lane.
fn root(l: usize) -> String {
    let lanes = each(l, |i| format!("__builtin_sqrtf(x[{i}])"));
    format!("FN f32x{l} sqrt_{l}(f32x{l} x) {{ return (f32x{l}){{{lanes}}}; }}\n")
}

/// Returns lookups in a table of 16 entries.
fn table(l: usize) -> String {
    let lookup = each(l, |i| format!("t[i[{i}] & 15]"));
    let generic =
        format!("FN i32x{l} table_{l}(i32x16 t, i32x{l} i) {{ return (i32x{l}){{{lookup}}}; }}\n");
    match l {
        16 => format!(
            "#if defined(__AVX512F__)\nFN f32x16 table_f32_16(f32x16 t, i32x16 i) {{ return (f32x16)__builtin_ia32_permvarsf512_mask(t, i, (f32x16){{}}, (u16)-1); }}\nFN i32x16 table_16(i32x16 t, i32x16 i) {{ return (i32x16)__builtin_ia32_permvarsi512_mask(t, i, (i32x16){{}}, (u16)-1); }}\n#else\nFN f32x16 table_f32_16(f32x16 t, i32x16 i) {{ return (f32x16){{{lookup}}}; }}\n{generic}#endif\n"
        ),
        8 => {
            let half = |at: usize| each(8, |i| (at + i).to_string());
            format!(
                "#if defined(__AVX2__)\nFN i32x8 table_8(i32x16 t, i32x8 i) {{ i32x8 a = __builtin_shufflevector(t, t, {}), b = __builtin_shufflevector(t, t, {}); i32x8 x = (i32x8)__builtin_ia32_permvarsi256(a, i & 7), y = (i32x8)__builtin_ia32_permvarsi256(b, i & 7); return select_i32x8((i32x8)(i > 7), y, x); }}\n#else\n{generic}#endif\n",
                half(0),
                half(8)
            )
        }
        _ => generic,
    }
}

/// Returns the folds of a vector to a scalar.
fn folds(l: usize) -> String {
    let mut s = String::new();
    for t in ["i8", "u8", "i16", "u16", "u32"] {
        for (how, combine) in [("add", "a + x[i]"), ("max", "a > x[i] ? a : x[i]")] {
            let _ = writeln!(
                s,
                "FN {t} fold_{how}_{t}_{l}({t}x{l} x) {{ {t} a = x[0]; for (i32 i = 1; i < {l}; i++) a = ({t})({combine}); return a; }}"
            );
        }
    }
    for t in ["f32", "i32", "i64"] {
        s += &sum(t, l);
        let _ = writeln!(
            s,
            "FN {t} fold_max_{t}_{l}({t}x{l} x) {{ {}}}",
            pairwise(
                t,
                "a > b ? a : b",
                (0..l).map(|i| format!("x[{i}]")).collect()
            )
        );
    }
    s
}

/// Returns the sum of a vector, by halves down to four lanes.
fn sum(t: &str, l: usize) -> String {
    let (mut body, mut n, mut name) = (String::new(), l, String::from("x"));
    while n > 4 {
        n /= 2;
        let [low, high] = [0, n].map(|at| each(n, |i| (at + i).to_string()));
        let _ = write!(
            body,
            "{t}x{n} y{n} = __builtin_shufflevector({name}, {name}, {low}) + __builtin_shufflevector({name}, {name}, {high}); "
        );
        name = format!("y{n}");
    }
    body += &pairwise(t, "a + b", (0..n).map(|i| format!("{name}[{i}]")).collect());
    format!("FN {t} fold_add_{t}_{l}({t}x{l} x) {{ {body}}}\n")
}

/// Renders a pairwise combination of a power of two of terms.
fn pairwise(t: &str, combine: &str, mut terms: Vec<String>) -> String {
    let (mut body, mut count) = (String::new(), 0);
    while terms.len() > 1 {
        let (low, high) = terms.split_at(terms.len() / 2);
        let mut next = Vec::new();
        for (a, b) in low.iter().zip(high) {
            let _ = write!(
                body,
                "{t} s{count}; {{ {t} a = {a}, b = {b}; s{count} = {combine}; }} "
            );
            next.push(format!("s{count}"));
            count += 1;
        }
        terms = next;
    }
    body + &format!("return {}; ", terms[0])
}

/// Returns saturating conversions of f32 to integers of `l` lanes: truncated, NaN becomes 0.
///
/// The bounds are floats that the type can hold; values above the upper one but within the type
/// become its largest value.
pub fn saturating(l: usize) -> String {
    let types = [
        ("i8", "-128.0f", "127.0f", "128.0f", "127"),
        ("u8", "0.0f", "255.0f", "256.0f", "255"),
        ("i16", "-32768.0f", "32767.0f", "32768.0f", "32767"),
        ("u16", "0.0f", "65535.0f", "65536.0f", "65535"),
        (
            "i32",
            "-2147483648.0f",
            "2147483520.0f",
            "2147483648.0f",
            "2147483647",
        ),
        (
            "u32",
            "0.0f",
            "4294967040.0f",
            "4294967296.0f",
            "4294967295u",
        ),
        (
            "i64",
            "-9223372036854775808.0f",
            "9223371487098961920.0f",
            "9223372036854775808.0f",
            "9223372036854775807ll",
        ),
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
        let (lo, hi, end) = (
            splat("f32", l, lo),
            splat("f32", l, hi),
            splat("f32", l, end),
        );
        let last = if exact {
            let (largest, zero) = (splat(t, l, largest), splat(t, l, "0"));
            format!(
                "select_{t}x{l}((i32x{l})(x == x), select_{t}x{l}((i32x{l})(x >= {end}), {largest}, r), {zero})"
            )
        } else {
            "r".into()
        };
        // NaN is replaced first, since comparisons with it are false.
        let number = splat("f32", l, "0.0f");
        let _ = writeln!(
            s,
            "FN {t}x{l} cvt_f32_{t}_{l}(f32x{l} x) {{ f32x{l} y = select_f32x{l}((i32x{l})(x > {hi}), {hi}, select_f32x{l}((i32x{l})(x < {lo}), {lo}, x)); y = select_f32x{l}((i32x{l})(x == x), y, {number}); {t}x{l} r = __builtin_convertvector({from}, {t}x{l}); return {last}; }}",
            from = if exact {
                "y".into()
            } else {
                format!("whole_{l}(y)")
            },
        );
    }
    s
}
