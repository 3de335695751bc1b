//! Tests of the int8 dot-product rules (`rules::dot`) and of lane lifting (`rules::lift`). Each
//! rule fires in a case of the same name, and both sides agree on random bytes. Lifted words agree
//! with the expression of each byte, and all rules together turn a contraction into `DOT4`.

mod common;

use common::Random;
use gristmill_uop::fold::{self, Value};
use gristmill_uop::rules::{self, Rule, dot, lift};
use gristmill_uop::{Arg, Encoding, Graph, Id, Node, Op, RangeKind, ReduceOp, Scalar, text};
use half::f16;
use std::cell::Cell;
use std::collections::HashMap;

/// Contents of buffers, by slot.
type Memory = HashMap<u32, Vec<u8>>;

/// Evaluates a kernel-level scalar expression: runs loops, reads buffers.
struct Run<'a> {
    g: &'a Graph,
    memory: &'a Memory,
    ranges: HashMap<Id, i64>,
    known: HashMap<Id, Value>,
}

fn run(g: &Graph, root: Id, memory: &Memory, ranges: &[(Id, i64)]) -> Value {
    Run {
        g,
        memory,
        ranges: ranges.iter().copied().collect(),
        known: HashMap::new(),
    }
    .value(root)
}

impl Run<'_> {
    fn value(&mut self, id: Id) -> Value {
        if let Some(&v) = self.known.get(&id) {
            return v;
        }
        let n = &self.g[id];
        let v = match (n.op, &n.arg) {
            (Op::Const, Arg::Int(v)) => Value::Int(*v),
            (Op::Const, Arg::Float(b)) => Value::Float(f64::from_bits(*b)),
            (Op::Range, _) => Value::Int(self.ranges[&id]),
            (Op::Load, _) => {
                let (Arg::Param(slot) | Arg::Packed(slot, _)) = self.g[n.src[0]].arg else {
                    panic!("no buffer")
                };
                let unit = if matches!(self.g[n.src[0]].arg, Arg::Packed(..)) {
                    1
                } else {
                    self.g.scalar(n.src[0]).bytes()
                };
                let at = self.value(n.src[1]).int() as usize * unit;
                let mut bytes = [0; 8];
                let size = n.dtype.scalar.bytes();
                bytes[..size].copy_from_slice(&self.memory[&slot][at..at + size]);
                let bits = u64::from_le_bytes(bytes);
                match n.dtype.scalar {
                    Scalar::F32 => Value::Float(f64::from(f32::from_bits(bits as u32))),
                    Scalar::F16 => Value::Float(f16::from_bits(bits as u16).to_f64()),
                    s => Value::Int(bits as i64).stored_as(s),
                }
            }
            (Op::Table, Arg::Ints(t)) => Value::Int(t[self.value(n.src[0]).int() as usize] as i64),
            (Op::Table4, Arg::Ints(t)) => {
                let w = self.value(n.src[0]).int();
                Value::Int(
                    (0..4)
                        .map(|i| (t[(w >> (8 * i) & 255) as usize] as i64) << (8 * i))
                        .sum(),
                )
            }
            (Op::Reduce, Arg::Reduce(ReduceOp::Add, _)) => {
                let bounds: Vec<i64> = n.src[1..]
                    .iter()
                    .map(|&r| self.g.int_value(self.g[r].src[0]).unwrap())
                    .collect();
                let zero = if n.dtype.scalar.is_float() {
                    Value::Float(0.0)
                } else {
                    Value::Int(0)
                };
                let mut sum = zero;
                for mut i in 0..bounds.iter().product() {
                    let mut inner = Run {
                        g: self.g,
                        memory: self.memory,
                        ranges: self.ranges.clone(),
                        known: HashMap::new(),
                    };
                    for (&r, b) in n.src[1..].iter().zip(&bounds).rev() {
                        inner.ranges.insert(r, i % b);
                        i /= b;
                    }
                    let v = inner.value(n.src[0]);
                    sum = fold::apply(Op::Add, &[sum, v], n.dtype.scalar).unwrap();
                }
                sum
            }
            _ => {
                let x: Vec<Value> = n.src.iter().map(|&s| self.value(s)).collect();
                fold::apply(n.op, &x, n.dtype.scalar)
                    .unwrap_or_else(|| panic!("{}", text::print_node(self.g, id)))
            }
        };
        self.known.insert(id, v);
        v
    }
}

