//! C for the CPU: GNU vector extensions and compiler builtins, no system headers. A kernel is one function that runs an interval of the
//! launch; everything it needs is in the prelude (`prelude.rs`).

mod prelude;
mod words;

use prelude::CONVERSIONS;
pub use prelude::prelude;

use gristmill_compiler::lower::{Code, Statement};
use gristmill_compiler::pipeline::{Dialect, Signature};
use gristmill_uop::program::Access;
use gristmill_uop::{Arg, DType, Graph, Id, Op, RangeKind, ReduceOp, Scalar};
use half::{bf16, f16};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// Workgroups after which rows prefetched are still there.
const SOON: i64 = 8;

/// The dialect; what depends on the instruction set is in the prelude alone.
pub struct C;

/// C type of a value.
fn type_of(d: DType) -> String {
    let scalar = match d.scalar {
        // Truth is a mask in vectors, 0 or 1 alone.
        Scalar::Bool => "i32",
        Scalar::F16 | Scalar::BF16 => "u16",
        s => s.name(),
    };
    if d.lanes == 1 { scalar.into() } else { format!("{scalar}x{}", d.lanes) }
}

/// C type of an element in memory.
fn stored(d: DType) -> String {
    match d.scalar {
        Scalar::Bool => type_of(DType { scalar: Scalar::U8, ..d }),
        _ => type_of(d),
    }
}

/// A cache line, of packed bytes half of one: its buffer, the terms of its address, and its number after those.
type Line = (Id, Vec<(Id, i64)>, i64);

struct Writer<'a> {
    g: &'a Graph,
    signature: &'a Signature,
    /// Ranges around the statement being written that choose what is computed (workgroup ranges and loops, not reductions).
    around: Vec<Id>,
    /// Ranges of the reductions whose loops are open.
    reducing: Vec<Id>,
    /// For every open brace, whether it put a range into `around`, or into `reducing`.
    open: Vec<[bool; 2]>,
    /// What is asked for already in this loop.
    fetched: HashSet<Line>,
    numbers: RefCell<HashMap<Id, usize>>,
    /// May workgroups of this body be left out? Its first one is then not the first of the interval.
    skipping: bool,
    out: String,
}

impl Dialect for C {
    fn render(&self, name: &str, graph: &Graph, bodies: &[Code], signature: &Signature) -> String {
        let mut w = Writer {
            g: graph,
            signature,
            around: Vec::new(),
            reducing: Vec::new(),
            open: Vec::new(),
            fetched: HashSet::new(),
            numbers: RefCell::default(),
            skipping: false,
            out: String::new(),
        };
        w.kernel(name, bodies);
        w.out
    }
}

