//! Chooses the unroll factors of GPU loops: as many iterations as can have their loads in flight
//! together in the registers that the launch plan leaves.

use crate::lower::linear_ir::{Statement, end_of_block};
use crate::lower::pressure::products;
use gristmill_uop::facts::GpuFacts;
use gristmill_uop::launch::LaunchPlan;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind};

/// Sets the unroll factor of every loop.
pub fn unroll(
    g: &Graph,
    statements: Vec<Statement>,
    plan: &LaunchPlan,
    target: &Target,
) -> Vec<Statement> {
    let copies = Copies {
        g,
        plan,
        facts: target.machine.gpu_facts(),
        short: target.statements_of_a_wait(),
    };
    let mut out = statements;
    for i in 0..out.len() {
        if let Statement::Loop { range, step: 1, .. } = out[i] {
            let copies = copies.of_loop(range, &out[i..i + end_of_block(&out[i..])]);
            out[i] = Statement::Loop {
                range,
                step: 1,
                unroll: Some(copies),
            };
        }
    }
    out
}

struct Copies<'a> {
    g: &'a Graph,
    plan: &'a LaunchPlan,
    /// Facts of the machine: words to load together.
    facts: &'a GpuFacts,
    /// Largest number of statements of an unrolled loop; 0 if the machine's threads do
    /// not stall on loads.
    short: usize,
}

impl Copies<'_> {
    /// Returns the unroll factor of a loop with these statements, the `Loop` first.
    fn of_loop(&self, range: Id, statements: &[Statement]) -> i64 {
        let (
            g,
            &LaunchPlan {
                resident,
                words: waiting,
                iterations: most,
                ..
            },
        ) = (self.g, self.plan);
        let words = statements.iter().map(|s| s.words(g)).sum::<i64>().max(1);
        let alone = if resident == 1 { 2 } else { 1 };
        match (g.range_kind(range), g.int_value(g[range].src[0])) {
            // Threads synchronise in each iteration.
            (Some(RangeKind::Fused), _) => 1,
            // No thread stalls on loads; unrolling would only lengthen the driver's compilation (6
            // times for the demo's kernels).
            _ if self.short == 0 => 1,
            // Tiles of several iterations exceed a subgroup's registers: experts of V2-Lite, 512
            // tokens on an H200, take 1.77 ms per layer unrolled and 1.43 not
            // (`docs/experiments/109`).
            _ if statements.iter().any(|s| multiplies(g, s, Op::TileMma)) => 1,
            (_, Some(n)) if statements.iter().any(|s| multiplies(g, s, Op::MmaHalf)) => {
                evenly(n, (alone * waiting / words).max(1))
            }
            // A few terms, such as those of the chosen experts, have their loads in flight
            // together.
            (Some(RangeKind::Reduce), Some(n)) if n <= most && !products(g, statements) => {
                evenly(n, self.together(statements, words))
            }
            _ if statements.len() > self.short => 1,
            (Some(RangeKind::Reduce), Some(n)) if n <= most => n,
            // A long loop, possibly of data-dependent length: unrolled as far as the loads
            // fit in flight together.
            (Some(RangeKind::Reduce), _) => {
                let (wait, few) = (waiting / words, (most / 2).max(1));
                let least = if wait < few { 1 } else { few };
                let copies = wait
                    .min(g.max_of(g[range].src[0]) / most)
                    .clamp(least, 2 * most);
                match g.int_value(g[range].src[0]) {
                    // A step count that no small factor divides, such as 11 steps of 256 threads
                    // for 2,816 columns, would wait per iteration or in a remainder loop.
                    Some(n) if (copies == 1 || n % copies > 0) && !products(g, statements) => {
                        evenly(n, self.together(statements, words).min(most))
                    }
                    _ => copies,
                }
            }
            // Consecutive iterations would wait for their loads one after another, unless these are
            // issued together.
            (_, Some(n)) => evenly(n, most),
            _ => 1,
        }
    }
    /// Returns how many iterations of a reduction, with `words` words of loads each, may
    /// be in flight together.
    fn together(&self, statements: &[Statement], words: i64) -> i64 {
        let (g, waiting, facts) = (self.g, self.plan.words, self.facts);
        let weights: i64 = statements
            .iter()
            .filter(|s| reads_weight(g, s))
            .map(|s| s.words(g))
            .sum();
        let together = if weights > 0 {
            (facts.words_together * waiting / weights)
                .min(facts.registers_per_loaded_word * waiting / words)
        } else {
            facts.words_together * waiting / words
        };
        together.max(1)
    }
}

/// Returns an unroll factor near `most` that leaves no short remainder of `n` iterations. A
/// remainder loop would wait for its loads again.
fn evenly(n: i64, most: i64) -> i64 {
    let rounds = ((2 * n + most) / (2 * most)).max(1);
    (n + rounds - 1) / rounds
}

/// Returns whether the statement loads from a weight.
fn reads_weight(g: &Graph, s: &Statement) -> bool {
    let buffer = match s {
        Statement::Define(id) if g[*id].op == Op::Load => g[*id].src[0],
        Statement::Wide(buffer, ..) => *buffer,
        _ => return false,
    };
    matches!(g[buffer].arg, Arg::Packed(..))
}

/// Returns whether the statement accumulates an MMA product with op `product`.
fn multiplies(g: &Graph, s: &Statement, product: Op) -> bool {
    matches!(s, Statement::Accumulate(_, value) if g[*value].op == product)
}
