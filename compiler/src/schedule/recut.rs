//! Builds and costs kernels, first during the fusion search, then again in other shapes.

use super::candidates::Candidates;
use super::fusion::{Fusion, Reads};
use crate::apply::cost_as_proposed;
use crate::cost::{self, Cost};
use crate::custom;
use crate::decompose::int8::Derived;
use crate::ir::hints::Hint;
use crate::kernel::{Draft, DraftContext, Illegal, computed, draft, hint};
use crate::plan::{FIRST, Proposal, proposals};
use crate::plan::{StagePlan, Workgroup};
use crate::propose::{self, ProposalContext};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id};
use rustc_hash::{FxHashMap, FxHashSet};

/// A kernel built with a given set of fused nodes, or the reason why it is illegal.
pub type Cut = Result<(Draft, Cost), Illegal>;

/// Inputs of the fusion search.
#[derive(Clone, Copy)]
pub struct FusionContext<'a> {
    /// Nodes to decide on.
    pub candidates: &'a Candidates,
    /// Buffer of each candidate if it is materialised.
    pub buffers: &'a FxHashMap<Id, Id>,
    /// Name of each candidate in decision keys.
    pub sites: &'a FxHashMap<Id, String>,
    /// Requests of decompositions, by node.
    pub hints: &'a FxHashMap<Id, Hint>,
    /// Integer contractions and layouts.
    pub derived: &'a Derived,
    /// Machine and flags to compile for.
    pub target: &'a Target,
    /// Whether a launch with too few workgroups gets smaller ones.
    pub smaller: bool,
}

impl<'a> FusionContext<'a> {
    /// Context of proposals for the kernel of `root`.
    fn around(self, g: &Graph, root: Id, max_workgroups: i64) -> ProposalContext<'a> {
        let FusionContext {
            hints,
            derived,
            target,
            ..
        } = self;
        ProposalContext {
            node: computed(g, root),
            hint: hint(g, root, hints),
            derived,
            target,
            max_workgroups,
        }
    }
}

/// Shape in which to build a kernel.
#[derive(Clone, Copy, Default)]
pub struct KernelShape<'a> {
    /// Maximum workgroups of a single-token contraction.
    pub max_workgroups: i64,
    /// Workgroup plan; `None` for the first proposal, or the smaller one.
    pub plan: Option<&'a Workgroup>,
    /// Stage plan; `None` for the default rule.
    pub stages: Option<&'a StagePlan>,
}

/// Builds and costs the kernel of `root` with these candidates fused into it.
pub fn cut(g: &mut Graph, of: FusionContext, root: Id, inside: &[Id], shape: KernelShape) -> Cut {
    let inside: FxHashSet<Id> = inside.iter().copied().collect();
    let buffers: FxHashMap<Id, Id> = of
        .buffers
        .iter()
        .filter(|(n, _)| !inside.contains(n))
        .map(|(&n, &b)| (n, b))
        .collect();
    let around = DraftContext {
        buffers: &buffers,
        fused: &inside,
        order: &of.candidates.order,
        hints: of.hints,
        derived: of.derived,
        target: of.target,
        max_workgroups: shape.max_workgroups,
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

/// Seconds of a launch of this kernel alone, and the least that another shape could take. On a GPU
/// those of its linear code, with the heuristic's plans of nests and launch.
pub fn seconds_alone(g: &Graph, (draft, cost): &(Draft, Cost), target: &Target) -> (f64, f64) {
    match target.machine.kind {
        MachineKind::Cpu => (cost.seconds, cost.floor),
        MachineKind::Gpu => {
            let code = cost_as_proposed(g, &draft.nests, draft.when, target);
            // Another shape of a matrix product must be asked for: its cost was not compared with
            // measured prompts.
            let floor = match code.multiplies {
                true => code.seconds(target),
                false => code.floor(target),
            };
            (code.seconds(target), floor)
        }
    }
}

/// Kernels with decided fusion, to be rebuilt in another shape.
pub struct Recut<'a> {
    context: FusionContext<'a>,
    /// Candidates fused into each kernel, sorted, by the kernel's root.
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
        Recut {
            context,
            inside: roots
                .map(|root| (root, reads.inside(root, fusion)))
                .collect(),
        }
    }
    /// The target of the kernels.
    pub fn target(&self) -> &Target {
        self.context.target
    }
    /// Possible shapes of a kernel, its current shape first; only that one unless `all` is set.
    pub fn proposals(
        &self,
        g: &Graph,
        draft: &Draft,
        max_workgroups: i64,
        all: bool,
    ) -> Vec<Proposal<Workgroup>> {
        let around = self.context.around(g, draft.root, max_workgroups);
        let others = if all {
            propose::workgroup(g, &draft.uncut, &around, true)
        } else {
            vec![]
        };
        let named = |p: Proposal<Workgroup>| {
            (
                if p.name == FIRST {
                    "as proposed first"
                } else {
                    p.name
                },
                p.plan,
            )
        };
        proposals(draft.plan.clone(), others.into_iter().map(named))
    }
    /// Whether the kernel has too few workgroups and a smaller shape exists.
    pub fn could_be_smaller(&self, g: &Graph, draft: &Draft, max_workgroups: i64) -> bool {
        draft.call.is_none()
            && propose::smaller(
                g,
                &draft.uncut,
                &self.context.around(g, draft.root, max_workgroups),
            )
            .is_some()
    }
    /// The kernel of `root` in that shape, if it is legal.
    pub fn cut(&self, g: &mut Graph, root: Id, shape: KernelShape) -> Option<(Draft, Cost)> {
        cut(g, self.context, root, self.inside.get(&root)?, shape).ok()
    }
}
