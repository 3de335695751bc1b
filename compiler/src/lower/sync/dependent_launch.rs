//! Early launch: where a GPU's kernel waits for those before it, and from where on those behind it may start.
//!
//! From where on those behind may start is the launch's plan (`propose/launch.rs`).

use crate::lower::linear_ir::{Statement, end_of_block};
use gristmill_uop::Id;
use gristmill_uop::launch::Dependents;

/// What every workgroup does first, and what it does before it reads what may have changed, or writes.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    /// At the beginning.
    pub entry: Vec<Statement>,
    /// When it needs its predecessors to have ended.
    pub wait: Vec<Statement>,
}

impl Turn {
    /// Of a kernel that lets dependents start there.
    pub fn new(dependents: Dependents) -> Turn {
        let (wait, launch) = (Statement::DependencyWait, Statement::LaunchDependents);
        match dependents {
            Dependents::Turn => Turn { entry: vec![], wait: vec![wait, launch] },
            Dependents::Entry => Turn { entry: vec![launch], wait: vec![wait] },
            // Without a word dependents start when this one has ended.
            Dependents::End => Turn { entry: vec![], wait: vec![wait] },
        }
    }
}

/// `statements`, nests alone, with the wait: before all of them, or behind the first, where that reads nothing that the step writes if `prologue` holds. Where it does
/// not hold the second does again what did. Where `surplus` holds a workgroup has nothing to do.
pub fn wait_for_predecessors(
    statements: Vec<Statement>,
    prologue: Option<Id>,
    turn: &Turn,
    surplus: Option<Id>,
) -> Vec<Statement> {
    let wait = || turn.wait.iter().cloned().chain(surplus.map(Statement::Leave));
    let Some(prologue) = prologue else { return wait().chain(statements).collect() };
    let second = end_of_block(&statements) + 1;
    let rest = second + end_of_block(&statements[second..]) + 1;
    let mut out = statements[..second].to_vec();
    out.extend(wait());
    out.push(Statement::Unless(prologue));
    out.extend_from_slice(&statements[second..rest]);
    out.push(Statement::End);
    out.extend_from_slice(&statements[rest..]);
    out
}
