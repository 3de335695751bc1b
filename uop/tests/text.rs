//! Round trips of the IR's text form, and a check that no text makes the parser panic.

mod common;

use common::Random;
use gristmill_uop::op::Arity;
use gristmill_uop::spec::{Level, check};
use gristmill_uop::text::{ParseError, parse, print};
use gristmill_uop::{
    Arg, Encoding, EncodingRef, Graph, Id, Node, Op, RangeKind, ReduceOp, Scalar, Sources,
};
use std::sync::Arc;

static BYTES: Encoding = Encoding {
    name: "bytes",
    elements: 4,
    bytes: 6,
    value: |b| b.u8(b.k()) * b.f16(4),
};

fn encodings(name: &str) -> Option<EncodingRef> {
    (name == "bytes").then_some(&BYTES)
}

#[track_caller]
fn same_again(t: &str) -> (Graph, Vec<Id>) {
    let (g, roots) = parse(t, &encodings).unwrap_or_else(|e| panic!("{e}\n{t}"));
    assert_eq!(print(&g, &roots), t);
    (g, roots)
}

#[test]
fn the_form() {
    let t = "\
%0 = Param u8 256:i64 4:i64 slot=2 enc=bytes
%1 = Var i64 var=pos 0..4095
%2 = Param i32 %1 slot=1
%3 = Gather u8 %0 %2
%4 = Decode f32 %3
%5 = Reduce f32 %4 reduce=max axes=[0,1]
%6 = Mul f32 %5 0.1:f32
%7 = Range i64 18:i64 range=3 kind=vector_reduce
%8 = Reduce i64 %7 %7 reduce=add
%9 = Attention f32 %4 %4 %4 %1 float=0.125 cap=50.0
%10 = Local f32 64:i64 int=7
%11 = Table i32 %2 table=[1,-2,3]
%12 = Permute i32 %11 axes=[]
return %6 %8 -inf:f32 inf:f64 NaN:f16 -0.0:f32 1e-5:f32 0.30000000000000004:f64 3:i64x4 %9 %10 %12
";
    let (g, roots) = same_again(t);
    assert_eq!(g.int_value(roots[8]), Some(3));
    assert_eq!(g.float_value(roots[6]), Some(1e-5f32 as f64));
}

#[test]
fn comments_blank_lines_and_any_numbers() {
    let t = "# a comment\n\n  %7 = Var i64 var=n -5..-1 # the number\n%3 = Add i64 %7 1:i64\nreturn %3\n\n";
    let (g, roots) = parse(t, &encodings).expect("reads");
    assert_eq!(
        print(&g, &roots),
        "%0 = Var i64 var=n -5..-1\n%1 = Add i64 %0 1:i64\nreturn %1\n"
    );
}

#[test]
fn floats_keep_their_bits() {
    let mut g = Graph::new();
    let mut r = Random(5);
    let bits = [
        0x7ff8_0000_0000_0001,
        0xfff8_0000_0000_0000,
        0.1f64.to_bits(),
        1,
        (f32::MIN_POSITIVE as f64).to_bits(),
    ];
    for b in bits.into_iter().chain((0..2000).map(|_| r.next())) {
        for s in [Scalar::F16, Scalar::F32, Scalar::F64] {
            let id = g.intern(Node {
                op: Op::Const,
                dtype: s.one(),
                src: Sources::new(),
                arg: Arg::Float(b),
            });
            let t = print(&g, &[id]);
            let (back, roots) = same_again(&t);
            assert_eq!(back[roots[0]].arg, Arg::Float(b), "{t}");
        }
    }
}

fn random_graph(r: &mut Random) -> (Graph, Vec<Id>) {
    let mut g = Graph::new();
    let mut ids: Vec<Id> = Vec::new();
    for i in 0..3 + r.below(30) {
        let row = &Op::TABLE[r.below(Op::TABLE.len())];
        let n = match row.arity {
            Arity::Exact(n) => n as usize,
            Arity::AtLeast(n) => n as usize + r.below(4),
        };
        if n > 0 && ids.is_empty() {
            continue;
        }
        let dtype = r
            .pick(Scalar::ALL)
            .one()
            .with_lanes(r.pick(&[1, 1, 1, 4, 16]));
        let src: Sources = (0..n).map(|_| r.pick(&ids)).collect();
        let axes = (0..r.below(4)).map(|_| r.below(4) as u8).collect();
        let arg = if row.op == Op::Const {
            if dtype.scalar.is_float() {
                Arg::float(r.float())
            } else {
                Arg::Int(r.int(i64::MIN, i64::MAX))
            }
        } else {
            match r.below(12) {
                0 => Arg::Int(r.int(i64::MIN, i64::MAX)),
                1 => Arg::Float(r.next()),
                2 => Arg::Axes(axes),
                3 => Arg::Reduce(r.pick(&[ReduceOp::Add, ReduceOp::Max]), axes),
                4 => Arg::Range(i as u32, r.pick(RangeKind::ALL).0),
                5 | 6 => {
                    let lo = r.int(i64::MIN, i64::MAX);
                    Arg::Var(
                        Arc::from(r.pick(&["pos", "a b", "", "100%", "é=ü..", "x_1.y-z", "#"])),
                        lo,
                        r.int(lo, i64::MAX),
                    )
                }
                7 => Arg::Param(r.next() as u32),
                8 => Arg::Packed(r.below(9) as u32, &BYTES),
                9 => Arg::Capped(r.next(), r.next()),
                10 => Arg::Ints((0..r.below(5)).map(|_| r.next() as i32).collect()),
                _ => Arg::None,
            }
        };
        let id = g.intern(Node {
            op: row.op,
            dtype,
            src,
            arg,
        });
        ids.push(id);
    }
    let roots = (0..r.below(4))
        .filter(|_| !ids.is_empty())
        .map(|_| r.pick(&ids))
        .collect();
    (g, roots)
}

