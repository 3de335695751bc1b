//! Tests that valid code passes, and that each rule fails on code that breaks it, with the
//! offending node.

mod node_rules;
mod statement_rules;

use super::{check, check_widths, tile_registers};
use crate::lower::linear_ir::threads::ThreadIndex;
use crate::lower::linear_ir::{Code, KernelCode, Statement};
use Statement::{Accumulate, Accumulator, Define, End, Iteration, Nest, Wide, WideWrite, Write};
use gristmill_uop::fragment::AMX_BF16;
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

/// A register that two tiles share is read before the other tile is loaded, also in the next
/// iteration of a loop.
#[test]
fn tile_registers_hold_what_is_read() {
    let mut w = World::new();
    let activations = w.g.param(2, &[], Scalar::BF16);
    let row = w.g.constant(Scalar::U32.one().with_lanes(16), 1.0);
    let none = w.g.constant(AMX_BF16.sums(), 0.0);
    let numbered = |w: &mut World, op, dtype, src: &[Id], numbers: &[i32]| {
        w.node(op, dtype, src, Arg::Ints(numbers.into()))
    };
    let weight = numbered(&mut w, Op::TileRows, AMX_BF16.tile(), &[row; 16], &[4]);
    let loads = [w.group, w.row].map(|at| {
        numbered(
            &mut w,
            Op::TileLoad,
            AMX_BF16.tile(),
            &[activations, at],
            &[5, 32],
        )
    });
    let sums = [0, 1].map(|i| {
        let product = [loads[i], weight, none];
        let product = numbered(&mut w, Op::TileMma, AMX_BF16.sums(), &product, &[i as i32]);
        let sum = w.g.reduce_ranges(product, &[w.term], ReduceOp::Add);
        (
            w.node(Op::Acc, AMX_BF16.sums(), &[none, sum], Arg::None),
            product,
            sum,
        )
    });
    let of = |i: usize| {
        let (acc, product, _) = sums[i];
        [Define(loads[i]), Accumulate(acc, product)]
    };
    let tile = |i: usize| Statement::WriteTile(w.y, w.group, 16, sums[i].2);
    let begin = sums.map(|(acc, ..)| Accumulator(acc));
    let result = |parts: [&[Statement]; 4]| {
        let [before, inside, after, last] = parts;
        let mut code = Code::default();
        code.statements.extend([Define(weight)]);
        code.statements.extend(begin.iter().chain(before).cloned());
        code.statements.extend([Statement::Loop {
            range: w.term,
            step: 1,
            unroll: None,
        }]);
        code.statements.extend(inside.iter().cloned().chain([End]));
        code.statements.extend(after.iter().chain(last).cloned());
        tile_registers::check(&w.g, &code)
    };
    let turns = [of(0), of(1)].concat();
    let written = [tile(0), tile(1)];
    assert_eq!(result([&[], &turns, &written, &[]]), Ok(()));
    let [first, second] = [of(0), of(1)];
    let broken = [
        // Both are loaded before the loop.
        result([
            &[first[0].clone(), second[0].clone()],
            &[first[1].clone()],
            &[],
            &written,
        ]),
        // The second iteration finds the other tile.
        result([
            &first[..1],
            &[&first[1..], &second[..]].concat(),
            &[],
            &written,
        ]),
        // A product reads the tile of the last iteration.
        result([&[], &turns, &first[1..], &written]),
    ];
    for result in broken {
        let error = result.expect_err("a register holds another tile");
        assert_eq!(error.rule, "a tile register holds what is read from it");
    }
}
