//! Materialise, the heart of fusion: which intermediates get a buffer, and which are computed inside the kernels that read them.
//!
//! Greedy from all-buffers: for every candidate, the kernels that would read it are cut again without its buffer and priced; the best
//! saving is taken first, everything re-priced, until nothing saves. Deterministic. Whether a fused node becomes an epilogue or a stage
//! follows from how it is read (`kernel`), so nothing here is a special case: RMSNorm before a matvec is a stage because every
//! row reads all of it, SiLU an epilogue because every element reads its own.
//!
//! Of what is fused into several kernels, some may read what another has stored: that is decided behind it (`reuse`).

use super::fusion::{Fusion, Reads};
use super::recut::{self, Cut, FusionContext, KernelShape};
use crate::cost::{Cost, occupancy};
use crate::decision::{Alternative, Decider, Decision, PLACE};
use crate::kernel::{Draft, Illegal};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id};
use rustc_hash::{FxHashMap, FxHashSet};

/// The part of a launch's price that fusing a node must save. Not measured: below it prices differ by rounding, and a kernel that is longer has more that the price does not see.
pub(super) const LEAST_SAVING: f64 = 0.02;
/// Fusing is not even offered where it takes so many times as long as a buffer: prices are wrong by half (`WORKGROUP_MARGIN`), not by as much, and each offer takes time to plan. Not
/// measured.
pub(super) const MOST_TIMES_DEARER: f64 = 4.0;
/// Kernels without a path between them share a launch later (`merge`), so a launch is mostly the price of one more step on the longest path;
/// the rest is charged to every kernel, so that one of two parallel kernels may go before the path gets shorter. The share was not measured: with all of it on the path
/// nothing is saved by the first of two, with none parallel kernels are fused that would have shared a launch.
pub(super) const LAUNCH_ON_PATH: f64 = 0.5;

/// The kind of decision of what is kept in a buffer without anybody being asked.
const KEPT: &str = "kept";

/// The choice made: what is fused, and the kernels of the others.
pub struct Placement {
    /// Who reads whom.
    pub reads: Reads,
    /// What is computed inside which kernels.
    pub fusion: Fusion,
    /// One kernel for every candidate with a buffer that is read, in topological order, with its price.
    pub kernels: Vec<(Draft, Cost)>,
}

/// What places are looked for with.
pub(super) struct Search<'a> {
    pub g: &'a mut Graph,
    pub of: FusionContext<'a>,
    /// Workgroups that contractions of one token should have at most.
    room: i64,
    pub reads: Reads,
    memo: FxHashMap<(Id, Vec<Id>), Cut>,
}

impl Search<'_> {
    /// The price of the kernel of `root`.
    pub fn kernel(&mut self, root: Id, fusion: &Fusion) -> Result<Cost, Illegal> {
        let inside = self.reads.inside(root, fusion);
        if let Some(known) = self.memo.get(&(root, inside.clone())) {
            return known.as_ref().map(|k| k.1).map_err(Clone::clone);
        }
        let result =
            recut::cut(self.g, self.of, root, &inside, KernelShape { room: self.room, ..KernelShape::default() });
        let answer = result.as_ref().map(|k| k.1).map_err(Clone::clone);
        self.memo.insert((root, inside), result);
        answer
    }
    /// Seconds of the kernels of `roots`, together; `None` if one of them cannot be cut.
    pub fn seconds(&mut self, roots: &[Id], fusion: &Fusion) -> Option<f64> {
        roots.iter().map(|&root| self.kernel(root, fusion).ok().map(|cost| cost.seconds)).sum()
    }
    /// Has the kernel of `root`, which has a price, its launch to itself?
    pub fn is_alone(&self, root: Id, fusion: &Fusion) -> bool {
        let kernel = self.memo.get(&(root, self.reads.inside(root, fusion)));
        kernel.is_some_and(|k| k.as_ref().is_ok_and(|k| k.0.when.exclusive || k.0.call.is_some()))
    }
    /// Does a candidate read a matrix of weights, itself and not through others?
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

/// What a kernel's buffer costs and what would be without it: seconds of the kernels concerned.
#[derive(Clone, Copy)]
pub(super) struct Saving {
    with: f64,
    without: f64,
}

impl Saving {
    fn gain(self) -> f64 {
        self.with - self.without
    }
    /// The decision on it.
    pub fn decision(self, site: String) -> Decision {
        PLACE.at(site, [self.with, self.without])
    }
    /// The same, which nobody is asked for.
    fn kept(self, site: String) -> Decision {
        Decision { kind: KEPT, ..self.decision(site) }
    }
}

