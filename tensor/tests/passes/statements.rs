//! The passes that make statements, and values with lanes.

use crate::case::Case;
use crate::judge::{Applied, Claim, Meaning};
use crate::kernels::{FixedRange, Kernels, offset, ranges};
use crate::lockstep::{Expressions, Linear};
use crate::show;
use gristmill_compiler::testing::{self, Code, Statement};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::{Graph, Id, Op, RangeKind, ReduceOp, text};

pub fn linear(case: &Case) -> Result<Applied, String> {
    let (p, target) = (case.graph()?, case.target()?);
    let nests = Kernels::of(p.graph.clone(), p.roots.clone());
    let (mut g, gpu) = (p.graph, target.machine.kind == MachineKind::Gpu);
    let code = testing::linear(&mut g, &p.roots, &target);
    let text = show::renumbered(&testing::print_linear(&g, &code));
    let after = Linear { bodies: vec![(g, code)], gpu, nests: nests.clone() };
    Ok(Applied { text, claim: Claim::same(Meaning::Kernels(nests), Meaning::Linear(after)) })
}

/// Values, whose lanes come after all other ranges.
pub fn vectorise(case: &Case) -> Result<Applied, String> {
    let (p, target) = (case.graph()?, case.target()?);
    let ranges = ranges(&p.graph, &p.roots);
    let nests = Kernels::of_values(p.graph, &p.roots, &ranges);
    let mut g = nests.graph.clone();
    let roots: Vec<Id> = p.roots.iter().map(|&r| testing::vectorise(&mut g, r, &target)).collect();
    let text = text::print(&g, &roots);
    let others: Vec<FixedRange> = ranges.into_iter().filter(|r| r.kind != RangeKind::Vector).collect();
    let (first, loops) = offset(&mut g, &others);
    let values = roots.into_iter().map(|v| {
        let lanes = g.int(g[v].dtype.lanes.into());
        (g.mul(first, lanes), v)
    });
    let values = values.collect();
    let after = Expressions { graph: g, values, threads: vec![], loops, nests: nests.clone() };
    Ok(Applied { text, claim: Claim::same(Meaning::Kernels(nests), Meaning::Expressions(after)) })
}

/// Straight code: what the stores need, as it is, and then the stores, as writes.
fn statements(g: &Graph, roots: &[Id]) -> Vec<Statement> {
    let leaf = |op: Op| matches!(op, Op::Const | Op::Var | Op::Param | Op::Local | Op::Range | Op::Store);
    let defined = g.toposort(roots).into_iter().filter(|&n| !leaf(g[n].op)).map(Statement::Define);
    let written = roots.iter().map(|&n| Statement::Write(g[n].src[0], g[n].src[1], g[n].src[2]));
    defined.chain(written).collect()
}

/// Writes for threads that are the ranges of their addresses.
pub fn coalesce(case: &Case) -> Result<Applied, String> {
    let p = case.graph()?;
    let (g, before) = (&p.graph, statements(&p.graph, &p.roots));
    let after = testing::coalesce(g, before.clone());
    let code = |statements: Vec<Statement>| Code { statements, ..Code::default() };
    let text = show::renumbered(&testing::print_linear(g, &code(after.clone())));
    let of = |statements: Vec<Statement>| {
        let mut threads: Vec<Id> = p.roots.iter().flat_map(|&n| g.free_ranges(n).to_vec()).collect();
        threads.sort_unstable();
        threads.dedup();
        let nest = Statement::Nest { buffer: g[p.roots[0]].src[0], staged: false, globals: vec![], threads };
        let all = [nest].into_iter().chain(statements).chain([Statement::End]).collect();
        let nests = Kernels::of(g.clone(), p.roots.clone());
        Meaning::Linear(Linear { bodies: vec![(g.clone(), code(all))], gpu: true, nests })
    };
    Ok(Applied { text, claim: Claim::same(of(before), of(after)) })
}

/// Terms of one accumulator, or of those that `accumulators: 0 1 0` numbers; each accumulator's sum is what it was.
pub fn pairs(case: &Case) -> Result<Applied, String> {
    let p = case.graph()?;
    let mut g = p.graph;
    let numbers: Vec<i64> = match case.get("accumulators") {
        Some(words) => words.split_whitespace().map(|w| w.parse().map_err(|_| "a number")).collect::<Result<_, _>>()?,
        None => vec![0; p.roots.len()],
    };
    let terms: Vec<(Id, Id, ReduceOp)> =
        numbers.iter().zip(&p.roots).map(|(&n, &t)| (g.int(n), t, ReduceOp::Add)).collect();
    let joined = testing::pairs(&mut g, terms.clone());
    let roots: Vec<Id> = joined.iter().map(|j| j.1).collect();
    let text = text::print(&g, &roots);
    let sums = |g: &mut Graph, all: &[(Id, Id, ReduceOp)]| {
        let mut accumulators: Vec<Id> = all.iter().map(|t| t.0).collect();
        accumulators.sort_unstable();
        accumulators.dedup();
        let sum = |a: Id| all.iter().filter(|t| t.0 == a).map(|t| t.1).reduce(|a, b| g.add(a, b)).expect("a term");
        accumulators.into_iter().map(sum).collect::<Vec<Id>>()
    };
    let (before, after) = (sums(&mut g, &terms), sums(&mut g, &joined));
    let all = ranges(&g, &before);
    let of = |roots: &[Id]| Meaning::Kernels(Kernels::of_values(g.clone(), roots, &all));
    Ok(Applied { text, claim: Claim::same(of(&before), of(&after)) })
}

/// The value of the last nest; those before it fill the stages that it reads.
fn products(case: &Case, pass: fn(&mut Graph, Id, &[Id]) -> Id) -> Result<Applied, String> {
    let p = case.graph()?;
    let nests = Kernels::of(p.graph.clone(), p.roots.clone());
    let (mut g, nest) = (p.graph, *p.roots.last().ok_or("a nest")?);
    let closed = g[nest].src[3..].to_vec();
    let value = g[nest].src[2];
    let new = pass(&mut g, value, &closed);
    let text = if new == value { "left as it is\n".into() } else { text::print(&g, &[new]) };
    let (threads, loops) = closed.iter().partition(|&&r| g.range_kind(r) == Some(RangeKind::Vector));
    let values = vec![(g[nest].src[1], new)];
    let after = Expressions { graph: g, values, threads, loops, nests: nests.clone() };
    Ok(Applied { text, claim: Claim::same(Meaning::Kernels(nests), Meaning::Expressions(after)) })
}

pub fn mma(case: &Case) -> Result<Applied, String> {
    products(case, testing::mma)
}

pub fn mma_f16(case: &Case) -> Result<Applied, String> {
    products(case, testing::mma_f16)
}
