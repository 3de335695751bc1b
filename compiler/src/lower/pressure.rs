//! Estimates the resources of a kernel's statements before its launch plan is chosen: register
//! pressure of accumulators, and waits for memory.

use super::linear_ir::{Code, Statement, end_of_block};
use super::memory::pipeline::async_copies::async_copies;
use super::memory::pipeline::ring::{Wanted, wanted};
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op};

/// Resource requirements of a kernel, the maximum over its bodies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pressure {
    /// Accumulators per thread at once, or MMA accumulator tiles.
    pub sums: i64,
    /// The same over bodies that do not unpack weights; 0 if all do.
    pub others: i64,
    /// Whether there are MMA products; their tiles take the free registers.
    pub products: bool,
    /// Registers of the accumulator tiles where products unpack a weight.
    pub unpacked: i64,
    /// Words that these products load at once.
    pub asked: i64,
    /// Words that a reduction loop loads at once, in bodies with accumulators.
    pub words: i64,
    /// Requirements of the loops if their copies are pipelined; `None` without such loops.
    pub ahead: Option<Wanted>,
}

/// Registers per lane of an accumulator tile.
const OF_A_TILE: i64 = 4;

impl Pressure {
    /// Computes the requirements of these bodies.
    pub fn for_bodies(g: &Graph, bodies: &[Code], target: &Target) -> Pressure {
        let sums = |b: &Code| accumulators(g, &b.statements).max(tiles(g, &b.statements));
        let most = |of: &dyn Fn(&&Code) -> bool| {
            bodies.iter().filter(of).map(sums).max().unwrap_or(0) as i64
        };
        let unpacks = || {
            bodies
                .iter()
                .map(|b| &b.statements)
                .filter(|s| unpacked(g, s))
        };
        let wanted = bodies.iter().filter_map(|b| wanted(g, b, target));
        Pressure {
            sums: most(&|_| true),
            others: most(&|b| !unpacked(g, &b.statements)),
            products: bodies.iter().any(|b| products(g, &b.statements)),
            unpacked: unpacks()
                .map(|s| OF_A_TILE * tiles(g, s) as i64)
                .max()
                .unwrap_or(0),
            asked: unpacks().map(|s| asked_for(g, s)).max().unwrap_or(0),
            words: bodies
                .iter()
                .filter(|b| sums(b) > 0)
                .map(|b| asked_for(g, &b.statements))
                .max()
                .unwrap_or(0),
            ahead: wanted.reduce(|a, b| a.and(b)),
        }
    }
}

/// Returns whether any load can become an asynchronous copy.
pub fn can_copy(g: &Graph, bodies: &[Code]) -> bool {
    let is_copy = |s: &Statement| matches!(s, Statement::AsyncCopy { .. });
    bodies
        .iter()
        .any(|b| async_copies(g, b.statements.clone()).iter().any(is_copy))
}

/// Returns whether there are MMA products.
pub(super) fn products(g: &Graph, statements: &[Statement]) -> bool {
    let is_product = |id: Id| matches!(g[id].op, Op::Mma | Op::MmaHalf);
    statements.iter().any(|s| match s {
        Statement::Define(id) | Statement::Accumulate(_, id) => is_product(*id),
        _ => false,
    })
}

/// Returns the largest number of MMA accumulator tiles of a nest.
fn tiles(g: &Graph, statements: &[Statement]) -> usize {
    let nests = statements.split(|s| matches!(s, Statement::Nest { .. }));
    let registers = |s: &Statement| match s {
        Statement::Accumulator(acc) if g[*acc].dtype.lanes > 1 => g[*acc].dtype.lanes as usize,
        _ => 0,
    };
    nests
        .map(|nest| nest.iter().map(registers).sum::<usize>() / OF_A_TILE as usize)
        .max()
        .unwrap_or(0)
}

/// Returns the largest number of scalar accumulators in a loop, including those of enclosing loops.
/// MMA tiles are sized to leave room (`map/fragment_tiling.rs`).
fn accumulators(g: &Graph, statements: &[Statement]) -> usize {
    let mut open = vec![0];
    let mut most = 0;
    for s in statements {
        match s {
            Statement::Accumulator(acc) if g[*acc].dtype.lanes == 1 => {
                *open.last_mut().expect("one for all") += 1
            }
            s if s.opens() => {
                most = most.max(open.iter().sum());
                open.push(0);
            }
            Statement::End => {
                open.pop();
            }
            _ => {}
        }
    }
    most
}

/// Returns whether the statements unpack a weight for MMA products.
fn unpacked(g: &Graph, statements: &[Statement]) -> bool {
    statements
        .iter()
        .any(|s| matches!(s, Statement::Define(id) if g[*id].op == Op::ScaledPair))
}

/// Returns the most words that a loop loads at once.
fn asked_for(g: &Graph, statements: &[Statement]) -> i64 {
    let loops =
        (0..statements.len()).filter(|&at| matches!(statements[at], Statement::Loop { .. }));
    let words = |at: usize| {
        statements[at..at + end_of_block(&statements[at..])]
            .iter()
            .map(|s| s.words(g))
            .sum()
    };
    loops.map(words).max().unwrap_or(0)
}