#[test]
fn random_graphs_round_trip() {
    let mut r = Random(1);
    for _ in 0..4000 {
        let (g, roots) = random_graph(&mut r);
        let t = print(&g, &roots);
        let (back, again) = same_again(&t);
        assert_eq!(g.toposort(&roots).len(), back.toposort(&again).len());
        for (&a, &b) in g.toposort(&roots).iter().zip(&back.toposort(&again)) {
            assert_eq!(
                (g[a].op, g[a].dtype, &g[a].arg),
                (back[b].op, back[b].dtype, &back[b].arg)
            );
        }
    }
}

#[test]
fn mangled_texts_never_panic() {
    let mut r = Random(2);
    let scraps: Vec<&[u8]> = vec![
        b"%",
        b"=",
        b"..",
        b"[",
        b"]",
        b",",
        b":",
        b" ",
        b"\n",
        b"axes=[9]",
        b"-9223372036854775808:i64",
        b"u8x0",
        b"NaN:f32",
        b"bits(0x",
        b"return",
        b"999999999999999999999",
        b"reduce=add",
        b"slot=0",
        b"%0",
        b"\xff",
        b"0..0",
        b"Iota",
        b"Cat",
    ];
    for _ in 0..20_000 {
        let (g, roots) = random_graph(&mut r);
        let mut t = print(&g, &roots).into_bytes();
        for _ in 0..1 + r.below(4) {
            let at = r.below(t.len());
            match r.below(4) {
                0 => t[at] = r.next() as u8,
                1 => drop(t.remove(at)),
                2 => drop(t.splice(at..at, r.pick(&scraps).iter().copied())),
                _ => {
                    let end = at + r.below(t.len() - at);
                    let piece = t[at..end].to_vec();
                    let to = r.below(t.len());
                    drop(t.splice(to..to, piece));
                }
            }
            if t.is_empty() {
                break;
            }
        }
        let t = String::from_utf8_lossy(&t);
        if let Ok((g, roots)) = parse(&t, &encodings) {
            // A text that parses also prints, and parses to the same graph.
            same_again(&print(&g, &roots));
            for root in roots {
                let _ = (
                    check(&g, root, Level::Tensor),
                    check(&g, root, Level::Kernel),
                );
            }
        }
    }
}

#[test]
fn errors_name_the_line() {
    let error = |t: &str| parse(t, &encodings).expect_err(t);
    let cases: &[(&str, usize, &str)] = &[
        ("", 1, "no `return` line"),
        ("%0 = Frob f32\nreturn %0", 1, "no op is called `Frob`"),
        ("%0 = Exp f33 %1", 1, "no dtype is called `f33`"),
        ("%0 = Exp f32 %1", 1, "%1 is not defined above"),
        ("\n%0 = Exp f32", 2, "Exp takes 1 operands, not 0"),
        (
            "%0 = Exp f32 1.0:f32\n%0 = Exp f32 2.0:f32",
            2,
            "%0 is defined twice",
        ),
        (
            "%0 = Param f32 slot=0 enc=q9",
            1,
            "no encoding is called `q9`",
        ),
        ("%0 = Var i64 var=n 5..4", 1, "5..4 is empty"),
        ("%0 = Range i64 4:i64 range=0", 1, "a range needs `kind=`"),
        (
            "%0 = Param f32 slot=0 frob=1",
            1,
            "`frob=` does not belong here",
        ),
        (
            "return 1.0:f32\n%0 = Exp f32 1.0:f32",
            2,
            "nothing may follow `return`",
        ),
        ("return x", 1, "`x` is neither `%number` nor `value:dtype`"),
    ];
    for (t, line, message) in cases {
        assert_eq!(
            error(t),
            ParseError {
                line: *line,
                message: message.to_string()
            }
        );
    }
}
