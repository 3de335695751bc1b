//! Elementwise ops on ordinary values and edge cases.

use crate::harness::{Case, Fill, Within};
use Scalar::{BF16, Bool, F16, F32, I8, I16, I32, I64, U8, U16, U32};
use gristmill_uop::{Arg, Graph, Id, Op, Scalar, Sources};

/// An axis that vectors divide and one that they do not.
const SIZES: [&[i64]; 2] = [&[3, 48], &[7]];

fn unary(op: Op) -> impl Fn(&mut Graph, &[Id]) -> Vec<Id> {
    move |g, x| {
        let d = g[x[0]].dtype;
        vec![g.build(op, d, Sources::from_slice(&x[..1]), Arg::None)]
    }
}

fn binary(op: Op) -> impl Fn(&mut Graph, &[Id]) -> Vec<Id> {
    move |g, x| vec![g.binary(op, x[0], x[1])]
}

pub fn floats() -> Vec<Case> {
    let mut out = Vec::new();
    for dims in SIZES {
        for (op, lo, hi, t) in [
            (Op::Neg, -2.0, 2.0, 0.0),
            (Op::Exp, -20.0, 20.0, 3e-7),
            (Op::Exp, -87.0, 88.0, 4e-7),
            (Op::Exp2, -30.0, 30.0, 3e-7),
            (Op::Exp2, -125.0, 127.0, 4e-7),
            (Op::Log, 1e-3, 1e3, 3e-6),
            (Op::Log, 1e-30, 1e30, 3e-7),
            (Op::Sqrt, 0.0, 1e6, 1e-7),
            (Op::Recip, 0.01, 100.0, 1e-7),
            (Op::Recip, -100.0, -0.01, 1e-7),
            (Op::Round, -1000.0, 1000.0, 0.0),
        ] {
            let name = format!("{op:?} {lo}..{hi} {dims:?}");
            let case = Case::raw(name, &[(dims, F32)], unary(op)).fill(0, Fill::Uniform(lo, hi));
            out.push(case.within(if t == 0.0 {
                Within::Exact
            } else {
                Within::Each(t)
            }));
        }
        for op in [
            Op::Add,
            Op::Sub,
            Op::Mul,
            Op::Div,
            Op::Max,
            Op::Min,
            Op::Lt,
            Op::Eq,
        ] {
            let case = Case::raw(
                format!("{op:?} {dims:?}"),
                &[(dims, F32), (dims, F32)],
                binary(op),
            );
            out.push(
                case.fill(1, Fill::Uniform(0.5, 2.0))
                    .within(Within::Each(1e-7)),
            );
        }
        let case = Case::raw(
            format!("equal floats {dims:?}"),
            &[(dims, F32), (dims, F32)],
            binary(Op::Eq),
        );
        out.push(case.fill(0, Fill::Whole(0, 3)).fill(1, Fill::Whole(0, 3)));
        out.push(Case::raw(
            format!("Fma {dims:?}"),
            &[(dims, F32); 3],
            |g, x| vec![g.build(Op::Fma, F32.one(), Sources::from_slice(x), Arg::None)],
        ));
        for s in [F32, I32, I64, U8, F16, BF16, Bool] {
            let name = format!("Where {} {dims:?}", s.name());
            out.push(Case::raw(
                name,
                &[(dims, Bool), (dims, s), (dims, s)],
                |g, x| vec![g.select(x[0], x[1], x[2])],
            ));
        }
        out.push(Case::raw(
            format!("Where of a comparison {dims:?}"),
            &[(dims, F32), (dims, F32), (dims, I64)],
            |g, x| {
                let c = g.lt(x[0], x[1]);
                let six = g.int(6);
                vec![g.select(c, x[2], six)]
            },
        ));
    }
    out
}

/// Values between neighbouring e4m3 values, their neighbours in f32, and edges.
fn around_e4m3() -> Vec<f64> {
    let value = |code: u32| {
        let (exponent, fraction) = (code >> 3, f64::from(code & 7));
        match exponent {
            0 => fraction / 512.0,
            _ => (8.0 + fraction) / 8.0 * 2f64.powi(exponent as i32 - 7),
        }
    };
    let near = |x: f64| {
        let bits = (x as f32).to_bits();
        [bits.wrapping_sub(1), bits, bits + 1].map(|bits| f64::from(f32::from_bits(bits)))
    };
    let ties = (0..126).flat_map(|code| near((value(code) + value(code + 1)) / 2.0));
    let edges = [
        0.0,
        1e-30,
        448.0,
        456.0,
        464.0,
        1e30,
        f64::INFINITY,
        f64::NAN,
    ];
    ties.chain(edges).flat_map(|x| [x, -x]).collect()
}

