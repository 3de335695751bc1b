//! Tests of the always-on rewrite rules: each fires in a case of the same name and preserves the
//! value. Random index expressions keep their value under all rules together.

mod common;

use common::{Builder, Leaves, Random, evaluate, same};
use gristmill_uop::fold::Value;
use gristmill_uop::{Arg, Id, Node, Op, Scalar, rules, text};
use smallvec::smallvec;

type Case = fn(&mut Builder) -> Id;

/// Random assignments of leaf values for which a rule's case is evaluated.
const POINTS: usize = 400;

/// Left sides of rules; at least one case per rule.
const CASES: &[(&str, Case)] = &[
    ("f(expand(constant), y) -> f(constant, y)", |b| {
        let (one, four) = (b.int(1), b.int(4));
        let (c, y) = (b.float_of(Scalar::F32, 0.5), b.tensor(0, Scalar::F32, &[4]));
        let c = b.node(Op::Reshape, Scalar::F32, &[c, one], Arg::None);
        let c = b.node(Op::Expand, Scalar::F32, &[c, four], Arg::None);
        b.op(Op::Add, &[c, y])
    }),
    ("f(constants) -> constant", |b| {
        let (x, y) = (
            b.float_of(Scalar::F32, 0.1f32 as f64),
            b.float_of(Scalar::F32, 0.3f32 as f64),
        );
        b.op(Op::Mul, &[x, y])
    }),
    ("f(constants) -> constant", |b| {
        let x = b.float_of(Scalar::F32, 1e9);
        b.cast(x, Scalar::I16)
    }),
    ("f(constants) -> constant", |b| {
        let (x, y) = (b.int_of(Scalar::U8, 200), b.int_of(Scalar::U8, 100));
        b.op(Op::Add, &[x, y])
    }),
    ("table[constant] -> constant", |b| {
        let x = b.int(2);
        b.node(
            Op::Table,
            Scalar::I32,
            &[x],
            Arg::Ints([5, -7, 9].as_slice().into()),
        )
    }),
    ("bitcast(constant) -> constant", |b| {
        let x = b.int_of(Scalar::I32, 0x4048_F5C3);
        b.node(Op::Bitcast, Scalar::F32, &[x], Arg::None)
    }),
    ("bitcast(bitcast(x)) -> bitcast(x)", |b| {
        let x = b.leaf(0, Scalar::I32);
        let u = b.node(Op::Bitcast, Scalar::U32, &[x], Arg::None);
        b.node(Op::Bitcast, Scalar::F32, &[u], Arg::None)
    }),
    ("one value only -> constant", |b| {
        let (x, c) = (b.var("x", 0, 15), b.int(16));
        b.op(Op::IDiv, &[x, c])
    }),
    ("one value only -> constant", |b| {
        let (x, y) = (b.var("x", 3, 9), b.var("y", -4, 2));
        b.op(Op::Lt, &[x, y])
    }),
    ("splat(constant) -> constant", |b| {
        let x = b.float_of(Scalar::F32, -2.5);
        b.node(Op::Splat, Scalar::F32.one().with_lanes(4), &[x], Arg::None)
    }),
    ("x * 1 -> x", |b| {
        let (x, c) = (b.leaf(0, Scalar::F32), b.float_of(Scalar::F32, 1.0));
        b.op(Op::Mul, &[x, c])
    }),
    ("x * 1 -> x", |b| {
        let (x, c) = (b.leaf(0, Scalar::F16), b.float_of(Scalar::F16, 1.0));
        b.op(Op::Div, &[x, c])
    }),
    ("x * 0 -> 0 (integers)", |b| {
        let (x, c) = (b.leaf(0, Scalar::I32), b.int_of(Scalar::I32, 0));
        b.op(Op::Mul, &[x, c])
    }),
    ("x + 0 -> x (integers)", |b| {
        let (x, c) = (b.leaf(0, Scalar::I32), b.int_of(Scalar::I32, 0));
        b.op(Op::Shr, &[x, c])
    }),
    ("constant first -> constant last", |b| {
        let (c, x) = (b.float_of(Scalar::F32, 3.0), b.leaf(0, Scalar::F32));
        b.op(Op::Add, &[c, x])
    }),
    ("true ? a : b -> a", |b| {
        let (x, zero) = (b.var("x", 0, 9), b.int(0));
        let c = b.op(Op::Lt, &[x, zero]);
        let (p, q) = (b.leaf(0, Scalar::F32), b.leaf(1, Scalar::F32));
        b.op(Op::Where, &[c, p, q])
    }),
    ("c ? a : a -> a", |b| {
        let (c, p) = (b.leaf(0, Scalar::Bool), b.leaf(1, Scalar::F32));
        b.op(Op::Where, &[c, p, p])
    }),
    ("max(x, y) -> x where x >= y", |b| {
        let (x, y) = (b.var("x", 5, 9), b.var("y", -5, 5));
        b.op(Op::Max, &[y, x])
    }),
    ("min(x, y) -> x where x <= y", |b| {
        let (x, y) = (b.var("x", 5, 9), b.var("y", -5, 5));
        b.op(Op::Min, &[x, y])
    }),
    ("x & mask -> x where x fits", |b| {
        let (x, c) = (b.leaf(0, Scalar::U8), b.int_of(Scalar::I32, 255));
        let x = b.cast(x, Scalar::I32);
        b.op(Op::And, &[x, c])
    }),
    ("(x & a) & b -> x & (a & b)", |b| {
        let (x, p, q) = (
            b.leaf(0, Scalar::I32),
            b.int_of(Scalar::I32, -4),
            b.int_of(Scalar::I32, 0x7ffff),
        );
        let x = b.op(Op::And, &[x, p]);
        b.op(Op::And, &[x, q])
    }),
    ("(x >> a) >> b -> x >> (a + b)", |b| {
        let (x, p, q) = (
            b.leaf(0, Scalar::I32),
            b.int_of(Scalar::I32, 3),
            b.int_of(Scalar::I32, 11),
        );
        let x = b.op(Op::Shr, &[x, p]);
        b.op(Op::Shr, &[x, q])
    }),
    ("min(min(x, y), y) -> min(x, y)", |b| {
        let (x, y) = (b.var("x", -9, 9), b.var("y", -9, 9));
        let inner = b.op(Op::Min, &[x, y]);
        b.op(Op::Min, &[inner, y])
    }),
    ("min(min(x, y), y) -> min(x, y)", |b| {
        let (x, y) = (b.leaf(0, Scalar::I32), b.leaf(1, Scalar::I32));
        let inner = b.op(Op::Max, &[x, y]);
        b.op(Op::Max, &[x, inner])
    }),
    ("max(min(x, y), z) -> min(max(x, z), y) where z <= y", |b| {
        let (x, y, z) = (
            b.leaf(0, Scalar::I32),
            b.int_of(Scalar::I32, 6),
            b.int_of(Scalar::I32, 0),
        );
        let most = b.op(Op::Min, &[x, y]);
        b.op(Op::Max, &[most, z])
    }),
    ("max(min(x, y), z) -> min(max(x, z), y) where z <= y", |b| {
        let (x, y, z) = (b.var("x", -9, 9), b.var("y", 2, 9), b.var("z", -9, 2));
        let most = b.op(Op::Min, &[y, x]);
        b.op(Op::Max, &[z, most])
    }),
    ("((x >> a) & m) << b -> (x << (b - a)) & (m << b)", |b| {
        let (x, a) = (b.leaf(0, Scalar::U32), b.int_of(Scalar::U32, 6));
        let (m, by) = (b.int_of(Scalar::U32, 0x0303_0303), b.int_of(Scalar::U32, 4));
        let shifted = b.op(Op::Shr, &[x, a]);
        let masked = b.op(Op::And, &[shifted, m]);
        b.op(Op::Shl, &[masked, by])
    }),
    ("cast(cast(x)) -> cast(x) where nothing is lost", |b| {
        let x = b.leaf(0, Scalar::I8);
        let x = b.cast(x, Scalar::I32);
        b.cast(x, Scalar::F32)
    }),
    ("cast(cast(x)) -> cast(x) where nothing is lost", |b| {
        let x = b.leaf(0, Scalar::F16);
        let x = b.cast(x, Scalar::F32);
        b.cast(x, Scalar::I8)
    }),
    ("cast(x) -> x of the same dtype", |b| {
        let x = b.leaf(0, Scalar::F32);
        b.cast(x, Scalar::F32)
    }),
    ("a + b -> sum in normal form", |b| {
        let (x, y, c) = (
            b.leaf(0, Scalar::U32),
            b.leaf(1, Scalar::U32),
            b.int_of(Scalar::U32, 4_294_967_295),
        );
        let z = b.op(Op::Mul, &[x, c]);
        let z = b.op(Op::Add, &[y, z]);
        b.op(Op::Add, &[z, x])
    }),
    ("(x / c)*c + x % c -> x", |b| {
        let (x, y, c, k) = (
            b.var("x", -1000, 1000),
            b.var("y", -9, 9),
            b.int(7),
            b.int(-3),
        );
        let (whole, rest) = (b.op(Op::IDiv, &[x, c]), b.op(Op::Mod, &[x, c]));
        let (by, rest) = (b.op(Op::Mul, &[c, k]), b.op(Op::Mul, &[rest, k]));
        let whole = b.op(Op::Mul, &[whole, by]);
        let sum = b.op(Op::Add, &[whole, y]);
        b.op(Op::Add, &[sum, rest])
    }),
    ("c * (a + b) -> c*a + c*b", |b| {
        let (x, y, c) = (
            b.leaf(0, Scalar::I32),
            b.leaf(1, Scalar::I32),
            b.int_of(Scalar::I32, 65536),
        );
        let s = b.op(Op::Add, &[x, y]);
        let s = b.op(Op::Mul, &[s, c]);
        b.op(Op::Mul, &[s, c])
    }),
    ("(c*a + r) / c -> a + r/c", |b| {
        let (x, y, c) = (b.var("x", -9, 9), b.var("y", 0, 7), b.int(8));
        let s = b.op(Op::Mul, &[x, c]);
        let s = b.op(Op::Add, &[s, y]);
        b.op(Op::IDiv, &[s, c])
    }),
    ("(c*a + r) / c -> a + r/c", |b| {
        let (x, y) = (b.var("x", -9, 9), b.var("y", -100, 100));
        let (six, ten, fifteen) = (b.int(6), b.int(-10), b.int(15));
        let (p, q, two) = (b.op(Op::Mul, &[x, six]), b.op(Op::Mul, &[y, ten]), b.int(2));
        let s = b.op(Op::Add, &[p, q]);
        let d = b.op(Op::Mul, &[fifteen, two]);
        b.op(Op::IDiv, &[s, d])
    }),
    ("(x / a) / b -> x / (a*b)", |b| {
        let (x, p, q) = (b.var("x", -1000, 1000), b.int(3), b.int(7));
        let x = b.op(Op::IDiv, &[x, p]);
        b.op(Op::IDiv, &[x, q])
    }),
    ("(c*a + r) % c -> r % c", |b| {
        let (x, y, c) = (b.var("x", -9, 9), b.var("y", -30, 70), b.int(8));
        let s = b.op(Op::Mul, &[x, c]);
        let s = b.op(Op::Add, &[s, y]);
        b.op(Op::Mod, &[s, c])
    }),
    ("(x % (a*b)) % b -> x % b", |b| {
        let (x, p, q) = (b.leaf(0, Scalar::I64), b.int(21), b.int(7));
        let x = b.op(Op::Mod, &[x, p]);
        b.op(Op::Mod, &[x, q])
    }),
    ("(x % (a*b)) / b -> (x / b) % a", |b| {
        let (x, p, q) = (b.leaf(0, Scalar::I64), b.int(21), b.int(7));
        let x = b.op(Op::Mod, &[x, p]);
        b.op(Op::IDiv, &[x, q])
    }),
    ("x << c -> x * 2^c (indices)", |b| {
        let (x, c) = (b.leaf(0, Scalar::I64), b.int(5));
        b.op(Op::Shl, &[x, c])
    }),
    ("x < c -> sums of like terms compared", |b| {
        let (x, y, c) = (b.var("x", -50, 50), b.var("y", 0, 7), b.int(8));
        let p = b.op(Op::Add, &[x, y]);
        let q = b.op(Op::Add, &[x, c]);
        b.op(Op::Lt, &[p, q])
    }),
    (
        "narrow(a + b) -> narrow(a) + narrow(b) where all fit",
        |b| {
            let (x, y, c) = (b.var("x", -50, 50), b.var("y", 0, 70000), b.int(13));
            let y = b.op(Op::Mul, &[y, c]);
            let s = b.op(Op::Add, &[x, y]);
            b.cast(s, Scalar::I32)
        },
    ),
];

