//! Programmatic dependent launch (PDL): where a GPU kernel waits for its predecessors, and where it
//! lets dependents start.
//!
//! The launch plan chooses where dependents may start (`propose/launch.rs`).

use crate::lower::linear_ir::{Statement, end_of_block};
use gristmill_uop::Id;
use gristmill_uop::launch::Dependents;

/// Statements for dependent launch, at the kernel's entry and at the wait.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    /// Statements at the kernel's entry.
    pub entry: Vec<Statement>,
    /// Statements where the predecessors must have ended.
    pub wait: Vec<Statement>,
}

impl Turn {
    /// Returns the statements for a kernel that lets dependents start at this point.
    pub fn new(dependents: Dependents) -> Turn {
        let (wait, launch) = (Statement::DependencyWait, Statement::LaunchDependents);
        match dependents {
            Dependents::Turn => Turn {
                entry: vec![],
                wait: vec![wait, launch],
            },
            Dependents::Entry => Turn {
                entry: vec![launch],
                wait: vec![wait],
            },
            // Without an explicit trigger, dependents start when this kernel has ended.
            Dependents::End => Turn {
                entry: vec![],
                wait: vec![wait],
            },
        }
    }
}

/// Inserts the grid-dependency wait: before all nests, or, with a `prologue`, after the first.
///
/// The first nest reads nothing that the step writes if the condition `prologue` holds;
/// otherwise the second nest repeats it after the wait. A workgroup for which `surplus` holds
/// exits after the wait.
pub fn wait_for_predecessors(
    statements: Vec<Statement>,
    prologue: Option<Id>,
    turn: &Turn,
    surplus: Option<Id>,
) -> Vec<Statement> {
    let wait = || {
        turn.wait
            .iter()
            .cloned()
            .chain(surplus.map(Statement::Leave))
    };
    let Some(prologue) = prologue else {
        return wait().chain(statements).collect();
    };
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
