//! Legalises types for a machine with 32-bit arithmetic, and 64-bit integers where 32 bits do not
//! suffice.
//!
//! Operations on narrower types are computed in wider ones and then rounded or wrapped;
//! exponentials and logarithms become polynomials. Afterwards every value is a word: a narrow
//! integer in one word, a half as its bits, an index in 32 bits where its bounds show that it fits.

mod bytes;
mod conversions;
mod functions;
mod integers;
mod memory;
mod rounding;
mod word_types;

use crate::lower::linear_ir::accesses::AllAccesses;
use crate::lower::linear_ir::rewriting::Rewriting;
use crate::lower::linear_ir::threads::ThreadIndex;
use crate::lower::linear_ir::{Code, Prefetch, SpanPrefetch, Statement};
use conversions::cast;
use gristmill_uop::Scalar::{Bool, F32, I32, I64};
use gristmill_uop::{Arg, Graph, Id, Node, Op, ReduceOp, Sources};
use smallvec::smallvec;

use word_types::{in_a_word, made, type_of};

/// Legalises the statements of a body; `accesses` says how the kernel accesses its buffers.
pub fn legalise_types(g: &mut Graph, code: Code, accesses: &AllAccesses) -> Code {
    let mut w = Words {
        r: Rewriting::new(g),
        accesses,
    };
    let globals = code.globals.iter().map(|&r| w.word(r)).collect();
    let skip = code.skip.map(|skip| w.word(skip));
    code.statements.iter().for_each(|s| w.statement(s));
    Code {
        statements: w.r.out,
        globals,
        skip,
        ..code
    }
}

/// Legalises statements that use `known`, a value that is already defined. Also returns the
/// legalised forms of `values`.
pub fn in_words(
    g: &mut Graph,
    statements: Vec<Statement>,
    known: Id,
    values: &[Id],
) -> (Vec<Statement>, Vec<Id>) {
    let accesses = AllAccesses::default();
    let mut w = Words {
        r: Rewriting::new(g),
        accesses: &accesses,
    };
    let named = Node {
        dtype: type_of(w.r.g, known).one(),
        ..w.r.g[known].clone()
    };
    let named = w.r.g.intern(named);
    w.r.values.insert(known, named);
    w.r.knows(named);
    statements.iter().for_each(|s| w.statement(s));
    let values = values.iter().map(|&v| w.word(v)).collect();
    (w.r.out, values)
}

/// Legalises an expression that no statement defines.
pub fn expression_in_words(g: &mut Graph, id: Id) -> Id {
    Words {
        r: Rewriting::new(g),
        accesses: &AllAccesses::default(),
    }
    .word(id)
}

struct Words<'a> {
    r: Rewriting<'a>,
    accesses: &'a AllAccesses,
}

