//! Expressions in WGSL. Its values are narrower than the graph's: bytes and halves live in words of 32 bits, an i64 that fits in 32 bits is an i32, and a
//! half is its bits.

use super::tables::Tables;
use crate::names::{Names, infix, unprintable};
use gristmill_compiler::emit::Signature;
use gristmill_uop::{Arg, Graph, Id, Op, Scalar};
use half::{bf16, f16};
use std::cell::RefCell;

/// The expressions of one kernel.
pub struct Expressions<'a> {
    /// What the values are nodes of.
    pub g: &'a Graph,
    /// The values' names.
    pub names: Names<'a>,
    /// What stands before the kernel.
    pub tables: RefCell<Tables>,
}

impl<'a> Expressions<'a> {
    /// Of values of this graph.
    pub fn new(g: &'a Graph, signature: &'a Signature) -> Expressions<'a> {
        Expressions { g, names: Names::new(g, signature), tables: RefCell::default() }
    }
    /// A value's number in the text.
    pub fn number(&self, id: Id) -> usize {
        self.names.number(id)
    }
    /// The type that a value has in WGSL: what is narrower than a word is in one, a half as its bits, and an index that fits in 32 bits has these.
    pub fn type_of(&self, id: Id) -> Scalar {
        match self.g.scalar(id) {
            Scalar::I8 | Scalar::I16 => Scalar::I32,
            Scalar::U8 | Scalar::U16 | Scalar::F16 | Scalar::BF16 => Scalar::U32,
            Scalar::I64 if self.g.within(id, i32::MIN.into(), i32::MAX.into()) => Scalar::I32,
            Scalar::F64 => unprintable(self.g, id),
            own => own,
        }
    }
    /// How a source is written inside an expression, in its own type.
    pub fn name(&self, id: Id) -> String {
        match self.g[id].op {
            Op::Const => self.literal(id),
            Op::Param | Op::Local => unprintable(self.g, id),
            _ => self.names.of(id),
        }
    }
    fn literal(&self, id: Id) -> String {
        let scalar = self.g.scalar(id);
        let whole = |v: i64| match self.type_of(id) {
            Scalar::Bool => (v != 0).to_string(),
            Scalar::U32 => format!("{}u", v as u32),
            Scalar::I32 if v == i32::MIN.into() => "i32(-2147483648)".into(),
            Scalar::I32 if v < 0 => format!("({v}i)"),
            Scalar::I32 => format!("{v}i"),
            Scalar::I64 if v == i64::MIN => "(-9223372036854775807li - 1li)".into(),
            Scalar::I64 => format!("({v}li)"),
            _ => unprintable(self.g, id),
        };
        match (self.g.int_value(id), self.g.float_value(id)) {
            (_, Some(v)) if scalar == Scalar::F16 => format!("{}u", f16::from_f64(v).to_bits()),
            (_, Some(v)) if scalar == Scalar::BF16 => format!("{}u", bf16::from_f64(v).to_bits()),
            (Some(v), _) => whole(v),
            (_, Some(v)) if !(v as f32).is_finite() => {
                // No literal, and no constant expression, is infinite or no number.
                let text = if v.is_nan() { "not_a_number()" } else { "infinity()" };
                if v < 0.0 { format!("(-{text})") } else { text.into() }
            }
            (_, Some(v)) => format!("({:e}f)", v as f32),
            (None, None) => unprintable(self.g, id),
        }
    }
    /// A scalar index expression, written out: for numbers of workgroups and conditions on them.
    pub fn index(&self, id: Id) -> String {
        let n = &self.g[id];
        match n.op {
            Op::Const | Op::Var | Op::Range => self.name(id),
            _ => {
                let sources: Vec<String> = n.src.iter().map(|&s| self.index(s)).collect();
                format!("({})", self.operator(id, sources))
            }
        }
    }
    /// The text of what a node computes.
    pub fn expression(&self, id: Id) -> String {
        let names = self.g[id].src.iter().map(|&s| self.name(s)).collect();
        self.operator(id, names)
    }
    fn operator(&self, id: Id, names: Vec<String>) -> String {
        let n = &self.g[id];
        // Arithmetic of halves is that of f32 by now.
        let of_halves = n.src.first().is_some_and(|&s| self.g.scalar(s).is_half());
        match n.op {
            Op::TileMma => return format!("coopMultiplyAdd({})", names.join(", ")),
            Op::Cast => return self.cast(id, n.src[0], &names[0]),
            op if n.dtype.lanes != 1 || of_halves && op.is_float_arithmetic() => unprintable(self.g, id),
            _ => {}
        }
        let own = self.type_of(id);
        // Index arithmetic of which a part does not fit in 32 bits has 64, though the whole may fit again.
        let long = own == Scalar::I64 || n.src.iter().any(|&s| self.type_of(s) == Scalar::I64);
        let widened =
            |s: Id, text: String| if long && self.type_of(s) == Scalar::I32 { format!("i64({text})") } else { text };
        let s: Vec<String> = n.src.iter().zip(names).map(|(&s, text)| widened(s, text)).collect();
        let text = self.plain(id, &s, long);
        if long && own == Scalar::I32 { format!("i32({text})") } else { text }
    }
    /// The text of an operation on sources of one type, whole numbers of 64 bits where `long`.
    fn plain(&self, id: Id, s: &[String], long: bool) -> String {
        let n = &self.g[id];
        let scalar = n.dtype.scalar;
        let from = n.src.first().map_or(scalar, |&x| self.g.scalar(x));
        let two = |operator: &str| format!("{} {operator} {}", s[0], s[1]);
        let call = |name: &str| format!("{name}({})", s.join(", "));
        let not_negative = |i: usize| self.g.bounds(n.src[i]).is_some_and(|b| b.0 >= 0);
        let unsigned = |operator: &str| match self.type_of(n.src[0]) {
            Scalar::I32 if !long => format!("i32(u32({}) {operator} u32({}))", s[0], s[1]),
            _ => two(operator),
        };
        let whole = if long { "i64" } else { "i32" };
        match n.op {
            Op::Add if scalar == Scalar::Bool => two("|"),
            Op::Mul if scalar == Scalar::Bool => two("&"),
            Op::Xor if scalar == Scalar::Bool => two("!="),
            Op::Neg => format!("-{}", s[0]),
            Op::Recip => format!("1.0f / {}", s[0]),
            Op::Sqrt => call("sqrt"),
            Op::Round => call("round"),
            Op::Fma => call("fma"),
            Op::Max if scalar == Scalar::Bool => two("|"),
            Op::Min if scalar == Scalar::Bool => two("&"),
            Op::Max | Op::Min => call(if n.op == Op::Max { "max" } else { "min" }),
            Op::Lt if from == Scalar::Bool => format!("!{} & {}", s[0], s[1]),
            Op::Where => format!("select({}, {}, {})", s[2], s[1], s[0]),
            Op::Shl | Op::Shr => {
                let by = match self.g.int_value(n.src[1]) {
                    Some(by) => format!("{by}u"),
                    None => format!("u32({})", s[1]),
                };
                format!("{} {} {by}", s[0], infix(n.op).unwrap_or_else(|| unprintable(self.g, id)))
            }
            Op::IDiv if not_negative(0) => unsigned("/"),
            Op::Mod if not_negative(0) => unsigned("%"),
            // Rounded down, for a positive divisor.
            Op::IDiv => format!("{0} / {1} - select({whole}(0), {whole}(1), {0} % {1} < {whole}(0))", s[0], s[1]),
            Op::Mod => format!("{0} % {1} + select({whole}(0), {1}, {0} % {1} < {whole}(0))", s[0], s[1]),
            Op::Bitcast => match (self.type_of(n.src[0]), self.type_of(id)) {
                (a, b) if a == b => s[0].clone(),
                (Scalar::F32, b) | (_, b @ Scalar::F32) => format!("bitcast<{}>({})", b.name(), s[0]),
                (_, b) => wrapped(scalar, format!("{}({})", b.name(), s[0])),
            },
            Op::SignedDot4 => call("dot4_signed"),
            Op::Table => {
                let Arg::Ints(table) = &n.arg else { unprintable(self.g, id) };
                self.tables.borrow_mut().look_up(table, &s[0], scalar)
            }
            op => infix(op).map_or_else(|| unprintable(self.g, id), two),
        }
    }
    /// A value as another type. Of halves, and what is narrower than a word, there are no other conversions by now.
    fn cast(&self, id: Id, source: Id, x: &str) -> String {
        let (from, to) = (self.g.scalar(source), self.g.scalar(id));
        let (have, want) = (self.type_of(source), self.type_of(id));
        match (from, to) {
            (a, b) if a == b && have == want => x.into(),
            (Scalar::F16, Scalar::F32) => format!("f16_to_f32({x})"),
            (Scalar::F32, Scalar::F16) => format!("f32_to_f16({x})"),
            (Scalar::F32, _) => format!("f32_to_{}({x})", want.name()),
            (_, Scalar::Bool) => format!("{x} != {}(0)", have.name()),
            (_, Scalar::F32) => format!("f32({x})"),
            (Scalar::Bool, _) if want == Scalar::I64 => format!("select(0li, 1li, {x})"),
            // A whole number of 64 bits is made of the words of a narrower one, and the other way round.
            _ if have == Scalar::U32 && want == Scalar::I64 => format!("i64(u64({x}))"),
            (a, b) if have != want || a.bytes() > b.bytes() || a.range() != b.range() => {
                wrapped(to, if have == want { x.into() } else { format!("{}({x})", want.name()) })
            }
            _ => x.into(),
        }
    }
}

/// What is left in a type of so many bits.
fn wrapped(to: Scalar, text: String) -> String {
    match to {
        Scalar::U8 => format!("({text}) & 255u"),
        Scalar::U16 => format!("({text}) & 65535u"),
        Scalar::I8 => format!("extractBits({text}, 0u, 8u)"),
        Scalar::I16 => format!("extractBits({text}, 0u, 16u)"),
        _ => text,
    }
}