/// Conversion from and to e4m3: every code, every tie and its neighbours, saturation and NaN.
pub fn e4m3() -> Vec<Case> {
    let codes = (0..256).map(f64::from).collect();
    let values = around_e4m3();
    let count = values.len() as i64;
    vec![
        Case::raw("e4m3 codes", &[(&[16, 16], U8)], |g, x| {
            vec![g.decode_e4m3(x[0])]
        })
        .fill(0, Fill::Values(codes))
        .within(Within::Exact),
        Case::raw("values as e4m3", &[(&[count], F32)], |g, x| {
            vec![g.encode_e4m3(x[0])]
        })
        .fill(0, Fill::Values(values)),
    ]
}

pub fn integers() -> Vec<Case> {
    let mut out = Vec::new();
    for dims in SIZES {
        for s in [I32, I64, U8, I8, U16, I16, U32] {
            let signed = s.range().is_some_and(|r| r.0 < 0);
            let (lo, hi) = if signed { (-100, 100) } else { (0, 200) };
            for op in [
                Op::Add,
                Op::Mul,
                Op::IDiv,
                Op::Mod,
                Op::Max,
                Op::Min,
                Op::And,
                Op::Or,
                Op::Xor,
                Op::Lt,
                Op::Eq,
            ] {
                let divides = matches!(op, Op::IDiv | Op::Mod);
                let case = Case::raw(
                    format!("{op:?} {} {dims:?}", s.name()),
                    &[(dims, s), (dims, s)],
                    binary(op),
                );
                let right = if divides { (1, 20) } else { (lo, hi) };
                out.push(
                    case.fill(0, Fill::Whole(lo, hi))
                        .fill(1, Fill::Whole(right.0, right.1)),
                );
            }
            for op in [Op::Shl, Op::Shr] {
                let case = Case::raw(
                    format!("{op:?} {} {dims:?}", s.name()),
                    &[(dims, s), (dims, s)],
                    binary(op),
                );
                out.push(case.fill(0, Fill::Whole(lo, hi)).fill(1, Fill::Whole(0, 7)));
            }
            let by = |op: Op, v: i64| {
                let name = format!("{op:?} {} by {v} {dims:?}", s.name());
                let case = Case::raw(name, &[(dims, s)], |g, x| {
                    let c = g.int_of(s, v);
                    vec![g.binary(op, x[0], c)]
                });
                case.fill(0, Fill::Whole(lo, hi))
            };
            out.extend([
                by(Op::IDiv, 7),
                by(Op::Mod, 7),
                by(Op::IDiv, 8),
                by(Op::Mod, 8),
                by(Op::Shr, 3),
            ]);
        }
        // Wrapping sums and products.
        for s in [I32, U8, I8, U32] {
            let (lo, hi) = s.range().expect("an integer");
            for op in [Op::Add, Op::Mul] {
                let name = format!("{op:?} {} wraps {dims:?}", s.name());
                let case = Case::raw(name, &[(dims, s), (dims, s)], binary(op));
                out.push(
                    case.fill(0, Fill::Whole(lo, hi))
                        .fill(1, Fill::Whole(lo, hi)),
                );
            }
        }
        for op in [Op::And, Op::Or, Op::Xor, Op::Eq] {
            out.push(Case::raw(
                format!("{op:?} bool {dims:?}"),
                &[(dims, Bool), (dims, Bool)],
                binary(op),
            ));
        }
        for n in [3usize, 16] {
            let table: Vec<i32> = (0..n as i32).map(|i| i * i * 1000 - 7).collect();
            let case = Case::raw(format!("Table of {n} {dims:?}"), &[(dims, I32)], |g, x| {
                let last = g.int_of(I32, n as i64);
                let i = g.modulo(x[0], last);
                vec![g.table(i, &table)]
            });
            out.push(case.fill(0, Fill::Whole(0, n as i64)));
        }
    }
    out
}

