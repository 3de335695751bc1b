//! C dialect for the CPU: GNU vector extensions and compiler builtins, without system headers.
//!
//! A kernel is one function that runs an interval of the launch's workgroups; everything it needs
//! is in the prelude (`prelude.rs`).

mod prelude;
mod tiles;
mod vectors;
mod words;

pub use prelude::prelude;

use crate::render::{Expressions, Values, stored, sum, type_of};
use gristmill_compiler::emit::{Accessor, CustomCode, CustomDialect, Dialect, Signature};
use gristmill_compiler::lower::{Addition, Code, KernelCode, Prefetch, Statement, TilePrefetch};
use gristmill_uop::custom::Language;
use gristmill_uop::program::Access;
use gristmill_uop::{Arg, Graph, Id, Scalar};
use std::fmt::Write;

/// The C dialect; only the prelude depends on the instruction set.
pub struct C;

struct Writer<'a> {
    t: Expressions<'a>,
    /// Whether workgroups of this body may be skipped, so that its first one may not be
    /// the interval's first.
    skipping: bool,
    out: String,
}

impl Dialect for C {
    fn render(
        &self,
        name: &str,
        graph: &Graph,
        code: &KernelCode,
        signature: &Signature,
    ) -> String {
        let t = Expressions::new(name, graph, signature, Values::Vectors);
        let mut w = Writer {
            t,
            skipping: false,
            out: String::new(),
        };
        w.kernel(name, &code.bodies);
        w.t.definitions() + &w.out
    }
    fn custom(&self) -> Option<&dyn CustomDialect> {
        Some(self)
    }
}

