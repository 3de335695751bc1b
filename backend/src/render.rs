//! Expressions in C, shared by the CPU and CUDA dialects.
//!
//! Values are named by number, buffers by argument, functions by their name in the prelude.

mod types;

use crate::names::{Names, infix, unprintable, warp_group_name, words_of_bytes};
use gristmill_compiler::emit::{Accessor, CustomCode, Signature};
use gristmill_uop::fragment::Fragment;
use gristmill_uop::{Arg, DType, Graph, Id, Op, ReduceOp, Scalar};
use std::cell::RefCell;
use std::fmt::Write;
use std::sync::Arc;
pub use types::{CONVERSIONS, cast, stored, sum, type_of};
use types::{lane, literal, mask};

/// Kind of values on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Values {
    /// SIMD vectors of a CPU; loads may be unaligned.
    Vectors,
    /// Scalars of a GPU thread: indices are 32-bit where they fit, loads are aligned, code is C++.
    Threads,
}

/// Renders the expressions of one kernel.
pub struct Expressions<'a> {
    /// Graph that contains the values.
    pub g: &'a Graph,
    /// Arguments of the kernel.
    pub signature: &'a Signature,
    pub values: Values,
    kernel: &'a str,
    /// Names of the values.
    pub names: Names<'a>,
    /// Tables that are defined before the kernel.
    tables: RefCell<Vec<Arc<[i32]>>>,
}

/// Maximum entries of a table that is written inline, since it fits a register.
///
/// A longer table is defined once before the kernel, in memory.
const MAX_INLINE_TABLE: usize = 16;