impl Writer<'_> {
    fn line(&mut self, text: std::fmt::Arguments) {
        let _ = self.out.write_fmt(text);
        self.out.push('\n');
    }
    fn kernel(&mut self, name: &str, bodies: &[Code]) {
        self.line(format_args!("void {name}(void *const *b, const i64 *v, i64 first, i64 end, u8 *scratch) {{"));
        for (i, &(_, access, node)) in self.signature.params.iter().enumerate() {
            let packed = matches!(self.g[node].arg, Arg::Packed(..));
            let t = if packed { "u8".into() } else { stored(self.g[node].dtype) };
            match access {
                Access::Read => self.line(format_args!("const {t} *restrict p{i} = b[{i}];")),
                Access::Write => self.line(format_args!("{t} *restrict p{i} = b[{i}];")),
                Access::ReadWrite => self.line(format_args!("{t} *p{i} = b[{i}];")),
            }
        }
        for i in 0..self.signature.vars.len() {
            self.line(format_args!("const i64 var{i} = v[{i}];"));
        }
        for (i, &(local, at)) in self.signature.scratch.iter().enumerate() {
            let t = stored(self.g[local].dtype);
            self.line(format_args!("{t} *const l{i} = ({t} *)(scratch + {at});"));
        }
        self.line(format_args!("i64 base = 0;"));
        for (i, code) in bodies.iter().enumerate() {
            self.body(i, code);
        }
        self.line(format_args!("}}"));
    }
    fn body(&mut self, number: usize, code: &Code) {
        self.around = code.globals.clone();
        let count = self.index(self.signature.groups[number]);
        self.line(format_args!("{{ const i64 count = {count};"));
        self.line(format_args!(
            "const i64 lo = first > base ? first - base : 0, hi = end - base < count ? end - base : count;"
        ));
        for &r in &code.globals {
            self.line(format_args!("i64 r{}_last = -1;", self.g.range_number(r)));
        }
        if code.skip.is_some() {
            self.line(format_args!("i64 fresh = 1;"));
        }
        self.line(format_args!("for (i64 w = lo; w < hi; w++) {{"));
        // Row-major over the workgroup ranges.
        let mut rest = String::from("(u64)w");
        for (i, &r) in code.globals.iter().enumerate().rev() {
            let n = self.g.range_number(r);
            if i == 0 {
                self.line(format_args!("const i64 r{n} = (i64)({rest});"));
            } else {
                let bound = self.index(self.g[r].src[0]);
                self.line(format_args!("const i64 r{n} = (i64)({rest} % (u64)({bound}));"));
                rest = format!("{rest} / (u64)({bound})");
            }
        }
        if let Some(skip) = code.skip {
            let skip = self.index(skip);
            self.line(format_args!("if ({skip}) continue;"));
        }
        self.skipping = code.skip.is_some();
        for s in &code.statements {
            self.statement(s);
        }
        for &r in &code.globals {
            let n = self.g.range_number(r);
            self.line(format_args!("r{n}_last = r{n};"));
        }
        if self.skipping {
            self.line(format_args!("fresh = 0;"));
        }
        self.line(format_args!("}} base += count; }}"));
    }
    fn statement(&mut self, s: &Statement) {
        if matches!(s, Statement::Loop(_) | Statement::End | Statement::Nest { .. }) {
            self.fetched.clear();
        }
        match s {
            Statement::Define(id) => {
                let (t, e) = (type_of(self.g[*id].dtype), self.expression(*id));
                let v = self.number(*id);
                self.line(format_args!("const {t} v{v} = {e};"));
                self.prefetch(*id);
            }
            Statement::Loop(r) => {
                let chooses = self.g.range_kind(*r) == Some(RangeKind::Loop);
                let into = if chooses { &mut self.around } else { &mut self.reducing };
                into.push(*r);
                self.open.push([chooses, !chooses]);
                let (n, bound) = (self.g.range_number(*r), self.name(self.g[*r].src[0]));
                self.line(format_args!("for (i64 r{n} = 0; r{n} < {bound}; r{n}++) {{"));
            }
            Statement::End => {
                let [around, reducing] = self.open.pop().unwrap_or_default();
                if around {
                    self.around.pop();
                }
                if reducing {
                    self.reducing.pop();
                }
                self.line(format_args!("}}"));
            }
            Statement::Accumulator(acc) => {
                let node = &self.g[*acc];
                let (t, first) = (type_of(node.dtype), self.name(node.src[0]));
                let a = self.number(node.src[1]);
                self.line(format_args!("{t} a{a} = {first};"));
            }
            Statement::Accumulate(acc, value) => {
                let e = self.expression(*value);
                let a = self.number(self.g[*acc].src[1]);
                self.line(format_args!("a{a} = {e};"));
            }
            Statement::Write(buffer, at, value) => self.write(*buffer, *at, *value),
            Statement::Nest { staged, globals, .. } => {
                self.open.push([false; 2]);
                if *staged {
                    let changed: Vec<String> =
                        globals.iter().map(|&r| format!(" || r{0} != r{0}_last", self.g.range_number(r))).collect();
                    let first = if self.skipping { "fresh" } else { "w == lo" };
                    self.line(format_args!("if ({first}{}) {{", changed.concat()));
                } else {
                    self.line(format_args!("{{"));
                }
            }
        }
    }
    /// A vector of packed bytes, or of halves or bytes (a cache): those of the next rows are on their way while these are worked on. Rows
    /// are too short for the hardware to find the stream by itself, but where they are interleaved and so follow one another. The next rows lie behind all that the reductions around read: of a
    /// tile of the cache whose rows are summed up, they are those of the next workgroup.
    fn prefetch(&mut self, id: Id) {
        let n = &self.g[id];
        let ahead = self.signature.prefetch as i64;
        if n.op != Op::Load || n.dtype.lanes == 1 || ahead == 0 {
            return;
        }
        let packed = match self.g[n.src[0]].arg {
            Arg::Packed(slot, _) if self.signature.streams.contains(&slot) => return,
            Arg::Packed(..) => true,
            _ => false,
        };
        let narrow = n.dtype.scalar.is_half() || n.dtype.scalar == Scalar::I8;
        let cache = narrow && self.g[n.src[0]].op == Op::Param;
        if !(packed || cache) {
            return;
        }
        let at = self.g.linear(n.src[1]);
        let reach = |&r: &Id| at.coefficient(r) * (self.g.bounds(self.g[r].src[0]).map_or(1, |b| b.1) - 1);
        let read: i64 = self.reducing.iter().map(reach).sum();
        // Workgroups that read the same again before those rows are wanted: after many, the cache holds other things.
        let mut between = 1;
        let stride = self.around.iter().rev().find_map(|&r| {
            let stride = at.coefficient(r);
            if stride == 0 && self.g.range_kind(r) == Some(RangeKind::Global) {
                between *= self.g.max_of(self.g[r].src[0]);
            }
            (stride > read).then_some(stride * ahead)
        });
        let elements = if packed { 32 } else { 64 / n.dtype.scalar.bytes() as i64 };
        let line = (n.src[0], at.terms.to_vec(), at.constant.div_euclid(elements));
        if let Some(stride) = stride.filter(|_| packed || between <= SOON)
            && self.fetched.insert(line)
        {
            let (b, at) = (self.buffer(n.src[0]), self.name(n.src[1]));
            self.line(format_args!("__builtin_prefetch({b} + {at} + {stride});"));
        }
    }
    fn buffer(&self, id: Id) -> String {
        match self.g[id].op {
            Op::Local => {
                let i = self.signature.scratch.iter().position(|s| s.0 == id).unwrap_or(0);
                format!("l{i}")
            }
            _ => {
                let slot = |id: Id| match self.g[id].arg {
                    Arg::Param(s) | Arg::Packed(s, _) => s,
                    _ => u32::MAX,
                };
                let i = self.signature.params.iter().position(|p| p.0 == slot(id)).unwrap_or(0);
                format!("p{i}")
            }
        }
    }
    fn write(&mut self, buffer: Id, at: Id, value: Id) {
        let d = self.g[value].dtype;
        let (b, at, v) = (self.buffer(buffer), self.name(at), self.name(value));
        let v = match (d.scalar, d.lanes) {
            (Scalar::Bool, 1) => v,
            (Scalar::Bool, l) => format!("cvt_i32_u8_{l}({v} & 1)"),
            _ => v,
        };
        let packed = matches!(self.g[buffer].arg, Arg::Packed(..));
        if d.lanes == 1 && !packed {
            self.line(format_args!("{b}[{at}] = {v};"));
        } else {
            self.line(format_args!("*({}_u *)({b} + {at}) = {v};", stored(d)));
        }
    }
    /// A value's number in the text: in the order in which they are met, so that equal kernels have equal text.
    fn number(&self, id: Id) -> usize {
        let mut numbers = self.numbers.borrow_mut();
        let next = numbers.len();
        *numbers.entry(id).or_insert(next)
    }
    /// How a source is written inside an expression.
    fn name(&self, id: Id) -> String {
        let n = &self.g[id];
        match (&n.op, &n.arg) {
            (Op::Const, _) if n.dtype.lanes == 1 => literal(self.g, id),
            (Op::Var, Arg::Var(name, ..)) => {
                let i = self.signature.vars.iter().position(|v| v == name).unwrap_or(0);
                format!("var{i}")
            }
            (Op::Param | Op::Local, _) => self.buffer(id),
            (Op::Range, _) => format!("r{}", self.g.range_number(id)),
            (Op::Reduce, _) => format!("a{}", self.number(id)),
            (Op::Acc, _) => format!("a{}", self.number(n.src[1])),
            _ => format!("v{}", self.number(id)),
        }
    }
    /// Arithmetic of halves: in f32, and each result rounded.
    fn half(&self, op: Op, d: DType, from: DType, s: &[String]) -> String {
        let wide = |d: DType| DType { scalar: if d.scalar.is_half() { Scalar::F32 } else { d.scalar }, ..d };
        let s: Vec<String> = s.iter().map(|x| cast(from, wide(from), x)).collect();
        cast(wide(d), d, &format!("({})", elementwise(op, wide(d), wide(from), &s)))
    }
    /// A scalar index expression, written out: for launch dimensions.
    fn index(&self, id: Id) -> String {
        let n = &self.g[id];
        match n.op {
            Op::Const | Op::Var | Op::Range => self.name(id),
            _ => {
                // Operators of C bind less tightly than those around them.
                let loose = |of: Op| {
                    matches!(of, Op::Min | Op::Max | Op::Where | Op::Lt | Op::Eq) || of == Op::Add && n.op == Op::Mul
                };
                let part = |&s: &Id| if loose(self.g[s].op) { format!("({})", self.index(s)) } else { self.index(s) };
                let s: Vec<String> = n.src.iter().map(part).collect();
                self.operator(id, &s)
            }
        }
    }
    fn expression(&self, id: Id) -> String {
        let names: Vec<String> = self.g[id].src.iter().map(|&s| self.name(s)).collect();
        self.operator(id, &names)
    }
    fn operator(&self, id: Id, s: &[String]) -> String {
        let n = &self.g[id];
        let (d, lanes) = (n.dtype, n.dtype.lanes);
        let from = n.src.first().map(|&x| self.g[x].dtype).unwrap_or(d);
        let t = type_of(d);
        if from.scalar.is_half() && is_arithmetic(n.op) {
            return self.half(n.op, d, from, s);
        }
        let not_negative = |i: usize| self.g.bounds(n.src[i]).is_some_and(|b| b.0 >= 0);
        match n.op {
            Op::Const => {
                let one = lane(d, &literal(self.g, id));
                format!("({t}){{{}}}", vec![one; lanes as usize].join(","))
            }
            Op::Lanes => {
                let all: Vec<String> = (0..lanes).map(|i| i.to_string()).collect();
                format!("({t}){{{}}}", all.join(","))
            }
            Op::Splat => format!("({t}){{{}}}", vec![lane(d, &s[0]); lanes as usize].join(",")),
            Op::Pack => format!("({t}){{{}}}", s.iter().map(|x| lane(d, x)).collect::<Vec<_>>().join(",")),
            Op::Load => {
                let packed = matches!(self.g[n.src[0]].arg, Arg::Packed(..));
                let memory = stored(d);
                let wide = self.g.scalar(n.src[0]).bytes() < d.scalar.bytes();
                let raw = match (packed || wide, lanes) {
                    (false, 1) => format!("{}[{}]", s[0], s[1]),
                    _ => format!("*(const {memory}_u *)({} + {})", s[0], s[1]),
                };
                match (d.scalar, lanes) {
                    (Scalar::Bool, l) if l > 1 => format!("-cvt_u8_i32_{l}({raw})"),
                    _ => raw,
                }
            }
            Op::Cast => cast(from, d, &s[0]),
            // Halves are kept as their bits.
            Op::Bitcast if lanes > 1 || from.scalar.is_float() == d.scalar.is_float() => format!("({t})({})", s[0]),
            Op::Bitcast if from.scalar.is_half() || d.scalar.is_half() => format!("({t})({})", s[0]),
            Op::Bitcast => format!("bits_{}_{}({})", from.scalar.name(), d.scalar.name(), s[0]),
            Op::And => format!("{} & {}", s[0], s[1]),
            Op::Or => format!("{} | {}", s[0], s[1]),
            Op::Xor => format!("{} ^ {}", s[0], s[1]),
            Op::Shl | Op::Shr => {
                // Vectors are shifted by vectors of their own width.
                let by = self.g[n.src[1]].dtype;
                let by =
                    if lanes > 1 && by.scalar.bytes() != d.scalar.bytes() { cast(by, d, &s[1]) } else { s[1].clone() };
                format!("{} {} {by}", s[0], if n.op == Op::Shl { "<<" } else { ">>" })
            }
            Op::IDiv if lanes == 1 && not_negative(0) => format!("(i64)((u64)({}) / (u64)({}))", s[0], s[1]),
            Op::Mod if lanes == 1 && not_negative(0) => format!("(i64)((u64)({}) % (u64)({}))", s[0], s[1]),
            Op::IDiv if lanes > 1 && not_negative(0) => format!("{} / {}", s[0], s[1]),
            Op::Mod if lanes > 1 && not_negative(0) => format!("{} % {}", s[0], s[1]),
            // floor, for a positive divisor; a vector's comparison is -1 where it holds
            Op::IDiv if lanes == 1 => format!("{0} / {1} - ({0} % {1} < 0)", s[0], s[1]),
            Op::Mod if lanes == 1 => format!("{0} % {1} + ({0} % {1} < 0 ? {1} : 0)", s[0], s[1]),
            Op::IDiv => format!("{0} / {1} + (({t})({0} % {1} < 0))", s[0], s[1]),
            Op::Mod => format!("{0} % {1} + ({1} & ({t})({0} % {1} < 0))", s[0], s[1]),
            Op::Where if lanes == 1 => format!("{} ? {} : {}", s[0], s[1], s[2]),
            Op::Where => format!("select_{t}({}, {}, {})", s[0], s[1], s[2]),
            Op::Table => {
                let Arg::Ints(table) = &n.arg else { return "0".into() };
                let mut entries: Vec<String> = table.iter().map(i32::to_string).collect();
                if lanes == 1 || table.len() > 16 {
                    let array = format!("((const {}[{}]){{{}}})", d.scalar.name(), entries.len(), entries.join(","));
                    if lanes == 1 {
                        return format!("{array}[{}]", s[0]);
                    }
                    let all: Vec<String> = (0..lanes).map(|i| format!("{array}[{}[{i}]]", s[0])).collect();
                    return format!("({t}){{{}}}", all.join(","));
                }
                entries.resize(16, "0".into());
                let index = cast(from, Scalar::I32.one().with_lanes(lanes), &s[0]);
                let (name, of) = if d.scalar == Scalar::F32 { ("table_f32", "f32x16") } else { ("table", "i32x16") };
                format!("{name}_{lanes}(({of}){{{}}}, {index})", entries.join(","))
            }
            Op::Dot4 => {
                let Arg::Int(most) = n.arg else { return "0".into() };
                // Without an instruction for it, products of two bytes are added in 16 bits, signed.
                let how = if most * 2 * 128 <= i16::MAX as i64 { "small" } else { "any" };
                format!("dot4_{how}_{lanes}({}, {}, {})", s[0], s[1], s[2])
            }
            Op::Table4 => {
                let Arg::Ints(table) = &n.arg else { return "0".into() };
                let entries: Vec<String> = table.iter().map(i32::to_string).collect();
                format!("table4_{lanes}((u8x16){{{}}}, {})", entries.join(","), s[0])
            }
            Op::Fold => {
                let Arg::Reduce(op, _) = n.arg else { return "0".into() };
                let how = match op {
                    ReduceOp::Add => "add",
                    ReduceOp::Max => "max",
                };
                let fold = |s: Scalar, x: &str| format!("fold_{how}_{}_{}({x})", s.name(), from.lanes);
                if from.scalar.is_half() {
                    let wide = cast(from, Scalar::F32.one().with_lanes(from.lanes), &s[0]);
                    return cast(Scalar::F32.one(), d, &fold(Scalar::F32, &wide));
                }
                fold(from.scalar, &s[0])
            }
            op => elementwise(op, d, from, s),
        }
    }
}

