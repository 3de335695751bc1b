//! Checks synchronisation: barriers between threads of a workgroup, waits for asynchronous copies
//! and products, and grid-dependency waits.

use super::error::{Checked, LinearError};
use crate::lower::linear_ir::{Code, KernelCode, Statement, end_of_block};
use crate::lower::loops::loop_carried::Slot;
use crate::lower::mma::stage_products::OfStages;
use crate::lower::sync::barriers::Touched;
use crate::lower::sync::shared_memory_reduce::is_meeting;
use gristmill_uop::{Graph, Id, Op, RangeKind};
use rustc_hash::FxHashSet;

/// A stage, or one slot of a stage that a loop carries.
type Place = (Id, Option<Slot>);

/// Stage accesses that are not yet synchronised.
#[derive(Clone, Default)]
struct Stages {
    /// Written since the last barrier, or by copies still pending at that barrier.
    written: FxHashSet<Place>,
    /// Read since the last barrier.
    read: FxHashSet<Place>,
    /// Destinations of copies in flight.
    copied: FxHashSet<Place>,
    /// Destinations of each copy group in flight, oldest first.
    groups: Vec<FxHashSet<Place>>,
    /// Whether asynchronous MMA products that read stages are in flight.
    multiplied: bool,
    /// Written since the last fence for asynchronous MMA products.
    hidden: FxHashSet<Id>,
}

/// Checks that a body of the kernel synchronises wherever it must.
pub(super) fn check(g: &Graph, kernel: &KernelCode, code: &Code) -> Checked {
    if kernel.threads == 1 {
        return single_thread(kernel, code);
    }
    predecessors(kernel, code)?;
    meetings(g, code)?;
    shared_loops(g, code)?;
    let mut stages = Stages::default();
    let mut around: Vec<Stages> = Vec::new();
    let mut at = 0;
    while at < code.statements.len() {
        let mut end = 0;
        match &code.statements[at] {
            Statement::Barrier => stages.agree(),
            Statement::AsyncWait(but) => stages.arrived(*but),
            Statement::Unless(_) => around.push(stages.clone()),
            Statement::End => {
                let outside = around.pop().unwrap_or_default();
                stages.written.extend(outside.written);
                stages.read.extend(outside.read);
                stages.copied.extend(outside.copied);
            }
            _ => {
                end = end_of_block(&code.statements[at..]);
                let mut touched = Touched::by(g, &code.statements[at..=at + end]);
                touched.read.retain(|&stage| !is_meeting(g, stage));
                touched.written.retain(|&stage| !is_meeting(g, stage));
                stages
                    .touch(touched, None, !around.is_empty())
                    .map_err(|rule| error(rule, at, code))?;
            }
        }
        at += end + 1;
    }
    Ok(())
}

/// Checks cross-thread reductions within a nest: barriers before their values are read, and
/// before the stage is written again. In loops, values read in an iteration may be
/// overwritten by the next.
fn meetings(g: &Graph, code: &Code) -> Checked {
    let all: FxHashSet<Id> = code
        .locals
        .iter()
        .copied()
        .filter(|&stage| is_meeting(g, stage))
        .collect();
    let mut stages = Stages::default();
    for (at, s) in code.statements.iter().enumerate() {
        match s {
            Statement::Barrier => stages.agree(),
            Statement::Loop { .. } => stages.read.extend(all.iter().map(|&stage| (stage, None))),
            s => {
                let mut touched = Touched::by(g, std::slice::from_ref(s));
                touched.read.retain(|stage| all.contains(stage));
                touched.written.retain(|stage| all.contains(stage));
                touched.copied.clear();
                stages
                    .touch(touched, None, true)
                    .map_err(|rule| error(rule, at, code))?;
            }
        }
    }
    Ok(())
}