impl Search<'_> {
    /// Has `node` a buffer whatever it costs?
    pub fn is_fixed(&self, node: Id) -> bool {
        self.of.candidates.forced.contains(&node) || self.of.hints.contains_key(&node)
    }
    /// Fuses what saves most, until nothing saves; gives what a policy would not have fused.
    fn fuse_by_cost(&mut self, fusion: &mut Fusion, decider: &mut Decider) -> FxHashSet<Id> {
        // Savings of earlier rounds stay valid unless a kernel they touch has changed.
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
            // Everything read by a touched kernel is priced anew.
            let is_stale =
                |n: &Id| touched.contains(n) || self.reads.readers(*n, fusion).iter().any(|r| touched.contains(r));
            savings.retain(|n, _| !is_stale(n));
        }
        refused
    }
    /// Where a decision on `node` is made, as its key says.
    pub fn site(&self, node: Id) -> String {
        self.of.sites[&node].clone()
    }
    /// With what a launch counts for, of `depth` on the longest path: the kernel that goes takes one with it only if it is on that path.
    fn on_path(&self, node: Id, saving: Saving, fusion: &mut Fusion, depth: usize) -> Saving {
        fusion.everywhere.insert(node);
        let shorter = depth - self.reads.depth(fusion);
        fusion.everywhere.remove(&node);
        let launch = self.of.target.machine.launch;
        Saving { without: saving.without + launch * LAUNCH_ON_PATH * (1.0 - shorter as f64), ..saving }
    }
    /// The node whose fusion saves most, if one does.
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
            let known = *savings.entry(node).or_insert_with(|| self.saving(node, fusion));
            // A shorter path only takes back what a launch counts for besides.
            let may_be = |saving: &Saving| saving.gain() > best.map_or(launch * LEAST_SAVING, |b| b.1.gain());
            let Some(saving) = known.filter(may_be) else { continue };
            let new = self.on_path(node, saving, fusion, depth);
            if new.gain() > launch * LEAST_SAVING && best.is_none_or(|b| new.gain() > b.1.gain()) {
                best = Some((node, new));
            }
        }
        best
    }
    /// Candidates that keep their buffers, since that is cheaper: another policy than the price's may fuse them as well. What it has refused already, and what
    /// would take many times as long, is only told.
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
            if refused.contains(&node) || !self.of.target.fusion || new.without > MOST_TIMES_DEARER * new.with {
                decider.log.push(new.kept(site));
                continue;
            }
            let margin = launch * LEAST_SAVING / new.with;
            if decider.choose(Decision { margin, ..new.decision(site) }) == 1 {
                fusion.everywhere.insert(node);
            }
        }
    }
    /// The kernels of all candidates that are not fused.
    fn kernels(&mut self, fusion: &Fusion) -> Vec<(Draft, Cost)> {
        let mut kernels = Vec::new();
        for &root in self.of.candidates.nodes.iter().filter(|n| !fusion.everywhere.contains(n)) {
            // Stages that are legal in the kernels that were priced are legal in the same kernels again.
            if let Err(illegal) = self.kernel(root, fusion) {
                unreachable!("a kernel that was chosen cannot be cut: {illegal:?}: {:?}", self.g[root]);
            }
            let inside = self.reads.inside(root, fusion);
            if let Some(Ok(kernel)) = self.memo.get(&(root, inside)) {
                kernels.push(kernel.clone());
            }
        }
        kernels
    }
}

/// Runs the search.
pub fn materialise(g: &mut Graph, context: FusionContext, decider: &mut Decider) -> Placement {
    let reads = Reads::new(g, context.candidates, context.derived);
    let mut s = Search { g, of: context, room: occupancy::room(context.target), reads, memo: FxHashMap::default() };
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
    Placement { reads: s.reads, fusion, kernels }
}

/// What derivations want inside their kernels, where that is legal.
fn asked_for(s: &mut Search) -> Fusion {
    let mut fusion = Fusion::default();
    for &node in &s.of.candidates.nodes {
        let Some(hint) = s.of.hints.get(&node) else { continue };
        let mut more = fusion.clone();
        more.everywhere.extend(hint.inside.iter().copied().filter(|&n| s.reads.knows(n)));
        if s.kernel(node, &more).is_ok() {
            fusion = more;
        }
    }
    fusion
}

/// May the products that come into `root`'s kernel with `node` be beside those that are there? Where flags forbid it, those that read one another are chains, the others siblings.
pub(super) fn may_meet(s: &Search, node: Id, root: Id, fusion: &Fusion) -> bool {
    let Target { siblings, chains, .. } = *s.of.target;
    if siblings && chains {
        return true;
    }
    let with = |root: Id| std::iter::once(root).chain(s.reads.inside(root, fusion)).collect::<Vec<Id>>();
    let new = with(node);
    let products = |all: &[Id]| all.iter().copied().filter(|&n| s.reads_a_matrix(n)).collect::<Vec<Id>>();
    let there: Vec<Id> = with(root).into_iter().filter(|n| !new.contains(n)).collect();
    let (new, there) = (products(&new), products(&there));
    let allowed = |a: Id, b: Id| if s.reads.depends(b, a) { chains } else { siblings };
    new.iter().all(|&a| there.iter().all(|&b| allowed(a, b)))
}

impl Search<'_> {
    /// Seconds of the kernels concerned, with a buffer for `node` and without; `None` if it cannot be fused.
    pub fn saving(&mut self, node: Id, fusion: &Fusion) -> Option<Saving> {
        let readers = self.reads.readers(node, fusion);
        let with = self.kernel(node, fusion).ok()?.seconds + self.seconds(&readers, fusion)?;
        let mut fusion = fusion.clone();
        fusion.everywhere.insert(node);
        let may_meet = readers.iter().all(|&r| may_meet(self, node, r, &fusion));
        let without = may_meet.then(|| self.seconds(&readers, &fusion)).flatten()?;
        Some(Saving { with, without })
    }
}
