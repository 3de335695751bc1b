//! WGSL dialect: a module for each kernel, with a prelude.
//!
//! Differences between adapters are in the lowered code, by the machine description (loads of whole
//! words only, the subgroup size).
//!
//! Buffers are arrays of words at bindings 0, 1, …, in the order of `Program::params`. The
//! variables, each an i32, follow in a uniform buffer. A buffer with 8-bit or 16-bit writes is an
//! array of atomic words. A buffer beyond the binding limit has further bindings after the
//! variables; constant tables come last. The workgroup's index is `x + GROUPS_X·y` of the grid.

mod cooperative;
mod expression;
pub mod measuring;
mod memory;
mod narrowed;
mod prelude;
pub mod subgroup_order;
mod tables;

use crate::names::{Names, unprintable};
use crate::simt::{Simt, SimtText};
use expression::WgslExpressions;
use gristmill_compiler::emit::{Accessor, CustomCode, CustomDialect, Dialect, Signature};
use gristmill_compiler::lower::{KernelCode, Prefetch, Statement, Update};
use gristmill_uop::custom::Language;
use gristmill_uop::{Arg, Graph, Id, Op, ReduceOp, Scalar};
use memory::Memories;
pub use narrowed::narrowed;
pub use prelude::PRELUDE;
pub use tables::words_of_tables;

/// Workgroups of a grid's row if there are several rows: a dimension is limited to 65,535.
pub const GROUPS_X: u32 = 1 << 15;

/// The dialect that renders WGSL.
pub struct Wgsl;

/// Returns a complete module: directives, prelude and the kernel's text.
pub fn module(text: &str) -> String {
    let enable = if multiplies(text) {
        cooperative::ENABLE
    } else {
        ""
    };
    format!("{enable}{PRELUDE}{text}")
}

/// Returns whether the text uses cooperative matrices.
pub fn multiplies(text: &str) -> bool {
    text.contains(cooperative::MATRIX)
}

impl Dialect for Wgsl {
    fn render(
        &self,
        name: &str,
        graph: &Graph,
        code: &KernelCode,
        signature: &Signature,
    ) -> String {
        let mut w = Writer::new(graph, signature);
        w.begin(name, code.threads);
        code.bodies
            .iter()
            .enumerate()
            .for_each(|(i, body)| w.body(i, body));
        w.line(format_args!("}}"));
        w.finished()
    }
    fn custom(&self) -> Option<&dyn CustomDialect> {
        Some(self)
    }
}

impl CustomDialect for Wgsl {
    fn language(&self) -> Language {
        Language {
            name: "wgsl",
            has_pointers: false,
        }
    }
    fn render(
        &self,
        name: &str,
        graph: &Graph,
        code: &CustomCode,
        signature: &Signature,
    ) -> String {
        let mut w = Writer::new(graph, signature);
        code.accessors.iter().for_each(|of| w.accessor(of));
        w.custom(name, code);
        w.finished()
    }
}

struct Writer<'a> {
    t: WgslExpressions<'a>,
    memories: Memories,
    text: SimtText<'a>,
}

impl<'a> Simt<'a> for Writer<'a> {
    const UNSIGNED: &'static str = "u";

    fn text(&mut self) -> &mut SimtText<'a> {
        &mut self.text
    }
    fn names(&self) -> &Names<'a> {
        &self.t.names
    }
    fn type_of(&self, id: Id) -> String {
        self.t.type_of(id).into()
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
    /// Declares immutable values only: a `var` does not count as uniform across threads,
    /// which cooperative matrices require.
    fn head(&self, body: usize, count: Id) -> String {
        format!(
            "let count{body} = i32({});\nif (w{body} < count{body}) {{",
            self.t.index(count)
        )
    }
    fn tail(&self, body: usize) -> String {
        format!("return; }}\nlet w{} = w{body} - count{body};", body + 1)
    }
    fn early_return(&self) -> String {
        "return;".into()
    }
    fn statement(&mut self, s: &'a Statement) {
        match s {
            s if self.block(s) => {}
            Statement::Define(id) => self.define(*id),
            Statement::Wide(buffer, at, bytes, parts) => self.wide(*buffer, *at, *bytes, parts),
            Statement::Loop { range, step, .. } => {
                let (t, r) = (self.t.type_of(*range), self.t.name(*range));
                let bound = self.t.name(self.t.g[*range].src[0]);
                let last = if *step == 1 {
                    r.clone()
                } else {
                    format!("{r} + {t}({})", step - 1)
                };
                self.line(format_args!(
                    "for (var {r} = {t}(0); {last} < {bound}; {r} += {t}({step})) {{"
                ));
            }
            Statement::Iteration(r, index) => {
                let index = self.range(&self.t.name(*r), self.t.type_of(*r), &self.t.name(*index));
                self.line(format_args!("{{\n{index}"));
            }
            Statement::Accumulator(acc) if cooperative::is_sums(self.t.g[*acc].dtype) => {
                let text = cooperative::first_sums(&self.t, *acc);
                self.line(format_args!("{text}"));
            }
            Statement::WriteTile(buffer, at, stride, value) => {
                let text =
                    cooperative::write(&self.t, &self.memories, [*buffer, *at, *value], *stride);
                self.line(format_args!("{text}"));
            }
            Statement::Accumulator(acc) => {
                let node = &self.t.g[*acc];
                let (t, first, a) = (
                    self.t.type_of(node.src[1]),
                    self.t.name(node.src[0]),
                    self.t.number(node.src[1]),
                );
                self.line(format_args!("var a{a} = {t}({first});"));
            }
            Statement::Accumulate(acc, value) => {
                let (e, a) = (
                    self.t.expression(*value),
                    self.t.number(self.t.g[*acc].src[1]),
                );
                self.line(format_args!("a{a} = {e};"));
            }
            Statement::Write(buffer, at, value) => self.write(*buffer, *at, &[*value]),
            Statement::Update(update) => self.update(update),
            Statement::WideWrite(buffer, at, _, values) => self.write(*buffer, *at, values),
            Statement::Barrier => self.line(format_args!("workgroupBarrier();")),
            // A dispatch starts after its predecessors end, so it neither waits nor prefetches.
            // Asynchronous copies occur only on machines with dependent launch.
            Statement::DependencyWait
            | Statement::LaunchDependents
            | Statement::Prefetch(Prefetch::Span(_)) => {}
            s => panic!("WGSL has no text for {s:?}"),
        }
    }
}