/// Random contents: slots 0 to 3 hold bytes, slots 4 to 7 floats between -1 and 1. The f16 at the
/// start of each 18-byte block of slot 0 has a moderate size.
fn memory(r: &mut Random) -> Memory {
    let mut m = Memory::new();
    for slot in 0..4 {
        let mut bytes: Vec<u8> = (0..512).map(|_| r.next() as u8).collect();
        if slot == 0 {
            for at in (0..500).step_by(18) {
                let d = f16::from_f64(((r.next() >> 40) as f64 / f64::from(1 << 24) - 0.5) * 0.1);
                bytes[at..at + 2].copy_from_slice(&d.to_le_bytes());
            }
        }
        m.insert(slot, bytes);
    }
    for slot in 4..8 {
        let float = |r: &mut Random| (r.next() >> 40) as f32 / (1 << 23) as f32 - 1.0;
        m.insert(
            slot,
            (0..128).flat_map(|_| float(r).to_le_bytes()).collect(),
        );
    }
    m
}

/// Returns whether integers are equal, and floats equal up to the rounding of
/// their order of additions.
fn agree(a: Value, b: Value) -> bool {
    match (a, b) {
        (Value::Float(a), Value::Float(b)) => (a - b).abs() <= 1e-5 * a.abs().max(b.abs()).max(1.0),
        _ => a == b,
    }
}

fn range(g: &mut Graph, number: u32, bound: i64) -> Id {
    let bound = g.int(bound);
    g.range(bound, number, RangeKind::Unroll)
}

fn read(g: &mut Graph, slot: u32, at: Id, s: Scalar) -> Id {
    let most = g.int(512);
    let buffer = g.param(slot, &[most], s);
    g.load(buffer, at, s)
}

/// Builds `a·step + b`.
fn at(g: &mut Graph, a: Id, step: i64, b: Id) -> Id {
    let step = g.int(step);
    let a = g.mul(a, step);
    g.add(a, b)
}

fn sum(g: &mut Graph, x: Id, ranges: &[Id]) -> Id {
    g.reduce_ranges(x, ranges, ReduceOp::Add)
}

/// Reads a byte of slot `slot` as i32.
fn byte_of(g: &mut Graph, slot: u32, k: Id, s: Scalar) -> Id {
    let x = read(g, slot, k, s);
    g.cast(x, Scalar::I32)
}

type Case = fn(&mut Graph) -> Id;