impl<'a> Expressions<'a> {
    /// Creates the expressions of a kernel.
    pub fn new(
        kernel: &'a str,
        g: &'a Graph,
        signature: &'a Signature,
        values: Values,
    ) -> Expressions<'a> {
        Expressions {
            g,
            signature,
            values,
            kernel,
            names: Names::new(g, signature),
            tables: RefCell::default(),
        }
    }
    /// Returns the definitions to place before the kernel: the tables used so far.
    pub fn definitions(&self) -> String {
        let kind = match self.values {
            Values::Vectors => "static const",
            Values::Threads => "TABLE",
        };
        let mut out = String::new();
        for (i, table) in self.tables.borrow().iter().enumerate() {
            // The narrowest type, so that lookups touch fewer cache lines.
            let mut types = [
                Scalar::U8,
                Scalar::I8,
                Scalar::U16,
                Scalar::I16,
                Scalar::I32,
            ]
            .into_iter();
            let holds = |s: &Scalar| {
                s.range()
                    .is_some_and(|r| table.iter().all(|&v| (r.0..=r.1).contains(&v.into())))
            };
            let t = types.find(holds).expect("entries are i32").name();
            let entries: Vec<String> = table.iter().map(i32::to_string).collect();
            out += &format!(
                "{kind} {t} {}__table{i}[{}] = {{{}}};\n",
                self.kernel,
                entries.len(),
                entries.join(",")
            );
        }
        out
    }
    /// Returns the name of a table that is defined before the kernel.
    fn table(&self, table: &Arc<[i32]>) -> String {
        let mut tables = self.tables.borrow_mut();
        let i = tables.iter().position(|t| t == table).unwrap_or_else(|| {
            tables.push(table.clone());
            tables.len() - 1
        });
        format!("{}__table{i}", self.kernel)
    }
    /// Returns whether a value is an index that is computed in 32 bits.
    fn is_narrow(&self, id: Id) -> bool {
        self.values == Values::Threads
            && self.g.scalar(id) == Scalar::I64
            && self.g.within(id, i32::MIN as i64, i32::MAX as i64)
    }
    /// Returns the C type of a value.
    pub fn type_of(&self, id: Id) -> String {
        let d = self.g[id].dtype;
        type_of(if self.is_narrow(id) {
            DType {
                scalar: Scalar::I32,
                ..d
            }
        } else {
            d
        })
    }
    /// Returns the name of a buffer.
    pub fn buffer(&self, id: Id) -> String {
        match self.g[id].op {
            Op::Local => {
                let i = self.signature.scratch.iter().position(|s| s.0 == id);
                format!("l{}", i.unwrap_or_else(|| unprintable(self.g, id)))
            }
            _ => {
                let (Arg::Param(slot) | Arg::Packed(slot, _)) = self.g[id].arg else {
                    unprintable(self.g, id)
                };
                let i = self.signature.params.iter().position(|p| p.0 == slot);
                format!("p{}", i.unwrap_or_else(|| unprintable(self.g, id)))
            }
        }
    }
    /// Returns a value's number, assigned on first use, so that equal kernels have equal text.
    pub fn number(&self, id: Id) -> usize {
        self.names.number(id)
    }
    /// Renders a source as an operand.
    pub fn name(&self, id: Id) -> String {
        let n = &self.g[id];
        match n.op {
            Op::Const if n.dtype.lanes == 1 => literal(self.g, id),
            Op::Param | Op::Local => self.buffer(id),
            _ => self.names.name(id),
        }
    }
    /// Renders arithmetic of f16 and bf16: computed in f32, each result rounded.
    fn half(&self, op: Op, d: DType, from: DType, s: &[String]) -> String {
        let wide = |d: DType| DType {
            scalar: if d.scalar.is_half() {
                Scalar::F32
            } else {
                d.scalar
            },
            ..d
        };
        let s: Vec<String> = s.iter().map(|x| cast(from, wide(from), x)).collect();
        cast(
            wide(d),
            d,
            &format!("({})", elementwise(op, wide(d), wide(from), &s)),
        )
    }
    /// Renders a scalar index expression inline, for launch dimensions.
    pub fn index(&self, id: Id) -> String {
        let n = &self.g[id];
        match n.op {
            Op::Const | Op::Var | Op::Range | Op::Local | Op::Param => self.name(id),
            _ => {
                // Parenthesise operands that bind less tightly. A quotient of a possibly negative
                // value is rendered as a difference, with its operands unparenthesised.
                let signed = |id: Id| {
                    let first = self.g[id].src.first().and_then(|&s| self.g.bounds(s));
                    matches!(self.g[id].op, Op::IDiv | Op::Mod) && first.is_none_or(|b| b.0 < 0)
                };
                let loose = |s: Id| match self.g[s].op {
                    Op::Min | Op::Max | Op::Where | Op::Lt | Op::Eq => true,
                    Op::Add => n.op == Op::Mul || signed(id),
                    _ => signed(s) && (n.op == Op::Mul || signed(id)),
                };
                let part = |&s: &Id| {
                    if loose(s) {
                        format!("({})", self.index(s))
                    } else {
                        self.index(s)
                    }
                };
                let s: Vec<String> = n.src.iter().map(part).collect();
                self.operator(id, &s)
            }
        }
    }
    /// Renders the operation of a node on its named sources.
    pub fn expression(&self, id: Id) -> String {
        let names: Vec<String> = self.g[id].src.iter().map(|&s| self.name(s)).collect();
        self.operator(id, &names)
    }
    /// Renders a vector of these lanes.
    fn vector(&self, t: &str, lanes: &[String]) -> String {
        match self.values {
            Values::Vectors => format!("({t}){{{}}}", lanes.join(",")),
            Values::Threads => format!("{t}{{{}}}", lanes.join(",")),
        }
    }
    /// Returns whether the address of a load of packed bytes is a multiple of its size.
    fn aligned(&self, load: Id) -> bool {
        let n = &self.g[load];
        let sum = self.g.linear(n.src[1]);
        let unit = self.g.unit_bytes(n.src[0]);
        let size = n.dtype.scalar.bytes() as i64;
        std::iter::once(sum.constant)
            .chain(sum.terms.iter().map(|t| t.1))
            .all(|c| c * unit % size == 0)
    }
    /// Renders a node with its sources given as text.
    fn operator(&self, id: Id, s: &[String]) -> String {
        let n = &self.g[id];
        let (d, lanes) = (n.dtype, n.dtype.lanes);
        // A node without sources counts as a conversion from its own type.
        let from = n.src.first().map_or(d, |&x| self.g[x].dtype);
        let t = type_of(d);
        if from.scalar.is_half() && n.op.is_float_arithmetic() {
            return self.half(n.op, d, from, s);
        }
        let of_threads = self.values == Values::Threads;
        match n.op {
            Op::Const => {
                let one = lane(d, &literal(self.g, id));
                self.vector(&t, &vec![one; lanes as usize])
            }
            Op::Lanes => {
                let all: Vec<String> = (0..lanes).map(|i| i.to_string()).collect();
                format!("({t}){{{}}}", all.join(","))
            }
            Op::Splat => self.vector(&t, &vec![lane(d, &s[0]); lanes as usize]),
            Op::Pack => self.vector(&t, &s.iter().map(|x| lane(d, x)).collect::<Vec<_>>()),
            Op::Load => self.load(id, s),
            Op::Cast => cast(from, d, &s[0]),
            // f16 and bf16 values are represented by their bits.
            Op::Bitcast if lanes > 1 || from.scalar.is_float() == d.scalar.is_float() => {
                format!("({t})({})", s[0])
            }
            Op::Bitcast if from.scalar.is_half() || d.scalar.is_half() => {
                format!("({t})({})", s[0])
            }
            Op::Bitcast => format!("bits_{}_{}({})", from.scalar.name(), d.scalar.name(), s[0]),
            Op::Shl | Op::Shr => self.shift(id, s),
            Op::IDiv | Op::Mod => self.quotient(id, s),
            Op::Where if lanes == 1 => format!("{} ? {} : {}", s[0], s[1], s[2]),
            Op::Where => format!("select_{t}({}, {}, {})", s[0], s[1], s[2]),
            Op::Table => self.lookup(id, &s[0]),
            Op::Table4 => self.lookup_bytes(id, &s[0]),
            Op::Mma | Op::MmaHalf | Op::MmaShared => self.product(id, s),
            Op::PairBf16 => format!("pair_bf16_{lanes}({}, {})", s[0], s[1]),
            Op::ScaledPair => self.scaled_pair(id, s),
            Op::Part => match (self.g.int_value(n.src[1]), self.g[n.src[0]].dtype.lanes) {
                (Some(part @ 0..4), 4) => {
                    format!("{}.{}", s[0], ["x", "y", "z", "w"][part as usize])
                }
                (Some(part), _) => format!("{}.at[{part}]", s[0]),
                (None, _) => unprintable(self.g, id),
            },
            Op::SignedDot4 => format!("dot4_signed_{lanes}({}, {}, {})", s[0], s[1], s[2]),
            Op::Dot4 => {
                let Arg::Int(most) = n.arg else {
                    unprintable(self.g, id)
                };
                // Without a dot-product instruction, two byte products are added as
                // signed 16-bit integers.
                let how = if most * 2 * 128 <= i16::MAX as i64 {
                    "small"
                } else {
                    "any"
                };
                format!("dot4_{how}_{lanes}({}, {}, {})", s[0], s[1], s[2])
            }
            Op::Dot2 => format!("dot2_{lanes}({}, {}, {})", s[0], s[1], s[2]),
            Op::Halves => format!("halves_{lanes}({}, {})", s[0], s[1]),
            Op::Fold => self.fold(id, &s[0]),
            // One GPU instruction, unlike a comparison and a selection.
            Op::Max if of_threads && d == Scalar::F32.one() => format!("max_1({}, {})", s[0], s[1]),
            Op::Min if of_threads && d == Scalar::F32.one() => format!("min_1({}, {})", s[0], s[1]),
            Op::Add | Op::Mul if self.is_long(id) => elementwise(n.op, d, from, &widened(s)),
            op => elementwise(op, d, from, s),
        }
    }
    /// Returns whether an index needs 64 bits where others take 32 and would overflow.
    fn is_long(&self, id: Id) -> bool {
        self.values == Values::Threads && self.g.scalar(id) == Scalar::I64 && !self.is_narrow(id)
    }
    /// Renders a load from a buffer.
    fn load(&self, id: Id, s: &[String]) -> String {
        let n = &self.g[id];
        let (d, lanes) = (n.dtype, n.dtype.lanes);
        let packed = matches!(self.g[n.src[0]].arg, Arg::Packed(..));
        let memory = stored(d);
        let wide = self.g.scalar(n.src[0]).bytes() < d.scalar.bytes();
        let raw = match (packed || wide, lanes) {
            (false, 1) => format!("{}[{}]", s[0], s[1]),
            (true, 1) if self.values == Values::Threads && !self.aligned(id) => {
                format!("unaligned_{memory}({} + {})", s[0], s[1])
            }
            _ => format!("*(const {memory}_u *)({} + {})", s[0], s[1]),
        };
        match (d.scalar, lanes) {
            (Scalar::Bool, l) if l > 1 => format!("-cvt_u8_i32_{l}({raw})"),
            _ => raw,
        }
    }
    fn shift(&self, id: Id, s: &[String]) -> String {
        let n = &self.g[id];
        let (d, by) = (n.dtype, self.g[n.src[1]].dtype);
        // A vector is shifted by a vector of the same element width.
        let same = d.lanes == 1 || by.scalar.bytes() == d.scalar.bytes();
        let by = if same {
            s[1].clone()
        } else {
            cast(by, d, &s[1])
        };
        match n.op {
            Op::Shl if self.is_long(id) => format!("{} << {by}", widened(s)[0]),
            Op::Shl => format!("{} << {by}", s[0]),
            _ => format!("{} >> {by}", s[0]),
        }
    }
    /// Renders a quotient or remainder by a positive divisor, rounded down.
    ///
    /// A comparison of vectors is -1 where it holds.
    fn quotient(&self, id: Id, s: &[String]) -> String {
        let n = &self.g[id];
        let (t, operator) = (type_of(n.dtype), if n.op == Op::IDiv { "/" } else { "%" });
        let not_negative = self.g.bounds(n.src[0]).is_some_and(|b| b.0 >= 0);
        match (not_negative, n.dtype.lanes, n.op) {
            (true, 1, _) => {
                let narrow = self.is_narrow(id) && n.src.iter().all(|&x| self.is_narrow(x));
                let [signed, unsigned] = if narrow {
                    ["i32", "u32"]
                } else {
                    ["i64", "u64"]
                };
                format!(
                    "({signed})(({unsigned})({}) {operator} ({unsigned})({}))",
                    s[0], s[1]
                )
            }
            (true, ..) => format!("{} {operator} {}", s[0], s[1]),
            (false, 1, Op::IDiv) => format!("{0} / {1} - ({0} % {1} < 0)", s[0], s[1]),
            (false, 1, _) => format!("{0} % {1} + ({0} % {1} < 0 ? {1} : 0)", s[0], s[1]),
            (false, _, Op::IDiv) => format!("{0} / {1} + (({t})({0} % {1} < 0))", s[0], s[1]),
            (false, ..) => format!("{0} % {1} + ({1} & ({t})({0} % {1} < 0))", s[0], s[1]),
        }
    }
    /// Renders a lookup of table entries.
    fn lookup(&self, id: Id, index: &str) -> String {
        let n = &self.g[id];
        let (d, lanes) = (n.dtype, n.dtype.lanes);
        let Arg::Ints(table) = &n.arg else {
            unprintable(self.g, id)
        };
        if table.len() > MAX_INLINE_TABLE {
            let table = self.table(table);
            if lanes == 1 {
                return format!("{table}[{index}]");
            }
            let all: Vec<String> = (0..lanes)
                .map(|i| format!("{table}[{index}[{i}]]"))
                .collect();
            return format!("({}){{{}}}", type_of(d), all.join(","));
        }
        let mut entries: Vec<String> = table.iter().map(i32::to_string).collect();
        if self.values == Values::Threads {
            let t = d.scalar.name();
            return format!(
                "Array<{t}, {}>{{{{{}}}}}.at[{index}]",
                entries.len(),
                entries.join(",")
            );
        }
        if lanes == 1 {
            let t = d.scalar.name();
            return format!(
                "((const {t}[{}]){{{}}})[{index}]",
                entries.len(),
                entries.join(",")
            );
        }
        entries.resize(MAX_INLINE_TABLE, "0".into());
        let index = cast(
            self.g[n.src[0]].dtype,
            Scalar::I32.one().with_lanes(lanes),
            index,
        );
        let (name, of) = if d.scalar == Scalar::F32 {
            ("table_f32", "f32x16")
        } else {
            ("table", "i32x16")
        };
        format!("{name}_{lanes}(({of}){{{}}}, {index})", entries.join(","))
    }
    /// Renders four lookups in a table of bytes, indexed by the bytes of a word.
    fn lookup_bytes(&self, id: Id, index: &str) -> String {
        let n = &self.g[id];
        let Arg::Ints(table) = &n.arg else {
            unprintable(self.g, id)
        };
        if self.values == Values::Threads {
            return format!("table4({}, {index})", words_of_bytes(table).join(", "));
        }
        let entries: Vec<String> = table.iter().map(i32::to_string).collect();
        format!(
            "table4_{}((u8x16){{{}}}, {index})",
            n.dtype.lanes,
            entries.join(",")
        )
    }
    /// Renders a product of small matrices as a call of the prelude.
    fn product(&self, id: Id, s: &[String]) -> String {
        let n = &self.g[id];
        match (n.op, Fragment::of_product(n)) {
            (Op::Mma, _) => {
                let signed = if n.arg == Arg::None { "signed_" } else { "" };
                format!("mma_{signed}{}({})", n.src.len() / 3 * 16, s.join(", "))
            }
            (Op::MmaHalf, of) => {
                let name = match of.map(|f| (f.operand, f.terms)) {
                    Some((Scalar::F16, 16)) => "mma_halves",
                    Some((Scalar::F16, 8)) => "mma_halves_8",
                    Some((Scalar::BF16, 16)) => "mma_bf16",
                    _ => unprintable(self.g, id),
                };
                format!("{name}({})", s.join(", "))
            }
            (_, Some(of)) => match s {
                [rows, first, columns, at, sum] => {
                    format!(
                        "{}_of_stages({rows} + {first}, {columns} + {at}, {sum})",
                        warp_group_name(of)
                    )
                }
                [words @ .., columns, at, sum] => {
                    format!(
                        "{}({}, {columns} + {at}, {sum})",
                        warp_group_name(of),
                        words.join(", ")
                    )
                }
                _ => unprintable(self.g, id),
            },
            (_, None) => unprintable(self.g, id),
        }
    }
    /// Renders two bytes of a word as scaled f16 values.
    fn scaled_pair(&self, id: Id, s: &[String]) -> String {
        let Arg::Ints(numbers) = &self.g[id].arg else {
            unprintable(self.g, id)
        };
        let &[first, second, zero, bf16] = &numbers[..] else {
            unprintable(self.g, id)
        };
        // The bits of f16 1024 with a byte in the mantissa are 1024 + byte; those of
        // bf16 128, 128 + byte.
        let (zero, of) = match bf16 {
            0 => (half::f16::from_f32((zero - 1024) as f32).to_bits(), "f16"),
            _ => (half::bf16::from_f32((zero - 128) as f32).to_bits(), "bf16"),
        };
        let (select, zero) = (0x4040 | first | second << 8, u32::from(zero) * 0x1_0001);
        let and = if s.len() > 2 { "_and" } else { "" };
        format!(
            "scaled_pair{and}_{of}({}, {select:#06x}u, {zero:#x}u)",
            s.join(", ")
        )
    }
    /// Renders the sum or maximum over a vector's lanes; 16-bit floats are reduced in f32.
    fn fold(&self, id: Id, x: &str) -> String {
        let n = &self.g[id];
        let (d, from) = (n.dtype, self.g[n.src[0]].dtype);
        let how = match n.arg {
            Arg::Reduce(ReduceOp::Add, _) => "add",
            Arg::Reduce(ReduceOp::Max, _) => "max",
            _ => unprintable(self.g, id),
        };
        let fold = |s: Scalar, x: &str| format!("fold_{how}_{}_{}({x})", s.name(), from.lanes);
        if from.scalar.is_half() {
            let wide = cast(from, Scalar::F32.one().with_lanes(from.lanes), x);
            return cast(Scalar::F32.one(), d, &fold(Scalar::F32, &wide));
        }
        fold(from.scalar, x)
    }
}

