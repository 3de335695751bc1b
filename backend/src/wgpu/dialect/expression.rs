//! Expressions in WGSL. Its values are narrower than the graph's: bytes and halves live in words of 32 bits, an i64 that fits in 32 bits is an i32, and a
//! half is its bits.

use super::tables::Tables;
use crate::names::{Names, infix, is_float_arithmetic, unprintable, words_of_bytes};
use gristmill_compiler::emit::Signature;
use gristmill_uop::{Arg, Graph, Id, Op, Scalar};
use half::{bf16, f16};
use std::cell::RefCell;

/// The type that WGSL has a value of that type in, which is no index: truth and what has 32 or 64 bits as it is, what is narrower in a word, a half as its bits.
pub fn held(scalar: Scalar) -> Option<Scalar> {
    match scalar {
        Scalar::I8 | Scalar::I16 => Some(Scalar::I32),
        Scalar::U8 | Scalar::U16 | Scalar::F16 | Scalar::BF16 => Some(Scalar::U32),
        Scalar::F64 => None,
        _ => Some(scalar),
    }
}

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
    /// Type of a value.
    pub fn type_of(&self, id: Id) -> Scalar {
        let found = held(self.g.scalar(id)).unwrap_or_else(|| unprintable(self.g, id));
        let narrow = found == Scalar::I64 && self.g.within(id, i32::MIN.into(), i32::MAX.into());
        if narrow { Scalar::I32 } else { found }
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
    /// A source as a whole number of 64 bits where the others are.
    fn wide(&self, id: Id, wide: bool, text: String) -> String {
        match wide && self.type_of(id) == Scalar::I32 {
            true => match self.g.int_value(id) {
                Some(v) => format!("({v}li)"),
                None => format!("i64({text})"),
            },
            false => text,
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
        let (own, scalar) = (self.type_of(id), n.dtype.scalar);
        let from = n.src.first().map_or(scalar, |&s| self.g.scalar(s));
        if n.dtype.lanes != 1 {
            unprintable(self.g, id);
        }
        if n.op == Op::Cast {
            return self.cast(id, n.src[0], &names[0]);
        }
        // Index arithmetic of which a part does not fit in 32 bits has 64, though the whole may fit again.
        let long = own == Scalar::I64 || n.src.iter().any(|&s| self.type_of(s) == Scalar::I64);
        let s: Vec<String> = n.src.iter().zip(names).map(|(&s, text)| self.wide(s, long, text)).collect();
        let text = match from.is_half() && is_float_arithmetic(n.op) {
            true => self.of_halves(id, from, &s),
            false => self.plain(id, &s, long),
        };
        match n.op {
            _ if long && own == Scalar::I32 => format!("i32({text})"),
            Op::Add | Op::Sub | Op::Mul | Op::Shl | Op::Neg => wrapped(scalar, text),
            _ => text,
        }
    }
    /// Arithmetic of halves: in f32, and each result rounded.
    fn of_halves(&self, id: Id, from: Scalar, s: &[String]) -> String {
        let half = |src: Id| self.g.scalar(src).is_half();
        let widened = |(&src, x): (&Id, &String)| if half(src) { to_f32(from, x) } else { x.clone() };
        let s: Vec<String> = self.g[id].src.iter().zip(s).map(widened).collect();
        let text = self.plain(id, &s, false);
        match self.g.scalar(id).is_half() {
            true => format!("f32_to_{}({text})", self.g.scalar(id).name()),
            false => text,
        }
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
            Op::Exp => call("exponential"),
            Op::Exp2 => call("power_of_two"),
            Op::Log => call("logarithm"),
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
            Op::Bitcast => bits(from, scalar, &s[0]),
            op => infix(op).map_or_else(|| self.of_words(id, s), two),
        }
    }
    /// Products of four bytes, and what is looked up.
    fn of_words(&self, id: Id, s: &[String]) -> String {
        let n = &self.g[id];
        match n.op {
            Op::SignedDot4 => format!("dot4_signed({})", s.join(", ")),
            // Bytes up to 127 are the same signed.
            Op::Dot4 => match n.arg {
                Arg::Int(most) if most <= i8::MAX.into() => format!("dot4_signed({})", s.join(", ")),
                _ => format!("dot4_unsigned({})", s.join(", ")),
            },
            Op::Table => {
                let Arg::Ints(table) = &n.arg else { unprintable(self.g, id) };
                self.tables.borrow_mut().look_up(table, &s[0], n.dtype.scalar)
            }
            Op::Table4 => {
                let Arg::Ints(table) = &n.arg else { unprintable(self.g, id) };
                format!("table4(vec4<u32>({}), {})", words_of_bytes(table).join(", "), s[0])
            }
            _ => unprintable(self.g, id),
        }
    }
    /// A value as another type.
    fn cast(&self, id: Id, source: Id, x: &str) -> String {
        let (from, to) = (self.g.scalar(source), self.g.scalar(id));
        let (have, want) = (self.type_of(source), self.type_of(id));
        match (from, to) {
            (a, b) if a == b && have == want => x.into(),
            (a, _) if a.is_half() && to == Scalar::F32 => to_f32(a, x),
            (a, _) if a.is_half() => of_float(to, want, &to_f32(a, x)),
            (Scalar::F32, _) => of_float(to, want, x),
            (Scalar::Bool, b) if b.is_half() => format!("f32_to_{}(f32({x}))", b.name()),
            (_, b) if b.is_half() => format!("f32_to_{}(f32({x}))", b.name()),
            (_, Scalar::Bool) => format!("{x} != {}", if have == Scalar::I64 { "0li" } else { "0" }),
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

/// A half as f32.
pub fn to_f32(from: Scalar, x: &str) -> String {
    format!("{}_to_f32({x})", from.name())
}

/// A float as another type, whose WGSL type this is.
fn of_float(to: Scalar, want: Scalar, x: &str) -> String {
    match to {
        Scalar::F32 => x.into(),
        // What is no number is none that is 0, and comparisons of floats do not say so.
        Scalar::Bool => format!("(bitcast<u32>({x}) & 0x7fffffffu) != 0u"),
        Scalar::I64 if want == Scalar::I32 => format!("f32_to_i32({x})"),
        _ => format!("f32_to_{}({x})", to.name()),
    }
}

/// The same bits as another type of the same size.
fn bits(from: Scalar, to: Scalar, x: &str) -> String {
    match (from, to) {
        (a, b) if a == b => x.into(),
        (Scalar::F32, b) => format!("bitcast<{}>({x})", b.name()),
        (_, Scalar::F32) => format!("bitcast<f32>({x})"),
        _ => match held(to) {
            Some(want) => wrapped(to, format!("{}({x})", want.name())),
            None => x.into(),
        },
    }
}

/// What is left in a type of so many bits.
pub fn wrapped(to: Scalar, text: String) -> String {
    match to {
        Scalar::U8 => format!("({text}) & 255u"),
        Scalar::U16 => format!("({text}) & 65535u"),
        Scalar::I8 => format!("extractBits({text}, 0u, 8u)"),
        Scalar::I16 => format!("extractBits({text}, 0u, 16u)"),
        _ => text,
    }
}