/// Left sides of rules; at least one case per rule.
const CASES: &[(&str, Case)] = &[
    (
        "sum((a + b)*x) -> sum(a*x) + sum(b*x), b free of the ranges",
        |g| {
            let (k, zero) = (range(g, 0, 32), g.int(0));
            let (a, b, x) = (
                read(g, 4, k, Scalar::F32),
                read(g, 5, zero, Scalar::F32),
                read(g, 6, k, Scalar::F32),
            );
            let s = g.add(a, b);
            let p = g.mul(s, x);
            sum(g, p, &[k])
        },
    ),
    (
        "sum((a + b)*x) -> sum(a*x) + sum(b*x), b free of the ranges",
        |g| {
            let (k, zero) = (range(g, 0, 32), g.int(0));
            let (a, b, x) = (
                read(g, 4, k, Scalar::F32),
                read(g, 5, zero, Scalar::F32),
                read(g, 6, k, Scalar::F32),
            );
            let s = g.sub(b, a);
            let minus = g.neg(x);
            let p = g.mul(s, minus);
            sum(g, p, &[k])
        },
    ),
    (
        "sum((a + b)*x) -> sum(a*x) + sum(b*x), b free of the ranges",
        |g| {
            let k = range(g, 0, 32);
            let (a, x) = (byte_of(g, 0, k, Scalar::U8), byte_of(g, 1, k, Scalar::I8));
            let minus = g.int_of(Scalar::I32, -8);
            let s = g.add(a, minus);
            let p = g.mul(s, x);
            sum(g, p, &[k])
        },
    ),
    ("sum(f*x) -> f*sum(x), f free of the ranges", |g| {
        let (k, zero) = (range(g, 0, 32), g.int(0));
        let (f, x, y) = (
            read(g, 4, zero, Scalar::F32),
            read(g, 5, k, Scalar::F32),
            read(g, 6, k, Scalar::F32),
        );
        let p = g.mul(x, f);
        let p = g.mul(p, y);
        sum(g, p, &[k])
    }),
    ("sum(f*x) -> f*sum(x), f free of the ranges", |g| {
        let k = range(g, 0, 32);
        let x = read(g, 5, k, Scalar::F32);
        let p = g.neg(x);
        sum(g, p, &[k])
    }),
    (
        "sum(float(a)*float(b)) -> float(sum(a*b)) where exact",
        |g| {
            let k = range(g, 0, 32);
            let (a, b) = (read(g, 0, k, Scalar::U8), read(g, 1, k, Scalar::I8));
            let (a, b) = (g.cast(a, Scalar::F32), g.cast(b, Scalar::F32));
            let p = g.mul(a, b);
            sum(g, p, &[k])
        },
    ),
    (
        "sum(float(a)*float(b)) -> float(sum(a*b)) where exact",
        |g| {
            let k = range(g, 0, 128);
            let a = read(g, 1, k, Scalar::I8);
            let p = g.cast(a, Scalar::F32);
            sum(g, p, &[k])
        },
    ),
    ("sum(table[i]*b) -> sum((table - c)[i]*b) + c*sum(b)", |g| {
        let k = range(g, 0, 32);
        let (i, b) = (byte_of(g, 0, k, Scalar::U8), byte_of(g, 1, k, Scalar::I8));
        let low = g.int_of(Scalar::I32, 3);
        let i = g.and(i, low);
        let t = g.table(i, &[-29, 4, -128, 77]);
        let p = g.mul(b, t);
        sum(g, p, &[k])
    }),
    ("sum(a*b) of bytes -> sum(dot4(words))", |g| {
        let (quad, byte) = (range(g, 0, 8), range(g, 1, 4));
        let k = at(g, quad, 4, byte);
        let (a, b) = (byte_of(g, 0, k, Scalar::U8), byte_of(g, 1, k, Scalar::I8));
        let p = g.mul(b, a);
        sum(g, p, &[quad, byte])
    }),
    ("sum(a*b) of bytes -> sum(dot4(words))", |g| {
        let byte = range(g, 1, 4);
        let (a, b) = (
            byte_of(g, 0, byte, Scalar::U8),
            byte_of(g, 1, byte, Scalar::I8),
        );
        let mask = g.int_of(Scalar::I32, 15);
        let a = g.and(a, mask);
        let p = g.mul(a, b);
        sum(g, p, &[byte])
    }),
    (dot::SIGNED, |g| {
        let (quad, byte) = (range(g, 0, 8), range(g, 1, 4));
        let k = at(g, quad, 4, byte);
        let (a, b) = (byte_of(g, 0, k, Scalar::U8), byte_of(g, 1, k, Scalar::I8));
        let (mask, zero) = (g.int_of(Scalar::I32, 15), g.int_of(Scalar::I32, -8));
        let a = g.and(a, mask);
        let a = g.add(a, zero);
        let p = g.mul(b, a);
        sum(g, p, &[quad, byte])
    }),
    (dot::SIGNED, |g| {
        let (quad, byte) = (range(g, 0, 8), range(g, 1, 4));
        let k = at(g, quad, 4, byte);
        let (a, b) = (byte_of(g, 0, k, Scalar::U8), byte_of(g, 1, k, Scalar::I8));
        // Not half of a power of two: the zero point is subtracted from the bytes.
        let (mask, zero) = (g.int_of(Scalar::I32, 31), g.int_of(Scalar::I32, -13));
        let a = g.and(a, mask);
        let a = g.add(a, zero);
        let p = g.mul(a, b);
        sum(g, p, &[quad, byte])
    }),
    (dot::ROWS, |g| {
        let (quad, byte) = (range(g, 0, 8), range(g, 1, 4));
        let k = at(g, quad, 4, byte);
        let (a, b) = (byte_of(g, 0, k, Scalar::I8), byte_of(g, 1, k, Scalar::I8));
        let p = g.mul(a, b);
        sum(g, p, &[quad, byte])
    }),
    (dot::SIGNED, |g| {
        let byte = range(g, 1, 4);
        let (a, b) = (
            byte_of(g, 0, byte, Scalar::U8),
            byte_of(g, 1, byte, Scalar::I8),
        );
        let zero = g.int_of(Scalar::I32, -128);
        let a = g.add(a, zero);
        let p = g.mul(a, b);
        sum(g, p, &[byte])
    }),
];

