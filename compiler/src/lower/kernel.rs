//! A kernel's statements, from its nests: every body linearised, and then, pass by pass, what its threads and the kernels around it wait for and ask for.

use super::async_copies::async_copies;
use super::barriers::barriers;
use super::code::{Code, KernelCode};
use super::dependents::{Turn, wait_for_predecessors};
use super::launch_bounds::resident;
use super::linear::lower_body;
use super::prefetch::{prefetch_lines, prefetch_spans};
use super::unroll::unroll;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::program::{KernelContext, Program};
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id};

/// Lowers a program's graph, in a copy of it: that of which the statements are.
pub fn lower_program(program: &Program, target: &Target) -> (Graph, KernelCode) {
    let mut g = program.graph.as_ref().clone();
    // The root is a kernel of bodies of nests.
    let bodies: Vec<Vec<Id>> = g[program.root].src.iter().map(|&b| g[b].src.to_vec()).collect();
    let code = lower_kernel(&mut g, &bodies, program.groups, &program.context, target);
    (g, code)
}

/// Lowers the nests of every body; `groups` is the number of workgroups of all of them.
pub fn lower_kernel(
    g: &mut Graph,
    bodies: &[Vec<Id>],
    groups: Id,
    context: &KernelContext,
    target: &Target,
) -> KernelCode {
    let mut codes: Vec<Code> = bodies.iter().map(|nests| lower_body(g, nests, target)).collect();
    for (code, when) in codes.iter_mut().zip(&context.when) {
        code.skip = when.skip;
    }
    match target.machine.kind {
        MachineKind::Cpu => on_cpu(g, codes, context, target),
        MachineKind::Gpu => on_gpu(g, codes, groups, context, target),
    }
}

/// One thread runs workgroup after workgroup, and waits for nobody but memory.
fn on_cpu(g: &Graph, codes: Vec<Code>, context: &KernelContext, target: &Target) -> KernelCode {
    let ahead = target.tuning.prefetch.into();
    let bodies = codes.into_iter().map(|code| prefetch_lines(g, code, ahead, &context.streams)).collect();
    KernelCode { bodies, threads: target.threads, resident: 1, entry: vec![], idle: vec![] }
}

/// Threads of a workgroup run its nests together, and kernels start before those before them have ended.
fn on_gpu(g: &Graph, mut codes: Vec<Code>, groups: Id, context: &KernelContext, target: &Target) -> KernelCode {
    let units = target.machine.units.max(1) as i64;
    let beside = (g.max_of(groups).saturating_add(units - 1)) / units;
    let resident = resident(g, &codes, beside);
    let turn = Turn::of(target.early_launch, context.first);
    for (i, code) in codes.iter_mut().enumerate() {
        let early = context.when.get(i).and_then(|when| when.early);
        let mut s = std::mem::take(&mut code.statements);
        s = async_copies(g, s);
        s = unroll(g, s, resident);
        s = wait_for_predecessors(s, early, &turn);
        if target.tuning.prefetch > 0 {
            s = prefetch_spans(g, s);
        }
        code.statements = barriers(g, s);
    }
    KernelCode { bodies: codes, threads: target.threads, resident, entry: turn.entry, idle: turn.wait }
}
