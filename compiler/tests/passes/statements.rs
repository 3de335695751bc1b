//! Passes over statements, and over values with lanes.

use crate::case::Case;
use crate::judge::{Applied, Claim, Meaning};
use crate::kernels::{FixedRange, Kernels, Linear, offset, ranges};
use crate::straight::{Written, straight};
use gristmill_compiler::lower::accesses;
use gristmill_compiler::testing::{self, Code, KernelCode, Launched, Statement, Turn};
use gristmill_uop::facts::OF_GPUS;
use gristmill_uop::launch::Dependents;
use gristmill_uop::program::{KernelContext, When};
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op, RangeKind, ReduceOp, text};

/// Nests with the context of lowering, from the case's header.
///
/// `prologue: %4` and `skip: %5` are conditions, `first: yes` means no predecessor, `streams: 0 2`
/// are slots with consecutive rows, `beside: 3` is workgroups per unit. The launch plan is the
/// first proposal, or `launch:`.
struct Lowering {
    graph: Graph,
    nests: Vec<Id>,
    context: KernelContext,
    target: Target,
}

impl Lowering {
    fn for_case(case: &Case) -> Result<Lowering, String> {
        let (p, target) = (case.graph()?, case.target()?);
        let condition = |key: &str| {
            case.get(key)
                .map(|w| p.named(w))
                .transpose()
                .map(|all| all.map(|all| all[0]))
        };
        let when = When {
            skip: condition("skip")?,
            prologue: condition("prologue")?,
            ..When::default()
        };
        let slot = |w: &str| w.parse().map_err(|_| format!("`{w}` is no slot"));
        let streams = case
            .get("streams")
            .unwrap_or_default()
            .split_whitespace()
            .map(slot)
            .collect::<Result<_, _>>()?;
        let mut linear = p.graph.clone();
        let bodies = [testing::linear(&mut linear, &p.roots, &target)];
        let (first, workgroups_per_unit) = (
            case.get("first").is_some(),
            case.parsed("beside")?.unwrap_or(1),
        );
        let of = Launched {
            g: &linear,
            bodies: &bodies,
            workgroups_per_unit,
            scratch: 0,
            first,
            target: &target,
        };
        let plan = match case.get("launch") {
            Some(words) => format!("launch: {words}").parse()?,
            None => testing::propose_launch(&of, false).remove(0).plan,
        };
        let context = KernelContext {
            when: vec![when],
            plan,
            streams,
        };
        Ok(Lowering {
            graph: p.graph,
            nests: p.roots,
            context,
            target,
        })
    }
    /// The nests as linearised, before any other pass.
    fn code(&self) -> (Graph, Code) {
        let mut g = self.graph.clone();
        let code = testing::linear(&mut g, &self.nests, &self.target);
        (
            g,
            Code {
                skip: self.context.when[0].skip,
                ..code
            },
        )
    }
    /// That code with waits for predecessors, barriers and lowered reductions.
    fn met(&self) -> (Graph, Code) {
        let (mut g, code) = self.code();
        let s = testing::wait_for_predecessors(
            code.statements,
            self.prologue(),
            &self.turn(),
            code.surplus,
        );
        let code = Code {
            statements: testing::barriers(&g, s),
            ..code
        };
        let code = testing::meetings(&mut g, code, &self.target);
        (g, code)
    }
    fn turn(&self) -> Turn {
        Turn::new(self.context.plan.dependents)
    }
    fn prologue(&self) -> Option<Id> {
        self.context.when[0].prologue
    }
    /// The output of a pass, and the claim that the full pipeline computes the same as the nests.
    fn applied(self, g: &Graph, code: &Code) -> Applied {
        let text = testing::renumbered(&testing::print_linear(g, code));
        let nests = Kernels::new(self.graph.clone(), self.nests.clone());
        let mut graph = self.graph;
        let body = testing::linear(&mut graph, &self.nests, &self.target);
        let body = Code {
            skip: self.context.when[0].skip,
            ..body
        };
        let all = testing::finish(&mut graph, vec![body], &self.context, &self.target);
        let after = Linear::new(nests.clone(), graph, all);
        Applied {
            text,
            claim: Claim::same(Meaning::Kernels(nests), Meaning::Linear(after)),
        }
    }
}

pub fn linear(case: &Case) -> Result<Applied, String> {
    let lowering = Lowering::for_case(case)?;
    let (g, code) = lowering.code();
    Ok(lowering.applied(&g, &code))
}