/// Arithmetic and comparisons, which floats have too: the text of `op` on `s`, of type `from`.
fn elementwise(op: Op, d: DType, from: DType, s: &[String]) -> String {
    let (lanes, t) = (d.lanes, type_of(d));
    match op {
        Op::Neg => format!("-{}", s[0]),
        Op::Exp => format!("exp_{lanes}({})", s[0]),
        Op::Log => format!("log_{lanes}({})", s[0]),
        Op::Sqrt => format!("sqrt_{lanes}({})", s[0]),
        Op::Round => format!("round_{lanes}({})", s[0]),
        Op::Recip => format!("1.0f / {}", s[0]),
        Op::Add => format!("{} + {}", s[0], s[1]),
        Op::Sub => format!("{} - {}", s[0], s[1]),
        Op::Mul => format!("{} * {}", s[0], s[1]),
        Op::Div => format!("{} / {}", s[0], s[1]),
        Op::Max if lanes == 1 => format!("{0} > {1} ? {0} : {1}", s[0], s[1]),
        Op::Min if lanes == 1 => format!("{0} < {1} ? {0} : {1}", s[0], s[1]),
        Op::Max => format!("select_{0}({1}({2} > {3}), {2}, {3})", t, mask(d), s[0], s[1]),
        Op::Min => format!("select_{0}({1}({2} < {3}), {2}, {3})", t, mask(d), s[0], s[1]),
        Op::Lt if lanes == 1 => format!("{} < {}", s[0], s[1]),
        Op::Eq if lanes == 1 => format!("{} == {}", s[0], s[1]),
        Op::Lt if from.scalar == Scalar::Bool => format!("~{} & {}", s[0], s[1]),
        Op::Lt => format!("{}({} < {})", mask(from), s[0], s[1]),
        Op::Eq => format!("{}({} == {})", mask(from), s[0], s[1]),
        Op::Fma => format!("fma_{lanes}({}, {}, {})", s[0], s[1], s[2]),
        op => unreachable!("{op:?} has no text"),
    }
}