/// Left sides that resemble a rule's, where it must not apply or must apply with care.
/// Each was wrong once.
const TRAPS: &[(&str, Case)] = &[
    ("a product that wraps does not divide back", |b| {
        let (x, c) = (b.leaf(0, Scalar::I32), b.int_of(Scalar::I32, 65536));
        let x = b.op(Op::Mul, &[x, c]);
        b.op(Op::IDiv, &[x, c])
    }),
    ("the same of an unbounded i64", |b| {
        let (x, y, c) = (b.leaf(0, Scalar::I64), b.leaf(1, Scalar::I64), b.int(48));
        let x = b.op(Op::Mul, &[x, c]);
        let x = b.op(Op::Add, &[x, y]);
        b.op(Op::Mod, &[x, c])
    }),
    ("x < x + 1 is false at the end", |b| {
        let (x, c) = (b.leaf(0, Scalar::I64), b.int(1));
        let y = b.op(Op::Add, &[x, c]);
        b.op(Op::Lt, &[x, y])
    }),
    ("i64 -> f64 -> i64 rounds", |b| {
        let x = b.leaf(0, Scalar::I64);
        let x = b.cast(x, Scalar::F64);
        b.cast(x, Scalar::I64)
    }),
    ("i32 -> f64 -> i8 saturates", |b| {
        let x = b.leaf(0, Scalar::I32);
        let x = b.cast(x, Scalar::F64);
        b.cast(x, Scalar::I8)
    }),
    ("bounded i64 -> f64 -> f32 rounds twice", |b| {
        let x = b.var("x", 0, i64::MAX / 2);
        let x = b.cast(x, Scalar::F64);
        b.cast(x, Scalar::F32)
    }),
    ("(x / a) / b where a*b does not fit", |b| {
        let (x, c) = (b.leaf(0, Scalar::I32), b.int_of(Scalar::I32, 65536));
        let x = b.op(Op::IDiv, &[x, c]);
        b.op(Op::IDiv, &[x, c])
    }),
    ("a shift by the whole width", |b| {
        let (x, c) = (b.leaf(0, Scalar::I64), b.int(40));
        let x = b.op(Op::Shr, &[x, c]);
        b.op(Op::Shr, &[x, c])
    }),
    ("extreme bounds", |b| {
        let (x, y) = (b.var("x", 0, i64::MAX), b.var("y", i64::MIN, i64::MAX));
        let p = b.op(Op::Or, &[x, y]);
        let q = b.op(Op::Xor, &[x, x]);
        let s = b.op(Op::Add, &[p, q]);
        let m = b.int(-1);
        let s = b.op(Op::Mul, &[s, m]);
        b.op(Op::Lt, &[s, x])
    }),
];