/// Returns an error if the rule does not fire in a case or changes its value.
fn check(rule: &Rule, case: Case, random: &mut Random) -> Result<(), String> {
    let mut g = Graph::new();
    let left = case(&mut g);
    let node = g[left].clone();
    assert!(rule.ops.contains(&node.op));
    let right =
        (rule.apply)(&mut g, &node).ok_or_else(|| format!("`{}` did not fire", rule.name))?;
    for _ in 0..40 {
        let m = memory(random);
        let (l, r) = (run(&g, left, &m, &[]), run(&g, right, &m, &[]));
        if !agree(l, r) {
            return Err(format!(
                "{}: {l:?} became {r:?}\n{}",
                rule.name,
                text::print(&g, &[left, right])
            ));
        }
    }
    Ok(())
}

#[test]
fn every_rule_fires_and_keeps_values() {
    let mut random = Random(7);
    for rule in dot::RULES {
        let cases: Vec<_> = CASES.iter().filter(|c| c.0 == rule.name).collect();
        assert!(!cases.is_empty(), "no case for the rule `{}`", rule.name);
        for (_, case) in cases {
            assert_eq!(check(rule, *case, &mut random), Ok(()));
        }
    }
    for (name, _) in CASES {
        assert!(
            dot::RULES.iter().any(|r| r.name == *name),
            "a case for `{name}`, which is no rule"
        );
    }
}

thread_local! {
    /// Number of the rule that the wrong rule modifies.
    static SPOILT: Cell<usize> = const { Cell::new(0) };
}

#[test]
fn a_wrong_rule_is_caught_by_its_own_cases() {
    for (number, rule) in dot::RULES.iter().enumerate() {
        SPOILT.set(number);
        let apply = |g: &mut Graph, node: &Node| {
            let right = (dot::RULES[SPOILT.get()].apply)(g, node)?;
            Some(g.neg(right))
        };
        let wrong = Rule {
            name: rule.name,
            ops: rule.ops,
            apply,
        };
        for (name, case) in CASES.iter().filter(|c| c.0 == rule.name) {
            let error = check(&wrong, *case, &mut Random(7)).expect_err("a wrong rule");
            assert!(error.contains("became"), "{name}: {error}");
        }
    }
}

#[test]
fn rules_keep_out_of_traps() {
    let nothing = |g: &mut Graph, root: Id, name: &str| {
        let node = g[root].clone();
        let rule = dot::RULES
            .iter()
            .find(|r| r.name.starts_with(name))
            .unwrap();
        assert!(
            (rule.apply)(g, &node).is_none(),
            "{}",
            text::print(g, &[root])
        );
    };
    // Sums that may not fit in an i32.
    let mut g = Graph::new();
    let k = range(&mut g, 0, 1 << 17);
    let (a, b) = (
        read(&mut g, 0, k, Scalar::U8),
        read(&mut g, 1, k, Scalar::I8),
    );
    let (a, b) = (g.cast(a, Scalar::F32), g.cast(b, Scalar::F32));
    let p = g.mul(a, b);
    let s = sum(&mut g, p, &[k]);
    nothing(&mut g, s, "sum(float");
    // Two signed factors; a last range of a length other than four; a maximum.
    let k = range(&mut g, 1, 4);
    let (a, b) = (
        byte_of(&mut g, 0, k, Scalar::I8),
        byte_of(&mut g, 1, k, Scalar::I8),
    );
    let p = g.mul(a, b);
    let s = sum(&mut g, p, &[k]);
    nothing(&mut g, s, "sum(a*b)");
    let k = range(&mut g, 2, 8);
    let (a, b) = (
        byte_of(&mut g, 0, k, Scalar::U8),
        byte_of(&mut g, 1, k, Scalar::I8),
    );
    let p = g.mul(a, b);
    let s = sum(&mut g, p, &[k]);
    nothing(&mut g, s, "sum(a*b)");
    let s = g.reduce_ranges(p, &[k], ReduceOp::Max);
    for rule in dot::RULES {
        nothing(&mut g, s, rule.name);
    }
}