pub fn casts() -> Vec<Case> {
    let mut out = Vec::new();
    let all = [Bool, I8, U8, I16, U16, I32, U32, I64, F16, BF16, F32];
    for dims in SIZES {
        for from in all {
            for to in all.into_iter().filter(|&t| t != from) {
                let name = format!("{} to {} {dims:?}", from.name(), to.name());
                let mut case = Case::raw(name, &[(dims, from)], |g, x| vec![g.cast(x[0], to)])
                    .within(Within::Exact);
                if from.is_float() {
                    let narrow = to.range().is_some_and(|r| r.0 == 0);
                    case = case.fill(0, Fill::Uniform(if narrow { 0.0 } else { -120.0 }, 120.0));
                } else if let (Some((a, b)), Some((c, d))) = (from.range(), to.range()) {
                    // Values out of range wrap.
                    let wide = to != Bool && from != Bool;
                    let (lo, hi) = if wide {
                        (a.max(-1 << 40), b.min(1 << 40))
                    } else {
                        (a.max(c), b.min(d))
                    };
                    case = case.fill(0, Fill::Whole(lo, hi + 1));
                } else if from != Bool {
                    let (lo, hi) = from.range().expect("an integer");
                    case = case.fill(0, Fill::Whole(lo.max(-60_000), hi.min(60_000)));
                }
                out.push(case);
            }
        }
        for (from, to) in [
            (F32, I32),
            (I32, F32),
            (F32, U32),
            (U32, F32),
            (F16, U16),
            (U16, F16),
            (I32, U32),
            (I8, U8),
        ] {
            let name = format!("bits of {} as {} {dims:?}", from.name(), to.name());
            let case = Case::raw(name, &[(dims, from)], |g, x| vec![g.bitcast(x[0], to)])
                .within(Within::Exact);
            out.push(match (from, to) {
                (I32 | U32, F32) => case.fill(
                    0,
                    Fill::Values(vec![0x3f80_0000 as f64, 0x4049_0fdb as f64, 1.0, 0.0]),
                ),
                (U16, F16) => case.fill(0, Fill::Whole(0, 0x7c00)),
                _ => case,
            });
        }
    }
    out
}

/// F16 and bf16 arithmetic: each result is rounded.
pub fn half() -> Vec<Case> {
    let mut out = Vec::new();
    for dims in SIZES {
        for (s, t) in [(F16, 1.0 / 1024.0), (BF16, 1.0 / 128.0)] {
            for op in [Op::Add, Op::Sub, Op::Mul, Op::Div, Op::Max, Op::Min, Op::Lt] {
                let case = Case::raw(
                    format!("{op:?} {} {dims:?}", s.name()),
                    &[(dims, s), (dims, s)],
                    binary(op),
                );
                out.push(
                    case.fill(1, Fill::Uniform(0.5, 2.0))
                        .within(Within::Each(t)),
                );
            }
            for op in [Op::Neg, Op::Exp, Op::Exp2, Op::Sqrt, Op::Recip, Op::Round] {
                let case = Case::raw(
                    format!("{op:?} {} {dims:?}", s.name()),
                    &[(dims, s)],
                    unary(op),
                );
                out.push(
                    case.fill(0, Fill::Uniform(0.5, 2.0))
                        .within(Within::Each(t)),
                );
            }
        }
    }
    out
}

