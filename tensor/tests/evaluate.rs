//! Tests the reference evaluator against values computed by hand.

use gristmill_encodings::by_name;
use gristmill_tensor::dims;
use gristmill_tensor::evaluate::{Env, HostArray, decode, evaluate, evaluate_all};
use gristmill_tensor::function::Capture;
use gristmill_uop::function::Function;
use gristmill_uop::shape::{PagedSources, ScanSources, Scoring};
use gristmill_uop::spec::Level;
use gristmill_uop::{Arg, Encoding, Graph, Id, Op, ReduceOp, Scalar, Sources};

/// Test encoding of 4 nibbles and an f16 scale: value = (q - 8) * d, low nibbles first.
static NIBBLES: Encoding = Encoding {
    name: "nibbles",
    elements: 4,
    bytes: 4,
    value: |b| {
        let q = b.u8(b.k() % 2 + 2) >> ((b.k() / 2 * 4).as_i32()) & 15;
        (q - 8) * b.f16(0)
    },
};

fn fixed(g: &mut Graph, d: &[i64]) -> Vec<Id> {
    d.iter().map(|&d| g.int(d)).collect()
}

fn param(g: &mut Graph, slot: u32, d: &[i64], s: Scalar) -> Id {
    let d = fixed(g, d);
    g.param(slot, &d, s)
}

fn array(dims: &[usize], data: &[f64]) -> HostArray {
    HostArray {
        dims: dims.to_vec(),
        data: data.to_vec(),
    }
}

const SIX: &[f64] = &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0];

/// The value of an e4m3 code, by its definition.
fn e4m3(code: u32) -> f64 {
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = ((code >> 3 & 15) as i32, f64::from(code & 7));
    match (exponent, code & 7) {
        (15, 7) => f64::NAN,
        (0, _) => sign * fraction / 512.0,
        _ => sign * (1.0 + fraction / 8.0) * 2f64.powi(exponent - 7),
    }
}

#[test]
fn every_e4m3_code_has_its_value_and_every_value_the_nearest_code() {
    let mut g = Graph::new();
    let codes = param(&mut g, 0, &[256], Scalar::U8);
    let values = g.decode_e4m3(codes);
    let all: Vec<f64> = (0..256).map(f64::from).collect();
    let got = evaluate_all(&g, &[values], &Env::new().values(0, &all));
    for (code, &value) in got[0].data.iter().enumerate() {
        let want = e4m3(code as u32);
        assert!(value == want || value.is_nan() && want.is_nan(), "{code}");
    }
    let round = |x: f64| -> u32 {
        let mut g = Graph::new();
        let x_of = param(&mut g, 0, &[1], Scalar::F32);
        let code = g.encode_e4m3(x_of);
        evaluate_all(&g, &[code], &Env::new().values(0, &[x]))[0].data[0] as u32
    };
    for code in 0..126 {
        let (low, high) = (e4m3(code), e4m3(code + 1));
        let tie = (low + high) / 2.0;
        let (below, above) = (
            f64::from(f32::from_bits((tie as f32).to_bits() - 1)),
            f64::from(f32::from_bits((tie as f32).to_bits() + 1)),
        );
        let even = code + (code & 1);
        let found = [low, below, tie, above].map(round);
        assert_eq!(found, [code, code, even, code + 1], "{code}");
        assert_eq!(round(-above), (code + 1) | 0x80, "{code}");
    }
    for (x, code) in [
        (448.0, 0x7e),
        (1e30, 0x7e),
        (f64::INFINITY, 0x7e),
        (f64::NAN, 0x7f),
    ] {
        assert_eq!(round(x) & 0x7f, code, "{x}");
    }
}

#[test]
fn sources() {
    let mut g = Graph::new();
    let n = g.var("n", 0, 8);
    let env = Env::new().var("n", 3).values(0, &[7.0, 8.0, 9.0]);
    let one = g.int(1);
    let p = g.param(0, &[n], Scalar::F32);
    let plus = g.add(n, one);
    let i = g.iota(&[n, plus], 0);
    let j = g.iota(&[n, plus], 1);
    let c = g.f32(0.1);
    let got = evaluate_all(&g, &[n, p, i, j, c], &env);
    assert_eq!(got[0], array(&[], &[3.0]));
    assert_eq!(got[1], array(&[3], &[7.0, 8.0, 9.0]));
    assert_eq!(
        got[2],
        array(
            &[3, 4],
            &[0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]
        )
    );
    assert_eq!(
        got[3],
        array(
            &[3, 4],
            &[0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0]
        )
    );
    assert_eq!(got[4], array(&[], &[0.1f32 as f64]));
}