/// One lane of a vector of that type: truth is a mask there.
fn lane(d: DType, x: &str) -> String {
    if d.scalar == Scalar::Bool && d.lanes > 1 { format!("-({x})") } else { x.into() }
}

/// Ops that halves know only as f32.
fn is_arithmetic(op: Op) -> bool {
    use Op::{Add, Div, Eq, Exp, Fma, Log, Lt, Max, Min, Mul, Neg, Recip, Round, Sqrt, Sub};
    matches!(op, Add | Div | Eq | Exp | Fma | Log | Lt | Max | Min | Mul | Neg | Recip | Round | Sqrt | Sub)
}

/// How a vector comparison of that type becomes a mask of i32.
fn mask(of: DType) -> String {
    match of.scalar.bytes() {
        _ if of.scalar == Scalar::Bool => format!("(i32x{})", of.lanes),
        4 => format!("(i32x{})", of.lanes),
        bytes => format!("cvt_i{}_i32_{}", 8 * bytes, of.lanes),
    }
}

fn cast(from: DType, to: DType, x: &str) -> String {
    let l = to.lanes;
    match (from.scalar, to.scalar) {
        (a, b) if a == b => x.into(),
        (Scalar::Bool, s) if l > 1 => {
            cast(Scalar::I32.one().with_lanes(l), s.one().with_lanes(l), &format!("({x} & 1)"))
        }
        (Scalar::F16 | Scalar::BF16, Scalar::F32) | (Scalar::F32, Scalar::F16 | Scalar::BF16) => {
            format!("cvt_{}_{}_{l}({x})", from.scalar.name(), to.scalar.name())
        }
        (Scalar::F16 | Scalar::BF16, _) => {
            let middle = format!("cvt_{}_f32_{l}({x})", from.scalar.name());
            cast(Scalar::F32.one().with_lanes(l), to, &middle)
        }
        (_, Scalar::F16 | Scalar::BF16) => {
            let middle = cast(from, Scalar::F32.one().with_lanes(l), x);
            format!("cvt_f32_{}_{l}({middle})", to.scalar.name())
        }
        (Scalar::F32, b) if b.is_int() => format!("cvt_f32_{}_{l}({x})", b.name()),
        (_, Scalar::Bool) if l == 1 => format!("{x} != 0"),
        (_, Scalar::Bool) => format!("{}({x} != 0)", mask(from)),
        _ if l == 1 => format!("({})({x})", type_of(to)),
        (a, b) if CONVERSIONS.contains(&(a.name(), b.name())) => format!("cvt_{}_{}_{l}({x})", a.name(), b.name()),
        _ => format!("__builtin_convertvector({x}, {})", type_of(to)),
    }
}

fn literal(g: &Graph, id: Id) -> String {
    match (g.int_value(id), g.float_value(id)) {
        (_, Some(v)) if g.scalar(id) == Scalar::F16 => f16::from_f64(v).to_bits().to_string(),
        (_, Some(v)) if g.scalar(id) == Scalar::BF16 => bf16::from_f64(v).to_bits().to_string(),
        (Some(v), _) if v == i64::MIN => "(-9223372036854775807 - 1)".into(),
        (Some(v), _) if g.scalar(id) == Scalar::I32 && v == i32::MIN as i64 => "(-2147483647 - 1)".into(),
        (Some(v), _) if v < 0 => format!("({v})"),
        (Some(v), _) => v.to_string(),
        (_, Some(v)) if v.is_infinite() => if v > 0.0 { "__builtin_inff()" } else { "(-__builtin_inff())" }.into(),
        (_, Some(v)) if v.is_nan() => "__builtin_nanf(\"\")".into(),
        // Hexadecimal would be exact too; nine digits are, and can be read.
        (_, Some(v)) => format!("({:.9e}f)", v as f32),
        _ => "0".into(),
    }
}
