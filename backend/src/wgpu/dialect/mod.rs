//! WGSL: a module for each kernel, its prelude before it. What differs between adapters is in the code, or in the machine that it was lowered for (words alone are loaded, so many neighbours fold values).
//!
//! Buffers are arrays of words at bindings 0, 1, …, in the order of `Program::params`; the variables, each an i32, are a uniform buffer behind them. A
//! buffer that the kernel writes bytes or halves to is one of atomic words. One that is longer than the adapter binds has further bindings behind the variables, and behind these lie constant tables, if there are any. The workgroup's number is `x + GROUPS_X·y` of the grid.

mod cooperative;
mod expression;
mod memory;
pub mod order;
mod prelude;
mod tables;

use crate::names::{Names, unprintable};
use crate::simt::{Simt, Text};
use expression::Expressions;
use gristmill_compiler::emit::{Accessor, CustomCode, CustomDialect, Dialect, Signature};
use gristmill_compiler::lower::{Addition, KernelCode, Prefetch, Statement, accesses, end_of_block};
use gristmill_uop::custom::Language;
use gristmill_uop::{Arg, Graph, Id, Op, ReduceOp, Scalar};
use memory::Memories;
use prelude::LONG;
pub use prelude::PRELUDE;
pub use tables::words_of_tables;

/// Workgroups of a row of the grid, where there is more than one row: a dimension has no more than 65,535.
pub const GROUPS_X: u32 = 1 << 15;

/// The dialect.
pub struct Wgsl;

/// A kernel's text with all that stands before it.
pub fn module(text: &str) -> String {
    let enable = if multiplies(text) { cooperative::ENABLE } else { "" };
    format!("{enable}{PRELUDE}{text}")
}

/// Do subgroups multiply matrices in that text?
pub fn multiplies(text: &str) -> bool {
    text.contains(cooperative::MATRIX)
}

impl Dialect for Wgsl {
    fn render(&self, name: &str, graph: &Graph, code: &KernelCode, signature: &Signature) -> String {
        let mut w = Writer::new(graph, code.bodies.iter().flat_map(|body| &body.statements), signature);
        w.begin(name, code.threads);
        code.bodies.iter().enumerate().for_each(|(i, body)| w.body(i, body));
        w.line(format_args!("}}"));
        w.finished()
    }
    fn custom(&self) -> Option<&dyn CustomDialect> {
        Some(self)
    }
}

impl CustomDialect for Wgsl {
    fn language(&self) -> Language {
        Language { name: "wgsl", has_pointers: false }
    }
    fn render(&self, name: &str, graph: &Graph, code: &CustomCode, signature: &Signature) -> String {
        let mut w = Writer::new(graph, code.accessors.iter().flat_map(|of| &of.statements), signature);
        code.accessors.iter().for_each(|of| w.accessor(of));
        w.custom(name, code);
        w.finished()
    }
}

struct Writer<'a> {
    t: Expressions<'a>,
    memories: Memories,
    text: Text<'a>,
}