/// Builds a random integer expression of a byte, and of constants where `depth` ends.
fn expression(g: &mut Graph, r: &mut Random, byte: Id, other: Id, depth: usize) -> Id {
    let constant = |g: &mut Graph, v: usize| g.int_of(Scalar::I32, v as i64);
    if depth == 0 || r.below(12) == 0 {
        return match r.below(5) {
            0 => constant(g, r.below(256)),
            1 => byte_of(g, 0, other, Scalar::U8),
            _ => {
                let step = r.pick(&[0, 4, 7]);
                let k = at(g, other, step, byte);
                let first = g.int(r.below(9) as i64);
                let k = g.add(k, first);
                byte_of(
                    g,
                    r.below(2) as u32,
                    k,
                    r.pick(&[Scalar::U8, Scalar::U8, Scalar::I8]),
                )
            }
        };
    }
    let a = expression(g, r, byte, other, depth - 1);
    match r.below(7) {
        0 => {
            let by = g.int_of(Scalar::I32, r.below(8) as i64);
            g.shr(a, by)
        }
        1 => {
            // A shift that depends on another range.
            let step = g.int(r.pick(&[1, 2]));
            let by = g.mul(other, step);
            g.shr(a, by)
        }
        2 => {
            let mask = constant(g, r.below(256));
            g.and(a, mask)
        }
        3 => {
            let b = expression(g, r, byte, other, depth - 1);
            g.or(a, b)
        }
        4 => {
            let b = expression(g, r, byte, other, depth - 1);
            g.xor(a, b)
        }
        5 => {
            let by = g.int_of(Scalar::I32, r.below(8) as i64);
            let x = g.shl(a, by);
            let low = constant(g, 255);
            g.and(x, low)
        }
        _ => {
            let low = constant(g, 15);
            let i = g.and(a, low);
            let t: Vec<i32> = (0..16).map(|_| r.below(256) as i32).collect();
            g.table(i, &t)
        }
    }
}

#[test]
fn words_hold_the_value_of_every_byte() {
    let mut r = Random(11);
    let mut lifted = 0;
    for _ in 0..3000 {
        let mut g = Graph::new();
        let (byte, other) = (range(&mut g, 0, 4), range(&mut g, 1, 3));
        let depth = r.below(5);
        let mut x = expression(&mut g, &mut r, byte, other, depth);
        if !g.within(x, -128, 255) {
            let low = g.int_of(Scalar::I32, 255);
            x = g.and(x, low);
        }
        let w = lift::word(&mut g, x, byte);
        assert_eq!(g.scalar(w), Scalar::U32);
        assert!(
            !g.free_ranges(w).contains(&byte),
            "{}",
            text::print(&g, &[w])
        );
        lifted += g.any(w, |g_, n| n.op == Op::Load && g.scalar(g_) == Scalar::U32) as usize;
        let m = memory(&mut r);
        for o in 0..3 {
            let word = run(&g, w, &m, &[(other, o)]).int();
            for i in 0..4 {
                let one = run(&g, x, &m, &[(other, o), (byte, i)]).int();
                assert_eq!(
                    word >> (8 * i) & 255,
                    one & 255,
                    "byte {i}\n{}",
                    text::print(&g, &[x, w])
                );
            }
        }
    }
    assert!(lifted > 1000, "{lifted} of 3000 read words");
}

/// 32 four-bit numbers with offset 8, one f16 scale.
static FOUR: Encoding = Encoding {
    name: "four",
    elements: 32,
    bytes: 18,
    value: |b| {
        let q = b.u8(b.k() % 16 + 2) >> (b.k() / 16 * 4) & 15;
        (q - 8) * b.f16(0)
    },
};
/// The same bits as indices into a table.
static TABLE: Encoding = Encoding {
    name: "table",
    elements: 32,
    bytes: 18,
    value: |b| {
        let q = b.u8(b.k() % 16 + 2) >> (b.k() / 16 * 4) & 15;
        q.of_table(&[
            -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
        ]) * b.f16(0)
    },
};

