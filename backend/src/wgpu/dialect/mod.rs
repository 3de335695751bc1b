//! WGSL: a module for each kernel, its prelude and folds before it. What differs between adapters is in the code (how many neighbours exchange registers)
//! or in the machine that it was lowered for (words alone are loaded).
//!
//! Buffers are arrays of words at bindings 0, 1, …, in the order of `Program::params`; the variables, each an i32, are a uniform buffer behind them. A
//! buffer that the kernel writes bytes or halves to is one of atomic words. One that is longer than the adapter binds has further bindings behind the variables, and behind these lie constant tables, if there are any. The workgroup's number is `x + GROUPS_X·y` of the grid.

mod cooperative;
mod expression;
mod folds;
mod memory;
pub mod order;
mod prelude;
mod tables;

use crate::names::{Names, unprintable};
use crate::simt::{Simt, Text};
use expression::{Expressions, to_f32, wrapped};
use folds::{AT_ONCE, Fold, THREADS_AT_ONCE, folds};
use gristmill_compiler::emit::{Accessor, CustomCode, CustomDialect, Dialect, Signature};
use gristmill_compiler::lower::{Addition, Code, KernelCode, Prefetch, Statement, end_of_block};
use gristmill_uop::custom::Language;
use gristmill_uop::{Arg, Graph, Id, Op, Scalar};
use memory::Memories;
use prelude::LONG;
pub use prelude::PRELUDE;
use std::collections::{BTreeSet, HashSet};
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
        let t = Expressions::new(graph, signature);
        let memories = Memories::of(graph, code, signature);
        let of_threads = [code.threads as i64, code.exchange];
        let mut w =
            Writer { t, memories, of_threads, folds: BTreeSet::new(), folded: HashSet::new(), text: Text::default() };
        w.kernel(name, code);
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
        let statements = code.accessors.iter().flat_map(|of| of.statements.clone()).collect();
        let of_accessors = KernelCode {
            bodies: vec![Code { statements, ..Code::default() }],
            threads: code.threads,
            resident: 1,
            exchange: 1,
            shared: None,
            entry: vec![],
            idle: vec![],
        };
        let memories = Memories::of(graph, &of_accessors, signature);
        let (t, of_threads) = (Expressions::new(graph, signature), [code.threads as i64, 1]);
        let mut w =
            Writer { t, memories, of_threads, folds: BTreeSet::new(), folded: HashSet::new(), text: Text::default() };
        code.accessors.iter().for_each(|of| w.accessor(of));
        w.custom(name, code);
        w.finished()
    }
}

/// The bits of the sum of a float, of which these are the bits, and another.
fn added(bits: &str, x: &str) -> String {
    format!("bitcast<u32>(bitcast<f32>({bits}) + {x})")
}

struct Writer<'a> {
    t: Expressions<'a>,
    memories: Memories,
    /// Threads of a workgroup, and how many neighbours exchange registers.
    of_threads: [i64; 2],
    folds: BTreeSet<Fold>,
    /// Folds that stand with others before their place.
    folded: HashSet<Id>,
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
        let text = self.t.index(count);
        let text = if self.t.type_of(count) == Scalar::I64 { format!("i32({text})") } else { text };
        format!("let count{body} = {text};\nif (w{body} < count{body}) {{")
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
                Statement::Define(id) if self.folded.remove(id) => {}
                s => {
                    if !self.folds_at_once(&all[at..]) {
                        self.statement(s);
                    }
                }
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
            Statement::Accumulate(acc, value) if self.t.g[*value].op == Op::TileMma => {
                let (product, a) = (cooperative::product(&self.t, *value), self.t.number(self.t.g[*acc].src[1]));
                self.line(format_args!("a{a} = {product};"));
            }
            Statement::WriteTile(buffer, at, stride, value) => {
                let text = cooperative::write(&self.t, &self.memories, [*buffer, *at, *value], *stride);
                self.line(format_args!("{text}"));
            }
            Statement::Accumulator(acc) => {
                let node = &self.t.g[*acc];
                let (t, first, a) = (self.t.type_of(node.src[1]), self.t.name(node.src[0]), self.t.number(node.src[1]));
                let first = if t == Scalar::I64 { format!("i64({first})") } else { first };
                self.line(format_args!("var a{a}: {} = {first};", t.name()));
            }
            Statement::Accumulate(acc, value) => {
                let of = self.t.g[*acc].src[1];
                let (e, a) = (self.t.expression(*value), self.t.number(of));
                let [to, from] = [of, *value].map(|id| self.t.type_of(id));
                let e = if to == from { e } else { format!("{}({e})", to.name()) };
                self.line(format_args!("a{a} = {e};"));
            }
            Statement::Write(buffer, at, value) => self.write(*buffer, *at, *value),
            Statement::Add(addition) => self.add(addition),
            Statement::WideWrite(buffer, at, bytes, values) => self.wide_write(*buffer, *at, *bytes, values),
            Statement::Barrier => self.line(format_args!("workgroupBarrier();")),
            // A dispatch begins when those before it have ended, and nothing is asked for ahead. Copies ahead, and what they bring, are of machines that start early alone.
            Statement::DependencyWait | Statement::LaunchDependents | Statement::Prefetch(Prefetch::Span(_)) => {}
            s => panic!("WGSL has no text for {s:?}"),
        }
    }
}