pub fn async_copies(case: &Case) -> Result<Applied, String> {
    let lowering = Lowering::for_case(case)?;
    let (g, code) = lowering.code();
    let statements = testing::async_copies(&g, code.statements);
    Ok(lowering.applied(&g, &Code { statements, ..code }))
}

/// Copies that bypass registers, after their lowering.
pub fn streamed(case: &Case) -> Result<Applied, String> {
    let lowering = Lowering::for_case(case)?;
    let (mut g, code) = lowering.code();
    let statements = testing::async_copies(&g, code.statements);
    let statements = testing::streamed(&mut g, statements);
    Ok(lowering.applied(&g, &Code { statements, ..code }))
}

pub fn unroll(case: &Case) -> Result<Applied, String> {
    let lowering = Lowering::for_case(case)?;
    let (g, code) = lowering.code();
    let statements = testing::unroll(
        &g,
        code.statements,
        &lowering.context.plan,
        &lowering.target,
    );
    Ok(lowering.applied(&g, &Code { statements, ..code }))
}

/// All launch plans proposed, with `first: yes` and `beside: 3` workgroups for each unit.
pub fn launch(case: &Case) -> Result<Applied, String> {
    let lowering = Lowering::for_case(case)?;
    let (g, code) = lowering.code();
    let (first, workgroups_per_unit) = (
        case.get("first").is_some(),
        case.parsed("beside")?.unwrap_or(1),
    );
    let of = Launched {
        g: &g,
        bodies: &[code],
        workgroups_per_unit,
        scratch: 0,
        first,
        target: &lowering.target,
    };
    let text = testing::propose_launch(&of, true)
        .iter()
        .map(|p| format!("{}: {}\n", p.name, p.plan))
        .collect();
    Ok(Applied {
        text,
        claim: Claim::Text,
    })
}

pub fn dependents(case: &Case) -> Result<Applied, String> {
    let lowering = Lowering::for_case(case)?;
    let (g, code) = lowering.code();
    let turn = lowering.turn();
    let statements =
        testing::wait_for_predecessors(code.statements, lowering.prologue(), &turn, code.surplus);
    let applied = lowering.applied(&g, &Code { statements, ..code });
    let entry = if turn.entry.is_empty() {
        ""
    } else {
        "launch dependents at first\n"
    };
    Ok(Applied {
        text: format!("{entry}{}", applied.text),
        ..applied
    })
}

pub fn prefetch_spans(case: &Case) -> Result<Applied, String> {
    let lowering = Lowering::for_case(case)?;
    let (g, code) = lowering.code();
    let statements = testing::wait_for_predecessors(
        code.statements,
        lowering.prologue(),
        &lowering.turn(),
        code.surplus,
    );
    let statements = testing::prefetch_spans(&g, statements);
    Ok(lowering.applied(&g, &Code { statements, ..code }))
}

/// Early loads of as many words as the launch plan allows.
pub fn hoist(case: &Case) -> Result<Applied, String> {
    let lowering = Lowering::for_case(case)?;
    let (g, code) = lowering.code();
    let statements = testing::wait_for_predecessors(
        code.statements,
        lowering.prologue(),
        &lowering.turn(),
        code.surplus,
    );
    let statements = testing::hoist(&g, statements, lowering.context.plan.hoisted);
    Ok(lowering.applied(&g, &Code { statements, ..code }))
}

pub fn prefetch_lines(case: &Case) -> Result<Applied, String> {
    let lowering = Lowering::for_case(case)?;
    let (g, code) = lowering.code();
    let code = testing::prefetch_lines(&g, code, &lowering.target, &lowering.context.streams);
    Ok(lowering.applied(&g, &code))
}

/// The output of all earlier passes, without prefetches unless the case has them.
pub fn barriers(case: &Case) -> Result<Applied, String> {
    let lowering = Lowering::for_case(case)?;
    let (g, code) = lowering.code();
    let statements = testing::async_copies(&g, code.statements);
    let statements = testing::wait_for_predecessors(
        statements,
        lowering.prologue(),
        &lowering.turn(),
        code.surplus,
    );
    let statements = testing::prefetch_spans(&g, statements);
    let statements = testing::barriers(&g, statements);
    Ok(lowering.applied(&g, &Code { statements, ..code }))
}

