//! CUDA C without headers: what a kernel needs is in the prelude (`prelude.rs`), and only there does the language of the device show.
//!
//! A kernel is `ENTRY(threads, beside, name)(buffers…, const i64 *v CLOCK)`: a workgroup is a block of threads, its number is `GROUP_INDEX`, a
//! thread's is `THREAD_INDEX`. Workgroups beyond the last one return at once, so that a launch may be larger than needed.

mod ahead;
pub mod measuring;
mod prelude;

pub use prelude::{common, prelude};

use crate::render::{Expressions, Values, cast, stored};
use gristmill_compiler::emit::{Dialect, Signature};
use gristmill_compiler::lower::{Code, Statement};
use gristmill_uop::program::Access;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, ReduceOp, Scalar};
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// Most iterations of a loop over a reduction that are written out one after the other.
const UNROLLED: i64 = 8;
/// Copies of other such loops.
const COPIES: i64 = 4;
/// Accumulators of a loop above which a workgroup has a multiprocessor's registers to itself.
const ACCUMULATORS: usize = 8;
/// Workgroups beside one another on a multiprocessor, at least; and at most, where that is as many as there are.
const BESIDE: i64 = 2;
const MOST_BESIDE: i64 = 3;
/// Registers in which words of several steps of a loop of matrix products wait, beside the tiles of their sums.
const WAITING: i64 = 32;
/// Tiles of matrix products of halves above which a workgroup has a multiprocessor to itself.
const TILES: usize = 8;
/// Bytes that a thread copies at once without registers.
const COPIED: usize = 16;
/// Statements of a loop that are few enough to be copied.
const SHORT: usize = 160;

/// Copies of a loop of `n` iterations, about `most`: as many as leave no short round behind, which would wait for its loads once more.
fn evenly(n: i64, most: i64) -> i64 {
    let rounds = ((2 * n + most) / (2 * most)).max(1);
    (n + rounds - 1) / rounds
}

/// Threads of a workgroup that computes nothing.
pub const IDLE: u32 = 32;

/// A kernel that computes nothing when it is its turn.
pub fn idle(name: &str) -> String {
    let turn = "const i32 thread = THREAD_INDEX; DEPENDENTS_MAY_START; PREDECESSORS_ENDED;";
    format!("ENTRY({IDLE}, 1, {name})(const i64 *RESTRICT v CLOCK) {{ {turn} }}\n")
}

/// The dialect.
pub struct Cuda;

impl Dialect for Cuda {
    fn render(&self, name: &str, graph: &Graph, bodies: &[Code], signature: &Signature) -> String {
        let t = Expressions::new(graph, signature, Values::Threads);
        let (threads, unsynchronised) = (Threads::default(), HashSet::new());
        let (copied, words) = (HashSet::new(), HashMap::new());
        let mut w = Writer {
            t,
            threads,
            unsynchronised,
            copied,
            words,
            waiting: WAITING,
            turn: "PREDECESSORS_ENDED;",
            out: String::new(),
        };
        w.kernel(name, bodies);
        w.out
    }
}

/// How the threads of a nest are counted.
#[derive(Default)]
struct Threads {
    /// Groups of threads that share an output element.
    groups: i64,
    /// Range number of the groups.
    group: Option<u32>,
}

struct Writer<'a> {
    t: Expressions<'a>,
    threads: Threads,
    /// Shared buffers written since the last barrier.
    unsynchronised: HashSet<Id>,
    /// Of these, the ones that are filled by copies still under way.
    copied: HashSet<Id>,
    /// Where the words of wide loads from memory come from: the text of an address, for the loads of all its bytes in order.
    words: HashMap<Vec<Id>, String>,
    /// Registers for words to wait in.
    waiting: i64,
    /// What a workgroup does before it reads what may have changed. The first kernel of a layer lets others start no sooner: all that start
    /// early take room and memory's time from those whose turn it is, and of a chain without end too much.
    turn: &'static str,
    out: String,
}

