//! How many iterations of a GPU's loops are written out one after the other: as many as have loads that can wait for memory together in the registers
//! that the launch's plan leaves them.

use crate::cost::occupancy::REGISTERS_PER_LOADED_WORD;
use crate::lower::linear_ir::{Statement, end_of_block};
use crate::lower::pressure::products;
use gristmill_uop::launch::LaunchPlan;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind};

/// Words that a few iterations of a sum load together, for each that the plan lets wait: of weights alone where they read any, as activations are in a cache already (Youtu's down
/// projection of one token, whose loop of two has more words of codes than of weights: 1,072 tokens a second on an H100 with both together, 1,007 one after the other). In all they load no more
/// words than a thread has registers: with more, eight sequences of GLM keep 8 values of a thread in memory, as an H200's assembler says.
const WORDS_TOGETHER: i64 = 2;

/// `statements` with a number of copies at every loop.
pub fn unroll(g: &Graph, statements: Vec<Statement>, plan: &LaunchPlan, target: &Target) -> Vec<Statement> {
    let copies = Copies { g, plan, short: target.statements_of_a_wait() };
    let mut out = statements;
    for i in 0..out.len() {
        if let Statement::Loop { range, step: 1, .. } = out[i] {
            let copies = copies.of_loop(range, &out[i..i + end_of_block(&out[i..])]);
            out[i] = Statement::Loop { range, step: 1, unroll: Some(copies) };
        }
    }
    out
}

struct Copies<'a> {
    g: &'a Graph,
    plan: &'a LaunchPlan,
    /// Statements of a loop that are few enough to be copied; none where the machine's threads wait for no load.
    short: usize,
}

impl Copies<'_> {
    /// Copies of a loop of these statements, itself the first.
    fn of_loop(&self, range: Id, statements: &[Statement]) -> i64 {
        let (g, &LaunchPlan { resident, words: waiting, iterations: most, .. }) = (self.g, self.plan);
        let words = statements.iter().map(|s| s.words(g)).sum::<i64>().max(1);
        let alone = if resident == 1 { 2 } else { 1 };
        match (g.range_kind(range), g.int_value(g[range].src[0])) {
            // Threads wait for one another in each iteration.
            (Some(RangeKind::Fused), _) => 1,
            // Nobody waits for a load: copies only make a driver's work longer (a program's of the demo's kernels 6 times).
            _ if self.short == 0 => 1,
            // Matrices of several iterations take more registers than a subgroup has: experts of V2-Lite, 512 tokens on an H200 (experiments, 109), 1.77 ms a layer with copies and 1.43 without.
            _ if statements.iter().any(|s| multiplies(g, s, Op::TileMma)) => 1,
            (_, Some(n)) if statements.iter().any(|s| multiplies(g, s, Op::MmaHalf)) => {
                evenly(n, (alone * waiting / words).max(1))
            }
            // A few terms, as the chosen experts are, wait for their loads together.
            (Some(RangeKind::Reduce), Some(n)) if n <= most && !products(g, statements) => {
                evenly(n, self.together(statements, words))
            }
            _ if statements.len() > self.short => 1,
            (Some(RangeKind::Reduce), Some(n)) if n <= most => n,
            // Of a long loop, whose length may be data, so many copies that their loads wait for memory together.
            (Some(RangeKind::Reduce), _) => {
                let (wait, few) = (waiting / words, (most / 2).max(1));
                let least = if wait < few { 1 } else { few };
                let copies = wait.min(g.max_of(g[range].src[0]) / most).clamp(least, 2 * most);
                match g.int_value(g[range].src[0]) {
                    // Steps of a thread that no few copies divide, as 2,816 columns are 11 of 256 threads, would wait one by one, or in a short round once more.
                    Some(n) if (copies == 1 || n % copies > 0) && !products(g, statements) => {
                        evenly(n, self.together(statements, words).min(most))
                    }
                    _ => copies,
                }
            }
            // What follows another waits for its loads, unless they are asked for together.
            (_, Some(n)) => evenly(n, most),
            _ => 1,
        }
    }
    /// Iterations of a loop of sums whose loads, of so many words each, may wait together.
    fn together(&self, statements: &[Statement], words: i64) -> i64 {
        let (g, waiting) = (self.g, self.plan.words);
        let weights: i64 = statements.iter().filter(|s| reads_weight(g, s)).map(|s| s.words(g)).sum();
        let together = if weights > 0 {
            (WORDS_TOGETHER * waiting / weights).min(REGISTERS_PER_LOADED_WORD * waiting / words)
        } else {
            WORDS_TOGETHER * waiting / words
        };
        together.max(1)
    }
}

/// Copies of a loop of `n` iterations, about `most`: as many as leave no short round behind, which would wait for its loads once more.
fn evenly(n: i64, most: i64) -> i64 {
    let rounds = ((2 * n + most) / (2 * most)).max(1);
    (n + rounds - 1) / rounds
}

/// Does the statement load from a weight?
fn reads_weight(g: &Graph, s: &Statement) -> bool {
    let buffer = match s {
        Statement::Define(id) if g[*id].op == Op::Load => g[*id].src[0],
        Statement::Wide(buffer, ..) => *buffer,
        _ => return false,
    };
    matches!(g[buffer].arg, Arg::Packed(..))
}

/// Does the statement add a matrix product of that kind to sums?
fn multiplies(g: &Graph, s: &Statement, product: Op) -> bool {
    matches!(s, Statement::Accumulate(_, value) if g[*value].op == product)
}
