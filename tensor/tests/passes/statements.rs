//! The passes that make statements, and values with lanes.

use crate::case::Case;
use crate::judge::{Applied, Claim, Meaning};
use crate::kernels::{Kernels, ranges};
use crate::show;
use gristmill_compiler::testing::{self, Code, Statement};
use gristmill_uop::{Graph, Id, Op, ReduceOp, text};

pub fn linear(case: &Case) -> Result<Applied, String> {
    let (p, target) = (case.graph()?, case.target()?);
    let (mut g, nests) = (p.graph, p.roots);
    let code = testing::linear(&mut g, &nests, &target);
    Ok(Applied { text: show::renumbered(&testing::print_linear(&g, &code)), claim: Claim::Text })
}

pub fn vectorise(case: &Case) -> Result<Applied, String> {
    let (p, target) = (case.graph()?, case.target()?);
    let mut g = p.graph;
    let roots: Vec<Id> = p.roots.iter().map(|&r| testing::vectorise(&mut g, r, &target)).collect();
    Ok(Applied { text: text::print(&g, &roots), claim: Claim::Text })
}

/// Straight code: what the stores need, as it is, and then the stores, as writes.
fn statements(g: &Graph, roots: &[Id]) -> Vec<Statement> {
    let leaf = |op: Op| matches!(op, Op::Const | Op::Var | Op::Param | Op::Local | Op::Range | Op::Store);
    let defined = g.toposort(roots).into_iter().filter(|&n| !leaf(g[n].op)).map(Statement::Define);
    let written = roots.iter().map(|&n| Statement::Write(g[n].src[0], g[n].src[1], g[n].src[2]));
    defined.chain(written).collect()
}

pub fn coalesce(case: &Case) -> Result<Applied, String> {
    let p = case.graph()?;
    let statements = testing::coalesce(&p.graph, statements(&p.graph, &p.roots));
    let code = Code { statements, ..Code::default() };
    Ok(Applied { text: show::renumbered(&testing::print_linear(&p.graph, &code)), claim: Claim::Text })
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

/// The value of one nest.
fn products(case: &Case, pass: fn(&mut Graph, Id, &[Id]) -> Id) -> Result<Applied, String> {
    let p = case.graph()?;
    let mut g = p.graph;
    let &[nest] = &p.roots[..] else { return Err("one nest".into()) };
    let closed = g[nest].src[3..].to_vec();
    let value = g[nest].src[2];
    let new = pass(&mut g, value, &closed);
    let text = if new == value { "left as it is\n".into() } else { text::print(&g, &[new]) };
    Ok(Applied { text, claim: Claim::Text })
}

pub fn mma(case: &Case) -> Result<Applied, String> {
    products(case, testing::mma)
}

pub fn mma_f16(case: &Case) -> Result<Applied, String> {
    products(case, testing::mma_f16)
}
