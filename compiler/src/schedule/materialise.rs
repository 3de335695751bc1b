//! Decides which intermediates are materialised in a buffer and which are fused into the
//! kernels that read them.
//!
//! A greedy search starts with all candidates materialised. For every candidate, the kernels that
//! would read it are rebuilt with it fused, and costed; the best saving is applied and affected
//! costs are updated, until nothing saves. The search is deterministic. Whether a fused node
//! becomes an epilogue or a stage follows from its reads (`kernel`), so there are no special cases
//! here: RMSNorm before a matvec is a stage because every row reads all of it, SiLU is an epilogue
//! because every element reads only its own.
//!
//! A node fused into several kernels may later be stored by one of them and
//! read by others (`recompute_or_store`).

use super::fusion::{Fusion, Reads};
use super::recut::{self, Cut, FusionContext, KernelShape};
use crate::cost::{Cost, occupancy};
use crate::decision::{Alternative, Decider, Decision, PLACE};
use crate::kernel::{Draft, Illegal};
use gristmill_uop::{Arg, Graph, Id};
use rustc_hash::{FxHashMap, FxHashSet};

/// Minimum saving by fusion, as a fraction of a launch. Smaller cost differences are rounding, and
/// longer kernels have overheads that the cost model ignores. Not measured.
pub(super) const MIN_SAVING: f64 = 0.02;
/// An alternative (fusion, a stage plan) is not offered if it costs this many times the current
/// version. The cost model errs by half (`margins.txt`), and each offer takes planning time.
/// Not measured.
pub(super) const MAX_COST_RATIO: f64 = 4.0;
/// Fraction of a launch charged to the critical path, since parallel kernels may share a launch
/// later (`merge`); each kernel is charged the rest. With 1, fusing the first of two parallel
/// kernels saves nothing; with 0, kernels that would share a launch are fused. Not measured.
pub(super) const LAUNCH_ON_PATH: f64 = 0.5;

/// Kind of the logged decision on a node that stays materialised without asking the policy.
const KEPT: &str = "kept";

/// Result of the search: fused nodes, and a kernel for each materialised one.
pub struct Placement {
    /// Dependencies between the candidates.
    pub reads: Reads,
    /// Which nodes are fused into which kernels.
    pub fusion: Fusion,
    /// Kernel and cost of every materialised candidate, in topological order.
    pub kernels: Vec<(Draft, Cost)>,
}

/// State of the search.
pub(super) struct Search<'a> {
    pub g: &'a mut Graph,
    pub of: FusionContext<'a>,
    /// Maximum workgroups of single-token contractions.
    max_workgroups: i64,
    pub reads: Reads,
    memo: FxHashMap<(Id, Vec<Id>), Cut>,
}

impl Search<'_> {
    /// Cost of the kernel of `root`, cached by its fused nodes.
    pub fn kernel(&mut self, root: Id, fusion: &Fusion) -> Result<Cost, Illegal> {
        let inside = self.reads.inside(root, fusion);
        if let Some(known) = self.memo.get(&(root, inside.clone())) {
            return known.as_ref().map(|k| k.1).map_err(Clone::clone);
        }
        let result = recut::cut(
            self.g,
            self.of,
            root,
            &inside,
            KernelShape {
                max_workgroups: self.max_workgroups,
                ..KernelShape::default()
            },
        );
        let answer = result.as_ref().map(|k| k.1).map_err(Clone::clone);
        self.memo.insert((root, inside), result);
        answer
    }
    /// Total seconds of the kernels of `roots`; `None` if one of them is illegal.
    pub fn seconds(&mut self, roots: &[Id], fusion: &Fusion) -> Option<f64> {
        roots
            .iter()
            .map(|&root| self.kernel(root, fusion).ok().map(|cost| cost.seconds))
            .sum()
    }
    /// Whether the kernel of `root`, already costed, cannot share a launch.
    pub fn is_alone(&self, root: Id, fusion: &Fusion) -> bool {
        let kernel = self.memo.get(&(root, self.reads.inside(root, fusion)));
        kernel.is_some_and(|k| {
            k.as_ref()
                .is_ok_and(|k| k.0.when.exclusive || k.0.call.is_some())
        })
    }
    /// Whether a candidate directly reads a packed weight matrix.
    fn reads_a_matrix(&self, node: Id) -> bool {
        let mut stack: Vec<Id> = self.of.derived.sources(self.g, node).collect();
        let mut seen = FxHashSet::default();
        while let Some(n) = stack.pop() {
            if self.reads.knows(n) || !seen.insert(n) {
                continue;
            }
            if matches!(self.g[n].arg, Arg::Packed(..)) && self.g.dims(n).len() > 1 {
                return true;
            }
            stack.extend(self.of.derived.sources(self.g, n));
        }
        false
    }
}

