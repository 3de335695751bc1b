//! Unrolls loops before the device's compiler, for machines with a compiler that takes no unroll
//! factor.
//!
//! It would keep loops with loads, and their iterations would wait for memory one after the other.

use crate::lower::linear_ir::rewriting::Rewriting;
use crate::lower::linear_ir::{Code, Statement, end_of_block};
use gristmill_uop::{Graph, Id, RangeKind};

/// Unrolls the loops of a body that have an unroll factor.
pub fn full_unroll(g: &mut Graph, code: Code) -> Code {
    let mut of = WrittenOut {
        r: Rewriting::new(g),
    };
    of.statements(&code.statements);
    Code {
        statements: of.r.out,
        ..code
    }
}

struct WrittenOut<'a> {
    r: Rewriting<'a>,
}

impl WrittenOut<'_> {
    fn statements(&mut self, all: &[Statement]) {
        let mut at = 0;
        while let Some(s) = all.get(at) {
            match *s {
                Statement::Loop {
                    range,
                    step: 1,
                    unroll: Some(copies @ 2..),
                } if self.fits(range, copies) => {
                    let end = at + end_of_block(&all[at..]);
                    self.rounds(range, copies, &all[at + 1..end]);
                    at = end;
                }
                _ => self.r.push(s.clone()),
            }
            at += 1;
        }
    }
    /// Returns whether indices up to `copies` past the last fit in 32 bits. Otherwise the loop is
    /// kept: its indices could wrap, or need 64 bits, which the machine may lack.
    fn fits(&self, range: Id, copies: i64) -> bool {
        self.r.g.max_of(self.r.g[range].src[0]) <= i64::from(i32::MAX) - copies
    }
    /// Emits a loop over groups of `copies` iterations, and the remaining iterations after it. A
    /// known count below two groups is unrolled completely.
    fn rounds(&mut self, range: Id, copies: i64, body: &[Statement]) {
        let bound = self.r.g[range].src[0];
        let count = self.r.g.int_value(bound);
        let alone = count.is_some_and(|count| count < 2 * copies);
        if !alone {
            self.counted(bound, copies, |of, first| {
                (0..copies).for_each(|i| of.iteration(range, first, i, body))
            });
        }
        match count {
            Some(count) => {
                let (zero, behind) = (
                    self.r.g.int(0),
                    if alone { 0 } else { count - count % copies },
                );
                (behind..count).for_each(|i| self.iteration(range, zero, i, body));
            }
            None => {
                let by = self.r.g.int(copies);
                let (rounds, rest) = (self.r.g.idiv(bound, by), self.r.g.modulo(bound, by));
                let behind = self.r.g.mul(rounds, by);
                self.r.define(behind);
                self.counted(rest, 1, |of, i| {
                    let at = of.r.g.add(behind, i);
                    of.iteration(range, at, 0, body);
                });
            }
        }
    }
    /// Emits a loop up to a bound, in steps of `step`.
    fn counted(&mut self, bound: Id, step: i64, body: impl FnOnce(&mut Self, Id)) {
        self.r.define(bound);
        let range = self.r.range(bound, RangeKind::Loop);
        self.r.push(Statement::Loop {
            range,
            step,
            unroll: Some(1),
        });
        body(self, range);
        self.r.push(Statement::End);
    }
    /// Emits one iteration, at index `first` plus a constant.
    fn iteration(&mut self, range: Id, first: Id, behind: i64, body: &[Statement]) {
        let behind = self.r.g.int(behind);
        let index = self.r.g.add(first, behind);
        self.r.define(index);
        self.r.push(Statement::Iteration(range, index));
        self.statements(body);
        self.r.push(Statement::End);
    }
}