impl<'a> Writer<'a> {
    fn new(g: &'a Graph, signature: &'a Signature) -> Writer<'a> {
        Writer {
            t: WgslExpressions::new(g, signature),
            memories: Memories::from_signature(signature),
            text: SimtText::default(),
        }
    }
    /// Returns the text with the declarations that it needs.
    fn finished(&self) -> String {
        let (memories, binding) = self.memories.definitions(self.t.g, self.names().signature);
        let tables = self.t.tables.borrow().definitions(binding);
        format!("{tables}{memories}{}", self.text.out)
    }
    /// Declares the kernel's variables.
    fn variables(&mut self) {
        for (i, &(_, node)) in self.names().signature.vars.iter().enumerate() {
            if !self.t.g.within(node, i32::MIN.into(), i32::MAX.into()) {
                unprintable(self.t.g, node);
            }
            self.line(format_args!("let var{i} = variables.v{i};"));
        }
    }
    /// Writes the head of a kernel, including the workgroup's index.
    fn begin(&mut self, name: &str, threads: usize) {
        let arguments =
            "@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32";
        self.line(format_args!(
            "@compute @workgroup_size({threads})\nfn {name}({arguments}) {{"
        ));
        self.variables();
        self.line(format_args!(
            "let w0 = i32(group.x + {GROUPS_X}u * group.y);"
        ));
    }
    /// Writes an accessor function for a user's text.
    fn accessor(&mut self, of: &'a Accessor) {
        let t = self.t.type_of(of.value);
        let index = of.index.map_or("at: i32".into(), |r| {
            format!("{}: {}", self.t.name(r), self.t.type_of(r))
        });
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
    /// Writes the kernel around a user's text.
    fn custom(&mut self, name: &str, code: &CustomCode) {
        self.begin(name, code.threads);
        let signature = self.names().signature;
        let count = self.t.index(signature.groups[0]);
        self.line(format_args!("if (w0 >= i32({count})) {{ return; }}\n{{"));
        // The same integer type as indices.
        self.line(format_args!(
            "let w = w0; let threads = {}i; let thread = i32(thread);",
            code.threads
        ));
        let g = self.t.g;
        for (&called, &read) in code.kernel.arguments.iter().zip(&g[code.value].src) {
            if g[read].op == Op::Var && code.kernel.calls(called).is_none() {
                let variable = self.t.name(read);
                self.line(format_args!("let {called} = {variable};"));
            }
        }
        let text = code
            .kernel
            .text("wgsl")
            .unwrap_or_else(|| unprintable(g, code.value));
        self.line(format_args!("{text}\n}} }}"));
    }
    /// Declares a value. The initial value of an accumulator is written with its declaration.
    fn define(&mut self, id: Id) {
        let (op, dtype) = (self.t.g[id].op, self.t.g[id].dtype);
        let text = match op {
            Op::Fold => return self.fold(id),
            Op::TileLoad => cooperative::load(&self.t, &self.memories, id),
            Op::ScaledPair => cooperative::scaled_pair(&self.t, id),
            _ if cooperative::is_sums(dtype) => return,
            op => {
                let e = if op == Op::Load {
                    self.load(id)
                } else {
                    self.t.expression(id)
                };
                format!("let v{}: {} = {e};", self.t.number(id), self.t.type_of(id))
            }
        };
        self.line(format_args!("{text}"));
    }
    /// Writes the sum or maximum over lanes as a butterfly of subgroup shuffles.
    fn fold(&mut self, id: Id) {
        let n = &self.t.g[id];
        let (x, v, t) = (self.t.name(n.src[0]), self.t.number(id), self.t.type_of(id));
        let ([lanes, stride], adds) = (
            self.lanes(id),
            matches!(n.arg, Arg::Reduce(ReduceOp::Add, _)),
        );
        self.line(format_args!("var v{v}: {t} = {x};"));
        for by in (0..lanes.ilog2()).map(|bit| stride << bit) {
            let other = format!("subgroupShuffleXor(v{v}, {by}u)");
            let folded = if adds {
                format!("v{v} + {other}")
            } else {
                format!("max(v{v}, {other})")
            };
            self.line(format_args!("v{v} = {folded};"));
        }
    }
    /// Renders the word index of a buffer's element.
    fn word(&self, buffer: Id, at: Id) -> String {
        let unit = self.t.g.unit_bytes(buffer);
        if let Some(at) = self.t.g.int_value(at) {
            return format!("{}u", at * unit / 4);
        }
        let at = self.t.offset(at);
        match unit {
            1 => format!("({at} >> 2u)"),
            2 => format!("({at} >> 1u)"),
            4 => at,
            unit => format!("({at} * {}u)", unit / 4),
        }
    }
    /// Converts a word to a value.
    fn of_word(&self, id: Id, word: String) -> String {
        match self.t.type_of(id) {
            "u32" => word,
            t => format!("bitcast<{t}>({word})"),
        }
    }
    /// Converts a value to a word.
    fn bits(&self, id: Id) -> String {
        match (self.t.type_of(id), self.t.name(id)) {
            ("u32", x) => x,
            ("f32", x) => format!("bitcast<u32>({x})"),
            (_, x) => format!("u32({x})"),
        }
    }
    fn load(&self, id: Id) -> String {
        let n = &self.t.g[id];
        let word = self.word(n.src[0], n.src[1]);
        let [first, second] = [0, 1].map(|i| self.memories.read(n.src[0], &word, i));
        match n.dtype.scalar {
            Scalar::I64 => format!("i64((u64({second}) << 32u) | u64({first}))"),
            _ => self.of_word(id, first),
        }
    }
    fn wide(&mut self, buffer: Id, at: Id, bytes: usize, parts: &[(Id, usize)]) {
        let (word, name) = (
            self.word(buffer, at),
            format!("w{}", self.t.number(parts[0].0)),
        );
        let (loads, words) = self.memories.read_wide(buffer, &word, bytes / 4, &name);
        loads
            .iter()
            .for_each(|text| self.line(format_args!("{text}")));
        for &(load, byte) in parts {
            let value = self.of_word(load, words[byte / 4].clone());
            self.line(format_args!(
                "let v{}: {} = {value};",
                self.t.number(load),
                self.t.type_of(load)
            ));
        }
    }
    /// Writes stores of adjacent values.
    fn write(&mut self, buffer: Id, at: Id, values: &[Id]) {
        let texts = match self.memories.get(buffer).matrix() {
            Some(Scalar::F16) => cooperative::writes(&self.t, &self.memories, [buffer, at], values),
            _ => {
                let words: Vec<String> = values.iter().map(|&v| self.bits(v)).collect();
                self.memories.write(buffer, &self.word(buffer, at), &words)
            }
        };
        texts
            .iter()
            .for_each(|text| self.line(format_args!("{text}")));
    }
    /// Writes a read-modify-write of a word.
    ///
    /// An atomic one uses the atomic builtin for integer add, and, or, else
    /// a compare-exchange loop.
    fn update(&mut self, u: &Update) {
        let (g, word) = (self.t.g, self.word(u.buffer, u.at));
        let place = self.memories.element(u.buffer, &word);
        let when = u
            .when
            .map_or(String::new(), |when| format!("if ({}) ", self.t.name(when)));
        let operation = u
            .operation(g)
            .filter(|_| u.atomic && g.scalar(u.old).is_int());
        let known = operation.and_then(|(op, with)| match op {
            Op::Add => Some(("atomicAdd", with)),
            Op::And => Some(("atomicAnd", with)),
            Op::Or => Some(("atomicOr", with)),
            _ => None,
        });
        if let Some((function, with)) = known {
            return self.line(format_args!(
                "{when}{{ {function}(&{place}, {}); }}",
                self.bits(with)
            ));
        }
        let (old, again) = (
            self.memories.read(u.buffer, &word, 0),
            if u.atomic { "loop {" } else { "{" },
        );
        self.line(format_args!("{when}{{\nvar old = {old};\n{again}"));
        let (of_old, old) = (self.of_word(u.old, "old".into()), self.t.number(u.old));
        self.line(format_args!("let v{old} = {of_old};"));
        u.values.iter().for_each(|&value| self.define(value));
        let new = self.bits(u.result());
        match u.atomic {
            true => self.line(format_args!(
                "let made = atomicCompareExchangeWeak(&{place}, old, {new});\nif (made.exchanged) {{ break; }}\nold = made.old_value;"
            )),
            false => {
                let texts = self.memories.write(u.buffer, &word, &[new]);
                self.line(format_args!("{}", texts[0]));
            }
        }
        self.line(format_args!("}} }}"));
    }
}