impl CustomDialect for C {
    fn language(&self) -> Language {
        Language {
            name: "c",
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
        let t = Expressions::new(name, graph, signature, Values::Vectors);
        let mut w = Writer {
            t,
            skipping: false,
            out: String::new(),
        };
        code.accessors.iter().for_each(|of| w.accessor(of));
        w.begin(name);
        w.out.push_str(&w.t.custom_body(code, self.language().name));
        w.line(format_args!("}}"));
        w.t.definitions() + &w.out
    }
}

impl Writer<'_> {
    fn line(&mut self, text: std::fmt::Arguments) {
        let _ = self.out.write_fmt(text);
        self.out.push('\n');
    }
    /// Renders a parameter with its type.
    fn pointer(&self, i: usize) -> String {
        let (_, access, node) = self.t.signature.params[i];
        let packed = matches!(self.t.g[node].arg, Arg::Packed(..));
        let t = if packed {
            "u8".into()
        } else {
            stored(self.t.g[node].dtype)
        };
        match access {
            Access::Read => format!("const {t} *restrict p{i}"),
            Access::Write => format!("{t} *restrict p{i}"),
            Access::ReadWrite => format!("{t} *p{i}"),
        }
    }
    /// Writes an accessor function for a user's text.
    fn accessor(&mut self, of: &Accessor) {
        let buffers = (0..self.t.signature.params.len()).map(|i| self.pointer(i));
        let variables = (0..self.t.signature.vars.len()).map(|i| format!("const i64 var{i}"));
        let head = self
            .t
            .accessor_head(of, &buffers.chain(variables).collect::<Vec<_>>());
        self.line(format_args!("{head}"));
        of.statements.iter().for_each(|s| self.statement(s));
        let tail = self.t.accessor_tail(of);
        self.line(format_args!("{tail}"));
    }
    /// Writes the head of a kernel, up to its bodies.
    fn begin(&mut self, name: &str) {
        self.line(format_args!(
            "void {name}(void *const *b, const i64 *v, i64 first, i64 end, u8 *scratch, _Bool staged) {{"
        ));
        for i in 0..self.t.signature.params.len() {
            let pointer = self.pointer(i);
            self.line(format_args!("{pointer} = b[{i}];"));
        }
        for i in 0..self.t.signature.vars.len() {
            self.line(format_args!("const i64 var{i} = v[{i}];"));
        }
        for (i, &(local, at)) in self.t.signature.scratch.iter().enumerate() {
            let t = stored(self.t.g[local].dtype);
            self.line(format_args!("{t} *const l{i} = ({t} *)(scratch + {at});"));
        }
    }
    fn kernel(&mut self, name: &str, bodies: &[Code]) {
        self.begin(name);
        self.line(format_args!("i64 base = 0;"));
        let tiles = bodies
            .iter()
            .flat_map(|b| &b.statements)
            .any(|s| matches!(s, Statement::WriteTile(..)));
        if tiles {
            self.line(format_args!("TILES_BEGIN;"));
        }
        for (i, code) in bodies.iter().enumerate() {
            self.body(i, code);
        }
        if tiles {
            self.line(format_args!("TILES_END;"));
        }
        self.line(format_args!("}}"));
    }
    fn body(&mut self, number: usize, code: &Code) {
        let count = self.t.index(self.t.signature.groups[number]);
        self.line(format_args!("{{ const i64 count = {count};"));
        self.line(format_args!(
            "const i64 lo = first > base ? first - base : 0, hi = end - base < count ? end - base : count;"
        ));
        for &r in &code.globals {
            self.line(format_args!("i64 r{}_last = -1;", self.t.g.range_number(r)));
        }
        if code.skip.is_some() {
            self.line(format_args!("i64 fresh = 1;"));
        }
        self.line(format_args!("for (i64 w = lo; w < hi; w++) {{"));
        // Row-major over the ranges of workgroups.
        let mut rest = String::from("(u64)w");
        for (i, &r) in code.globals.iter().enumerate().rev() {
            let n = self.t.g.range_number(r);
            if i == 0 {
                self.line(format_args!("const i64 r{n} = (i64)({rest});"));
            } else {
                let bound = self.t.index(self.t.g[r].src[0]);
                self.line(format_args!(
                    "const i64 r{n} = (i64)({rest} % (u64)({bound}));"
                ));
                rest = format!("{rest} / (u64)({bound})");
            }
        }
        if let Some(skip) = code.skip {
            let skip = self.t.index(skip);
            self.line(format_args!("if ({skip}) continue;"));
        }
        self.skipping = code.skip.is_some();
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
        if let Some(text) = tiles::statement(&self.t, s) {
            return self.line(format_args!("{text}"));
        }
        match s {
            Statement::Define(id) => {
                let (t, e) = (type_of(self.t.g[*id].dtype), self.t.expression(*id));
                let v = self.t.number(*id);
                self.line(format_args!("const {t} v{v} = {e};"));
            }
            // Unrolling is left to the C compiler.
            Statement::Loop {
                range,
                step: 1,
                unroll: None,
            } => {
                let (n, bound) = (
                    self.t.g.range_number(*range),
                    self.t.name(self.t.g[*range].src[0]),
                );
                self.line(format_args!(
                    "for (i64 r{n} = 0; r{n} < {bound}; r{n}++) {{"
                ));
            }
            Statement::End => self.line(format_args!("}}")),
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
            Statement::Add(addition) => self.add(addition),
            Statement::Prefetch(Prefetch::Line {
                at: [buffer, at],
                ahead,
            }) => {
                let (b, at) = (self.t.buffer(*buffer), self.t.name(*at));
                self.line(format_args!("__builtin_prefetch({b} + {at} + {ahead});"));
            }
            Statement::Prefetch(Prefetch::Tile(tile)) => self.tile(tile),
            Statement::WriteTile(..) => unreachable!("tiles have been written"),
            Statement::Nest {
                staged, globals, ..
            } => {
                if *staged {
                    let changed: Vec<String> = globals
                        .iter()
                        .map(|&r| format!(" || r{0} != r{0}_last", self.t.g.range_number(r)))
                        .collect();
                    let first = if self.skipping {
                        "fresh"
                    } else {
                        "w == lo && !staged"
                    };
                    self.line(format_args!("if ({first}{}) {{", changed.concat()));
                } else {
                    self.line(format_args!("{{"));
                }
            }
            s => panic!("C for a CPU has no text for {s:?}"),
        }
    }
    /// Writes the prefetch of a tile's lines for one value of `turn`, into the L2 cache.
    fn tile(&mut self, tile: &TilePrefetch) {
        let turn = tile.turn.iter().fold("0".to_string(), |turn, &r| {
            format!(
                "({turn} * {} + r{})",
                self.t.index(self.t.g[r].src[0]),
                self.t.g.range_number(r)
            )
        });
        let base: String = tile
            .terms
            .iter()
            .map(|&(t, c)| format!(" + {} * {c}", self.t.index(t)))
            .collect();
        let TilePrefetch {
            from, line, lines, ..
        } = tile;
        let (buffer, step) = (self.t.buffer(tile.buffer), line * lines);
        self.line(format_args!(
            "for (i64 j = 0; j < {lines}; j++) __builtin_prefetch({buffer}{base} + {from} + {turn} * {step} + j * {line}, 0, 2);"
        ));
    }
    fn add(&mut self, a: &Addition) {
        let &[value] = &a.values[..] else {
            unreachable!("a vector is added as one value: {a:?}")
        };
        let d = self.t.g[value].dtype;
        let (b, at, v) = (
            self.t.buffer(a.buffer),
            self.t.name(a.at),
            self.t.name(value),
        );
        let when = a
            .when
            .map_or(String::new(), |when| format!("if ({}) ", self.t.name(when)));
        let (scalar, place) = (d.scalar.name(), format!("{b} + {at}"));
        match (a.atomic, d.lanes) {
            (true, 1) => self.line(format_args!("{when}add_{scalar}({place}, {v});")),
            (true, n) => {
                self.line(format_args!(
                    "{when}for (i64 j = 0; j < {n}; j++) add_{scalar}({place} + j, {v}[j]);"
                ));
            }
            (false, lanes) => {
                let element = if lanes == 1 {
                    format!("{b}[{at}]")
                } else {
                    format!("*({}_u *)({place})", stored(d))
                };
                let sum = sum(d, &element, &v);
                self.line(format_args!("{when}{element} = {sum};"));
            }
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
