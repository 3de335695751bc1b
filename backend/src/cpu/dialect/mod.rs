//! C for the CPU: GNU vector extensions and compiler builtins, no system headers. A kernel is one function that runs an interval of the
//! launch; everything it needs is in the prelude (`prelude.rs`).

mod ahead;
mod prelude;
mod words;

pub use prelude::prelude;

use crate::render::{Expressions, Values, stored, type_of};
use ahead::SOON;
use gristmill_compiler::emit::{Dialect, Signature};
use gristmill_compiler::lower::{Code, Statement};
use gristmill_uop::program::Access;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, Scalar};
use std::collections::HashSet;
use std::fmt::Write;

/// Bytes behind what is read, of rows that follow one another, for each iteration ahead.
const BEHIND: i64 = 2048;
/// The dialect; what depends on the instruction set is in the prelude alone.
pub struct C;

/// A cache line, of packed bytes half of one: its buffer, the terms of its address, and its number after those.
type Line = (Id, Vec<(Id, i64)>, i64);

struct Writer<'a> {
    t: Expressions<'a>,
    /// Ranges around the statement being written that choose what is computed (workgroup ranges and loops, not reductions).
    around: Vec<Id>,
    /// Ranges of the reductions whose loops are open.
    reducing: Vec<Id>,
    /// For every open brace, whether it put a range into `around`, or into `reducing`.
    open: Vec<[bool; 2]>,
    /// Tiles of caches that are asked for ahead, and the loops that do.
    ahead: Vec<ahead::Ahead>,
    /// What is asked for already in this loop.
    fetched: HashSet<Line>,
    /// May workgroups of this body be left out? Its first one is then not the first of the interval.
    skipping: bool,
    out: String,
}

