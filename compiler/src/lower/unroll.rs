//! How many iterations of a GPU's loops are written out one after the other: as many as have loads that can wait for memory together in the registers
//! that there are.

use super::code::{Statement, end_of_block};
use super::launch_bounds::products;
use gristmill_uop::{Graph, Id, Op, RangeKind};

/// Most iterations of a loop over a reduction that are all written out.
const UNROLLED: i64 = 8;
/// Copies of other such loops.
const COPIES: i64 = 4;
/// Registers in which words of several steps of a loop wait, beside the tiles of its sums; of a workgroup that has a multiprocessor to itself twice as many.
const WAITING: i64 = 32;
/// Statements of a loop that are few enough to be copied.
const SHORT: usize = 160;

/// `statements` with a number of copies at every loop; the kernel's launch bounds say how many registers there are.
pub fn unroll(g: &Graph, statements: Vec<Statement>, resident: i64) -> Vec<Statement> {
    let waiting = if resident == 1 { 2 * WAITING } else { WAITING };
    let mut out = statements;
    for i in 0..out.len() {
        if let Statement::Loop { range, .. } = out[i] {
            let copies = copies(g, range, &out[i..i + end_of_block(&out[i..])], waiting);
            out[i] = Statement::Loop { range, unroll: Some(copies) };
        }
    }
    out
}

/// Copies of a loop of these statements, itself the first.
fn copies(g: &Graph, range: Id, statements: &[Statement], waiting: i64) -> i64 {
    let words = words(g, statements).max(1);
    match (g.range_kind(range), g.int_value(g[range].src[0])) {
        (_, Some(n)) if multiplies_halves(g, statements) => evenly(n, (waiting / words).max(1)),
        // A few terms, as the chosen experts are, wait for their loads together.
        (Some(RangeKind::Reduce), Some(n)) if n <= UNROLLED && !products(g, statements) => {
            evenly(n, (2 * WAITING / words).max(1))
        }
        _ if statements.len() > SHORT => 1,
        (Some(RangeKind::Reduce), Some(n)) if n <= UNROLLED => n,
        // Of a long loop whose length is data, so many copies that their loads wait for memory together.
        (Some(RangeKind::Reduce), _) => {
            let wait = WAITING / words;
            let least = if wait < COPIES { 1 } else { COPIES };
            wait.min(g.max_of(g[range].src[0]) / UNROLLED).clamp(least, 2 * UNROLLED)
        }
        // What follows another waits for its loads, unless they are asked for together.
        (_, Some(n)) => evenly(n, UNROLLED),
        _ => 1,
    }
}

/// Copies of a loop of `n` iterations, about `most`: as many as leave no short round behind, which would wait for its loads once more.
fn evenly(n: i64, most: i64) -> i64 {
    let rounds = ((2 * n + most) / (2 * most)).max(1);
    (n + rounds - 1) / rounds
}

/// Does the loop add up matrix products of halves?
fn multiplies_halves(g: &Graph, statements: &[Statement]) -> bool {
    statements.iter().any(|s| matches!(s, Statement::Accumulate(_, value) if g[*value].op == Op::MmaHalf))
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