impl<'a> Writer<'a> {
    /// What is written, with all that it needs before it.
    fn finished(&self) -> String {
        let folds = folds(&self.folds, self.of_threads);
        let (memories, binding) = self.memories.definitions(self.names().signature);
        let tables = self.t.tables.borrow().definitions(binding);
        let long = if self.text.out.contains("f32_to_i64(") { LONG } else { "" };
        format!("{long}{folds}{tables}{memories}{}", self.text.out)
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
    fn kernel(&mut self, name: &str, code: &'a KernelCode) {
        self.begin(name, code.threads);
        for (i, body) in code.bodies.iter().enumerate() {
            self.body(i, body);
        }
        self.line(format_args!("}}"));
    }
    /// A value that has a name from here on, but for what begins a product's sums: that is said where these are.
    fn define(&mut self, id: Id) {
        let (op, dtype) = (self.t.g[id].op, self.t.g[id].dtype);
        let text = match op {
            Op::TileLoad => cooperative::load(&self.t, &self.memories, id),
            Op::ScaledPair => cooperative::scaled_pair(&self.t, id),
            _ if cooperative::is_sums(dtype) => return,
            _ => {
                let e = match op {
                    Op::Fold => self.fold(id),
                    Op::Load => self.load(id),
                    _ => self.t.expression(id),
                };
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
            self.line(format_args!("{{\nvar first{n} = {t}(0);"));
            self.line(format_args!("for (; first{n} + {t}({ahead}) < {t}({last}); first{n} += {t}({copies})) {{"));
            (0..copies).for_each(|i| copy(self, format!("first{n} + {t}({i})")));
            self.line(format_args!("}}"));
            if count.is_none() {
                self.line(format_args!("for (; first{n} < {t}({bound}); first{n} += {t}(1)) {{"));
                copy(self, format!("first{n}"));
                self.line(format_args!("}}"));
            }
            self.line(format_args!("}}"));
        }
        // What is no whole round of a known number.
        let left = rounds.zip(count).map_or(0..0, |(rounds, count)| rounds * copies..count);
        left.for_each(|i| copy(self, format!("{t}({i})")));
    }
    /// The fold that a node is, its value in the type that is folded.
    fn fold_of(&mut self, id: Id) -> (Fold, String) {
        let n = &self.t.g[id];
        let Arg::Reduce(how, _) = n.arg else { unprintable(self.t.g, id) };
        let [lanes, stride] = self.lanes(id);
        let (scalar, own) = (n.dtype.scalar, self.t.type_of(id));
        let x = self.t.name(n.src[0]);
        let (of, x) = match scalar {
            Scalar::Bool => (Scalar::I32, format!("i32({x})")),
            s if s.is_half() => (Scalar::F32, to_f32(s, &x)),
            _ if own != self.t.type_of(n.src[0]) => (own, format!("{}({x})", own.name())),
            _ => (own, x),
        };
        (Fold::new(how, of, lanes, stride).unwrap_or_else(|| unprintable(self.t.g, id)), x)
    }
    /// The sum or maximum over lanes that are threads.
    fn fold(&mut self, id: Id) -> String {
        let (fold, x) = self.fold_of(id);
        let text = format!("{}({x}, thread)", fold.name());
        self.folds.insert(fold);
        match self.t.g.scalar(id) {
            Scalar::Bool => format!("{text} != 0"),
            s if s.is_half() => format!("f32_to_{}({text})", s.name()),
            s => wrapped(s, text),
        }
    }
    /// The fold that a statement is, if it meets in shared memory where others may meet too.
    fn met(&mut self, s: &Statement) -> Option<(Id, Fold, String)> {
        let Statement::Define(id) = *s else { return None };
        if self.t.g[id].op != Op::Fold || self.t.g.scalar(id) != Scalar::F32 {
            return None;
        }
        let ([threads, exchange], (fold, x)) = (self.of_threads, self.fold_of(id));
        (fold.is_shared(exchange) && threads <= THREADS_AT_ONCE).then_some((id, fold, x))
    }
    /// Writes the fold that statements begin with together with those behind it that are alike and whose values are known, if there are any.
    fn folds_at_once(&mut self, all: &'a [Statement]) -> bool {
        let Some((first, fold, x)) = all.first().and_then(|s| self.met(s)) else { return false };
        let (mut found, mut made) = (vec![(first, x)], vec![first]);
        // Beyond anything but a definition sums may have changed.
        for s in all[1..].iter().take_while(|s| matches!(s, Statement::Define(_))) {
            if found.len() == AT_ONCE {
                break;
            }
            let Statement::Define(id) = *s else { continue };
            let known = !made.iter().any(|m| self.t.g[id].src.contains(m)) && !self.folded.contains(&id);
            if let Some((_, _, x)) = self.met(s).filter(|(_, other, _)| known && *other == fold) {
                found.push((id, x));
            }
            made.push(id);
        }
        if found.len() == 1 {
            return false;
        }
        let fold = Fold { at_once: true, ..fold };
        let mut values: Vec<String> = found.iter().map(|(_, x)| x.clone()).collect();
        values.resize(AT_ONCE, "0.0f".into());
        let (name, type_of, values) = (format!("f{}", self.t.number(first)), fold.values(), values.join(", "));
        self.line(format_args!("let {name} = {}({type_of}({values}), thread);", fold.name()));
        self.folds.insert(fold);
        for ((id, _), part) in found.iter().zip(["x", "y", "z", "w"]) {
            let v = self.t.number(*id);
            self.line(format_args!("let v{v}: f32 = {name}.{part};"));
        }
        self.folded.extend(found[1..].iter().map(|(id, _)| *id));
        true
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
    fn load(&mut self, id: Id) -> String {
        let n = &self.t.g[id];
        let (buffer, at, scalar) = (n.src[0], n.src[1], n.dtype.scalar);
        let word = self.word(buffer, at);
        let first = self.memories.read(buffer, &word, 0);
        match (scalar.bytes(), self.t.type_of(id)) {
            (4, Scalar::U32) => first,
            (4, t) => format!("bitcast<{}>({first})", t.name()),
            (8, Scalar::I32) => format!("i32({first})"),
            (8, Scalar::I64) => {
                let second = self.memories.read(buffer, &word, 1);
                format!("i64((u64({second}) << 32u) | u64({first}))")
            }
            _ => unprintable(self.t.g, id),
        }
    }
    fn wide(&mut self, buffer: Id, at: Id, bytes: usize, parts: &[(Id, usize)]) {
        let (word, name) = (self.word(buffer, at), format!("w{}", self.t.number(parts[0].0)));
        let (loads, words) = self.memories.read_wide(buffer, &word, bytes / 4, &name);
        for text in loads {
            self.line(format_args!("{text}"));
        }
        for &(load, byte) in parts {
            let (word, by) = (words[byte / 4].clone(), 8 * (byte % 4));
            let scalar = self.t.g.scalar(load);
            let bits = 8 * scalar.bytes();
            let value = match (scalar, self.t.type_of(load)) {
                (Scalar::Bool, _) => format!("extractBits({word}, {by}u, 8u) != 0u"),
                (_, Scalar::U32) if bits == 32 => word,
                (_, t) if bits == 32 => format!("bitcast<{}>({word})", t.name()),
                (_, Scalar::U32) => format!("extractBits({word}, {by}u, {bits}u)"),
                (_, Scalar::I32) => format!("extractBits(i32({word}), {by}u, {bits}u)"),
                _ => unprintable(self.t.g, load),
            };
            let (t, v) = (self.t.type_of(load).name(), self.t.number(load));
            self.line(format_args!("let v{v}: {t} = {value};"));
        }
    }
    /// A value's bits, as words.
    fn bits(&self, value: Id) -> String {
        let x = self.t.name(value);
        match self.t.type_of(value) {
            Scalar::U32 => x,
            Scalar::F32 => format!("bitcast<u32>({x})"),
            _ => format!("u32({x})"),
        }
    }
    /// Bits of several values in one word.
    fn joined(&self, values: &[Id]) -> String {
        let bits = 32 / values.len();
        let part = |(i, &v): (usize, &Id)| match bits {
            32 => self.bits(v),
            _ => format!("(({} & {}u) << {}u)", self.bits(v), (1u64 << bits) - 1, i * bits),
        };
        values.iter().enumerate().map(part).collect::<Vec<_>>().join(" | ")
    }
    fn wide_write(&mut self, buffer: Id, at: Id, bytes: usize, values: &[Id]) {
        if self.memories.is_of_halves(buffer) {
            for (i, &value) in values.iter().enumerate() {
                let text = cooperative::write_half(&self.t, &self.memories, [buffer, at, value], i);
                self.line(format_args!("{text}"));
            }
            return;
        }
        let word = self.word(buffer, at);
        let words: Vec<String> = values.chunks(values.len() * 4 / bytes).map(|of| self.joined(of)).collect();
        for text in self.memories.write_wide(buffer, &word, &words) {
            self.line(format_args!("{text}"));
        }
    }
    fn add(&mut self, a: &Addition) {
        let (scalar, word) = (self.t.g.scalar(a.buffer), self.word(a.buffer, a.at));
        let when = a.when.map_or(String::new(), |when| format!("if ({}) ", self.t.name(when)));
        self.line(format_args!("{when}{{"));
        let half = |old: String, x: &str| format!("f32_to_f16(f16_to_f32({old}) + f16_to_f32({x}))");
        let values: Vec<String> = a.values.iter().map(|&v| self.t.name(v)).collect();
        let n = self.text.out.len();
        match (scalar, &values[..]) {
            (Scalar::I32, [x]) if a.atomic => {
                let place = self.memories.element(a.buffer, &word);
                self.line(format_args!("atomicAdd(&{place}, u32({x}));"));
            }
            (Scalar::I32 | Scalar::F32, [x]) if !a.atomic => {
                let old = self.memories.read(a.buffer, &word, 0);
                let sum = if scalar == Scalar::I32 { format!("{old} + u32({x})") } else { added(&old, x) };
                let text = self.memories.write(a.buffer, &word, &sum);
                self.line(format_args!("{text}"));
            }
            (Scalar::F32, [x]) => self.exchange(a.buffer, &word, |old| added(old, x)),
            // Halves are parts of words that others may change, also where each has one thread that adds to it.
            (Scalar::F16, [x]) => {
                let offset = self.offset(a.at);
                self.line(format_args!("let by{n} = ({offset} & 1u) * 16u;"));
                self.exchange(a.buffer, &word, |old| {
                    let sum = half(format!("({old} >> by{n}) & 0xffffu"), x);
                    format!("({old} & ~(0xffffu << by{n})) | ({sum} << by{n})")
                });
            }
            (Scalar::F16, [x, y]) => {
                self.exchange(a.buffer, &word, |old| {
                    let (low, high) = (half(format!("{old} & 0xffffu"), x), half(format!("{old} >> 16u"), y));
                    format!("{low} | ({high} << 16u)")
                });
            }
            _ => unprintable(self.t.g, a.values[0]),
        }
        self.line(format_args!("}}"));
    }
    /// A word becomes what is computed of it, once nobody has changed it meanwhile.
    fn exchange(&mut self, buffer: Id, word: &str, new: impl Fn(&str) -> String) {
        let (n, place) = (self.text.out.len(), self.memories.element(buffer, word));
        let new = new(&format!("old{n}"));
        self.line(format_args!("var old{n} = atomicLoad(&{place});"));
        self.line(format_args!("loop {{\nlet made = atomicCompareExchangeWeak(&{place}, old{n}, {new});"));
        self.line(format_args!("if (made.exchanged) {{ break; }}\nold{n} = made.old_value;\n}}"));
    }
    fn write(&mut self, buffer: Id, at: Id, value: Id) {
        if self.memories.is_of_halves(buffer) {
            let text = match self.t.g.scalar(value) {
                Scalar::U32 => cooperative::write_halves(&self.t, &self.memories, [buffer, at, value]),
                _ => cooperative::write_half(&self.t, &self.memories, [buffer, at, value], 0),
            };
            return self.line(format_args!("{text}"));
        }
        let (scalar, bits) = (self.t.g.scalar(value), self.bits(value));
        let size = scalar.bytes();
        if size < 4 {
            let byte = format!("{} * {}u", self.offset(at), self.t.g.unit_bytes(buffer));
            let mask = (1u64 << (8 * size)) - 1;
            let (n, at) =
                (self.text.out.len(), self.memories.element(buffer, &format!("(byte{} >> 2u)", self.text.out.len())));
            self.line(format_args!("let byte{n} = {byte};"));
            self.line(format_args!("atomicAnd(&{at}, ~({mask}u << (byte{n} % 4u * 8u)));"));
            self.line(format_args!("atomicOr(&{at}, ({bits} & {mask}u) << (byte{n} % 4u * 8u));"));
            return;
        }
        let word = self.word(buffer, at);
        let text = self.memories.write(buffer, &word, &bits);
        self.line(format_args!("{text}"));
        if size == 8 {
            let x = self.t.name(value);
            let by = if self.t.type_of(value) == Scalar::I64 { 32 } else { 31 };
            let text = self.memories.write(buffer, &format!("({word} + 1u)"), &format!("u32({x} >> {by}u)"));
            self.line(format_args!("{text}"));
        }
    }
}
