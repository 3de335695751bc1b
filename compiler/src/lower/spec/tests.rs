//! Tests that valid code passes, and that each rule fails on code that breaks it, with the
//! offending node.

use super::{check, check_widths, nodes};
use crate::lower::linear_ir::threads::ThreadIndex;
use crate::lower::linear_ir::{
    Addition, Code, KernelCode, Prefetch as Ahead, SpanPrefetch, Statement, TilePrefetch, Update,
};
use Statement::{
    Accumulate, Accumulator, Add, Copied, Define, End, Iteration, Nest, Prefetch, Wide, WideWrite,
    Write, WriteTile,
};
use gristmill_uop::fragment::{AMX_BF16, COOPERATIVE_16, MMA_BF16, WGMMA_16};
use gristmill_uop::machine::Machine;
use gristmill_uop::{Arg, DType, Graph, Id, Node, Op, RangeKind, ReduceOp, Scalar};
use smallvec::SmallVec;

/// Code for `y[row] = Σ_term x[8·row + term]`.
struct World {
    g: Graph,
    x: Id,
    y: Id,
    stage: Id,
    group: Id,
    row: Id,
    term: Id,
    thread: Id,
    /// A buffer that copies alone fill.
    ring: Id,
    at: Id,
    load: Id,
    acc: Id,
    update: Id,
    sum: Id,
}

impl World {
    fn new() -> World {
        let mut g = Graph::new();
        let (x, y) = (g.param(0, &[], Scalar::F32), g.param(1, &[], Scalar::F32));
        let eight = g.int(8);
        let kinds = [
            RangeKind::Global,
            RangeKind::Loop,
            RangeKind::Reduce,
            RangeKind::VectorReduce,
        ];
        let mut number = 0;
        let [group, row, term, thread] = kinds.map(|kind| {
            number += 1;
            g.range(eight, number, kind)
        });
        let scaled = g.mul(row, eight);
        let at = g.add(scaled, term);
        let load = g.load(x, at, Scalar::F32);
        let sum = g.reduce_ranges(load, &[term], ReduceOp::Add);
        let first = g.f32(0.0);
        let mut w = World {
            g,
            x,
            y,
            stage: eight,
            ring: eight,
            group,
            row,
            term,
            thread,
            at,
            load,
            acc: first,
            update: first,
            sum,
        };
        w.stage = w.node(Op::Local, Scalar::F32, &[eight], Arg::Int(0));
        let places = w.g.int(64);
        w.ring = w.node(Op::Local, Scalar::U32, &[places], Arg::Int(1));
        w.acc = w.node(Op::Acc, Scalar::F32, &[first, sum], Arg::None);
        w.update = w.node(Op::Add, Scalar::F32, &[w.acc, load], Arg::None);
        w
    }
    fn node(&mut self, op: Op, dtype: impl Into<DType>, src: &[Id], arg: Arg) -> Id {
        self.g.intern(Node {
            op,
            dtype: dtype.into(),
            src: SmallVec::from_slice(src),
            arg,
        })
    }
    fn open(&self, buffer: Id, threads: &[Id]) -> Statement {
        let staged = self.g[buffer].op == Op::Local;
        let index = |&range: &Id| ThreadIndex {
            range,
            divide: None,
            modulo: Some(8),
        };
        Nest {
            buffer,
            staged,
            globals: vec![self.group],
            threads: threads.iter().map(index).collect(),
        }
    }
    fn good(&self) -> Vec<Statement> {
        let scaled = self.g[self.at]
            .src
            .iter()
            .copied()
            .find(|&s| self.g[s].op == Op::Mul)
            .expect("a product");
        vec![
            self.open(self.y, &[]),
            open(self.row),
            Define(scaled),
            Accumulator(self.acc),
            open(self.term),
            Define(self.at),
            Define(self.load),
            Accumulate(self.acc, self.update),
            End,
            Write(self.y, self.row, self.sum),
            End,
            End,
        ]
    }
    /// A nest with these threads that only computes `id`, from constants or loads.
    fn define(&mut self, id: Id, threads: &[Id]) -> Vec<Statement> {
        let zero = self.g.int(0);
        let one = self.g.f32(1.0);
        vec![
            self.open(self.y, threads),
            Define(id),
            Write(self.y, zero, one),
            End,
        ]
    }
    fn check(&self, statements: Vec<Statement>) -> Result<(), super::LinearError> {
        let (globals, locals) = (vec![self.group], vec![self.ring]);
        check(
            &self.g,
            &of_one_thread(Code {
                globals,
                locals,
                statements,
                ..Code::default()
            }),
        )
    }
}

