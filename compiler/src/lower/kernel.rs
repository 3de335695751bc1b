//! Lowers a kernel from its nests: linearises each body, then runs the passes that the launch plan
//! selects (software pipelining, unrolling, prefetch, dependency waits, barriers, legalisation).

use super::legalise::types::legalise_types;
use super::linear_ir::accesses::accesses;
use super::linear_ir::{Code, KernelCode};
use super::linearise::lower_body;
use super::loops::full_unroll::full_unroll;
use super::loops::unroll::unroll;
use super::memory::early_loads::early_loads;
use super::memory::pipeline::async_copies::async_copies;
use super::memory::pipeline::multistage::multistage;
use super::memory::pipeline::reload::reload;
use super::memory::prefetch::{prefetch_lines, prefetch_spans};
use super::sync::barriers::barriers;
use super::sync::dependent_launch::{Turn, wait_for_predecessors};
use super::sync::shared_memory_reduce::shared_memory_reduce;
use gristmill_uop::launch::LaunchPlan;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::program::{KernelContext, Program, When};
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id};

/// Lowers a program's kernel. Returns the copy of the program's graph that the statements refer to,
/// and the linear code.
pub fn lower_program(program: &Program, target: &Target) -> (Graph, KernelCode) {
    let mut g = program.graph.as_ref().clone();
    // The root is a kernel of bodies of nests.
    let bodies: Vec<Vec<Id>> = g[program.root]
        .src
        .iter()
        .map(|&b| g[b].src.to_vec())
        .collect();
    let codes = lower_bodies(&mut g, &bodies, &program.context.when, target);
    let code = finish(&mut g, codes, &program.context, target);
    (g, code)
}

/// Linearises the nests of every body, without synchronisation. The launch plan is
/// chosen from the result.
pub fn lower_bodies(
    g: &mut Graph,
    bodies: &[Vec<Id>],
    when: &[When],
    target: &Target,
) -> Vec<Code> {
    let mut codes: Vec<Code> = bodies
        .iter()
        .map(|nests| lower_body(g, nests, target))
        .collect();
    for (code, when) in codes.iter_mut().zip(when) {
        code.skip = when.skip;
    }
    codes
}

/// Completes a kernel from its linearised bodies, as the launch plan and the machine require.
pub fn finish(
    g: &mut Graph,
    bodies: Vec<Code>,
    context: &KernelContext,
    target: &Target,
) -> KernelCode {
    match target.machine.kind {
        MachineKind::Cpu => on_cpu(g, bodies, context, target),
        MachineKind::Gpu => on_gpu(g, bodies, context, target),
    }
}

/// CPU: one thread runs workgroup after workgroup. Adds software prefetch;
/// no synchronisation is needed.
fn on_cpu(g: &Graph, codes: Vec<Code>, context: &KernelContext, target: &Target) -> KernelCode {
    let bodies = codes
        .into_iter()
        .map(|code| prefetch_lines(g, code, target, &context.streams))
        .collect();
    KernelCode {
        bodies,
        threads: target.threads,
        resident: 1,
        shared: None,
        entry: vec![],
        idle: vec![],
    }
}

/// GPU: the threads of a workgroup share its nests, and a kernel may start before
/// its predecessors have ended.
fn on_gpu(
    g: &mut Graph,
    mut codes: Vec<Code>,
    context: &KernelContext,
    target: &Target,
) -> KernelCode {
    let plan = &context.plan;
    let turn = Turn::new(plan.dependents);
    for (i, code) in codes.iter_mut().enumerate() {
        let surplus = code.surplus;
        let prologue = context.when.get(i).and_then(|when| when.prologue);
        let mut s = std::mem::take(&mut code.statements);
        if plan.asynchronous {
            s = reload(g, async_copies(g, s));
        }
        s = unroll(g, s, plan, target);
        s = wait_for_predecessors(s, prologue, &turn, surplus);
        if target.tuning.prefetch > 0 {
            s = prefetch_spans(g, s);
        }
        s = early_loads(g, s, plan.hoisted);
        code.statements = barriers(g, s);
        *code = multistage(g, std::mem::take(code), plan.ahead, target);
        if target.machine.folds < i64::MAX {
            *code = shared_memory_reduce(g, std::mem::take(code), target);
        }
        if !target.machine.copies_loops {
            *code = full_unroll(g, std::mem::take(code));
        }
    }
    if target.machine.words_alone {
        let all = accesses(g, codes.iter().flat_map(|code| &code.statements));
        codes = codes
            .into_iter()
            .map(|code| legalise_types(g, code, &all))
            .collect();
    }
    let (
        threads,
        LaunchPlan {
            resident, shared, ..
        },
    ) = (target.threads, *plan);
    KernelCode {
        bodies: codes,
        threads,
        resident,
        shared,
        entry: turn.entry,
        idle: turn.wait,
    }
}