#[test]
fn movement() {
    let mut g = Graph::new();
    let x = param(&mut g, 0, &[2, 3], Scalar::F32);
    let env = Env::new().values(0, SIX).var("b", 1);
    let d = fixed(&mut g, &[3, 2]);
    let r = g.reshape(x, &d);
    assert_eq!(evaluate(&g, r, &env), array(&[3, 2], SIX));
    let t = g.permute(x, &[1, 0]);
    assert_eq!(
        evaluate(&g, t, &env),
        array(&[3, 2], &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0])
    );
    let (two, three, one, zero) = (g.int(2), g.int(3), g.int(1), g.int(0));
    let col = g.slice(x, 1, 1, 1);
    assert_eq!(evaluate(&g, col, &env), array(&[2, 1], &[1.0, 4.0]));
    let e = g.expand(col, &[two, three]);
    assert_eq!(
        evaluate(&g, e, &env),
        array(&[2, 3], &[1.0, 1.0, 1.0, 4.0, 4.0, 4.0])
    );
    let b = g.var("b", 0, 2);
    let w = g.shrink(x, &[(zero, two), (b, two)]);
    assert_eq!(evaluate(&g, w, &env), array(&[2, 2], &[1.0, 2.0, 4.0, 5.0]));
    let c = g.cat(&[w, x], 1);
    assert_eq!(
        evaluate(&g, c, &env),
        array(&[2, 5], &[1.0, 2.0, 0.0, 1.0, 2.0, 4.0, 5.0, 3.0, 4.0, 5.0])
    );
    let c = g.cat(&[x, x], 0);
    assert_eq!(evaluate(&g, c, &env).dims, [4, 3]);
    let f = g.broadcast_front(col, &[three]);
    assert_eq!(
        evaluate(&g, f, &env),
        array(&[3, 2, 1], &[1.0, 4.0, 1.0, 4.0, 1.0, 4.0])
    );
    let d3 = g.reshape(x, &[one, two, three]);
    let p = g.permute(d3, &[2, 0, 1]);
    assert_eq!(
        evaluate(&g, p, &env),
        array(&[3, 1, 2], &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0])
    );
}

#[test]
fn elementwise_floats_are_not_rounded() {
    let mut g = Graph::new();
    let x = param(&mut g, 0, &[2], Scalar::F32);
    let y = param(&mut g, 1, &[2], Scalar::F32);
    let env = Env::new().values(0, &[1.0, -2.5]).values(1, &[3.0, 0.5]);
    let both = |g: &mut Graph, op| g.binary(op, x, y);
    let cases: &[(Op, [f64; 2])] = &[
        (Op::Add, [4.0, -2.0]),
        (Op::Sub, [-2.0, -3.0]),
        (Op::Mul, [3.0, -1.25]),
        (Op::Div, [1.0 / 3.0, -5.0]),
        (Op::Max, [3.0, 0.5]),
        (Op::Min, [1.0, -2.5]),
        (Op::Lt, [1.0, 1.0]),
        (Op::Eq, [0.0, 0.0]),
    ];
    for (op, want) in cases {
        let id = both(&mut g, *op);
        assert_eq!(evaluate(&g, id, &env), array(&[2], want), "{op:?}");
    }
    type Unary = (fn(&mut Graph, Id) -> Id, [f64; 2]);
    let cases: &[Unary] = &[
        (Graph::neg, [-3.0, -0.5]),
        (Graph::exp, [3f64.exp(), 0.5f64.exp()]),
        (Graph::log, [3f64.ln(), 0.5f64.ln()]),
        (Graph::sqrt, [3f64.sqrt(), 0.5f64.sqrt()]),
        (Graph::recip, [1.0 / 3.0, 2.0]),
        (Graph::round, [3.0, 0.0]),
    ];
    for (f, want) in cases {
        let id = f(&mut g, y);
        assert_eq!(evaluate(&g, id, &env), array(&[2], want));
    }
    let c = g.lt(x, y);
    let w = g.select(c, y, x);
    assert_eq!(evaluate(&g, w, &env), array(&[2], &[3.0, 0.5]));
    let fma = g.build(Op::Fma, Scalar::F32.one(), [x, y, y].as_slice(), Arg::None);
    assert_eq!(evaluate(&g, fma, &env), array(&[2], &[6.0, -0.75]));
    // A scalar broadcasts to any shape, even if it is computed.
    let s = g.sum(x, &[0]);
    let a = g.add(y, s);
    assert_eq!(evaluate(&g, a, &env), array(&[2], &[1.5, -1.0]));
}

