//! Breaks each rule of statements.

use super::{World, eight_rows, open};
use crate::lower::linear_ir::threads::ThreadIndex;
use crate::lower::linear_ir::{
    Addition, Prefetch as Ahead, SpanPrefetch, Statement, TilePrefetch, Update,
};
use Statement::{
    Accumulate, Accumulator, Add, Copied, Define, End, Iteration, Nest, Prefetch, Wide, WideWrite,
    Write, WriteTile,
};
use gristmill_uop::{Arg, Id, Op, RangeKind, Scalar};

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
    (
        "the target of an addition is f32, f16 or i32 in memory",
        |w, s| {
            s[0] = Nest {
                buffer: w.stage,
                staged: true,
                globals: vec![],
                threads: vec![],
            };
            s[9] = added(w.stage, w.row, vec![w.sum], None, true);
        },
    ),
    (
        "an addition has one value, or the two f16 values of a word",
        |w, s| {
            s[9] = added(w.y, w.row, vec![w.sum; 2], None, true);
        },
    ),
    ("an added value has the buffer's type", |w, s| {
        s[9] = added(w.y, w.row, vec![w.row], None, true)
    }),
    ("the condition of an addition is a boolean", |w, s| {
        s[9] = added(w.y, w.row, vec![w.sum], Some(w.sum), true)
    }),
    ("an addition outside a reduction loop is atomic", |w, s| {
        s[9] = added(w.y, w.row, vec![w.sum], None, false);
    }),
    (
        "an update has a load of the aligned word that it replaces",
        |w, s| s[9] = updated(w, w.term, true, |_, _| vec![]),
    ),
    ("the condition of an update is a boolean", |w, s| {
        let Statement::Update(mut of) = updated(w, w.row, true, twice) else {
            return;
        };
        of.when = Some(w.sum);
        s[9] = Statement::Update(of);
    }),
    (
        "the result of an update is a new value of the word's type",
        |w, s| s[9] = updated(w, w.row, true, |_, _| vec![]),
    ),
    ("an update outside a reduction loop is atomic", |w, s| {
        s[9] = updated(w, w.row, false, twice)
    }),
    (
        "a value is defined before it is used, in a scope around it",
        |w, s| {
            s[9] = updated(w, w.row, true, twice);
            let Statement::Update(of) = &s[9] else { return };
            let write = Write(w.y, w.row, of.old);
            s.insert(10, write);
        },
    ),
    ("an offset is an i64 or i32", |w, s| {
        s[9] = Write(w.y, w.sum, w.sum)
    }),
    (
        "a written value has the buffer's type or is a word of its elements",
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
        "a wide load has 8 or 16 bytes and is aligned to its size",
        |w, s| s[6] = Wide(w.x, w.at, 16, vec![(w.load, 0)]),
    ),
    (
        "a part of a wide load loads from its buffer at its byte",
        |w, s| {
            s[5] = Wide(w.x, eight_rows(w), 16, vec![(w.load, 0)]);
        },
    ),
    (
        "a part of a wide load lies within one of its words",
        |w, s| {
            let (row, four) = (eight_rows(w), w.g.int(4));
            let beyond = w.g.add(row, four);
            let load = w.g.load(w.x, beyond, Scalar::F32);
            s.insert(3, Wide(w.x, row, 16, vec![(load, 16)]));
        },
    ),
    (
        "a written tile has the buffer's type and rows that do not overlap",
        |w, s| {
            s[9] = WriteTile(w.y, w.row, 16, w.sum);
        },
    ),
    (
        "a wide write has 4, 8 or 16 bytes and is aligned to its size",
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
    ("the condition of a copy is known at the copy", |w, s| {
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
    ("copied data is read from a ring buffer", |w, s| {
        s[6] = Copied(w.stage, w.row, 16, vec![(w.load, 0)])
    }),
    (
        "copied data is read in aligned units of 16 bytes",
        |w, s| {
            s[6] = Copied(w.ring, w.row, 16, vec![(w.load, 0)]);
        },
    ),
    (
        "a part of a copy is a load from memory within one word",
        |w, s| {
            let row = eight_rows(w);
            s.insert(3, Copied(w.ring, row, 16, vec![(w.load, 16)]));
        },
    ),
    ("a loop-carried value has its load's type", |w, s| {
        s.insert(3, Statement::Carried(w.load, w.row))
    }),
    ("a loop-carried value has its load's type", |w, s| {
        s.insert(7, Statement::Carry(w.load, w.load))
    }),
    ("threads are counted outside nests, or by one", |w, s| {
        s.insert(2, threads(w, 8))
    }),
    ("a range is mapped to threads once outside nests", |w, s| {
        s.splice(0..0, [threads(w, 8), threads(w, 8)])
            .for_each(drop)
    }),
    (
        "a nest maps a range to threads as its hoisted loads do",
        |w, s| {
            s[0] = w.open(w.y, &[w.thread]);
            s.insert(0, threads(w, 4));
        },
    ),
    (
        "a hoisted value is a load from memory or part of its address",
        |w, s| s.insert(0, Define(w.sum)),
    ),
    (
        "only weights are loaded before the grid-dependency wait",
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
    (
        "an asynchronous copy goes from memory to a stage",
        |w, s| s[9] = copy([w.y, w.row], [w.x, w.row], 16),
    ),
    (
        "an asynchronous copy has 16 bytes and is aligned to its size",
        |w, s| {
            s[0] = w.open(w.stage, &[]);
            s[9] = copy([w.stage, w.row], [w.x, w.row], 16);
        },
    ),
    ("the source of a prefetch is memory", |w, s| {
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
    (
        "the address of a prefetch is known at the prefetch",
        |w, s| s.insert(3, Prefetch(Ahead::Tile(tile(w, w.row, w.row)))),
    ),
    ("a span is prefetched outside nests", |w, s| {
        s.insert(3, Prefetch(Ahead::Span(span(w, w.group))))
    }),
    (
        "the address of a prefetch is known at the prefetch",
        |w, s| s.insert(0, Prefetch(Ahead::Span(span(w, w.row)))),
    ),
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
