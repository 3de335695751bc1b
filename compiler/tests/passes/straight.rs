//! Lowers values to the plainest linear code: definitions in order, and loops for reductions.
//!
//! A pass's output with lanes and threads can thus be run before any other pass has lowered it.

use gristmill_compiler::testing::{Code, KernelCode, Statement, count_threads, identity};
use gristmill_uop::{Arg, Graph, Id, Node, Op, Sources};
use std::collections::HashSet;

/// A value and the address of its write.
pub struct Written {
    pub buffer: Id,
    /// Offset of its first lane.
    pub at: Id,
    pub value: Id,
}

/// Code that fills the stages by their nests and then writes the values in all threads and loops.
pub fn straight(
    g: &mut Graph,
    stages: &[Id],
    values: &[Written],
    threads: &[Id],
    loops: &[Id],
) -> KernelCode {
    let total: i64 = threads.iter().map(|&r| g.max_of(g[r].src[0])).product();
    let mut w = Writer {
        g,
        out: vec![],
        defined: vec![],
    };
    for &nest in stages {
        let src = w.g[nest].src.clone();
        w.nest(
            &Written {
                buffer: src[0],
                at: src[1],
                value: src[2],
            },
            &[],
            1,
            &src[3..],
        );
    }
    if total > 1 && !stages.is_empty() {
        w.out.push(Statement::Barrier);
    }
    for value in values {
        w.nest(value, threads, total, loops);
    }
    let code = Code {
        statements: w.out,
        ..Code::default()
    };
    KernelCode {
        bodies: vec![code],
        threads: total as usize,
        resident: 1,
        shared: None,
        entry: vec![],
        idle: vec![],
    }
}

struct Writer<'a> {
    g: &'a mut Graph,
    out: Vec<Statement>,
    /// Nodes defined in each open block.
    defined: Vec<HashSet<Id>>,
}

impl Writer<'_> {
    fn nest(&mut self, w: &Written, threads: &[Id], total: i64, loops: &[Id]) {
        let (staged, threads) = (
            self.g[w.buffer].op == Op::Local,
            count_threads(self.g, threads, total),
        );
        self.out.push(Statement::Nest {
            buffer: w.buffer,
            staged,
            globals: vec![],
            threads,
        });
        self.defined.push(HashSet::new());
        self.all(loops, |writer| {
            writer.define(w.at);
            writer.define(w.value);
            writer.out.push(Statement::Write(w.buffer, w.at, w.value));
        });
        self.defined.pop();
        self.out.push(Statement::End);
    }
    /// Emits code inside these loops.
    fn all(&mut self, loops: &[Id], inside: impl FnOnce(&mut Self)) {
        for &range in loops {
            self.define(self.g[range].src[0]);
            self.out.push(Statement::Loop {
                range,
                step: 1,
                unroll: None,
            });
            self.defined.push(HashSet::new());
        }
        inside(self);
        for _ in loops {
            self.defined.pop();
            self.out.push(Statement::End);
        }
    }
    fn define(&mut self, id: Id) {
        let n = self.g[id].clone();
        let leaf = matches!(
            n.op,
            Op::Const | Op::Var | Op::Param | Op::Local | Op::Range | Op::Acc
        );
        if leaf && n.dtype.lanes == 1 || self.defined.iter().any(|d| d.contains(&id)) {
            return;
        }
        if n.op == Op::Reduce {
            self.sum(id, &n);
        } else {
            // A fold over threads refers to their range without defining it.
            let operands = if n.op == Op::Fold {
                &n.src[..1]
            } else {
                &n.src[..]
            };
            operands.iter().for_each(|&s| self.define(s));
            self.out.push(Statement::Define(id));
        }
        self.defined.last_mut().expect("a nest is open").insert(id);
    }
    fn sum(&mut self, id: Id, n: &Node) {
        let Arg::Reduce(op, _) = n.arg else {
            unreachable!("a reduction of no kind")
        };
        let first = identity(self.g, op, n.dtype);
        self.define(first);
        let node = |op, src: &[Id]| Node {
            op,
            dtype: n.dtype,
            src: Sources::from_slice(src),
            arg: Arg::None,
        };
        let acc = self.g.intern(node(Op::Acc, &[first, id]));
        self.out.push(Statement::Accumulator(acc));
        self.all(&n.src[1..], |writer| {
            writer.define(n.src[0]);
            let update = writer.g.intern(node(op.combine(), &[acc, n.src[0]]));
            writer.out.push(Statement::Accumulate(acc, update));
        });
    }
}
