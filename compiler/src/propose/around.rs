//! What surrounds the nests that plans are proposed for.

use crate::decompose::int8::Derived;
use crate::ir::hints::Hint;
use gristmill_uop::Id;
use gristmill_uop::target::Target;

/// What a plan follows from, besides the nests.
#[derive(Clone, Copy)]
pub struct ProposalContext<'a> {
    /// The tensor-level node that is computed.
    pub node: Id,
    /// The shape that a decomposition asks for.
    pub hint: Option<&'a Hint>,
    /// Integer contractions and layouts.
    pub derived: &'a Derived,
    /// For whom.
    pub target: &'a Target,
    /// Workgroups that a contraction of one token should have at most.
    pub room: i64,
}

/// The nests of a kernel before they are cut.
#[derive(Clone, Copy)]
pub struct Uncut<'a> {
    /// The nests.
    pub nests: &'a [Id],
    /// The axes of their output, by their ranges.
    pub axes: &'a [Id],
}