#[test]
fn casts_round_and_integers_are_exact() {
    let mut g = Graph::new();
    let x = param(&mut g, 0, &[3], Scalar::F32);
    let env = Env::new()
        .values(0, &[1.0 + 1.0 / 4096.0, -2.7, 300.0])
        .values(1, &[-7.0, 7.0, 100.0]);
    let h = g.cast(x, Scalar::F16);
    assert_eq!(evaluate(&g, h, &env).data, [1.0, -2.69921875, 300.0]);
    let b = g.cast(x, Scalar::BF16);
    assert_eq!(evaluate(&g, b, &env).data, [1.0, -2.703125, 300.0]);
    let i = g.cast(x, Scalar::I8);
    assert_eq!(evaluate(&g, i, &env).data, [1.0, -2.0, 127.0]);
    let back = g.cast(i, Scalar::F32);
    assert_eq!(evaluate(&g, back, &env).data, [1.0, -2.0, 127.0]);
    let bits = g.bitcast(x, Scalar::I32);
    assert_eq!(evaluate(&g, bits, &env).data[2], 300f32.to_bits() as f64);
    let n = param(&mut g, 1, &[3], Scalar::I32);
    let three = g.int_of(Scalar::I32, 3);
    type Binary = (fn(&mut Graph, Id, Id) -> Id, [f64; 3]);
    let cases: &[Binary] = &[
        (Graph::idiv, [-3.0, 2.0, 33.0]),
        (Graph::modulo, [2.0, 1.0, 1.0]),
        (Graph::and, [1.0, 3.0, 0.0]),
        (Graph::or, [-5.0, 7.0, 103.0]),
        (Graph::xor, [-6.0, 4.0, 103.0]),
        (Graph::shl, [-56.0, 56.0, 800.0]),
        (Graph::shr, [-1.0, 0.0, 12.0]),
        (Graph::sub, [-10.0, 4.0, 97.0]),
    ];
    for (f, want) in cases {
        let id = f(&mut g, n, three);
        assert_eq!(evaluate(&g, id, &env).data, want);
    }
    let big = g.int_of(Scalar::I32, i32::MAX as i64);
    let wrapped = g.add(n, big);
    assert_eq!(
        evaluate(&g, wrapped, &env).data[1],
        (7i32.wrapping_add(i32::MAX)) as f64
    );
    let m = g.modulo(n, three);
    let t = g.table(m, &[10, 20, 30]);
    assert_eq!(evaluate(&g, t, &env).data, [30.0, 20.0, 20.0]);
}

#[test]
fn reductions() {
    let mut g = Graph::new();
    let x = param(&mut g, 0, &[2, 3], Scalar::F32);
    let env = Env::new()
        .values(0, &[1.0, 5.0, 2.0, -4.0, -6.0, -5.0])
        .var("n", 0);
    let s = g.sum(x, &[1]);
    assert_eq!(evaluate(&g, s, &env), array(&[2], &[8.0, -15.0]));
    let s = g.sum(x, &[0]);
    assert_eq!(evaluate(&g, s, &env), array(&[3], &[-3.0, -1.0, -3.0]));
    let s = g.sum(x, &[0, 1]);
    assert_eq!(evaluate(&g, s, &env), array(&[], &[-7.0]));
    let m = g.reduce(x, &[1], ReduceOp::Max);
    assert_eq!(evaluate(&g, m, &env), array(&[2], &[5.0, -4.0]));
    let n = g.var("n", 0, 4);
    let (two, zero) = (g.int(2), g.int(0));
    let none = g.shrink(x, &[(zero, two), (zero, n)]);
    let m = g.reduce(none, &[1], ReduceOp::Max);
    assert_eq!(evaluate(&g, m, &env), array(&[2], &[f64::NEG_INFINITY; 2]));
    // Counting: the sum of an always-true comparison is its number of elements.
    let i = g.iota(&[two, two], 1);
    let c = g.lt(i, two);
    let c = g.cast(c, Scalar::I32);
    let c = g.sum(c, &[1]);
    assert_eq!(evaluate(&g, c, &env), array(&[2], &[2.0, 2.0]));
}