/// Compares a case built with and without the rules; returns the builder, or a
/// description of the difference.
///
/// `right` may modify the result of the rules first.
fn compared(
    name: &str,
    case: Case,
    points: usize,
    right: fn(&mut Builder, Id) -> Id,
) -> Result<Builder, String> {
    let (mut raw, mut built) = (Builder::new(true), Builder::new(false));
    let (l, r) = (case(&mut raw), case(&mut built));
    let r = right(&mut built, r);
    let mut random = Random(name.len() as u64);
    for _ in 0..points {
        let mut leaves = Leaves::default();
        let left = evaluate(&raw.g, l, &mut leaves, &mut random)[&l];
        let right = evaluate(&built.g, r, &mut leaves, &mut random)[&r];
        let Some(left) = left else { continue };
        if !right.is_some_and(|right| same(left, right)) {
            return Err(format!(
                "{name}: {left:?} became {right:?} for {:?}\n{}---\n{}",
                leaves.0,
                text::print(&raw.g, &[l]),
                text::print(&built.g, &[r])
            ));
        }
    }
    Ok(built)
}

fn compare(name: &str, case: Case, points: usize) -> Builder {
    compared(name, case, points, |_, right| right).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_rule_fires_and_keeps_values() {
    for (number, name) in rules::names().iter().enumerate() {
        let cases: Vec<_> = CASES.iter().filter(|c| c.0 == *name).collect();
        assert!(!cases.is_empty(), "no case for the rule `{name}`");
        for (_, case) in cases {
            let built = compare(name, *case, POINTS);
            assert!(
                built.g.fired.get(number).is_some_and(|&n| n > 0),
                "`{name}` did not fire"
            );
        }
    }
    for (name, _) in CASES {
        assert!(
            rules::names().contains(name),
            "a case for `{name}`, which is no rule"
        );
    }
}

/// A wrong result of a rule, off by the smallest amount of its type, is caught by
/// each of its cases.
#[test]
fn a_wrong_rule_is_caught_by_its_own_cases() {
    for (name, case) in CASES {
        let wrong = compared(name, *case, POINTS, |b, right| {
            let scalar = b.g.scalar(right);
            let one = if scalar.is_float() {
                b.float_of(scalar, 1.0)
            } else {
                b.int_of(scalar, 1)
            };
            let op = if scalar == Scalar::Bool {
                Op::Xor
            } else {
                Op::Add
            };
            b.g.intern(Node {
                op,
                dtype: scalar.one(),
                src: smallvec![right, one],
                arg: Arg::None,
            })
        });
        assert!(wrong.is_err(), "`{name}` may be wrong by one");
    }
}

#[test]
fn rules_keep_out_of_traps() {
    for (name, case) in TRAPS {
        compare(name, *case, 2000);
    }
}

#[test]
fn a_tensor_stays_a_tensor() {
    let cases: &[Case] = &[
        |b| {
            let (x, c) = (b.tensor(0, Scalar::I32, &[4]), b.int_of(Scalar::I32, 0));
            b.op(Op::And, &[x, c])
        },
        |b| {
            let four = b.int(4);
            let i = b.node(Op::Iota, Scalar::I64, &[four], Arg::Axes(smallvec![0]));
            b.op(Op::Lt, &[i, four])
        },
        |b| {
            let (c, x) = (b.tensor(0, Scalar::Bool, &[4]), b.leaf(1, Scalar::F32));
            b.op(Op::Where, &[c, x, x])
        },
        |b| {
            let (x, m) = (b.tensor(0, Scalar::I32, &[4]), b.int_of(Scalar::I32, -1));
            let y = b.op(Op::Mul, &[x, m]);
            b.op(Op::Add, &[x, y])
        },
    ];
    for case in cases {
        let mut b = Builder::new(false);
        let id = case(&mut b);
        assert_eq!(
            b.g.show_dims(&b.g.shape(id)),
            "[4]",
            "{}",
            text::print(&b.g, &[id])
        );
    }
}

/// A step of a random expression: an op on earlier values, or a leaf.
#[derive(Clone, Debug)]
enum Step {
    Leaf(u8),
    Const(Scalar, i64),
    Op(Op, Vec<usize>),
    Cast(usize, Scalar),
}

fn scalar_of(
    steps: &[(Step, Scalar)],
    r: &mut Random,
    wanted: impl Fn(Scalar) -> bool,
) -> Option<usize> {
    let found: Vec<usize> = (0..steps.len()).filter(|&i| wanted(steps[i].1)).collect();
    (!found.is_empty()).then(|| {
        if r.below(2) == 0 {
            found[found.len() - 1]
        } else {
            r.pick(&found)
        }
    })
}

const NUMBERS: &[i64] = &[
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    12,
    16,
    18,
    24,
    32,
    64,
    100,
    255,
    256,
    4096,
    65536,
    1 << 31,
    -1,
    -2,
    -3,
    -4,
    -8,
    -16,
    -100,
];

fn random_steps(r: &mut Random, narrow: bool) -> Vec<(Step, Scalar)> {
    let mut steps: Vec<(Step, Scalar)> = (0..6).map(|i| (Step::Leaf(i), Scalar::I64)).collect();
    if narrow {
        steps.extend((6..10).map(|i| {
            (
                Step::Leaf(i),
                [Scalar::I32, Scalar::U8, Scalar::U32, Scalar::I64][i as usize - 6],
            )
        }));
    }
    for _ in 0..4 + r.below(14) {
        let ints = |s: Scalar| s.is_int();
        let Some(a) = scalar_of(&steps, r, ints) else {
            continue;
        };
        let s = steps[a].1;
        let fits = |v: i64| Value::Int(v).stored_as(s).int();
        let constant = |r: &mut Random, steps: &mut Vec<(Step, Scalar)>, positive: bool| {
            let mut v = fits(r.pick(NUMBERS));
            if positive && v <= 0 {
                v = 1 + r.below(9) as i64;
            }
            steps.push((Step::Const(s, v), s));
            steps.len() - 1
        };
        let step = match r.below(16) {
            0..=2 => {
                let b = scalar_of(&steps, r, |t| t == s).unwrap_or(a);
                (Step::Op(Op::Add, vec![a, b]), s)
            }
            3..=5 => (
                Step::Op(
                    r.pick(&[Op::Mul, Op::Add, Op::Mul]),
                    vec![a, constant(r, &mut steps, false)],
                ),
                s,
            ),
            6 | 7 => (
                Step::Op(Op::IDiv, vec![a, constant(r, &mut steps, true)]),
                s,
            ),
            8 | 9 => (Step::Op(Op::Mod, vec![a, constant(r, &mut steps, true)]), s),
            10 => {
                let b = scalar_of(&steps, r, |t| t == s).unwrap_or(a);
                (
                    Step::Op(
                        r.pick(&[Op::Max, Op::Min, Op::Mul, Op::IDiv, Op::Mod]),
                        vec![a, b],
                    ),
                    s,
                )
            }
            11 => {
                let b = if r.below(2) == 0 {
                    constant(r, &mut steps, false)
                } else {
                    scalar_of(&steps, r, |t| t == s).unwrap_or(a)
                };
                (
                    Step::Op(
                        r.pick(&[Op::Lt, Op::Eq]),
                        if r.below(2) == 0 {
                            vec![a, b]
                        } else {
                            vec![b, a]
                        },
                    ),
                    Scalar::Bool,
                )
            }
            12 => {
                let Some(c) = scalar_of(&steps, r, |t| t == Scalar::Bool) else {
                    continue;
                };
                let b = scalar_of(&steps, r, |t| t == s).unwrap_or(a);
                (Step::Op(Op::Where, vec![c, a, b]), s)
            }
            13 => {
                steps.push((Step::Const(s, r.below(8 * s.bytes()) as i64), s));
                (
                    Step::Op(r.pick(&[Op::Shl, Op::Shr]), vec![a, steps.len() - 1]),
                    s,
                )
            }
            14 => {
                let b = if r.below(2) == 0 {
                    constant(r, &mut steps, false)
                } else {
                    scalar_of(&steps, r, |t| t == s).unwrap_or(a)
                };
                (Step::Op(r.pick(&[Op::And, Op::Or, Op::Xor]), vec![a, b]), s)
            }
            _ => {
                let any = r.below(steps.len());
                let to = r.pick(&[
                    Scalar::I64,
                    Scalar::I32,
                    Scalar::I32,
                    Scalar::U8,
                    Scalar::I8,
                    Scalar::Bool,
                    Scalar::F32,
                ]);
                let from = steps[any].1;
                if from.is_float() || from == to {
                    continue;
                } else {
                    (Step::Cast(any, to), to)
                }
            }
        };
        steps.push(step);
    }
    steps
}

fn build_steps(b: &mut Builder, steps: &[(Step, Scalar)]) -> Vec<Id> {
    let mut ids: Vec<Id> = Vec::new();
    for (step, _) in steps {
        let id = match step {
            Step::Leaf(0) => b.range(0, 32),
            Step::Leaf(1) => b.range(1, 7),
            Step::Leaf(2) => b.var("pos", 0, 4095),
            Step::Leaf(3) => b.var("delta", -40, 25),
            Step::Leaf(4) => b.range(4, 1),
            Step::Leaf(5) => {
                let five = b.int(5);
                b.node(Op::Iota, Scalar::I64, &[five], Arg::Axes(smallvec![0]))
            }
            Step::Leaf(6) => b.leaf(0, Scalar::I32),
            Step::Leaf(7) => b.leaf(1, Scalar::U8),
            Step::Leaf(8) => b.leaf(2, Scalar::U32),
            Step::Leaf(_) => b.leaf(3, Scalar::I64),
            Step::Const(s, v) => b.int_of(*s, *v),
            Step::Cast(x, to) => b.cast(ids[*x], *to),
            Step::Op(op, src) => {
                let src: Vec<Id> = src.iter().map(|&i| ids[i]).collect();
                b.op(*op, &src)
            }
        };
        ids.push(id);
    }
    ids
}

/// Runs random programs; `GRISTMILL_FUZZ` multiplies their number and changes the seed.
fn fuzz(seed: u64, programs: usize, narrow: bool) {
    let more = std::env::var("GRISTMILL_FUZZ")
        .ok()
        .and_then(|v| v.parse::<usize>().ok());
    let (mut r, programs) = (
        Random(seed + 1000 * more.unwrap_or(0) as u64),
        programs * more.unwrap_or(1),
    );
    for _ in 0..programs {
        let steps = random_steps(&mut r, narrow);
        let (mut raw, mut built) = (Builder::new(true), Builder::new(false));
        let (left, right) = (
            build_steps(&mut raw, &steps),
            build_steps(&mut built, &steps),
        );
        for (l, r) in left.iter().zip(&right) {
            assert_eq!(
                raw.g.dims(*l).len(),
                built.g.dims(*r).len(),
                "{}",
                text::print(&raw.g, &[*l])
            );
        }
        for _ in 0..24 {
            let mut leaves = Leaves::default();
            for (&l, &rt) in left.iter().zip(&right).skip(6) {
                let a = evaluate(&raw.g, l, &mut leaves, &mut r);
                let b = evaluate(&built.g, rt, &mut leaves, &mut r);
                let show = || {
                    format!(
                        "{:?}\n{}---\n{}",
                        leaves.0,
                        text::print(&raw.g, &[l]),
                        text::print(&built.g, &[rt])
                    )
                };
                if let Some(x) = a[&l] {
                    assert!(
                        b[&rt].is_some_and(|y| same(x, y)),
                        "{x:?} became {:?}: {}",
                        b[&rt],
                        show()
                    );
                    for (g, values) in [(&raw.g, &a), (&built.g, &b)] {
                        for (&id, &v) in values {
                            if let (Some((lo, hi)), Some(Value::Int(v))) = (g.bounds(id), v) {
                                assert!(
                                    (lo..=hi).contains(&v),
                                    "{v} is not in {lo}..={hi} at {}: {}",
                                    text::print_node(g, id),
                                    show()
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn random_index_expressions_keep_their_values() {
    fuzz(1, 1500, false);
}

#[test]
fn random_expressions_of_every_width_keep_their_values() {
    fuzz(2, 1500, true);
}

#[test]
fn long_sums_stay_small() {
    let start = std::time::Instant::now();
    let mut b = Builder::new(false);
    let vars: Vec<Id> = (0..200).map(|i| b.var(&format!("v{i}"), 0, 100)).collect();
    let mut sum = b.int(7);
    for (i, &v) in vars.iter().enumerate().rev() {
        let c = b.int(16 * (i as i64 % 5) + 1);
        let t = b.op(Op::Mul, &[v, c]);
        sum = b.op(Op::Add, &[sum, t]);
    }
    let c = b.int(16);
    let (q, m) = (b.op(Op::IDiv, &[sum, c]), b.op(Op::Mod, &[sum, c]));
    let all = b.op(Op::Add, &[q, m]);
    assert!(b.g.toposort(&[all]).len() < 2000);
    assert!(b.g.len() < 60_000, "{} nodes", b.g.len());
    // Repeated doubling: 2^60 paths through 60 nodes, for scalars, tensors and floats.
    let (mut x, mut y) = (b.leaf(0, Scalar::F32), b.tensor(1, Scalar::F32, &[4]));
    let mut z = b.leaf(2, Scalar::I64);
    for _ in 0..60 {
        (x, y, z) = (
            b.op(Op::Add, &[x, x]),
            b.op(Op::Mul, &[y, y]),
            b.op(Op::Add, &[z, z]),
        );
    }
    assert_eq!(b.g.shape(y).len(), 1);
    assert!(start.elapsed().as_secs() < 5);
}

#[test]
fn floats_beside_the_middle_of_two_halves_are_rounded_to_the_nearer() {
    let stored = |v: f64, s| Value::Float(v).stored_as(s).float();
    // A midpoint with an even lower neighbour, and the spacing of f16 values.
    for (scalar, below, step) in [
        (Scalar::BF16, 0.875, 1.0 / 256.0),
        (Scalar::F16, 0.875, 1.0 / 2048.0),
    ] {
        let middle = below + step / 2.0;
        for sign in [1.0, -1.0] {
            assert_eq!(stored(sign * middle, scalar), sign * below);
            for little in [2f64.powi(-24), 2f64.powi(-50)] {
                assert_eq!(
                    stored(sign * (middle + little), scalar),
                    sign * (below + step),
                    "{scalar:?}, {little:e}"
                );
                assert_eq!(
                    stored(sign * (middle - little), scalar),
                    sign * below,
                    "{scalar:?}, {little:e}"
                );
            }
        }
    }
    // Above the largest, below the smallest, and NaN.
    assert_eq!(stored(1e300, Scalar::BF16), f64::INFINITY);
    assert_eq!(stored(-1e-300, Scalar::F16), 0.0);
    assert!(stored(f64::NAN, Scalar::BF16).is_nan());
}