/// Seconds of the affected kernels, with a node materialised and fused.
#[derive(Clone, Copy)]
pub(super) struct Saving {
    with: f64,
    without: f64,
}

impl Saving {
    fn gain(self) -> f64 {
        self.with - self.without
    }
    /// The decision between the two.
    pub fn decision(self, site: String) -> Decision {
        PLACE.at(site, [self.with, self.without])
    }
    /// The decision as a log entry, for a node that stays materialised.
    fn kept(self, site: String) -> Decision {
        Decision {
            kind: KEPT,
            ..self.decision(site)
        }
    }
}

impl Search<'_> {
    /// Whether `node` must be materialised at any cost.
    pub fn is_fixed(&self, node: Id) -> bool {
        self.of.candidates.forced.contains(&node) || self.of.hints.contains_key(&node)
    }
    /// Repeatedly fuses the node with the best saving. Returns nodes that the
    /// policy refused to fuse.
    fn fuse_by_cost(&mut self, fusion: &mut Fusion, decider: &mut Decider) -> FxHashSet<Id> {
        // Savings of earlier rounds stay valid unless a kernel that they involve has changed.
        let mut savings: FxHashMap<Id, Option<Saving>> = FxHashMap::default();
        let mut refused: FxHashSet<Id> = FxHashSet::default();
        while let Some((node, saving)) = self.best(fusion, &refused, &mut savings) {
            if decider.choose(saving.decision(self.site(node))) != 1 {
                refused.insert(node);
                continue;
            }
            let mut touched: FxHashSet<Id> = self.reads.readers(node, fusion).into_iter().collect();
            touched.insert(node);
            fusion.everywhere.insert(node);
            // Savings of all nodes read by a touched kernel are recomputed.
            let is_stale = |n: &Id| {
                touched.contains(n)
                    || self
                        .reads
                        .readers(*n, fusion)
                        .iter()
                        .any(|r| touched.contains(r))
            };
            savings.retain(|n, _| !is_stale(n));
        }
        refused
    }
    /// The site of a decision on `node`.
    pub fn site(&self, node: Id) -> String {
        self.of.sites[&node].clone()
    }
    /// Adds the launch's critical-path share to the saving. Removing a kernel saves it only if that
    /// shortens the path of length `depth`.
    fn on_path(&self, node: Id, saving: Saving, fusion: &mut Fusion, depth: usize) -> Saving {
        fusion.everywhere.insert(node);
        let shorter = depth - self.reads.depth(fusion);
        fusion.everywhere.remove(&node);
        let launch = self.of.target.machine.launch;
        Saving {
            without: saving.without + launch * LAUNCH_ON_PATH * (1.0 - shorter as f64),
            ..saving
        }
    }
    /// The node with the best saving above the minimum, if any.
    fn best(
        &mut self,
        fusion: &mut Fusion,
        refused: &FxHashSet<Id>,
        savings: &mut FxHashMap<Id, Option<Saving>>,
    ) -> Option<(Id, Saving)> {
        let (depth, launch) = (self.reads.depth(fusion), self.of.target.machine.launch);
        let mut best: Option<(Id, Saving)> = None;
        for &node in &self.of.candidates.nodes {
            if self.is_fixed(node) || fusion.everywhere.contains(&node) || refused.contains(&node) {
                continue;
            }
            let known = *savings
                .entry(node)
                .or_insert_with(|| self.saving(node, fusion));
            // The path share never increases a saving, so the value without it is an upper bound.
            let may_be =
                |saving: &Saving| saving.gain() > best.map_or(launch * MIN_SAVING, |b| b.1.gain());
            let Some(saving) = known.filter(may_be) else {
                continue;
            };
            let new = self.on_path(node, saving, fusion, depth);
            if new.gain() > launch * MIN_SAVING && best.is_none_or(|b| new.gain() > b.1.gain()) {
                best = Some((node, new));
            }
        }
        best
    }
    /// Offers to fuse the candidates that are cheaper materialised, for policies that ignore cost.
    /// A node that was refused, or is several times as expensive fused, is only logged.
    fn offer_kept(&mut self, fusion: &mut Fusion, refused: &FxHashSet<Id>, decider: &mut Decider) {
        let launch = self.of.target.machine.launch;
        for &node in &self.of.candidates.nodes {
            if self.is_fixed(node) || fusion.everywhere.contains(&node) {
                continue;
            }
            let site = self.site(node);
            let Some(saving) = self.saving(node, fusion) else {
                let options = vec![Alternative::named("buffer (fusing is illegal)", 0.0)];
                decider.log.push(Decision::new(KEPT, site, options));
                continue;
            };
            let depth = self.reads.depth(fusion);
            let new = self.on_path(node, saving, fusion, depth);
            if refused.contains(&node)
                || !self.of.target.fusion
                || new.without > MAX_COST_RATIO * new.with
            {
                decider.log.push(new.kept(site));
                continue;
            }
            let margin = launch * MIN_SAVING / new.with;
            if decider.choose(Decision {
                margin,
                ..new.decision(site)
            }) == 1
            {
                fusion.everywhere.insert(node);
            }
        }
    }
    /// The kernels of all materialised candidates.
    fn kernels(&mut self, fusion: &Fusion) -> Vec<(Draft, Cost)> {
        let mut kernels = Vec::new();
        for &root in self
            .of
            .candidates
            .nodes
            .iter()
            .filter(|n| !fusion.everywhere.contains(n))
        {
            // A kernel that was legal when costed is legal again.
            if let Err(illegal) = self.kernel(root, fusion) {
                unreachable!(
                    "a kernel that was chosen cannot be cut: {illegal:?}: {:?}",
                    self.g[root]
                );
            }
            let inside = self.reads.inside(root, fusion);
            if let Some(Ok(kernel)) = self.memo.get(&(root, inside)) {
                kernels.push(kernel.clone());
            }
        }
        kernels
    }
}

