//! CUDA C dialect without headers; the prelude (`prelude.rs`) defines everything device-specific.
//!
//! A kernel is `ENTRY(threads, beside, name)(buffers…, const i64 *v CLOCK)`, where `beside` is the
//! number of workgroups resident on a multiprocessor. A workgroup is a thread block; its index is
//! `GROUP_INDEX`, a thread's is `THREAD_INDEX`. Surplus workgroups return at once, so a launch may
//! be larger than needed.

pub mod measuring;
mod prelude;

pub use prelude::{common, prelude};

use crate::names::{Names, unprintable};
use crate::render::{Expressions, Values, cast, stored, sum};
use crate::simt::{Simt, SimtText};
use gristmill_compiler::emit::{Accessor, CustomCode, CustomDialect, Dialect, Signature};
use gristmill_compiler::lower::{Addition, KernelCode, Prefetch, SpanPrefetch, Statement};
use gristmill_uop::custom::Language;
use gristmill_uop::program::Access;
use gristmill_uop::{Arg, Graph, Id, Op, ReduceOp, Scalar};

/// Threads of the kernel that computes nothing.
pub const IDLE: u32 = 32;

/// Returns a kernel that only waits for its predecessors.
pub fn idle(name: &str) -> String {
    let turn = "const i32 thread = THREAD_INDEX; DEPENDENTS_MAY_START; PREDECESSORS_ENDED;";
    format!("ENTRY({IDLE}, 1, {name})(const i64 *RESTRICT v CLOCK) {{ {turn} }}\n")
}

/// The dialect that renders CUDA C.
pub struct Cuda;

impl Dialect for Cuda {
    fn render(
        &self,
        name: &str,
        graph: &Graph,
        code: &KernelCode,
        signature: &Signature,
    ) -> String {
        let t = Expressions::new(name, graph, signature, Values::Threads);
        let mut w = Writer {
            t,
            code,
            text: SimtText::default(),
        };
        w.kernel(name);
        w.t.definitions() + &w.text.out
    }
    fn custom(&self) -> Option<&dyn CustomDialect> {
        Some(self)
    }
}

impl CustomDialect for Cuda {
    fn language(&self) -> Language {
        Language {
            name: "cuda",
            has_pointers: true,
        }
    }
    fn render(
        &self,
        name: &str,
        graph: &Graph,
        code: &CustomCode,
        signature: &Signature,
    ) -> String {
        let t = Expressions::new(name, graph, signature, Values::Threads);
        // A custom kernel may read the output of any predecessor, so it waits at entry.
        let entry = vec![Statement::DependencyWait, Statement::LaunchDependents];
        let alone = KernelCode {
            bodies: vec![],
            threads: code.threads,
            resident: 1,
            shared: None,
            entry,
            idle: vec![],
        };
        let mut w = Writer {
            t,
            code: &alone,
            text: SimtText::default(),
        };
        code.accessors.iter().for_each(|of| w.accessor(of));
        w.begin(name);
        let count = w.t.index(signature.groups[0]);
        w.line(format_args!(
            "if (w >= {count}) return;\nconst i32 threads = {};",
            code.threads
        ));
        let body = w.t.custom_body(code, self.language().name);
        w.text.out.push_str(&body);
        w.line(format_args!("}}"));
        w.t.definitions() + &w.text.out
    }
}

struct Writer<'a> {
    t: Expressions<'a>,
    code: &'a KernelCode,
    text: SimtText<'a>,
}

