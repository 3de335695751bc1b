//! Kernels of a placement, cut and priced: for the first time while places are looked for, and again in other shapes.

use super::candidates::Candidates;
use super::fusion::{Fusion, Reads};
use crate::cost::{self, Cost};
use crate::custom;
use crate::decompose::int8::Derived;
use crate::ir::hints::Hint;
use crate::kernel::{Draft, Illegal, Surroundings, computed, draft, hint};
use crate::plan::{FIRST, Proposal, proposals};
use crate::plan::{StagePlan, Workgroup};
use crate::propose::{self, ProposalContext};
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id};
use rustc_hash::{FxHashMap, FxHashSet};

/// A kernel cut with a given set of fused nodes inside, or why it cannot be.
pub type Cut = Result<(Draft, Cost), Illegal>;

/// What is to be decided, and what the decision follows from.
#[derive(Clone, Copy)]
pub struct FusionContext<'a> {
    /// The nodes to decide on.
    pub candidates: &'a Candidates,
    /// The buffer that each of them would have.
    pub buffers: &'a FxHashMap<Id, Id>,
    /// What each of them is called in the keys of decisions.
    pub sites: &'a FxHashMap<Id, String>,
    /// What decompositions ask for.
    pub hints: &'a FxHashMap<Id, Hint>,
    /// Integer contractions and layouts.
    pub derived: &'a Derived,
    /// For whom.
    pub target: &'a Target,
    /// Are workgroups that are few made smaller?
    pub smaller: bool,
}

impl<'a> FusionContext<'a> {
    /// What proposals for the kernel of `root` follow from.
    fn around(self, g: &Graph, root: Id, room: i64) -> ProposalContext<'a> {
        let FusionContext { hints, derived, target, .. } = self;
        ProposalContext { node: computed(g, root), hint: hint(g, root, hints), derived, target, room }
    }
}

/// What a kernel's workgroups are cut by.
#[derive(Clone, Copy, Default)]
pub struct KernelShape<'a> {
    /// How many a contraction of one token should have at most.
    pub room: i64,
    /// The plan; without one, what is proposed first, or what is smaller.
    pub plan: Option<&'a Workgroup>,
    /// Which fused nodes have stages; without it, as the rule says.
    pub stages: Option<&'a StagePlan>,
}

/// The kernel of `root` with these candidates inside, cut and priced.
pub fn cut(g: &mut Graph, of: FusionContext, root: Id, inside: &[Id], shape: KernelShape) -> Cut {
    let inside: FxHashSet<Id> = inside.iter().copied().collect();
    let buffers: FxHashMap<Id, Id> =
        of.buffers.iter().filter(|(n, _)| !inside.contains(n)).map(|(&n, &b)| (n, b)).collect();
    let around = Surroundings {
        buffers: &buffers,
        fused: &inside,
        order: &of.candidates.order,
        hints: of.hints,
        derived: of.derived,
        target: of.target,
        room: shape.room,
        smaller: of.smaller,
        plan: shape.plan,
        stages: shape.stages,
    };
    draft(g, root, &around).map(|d| {
        let cost = match d.call {
            Some(call) => custom::cost(g, call, d.nests[0], of.target),
            None => cost::kernel(g, &d.nests, of.target),
        };
        (d, cost)
    })
}

/// A placement's kernels, to be cut again in another shape.
pub struct Recut<'a> {
    context: FusionContext<'a>,
    /// Candidates computed inside each kernel, sorted, by its root.
    inside: FxHashMap<Id, Vec<Id>>,
}

impl<'a> Recut<'a> {
    /// The kernels of these roots.
    pub fn new(
        context: FusionContext<'a>,
        roots: impl Iterator<Item = Id>,
        reads: &Reads,
        fusion: &Fusion,
    ) -> Recut<'a> {
        Recut { context, inside: roots.map(|root| (root, reads.inside(root, fusion))).collect() }
    }
    /// For whom.
    pub fn target(&self) -> &Target {
        self.context.target
    }
    /// The shapes that a kernel could have, the one that it has first, and that alone unless `all` are wanted.
    pub fn proposals(&self, g: &Graph, draft: &Draft, room: i64, all: bool) -> Vec<Proposal<Workgroup>> {
        let around = self.context.around(g, draft.root, room);
        let others = if all { propose::workgroup(g, &draft.uncut, &around, true) } else { vec![] };
        let named = |p: Proposal<Workgroup>| (if p.name == FIRST { "as proposed first" } else { p.name }, p.plan);
        proposals(draft.plan.clone(), others.into_iter().map(named))
    }
    /// Has the kernel few workgroups, that could be smaller?
    pub fn could_be_smaller(&self, g: &Graph, draft: &Draft, room: i64) -> bool {
        draft.call.is_none() && propose::smaller(g, &draft.uncut, &self.context.around(g, draft.root, room)).is_some()
    }
    /// The kernel of `root` in that shape, if it is legal.
    pub fn cut(&self, g: &mut Graph, root: Id, shape: KernelShape) -> Option<(Draft, Cost)> {
        cut(g, self.context, root, self.inside.get(&root)?, shape).ok()
    }
}
