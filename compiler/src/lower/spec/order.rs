//! Who waits for whom: threads of a workgroup for one another, for copies that are under way, and kernels for those before them.

use super::super::barriers::Touched;
use super::super::code::{Code, KernelCode, Statement, end_of_block};
use super::error::{Checked, LinearError};
use gristmill_uop::{Graph, Id};
use rustc_hash::FxHashSet;

/// What has been done to stages, and not been waited for.
#[derive(Clone, Default)]
struct Stages {
    /// Written since the last barrier, or by copies that nobody had waited for at it.
    written: FxHashSet<Id>,
    /// Read since the last barrier.
    read: FxHashSet<Id>,
    /// With copies under way.
    copied: FxHashSet<Id>,
}

/// Does a body of this kernel wait where it has to?
pub(super) fn check(g: &Graph, kernel: &KernelCode, code: &Code) -> Checked {
    if kernel.threads == 1 {
        return alone(kernel, code);
    }
    predecessors(kernel, code)?;
    let mut stages = Stages::default();
    let mut around: Vec<Stages> = Vec::new();
    let mut at = 0;
    while at < code.statements.len() {
        let mut end = 0;
        match &code.statements[at] {
            Statement::Barrier => {
                stages.read.clear();
                stages.written.clone_from(&stages.copied);
            }
            Statement::AsyncWait => stages.copied.clear(),
            Statement::Unless(_) => around.push(stages.clone()),
            Statement::End => {
                let outside = around.pop().unwrap_or_default();
                stages.written.extend(outside.written);
                stages.read.extend(outside.read);
                stages.copied.extend(outside.copied);
            }
            _ => {
                end = end_of_block(&code.statements[at..]);
                let touched = Touched::by(g, &code.statements[at..=at + end]);
                stages.touch(touched, !around.is_empty()).map_err(|rule| error(rule, at, code))?;
            }
        }
        at += end + 1;
    }
    Ok(())
}

impl Stages {
    /// Statements that touch stages: what they would have had to wait for. Nests that fill a stage one after the other fill parts of it, which only the interpreter
    /// sees, but `again` says that this one fills what another has filled.
    fn touch(&mut self, t: Touched, again: bool) -> Result<(), &'static str> {
        let meet = |a: &FxHashSet<Id>, b: &FxHashSet<Id>| a.iter().any(|x| b.contains(x));
        if meet(&t.read, &self.copied) || again && meet(&t.written, &self.copied) {
            return Err("a copy is waited for before its data is read, or its place written again");
        }
        if meet(&t.read, &self.written) {
            return Err("a barrier stands between what threads write to a stage and what others read of it");
        }
        if again && meet(&t.written, &self.written) || meet(&t.written, &self.read) {
            return Err("a barrier stands between what threads do with a stage and what others write to it");
        }
        self.read.extend(t.read);
        self.written.extend(t.written);
        self.copied.extend(t.copied);
        Ok(())
    }
}

fn error(rule: &'static str, statement: usize, code: &Code) -> LinearError {
    let node = match code.statements.get(statement) {
        Some(Statement::Nest { buffer, .. }) => format!("statement {statement}, the nest of %{}", buffer.0),
        _ => format!("statement {statement}"),
    };
    LinearError { rule, statement, node }
}

/// A workgroup of one thread waits for nobody.
fn alone(kernel: &KernelCode, code: &Code) -> Checked {
    let of_threads = |s: &Statement| {
        let waits = matches!(s, Statement::Barrier | Statement::AsyncWait | Statement::AsyncCopy { .. });
        waits || matches!(s, Statement::DependencyWait | Statement::LaunchDependents)
    };
    let all = kernel.entry.iter().chain(&kernel.idle).chain(&code.statements);
    match all.into_iter().position(of_threads) {
        Some(at) => Err(error("a workgroup of one thread waits for nobody", at, code)),
        None => Ok(()),
    }
}

/// Kernels before this one have ended before it reads what they may have written, and it lets others start once.
fn predecessors(kernel: &KernelCode, code: &Code) -> Checked {
    let count = |all: &[Statement], s: &Statement| all.iter().filter(|x| *x == s).count();
    let (wait, launch) = (Statement::DependencyWait, Statement::LaunchDependents);
    let whole = |all: &[Statement]| {
        let entry = &kernel.entry;
        count(entry, &wait) == 0 && count(all, &wait) == 1 && count(entry, &launch) + count(all, &launch) <= 1
    };
    let rule = "every workgroup waits for its predecessors once, and lets dependents start once at most";
    if !whole(&code.statements) || !whole(&kernel.idle) {
        return Err(error(rule, code.statements.len(), code));
    }
    let at = code.statements.iter().position(|s| *s == wait).unwrap_or_default();
    let before = &code.statements[..at];
    let rule = "what comes before the wait for predecessors is one nest at most, and is done again where they wrote what it read";
    let nests: Vec<Id> = before.iter().filter_map(nest).collect();
    let guarded = before.iter().any(|s| matches!(s, Statement::Unless(_)));
    let again = match code.statements[at..].iter().find(|s| s.opens()) {
        Some(Statement::Unless(_)) => code.statements[at..].iter().find_map(nest),
        _ => None,
    };
    let holds = match nests[..] {
        [] => true,
        [one] => again == Some(one),
        _ => false,
    };
    if holds && !guarded { Ok(()) } else { Err(error(rule, at, code)) }
}

/// The buffer of a nest.
fn nest(s: &Statement) -> Option<Id> {
    match s {
        Statement::Nest { buffer, .. } => Some(*buffer),
        _ => None,
    }
}