impl<'a> Simt<'a> for Writer<'a> {
    const UNSIGNED: &'static str = "u";

    fn text(&mut self) -> &mut Text<'a> {
        &mut self.text
    }
    fn names(&self) -> &Names<'a> {
        &self.t.names
    }
    fn type_of(&self, id: Id) -> String {
        self.t.type_of(id).name().into()
    }
    fn index(&self, id: Id) -> String {
        self.t.index(id)
    }
    fn converted(&self, t: &str, value: &str) -> String {
        format!("{t}({value})")
    }
    fn range(&self, name: &str, t: &str, value: &str) -> String {
        format!("let {name} = {t}({value});")
    }
    fn quotient(&self, of: &str, by: &str) -> String {
        format!("({of} / {by})")
    }
    fn workgroup(&self, body: usize) -> String {
        format!("u32(w{body})")
    }
    /// In values that do not change: of a variable nobody knows that all threads have the same, as those must who multiply matrices together.
    fn head(&self, body: usize, count: Id) -> String {
        format!("let count{body} = i32({});\nif (w{body} < count{body}) {{", self.t.index(count))
    }
    fn tail(&self, body: usize) -> String {
        format!("return; }}\nlet w{} = w{body} - count{body};", body + 1)
    }
    fn leave(&self) -> String {
        "return;".into()
    }
    fn statements(&mut self, all: &'a [Statement]) {
        let mut at = 0;
        while let Some(s) = all.get(at) {
            match s {
                Statement::Loop { range, unroll: Some(copies @ 2..) } => {
                    let end = at + end_of_block(&all[at..]);
                    self.unrolled(*range, *copies, &all[at + 1..end]);
                    at = end;
                }
                s => self.statement(s),
            }
            at += 1;
        }
    }
    fn statement(&mut self, s: &'a Statement) {
        match s {
            s if self.block(s) => {}
            Statement::Define(id) => self.define(*id),
            Statement::Wide(buffer, at, bytes, parts) => self.wide(*buffer, *at, *bytes, parts),
            Statement::Loop { range, .. } => {
                let (t, n) = (self.t.type_of(*range).name(), self.t.g.range_number(*range));
                let bound = self.t.name(self.t.g[*range].src[0]);
                self.line(format_args!("for (var r{n} = {t}(0); r{n} < {t}({bound}); r{n} += {t}(1)) {{"));
            }
            Statement::Accumulator(acc) if cooperative::is_sums(self.t.g[*acc].dtype) => {
                let text = cooperative::first_sums(&self.t, *acc);
                self.line(format_args!("{text}"));
            }
            Statement::WriteTile(buffer, at, stride, value) => {
                let text = cooperative::write(&self.t, &self.memories, [*buffer, *at, *value], *stride);
                self.line(format_args!("{text}"));
            }
            Statement::Accumulator(acc) => {
                let node = &self.t.g[*acc];
                let (t, first, a) = (self.t.type_of(node.src[1]), self.t.name(node.src[0]), self.t.number(node.src[1]));
                self.line(format_args!("var a{a} = {}({first});", t.name()));
            }
            Statement::Accumulate(acc, value) => {
                let of = self.t.g[*acc].src[1];
                let (e, a) = (self.t.expression(*value), self.t.number(of));
                match cooperative::is_sums(self.t.g[of].dtype) || self.t.type_of(of) == self.t.type_of(*value) {
                    true => self.line(format_args!("a{a} = {e};")),
                    false => self.line(format_args!("a{a} = {}({e});", self.t.type_of(of).name())),
                }
            }
            Statement::Write(buffer, at, value) => self.write(*buffer, *at, &[*value]),
            Statement::Add(addition) => self.add(addition),
            Statement::WideWrite(buffer, at, _, values) => self.write(*buffer, *at, values),
            Statement::Barrier => self.line(format_args!("workgroupBarrier();")),
            // A dispatch begins when those before it have ended, and nothing is asked for ahead. Copies ahead, and what they bring, are of machines that start early alone.
            Statement::DependencyWait | Statement::LaunchDependents | Statement::Prefetch(Prefetch::Span(_)) => {}
            s => panic!("WGSL has no text for {s:?}"),
        }
    }
}