impl Stages {
    /// Applies a barrier. Copies in flight stay unsynchronised.
    fn agree(&mut self) {
        self.read.clear();
        self.written.clone_from(&self.copied);
    }
    /// Closes a copy group with all copies since the last one.
    fn group(&mut self) {
        let earlier: FxHashSet<Place> = self.groups.iter().flatten().copied().collect();
        self.groups.push(
            self.copied
                .iter()
                .copied()
                .filter(|place| !earlier.contains(place))
                .collect(),
        );
    }
    /// Applies a wait for all but the `but` most recent copy groups.
    fn arrived(&mut self, but: i64) {
        let first = self.groups.len().saturating_sub(but as usize);
        self.groups.drain(..first);
        self.copied = self.groups.iter().flatten().copied().collect();
    }
    /// Records the accesses of statements; returns the rule that they violate. Successive nests
    /// that fill a stage fill different parts of it, which only the interpreter verifies; `again`
    /// says that these statements overwrite earlier contents. All accesses are to `slot`, if given.
    fn touch(&mut self, t: Touched, slot: Option<Slot>, again: bool) -> Result<(), &'static str> {
        let is_other = |a: Option<Slot>, b: Option<Slot>| a.is_some() && b.is_some() && a != b;
        let meet = |a: &FxHashSet<Id>, b: &FxHashSet<Place>| {
            b.iter().any(|x| a.contains(&x.0) && !is_other(slot, x.1))
        };
        if meet(&t.read, &self.copied) || again && meet(&t.written, &self.copied) {
            return Err("a copy is waited for before its data is read or overwritten");
        }
        if meet(&t.read, &self.written) {
            return Err("a barrier separates writes to a stage from reads by other threads");
        }
        if again && meet(&t.written, &self.written) || meet(&t.written, &self.read) {
            return Err("a barrier separates accesses to a stage from writes by other threads");
        }
        if meet(&t.copied, &self.read) {
            return Err("a barrier separates reads of a stage from copies to it");
        }
        let places = |stages: FxHashSet<Id>| stages.into_iter().map(move |stage| (stage, slot));
        self.read.extend(places(t.read));
        self.written.extend(places(t.written));
        self.copied.extend(places(t.copied));
        Ok(())
    }
    /// Renames the slots of carried stages as the next iteration sees them.
    fn passed(&mut self) {
        for places in [&mut self.read, &mut self.written, &mut self.copied]
            .into_iter()
            .chain(&mut self.groups)
        {
            *places = places
                .drain()
                .map(|(stage, slot)| (stage, slot.map(Slot::passed)))
                .collect();
        }
    }
}

/// Checks that threads synchronise between accesses to a stage in a shared
/// loop, also across iterations.
fn shared_loops(g: &Graph, code: &Code) -> Checked {
    for (first, s) in code.statements.iter().enumerate() {
        let Statement::Loop { range, .. } = s else {
            continue;
        };
        if g.range_kind(*range) != Some(RangeKind::Fused) {
            continue;
        }
        let end = first + end_of_block(&code.statements[first..]);
        let mut stages = Stages::default();
        for at in (first + 1..=end).chain(first + 1..end) {
            match &code.statements[at] {
                Statement::Barrier if stages.multiplied => {
                    return Err(error(
                        "asynchronous MMA products end before a barrier releases the stage that they read",
                        at,
                        code,
                    ));
                }
                Statement::Barrier => stages.agree(),
                Statement::ProductsEnded(0) => stages.multiplied = false,
                Statement::WritesShown => stages.hidden.clear(),
                Statement::AsyncGroup => stages.group(),
                Statement::AsyncWait(but) => stages.arrived(*but),
                Statement::End if at == end => stages.passed(),
                s => {
                    let touched = Touched::by(g, std::slice::from_ref(s));
                    let slot = offset(g, s).and_then(|offset| Slot::from_offset(g, offset, *range));
                    stages.hidden.extend(&touched.written);
                    if let Some(product) = OfStages::from_statement(g, s) {
                        stages.multiplied = true;
                        if product
                            .rows
                            .iter()
                            .chain([&product.columns])
                            .any(|stage| stages.hidden.contains(stage))
                        {
                            return Err(error(
                                "a fence separates writes to a stage from asynchronous MMA products that read it",
                                at,
                                code,
                            ));
                        }
                    }
                    stages
                        .touch(touched, slot, false)
                        .map_err(|rule| error(rule, at, code))?;
                }
            }
        }
    }
    Ok(())
}

