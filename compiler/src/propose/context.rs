//! Inputs of every proposer besides the nests: the node, hints, derived contractions and the
//! target.

use crate::decompose::int8::Derived;
use crate::ir::hints::Hint;
use gristmill_uop::Id;
use gristmill_uop::target::Target;

/// Inputs of a proposal besides the nests.
#[derive(Clone, Copy)]
pub struct ProposalContext<'a> {
    /// Tensor-level node that the kernel computes.
    pub node: Id,
    /// Shape that a decomposition requests.
    pub hint: Option<&'a Hint>,
    /// Integer contractions and layouts.
    pub derived: &'a Derived,
    /// Machine and flags to compile for.
    pub target: &'a Target,
    /// Maximum workgroups of a single-token contraction.
    pub max_workgroups: i64,
}

/// Nests of a kernel before the workgroup plan is applied.
#[derive(Clone, Copy)]
pub struct Uncut<'a> {
    /// Nests in execution order.
    pub nests: &'a [Id],
    /// Ranges of their output axes.
    pub axes: &'a [Id],
}