/// Loops of a kernel after software pipelining, at the depth of its plan or of the case's
/// `launch:`.
pub fn copies_ahead(case: &Case) -> Result<Applied, String> {
    let lowering = Lowering::for_case(case)?;
    let (mut g, code) = lowering.code();
    let statements = testing::async_copies(&g, code.statements);
    let statements = testing::wait_for_predecessors(
        statements,
        lowering.prologue(),
        &lowering.turn(),
        code.surplus,
    );
    let code = Code {
        statements: testing::barriers(&g, statements),
        ..code
    };
    let code = testing::copies_ahead(&mut g, code, lowering.context.plan.ahead, &lowering.target);
    Ok(lowering.applied(&g, &code))
}

/// Reductions in shared memory, after the barriers between nests.
pub fn meetings(case: &Case) -> Result<Applied, String> {
    let lowering = Lowering::for_case(case)?;
    let (g, code) = lowering.met();
    Ok(lowering.applied(&g, &code))
}

/// The word legalisation, after all other passes.
pub fn words(case: &Case) -> Result<Applied, String> {
    let lowering = Lowering::for_case(case)?;
    let (mut g, code) = lowering.met();
    let all = accesses(&g, code.statements.iter());
    let code = testing::words(&mut g, code, &all);
    Ok(lowering.applied(&g, &code))
}

/// Loops unrolled as the launch plan says.
pub fn written_out(case: &Case) -> Result<Applied, String> {
    let lowering = Lowering::for_case(case)?;
    let (mut g, code) = lowering.code();
    let statements = testing::unroll(
        &g,
        code.statements,
        &lowering.context.plan,
        &lowering.target,
    );
    let code = testing::written_out(&mut g, Code { statements, ..code });
    Ok(lowering.applied(&g, &code))
}

/// Vectorises values; their lanes come after all other ranges.
pub fn vectorise(case: &Case) -> Result<Applied, String> {
    let (p, target) = (case.graph()?, case.target()?);
    let ranges = ranges(&p.graph, &p.roots);
    let nests = Kernels::of_values(p.graph, &p.roots, &ranges);
    let mut g = nests.graph.clone();
    let roots: Vec<Id> = p
        .roots
        .iter()
        .map(|&r| testing::vectorise(&mut g, r, &target))
        .collect();
    let text = text::print(&g, &roots);
    let others: Vec<FixedRange> = ranges
        .into_iter()
        .filter(|r| r.kind != RangeKind::Vector)
        .collect();
    let (first, loops) = offset(&mut g, &others);
    let values = roots
        .into_iter()
        .zip(&nests.launches[0][0])
        .map(|(value, &nest)| {
            let lanes = g.int(g[value].dtype.lanes.into());
            Written {
                buffer: g[nest].src[0],
                at: g.mul(first, lanes),
                value,
            }
        });
    let values: Vec<Written> = values.collect();
    let code = straight(&mut g, &[], &values, &[], &loops);
    let after = Linear::new(nests.clone(), g, code);
    Ok(Applied {
        text,
        claim: Claim::same(Meaning::Kernels(nests), Meaning::Values(after)),
    })
}

/// Straight-line code: definitions that the stores need, then the stores as writes.
fn statements(g: &Graph, roots: &[Id]) -> Vec<Statement> {
    let leaf = |op: Op| {
        matches!(
            op,
            Op::Const | Op::Var | Op::Param | Op::Local | Op::Range | Op::Store
        )
    };
    let defined = g
        .toposort(roots)
        .into_iter()
        .filter(|&n| !leaf(g[n].op))
        .map(Statement::Define);
    let written = roots
        .iter()
        .map(|&n| Statement::Write(g[n].src[0], g[n].src[1], g[n].src[2]));
    defined.chain(written).collect()
}