#[test]
fn a_dim_may_be_computed_from_a_tensor() {
    let mut g = Graph::new();
    let n = param(&mut g, 0, &[2], Scalar::I64);
    let x = param(&mut g, 1, &[6], Scalar::F32);
    let (zero, six) = (g.int(0), g.int(6));
    let total = g.sum(n, &[0]);
    let total = g.min(total, six);
    let w = g.shrink(x, &[(zero, total)]);
    assert_eq!(
        evaluate(&g, w, &Env::new().values(0, &[1.0, 2.0]).values(1, SIX)),
        array(&[3], &SIX[..3])
    );
}

#[test]
fn gather_and_assign() {
    let mut g = Graph::new();
    let x = param(&mut g, 0, &[3, 2], Scalar::F32);
    let i = param(&mut g, 1, &[2, 2], Scalar::I32);
    let v = param(&mut g, 2, &[1, 2], Scalar::F32);
    let env = Env::new()
        .values(0, SIX)
        .values(1, &[2.0, 0.0, 1.0, 2.0])
        .values(2, &[9.0, 8.0])
        .var("p", 1);
    let r = g.gather(x, i);
    assert_eq!(
        evaluate(&g, r, &env),
        array(&[2, 2, 2], &[4.0, 5.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    );
    let p = g.var("p", 0, 2);
    let a = g.assign(x, v, p);
    assert_eq!(
        evaluate(&g, a, &env),
        array(&[3, 2], &[0.0, 1.0, 9.0, 8.0, 4.0, 5.0])
    );
    // The old version is unchanged.
    let both = evaluate_all(&g, &[a, x], &env);
    assert_eq!(both[1].data, SIX);
}

fn block(scale: f32, bytes: [u8; 2]) -> [u8; 4] {
    // f16 of a power of two: only the exponent is set.
    let e = (scale.log2() as i32 + 15) as u16;
    let d = (e << 10).to_le_bytes();
    [d[0], d[1], bytes[0], bytes[1]]
}

#[test]
fn packed_rows() {
    let bytes: Vec<u8> = [
        block(0.5, [0x9f, 0x08]),
        block(2.0, [0x70, 0x8a]),
        block(1.0, [0x12, 0x34]),
    ]
    .concat();
    let rows = [
        [3.5, 0.0, 0.5, -4.0],
        [-16.0, 4.0, -2.0, 0.0],
        [-6.0, -4.0, -7.0, -5.0],
    ];
    assert_eq!(decode(&NIBBLES, &bytes), rows.concat());
    let mut g = Graph::new();
    let w = g.packed(0, &[3, 4], &NIBBLES);
    let i = param(&mut g, 1, &[2], Scalar::I32);
    let env = Env::new().packed(0, &bytes).values(1, &[2.0, 0.0]);
    let x = g.gather(w, i);
    let x = g.decode(x);
    assert_eq!(
        evaluate(&g, x, &env),
        array(&[2, 4], &[rows[2], rows[0]].concat())
    );
    // The same rows, with decode before gather.
    let y = g.decode(w);
    let y = g.gather(y, i);
    assert_eq!(evaluate(&g, x, &env), evaluate(&g, y, &env));
}

#[test]
fn decode_rounds_every_step_to_f32() {
    static TENTHS: Encoding = Encoding {
        name: "tenths",
        elements: 1,
        bytes: 6,
        value: |b| b.i8(5) * b.f32(0) + b.u8(4) * b.f32(0),
    };
    let d = 0.1f32;
    let mut bytes = d.to_le_bytes().to_vec();
    bytes.extend([3, (-7i8) as u8]);
    assert_eq!(decode(&TENTHS, &bytes), [(-7.0 * d + 3.0 * d) as f64]);
}

#[test]
fn attention_is_softmax_by_its_definition() {
    let (tokens, heads, d, dv, positions) = (3usize, 4usize, 2usize, 3usize, 6usize);
    let wave = |n: usize, a: f64| {
        (0..n)
            .map(|i| ((i * 37 + 11) as f64 * a).sin())
            .collect::<Vec<f64>>()
    };
    let (q, k, v) = (
        wave(tokens * heads * d, 0.7),
        wave(positions * 2 * d, 1.1),
        wave(positions * 2 * dv, 0.3),
    );
    let mut g = Graph::new();
    let qn = param(
        &mut g,
        0,
        &[tokens as i64, heads as i64, d as i64],
        Scalar::F32,
    );
    let kn = param(&mut g, 1, &[positions as i64, 2, d as i64], Scalar::F32);
    let vn = param(&mut g, 2, &[positions as i64, 2, dv as i64], Scalar::F32);
    let (first, length) = (g.var("first", 0, 5), g.var("length", 0, 6));
    let a = g.attention(qn, kn, vn, first, length, 0.5);
    let env = Env::new()
        .values(0, &q)
        .values(1, &k)
        .values(2, &v)
        .var("first", 2)
        .var("length", 5);
    let got = evaluate(&g, a, &env);
    assert_eq!(got.dims, [tokens, heads, dv]);
    for t in 0..tokens {
        for h in 0..heads {
            let kv = h / 2;
            let weight = |p: usize| {
                let s: f64 = (0..d)
                    .map(|i| q[(t * heads + h) * d + i] * k[(p * 2 + kv) * d + i])
                    .sum();
                (0.5 * s).exp()
            };
            // Token 0 is at position 2; positions 0..=4 are in use.
            let seen: Vec<usize> = (0..positions).filter(|&p| p <= 2 + t && p < 5).collect();
            let total: f64 = seen.iter().map(|&p| weight(p)).sum();
            for i in 0..dv {
                let want: f64 = seen
                    .iter()
                    .map(|&p| weight(p) / total * v[(p * 2 + kv) * dv + i])
                    .sum();
                let got = got.data[(t * heads + h) * dv + i];
                assert!((got - want).abs() < 1e-12, "{got} {want}");
            }
        }
    }
}

#[test]
fn a_window_ends_attention_and_a_sink_takes_a_part_of_it() {
    let mut g = Graph::new();
    let q = param(&mut g, 0, &[2, 2, 1], Scalar::F32);
    let k = param(&mut g, 1, &[4, 1, 1], Scalar::F32);
    let sinks = param(&mut g, 2, &[2], Scalar::F32);
    let (first, length) = (g.int(2), g.int(4));
    let a = g.attention_within([q, k, k], [first, length], 0.5, 2, Some(sinks));
    // Tokens at positions 2 and 3 attend to two positions each; queries are 0, so scores are 0.
    let (queries, keys, scores) = ([0.0; 4], [1.0, 2.0, 3.0, 5.0], [0.0, 2f64.ln()]);
    let env = Env::new()
        .values(0, &queries)
        .values(1, &keys)
        .values(2, &scores);
    let got = evaluate(&g, a, &env).data;
    let want = [5.0 / 3.0, 5.0 / 4.0, 8.0 / 3.0, 8.0 / 4.0];
    assert!(
        got.iter()
            .zip(want)
            .all(|(got, want)| (got - want).abs() < 1e-12),
        "{got:?}"
    );
}

#[test]
fn a_cap_bounds_scores_but_not_sinks() {
    let mut g = Graph::new();
    let q = param(&mut g, 0, &[1, 1, 1], Scalar::F32);
    let k = param(&mut g, 1, &[2, 1, 1], Scalar::F32);
    let sinks = param(&mut g, 2, &[1], Scalar::F32);
    let (first, length) = (g.int(1), g.int(2));
    let scores = Scoring {
        scale: 0.5,
        cap: Some(2.0),
    };
    let a = g.attention_within([q, k, k], [first, length], scores, 0, Some(sinks));
    gristmill_uop::spec::check(&g, a, Level::Tensor).unwrap();
    // Scores are 1 and 400 before the cap; the sink's score is larger than the cap.
    let env = Env::new()
        .values(0, &[2.0])
        .values(1, &[1.0, 400.0])
        .values(2, &[3.0]);
    let [one, two, sink] = [(2.0 * 0.5f64.tanh()).exp(), 2f64.exp(), 3f64.exp()];
    let want = (one + 400.0 * two) / (one + two + sink);
    let got = evaluate(&g, a, &env).data[0];
    assert!((got - want).abs() < 1e-9 * want, "{got} {want}");
}

/// Attention over a pool of four pages of two positions.
fn paged(positions: &[f64], table: &[f64]) -> Vec<f64> {
    let mut g = Graph::new();
    let q = param(&mut g, 0, &[2, 2, 1], Scalar::F32);
    let k = param(&mut g, 1, &[4, 2, 1, 1], Scalar::F32);
    let (positions_of, table_of) = (
        param(&mut g, 2, &[2], Scalar::I32),
        param(&mut g, 3, &[2, 2], Scalar::I32),
    );
    let (length, sinks) = (g.int(4), Some(param(&mut g, 4, &[2], Scalar::F32)));
    let of = PagedSources {
        queries: q,
        keys: k,
        values: k,
        positions: positions_of,
        length,
        table: table_of,
        window: 3,
        sinks,
    };
    let a = g.paged_attention(&of, 0.5);
    gristmill_uop::spec::check(&g, a, Level::Tensor).unwrap();
    let keys = [1.0, 2.0, f64::NAN, f64::NAN, 3.0, 5.0, 7.0, 11.0];
    let (queries, scores) = ([0.0; 4], [0.0, 2f64.ln()]);
    let env = Env::new()
        .values(0, &queries)
        .values(1, &keys)
        .values(2, positions)
        .values(3, table)
        .values(4, &scores);
    evaluate(&g, a, &env).data
}

#[test]
fn rows_in_pages_see_their_own_sequence() {
    // The first row is at position 1 of a sequence in page 2, which has no second page. The other
    // is at position 3 of a sequence in pages 3 and 0, with a window of three positions. Queries
    // are 0, so scores are 0; the sinks count as one and as two positions.
    let got = paged(&[1.0, 3.0], &[2.0, -1.0, 3.0, 0.0]);
    let want = [8.0 / 3.0, 8.0 / 4.0, 14.0 / 4.0, 14.0 / 5.0];
    assert!(
        got.iter()
            .zip(want)
            .all(|(got, want)| (got - want).abs() < 1e-12),
        "{got:?}"
    );
}

#[test]
#[should_panic(expected = "there is no such page")]
fn a_page_that_does_not_exist() {
    paged(&[2.0, 0.0], &[2.0, 4.0, 3.0, 0.0]);
}

#[test]
fn rows_are_written_by_their_numbers() {
    let mut g = Graph::new();
    let (state, value) = (
        param(&mut g, 0, &[3, 2], Scalar::F32),
        param(&mut g, 1, &[2, 2], Scalar::F32),
    );
    let numbers = param(&mut g, 2, &[2], Scalar::I32);
    let next = g.assign(state, value, numbers);
    gristmill_uop::spec::check(&g, next, Level::Tensor).unwrap();
    let env = Env::new()
        .values(0, SIX)
        .values(1, &[7.0, 8.0, 9.0, 10.0])
        .values(2, &[2.0, 0.0]);
    assert_eq!(
        evaluate(&g, next, &env),
        array(&[3, 2], &[9.0, 10.0, 2.0, 3.0, 7.0, 8.0])
    );
}

#[test]
#[should_panic(expected = "row 1 is written twice")]
fn a_row_that_is_written_twice() {
    let mut g = Graph::new();
    let (state, value) = (
        param(&mut g, 0, &[3, 2], Scalar::F32),
        param(&mut g, 1, &[2, 2], Scalar::F32),
    );
    let numbers = param(&mut g, 2, &[2], Scalar::I32);
    let next = g.assign(state, value, numbers);
    evaluate(
        &g,
        next,
        &Env::new()
            .values(0, SIX)
            .values(1, &SIX[..4])
            .values(2, &[1.0, 1.0]),
    );
}

#[test]
fn deep_graphs_are_fine() {
    let mut g = Graph::new();
    let x = param(&mut g, 0, &[2], Scalar::F32);
    let mut y = x;
    for _ in 0..50_000 {
        y = g.neg(y);
        y = g.build(
            Op::Max,
            Scalar::F32.one(),
            Sources::from_slice(&[y, x]),
            Arg::None,
        );
    }
    assert_eq!(
        evaluate(&g, y, &Env::new().values(0, &[1.0, -1.0])).data[0],
        1.0
    );
}

#[test]
#[should_panic(expected = "there is no row 3")]
fn a_row_that_does_not_exist() {
    let mut g = Graph::new();
    let x = param(&mut g, 0, &[3, 2], Scalar::F32);
    let i = g.int(3);
    let r = g.gather(x, i);
    evaluate(&g, r, &Env::new().values(0, SIX));
}

#[test]
fn products_of_matrices() {
    let c = Capture::new("products");
    let (a, b) = (
        c.input("a", dims![2, 1, 3], Scalar::BF16),
        c.input("b", dims![3, 2], Scalar::F32),
    );
    c.output("y", a.matmul(b));
    let f = c.finish();
    let env = Env::new()
        .values(0, SIX)
        .values(1, &[1.0, 10.0, 2.0, 20.0, 3.0, 30.0]);
    let of = |f: &Function| evaluate_all(&f.graph, &[f.outputs[0].1], &env).remove(0);
    assert_eq!(of(&f), array(&[2, 1, 2], &[8.0, 80.0, 26.0, 260.0]));
}

/// Activations are rounded to f16 for weights stored as f16, and unchanged for other weights.
#[test]
fn activations_are_rounded_like_stored_f16() {
    let x: &[f64] = &[1.0 + 1.0 / 1024.0 + 1.0 / 8192.0];
    for (name, expected) in [("f32", x[0]), ("f16", 1.0 + 1.0 / 1024.0), ("bf16", x[0])] {
        let e = by_name(name).expect("an encoding");
        let c = Capture::new("rounded");
        c.output(
            "y",
            c.input("x", dims![1, 1], Scalar::F32)
                .linear(c.weight("w", &[1, 1], e)),
        );
        let f = c.finish();
        // 1.0 in each format.
        let one: &[u8] = match name {
            "f32" => &[0, 0, 0x80, 0x3f],
            "f16" => &[0, 0x3c],
            _ => &[0x80, 0x3f],
        };
        let env = Env::new().values(0, x).packed(1, one);
        assert_eq!(
            evaluate_all(&f.graph, &[f.outputs[0].1], &env)[0].data,
            [expected],
            "{name}"
        );
    }
}

/// Two tokens on a one-row state: decay by half, then an update along the key, with and without
/// rate.
#[test]
fn a_scan_decays_writes_and_reads() {
    let mut g = Graph::new();
    let state = param(&mut g, 0, &[1, 1, 2], Scalar::F32);
    let queries = param(&mut g, 1, &[2, 1, 2], Scalar::F32);
    let keys = param(&mut g, 2, &[2, 1, 2], Scalar::F32);
    let values = param(&mut g, 3, &[2, 1, 1], Scalar::F32);
    let gates = param(&mut g, 4, &[2, 1], Scalar::F32);
    let rates = param(&mut g, 5, &[2, 1], Scalar::F32);
    let half = 0.5f64.ln();
    let env = Env::new()
        .values(0, &[4.0, 8.0])
        .values(1, &[1.0, 0.0, 1.0, 1.0])
        .values(2, &[1.0, 0.0, 0.0, 1.0]);
    let gates_of = [half, half];
    let env = env
        .values(3, &[10.0, 6.0])
        .values(4, &gates_of)
        .values(5, &[0.5, 1.0]);
    let of = ScanSources {
        state,
        queries,
        keys,
        values,
        gates,
        rates: None,
    };
    let near = |found: HostArray, expected: &[f64]| {
        assert!(
            found
                .data
                .iter()
                .zip(expected)
                .all(|(a, b)| (a - b).abs() < 1e-12),
            "{found:?}"
        );
        assert_eq!(found.data.len(), expected.len());
    };
    // [2 + 10, 4], then [6, 2 + 6].
    let (read, left) = g.scan(&of);
    near(evaluate(&g, read, &env), &[12.0, 14.0]);
    near(evaluate(&g, left, &env), &[6.0, 8.0]);
    // [2 + (10 - 2) / 2, 4], then [3, 6].
    let (read, left) = g.scan(&ScanSources {
        rates: Some(rates),
        ..of
    });
    near(evaluate(&g, read, &env), &[6.0, 9.0]);
    near(evaluate(&g, left, &env), &[3.0, 6.0]);
}
