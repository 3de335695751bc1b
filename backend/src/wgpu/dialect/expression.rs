//! Expressions in WGSL, on values of one word.

use super::tables::Tables;
use crate::names::{Names, infix, unprintable};
use gristmill_compiler::emit::Signature;
use gristmill_uop::{Arg, Graph, Id, Op, Scalar};
use std::cell::RefCell;

/// Renders the expressions of one kernel.
pub struct WgslExpressions<'a> {
    /// Graph that contains the values.
    pub g: &'a Graph,
    /// Names of the values.
    pub names: Names<'a>,
    /// Tables that are defined before the kernel.
    pub tables: RefCell<Tables>,
}

impl<'a> WgslExpressions<'a> {
    pub fn new(g: &'a Graph, signature: &'a Signature) -> WgslExpressions<'a> {
        WgslExpressions {
            g,
            names: Names::new(g, signature),
            tables: RefCell::default(),
        }
    }
    /// Returns a value's number in the text.
    pub fn number(&self, id: Id) -> usize {
        self.names.number(id)
    }
    /// Returns the type of a value: a word, i64, bool, or f16 for cooperative matrices.
    pub fn type_of(&self, id: Id) -> &'static str {
        match self.g.scalar(id) {
            of @ (Scalar::Bool
            | Scalar::I32
            | Scalar::U32
            | Scalar::I64
            | Scalar::F32
            | Scalar::F16) => of.name(),
            _ => unprintable(self.g, id),
        }
    }
    /// Renders a source as an operand.
    pub fn name(&self, id: Id) -> String {
        match self.g[id].op {
            Op::Const => self.literal(id),
            Op::Param | Op::Local => unprintable(self.g, id),
            _ => self.names.name(id),
        }
    }
    /// Renders an array index.
    pub fn offset(&self, at: Id) -> String {
        format!("u32({})", self.name(at))
    }
    fn literal(&self, id: Id) -> String {
        match (
            self.g.scalar(id),
            self.g.int_value(id),
            self.g.float_value(id),
        ) {
            (Scalar::Bool, Some(v), _) => (v != 0).to_string(),
            (Scalar::U32, Some(v), _) => format!("{v}u"),
            (Scalar::I32, Some(v), _) if v == i32::MIN.into() => "i32(-2147483648)".into(),
            (Scalar::I32, Some(v), _) if v < 0 => format!("({v}i)"),
            (Scalar::I32, Some(v), _) => format!("{v}i"),
            (Scalar::I64, Some(i64::MIN), _) => "(-9223372036854775807li - 1li)".into(),
            (Scalar::I64, Some(v), _) => format!("({v}li)"),
            // WGSL has neither literals nor constant expressions for infinity and NaN.
            (Scalar::F32, _, Some(v)) if v.is_nan() => "not_a_number()".into(),
            (Scalar::F32, _, Some(v)) if v as f32 == f32::INFINITY => "infinity()".into(),
            (Scalar::F32, _, Some(v)) if v as f32 == f32::NEG_INFINITY => "(-infinity())".into(),
            // Its shortest decimal form is a larger number.
            (Scalar::F32, _, Some(v)) if v as f32 == f32::MAX => "0x1.fffffep+127f".into(),
            (Scalar::F32, _, Some(v)) if v as f32 == f32::MIN => "(-0x1.fffffep+127f)".into(),
            (Scalar::F32, _, Some(v)) => format!("({:e}f)", v as f32),
            _ => unprintable(self.g, id),
        }
    }
    /// Renders a scalar index expression inline, for workgroup counts and conditions on them.
    pub fn index(&self, id: Id) -> String {
        let n = &self.g[id];
        match n.op {
            Op::Const | Op::Var | Op::Range => self.name(id),
            _ => {
                let sources: Vec<String> = n.src.iter().map(|&s| self.index(s)).collect();
                format!("({})", self.operator(id, &sources))
            }
        }
    }
    /// Renders the operation of a node on its named sources.
    pub fn expression(&self, id: Id) -> String {
        let names: Vec<String> = self.g[id].src.iter().map(|&s| self.name(s)).collect();
        self.operator(id, &names)
    }
    fn operator(&self, id: Id, s: &[String]) -> String {
        let n = &self.g[id];
        let t = || self.type_of(id);
        let two = |operator: &str| format!("{} {operator} {}", s[0], s[1]);
        let call = |name: &str| format!("{name}({})", s.join(", "));
        match n.op {
            Op::TileMma => call("coopMultiplyAdd"),
            _ if n.dtype.lanes != 1 => unprintable(self.g, id),
            Op::Cast => match (self.g.scalar(n.src[0]), n.dtype.scalar) {
                (from, Scalar::Bool) => format!("{} != {}(0)", s[0], from.name()),
                // The words of an i64 are zero-extended.
                (Scalar::U32, Scalar::I64) => format!("i64(u64({}))", s[0]),
                _ => call(t()),
            },
            Op::Bitcast => call(&format!("bitcast<{}>", t())),
            Op::Neg => format!("-{}", s[0]),
            Op::Recip => format!("1.0f / {}", s[0]),
            Op::Sqrt => call("sqrt"),
            Op::Round => call("round"),
            Op::Fma => call("fma"),
            Op::Max => call("max"),
            Op::Min => call("min"),
            Op::Where => format!("select({}, {}, {})", s[2], s[1], s[0]),
            Op::Half => format!("unpack2x16float({}).x", s[0]),
            Op::Shl | Op::Shr => {
                let by = self
                    .g
                    .int_value(n.src[1])
                    .map_or(format!("u32({})", s[1]), |by| format!("{by}u"));
                format!(
                    "{} {} {by}",
                    s[0],
                    if n.op == Op::Shl { "<<" } else { ">>" }
                )
            }
            // The operands are not negative here, so unsigned division gives the same bits.
            Op::IDiv | Op::Mod => {
                let operator = if n.op == Op::IDiv { "/" } else { "%" };
                match n.dtype.scalar {
                    Scalar::I32 => format!("i32(u32({}) {operator} u32({}))", s[0], s[1]),
                    _ => two(operator),
                }
            }
            Op::SignedDot4 => call("dot4_signed"),
            Op::Table => {
                let Arg::Ints(table) = &n.arg else {
                    unprintable(self.g, id)
                };
                self.tables.borrow_mut().look_up(table, &s[0])
            }
            op => infix(op).map_or_else(|| unprintable(self.g, id), two),
        }
    }
}