/// Coalesces writes; the ranges of their addresses are the threads.
pub fn coalesce(case: &Case) -> Result<Applied, String> {
    let p = case.graph()?;
    let (g, before) = (&p.graph, statements(&p.graph, &p.roots));
    // As many registers with loads in flight as on a GPU; these cases have no target.
    let after = testing::coalesce(g, before.clone(), OF_GPUS.registers_in_flight);
    let code = |statements: Vec<Statement>| Code {
        statements,
        ..Code::default()
    };
    let text = testing::renumbered(&testing::print_linear(g, &code(after.clone())));
    let of = |statements: Vec<Statement>| {
        let mut threads: Vec<Id> = p
            .roots
            .iter()
            .flat_map(|&n| g.free_ranges(n).to_vec())
            .collect();
        threads.sort_unstable();
        threads.dedup();
        let total = threads.iter().map(|&r| g.max_of(g[r].src[0])).product();
        let threads = testing::count_threads(g, &threads, total);
        let nest = Statement::Nest {
            buffer: g[p.roots[0]].src[0],
            staged: false,
            globals: vec![],
            threads,
        };
        let turn = Turn::new(Dependents::End);
        let all = turn
            .wait
            .iter()
            .cloned()
            .chain([nest])
            .chain(statements)
            .chain([Statement::End])
            .collect();
        let (bodies, threads) = (vec![code(all)], total as usize);
        let code = KernelCode {
            bodies,
            threads,
            resident: 1,
            shared: None,
            entry: vec![],
            idle: turn.wait,
        };
        Meaning::Linear(Linear::new(
            Kernels::new(g.clone(), p.roots.clone()),
            g.clone(),
            code,
        ))
    };
    Ok(Applied {
        text,
        claim: Claim::same(of(before), of(after)),
    })
}

/// Pairs terms of one accumulator, or of those in `accumulators: 0 1 0`; every sum is preserved.
pub fn pairs(case: &Case) -> Result<Applied, String> {
    let p = case.graph()?;
    let mut g = p.graph;
    let numbers: Vec<i64> = match case.get("accumulators") {
        Some(words) => words
            .split_whitespace()
            .map(|w| w.parse().map_err(|_| "a number"))
            .collect::<Result<_, _>>()?,
        None => vec![0; p.roots.len()],
    };
    let terms: Vec<(Id, Id, ReduceOp)> = numbers
        .iter()
        .zip(&p.roots)
        .map(|(&n, &t)| (g.int(n), t, ReduceOp::Add))
        .collect();
    let joined = testing::pairs(&mut g, terms.clone());
    let roots: Vec<Id> = joined.iter().map(|j| j.1).collect();
    let text = text::print(&g, &roots);
    let sums = |g: &mut Graph, all: &[(Id, Id, ReduceOp)]| {
        let mut accumulators: Vec<Id> = all.iter().map(|t| t.0).collect();
        accumulators.sort_unstable();
        accumulators.dedup();
        let sum = |a: Id| {
            all.iter()
                .filter(|t| t.0 == a)
                .map(|t| t.1)
                .reduce(|a, b| g.add(a, b))
                .expect("a term")
        };
        accumulators.into_iter().map(sum).collect::<Vec<Id>>()
    };
    let (before, after) = (sums(&mut g, &terms), sums(&mut g, &joined));
    let all = ranges(&g, &before);
    let of = |roots: &[Id]| Meaning::Kernels(Kernels::of_values(g.clone(), roots, &all));
    Ok(Applied {
        text,
        claim: Claim::same(of(&before), of(&after)),
    })
}

/// The value of the last nest; earlier nests fill the stages that it reads.
fn products(
    case: &Case,
    pass: fn(&mut Graph, Id, &[Id], &Target) -> Id,
) -> Result<Applied, String> {
    let p = case.graph()?;
    let nests = Kernels::new(p.graph.clone(), p.roots.clone());
    let (mut g, nest) = (p.graph, *p.roots.last().ok_or("a nest")?);
    let closed = g[nest].src[3..].to_vec();
    let value = g[nest].src[2];
    let new = pass(&mut g, value, &closed, &Target::named("h200"));
    let text = if new == value {
        "left as it is\n".into()
    } else {
        text::print(&g, &[new])
    };
    let (threads, loops): (Vec<Id>, Vec<Id>) = closed
        .iter()
        .partition(|&&r| g.range_kind(r) == Some(RangeKind::Vector));
    let (_, stages) = p.roots.split_last().ok_or("a nest")?;
    let value = Written {
        buffer: g[nest].src[0],
        at: g[nest].src[1],
        value: new,
    };
    let code = straight(&mut g, stages, &[value], &threads, &loops);
    let after = Linear::new(nests.clone(), g, code);
    Ok(Applied {
        text,
        claim: Claim::same(Meaning::Kernels(nests), Meaning::Values(after)),
    })
}

pub fn mma(case: &Case) -> Result<Applied, String> {
    products(case, testing::mma)
}

pub fn mma_f16(case: &Case) -> Result<Applied, String> {
    products(case, testing::mma_f16)
}