impl Writer<'_> {
    fn line(&mut self, text: std::fmt::Arguments) {
        let _ = self.out.write_fmt(text);
        self.out.push('\n');
    }
    fn kernel(&mut self, name: &str, bodies: &[Code]) {
        let mut arguments = Vec::new();
        for (i, &(_, access, node)) in self.t.signature.params.iter().enumerate() {
            let packed = matches!(self.t.g[node].arg, Arg::Packed(..));
            let t = if packed { "u8".into() } else { stored(self.t.g[node].dtype) };
            // Of what does not change the compiler may read ahead, also ahead of the wait.
            arguments.push(match access {
                Access::Read if packed => format!("const {t} *RESTRICT p{i}"),
                Access::Read => format!("const {t} *p{i}"),
                Access::Write | Access::ReadWrite => format!("{t} *p{i}"),
            });
        }
        arguments.push("const i64 *RESTRICT v CLOCK".into());
        // How many workgroups a multiprocessor shall have room for. Without a number the compiler takes so few registers that loads wait for
        // one another.
        let many = bodies.iter().any(|b| accumulators(self.t.g, &b.statements) > ACCUMULATORS);
        let wide = bodies.iter().any(|b| tiles(self.t.g, &b.statements) > TILES);
        let blocks = match self.t.signature.beside {
            _ if many || wide => 1,
            MOST_BESIDE if !bodies.iter().any(|b| products(self.t.g, &b.statements)) => MOST_BESIDE,
            _ => BESIDE,
        };
        self.waiting = if blocks == 1 { 2 * WAITING } else { WAITING };
        self.line(format_args!("ENTRY({}, {blocks}, {name})({}) {{", self.t.signature.threads, arguments.join(", ")));
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
        // Without a word dependents start when this one has ended.
        match (self.t.signature.early_launch, self.t.signature.first) {
            (true, true) => self.turn = "PREDECESSORS_ENDED; DEPENDENTS_MAY_START;",
            (true, false) => self.line(format_args!("DEPENDENTS_MAY_START;")),
            (false, _) => {}
        }
        for (i, code) in bodies.iter().enumerate() {
            self.body(i, code);
        }
        let turn = self.turn;
        self.line(format_args!("{turn}\n}}"));
    }
    fn body(&mut self, number: usize, code: &Code) {
        let turn = self.turn;
        let count = self.t.index(self.t.signature.groups[number]);
        self.line(format_args!("{{ const i64 count = {count};\nif (w >= 0 && w < count) {{"));
        let mut rest = String::from("(u32)w");
        for (i, &r) in code.globals.iter().enumerate().rev() {
            let (t, n) = (self.t.type_of(r), self.t.g.range_number(r));
            if i == 0 {
                self.line(format_args!("const {t} r{n} = ({t})({rest});"));
            } else {
                let bound = self.t.index(self.t.g[r].src[0]);
                self.line(format_args!("const {t} r{n} = ({t})({rest} % (u32)({bound}));"));
                rest = format!("{rest} / (u32)({bound})");
            }
        }
        // What the workgroup does not compute it need not wait for, but what it is waited for it must.
        if let Some(skip) = code.when.skip {
            let skip = self.t.index(skip);
            self.line(format_args!("if ({skip}) {{ {turn} return; }}"));
        }
        // What no predecessor writes need not wait for them. What one does write is read again.
        let filled = match code.when.early.map(|early| self.t.index(early)) {
            Some(early) => {
                let second = length(&code.statements) + 1;
                let filled = second + length(&code.statements[second..]) + 1;
                self.nest(&code.statements);
                self.ask(&code.statements[filled..], &HashSet::new());
                self.line(format_args!("{turn}\nif (!({early})) {{\nCOPIES_ENDED;\nBARRIER;"));
                self.nest(&code.statements[second..]);
                self.line(format_args!("}}"));
                filled
            }
            None => {
                self.ask(&code.statements, &HashSet::new());
                self.line(format_args!("{turn}"));
                0
            }
        };
        let mut reads = reads(&self.t, &code.statements[filled..]).into_iter();
        for (i, s) in code.statements.iter().enumerate().skip(filled) {
            if let Statement::Nest { .. } = s {
                // Stages that are filled, and tell later nests where their weights are.
                let later = &code.statements[i + length(&code.statements[i..]) + 1..];
                let fresh = ahead::stages(self.t.g, later, &self.unsynchronised);
                let read = reads.next().unwrap_or_default();
                if read.iter().any(|b| self.copied.contains(b)) {
                    self.line(format_args!("COPIES_ENDED;"));
                    self.copied.clear();
                }
                if read.iter().any(|b| self.unsynchronised.contains(b)) || !fresh.is_empty() {
                    self.line(format_args!("BARRIER;"));
                    self.unsynchronised.clone_from(&self.copied);
                }
                if !fresh.is_empty() {
                    self.ask(later, &fresh);
                }
            }
            self.statement(s, &code.statements[i..]);
        }
        self.line(format_args!("return; }}\nw -= count; }}"));
    }
    /// The first nest of these statements.
    fn nest(&mut self, statements: &[Statement]) {
        for (i, s) in statements[..=length(statements)].iter().enumerate() {
            self.statement(s, &statements[i..]);
        }
    }
    /// Asks for the weights of these statements whose addresses are known once these stages are filled.
    fn ask(&mut self, statements: &[Statement], stages: &HashSet<Id>) {
        if self.t.signature.prefetch == 0 {
            return;
        }
        for span in ahead::spans(self.t.g, statements, stages) {
            let g = self.t.g;
            for &r in &span.loops {
                let (t, n, bound) = (self.t.type_of(r), g.range_number(r), self.t.name(g[r].src[0]));
                self.line(format_args!("for ({t} r{n} = 0; r{n} < {bound}; r{n}++)"));
            }
            let terms: Vec<String> =
                span.terms.iter().map(|&(t, c)| format!("(i64)({}) * {c} + ", self.t.index(t))).collect();
            let b = self.t.buffer(span.buffer);
            self.line(format_args!(
                "ASK_FOR((const u8 *){b} + ({}{}), {});",
                terms.concat(),
                span.from,
                span.to - span.from
            ));
        }
    }
    /// A statement, the first of these.
    fn statement(&mut self, s: &Statement, all: &[Statement]) {
        match s {
            Statement::Define(id) => {
                let e = match self.t.g[*id].op {
                    Op::Fold => self.fold(*id),
                    _ => self.t.expression(*id),
                };
                let (t, v) = (self.t.type_of(*id), self.t.number(*id));
                self.line(format_args!("const {t} v{v} = {e};"));
            }
            Statement::Wide(buffer, at, bytes, parts) => self.wide(*buffer, *at, *bytes, parts),
            Statement::Loop(r) => {
                let g = self.t.g;
                let length = length(all);
                let unroll = match (g.range_kind(*r), g.int_value(g[*r].src[0])) {
                    (_, Some(n)) if let Some(words) = waited_for(g, &all[..length]) => {
                        evenly(n, (self.waiting / words).max(1))
                    }
                    // A few terms, as the chosen experts are, wait for their loads together.
                    (Some(RangeKind::Reduce), Some(n)) if n <= UNROLLED && !products(g, &all[..length]) => {
                        evenly(n, (2 * WAITING / words(g, &all[..length]).max(1)).max(1))
                    }
                    _ if length > SHORT => 1,
                    (Some(RangeKind::Reduce), Some(n)) if n <= UNROLLED => n,
                    // Of a long loop whose length is data, so many copies that their loads wait for memory together.
                    (Some(RangeKind::Reduce), _) => {
                        let wait = WAITING / words(g, &all[..length]).max(1);
                        let least = if wait < COPIES { 1 } else { COPIES };
                        wait.min(g.max_of(g[*r].src[0]) / UNROLLED).clamp(least, 2 * UNROLLED)
                    }
                    // What follows another waits for its loads, unless they are asked for together.
                    (_, Some(n)) => evenly(n, UNROLLED),
                    _ => 1,
                };
                let (t, n, bound) = (self.t.type_of(*r), g.range_number(*r), self.t.name(g[*r].src[0]));
                self.line(format_args!("UNROLL({unroll}) for ({t} r{n} = 0; r{n} < {bound}; r{n}++) {{"));
            }
            Statement::End => self.line(format_args!("}}")),
            Statement::Accumulator(acc) => {
                let node = &self.t.g[*acc];
                let (t, first, a) = (self.t.type_of(node.src[1]), self.t.name(node.src[0]), self.t.number(node.src[1]));
                self.line(format_args!("{t} a{a} = {first};"));
            }
            Statement::Accumulate(acc, value) => {
                let (e, a) = (self.t.expression(*value), self.t.number(self.t.g[*acc].src[1]));
                self.line(format_args!("a{a} = {e};"));
            }
            Statement::Write(buffer, at, value) => self.write(*buffer, *at, *value),
            Statement::WideWrite(buffer, at, bytes, values) => self.wide_write(*buffer, *at, *bytes, values),
            Statement::Nest { threads, buffer, staged, .. } => {
                self.line(format_args!("{{"));
                self.count(threads);
                if *staged {
                    self.unsynchronised.insert(*buffer);
                }
            }
        }
    }
    /// The ranges that are threads, from the thread's number. Counted row-major in the order of the ranges; a range of all threads is
    /// counted apart.
    fn count(&mut self, ranges: &[Id]) {
        let g = self.t.g;
        let all = self.t.signature.threads as i64;
        let is_group = |r: &&Id| g.range_kind(**r) == Some(RangeKind::Vector);
        if ranges.iter().filter(is_group).count() > 1 {
            let mut stride = 1;
            for &r in ranges.iter().rev() {
                let (t, n, bound) = (self.t.type_of(r), g.range_number(r), g.int_value(g[r].src[0]).unwrap_or(1));
                if g.range_kind(r) == Some(RangeKind::VectorReduce) {
                    self.line(format_args!("const {t} r{n} = thread % {bound};"));
                } else {
                    self.line(format_args!("const {t} r{n} = thread / {stride} % {bound};"));
                    stride *= bound;
                }
            }
            self.threads = Threads { groups: 1, group: None };
            return;
        }
        let group = ranges.iter().copied().find(|&r| g.range_kind(r) == Some(RangeKind::Vector));
        let groups = group.and_then(|r| g.int_value(g[r].src[0])).unwrap_or(1);
        self.threads = Threads { groups, group: group.map(|r| g.range_number(r)) };
        for &r in ranges {
            let (t, n) = (self.t.type_of(r), g.range_number(r));
            let bound = g.int_value(g[r].src[0]).unwrap_or(1);
            let index = if Some(r) == group {
                let outer =
                    ranges.iter().any(|&x| x != r && g.range_number(x) < n && g.int_value(g[x].src[0]) != Some(all));
                if outer { format!("thread % {groups}") } else { format!("thread / {}", all / groups) }
            } else {
                format!("thread / {} % {bound}", self.stride(r))
            };
            self.line(format_args!("const {t} r{n} = {index};"));
        }
    }
    /// Threads from one lane of a range to the next.
    fn stride(&self, lane: Id) -> i64 {
        let g = self.t.g;
        let (n, bound) = (g.range_number(lane), g.int_value(g[lane].src[0]).unwrap_or(1));
        let outer = self.threads.group.is_some_and(|group| n < group) && bound < self.t.signature.threads as i64;
        if outer { self.threads.groups } else { 1 }
    }
    /// The sum or maximum over lanes.
    fn fold(&self, id: Id) -> String {
        let n = &self.t.g[id];
        let Arg::Reduce(op, _) = n.arg else { return "0".into() };
        let how = match op {
            ReduceOp::Add => "add",
            ReduceOp::Max => "max",
        };
        let lanes = self.t.g.int_value(self.t.g[n.src[1]].src[0]).unwrap_or(1);
        let (x, stride) = (self.t.name(n.src[0]), self.stride(n.src[1]));
        // Partial results of narrow types are folded in wider ones.
        let own = n.dtype;
        let folded = match own.scalar {
            Scalar::I64 if self.t.type_of(id) == "i32" => Scalar::I32,
            s @ (Scalar::I32 | Scalar::U32 | Scalar::I64 | Scalar::F32) => s,
            s if s.is_half() => Scalar::F32,
            _ => Scalar::I32,
        };
        let x = if own.scalar == Scalar::I64 { x } else { cast(own, folded.one(), &x) };
        let fold = format!("fold_{how}_{}({x}, {lanes}, {stride})", folded.name());
        if own.scalar == Scalar::I64 { fold } else { cast(folded.one(), own, &fold) }
    }
    fn wide(&mut self, buffer: Id, at: Id, bytes: usize, parts: &[(Id, usize)]) {
        let (b, at, number) = (self.t.buffer(buffer), self.t.name(at), self.t.number(parts[0].0));
        self.line(format_args!("const u32x{} w{number} = *(const u32x{0} *)({b} + {at});", bytes / 4));
        if bytes == COPIED && self.t.g[buffer].op == Op::Param {
            self.words.insert(parts.iter().map(|p| p.0).collect(), format!("{b} + {at}"));
        }
        for &(load, byte) in parts {
            let d = self.t.g[load].dtype.scalar;
            let word = format!("w{number}.{}", ["x", "y", "z", "w"][byte / 4]);
            let shifted = if byte % 4 == 0 { word } else { format!("{word} >> {}", 8 * (byte % 4)) };
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
        // Memory to shared memory as it is: nobody need wait, and no registers hold it.
        if let Some(from) = self.words.get(values).filter(|_| bytes == COPIED && self.t.g[buffer].op == Op::Local) {
            self.out += &format!("COPY({b} + {at}, {from});\n");
            self.copied.insert(buffer);
            return;
        }
        let word = |values: &[Id]| match values {
            &[one] if self.t.g.scalar(one) == Scalar::F32 => format!("bits_f32_u32({})", self.t.name(one)),
            &[one] => format!("(u32)({})", self.t.name(one)),
            parts => {
                let bits = 32 / parts.len();
                let part = |(i, &p): (usize, &Id)| format!("(u32)(u{bits})({}) << {}", self.t.name(p), i * bits);
                parts.iter().enumerate().map(part).collect::<Vec<_>>().join(" | ")
            }
        };
        let words: Vec<String> = values.chunks(values.len() * 4 / bytes).map(word).collect();
        match &words[..] {
            [word] => self.line(format_args!("*(u32 *)({b} + {at}) = {word};")),
            words => {
                let t = format!("u32x{}", words.len());
                self.line(format_args!("*({t} *)({b} + {at}) = {t}{{{}}};", words.join(", ")));
            }
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

/// Words that a loop of matrix products of halves loads from memory in one step; `None` for other loops.
fn waited_for(g: &Graph, statements: &[Statement]) -> Option<i64> {
    let is_product = |s: &Statement| matches!(s, Statement::Accumulate(_, value) if g[*value].op == Op::MmaHalf);
    statements.iter().any(is_product).then(|| words(g, statements).max(1))
}

/// Words that these statements load from memory.
fn words(g: &Graph, statements: &[Statement]) -> i64 {
    let words = statements.iter().map(|s| match s {
        Statement::Wide(buffer, _, bytes, _) if g[*buffer].op == Op::Param => *bytes as i64 / 4,
        Statement::Define(id) if g[*id].op == Op::Load && g[g[*id].src[0]].op == Op::Param => 1,
        _ => 0,
    });
    words.sum()
}

/// Are there matrix products? Their tiles take what registers there are.
fn products(g: &Graph, statements: &[Statement]) -> bool {
    let is_product = |id: Id| matches!(g[id].op, Op::Mma | Op::MmaHalf);
    statements.iter().any(|s| match s {
        Statement::Define(id) | Statement::Accumulate(_, id) => is_product(*id),
        _ => false,
    })
}

/// The most tiles of matrix products of halves that a nest keeps.
fn tiles(g: &Graph, statements: &[Statement]) -> usize {
    let nests = statements.split(|s| matches!(s, Statement::Nest { .. }));
    let tiles = |s: &&Statement| matches!(s, Statement::Accumulator(acc) if g[*acc].dtype.lanes > 1);
    nests.map(|nest| nest.iter().filter(tiles).count()).max().unwrap_or(0)
}

/// The most accumulators that a loop adds to, with those of the loops around it. Tiles of matrix products are made to leave room (`compiler/src/map/fragment_tiling.rs`).
fn accumulators(g: &Graph, statements: &[Statement]) -> usize {
    let mut open = vec![0];
    let mut most = 0;
    for s in statements {
        match s {
            Statement::Accumulator(acc) if g[*acc].dtype.lanes == 1 => *open.last_mut().expect("one for all") += 1,
            Statement::Loop(_) | Statement::Nest { .. } => {
                most = most.max(open.iter().sum());
                open.push(0);
            }
            Statement::End => {
                open.pop();
            }
            _ => {}
        }
    }
    most
}

/// Statements up to the end of the loop that the first one opens.
fn length(statements: &[Statement]) -> usize {
    let mut depth = 0;
    for (i, s) in statements.iter().enumerate() {
        match s {
            Statement::Loop(_) | Statement::Nest { .. } => depth += 1,
            Statement::End => depth -= 1,
            _ => {}
        }
        if depth <= 0 {
            return i;
        }
    }
    statements.len()
}

/// The shared buffers that each nest reads.
fn reads(t: &Expressions, statements: &[Statement]) -> Vec<HashSet<Id>> {
    let mut out: Vec<HashSet<Id>> = Vec::new();
    for s in statements {
        let mut note = |id: Id| {
            let n = &t.g[id];
            if n.op == Op::Load
                && t.g[n.src[0]].op == Op::Local
                && let Some(last) = out.last_mut()
            {
                last.insert(n.src[0]);
            }
        };
        match s {
            Statement::Define(id) => note(*id),
            Statement::Wide(_, _, _, parts) => parts.iter().for_each(|p| note(p.0)),
            Statement::Nest { .. } => out.push(HashSet::new()),
            _ => {}
        }
    }
    out
}