impl Dialect for C {
    fn render(&self, name: &str, graph: &Graph, bodies: &[Code], signature: &Signature) -> String {
        let mut w = Writer {
            t: Expressions::new(graph, signature, Values::Vectors),
            around: Vec::new(),
            reducing: Vec::new(),
            open: Vec::new(),
            ahead: Vec::new(),
            fetched: HashSet::new(),
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
        for (i, &(_, access, node)) in self.t.signature.params.iter().enumerate() {
            let packed = matches!(self.t.g[node].arg, Arg::Packed(..));
            let t = if packed { "u8".into() } else { stored(self.t.g[node].dtype) };
            match access {
                Access::Read => self.line(format_args!("const {t} *restrict p{i} = b[{i}];")),
                Access::Write => self.line(format_args!("{t} *restrict p{i} = b[{i}];")),
                Access::ReadWrite => self.line(format_args!("{t} *p{i} = b[{i}];")),
            }
        }
        for i in 0..self.t.signature.vars.len() {
            self.line(format_args!("const i64 var{i} = v[{i}];"));
        }
        for (i, &(local, at)) in self.t.signature.scratch.iter().enumerate() {
            let t = stored(self.t.g[local].dtype);
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
        self.ahead = if self.t.signature.prefetch > 0 { ahead::plan(self.t.g, code) } else { Vec::new() };
        let count = self.t.index(self.t.signature.groups[number]);
        self.line(format_args!("{{ const i64 count = {count};"));
        self.line(format_args!(
            "const i64 lo = first > base ? first - base : 0, hi = end - base < count ? end - base : count;"
        ));
        for &r in &code.globals {
            self.line(format_args!("i64 r{}_last = -1;", self.t.g.range_number(r)));
        }
        if code.when.skip.is_some() {
            self.line(format_args!("i64 fresh = 1;"));
        }
        self.line(format_args!("for (i64 w = lo; w < hi; w++) {{"));
        // Row-major over the workgroup ranges.
        let mut rest = String::from("(u64)w");
        for (i, &r) in code.globals.iter().enumerate().rev() {
            let n = self.t.g.range_number(r);
            if i == 0 {
                self.line(format_args!("const i64 r{n} = (i64)({rest});"));
            } else {
                let bound = self.t.index(self.t.g[r].src[0]);
                self.line(format_args!("const i64 r{n} = (i64)({rest} % (u64)({bound}));"));
                rest = format!("{rest} / (u64)({bound})");
            }
        }
        if let Some(skip) = code.when.skip {
            let skip = self.t.index(skip);
            self.line(format_args!("if ({skip}) continue;"));
        }
        self.skipping = code.when.skip.is_some();
        for s in &code.statements {
            self.statement(s);
        }
        for &r in &code.globals {
            let n = self.t.g.range_number(r);
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
                let (t, e) = (type_of(self.t.g[*id].dtype), self.t.expression(*id));
                let v = self.t.number(*id);
                self.line(format_args!("const {t} v{v} = {e};"));
                self.prefetch(*id);
            }
            Statement::Loop(r) => {
                let chooses = self.t.g.range_kind(*r) == Some(RangeKind::Loop);
                let into = if chooses { &mut self.around } else { &mut self.reducing };
                into.push(*r);
                self.open.push([chooses, !chooses]);
                let (n, bound) = (self.t.g.range_number(*r), self.t.name(self.t.g[*r].src[0]));
                self.line(format_args!("for (i64 r{n} = 0; r{n} < {bound}; r{n}++) {{"));
                self.ask(*r);
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
                let node = &self.t.g[*acc];
                let (t, first) = (type_of(node.dtype), self.t.name(node.src[0]));
                let a = self.t.number(node.src[1]);
                self.line(format_args!("{t} a{a} = {first};"));
            }
            Statement::Accumulate(acc, value) => {
                let e = self.t.expression(*value);
                let a = self.t.number(self.t.g[*acc].src[1]);
                self.line(format_args!("a{a} = {e};"));
            }
            Statement::Write(buffer, at, value) => self.write(*buffer, *at, *value),
            Statement::Wide(..) | Statement::WideWrite(..) => unreachable!("vectors are loaded and written whole"),
            Statement::Nest { staged, globals, .. } => {
                self.open.push([false; 2]);
                if *staged {
                    let changed: Vec<String> =
                        globals.iter().map(|&r| format!(" || r{0} != r{0}_last", self.t.g.range_number(r))).collect();
                    let first = if self.skipping { "fresh" } else { "w == lo" };
                    self.line(format_args!("if ({first}{}) {{", changed.concat()));
                } else {
                    self.line(format_args!("{{"));
                }
            }
        }
    }
    /// The lines of the next tile that a turn of this loop asks for.
    fn ask(&mut self, innermost: Id) {
        for i in 0..self.ahead.len() {
            let a = &self.ahead[i];
            if a.loops.last() != Some(&innermost) {
                continue;
            }
            let number = |r: &Id| self.t.g.range_number(*r);
            let turn = a.sharing.iter().chain(&a.loops).fold("0".to_string(), |turn, r| {
                format!("({turn} * {} + r{})", self.t.index(self.t.g[*r].src[0]), number(r))
            });
            let base: String = a.terms.iter().map(|&(t, c)| format!(" + {} * {c}", self.t.index(t))).collect();
            let (buffer, from, line, lines) = (self.t.buffer(a.buffer), a.from, a.line, a.lines);
            let step = line * lines;
            self.line(format_args!(
                "for (i64 j = 0; j < {lines}; j++) __builtin_prefetch({buffer}{base} + {from} + {turn} * {step} + j * {line}, 0, 2);"
            ));
        }
    }
    /// A vector of packed bytes, or of halves or bytes (a cache): those of the next rows are on their way while these are worked on. Rows
    /// are too short for the hardware to find the stream by itself, but where they are interleaved and so follow one another. The next rows lie behind all that the reductions around read: of a
    /// tile of the cache whose rows are summed up, they are those of the next workgroup.
    fn prefetch(&mut self, id: Id) {
        let n = &self.t.g[id];
        let ahead = self.t.signature.prefetch as i64;
        if n.op != Op::Load || n.dtype.lanes == 1 || ahead == 0 {
            return;
        }
        let packed = match self.t.g[n.src[0]].arg {
            Arg::Packed(slot, _) if self.t.signature.streams.contains(&slot) => return self.stream(id),
            Arg::Packed(..) => true,
            _ => false,
        };
        if self.ahead.iter().any(|a| a.buffer == n.src[0]) {
            return;
        }
        let narrow = n.dtype.scalar.is_half() || n.dtype.scalar == Scalar::I8;
        let cache = narrow && self.t.g[n.src[0]].op == Op::Param;
        if !(packed || cache) {
            return;
        }
        let at = self.t.g.linear(n.src[1]);
        let reach = |&r: &Id| at.coefficient(r) * (self.t.g.bounds(self.t.g[r].src[0]).map_or(1, |b| b.1) - 1);
        let read: i64 = self.reducing.iter().map(reach).sum();
        // Workgroups that read the same again before those rows are wanted: after many, the cache holds other things.
        let mut between = 1;
        let stride = self.around.iter().rev().find_map(|&r| {
            let stride = at.coefficient(r);
            if stride == 0 && self.t.g.range_kind(r) == Some(RangeKind::Global) {
                between *= self.t.g.max_of(self.t.g[r].src[0]);
            }
            (stride > read).then_some(stride * ahead)
        });
        let elements = if packed { 32 } else { 64 / n.dtype.scalar.bytes() as i64 };
        let line = (n.src[0], at.terms.to_vec(), at.constant.div_euclid(elements));
        if let Some(stride) = stride.filter(|_| packed || between <= SOON)
            && self.fetched.insert(line)
        {
            let (b, at) = (self.t.buffer(n.src[0]), self.t.name(n.src[1]));
            self.line(format_args!("__builtin_prefetch({b} + {at} + {stride});"));
        }
    }
    /// Interleaved rows follow one another, but the hardware's own prefetch keeps too few lines on their way: those further behind are asked for too, where
    /// everything is read once. Rows that tokens share are in a cache.
    fn stream(&mut self, id: Id) {
        let (buffer, at) = (self.t.g[id].src[0], self.t.g[id].src[1]);
        let free = self.t.g.free_ranges(at);
        if self.around.iter().any(|r| !free.contains(r)) {
            return;
        }
        let linear = self.t.g.linear(at);
        if self.fetched.insert((buffer, linear.terms.to_vec(), linear.constant.div_euclid(64))) {
            let (b, at, behind) = (self.t.buffer(buffer), self.t.name(at), self.t.signature.prefetch as i64 * BEHIND);
            self.line(format_args!("__builtin_prefetch({b} + {at} + {behind});"));
        }
    }
    fn write(&mut self, buffer: Id, at: Id, value: Id) {
        let d = self.t.g[value].dtype;
        let (b, at, v) = (self.t.buffer(buffer), self.t.name(at), self.t.name(value));
        let v = match (d.scalar, d.lanes) {
            (Scalar::Bool, 1) => v,
            (Scalar::Bool, l) => format!("cvt_i32_u8_{l}({v} & 1)"),
            _ => v,
        };
        let packed = matches!(self.t.g[buffer].arg, Arg::Packed(..));
        if d.lanes == 1 && !packed {
            self.line(format_args!("{b}[{at}] = {v};"));
        } else {
            self.line(format_args!("*({}_u *)({b} + {at}) = {v};", stored(d)));
        }
    }
}