pub fn edges() -> Vec<Case> {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let tiny = f64::from(f32::MIN_POSITIVE);
    let mut out = Vec::new();
    // 16 and 5 values: vectors, and their remainder.
    let mut case = |op: Op, values: &[f64], within: Within| {
        for n in [16i64, 5] {
            let dims: &[i64] = &[n];
            let mut v = values.to_vec();
            v.resize(16, values[0]);
            if n == 5 {
                for (part, chunk) in values.chunks(5).enumerate() {
                    let mut v = chunk.to_vec();
                    v.resize(5, chunk[0]);
                    let name = format!("{op:?} at its edges, {part}");
                    out.push(
                        Case::raw(name, &[(dims, F32)], unary(op))
                            .fill(0, Fill::Values(v))
                            .within(within),
                    );
                }
            } else {
                let name = format!("{op:?} at its edges");
                out.push(
                    Case::raw(name, &[(dims, F32)], unary(op))
                        .fill(0, Fill::Values(v))
                        .within(within),
                );
            }
        }
    };
    let each = Within::Each(4e-7);
    case(
        Op::Exp,
        &[
            0.0, -0.0, inf, -inf, nan, 88.72, 88.8, 90.0, 1e30, -87.3, -103.0, -104.0, -200.0,
            -1e30, 1e-30, 0.5,
        ],
        each,
    );
    case(
        Op::Exp2,
        &[
            0.0, -0.0, inf, -inf, nan, 127.9, 128.0, 129.0, 1e30, -126.0, -151.0, -200.0, -1e30,
            1e-30, 0.5, -24.0,
        ],
        each,
    );
    case(
        Op::Log,
        &[
            1.0,
            0.0,
            inf,
            -1.0,
            nan,
            tiny,
            tiny / 2.0,
            3.4e38,
            0.5,
            2.0,
            std::f64::consts::FRAC_1_SQRT_2,
            std::f64::consts::SQRT_2,
            1.0000001,
            0.99999994,
            10.0,
            -0.0,
        ],
        each,
    );
    case(
        Op::Sqrt,
        &[0.0, 1.0, inf, -1.0, nan, tiny, tiny / 4.0, 3.4e38],
        each,
    );
    case(
        Op::Recip,
        &[0.0, -0.0, inf, -inf, nan, 3.0, 1e38, -1e-38],
        each,
    );
    let half = [
        0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 4194303.5, 4194304.5, 4194305.5, -4194305.5, 8388607.5,
        8388609.0, 1e30, inf, nan, 0.49999997,
    ];
    case(Op::Round, &half, Within::Exact);
    for n in [16i64, 3] {
        let dims: &[i64] = &[n];
        for (to, values) in [
            (
                F16,
                vec![
                    65504.0,
                    65520.0,
                    65519.0,
                    1e9,
                    -1e9,
                    5.9e-8,
                    2.9e-8,
                    3.1e-8,
                    6.1e-5,
                    6.0e-5,
                    nan,
                    inf,
                    1.00048828125,
                    1.00146484375,
                    -0.0,
                    0.1,
                ],
            ),
            (
                BF16,
                vec![
                    1.0, 1.00390625, 1.01171875, 3.4e38, 1e-40, nan, inf, -inf, 0.1,
                ],
            ),
            (
                I32,
                vec![
                    2147483520.0,
                    2147483648.0,
                    1e20,
                    -2147483648.0,
                    -1e20,
                    nan,
                    inf,
                    -inf,
                    0.99,
                    -0.99,
                    -1.5,
                ],
            ),
            (
                I8,
                vec![
                    126.9, 127.5, 128.0, 300.0, -128.9, -129.0, -1e10, nan, 0.0, 1e10,
                ],
            ),
            (U8, vec![254.9, 255.5, 256.0, 300.0, -1.0, -0.5, nan, 0.0]),
            (I16, vec![32767.9, 40000.0, -32768.9, -40000.0, nan]),
            (U32, vec![4294967040.0, 5e9, -1.0, 3e9]),
            (I64, vec![1e15, -1e15, 4e9]),
            (Bool, vec![0.0, -0.0, 1e-40, nan, -3.0]),
        ] {
            for (part, v) in values.chunks(n as usize).enumerate() {
                let mut v = v.to_vec();
                v.resize(n as usize, v[0]);
                let name = format!("f32 to {} at its edges, {n} {part}", to.name());
                let case = Case::raw(name, &[(dims, F32)], |g, x| vec![g.cast(x[0], to)]);
                out.push(case.fill(0, Fill::Values(v)).within(Within::Exact));
            }
        }
        // Every f16 and bf16 value, by its bits.
        for from in [F16, BF16] {
            let name = format!("every {}, {n}", from.name());
            let case = Case::raw(name, &[(&[n, 4096], U16)], |g, x| {
                let b = g.bitcast(x[0], from);
                vec![g.cast(b, F32)]
            });
            let all: Vec<f64> = (0..65536)
                .step_by(if n == 16 { 1 } else { 7 })
                .map(f64::from)
                .collect();
            out.push(case.fill(0, Fill::Values(all)).within(Within::Exact));
        }
    }
    out
}