impl<'a> Writer<'a> {
    /// Of a kernel that has these statements.
    fn new(g: &'a Graph, all: impl Iterator<Item = &'a Statement>, signature: &'a Signature) -> Writer<'a> {
        let memories = Memories::of(g, &accesses(g, all), signature);
        Writer { t: Expressions::new(g, signature), memories, text: Text::default() }
    }
    /// What is written, with all that it needs before it.
    fn finished(&self) -> String {
        let (memories, binding) = self.memories.definitions(self.names().signature);
        let tables = self.t.tables.borrow().definitions(binding);
        let long = if self.text.out.contains("f32_to_i64(") { LONG } else { "" };
        format!("{long}{tables}{memories}{}", self.text.out)
    }
    /// The variables.
    fn variables(&mut self) {
        for (i, &(_, node)) in self.names().signature.vars.iter().enumerate() {
            match self.t.type_of(node) {
                Scalar::I32 => self.line(format_args!("let var{i} = variables.v{i};")),
                _ => unprintable(self.t.g, node),
            }
        }
    }
    /// The head of a kernel, up to the number of its workgroup.
    fn begin(&mut self, name: &str, threads: usize) {
        let arguments = "@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32";
        self.line(format_args!("@compute @workgroup_size({threads})\nfn {name}({arguments}) {{"));
        self.variables();
        self.line(format_args!("let w0 = i32(group.x + {GROUPS_X}u * group.y);"));
    }
    /// A function that a user's text calls.
    fn accessor(&mut self, of: &'a Accessor) {
        let t = self.t.type_of(of.value).name();
        let index = of.index.map_or("at: i32".into(), |r| format!("{}: {}", self.t.name(r), self.t.type_of(r).name()));
        let (name, value) = (of.name, self.t.name(of.value));
        match of.stores {
            true => self.line(format_args!("fn {name}({index}, {value}: {t}) {{")),
            false => self.line(format_args!("fn {name}({index}) -> {t} {{")),
        }
        self.variables();
        self.statements(&of.statements);
        if !of.stores {
            self.line(format_args!("return {value};"));
        }
        self.line(format_args!("}}"));
    }
    /// The kernel around a user's text.
    fn custom(&mut self, name: &str, code: &CustomCode) {
        self.begin(name, code.threads);
        let signature = self.names().signature;
        let count = self.t.index(signature.groups[0]);
        self.line(format_args!("if (w0 >= i32({count})) {{ return; }}\n{{"));
        // Whole numbers of one type, as indices are.
        self.line(format_args!("let w = w0; let threads = {}i; let thread = i32(thread);", code.threads));
        let g = self.t.g;
        for (&called, &read) in code.kernel.arguments.iter().zip(&g[code.value].src) {
            if g[read].op == Op::Var && code.kernel.calls(called).is_none() {
                let variable = self.t.name(read);
                self.line(format_args!("let {called} = {variable};"));
            }
        }
        let text = code.kernel.text("wgsl").unwrap_or_else(|| unprintable(g, code.value));
        self.line(format_args!("{text}\n}} }}"));
    }
    /// A value that has a name from here on, but for what begins a product's sums: that is said where these are.
    fn define(&mut self, id: Id) {
        let (op, dtype) = (self.t.g[id].op, self.t.g[id].dtype);
        let text = match op {
            Op::Fold => return self.fold(id),
            Op::TileLoad => cooperative::load(&self.t, &self.memories, id),
            Op::ScaledPair => cooperative::scaled_pair(&self.t, id),
            _ if cooperative::is_sums(dtype) => return,
            op => {
                let e = if op == Op::Load { self.load(id) } else { self.t.expression(id) };
                format!("let v{}: {} = {e};", self.t.number(id), self.t.type_of(id).name())
            }
        };
        self.line(format_args!("{text}"));
    }
    /// A loop of which so many iterations are written out one after the other: WGSL has no word for that, and a driver keeps loops in which memory is loaded, whose
    /// iterations then wait for it one after the other.
    fn unrolled(&mut self, range: Id, copies: i64, body: &'a [Statement]) {
        let (g, t, n) = (self.t.g, self.t.type_of(range).name(), self.t.g.range_number(range));
        let (count, bound) = (g.int_value(g[range].src[0]), self.t.name(g[range].src[0]));
        let copy = |this: &mut Self, value: String| {
            this.line(format_args!("{{\nlet r{n} = {value};"));
            this.statements(body);
            this.line(format_args!("}}"));
        };
        let rounds = count.map(|count| if count < 2 * copies { 0 } else { count / copies });
        if rounds != Some(0) {
            let (last, ahead) = (count.map_or(bound.clone(), |count| count.to_string()), copies - 1);
            self.line(format_args!(
                "for (var first{n} = {t}(0); first{n} + {t}({ahead}) < {t}({last}); first{n} += {t}({copies})) {{"
            ));
            (0..copies).for_each(|i| copy(self, format!("first{n} + {t}({i})")));
            self.line(format_args!("}}"));
        }
        // What is no whole round.
        match rounds.zip(count) {
            Some((rounds, count)) => (rounds * copies..count).for_each(|i| copy(self, format!("{t}({i})"))),
            None => {
                let first = format!("{t}({bound}) / {t}({copies}) * {t}({copies})");
                self.line(format_args!("for (var first{n} = {first}; first{n} < {t}({bound}); first{n} += {t}(1)) {{"));
                copy(self, format!("first{n}"));
                self.line(format_args!("}}"));
            }
        }
    }
    /// The sum or maximum over neighbours, which exchange registers.
    fn fold(&mut self, id: Id) {
        let n = &self.t.g[id];
        let (x, v, t) = (self.t.name(n.src[0]), self.t.number(id), self.t.type_of(id).name());
        let ([lanes, stride], adds) = (self.lanes(id), matches!(n.arg, Arg::Reduce(ReduceOp::Add, _)));
        self.line(format_args!("var v{v}: {t} = {x};"));
        for by in (0..lanes.ilog2()).map(|bit| stride << bit) {
            let other = format!("subgroupShuffleXor(v{v}, {by}u)");
            let folded = if adds { format!("v{v} + {other}") } else { format!("max(v{v}, {other})") };
            self.line(format_args!("v{v} = {folded};"));
        }
    }
    /// The word of a buffer's element: what varies and what does not, in words.
    fn word(&self, buffer: Id, at: Id) -> String {
        let unit = self.t.g.unit_bytes(buffer);
        if let Some(at) = self.t.g.int_value(at) {
            return format!("{}u", at * unit / 4);
        }
        let at = self.offset(at);
        match unit {
            1 => format!("({at} >> 2u)"),
            2 => format!("({at} >> 1u)"),
            4 => at,
            unit => format!("({at} * {}u)", unit / 4),
        }
    }
    fn offset(&self, at: Id) -> String {
        format!("u32({})", self.t.name(at))
    }
    /// A value of 32 bits that a word is: what is narrower is loaded as a part of one.
    fn of_word(&self, id: Id, word: String) -> String {
        match (self.t.g.scalar(id).bytes(), self.t.type_of(id)) {
            (4, Scalar::U32) => word,
            (4, t) => format!("bitcast<{}>({word})", t.name()),
            _ => unprintable(self.t.g, id),
        }
    }
    fn load(&self, id: Id) -> String {
        let n = &self.t.g[id];
        let word = self.word(n.src[0], n.src[1]);
        let [first, second] = [0, 1].map(|i| self.memories.read(n.src[0], &word, i));
        match (n.dtype.scalar.bytes(), self.t.type_of(id)) {
            (8, Scalar::I32) => format!("i32({first})"),
            (8, Scalar::I64) => format!("i64((u64({second}) << 32u) | u64({first}))"),
            _ => self.of_word(id, first),
        }
    }
    fn wide(&mut self, buffer: Id, at: Id, bytes: usize, parts: &[(Id, usize)]) {
        let (word, name) = (self.word(buffer, at), format!("w{}", self.t.number(parts[0].0)));
        let (loads, words) = self.memories.read_wide(buffer, &word, bytes / 4, &name);
        loads.iter().for_each(|text| self.line(format_args!("{text}")));
        for &(load, byte) in parts {
            let (value, t, v) =
                (self.of_word(load, words[byte / 4].clone()), self.t.type_of(load), self.t.number(load));
            self.line(format_args!("let v{v}: {} = {value};", t.name()));
        }
    }
    /// The words of values that lie side by side in one, or of one value.
    fn words(&self, values: &[Id]) -> Vec<String> {
        let size = 8 * self.t.g.scalar(values[0]).bytes();
        let part = |(i, &v): (usize, &Id)| match (self.t.name(v), self.t.type_of(v)) {
            (x, Scalar::U32) if size == 32 => x,
            (x, Scalar::F32) => format!("bitcast<u32>({x})"),
            (x, _) if size >= 32 => format!("u32({x})"),
            (x, _) => format!("((u32({x}) & {}u) << {}u)", (1u64 << size) - 1, i * size),
        };
        let first = values.iter().enumerate().map(part).collect::<Vec<_>>().join(" | ");
        let sign = if self.t.type_of(values[0]) == Scalar::I64 { 32 } else { 31 };
        let second = (size == 64).then(|| format!("u32({} >> {sign}u)", self.t.name(values[0])));
        std::iter::once(first).chain(second).collect()
    }
    /// Writes values side by side. What is less than a word others may write the rest of.
    fn write(&mut self, buffer: Id, at: Id, values: &[Id]) {
        let size = self.t.g.scalar(values[0]).bytes();
        let words: Vec<String> = values.chunks((4 / size).max(1)).flat_map(|of| self.words(of)).collect();
        let texts = match values.len() * size {
            _ if self.memories.get(buffer).matrix == Some(Scalar::F16) => {
                cooperative::writes(&self.t, &self.memories, [buffer, at], values)
            }
            4.. => self.memories.write(buffer, &self.word(buffer, at), &words),
            bytes => {
                let (byte, word) = (self.t.g.unit_bytes(buffer), self.memories.element(buffer, "(byte >> 2u)"));
                let mask = (1u64 << (8 * bytes)) - 1;
                let place = format!("{{ let byte = {} * {byte}u; let by = byte % 4u * 8u;", self.offset(at));
                let cleared = format!("atomicAnd(&{word}, ~({mask}u << by));");
                vec![place, cleared, format!("atomicOr(&{word}, {} << by); }}", words[0])]
            }
        };
        texts.iter().for_each(|text| self.line(format_args!("{text}")));
    }
    fn add(&mut self, a: &Addition) {
        let (scalar, word) = (self.t.g.scalar(a.buffer), self.word(a.buffer, a.at));
        let values: Vec<String> = a.values.iter().map(|&v| self.t.name(v)).collect();
        let new = |old: &str| match scalar {
            Scalar::I32 => format!("{old} + u32({})", values[0]),
            Scalar::F32 => format!("bitcast<u32>(bitcast<f32>({old}) + {})", values[0]),
            _ => values.iter().enumerate().fold(old.into(), |word, (i, x)| {
                let by = format!("by + {}u, 16u", 16 * i);
                let sum = format!("f32_to_f16(f16_to_f32(extractBits({old}, {by})) + f16_to_f32({x}))");
                format!("insertBits({word}, {sum}, {by})")
            }),
        };
        let place = self.memories.element(a.buffer, &word);
        let when = a.when.map_or(String::new(), |when| format!("if ({}) ", self.t.name(when)));
        self.line(format_args!("{when}{{"));
        match scalar {
            Scalar::I32 if a.atomic => self.line(format_args!("atomicAdd(&{place}, u32({}));", values[0])),
            Scalar::I32 | Scalar::F32 if !a.atomic => {
                let sum = new(&self.memories.read(a.buffer, &word, 0));
                let texts = self.memories.write(a.buffer, &word, &[sum]);
                self.line(format_args!("{}", texts[0]));
            }
            // A word becomes what is computed of it, once nobody has changed it meanwhile: of halves also where each has one thread that adds to it.
            _ => {
                self.line(format_args!(
                    "let by = ({} & 1u) * 16u;\nvar old = atomicLoad(&{place});",
                    self.offset(a.at)
                ));
                self.line(format_args!(
                    "loop {{\nlet made = atomicCompareExchangeWeak(&{place}, old, {});",
                    new("old")
                ));
                self.line(format_args!("if (made.exchanged) {{ break; }}\nold = made.old_value;\n}}"));
            }
        }
        self.line(format_args!("}}"));
    }
}