impl Words<'_> {
    /// Appends the legalised form of a statement.
    fn statement(&mut self, s: &Statement) {
        match s {
            Statement::Define(id) => drop(self.defined(*id)),
            Statement::Accumulator(acc) => {
                let acc = self.word(*acc);
                self.r.define(self.r.g[acc].src[0]);
                self.r.push(Statement::Accumulator(acc));
            }
            Statement::Accumulate(acc, value) => self.accumulate(*acc, *value),
            &Statement::Loop {
                range,
                step,
                unroll,
            } => self.open(range, step, unroll),
            Statement::Iteration(range, index) => {
                let (range, index) = (self.word(*range), self.defined(*index));
                let index = conversions::retyped(self.r.g, index, self.r.g.scalar(range));
                self.r.define(index);
                self.r.push(Statement::Iteration(range, index));
            }
            Statement::Wide(buffer, at, bytes, parts) => {
                let at = self.defined(*at);
                let parts = parts
                    .iter()
                    .map(|&(load, byte)| (self.word(load), byte))
                    .collect();
                self.r.push(Statement::Wide(*buffer, at, *bytes, parts));
            }
            Statement::Write(buffer, at, value) => self.write(*buffer, *at, &[*value]),
            Statement::WideWrite(buffer, at, _, values) => self.write(*buffer, *at, values),
            Statement::WriteTile(buffer, at, stride, tile) => {
                let (at, tile) = (self.defined(*at), self.defined(*tile));
                self.r
                    .push(Statement::WriteTile(*buffer, at, *stride, tile));
            }
            Statement::Add(addition) => self.add(addition),
            Statement::Nest {
                buffer,
                staged,
                globals,
                threads,
            } => self.nest(*buffer, *staged, globals, threads),
            Statement::Threads(threads) => {
                let threads = self.threads(threads);
                self.r.push(Statement::Threads(threads));
            }
            Statement::Unless(condition) => {
                let condition = self.word(*condition);
                self.r.push(Statement::Unless(condition));
            }
            Statement::Leave(condition) => {
                let condition = self.word(*condition);
                self.r.push(Statement::Leave(condition));
            }
            Statement::Prefetch(Prefetch::Span(span)) => self.span(span),
            s => self.r.push(s.clone()),
        }
    }
    /// Appends the start of a loop.
    fn open(&mut self, range: Id, step: i64, unroll: Option<i64>) {
        let range = self.word(range);
        self.r.define(self.r.g[range].src[0]);
        self.r.push(Statement::Loop {
            range,
            step,
            unroll,
        });
    }
    /// Appends the start of a nest.
    fn nest(&mut self, buffer: Id, staged: bool, globals: &[Id], threads: &[ThreadIndex]) {
        let globals = globals.iter().map(|&r| self.word(r)).collect();
        let threads = self.threads(threads);
        self.r.push(Statement::Nest {
            buffer,
            staged,
            globals,
            threads,
        });
    }
    /// Appends the prefetch of a span.
    fn span(&mut self, span: &SpanPrefetch) {
        let loops = span.loops.iter().map(|&r| self.word(r)).collect();
        let terms = span
            .terms
            .iter()
            .map(|&(term, by)| (self.word(term), by))
            .collect();
        let span = SpanPrefetch {
            loops,
            terms,
            ..span.clone()
        };
        self.r.push(Statement::Prefetch(Prefetch::Span(span)));
    }
    fn threads(&mut self, all: &[ThreadIndex]) -> Vec<ThreadIndex> {
        all.iter()
            .map(|t| ThreadIndex {
                range: self.word(t.range),
                ..*t
            })
            .collect()
    }
    /// Returns the legalised value, defined by a statement from here on.
    fn defined(&mut self, id: Id) -> Id {
        let word = self.word(id);
        self.r.define(word);
        word
    }
    /// Updates an accumulator in the accumulator's legalised type. A product of bytes
    /// may take two updates.
    fn accumulate(&mut self, acc: Id, value: Id) {
        let (acc, n) = (self.word(acc), self.r.g[value].clone());
        let own = self.r.g[acc].dtype;
        let src: Sources = n.src.iter().map(|&s| self.word(s)).collect();
        let n = Node { src, ..n };
        if n.op == Op::Dot4 {
            let (first, rest) = bytes::signed_product(self.r.g, &n);
            let product = made(self.r.g, Op::SignedDot4, I32, &[first, n.src[1], acc]);
            self.accumulated(acc, product);
            if let Some(rest) = rest {
                let value = made(self.r.g, Op::Add, I32, &[acc, rest]);
                self.accumulated(acc, value);
            }
            return;
        }
        if own.scalar == Bool {
            let value = integers::of_truths(self.r.g, &n);
            return self.accumulated(acc, value);
        }
        let of_integers = matches!(own.scalar, I32 | I64) && own.lanes == 1;
        let retyped = |g: &mut Graph, s: Id| match g.scalar(s) {
            I32 | I64 if of_integers => conversions::retyped(g, s, own.scalar),
            _ => s,
        };
        let src = n.src.iter().map(|&s| retyped(self.r.g, s)).collect();
        let value = self.r.g.intern(Node {
            src,
            dtype: own,
            ..n
        });
        self.accumulated(acc, value);
    }
    fn accumulated(&mut self, acc: Id, value: Id) {
        let needs: Sources = self.r.g[value]
            .src
            .iter()
            .copied()
            .filter(|&s| s != acc)
            .collect();
        needs.into_iter().for_each(|s| self.r.define(s));
        self.r.push(Statement::Accumulate(acc, value));
    }
    /// Returns the legalised form of a value, and of its sources.
    fn word(&mut self, id: Id) -> Id {
        if let Some(&word) = self.r.values.get(&id) {
            return word;
        }
        let n = &self.r.g[id];
        let word = match n.op {
            Op::Param | Op::Local => id,
            Op::Const => conversions::constant(self.r.g, id),
            Op::Reduce => {
                // Only the ranges of a reduction are legalised; its terms are kept, as the node
                // only identifies it here.
                let mut src = n.src.clone();
                src[1..].iter_mut().for_each(|r| *r = self.word(*r));
                self.typed(id, src)
            }
            Op::Acc => {
                let n = n.clone();
                let [first, sum] = [n.src[0], n.src[1]].map(|s| self.word(s));
                let dtype = self.r.g[sum].dtype;
                let first = conversions::retyped(self.r.g, first, dtype.scalar);
                self.r.g.intern(Node {
                    src: smallvec![first, sum],
                    dtype,
                    ..n
                })
            }
            Op::Range => {
                // A bound may have a wider type than the indices below it, if less is known of the
                // bound.
                let (bound, own) = (n.src[0], type_of(self.r.g, id));
                let bound = self.word(bound);
                let bound = conversions::retyped(self.r.g, bound, own);
                self.typed(id, smallvec![bound])
            }
            _ => {
                let src: Sources = n.src.clone().iter().map(|&s| self.word(s)).collect();
                self.operation(id, src)
            }
        };
        self.r.values.insert(id, word);
        word
    }
    /// Returns the same operation on new sources, in its legalised type.
    fn typed(&mut self, id: Id, src: Sources) -> Id {
        let n = self.r.g[id].clone();
        let dtype = if n.dtype.lanes > 1 {
            n.dtype
        } else {
            type_of(self.r.g, id).one()
        };
        self.r.g.intern(Node { src, dtype, ..n })
    }
    /// Returns an operation on legalised sources. Nodes are interned without simplification, so the
    /// code computes exactly what is built here.
    fn operation(&mut self, id: Id, src: Sources) -> Id {
        let (n, to) = (self.r.g[id].clone(), type_of(self.r.g, id));
        let own = n.dtype.scalar;
        let Some(&first) = n.src.first().filter(|_| n.dtype.lanes == 1) else {
            return self.typed(id, src);
        };
        let g = &mut *self.r.g;
        let from = g.scalar(first);
        match n.op {
            Op::Cast => {
                let fits = own
                    .range()
                    .is_some_and(|(least, most)| g.within(first, least, most));
                conversions::cast_to(g, src[0], (from, own), to, fits)
            }
            Op::Bitcast => conversions::bits(g, src[0], (from, own)),
            Op::Table => {
                let fits = |last: i64| g.within(first, 0, last);
                let (entries, whole) = (bytes::entries(&n), n.dtype.scalar);
                let value = bytes::entry(g, &entries, src[0], fits(entries.len() as i64 - 1));
                let fits = whole
                    .range()
                    .is_some_and(|(least, most)| g.within(id, least, most));
                conversions::cast_to(g, value, (I32, own), to, fits)
            }
            Op::Table4 => bytes::looked_up(g, &Node { src, ..n }),
            Op::Dot4 => bytes::product(g, &Node { src, ..n }),
            op if op.is_float_arithmetic() && (from == F32 || from.is_half()) => {
                let src: Sources = src
                    .iter()
                    .zip(&n.src)
                    .map(|(&s, &of)| cast(g, s, g.scalar(of), F32))
                    .collect();
                let value = functions::function(g, op, &src);
                if own.is_half() {
                    cast(g, value, F32, own)
                } else {
                    value
                }
            }
            _ if from.is_int() || own.is_int() || from == Bool => integers::integer(g, id, src),
            _ => self.typed(id, src),
        }
    }
}

/// Returns a sum of narrow values, or any reduction of 16-bit floats, computed in a wider type.
/// `None` if the own type suffices, e.g. for a maximum of integers, with the least value of its
/// type as identity.
pub fn sum_in_words(g: &mut Graph, reduce: Id, terms: Id) -> Option<Id> {
    let n = g[reduce].clone();
    let own = n.dtype.scalar;
    let wide = if own.is_half() { F32 } else { in_a_word(own) };
    let wraps = own.is_half() || matches!(n.arg, Arg::Reduce(ReduceOp::Add, _));
    if n.op != Op::Reduce || wide == own || !wraps {
        return None;
    }
    let mut src = n.src.clone();
    src[0] = g.cast(terms, wide);
    let sum = g.intern(Node {
        dtype: wide.one(),
        src,
        ..n
    });
    Some(g.cast(sum, own))
}