/// Casts the first operand to 64 bits.
fn widened(s: &[String]) -> Vec<String> {
    std::iter::once(format!("(i64)({})", s[0]))
        .chain(s[1..].iter().cloned())
        .collect()
}

/// Renders `op`, arithmetic or a comparison that floats have too, on `s` of type `from`.
fn elementwise(op: Op, d: DType, from: DType, s: &[String]) -> String {
    let (lanes, t) = (d.lanes, type_of(d));
    match op {
        Op::Neg => format!("-{}", s[0]),
        Op::Exp => format!("exp_{lanes}({})", s[0]),
        Op::Exp2 => format!("exp2_{lanes}({})", s[0]),
        Op::Log => format!("log_{lanes}({})", s[0]),
        Op::Sqrt => format!("sqrt_{lanes}({})", s[0]),
        Op::Round => format!("round_{lanes}({})", s[0]),
        Op::Recip => format!("1.0f / {}", s[0]),
        Op::Max if lanes == 1 => format!("{0} > {1} ? {0} : {1}", s[0], s[1]),
        Op::Min if lanes == 1 => format!("{0} < {1} ? {0} : {1}", s[0], s[1]),
        Op::Max => format!(
            "select_{0}({1}({2} > {3}), {2}, {3})",
            t,
            mask(d),
            s[0],
            s[1]
        ),
        Op::Min => format!(
            "select_{0}({1}({2} < {3}), {2}, {3})",
            t,
            mask(d),
            s[0],
            s[1]
        ),
        Op::Lt if lanes > 1 && from.scalar == Scalar::Bool => format!("~{} & {}", s[0], s[1]),
        Op::Lt if lanes > 1 => format!("{}({} < {})", mask(from), s[0], s[1]),
        Op::Eq if lanes > 1 => format!("{}({} == {})", mask(from), s[0], s[1]),
        Op::Fma => format!("fma_{lanes}({}, {}, {})", s[0], s[1], s[2]),
        op => match infix(op) {
            Some(sign) => format!("{} {sign} {}", s[0], s[1]),
            None => unreachable!("{op:?} has no text"),
        },
    }
}