/// A row of three blocks times quantised activations.
fn contraction(g: &mut Graph, e: &'static Encoding) -> Id {
    let (block, half, quad, byte) = (
        range(g, 0, 3),
        range(g, 1, 2),
        range(g, 2, 4),
        range(g, 3, 4),
    );
    let zero = g.int(0);
    let k = at(g, quad, 4, byte);
    let k = at(g, half, 16, k);
    let all = at(g, block, 32, k);
    let base = at(g, block, e.bytes as i64, zero);
    let rows = g.packed(0, &[96], e);
    let w = e.decode(g, rows, base, k);
    let (q, d) = (read(g, 1, all, Scalar::I8), read(g, 4, block, Scalar::F32));
    let q = g.cast(q, Scalar::F32);
    let x = g.mul(q, d);
    let p = g.mul(w, x);
    let s = sum(g, p, &[half, quad, byte]);
    sum(g, s, &[block])
}

fn dots(g: &Graph, root: Id) -> usize {
    g.toposort(&[root])
        .into_iter()
        .filter(|&n| g[n].op == Op::Dot4)
        .count()
}

#[test]
fn a_contraction_becomes_dot4_by_all_the_rules() {
    let mut random = Random(3);
    // Excludes the rule for machines with `signed_codes`, which has its own test, and the rule for
    // rows without a zero point.
    let names = dot::RULES.iter().map(|r| r.name);
    let rules: Vec<&str> = names
        .filter(|name| ![dot::SIGNED, dot::ROWS].contains(name))
        .collect();
    let mut missed = rules.clone();
    for e in [&FOUR, &TABLE] {
        let mut g = Graph::new();
        let root = contraction(&mut g, e);
        let whole = dot::derive(&mut g, root, &|name| name != dot::SIGNED);
        assert!(dots(&g, whole) > 0, "{}", text::print(&g, &[whole]));
        // Fired rules are counted under their own names.
        let fired = rules::fired(&g);
        assert!(
            fired
                .iter()
                .any(|f| f.0.starts_with("sum(a*b) of bytes") && f.1 > 0),
            "{fired:?}"
        );
        assert_eq!(
            fired.iter().any(|f| f.0.starts_with("sum(table")),
            e.name == TABLE.name,
            "{fired:?}"
        );
        // Only the activations are summed byte by byte.
        let mut forms = vec![whole];
        for &rule in &rules {
            let without = dot::derive(&mut g, root, &|name| name != dot::SIGNED && name != rule);
            if without != whole {
                assert_eq!(dots(&g, without), 0, "{} without `{rule}`", e.name);
                missed.retain(|&m| m != rule);
                forms.push(without);
            }
        }
        for _ in 0..20 {
            let m = memory(&mut random);
            let want = run(&g, root, &m, &[]);
            for &form in &forms {
                let got = run(&g, form, &m, &[]);
                let near =
                    (want.float() - got.float()).abs() <= 1e-5 * want.float().abs().max(50.0);
                assert!(near, "{}: {want:?} became {got:?}", e.name);
            }
        }
    }
    assert!(missed.is_empty(), "never missed: {missed:?}");
}

#[test]
fn signed_bytes_need_no_sums_of_the_activations() {
    let mut random = Random(5);
    let mut g = Graph::new();
    let root = contraction(&mut g, &FOUR);
    let signed = dot::derive(&mut g, root, &|_| true);
    let order = g.toposort(&[signed]);
    assert!(
        order.iter().any(|&n| g[n].op == Op::SignedDot4),
        "{}",
        text::print(&g, &[signed])
    );
    // Nothing but products is summed over the bytes.
    assert!(!order.iter().any(|&n| g[n].op == Op::Dot4));
    for _ in 0..20 {
        let m = memory(&mut random);
        let (want, got) = (run(&g, root, &m, &[]), run(&g, signed, &m, &[]));
        let near = (want.float() - got.float()).abs() <= 1e-5 * want.float().abs().max(50.0);
        assert!(near, "{want:?} became {got:?}");
    }
}