/// A kernel of one body and one thread.
fn of_one_thread(code: Code) -> KernelCode {
    KernelCode {
        bodies: vec![code],
        threads: 1,
        resident: 1,
        shared: None,
        entry: vec![],
        idle: vec![],
    }
}

fn open(range: Id) -> Statement {
    Statement::Loop {
        range,
        step: 1,
        unroll: None,
    }
}

fn added(buffer: Id, at: Id, values: Vec<Id>, when: Option<Id>, atomic: bool) -> Statement {
    Add(Addition {
        buffer,
        at,
        values,
        when,
        atomic,
    })
}

/// An update of a word of `y` by the nodes that `of` builds, from a load at `from`.
fn updated(w: &mut World, from: Id, atomic: bool, of: fn(&mut World, Id) -> Vec<Id>) -> Statement {
    let old = w.g.load(w.y, from, Scalar::F32);
    Statement::Update(Update {
        buffer: w.y,
        at: w.row,
        old,
        values: of(w, old),
        when: None,
        atomic,
    })
}

fn twice(w: &mut World, old: Id) -> Vec<Id> {
    vec![w.node(Op::Add, Scalar::F32, &[old, old], Arg::None)]
}

/// A rule, and a change to `good` that violates it.
type Bad = (&'static str, fn(&mut World, &mut Vec<Statement>));

const BAD: &[Bad] = &[
    ("a statement stands in a nest", |_, s| drop(s.remove(0))),
    ("a nest stands in no other", |_, s| {
        s.insert(1, s[0].clone())
    }),
    ("every loop and nest is closed", |_, s| drop(s.pop())),
    ("an end closes a loop or a nest", |_, s| s.push(End)),
    (
        "a nest writes a parameter, or a stage where it is one",
        |w, s| {
            s[0] = Nest {
                buffer: w.y,
                staged: true,
                globals: vec![],
                threads: vec![],
            };
        },
    ),
    (
        "a nest depends on workgroup indices of the launch",
        |w, s| {
            s[0] = Nest {
                buffer: w.y,
                staged: false,
                globals: vec![w.row],
                threads: vec![],
            };
        },
    ),
    ("threads are a constant number of lanes", |w, s| {
        s[0] = w.open(w.y, &[w.row])
    }),
    ("a nest writes its buffer", |_, s| drop(s.remove(9))),
    ("a nest writes its own buffer", |w, s| {
        s[9] = Write(w.x, w.row, w.sum)
    }),
    ("what is added to is f32, f16 or i32 in memory", |w, s| {
        s[0] = Nest {
            buffer: w.stage,
            staged: true,
            globals: vec![],
            threads: vec![],
        };
        s[9] = added(w.stage, w.row, vec![w.sum], None, true);
    }),
    (
        "what is added at once is one value, or two halves of a word",
        |w, s| {
            s[9] = added(w.y, w.row, vec![w.sum; 2], None, true);
        },
    ),
    ("what is added is of the buffer's type", |w, s| {
        s[9] = added(w.y, w.row, vec![w.row], None, true)
    }),
    ("what is added under a condition has one", |w, s| {
        s[9] = added(w.y, w.row, vec![w.sum], Some(w.sum), true)
    }),
    (
        "what others may add to at the same time is added atomically",
        |w, s| {
            s[9] = added(w.y, w.row, vec![w.sum], None, false);
        },
    ),
    (
        "what is updated is a word, of which there is a load",
        |w, s| s[9] = updated(w, w.term, true, |_, _| vec![]),
    ),
    ("what is updated under a condition has one", |w, s| {
        let Statement::Update(mut of) = updated(w, w.row, true, twice) else {
            return;
        };
        of.when = Some(w.sum);
        s[9] = Statement::Update(of);
    }),
    ("a word becomes what is computed, of its type", |w, s| {
        s[9] = updated(w, w.row, true, |_, _| vec![])
    }),
    (
        "what others may update at the same time is updated atomically",
        |w, s| s[9] = updated(w, w.row, false, twice),
    ),
    (
        "a value is defined before it is used, in a scope around it",
        |w, s| {
            s[9] = updated(w, w.row, true, twice);
            let Statement::Update(of) = &s[9] else { return };
            let write = Write(w.y, w.row, of.old);
            s.insert(10, write);
        },
    ),
    ("an offset is an i64, or one in a word", |w, s| {
        s[9] = Write(w.y, w.sum, w.sum)
    }),
    (
        "what is written is of the buffer's type, or a word of its elements",
        |w, s| s[9] = Write(w.y, w.row, w.row),
    ),
    ("a loop is over a range that is not open", |w, s| {
        s[4] = open(w.row)
    }),
    ("a loop is over a range that is not open", |w, s| {
        s[4] = open(w.group)
    }),
    ("a loop is over a range that is not open", |w, s| {
        s[4] = Iteration(w.row, w.term)
    }),
    ("a range counts up to a bound of its type", |w, s| {
        let eight = w.g.int_of(Scalar::I32, 8);
        s[4] = open(w.node(
            Op::Range,
            Scalar::I64,
            &[eight],
            Arg::Range(9, RangeKind::Reduce),
        ));
    }),
    (
        "the index of an iteration that is written out lies within its range",
        |w, s| {
            let eight = w.g.int(8);
            s[4] = Iteration(w.term, eight);
        },
    ),
    ("a range is open where it is used", |_, s| s.swap(4, 5)),
    (
        "a value is defined before it is used, in a scope around it",
        |_, s| s.swap(5, 6),
    ),
    (
        "a value is defined before it is used, in a scope around it",
        |w, s| s[9] = Write(w.y, w.row, w.load),
    ),
    ("a value is defined once", |_, s| s.insert(6, s[5].clone())),
    ("a value is defined once", |_, s| s.insert(4, s[3].clone())),
    ("an accumulator has a statement of its own", |w, s| {
        s[3] = Define(w.acc)
    }),
    ("an accumulator is a node of its own kind", |w, s| {
        s[3] = Accumulator(w.sum)
    }),
    ("an accumulator is opened before it is added to", |_, s| {
        drop(s.remove(3))
    }),
    ("an accumulator is read by its own update alone", |w, s| {
        s.insert(7, Define(w.update))
    }),
    ("an update adds to its accumulator", |w, s| {
        s[7] = Accumulate(w.acc, w.load)
    }),
    (
        "an accumulator is added to in the loops of its reduction",
        |_, s| s.swap(7, 8),
    ),
    (
        "an accumulator is added to before its scope ends",
        |_, s| drop(s.drain(4..10)),
    ),
    ("a sum is read when all is added", |w, s| {
        s.insert(8, Write(w.y, w.row, w.sum))
    }),
    ("a sum is read when all is added", |_, s| s.swap(4, 9)),
    ("nothing is added to a sum that has been read", |w, s| {
        s.splice(
            10..10,
            [
                open(w.term),
                Define(w.at),
                Define(w.load),
                Accumulate(w.acc, w.update),
                End,
            ],
        );
    }),
    (
        "a stage is filled by a nest before the one that reads it",
        |w, s| {
            let load = w.g.load(w.stage, w.row, Scalar::F32);
            s.insert(2, Define(load));
        },
    ),
    (
        "a wide load is of 8 or 16 bytes, at a multiple of them",
        |w, s| s[6] = Wide(w.x, w.at, 16, vec![(w.load, 0)]),
    ),
    (
        "a part of a wide load is a load of its buffer, at its byte",
        |w, s| {
            s[5] = Wide(w.x, eight_rows(w), 16, vec![(w.load, 0)]);
        },
    ),
    (
        "a part of a wide load lies in it, and in one of its words",
        |w, s| {
            let (row, four) = (eight_rows(w), w.g.int(4));
            let beyond = w.g.add(row, four);
            let load = w.g.load(w.x, beyond, Scalar::F32);
            s.insert(3, Wide(w.x, row, 16, vec![(load, 16)]));
        },
    ),
    (
        "a tile is written to rows of the buffer's type that do not overlap",
        |w, s| {
            s[9] = WriteTile(w.y, w.row, 16, w.sum);
        },
    ),
    (
        "a wide write is of 4, 8 or 16 bytes, at a multiple of them",
        |w, s| {
            s[9] = WideWrite(w.y, w.row, 8, vec![w.sum, w.sum]);
        },
    ),
    ("the values of a wide write fill it", |w, s| {
        s[9] = WideWrite(w.y, eight_rows(w), 16, vec![w.sum, w.sum])
    }),
    ("kernels are waited for outside nests", |_, s| {
        s.insert(2, Statement::DependencyWait)
    }),
    ("threads are waited for where all of them come", |w, s| {
        let one = w.g.int(1);
        let bound = w.g.add(w.thread, one);
        let parted = w.g.range(bound, 9, RangeKind::Loop);
        s[0] = w.open(w.y, &[w.thread]);
        s.splice(1..1, [Define(bound), open(parted), Statement::Barrier]);
    }),
    (
        "copies that are not waited for are groups of copies",
        |_, s| s.insert(2, Statement::AsyncWait(-1)),
    ),
    ("what a copy depends on is known where it is", |w, s| {
        let (row, none) = (eight_rows(w), [0; 2]);
        let (to, from) = ([w.ring, row], [w.x, row]);
        s.insert(
            3,
            Statement::AsyncCopy {
                to,
                from,
                plus: none,
                bytes: 16,
                when: Some(w.term),
            },
        );
    }),
    ("what was copied is read from a ring", |w, s| {
        s[6] = Copied(w.stage, w.row, 16, vec![(w.load, 0)])
    }),
    (
        "what was copied is read as it was, 16 bytes at a multiple of them",
        |w, s| {
            s[6] = Copied(w.ring, w.row, 16, vec![(w.load, 0)]);
        },
    ),
    (
        "a copy is of loads from memory, each within one of its words",
        |w, s| {
            let row = eight_rows(w);
            s.insert(3, Copied(w.ring, row, 16, vec![(w.load, 16)]));
        },
    ),
    ("what is carried over is of its load's type", |w, s| {
        s.insert(3, Statement::Carried(w.load, w.row))
    }),
    ("what is carried over is of its load's type", |w, s| {
        s.insert(7, Statement::Carry(w.load, w.load))
    }),
    ("threads are counted outside nests, or by one", |w, s| {
        s.insert(2, threads(w, 8))
    }),
    ("a range is counted once outside nests", |w, s| {
        s.splice(0..0, [threads(w, 8), threads(w, 8)])
            .for_each(drop)
    }),
    (
        "a range whose loads were hoisted is counted as it was for these",
        |w, s| {
            s[0] = w.open(w.y, &[w.thread]);
            s.insert(0, threads(w, 4));
        },
    ),
    (
        "what stands outside nests is a load from memory, or what its address is made of",
        |w, s| s.insert(0, Define(w.sum)),
    ),
    (
        "before the wait for predecessors weights alone are loaded",
        |w, s| {
            let zero = w.g.int(0);
            s.insert(0, Define(w.g.load(w.x, zero, Scalar::F32)));
        },
    ),
    ("a workgroup ends between its nests", |w, s| {
        s.insert(2, Statement::Leave(w.group))
    }),
    (
        "where a workgroup ends is known from its indices and from memory",
        |w, s| s.push(Statement::Leave(w.row)),
    ),
    (
        "a condition stands around nests, and around no other",
        |w, s| s.insert(2, Statement::Unless(w.group)),
    ),
    ("every loop and nest is closed", |w, s| {
        s.push(Statement::Unless(w.group))
    }),
    (
        "a loop comes to its end in steps, and one that others share, or a sum's, in steps of one",
        |w, s| {
            s[1] = Statement::Loop {
                range: w.row,
                step: 0,
                unroll: None,
            }
        },
    ),
    ("an iteration at least is written out", |w, s| {
        s[1] = Statement::Loop {
            range: w.row,
            step: 1,
            unroll: Some(0),
        }
    }),
    ("a thread's index lies within its range", |w, s| {
        let index = ThreadIndex {
            range: w.thread,
            divide: None,
            modulo: Some(9),
        };
        s[0] = Nest {
            buffer: w.y,
            staged: false,
            globals: vec![],
            threads: vec![index],
        };
    }),
    ("an asynchronous copy is from memory to a stage", |w, s| {
        s[9] = copy([w.y, w.row], [w.x, w.row], 16)
    }),
    (
        "an asynchronous copy is of 16 bytes, at multiples of them",
        |w, s| {
            s[0] = w.open(w.stage, &[]);
            s[9] = copy([w.stage, w.row], [w.x, w.row], 16);
        },
    ),
    ("what is asked for ahead is memory", |w, s| {
        s.insert(
            3,
            Prefetch(Ahead::Line {
                at: [w.stage, w.row],
                ahead: 8,
            }),
        );
    }),
    ("a range is open where it is used", |w, s| {
        s.insert(3, Prefetch(Ahead::Tile(tile(w, w.row, w.term))))
    }),
    ("what is asked for ahead is known where it is", |w, s| {
        s.insert(3, Prefetch(Ahead::Tile(tile(w, w.row, w.row))))
    }),
    ("a span is asked for outside nests", |w, s| {
        s.insert(3, Prefetch(Ahead::Span(span(w, w.group))))
    }),
    ("what is asked for ahead is known where it is", |w, s| {
        s.insert(0, Prefetch(Ahead::Span(span(w, w.row))))
    }),
    (
        "a stage is filled by a nest before the one that reads it",
        |w, s| {
            let load = w.g.load(w.stage, w.group, Scalar::F32);
            s.insert(0, Prefetch(Ahead::Span(span(w, load))));
        },
    ),
];

/// Declares `modulo` threads outside nests.
fn threads(w: &World, modulo: i64) -> Statement {
    Statement::Threads(vec![ThreadIndex {
        range: w.thread,
        divide: None,
        modulo: Some(modulo),
    }])
}

fn copy(to: [Id; 2], from: [Id; 2], bytes: usize) -> Statement {
    Statement::AsyncCopy {
        to,
        from,
        plus: [0; 2],
        bytes,
        when: None,
    }
}

/// Prefetches a line of `x` per index of `turn`, from `term` on.
fn tile(w: &World, term: Id, turn: Id) -> TilePrefetch {
    TilePrefetch {
        buffer: w.x,
        terms: vec![(term, 8)],
        from: 0,
        turn: vec![turn],
        line: 16,
        lines: 1,
    }
}

/// Prefetches sixteen bytes of `x`, from `term` on.
fn span(w: &World, term: Id) -> SpanPrefetch {
    SpanPrefetch {
        buffer: w.x,
        loops: vec![],
        terms: vec![(term, 16)],
        from: 0,
        bytes: 16,
    }
}

fn eight_rows(w: &mut World) -> Id {
    let eight = w.g.int(8);
    w.g.mul(w.row, eight)
}

#[test]
fn sums_in_loops_and_wide_accesses_are_linear_code() {
    let mut w = World::new();
    w.check(w.good()).unwrap_or_else(|e| panic!("{e}"));
    let (mut s, row) = (w.good(), eight_rows(&mut w));
    let parts: Vec<(Id, usize)> = (0..4)
        .map(|i| {
            let i = w.g.int(i);
            let at = w.g.add(row, i);
            (
                w.g.load(w.x, at, Scalar::F32),
                4 * w.g.int_value(i).expect("a number") as usize,
            )
        })
        .collect();
    s[9] = WideWrite(w.y, row, 16, parts.iter().map(|p| p.0).collect());
    s.insert(3, Wide(w.x, row, 16, parts));
    s.retain(|s| !matches!(s, Define(id) if w.g[*id].op == Op::Load && *id != w.load));
    w.check(s).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn iterations_that_are_written_out_add_to_the_sum_of_their_loop() {
    // Two groups of three iterations, and two remaining ones.
    let with_last = |last: i64| {
        let mut w = World::new();
        let (mut s, eight) = (w.good(), w.g.int(8));
        let first = w.g.range(eight, 9, RangeKind::Loop);
        let mut behind = |by: i64| {
            let by = w.g.int(by);
            w.g.add(first, by)
        };
        let others = [behind(1), behind(last)];
        let rest = [6, 7].map(|v| w.g.int(v));
        let body: Vec<Statement> = s.drain(4..9).collect();
        let of = |index: Id| [&[Iteration(w.term, index)], &body[1..]].concat();
        let mut all = [
            vec![Statement::Loop {
                range: first,
                step: 3,
                unroll: None,
            }],
            of(first),
        ]
        .concat();
        others
            .iter()
            .for_each(|&index| all.extend([vec![Define(index)], of(index)].concat()));
        all.push(End);
        rest.iter().for_each(|&index| all.extend(of(index)));
        s.splice(4..4, all);
        w.check(s)
    };
    with_last(2).unwrap_or_else(|e| panic!("{e}"));
    let e = with_last(3).expect_err("the round holds three");
    assert_eq!(
        e.rule,
        "the index of an iteration that is written out lies within its range"
    );
}

#[test]
fn every_rule_of_statements_can_fail() {
    for (rule, change) in BAD {
        let mut w = World::new();
        let mut s = w.good();
        change(&mut w, &mut s);
        let e = w.check(s).expect_err(rule);
        assert_eq!(e.rule, *rule, "{e}");
        let shown = e.node.contains('%') || e.node.starts_with("statement");
        assert!(shown && e.to_string().contains(rule), "{e}");
    }
}

#[test]
fn conditions_are_known_outside() {
    let w = World::new();
    let code = Code {
        globals: vec![w.group],
        skip: Some(w.load),
        ..Code::default()
    };
    let e = check(&w.g, &of_one_thread(code)).expect_err("a load");
    assert_eq!(
        e.rule,
        "a condition is one on variables and workgroup indices"
    );
}

/// A rule, whether the nest has threads, and a node that violates the rule,
/// built from scalar constants.
type Wrong = (&'static str, bool, fn(&mut World) -> Id);

const WRONG: &[Wrong] = &[
    (
        "only scalars and vectors, elementwise ops, loads and linear ops",
        false,
        |w| w.sum,
    ),
    ("operands are values", false, |w| {
        w.node(Op::Neg, Scalar::F32, &[w.x], Arg::None)
    }),
    ("as many lanes as the operands", false, |w| {
        let (word, none) = (w.g.int_of(Scalar::U32, 1), w.g.int_of(Scalar::I32, 0));
        w.node(
            Op::Dot4,
            Scalar::I32.one().with_lanes(4),
            &[word, word, none],
            Arg::Int(15),
        )
    }),
    (
        "an integer's entry in a table, whose numbers the result holds",
        false,
        |w| {
            let index = w.g.int(3);
            w.node(
                Op::Table,
                Scalar::I32,
                &[index],
                Arg::Ints([1, 2, 3].into()),
            )
        },
    ),
    (
        "a value of the buffer's type, unless packed, or a word of its bytes or halves, or the lower one of its i64, at an offset",
        false,
        |w| w.node(Op::Load, Scalar::F16, &[w.x, w.group], Arg::None),
    ),
    (
        "threads have no vectors but a matrix product's",
        true,
        |w| {
            w.node(
                Op::Load,
                Scalar::F32.one().with_lanes(4),
                &[w.x, w.group],
                Arg::None,
            )
        },
    ),
    ("whole numbers across a vector", false, |w| {
        w.node(Op::Lanes, Scalar::I64, &[], Arg::None)
    }),
    ("one value of the vector's type", false, |w| {
        let one = w.g.int(1);
        w.node(
            Op::Splat,
            Scalar::F32.one().with_lanes(4),
            &[one],
            Arg::None,
        )
    }),
    ("a value of the vector's type for each lane", false, |w| {
        let one = w.g.int(1);
        w.node(
            Op::Pack,
            Scalar::I64.one().with_lanes(4),
            &[one, one],
            Arg::None,
        )
    }),
    (
        "lanes of a vector, or one value of each thread of a range, to one of their type",
        true,
        |w| {
            let one = w.g.f32(1.0);
            w.node(
                Op::Fold,
                Scalar::F32,
                &[one, w.row],
                Arg::Reduce(ReduceOp::Add, SmallVec::new()),
            )
        },
    ),
    (
        "a thread's lower bound comes before the upper one",
        true,
        |w| {
            let (last, none) = (w.g.int(6), w.g.int(0));
            let most = w.g.min(w.group, last);
            w.node(Op::Max, Scalar::I64, &[most, none], Arg::None)
        },
    ),
    ("a matrix product is a warp's", false, |w| {
        let one = w.g.int_of(Scalar::U32, 1);
        w.node(
            Op::Mma,
            Scalar::I32.one().with_lanes(4),
            &[one; 3],
            Arg::None,
        )
    }),
    ("words of a fragment of bytes, and its sums", true, |w| {
        let one = w.g.int_of(Scalar::U32, 1);
        w.node(
            Op::Mma,
            Scalar::I32.one().with_lanes(4),
            &[one; 4],
            Arg::None,
        )
    }),
    (
        "words of a fragment of halves, added to its sums",
        true,
        |w| {
            let one = w.g.int_of(Scalar::U32, 1);
            w.node(
                Op::MmaHalf,
                Scalar::F32.one().with_lanes(4),
                &[one; 7],
                Arg::Int(MMA_BF16.number()),
            )
        },
    ),
    (OF_GROUPS, true, |w| {
        // The columns' buffer is memory, of f32.
        let one = w.g.int_of(Scalar::U32, 1);
        let sums = w.g.constant(Scalar::F32.one().with_lanes(8), 0.0);
        let src = [&[one; 8][..], &[w.x, w.group, sums]].concat();
        w.node(
            Op::MmaShared,
            Scalar::F32.one().with_lanes(8),
            &src,
            Arg::Int(WGMMA_16.number()),
        )
    }),
    (OF_GROUPS, true, |w| {
        // The rows' buffer is memory; the columns are in a stage of halves.
        let (sums, size) = (
            w.g.constant(Scalar::F32.one().with_lanes(8), 0.0),
            w.g.int(2048),
        );
        let stage = w.node(Op::Local, Scalar::F16, &[size], Arg::Int(7));
        let src = [w.x, w.group, stage, w.group, sums];
        w.node(
            Op::MmaShared,
            Scalar::F32.one().with_lanes(8),
            &src,
            Arg::Int(WGMMA_16.number()),
        )
    }),
    ("two vectors of f32, as many lanes of words", false, |w| {
        let one = w.g.int(1);
        w.node(Op::PairBf16, Scalar::U32, &[one; 2], Arg::None)
    }),
    (
        "a word of bytes, a factor and perhaps a term, two of its bytes and a zero",
        false,
        |w| {
            let (word, one) = (w.g.int_of(Scalar::U32, 1), w.g.f32(1.0));
            w.node(
                Op::ScaledPair,
                Scalar::U32,
                &[word, one],
                Arg::Ints([0, 4, -8, 0].into()),
            )
        },
    ),
    (OF_A_TILE, false, |w| {
        // The buffer's type is f32.
        w.node(
            Op::TileLoad,
            tile_of(Scalar::U32),
            &[w.x, w.group],
            Arg::Ints([0, 32].into()),
        )
    }),
    (OF_A_TILE, true, |w| {
        // Operand numbers of a subgroup's product are 0 and 1.
        let size = w.g.int(2048);
        let stage = w.node(Op::Local, Scalar::F16, &[size], Arg::Int(7));
        w.node(
            Op::TileLoad,
            COOPERATIVE_16.tile(),
            &[stage, w.group],
            Arg::Ints([2, 32].into()),
        )
    }),
    (
        "a vector of words for each row, into a register",
        false,
        |w| {
            let row = w.g.constant(Scalar::U32.one().with_lanes(16), 1.0);
            w.node(
                Op::TileRows,
                tile_of(Scalar::U32),
                &[row; 16],
                Arg::Ints([8].into()),
            )
        },
    ),
    (OF_TILES, false, |w| {
        let row = w.g.constant(Scalar::U32.one().with_lanes(16), 1.0);
        let [a, sums] = [Scalar::U32, Scalar::F32].map(|s| w.g.constant(tile_of(s), 0.0));
        let b = w.node(
            Op::TileRows,
            tile_of(Scalar::U32),
            &[row; 16],
            Arg::Ints([1].into()),
        );
        w.node(
            Op::TileMma,
            tile_of(Scalar::F32),
            &[a, b, sums],
            Arg::Ints([1].into()),
        )
    }),
    (OF_TILES, true, |w| {
        // The operands are swapped.
        let (size, sums) = (w.g.int(2048), w.g.constant(COOPERATIVE_16.sums(), 0.0));
        let stage = w.node(Op::Local, Scalar::F16, &[size], Arg::Int(7));
        let tile = |w: &mut World, number: i32| {
            w.node(
                Op::TileLoad,
                COOPERATIVE_16.tile(),
                &[stage, w.group],
                Arg::Ints([number, 32].into()),
            )
        };
        let (a, b) = (tile(w, 1), tile(w, 0));
        w.node(Op::TileMma, COOPERATIVE_16.sums(), &[a, b, sums], Arg::None)
    }),
    ("a constant lane within a vector of its type", false, |w| {
        let vector = Scalar::F32.one().with_lanes(4);
        let (ones, four) = (w.g.constant(vector, 1.0), w.g.int(4));
        w.node(Op::Part, Scalar::F32, &[ones, four], Arg::None)
    }),
    ("operands have the dtype of the result", false, |w| {
        let one = w.g.int(1);
        w.node(Op::Neg, Scalar::F32, &[one], Arg::None)
    }),
];

/// Rule for asynchronous MMA products.
const OF_GROUPS: &str = "rows as words or of a stage of halves, columns of a ring of words or of a stage of halves, from i64 offsets on, added to sums";

/// Rules for tile loads, and for tile products.
const OF_A_TILE: &str = "rows of words of a buffer of a fragment's operands, into a register, or as a subgroup's first or second operand";
const OF_TILES: &str = "two tiles of words and one of sums, in registers of their own, or a subgroup's first and second operand";

/// Returns the tile type with these elements.
fn tile_of(scalar: Scalar) -> DType {
    scalar
        .one()
        .with_lanes((AMX_BF16.rows * AMX_BF16.columns) as u16)
}

#[test]
fn every_rule_of_nodes_can_fail() {
    for (rule, threads, make) in WRONG {
        let mut w = World::new();
        let id = make(&mut w);
        let threads = if *threads { vec![w.thread] } else { vec![] };
        let s = w.define(id, &threads);
        let e = w.check(s).expect_err(rule);
        assert_eq!(e.rule, *rule, "{e}");
        assert!(e.node.contains(w.g[id].op.name()), "{e}");
    }
    let mut w = World::new();
    let first = w.g.f32(0.0);
    let acc = w.node(Op::Acc, Scalar::F32, &[first, w.load], Arg::None);
    let e = w
        .check(vec![w.open(w.y, &[]), Accumulator(acc)])
        .expect_err("no reduction");
    assert_eq!(
        e.rule,
        "a first value, and the reduction that it becomes, of one type"
    );
    for row in nodes::ROWS {
        assert!(
            row.ops == [Op::Acc] || WRONG.iter().any(|b| b.0 == row.name),
            "no case breaks \"{}\"",
            row.name
        );
    }
}

#[test]
fn narrow_and_unaligned_accesses_are_found() {
    let mut w = World::new();
    let bytes = w.g.param(2, &[], Scalar::U8);
    let (byte, word) = (
        w.g.load(bytes, w.at, Scalar::U8),
        w.g.load(w.x, w.at, Scalar::F32),
    );
    let rule = |w: &World, statement: Statement, least_bytes: usize| {
        let gpu = Machine::named("h200").expect("a row");
        let machine = Machine {
            least_bytes,
            part_writes: false,
            ..gpu
        };
        let body = Code {
            statements: vec![statement],
            ..Code::default()
        };
        check_widths(&w.g, &of_one_thread(body), &machine)
            .err()
            .map(|e| (e.rule, e.node))
    };
    for least in [1, 2, 4] {
        assert_eq!(rule(&w, Define(word), least), None);
        assert_eq!(rule(&w, Define(byte), least).is_some(), least > 1);
        assert_eq!(
            rule(&w, Write(bytes, w.at, byte), least).is_some(),
            least > 1
        );
        assert_eq!(
            rule(&w, WideWrite(bytes, w.at, 4, vec![byte; 4]), least),
            None
        );
    }
    // A load of four bytes at unaligned offsets: as wide as a word, but not aligned.
    let across = w.g.load(bytes, w.at, Scalar::U32);
    assert!(rule(&w, Define(across), 4).is_some_and(|(_, node)| node.contains('%')));
}

#[test]
fn values_are_words_where_the_machine_has_no_others() {
    let mut w = World::new();
    let row = w.row;
    let whole = w.node(Op::Cast, Scalar::I32, &[row], Arg::None);
    let narrow = w.node(Op::Cast, Scalar::I8, &[row], Arg::None);
    let machine = Machine {
        least_bytes: 4,
        words_alone: true,
        ..Machine::named("h200").expect("a row")
    };
    let rule = |id: Id| {
        let body = Code {
            statements: vec![Define(id)],
            ..Code::default()
        };
        check_widths(&w.g, &of_one_thread(body), &machine)
            .err()
            .map(|e| e.rule)
    };
    assert_eq!(rule(whole), None);
    assert_eq!(rule(narrow), Some("a value is a word, or an i64"));
}