impl Expressions<'_> {
    /// Renders the head of an accessor function for a user's text.
    ///
    /// `arguments` are the kernel's arguments with their types, appended to its own.
    pub fn accessor_head(&self, of: &Accessor, arguments: &[String]) -> String {
        let t = self.type_of(of.value);
        let index = match of.index {
            Some(index) => format!("const {} {}", self.type_of(index), self.name(index)),
            None => "const i64".into(),
        };
        let value = format!("const {t} v{}", self.number(of.value));
        let own = [Some(index), of.stores.then_some(value)];
        let all: Vec<String> = own
            .into_iter()
            .flatten()
            .chain(arguments.iter().cloned())
            .collect();
        format!(
            "FN {} {}({}) {{",
            if of.stores { "void" } else { &t },
            self.accessor(of),
            all.join(", ")
        )
    }
    /// Renders the end of an accessor function.
    pub fn accessor_tail(&self, of: &Accessor) -> String {
        if of.stores {
            "}".into()
        } else {
            format!("return {};\n}}", self.name(of.value))
        }
    }
    fn accessor(&self, of: &Accessor) -> String {
        format!("{}__{}", self.kernel, of.name)
    }
    /// Renders a user's text with its names bound to the kernel's arguments `p0`, `var0` and so on.
    pub fn custom_body(&self, code: &CustomCode, dialect: &str) -> String {
        let (g, signature) = (self.g, self.signature);
        let mut out = String::from("{\n");
        let place = |found: Option<usize>, node: Id| found.unwrap_or_else(|| unprintable(g, node));
        let parameter =
            |buffer: Id| place(signature.params.iter().position(|p| p.2 == buffer), buffer);
        let mut name = |words: &str, called: &str, value: String| {
            let _ = writeln!(out, "{words} {called} = {value};");
        };
        let pointers = |called: &str| code.kernel.calls(called).is_none();
        for (&called, &read) in code
            .kernel
            .arguments
            .iter()
            .zip(&g[code.value].src)
            .filter(|a| pointers(a.0))
        {
            if g[read].op == Op::Load {
                let buffer = g[read].src[0];
                name(
                    &format!("const {} *const", stored(g[buffer].dtype)),
                    called,
                    format!("p{}", parameter(buffer)),
                );
            } else {
                let variable = place(signature.vars.iter().position(|v| v.1 == read), read);
                name("const i64", called, format!("var{variable}"));
            }
        }
        if pointers(code.kernel.output) {
            let output = format!("p{}", parameter(code.output));
            name(
                &format!("{} *const", stored(g[code.output].dtype)),
                code.kernel.output,
                output,
            );
        }
        let buffers = (0..signature.params.len()).map(|i| format!(", p{i}"));
        let arguments: String = buffers
            .chain((0..signature.vars.len()).map(|i| format!(", var{i}")))
            .collect();
        for of in &code.accessors {
            let _ = writeln!(
                out,
                "#define {}(...) {}(__VA_ARGS__{arguments})",
                of.name,
                self.accessor(of)
            );
        }
        out += code
            .kernel
            .text(dialect)
            .unwrap_or_else(|| unprintable(g, code.value));
        for of in &code.accessors {
            let _ = write!(out, "\n#undef {}", of.name);
        }
        out + "\n}\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature() -> Signature {
        Signature {
            params: vec![],
            pieces: vec![],
            piece: 0,
            vars: vec![],
            groups: vec![],
            scratch: vec![],
            scratch_bytes: 0,
            elements: vec![],
            arrays: vec![],
            stages: vec![],
            stage_ends: [0; 2],
            stage_words: 1,
        }
    }

    #[test]
    #[should_panic(expected = "no text for %0 = Var i64 var=n 1..4")]
    fn a_variable_that_is_no_argument_has_no_text() {
        let (mut g, signature) = (Graph::new(), signature());
        let n = g.var("n", 1, 4);
        let _ = Expressions::new("k", &g, &signature, Values::Vectors).name(n);
    }

    #[test]
    #[should_panic(expected = "no text for %0 = Param f32 slot=3")]
    fn a_buffer_that_is_no_argument_has_no_text() {
        let (mut g, signature) = (Graph::new(), signature());
        let p = g.param(3, &[], Scalar::F32);
        let _ = Expressions::new("k", &g, &signature, Values::Threads).buffer(p);
    }
}