/// Returns the offset at which a statement reads or writes a buffer.
fn offset(g: &Graph, s: &Statement) -> Option<Id> {
    match s {
        Statement::Define(id) if matches!(g[*id].op, Op::Load | Op::TileLoad) => {
            Some(g[*id].src[1])
        }
        Statement::Wide(_, at, ..)
        | Statement::Write(_, at, _)
        | Statement::WideWrite(_, at, ..) => Some(*at),
        _ => None,
    }
}

fn error(rule: &'static str, statement: usize, code: &Code) -> LinearError {
    let node = match code.statements.get(statement) {
        Some(Statement::Nest { buffer, .. }) => {
            format!("statement {statement}, the nest of %{}", buffer.0)
        }
        _ => format!("statement {statement}"),
    };
    LinearError {
        rule,
        statement,
        node,
    }
}

/// Checks that a workgroup of one thread has no synchronisation.
fn single_thread(kernel: &KernelCode, code: &Code) -> Checked {
    let of_threads = |s: &Statement| {
        let waits = matches!(
            s,
            Statement::Barrier | Statement::AsyncWait(_) | Statement::AsyncCopy { .. }
        );
        waits || matches!(s, Statement::DependencyWait | Statement::LaunchDependents)
    };
    let all = kernel
        .entry
        .iter()
        .chain(&kernel.idle)
        .chain(&code.statements);
    match all.into_iter().position(of_threads) {
        Some(at) => Err(error(
            "a workgroup of one thread has no synchronisation",
            at,
            code,
        )),
        None => Ok(()),
    }
}

/// Checks that predecessors have ended before their outputs are read, and that dependents are
/// launched at most once.
fn predecessors(kernel: &KernelCode, code: &Code) -> Checked {
    let count = |all: &[Statement], s: &Statement| all.iter().filter(|x| *x == s).count();
    let (wait, launch) = (Statement::DependencyWait, Statement::LaunchDependents);
    let whole = |all: &[Statement]| {
        let entry = &kernel.entry;
        count(entry, &wait) == 0
            && count(all, &wait) == 1
            && count(entry, &launch) + count(all, &launch) <= 1
    };
    let rule = "a workgroup has one grid-dependency wait and launches dependents at most once";
    if !whole(&code.statements) || !whole(&kernel.idle) {
        return Err(error(rule, code.statements.len(), code));
    }
    let at = code
        .statements
        .iter()
        .position(|s| *s == wait)
        .unwrap_or_default();
    let before = &code.statements[..at];
    let rule = "at most one nest precedes the grid-dependency wait, and it is repeated if predecessors wrote its inputs";
    let nests: Vec<Id> = before.iter().filter_map(nest).collect();
    let guarded = before.iter().any(|s| matches!(s, Statement::Unless(_)));
    let again = match code.statements[at..].iter().find(|s| s.opens()) {
        Some(Statement::Unless(_)) => code.statements[at..].iter().find_map(nest),
        _ => None,
    };
    if before.iter().any(|s| matches!(s, Statement::Leave(_))) {
        return Err(error(
            "a workgroup does not end before its predecessors",
            at,
            code,
        ));
    }
    let holds = match nests[..] {
        [] => true,
        [one] => again == Some(one),
        _ => false,
    };
    if holds && !guarded {
        Ok(())
    } else {
        Err(error(rule, at, code))
    }
}