/// Runs the greedy fusion search over the candidates of `context`.
pub fn materialise(g: &mut Graph, context: FusionContext, decider: &mut Decider) -> Placement {
    let reads = Reads::new(g, context.candidates, context.derived);
    let mut s = Search {
        g,
        of: context,
        max_workgroups: occupancy::resident_workgroups(context.target),
        reads,
        memo: FxHashMap::default(),
    };
    let wanted = asked_for(&mut s);
    let (mut fusion, mut refused) = (wanted.clone(), FxHashSet::default());
    if context.target.fusion {
        refused = s.fuse_by_cost(&mut fusion, decider);
        s.exchange(&mut fusion, &wanted, &mut refused, decider);
        s.fuse_on_path(&mut fusion, decider);
    }
    s.offer_kept(&mut fusion, &refused, decider);
    s.reuse(&mut fusion, decider);
    let kernels = s.kernels(&fusion);
    Placement {
        reads: s.reads,
        fusion,
        kernels,
    }
}

/// The fusion that hints request, where it is legal.
fn asked_for(s: &mut Search) -> Fusion {
    let mut fusion = Fusion::default();
    for &node in &s.of.candidates.nodes {
        let Some(hint) = s.of.hints.get(&node) else {
            continue;
        };
        let mut more = fusion.clone();
        more.everywhere
            .extend(hint.inside.iter().copied().filter(|&n| s.reads.knows(n)));
        if s.kernel(node, &more).is_ok() {
            fusion = more;
        }
    }
    fusion
}

/// Whether the target's flags allow fusing `node` into the kernel of `root`, given both kernels'
/// products with weights: independent ones are siblings.
pub(super) fn may_meet(s: &Search, node: Id, root: Id, fusion: &Fusion) -> bool {
    if s.of.target.siblings {
        return true;
    }
    let with = |root: Id| {
        std::iter::once(root)
            .chain(s.reads.inside(root, fusion))
            .collect::<Vec<Id>>()
    };
    let new = with(node);
    let products = |all: &[Id]| {
        all.iter()
            .copied()
            .filter(|&n| s.reads_a_matrix(n))
            .collect::<Vec<Id>>()
    };
    let there: Vec<Id> = with(root)
        .into_iter()
        .filter(|n| !new.contains(n))
        .collect();
    let (new, there) = (products(&new), products(&there));
    new.iter()
        .all(|&a| there.iter().all(|&b| s.reads.depends(b, a)))
}

impl Search<'_> {
    /// Seconds of the affected kernels, with `node` materialised and fused; `None` if
    /// it cannot be fused.
    pub fn saving(&mut self, node: Id, fusion: &Fusion) -> Option<Saving> {
        let readers = self.reads.readers(node, fusion);
        let with = self.kernel(node, fusion).ok()?.seconds + self.seconds(&readers, fusion)?;
        let mut fusion = fusion.clone();
        fusion.everywhere.insert(node);
        let may_meet = readers.iter().all(|&r| may_meet(self, node, r, &fusion));
        let without = may_meet
            .then(|| self.seconds(&readers, &fusion))
            .flatten()?;
        Some(Saving { with, without })
    }
}