impl<'a> Simt<'a> for Writer<'a> {
    const UNSIGNED: &'static str = "";

    fn text(&mut self) -> &mut SimtText<'a> {
        &mut self.text
    }
    fn names(&self) -> &Names<'a> {
        &self.t.names
    }
    fn type_of(&self, id: Id) -> String {
        self.t.type_of(id)
    }
    fn index(&self, id: Id) -> String {
        self.t.index(id)
    }
    fn converted(&self, t: &str, value: &str) -> String {
        format!("({t})({value})")
    }
    fn range(&self, name: &str, t: &str, value: &str) -> String {
        format!("const {t} {name} = ({t})({value});")
    }
    fn range_of_threads(&self, name: &str, t: &str, value: &str) -> String {
        format!("const {t} {name} = {value};")
    }
    fn quotient(&self, of: &str, by: &str) -> String {
        format!("{of} / {by}")
    }
    fn workgroup(&self, _: usize) -> String {
        "(u32)w".into()
    }
    fn head(&self, _: usize, count: Id) -> String {
        format!(
            "{{ const i64 count = {};\nif (w >= 0 && w < count) {{",
            self.t.index(count)
        )
    }
    fn tail(&self, _: usize) -> String {
        "return; }\nw -= count; }".into()
    }
    fn early_return(&self) -> String {
        format!("{} return;", words(&self.code.idle))
    }
    /// Consecutive one-word statements share a line.
    fn statements(&mut self, all: &'a [Statement]) {
        for run in all
            .chunk_by(|a, b| *a == Statement::DependencyWait && *b == Statement::LaunchDependents)
        {
            match run {
                [s] if statement_helper(s).is_none() => self.statement(s),
                run => self.line(format_args!("{}", words(run))),
            }
        }
    }
    fn statement(&mut self, s: &'a Statement) {
        match s {
            s if self.block(s) => {}
            Statement::Define(id) => {
                let e = match self.t.g[*id].op {
                    Op::Fold => self.fold(*id),
                    _ => self.t.expression(*id),
                };
                let (t, v) = (self.t.type_of(*id), self.t.number(*id));
                self.line(format_args!("const {t} v{v} = {e};"));
            }
            Statement::Wide(buffer, at, bytes, parts)
            | Statement::Copied(buffer, at, bytes, parts) => {
                self.wide(*buffer, *at, *bytes, parts);
            }
            Statement::Loop {
                range,
                step: 1,
                unroll,
            } => {
                let header = self.header(*range);
                match unroll {
                    Some(unroll) => self.line(format_args!("UNROLL({unroll}) {header} {{")),
                    None => self.line(format_args!("{header} {{")),
                }
            }
            Statement::Accumulator(acc) => {
                let node = &self.t.g[*acc];
                let (t, first, a) = (
                    self.t.type_of(node.src[1]),
                    self.t.name(node.src[0]),
                    self.t.number(node.src[1]),
                );
                self.line(format_args!("{t} a{a} = {first};"));
            }
            Statement::Accumulate(acc, value) => {
                let (e, a) = (
                    self.t.expression(*value),
                    self.t.number(self.t.g[*acc].src[1]),
                );
                self.line(format_args!("a{a} = {e};"));
            }
            Statement::Write(buffer, at, value) => self.write(*buffer, *at, *value),
            Statement::Add(addition) => self.add(addition),
            Statement::WriteTile(..) => unreachable!("a GPU has no tiles: {s:?}"),
            Statement::WideWrite(buffer, at, bytes, values) => {
                self.wide_write(*buffer, *at, *bytes, values)
            }
            Statement::AsyncCopy {
                to,
                from,
                plus,
                bytes: 16,
                when,
            } => self.copy([*to, *from], *plus, *when),
            Statement::AsyncWait(groups) if *groups > 0 => {
                self.line(format_args!("COPIES_ENDED_BUT({groups});"))
            }
            Statement::ProductsEnded(but) if *but > 0 => {
                self.line(format_args!("PRODUCTS_ENDED_BUT({but});"))
            }
            Statement::Carried(load, first) => {
                let (t, load, first) = (
                    self.t.type_of(*load),
                    self.t.name(*load),
                    self.t.name(*first),
                );
                self.line(format_args!("{t} {load} = {first};"));
            }
            Statement::Carry(load, next) => {
                let (load, next) = (self.t.name(*load), self.t.name(*next));
                self.line(format_args!("{load} = {next};"));
            }
            Statement::Prefetch(Prefetch::Span(span)) => self.span(span),
            Statement::Leave(condition) => {
                let condition = self.t.index(*condition);
                self.line(format_args!("if ({condition}) return;"));
            }
            s => panic!("CUDA C has no text for {s:?}"),
        }
    }
}