/// Returns the buffer that a nest writes.
fn nest(s: &Statement) -> Option<Id> {
    match s {
        Statement::Nest { buffer, .. } => Some(*buffer),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_uop::{Arg, Node, Op, Scalar};
    use smallvec::smallvec;

    /// A stage and nests that use it: a fill by writes, a fill by a copy, and a read.
    struct World {
        g: Graph,
        fill: Vec<Statement>,
        copy: Vec<Statement>,
        read: Vec<Statement>,
    }

    impl World {
        fn new() -> World {
            let mut g = Graph::new();
            let (zero, four) = (g.int(0), g.int(4));
            let (x, y) = (g.param(0, &[], Scalar::F32), g.param(1, &[], Scalar::F32));
            let stage = g.intern(Node {
                op: Op::Local,
                dtype: Scalar::F32.one(),
                src: smallvec![four],
                arg: Arg::Int(0),
            });
            let (far, near) = (
                g.load(x, zero, Scalar::F32),
                g.load(stage, zero, Scalar::F32),
            );
            let nest = |buffer, staged, inside: &[Statement]| {
                let open = Statement::Nest {
                    buffer,
                    staged,
                    globals: vec![],
                    threads: vec![],
                };
                [&[open], inside, &[Statement::End]].concat()
            };
            let copy = Statement::AsyncCopy {
                to: [stage, zero],
                from: [x, zero],
                plus: [0; 2],
                bytes: 16,
                when: None,
            };
            World {
                fill: nest(
                    stage,
                    true,
                    &[Statement::Define(far), Statement::Write(stage, zero, far)],
                ),
                copy: nest(stage, true, &[copy]),
                read: nest(
                    y,
                    false,
                    &[Statement::Define(near), Statement::Write(y, zero, near)],
                ),
                g,
            }
        }
        fn kernel(&self, threads: usize, parts: &[&[Statement]]) -> KernelCode {
            let bodies = vec![Code {
                statements: parts.concat(),
                ..Code::default()
            }];
            KernelCode {
                bodies,
                threads,
                resident: 1,
                shared: None,
                entry: vec![],
                idle: vec![WAIT],
            }
        }
        /// Returns the rule that these statements of 64 threads violate, or "nothing".
        fn wrong(&self, parts: &[&[Statement]]) -> &'static str {
            let kernel = self.kernel(64, parts);
            check(&self.g, &kernel, &kernel.bodies[0]).map_or_else(|e| e.rule, |()| "nothing")
        }
    }

    const WAIT: Statement = Statement::DependencyWait;
    const BARRIER: Statement = Statement::Barrier;
    const ARRIVED: Statement = Statement::AsyncWait(0);

    #[test]
    fn threads_wait_for_one_another() {
        let w = World::new();
        let World {
            fill, copy, read, ..
        } = &w;
        assert_eq!(w.wrong(&[&[WAIT], fill, &[BARRIER], read]), "nothing");
        assert_eq!(
            w.wrong(&[&[WAIT], copy, &[ARRIVED, BARRIER], read]),
            "nothing"
        );
        assert!(
            w.wrong(&[&[WAIT], fill, read])
                .starts_with("a barrier separates writes")
        );
        assert!(
            w.wrong(&[&[WAIT], copy, &[BARRIER], read])
                .starts_with("a copy is waited for")
        );
        assert!(
            w.wrong(&[&[WAIT], copy, &[ARRIVED], read])
                .starts_with("a barrier separates writes")
        );
        // A barrier does not wait for copies.
        let early = w.wrong(&[&[WAIT], copy, &[BARRIER, ARRIVED], read]);
        assert!(early.starts_with("a barrier separates writes"), "{early}");
        let again = w.wrong(&[&[WAIT], fill, &[BARRIER], read, fill]);
        assert!(again.starts_with("a barrier separates accesses"), "{again}");
        assert_eq!(
            w.wrong(&[&[WAIT], fill, &[BARRIER], read, &[BARRIER], fill]),
            "nothing"
        );
    }

    #[test]
    fn threads_wait_for_one_another_in_each_iteration() {
        let mut w = World::new();
        let two = w.g.int(2);
        let shared = w.g.range(two, 1, RangeKind::Fused);
        let (open, end) = (
            Statement::Loop {
                range: shared,
                step: 1,
                unroll: Some(1),
            },
            Statement::End,
        );
        // The statements that fill and read the stage, without their nests.
        let [fill, read] = [&w.fill, &w.read].map(|nest| nest[1..nest.len() - 1].to_vec());
        let nest = |inside: &[&[Statement]]| {
            [
                &w.read[..1],
                std::slice::from_ref(&open),
                &inside.concat(),
                &[end.clone(), end.clone()],
            ]
            .concat()
        };
        let wrong = |inside: &[&[Statement]]| w.wrong(&[&[WAIT], &nest(inside)]);
        assert_eq!(wrong(&[&fill, &[BARRIER], &read, &[BARRIER]]), "nothing");
        assert!(wrong(&[&fill, &read, &[BARRIER]]).starts_with("a barrier separates writes"));
        // Reads of the previous iteration need a barrier, too.
        assert!(wrong(&[&fill, &[BARRIER], &read]).starts_with("a barrier separates accesses"));
    }

    #[test]
    fn a_group_of_copies_is_waited_for_by_itself() {
        let mut w = World::new();
        let two = w.g.int(2);
        let shared = w.g.range(two, 1, RangeKind::Fused);
        let (open, end) = (
            Statement::Loop {
                range: shared,
                step: 1,
                unroll: Some(1),
            },
            Statement::End,
        );
        let [copy, read] = [&w.copy, &w.read].map(|nest| nest[1..nest.len() - 1].to_vec());
        let wrong = |inside: &[&[Statement]]| {
            let inside = inside.concat();
            w.wrong(&[
                &[WAIT],
                &w.read[..1],
                std::slice::from_ref(&open),
                &inside,
                &[end.clone(), end.clone()],
            ])
        };
        let (group, none, one) = (
            Statement::AsyncGroup,
            Statement::AsyncWait(0),
            Statement::AsyncWait(1),
        );
        let begun = [&copy[..], std::slice::from_ref(&group)].concat();
        assert_eq!(
            wrong(&[&begun, &[none.clone(), BARRIER], &read, &[BARRIER]]),
            "nothing"
        );
        // A later, empty group may be in flight.
        assert_eq!(
            wrong(&[&begun, &[group, one.clone(), BARRIER], &read, &[BARRIER]]),
            "nothing"
        );
        assert!(
            wrong(&[&begun, &[one, BARRIER], &read, &[BARRIER]])
                .starts_with("a copy is waited for")
        );
        assert!(
            wrong(&[&begun, &[none, BARRIER], &read])
                .starts_with("a barrier separates reads of a stage")
        );
    }

    #[test]
    fn kernels_wait_for_those_before_them() {
        let w = World::new();
        let World {
            fill, copy, read, ..
        } = &w;
        let (unless, end) = (Statement::Unless(Id(0)), Statement::End);
        let once = "a workgroup has one grid-dependency wait and launches dependents at most once";
        assert_eq!(w.wrong(&[fill, &[BARRIER], read]), once);
        assert_eq!(w.wrong(&[&[WAIT, WAIT], fill, &[BARRIER], read]), once);
        let launch = Statement::LaunchDependents;
        assert_eq!(w.wrong(&[&[WAIT, launch.clone()], fill]), "nothing");
        let leave = Statement::Leave(Id(0));
        assert_eq!(w.wrong(&[&[WAIT, leave.clone()], fill]), "nothing");
        assert!(
            w.wrong(&[&[leave, WAIT], fill])
                .starts_with("a workgroup does not end")
        );
        assert_eq!(w.wrong(&[&[WAIT, launch.clone(), launch], fill]), once);
        let before = w.wrong(&[fill, &[WAIT, BARRIER], read]);
        assert!(before.starts_with("at most one nest precedes"), "{before}");
        // A tile is copied early, and copied again if it has changed.
        let again = [
            &[unless.clone(), ARRIVED, BARRIER],
            &copy[..],
            std::slice::from_ref(&end),
        ]
        .concat();
        assert_eq!(
            w.wrong(&[copy, &[WAIT], &again, &[ARRIVED, BARRIER], read]),
            "nothing"
        );
        let at_once = [&[unless], &copy[..], &[end]].concat();
        let rule = w.wrong(&[copy, &[WAIT], &at_once, &[ARRIVED, BARRIER], read]);
        assert!(rule.starts_with("a copy is waited for"), "{rule}");
    }

    #[test]
    fn one_thread_has_no_synchronisation() {
        let w = World::new();
        for s in [WAIT, BARRIER, ARRIVED, Statement::LaunchDependents] {
            let mut kernel = w.kernel(1, &[&w.fill, &[s], &w.read]);
            kernel.idle.clear();
            let e = check(&w.g, &kernel, &kernel.bodies[0]).expect_err("a wait");
            assert_eq!(e.rule, "a workgroup of one thread has no synchronisation");
        }
    }
}
