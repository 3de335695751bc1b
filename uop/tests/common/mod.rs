//! Shared test utilities: random numbers, and the evaluation of scalar expressions.
#![allow(dead_code, reason = "each test file uses its part")]

use gristmill_uop::fold::{self, Value};
use gristmill_uop::{Arg, DType, Graph, Id, Node, Op, RangeKind, Scalar, Sources};
use std::collections::HashMap;
use std::sync::Arc;

/// The splitmix64 pseudorandom generator.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
    /// Returns an integer in an interval, favouring its ends and numbers near zero.
    pub fn int(&mut self, lo: i64, hi: i64) -> i64 {
        match self.below(8) {
            0 => lo,
            1 => hi,
            2 | 3 => (self.below(41) as i64 - 20).clamp(lo, hi),
            _ => {
                (lo as i128 + (self.next() as i128).rem_euclid(hi as i128 - lo as i128 + 1)) as i64
            }
        }
    }
    pub fn float(&mut self) -> f64 {
        match self.below(10) {
            0 => self.pick(&[
                0.0,
                -0.0,
                1.0,
                -1.0,
                f64::INFINITY,
                f64::NEG_INFINITY,
                f64::NAN,
                2.5,
                -3.5,
                300.0,
            ]),
            1 => f32::from_bits(self.next() as u32) as f64,
            _ => (self.next() >> 40) as f64 / 4096.0 - 2048.0,
        }
    }
    /// Returns a random value of that type.
    pub fn value(&mut self, s: Scalar) -> Value {
        match s.range() {
            Some((lo, hi)) => Value::Int(self.int(lo, hi)),
            None => Value::Float(self.float()).stored_as(s),
        }
    }
}

/// Builds the same expression with or without the always-on rules.
pub struct Builder {
    pub g: Graph,
    pub raw: bool,
}

impl Builder {
    pub fn new(raw: bool) -> Builder {
        Builder {
            g: Graph::new(),
            raw,
        }
    }
    pub fn node(&mut self, op: Op, dtype: impl Into<DType>, src: &[Id], arg: Arg) -> Id {
        let node = Node {
            op,
            dtype: dtype.into(),
            src: Sources::from_slice(src),
            arg,
        };
        if self.raw {
            self.g.intern(node)
        } else {
            self.g.build(node.op, node.dtype, node.src, node.arg)
        }
    }
    pub fn op(&mut self, op: Op, src: &[Id]) -> Id {
        let dtype = match op {
            Op::Lt | Op::Eq => Scalar::Bool.one(),
            Op::Where => self.g[src[1]].dtype,
            _ => self.g[src[0]].dtype,
        };
        self.node(op, dtype, src, Arg::None)
    }
    pub fn var(&mut self, name: &str, lo: i64, hi: i64) -> Id {
        self.node(Op::Var, Scalar::I64, &[], Arg::Var(Arc::from(name), lo, hi))
    }
    /// A scalar leaf with an arbitrary value of that type.
    pub fn leaf(&mut self, slot: u32, s: Scalar) -> Id {
        self.node(Op::Param, s, &[], Arg::Param(slot))
    }
    /// A tensor leaf with one arbitrary value for all its elements.
    pub fn tensor(&mut self, slot: u32, s: Scalar, dims: &[i64]) -> Id {
        let dims: Vec<Id> = dims.iter().map(|&d| self.int(d)).collect();
        self.node(Op::Param, s, &dims, Arg::Param(slot))
    }
    pub fn range(&mut self, number: u32, bound: i64) -> Id {
        let bound = self.int(bound);
        self.node(
            Op::Range,
            Scalar::I64,
            &[bound],
            Arg::Range(number, RangeKind::Loop),
        )
    }
    pub fn int(&mut self, v: i64) -> Id {
        self.int_of(Scalar::I64, v)
    }
    pub fn int_of(&mut self, s: Scalar, v: i64) -> Id {
        self.node(Op::Const, s, &[], Arg::Int(v))
    }
    pub fn float_of(&mut self, s: Scalar, v: f64) -> Id {
        self.node(Op::Const, s, &[], Arg::float(v))
    }
    pub fn cast(&mut self, x: Id, to: Scalar) -> Id {
        self.node(Op::Cast, to, &[x], Arg::None)
    }
}

/// Values of leaves, keyed by the text of their argument, which is the same in every graph.
#[derive(Default)]
pub struct Leaves(pub HashMap<String, Value>);

impl Leaves {
    /// Returns the value of a leaf, drawn at its first use.
    pub fn get(&mut self, g: &Graph, id: Id, random: &mut Random) -> Value {
        let n = &g[id];
        let key = format!("{:?} {:?}", n.arg, n.dtype);
        *self
            .0
            .entry(key)
            .or_insert_with(|| match (&n.arg, g.bounds(id)) {
                (Arg::Param(_), _) | (_, None) => random.value(n.dtype.scalar),
                (_, Some((lo, hi))) => Value::Int(random.int(lo, hi)),
            })
    }
}

/// Evaluates `root` and every node that it depends on; `None` where an op is undefined.
///
/// Movement and splats keep the value: one element represents all.
pub fn evaluate(
    g: &Graph,
    root: Id,
    leaves: &mut Leaves,
    random: &mut Random,
) -> HashMap<Id, Option<Value>> {
    let mut values: HashMap<Id, Option<Value>> = HashMap::new();
    for id in g.toposort(&[root]) {
        let n = &g[id];
        let first = |values: &HashMap<Id, Option<Value>>| n.src.first().and_then(|s| values[s]);
        let v = match (n.op, &n.arg) {
            (Op::Const, Arg::Int(v)) => Some(Value::Int(*v)),
            (Op::Const, Arg::Float(b)) => Some(Value::Float(f64::from_bits(*b))),
            (Op::Var | Op::Param | Op::Range | Op::Iota, _) => Some(leaves.get(g, id, random)),
            (Op::Reshape | Op::Expand | Op::Splat, _) => first(&values),
            (Op::Bitcast, _) => {
                first(&values).map(|v| v.bitcast(g.scalar(n.src[0]), n.dtype.scalar))
            }
            (Op::Table, Arg::Ints(t)) => first(&values)
                .and_then(|v| t.get(usize::try_from(v.int()).ok()?))
                .map(|&v| Value::Int(v as i64)),
            _ => {
                let x: Option<Vec<Value>> = n.src.iter().map(|s| values[s]).collect();
                x.and_then(|x| fold::apply(n.op, &x, n.dtype.scalar))
            }
        };
        values.insert(id, v);
    }
    values
}

/// Returns whether values are bit-identical; all NaNs are equal.
pub fn same(a: Value, b: Value) -> bool {
    match (a, b) {
        (Value::Float(a), Value::Float(b)) => {
            a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
        }
        _ => a == b,
    }
}