impl<'a> Writer<'a> {
    /// Renders a parameter with its type.
    fn pointer(&self, i: usize) -> String {
        let (_, access, node) = self.t.signature.params[i];
        let packed = matches!(self.t.g[node].arg, Arg::Packed(..));
        let t = if packed {
            "u8".into()
        } else {
            stored(self.t.g[node].dtype)
        };
        // Constant weights are `RESTRICT`, so that the compiler may load them
        // before the dependency wait.
        match access {
            Access::Read if packed => format!("const {t} *RESTRICT p{i}"),
            Access::Read => format!("const {t} *p{i}"),
            Access::Write | Access::ReadWrite => format!("{t} *p{i}"),
        }
    }
    /// Writes an accessor function for a user's text.
    fn accessor(&mut self, of: &'a Accessor) {
        let buffers = (0..self.t.signature.params.len()).map(|i| self.pointer(i));
        let variables = self.t.signature.vars.iter().enumerate();
        let variables = variables.map(|(i, v)| format!("const {} var{i}", self.t.type_of(v.1)));
        let head = self
            .t
            .accessor_head(of, &buffers.chain(variables).collect::<Vec<_>>());
        self.line(format_args!("{head}"));
        self.statements(&of.statements);
        let tail = self.t.accessor_tail(of);
        self.line(format_args!("{tail}"));
    }
    /// Writes the head of a kernel, up to its bodies.
    fn begin(&mut self, name: &str) {
        let code = self.code;
        let mut arguments: Vec<String> = (0..self.t.signature.params.len())
            .map(|i| self.pointer(i))
            .collect();
        arguments.push("const i64 *RESTRICT v CLOCK".into());
        // The driver's settings are part of the text, as programs with equal text share a module.
        if let Some(percent) = code.shared {
            self.line(format_args!("// {percent} % of a unit's memory shared"));
        }
        self.line(format_args!(
            "ENTRY({}, {}, {name})({}) {{",
            code.threads,
            code.resident,
            arguments.join(", ")
        ));
        self.line(format_args!("const i32 thread = THREAD_INDEX;"));
        for (i, node) in self.t.signature.vars.iter().map(|v| v.1).enumerate() {
            let t = self.t.type_of(node);
            self.line(format_args!("const {t} var{i} = ({t})v[{i}];"));
        }
        if self.t.signature.scratch_bytes > 0 {
            self.line(format_args!("SHARED(scratch);"));
        }
        for (i, &(local, at)) in self.t.signature.scratch.iter().enumerate() {
            let t = stored(self.t.g[local].dtype);
            self.line(format_args!("{t} *const l{i} = ({t} *)(scratch + {at});"));
        }
        self.line(format_args!("i64 w = GROUP_INDEX;"));
        self.statements(&code.entry);
    }
    fn kernel(&mut self, name: &str) {
        self.begin(name);
        let code = self.code;
        for (i, code) in code.bodies.iter().enumerate() {
            self.body(i, code);
        }
        self.statements(&code.idle);
        self.line(format_args!("}}"));
    }
    /// Renders the head of a loop.
    fn header(&self, range: Id) -> String {
        let (t, n, bound) = (
            self.t.type_of(range),
            self.t.g.range_number(range),
            self.t.name(self.t.g[range].src[0]),
        );
        format!("for ({t} r{n} = 0; r{n} < {bound}; r{n}++)")
    }
    /// Writes a prefetch of a span of bytes to L2, by one instruction of the workgroup.
    fn span(&mut self, span: &SpanPrefetch) {
        for &r in &span.loops {
            let header = self.header(r);
            self.line(format_args!("{header}"));
        }
        let term = |&(t, c): &(Id, i64)| format!("(i64)({}) * {c} + ", self.t.index(t));
        let terms: String = span.terms.iter().map(term).collect();
        let b = self.t.buffer(span.buffer);
        self.line(format_args!(
            "ASK_FOR((const u8 *){b} + ({terms}{}), {});",
            span.from, span.bytes
        ));
    }
    /// Renders the sum or maximum over lanes, which are threads.
    fn fold(&mut self, id: Id) -> String {
        let n = &self.t.g[id];
        let how = match n.arg {
            Arg::Reduce(ReduceOp::Add, _) => "add",
            Arg::Reduce(ReduceOp::Max, _) => "max",
            _ => unprintable(self.t.g, id),
        };
        let ([lanes, stride], x) = (self.lanes(id), self.t.name(n.src[0]));
        // Partial results of narrow types are reduced in wider ones.
        let own = n.dtype;
        let folded = match own.scalar {
            Scalar::I64 if self.t.type_of(id) == "i32" => Scalar::I32,
            s @ (Scalar::I32 | Scalar::U32 | Scalar::I64 | Scalar::F32) => s,
            s if s.is_half() => Scalar::F32,
            _ => Scalar::I32,
        };
        let x = if own.scalar == Scalar::I64 {
            x
        } else {
            cast(own, folded.one(), &x)
        };
        let fold = format!("fold_{how}_{}({x}, {lanes}, {stride})", folded.name());
        if own.scalar == Scalar::I64 {
            fold
        } else {
            cast(folded.one(), own, &fold)
        }
    }
    fn wide(&mut self, buffer: Id, at: Id, bytes: usize, parts: &[(Id, usize)]) {
        let (b, at, number) = (
            self.t.buffer(buffer),
            self.t.name(at),
            self.t.number(parts[0].0),
        );
        self.line(format_args!(
            "const u32x{} w{number} = *(const u32x{0} *)({b} + {at});",
            bytes / 4
        ));
        for &(load, byte) in parts {
            let d = self.t.g[load].dtype.scalar;
            let word = format!("w{number}.{}", ["x", "y", "z", "w"][byte / 4]);
            let shifted = if byte % 4 == 0 {
                word
            } else {
                format!("{word} >> {}", 8 * (byte % 4))
            };
            let value = match d {
                Scalar::U32 => shifted,
                Scalar::F32 => format!("bits_u32_f32({shifted})"),
                d => format!("({})({shifted})", stored(d.one())),
            };
            let (t, v) = (self.t.type_of(load), self.t.number(load));
            self.line(format_args!("const {t} v{v} = {value};"));
        }
    }
    fn wide_write(&mut self, buffer: Id, at: Id, bytes: usize, values: &[Id]) {
        let (b, at) = (self.t.buffer(buffer), self.t.name(at));
        let word = |values: &[Id]| match values {
            &[one] if self.t.g.scalar(one) == Scalar::F32 => {
                format!("bits_f32_u32({})", self.t.name(one))
            }
            &[one] => format!("(u32)({})", self.t.name(one)),
            parts => {
                let bits = 32 / parts.len();
                let part = |(i, &p): (usize, &Id)| {
                    format!("(u32)(u{bits})({}) << {}", self.t.name(p), i * bits)
                };
                parts
                    .iter()
                    .enumerate()
                    .map(part)
                    .collect::<Vec<_>>()
                    .join(" | ")
            }
        };
        let words: Vec<String> = values.chunks(values.len() * 4 / bytes).map(word).collect();
        match &words[..] {
            [word] => self.line(format_args!("*(u32 *)({b} + {at}) = {word};")),
            words => {
                let t = format!("u32x{}", words.len());
                self.line(format_args!(
                    "*({t} *)({b} + {at}) = {t}{{{}}};",
                    words.join(", ")
                ));
            }
        }
    }
    /// Writes an asynchronous 16-byte copy; `places` are destination and source, `plus` their
    /// constant offsets in elements.
    fn copy(&mut self, places: [[Id; 2]; 2], plus: [i64; 2], when: Option<Id>) {
        let [to, from] =
            places.map(|[buffer, at]| format!("{} + {}", self.t.buffer(buffer), self.t.name(at)));
        let when = when.map_or(String::new(), |when| {
            format!("if ({}) ", self.t.index(when))
        });
        let bytes = |i: usize| plus[i] * self.t.g.unit_bytes(places[i][0]);
        match [bytes(0), bytes(1)] {
            [0, 0] => self.line(format_args!("{when}COPY({to}, {from});")),
            // Constant offsets are immediates of the instruction, so threads compute few addresses.
            [a, b] => self.line(format_args!("{when}COPY_BEHIND({to}, {a}, {from}, {b});")),
        }
    }
    fn add(&mut self, a: &Addition) {
        let (b, at) = (self.t.buffer(a.buffer), self.t.name(a.at));
        let d = self.t.g[a.values[0]].dtype;
        let when = a
            .when
            .map_or(String::new(), |when| format!("if ({}) ", self.t.name(when)));
        let values: Vec<String> = a.values.iter().map(|&v| self.t.name(v)).collect();
        match (&values[..], a.atomic) {
            ([x], true) => self.line(format_args!(
                "{when}add_{}({b} + {at}, {x});",
                d.scalar.name()
            )),
            ([x], false) => {
                let sum = sum(d, &format!("{b}[{at}]"), x);
                self.line(format_args!("{when}{b}[{at}] = {sum};"));
            }
            (pair, _) => self.line(format_args!(
                "{when}add_f16_pair({b} + {at}, {});",
                pair.join(", ")
            )),
        }
    }
    fn write(&mut self, buffer: Id, at: Id, value: Id) {
        let d = self.t.g[value].dtype;
        let (b, at, v) = (self.t.buffer(buffer), self.t.name(at), self.t.name(value));
        let packed = matches!(self.t.g[buffer].arg, Arg::Packed(..));
        if packed && d.scalar.bytes() > 1 {
            self.line(format_args!("*({0} *)({b} + {at}) = {v};", stored(d)));
        } else {
            self.line(format_args!("{b}[{at}] = {v};"));
        }
    }
}

/// Returns the prelude's macro for a statement, if it is one.
fn statement_helper(s: &Statement) -> Option<&'static str> {
    Some(match s {
        Statement::Barrier => "BARRIER;",
        Statement::AsyncWait(0) => "COPIES_ENDED;",
        Statement::AsyncGroup => "COPIES_MADE;",
        Statement::ProductsEnded(0) => "PRODUCTS_ENDED;",
        Statement::WritesShown => "WRITES_SHOWN;",
        Statement::DependencyWait => "PREDECESSORS_ENDED;",
        Statement::LaunchDependents => "DEPENDENTS_MAY_START;",
        _ => return None,
    })
}

/// Joins such statements on one line.
fn words(all: &[Statement]) -> String {
    let all: Vec<&str> = all
        .iter()
        .map(|s| statement_helper(s).unwrap_or_else(|| panic!("no word of the prelude is {s:?}")))
        .collect();
    all.join(" ")
}
