//! Materialise, the heart of fusion: which intermediates get a buffer, and which are computed inside the kernels that read them.
//!
//! Greedy from all-buffers: for every candidate, the kernels that would read it are cut again without its buffer and priced; the best
//! saving is taken first, everything re-priced, until nothing saves. Deterministic. Whether a fused node becomes an epilogue or a stage
//! follows from how it is read (`kernel`), so nothing here is a special case: RMSNorm before a matvec is a stage because every
//! row reads all of it, SiLU an epilogue because every element reads its own.

use super::candidates::Candidates;
use super::kernel::{Draft, Illegal, Surroundings, computed, draft};
use crate::custom;
use crate::decision::{Alternative, Decider, Decision};
use crate::decompose::int8::Derived;
use crate::price::{self, Price, occupancy};
use crate::request::Hint;
use crate::tile::propose::{self, Around};
use crate::tile::{Proposal, StagePlan, Workgroup};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id};
use rustc_hash::{FxHashMap, FxHashSet};

/// The part of a launch's price that fusing a node must save. Not measured: below it prices differ by rounding, and a kernel that is longer has more that the price does not see.
const LEAST_SAVING: f64 = 0.02;
/// Fusing is not even offered where it takes so many times as long as a buffer: prices are wrong by half (`WORKGROUP_MARGIN`), not by as much, and each offer takes time to plan. Not
/// measured.
const MOST_TIMES_DEARER: f64 = 4.0;
/// Kernels without a path between them share a launch later (`merge`), so a launch is mostly the price of one more step on the longest path;
/// the rest is charged to every kernel, so that one of two parallel kernels may go before the path gets shorter. The share was not measured: with all of it on the path
/// nothing is saved by the first of two, with none parallel kernels are fused that would have shared a launch.
const LAUNCH_ON_PATH: f64 = 0.5;

/// The choice made: which nodes are fused, and the kernels of the others.
pub struct Placement {
    /// Candidates without a buffer.
    pub fused: FxHashSet<Id>,
    /// One kernel for every other candidate that is read, in topological order, with its price.
    pub kernels: Vec<(Draft, Price)>,
}

/// A kernel cut with a given set of fused nodes inside, or why it cannot be.
type Cut = Result<(Draft, Price), Illegal>;

/// What is to be decided, and what the decision follows from.
#[derive(Clone, Copy)]
pub struct Problem<'a> {
    /// The nodes to decide on.
    pub candidates: &'a Candidates,
    /// The buffer that each of them would have.
    pub buffers: &'a FxHashMap<Id, Id>,
    /// What decompositions ask for.
    pub hints: &'a FxHashMap<Id, Hint>,
    /// Integer contractions and layouts.
    pub derived: &'a Derived,
    /// For whom.
    pub target: &'a Target,
}

struct Search<'a> {
    g: &'a mut Graph,
    of: Problem<'a>,
    /// Workgroups that contractions of one token should have at most.
    room: i64,
    /// Candidates read directly (through nodes that are none) by each candidate.
    reads: FxHashMap<Id, Vec<Id>>,
    /// The same by their places among the candidates.
    below: Vec<Vec<usize>>,
    memo: FxHashMap<(Id, Vec<Id>), Cut>,
}

impl<'a> Search<'a> {
    fn new(g: &'a mut Graph, of: Problem<'a>, room: i64) -> Search<'a> {
        let reads = reads(g, of.candidates, of.derived);
        let nodes = &of.candidates.nodes;
        let place: FxHashMap<Id, usize> = nodes.iter().enumerate().map(|(i, &n)| (n, i)).collect();
        let below = nodes.iter().map(|n| reads[n].iter().map(|r| place[r]).collect()).collect();
        Search { g, of, room, reads, below, memo: FxHashMap::default() }
    }
}

impl Search<'_> {
    fn fused_into(&self, root: Id, fused: &FxHashSet<Id>) -> Vec<Id> {
        fused_into(&self.reads, root, fused)
    }
    fn kernel(&mut self, root: Id, fused: &FxHashSet<Id>) -> Result<Price, Illegal> {
        let inside = self.fused_into(root, fused);
        if let Some(known) = self.memo.get(&(root, inside.clone())) {
            return known.as_ref().map(|k| k.1).map_err(Clone::clone);
        }
        let result = cut(self.g, self.of, root, &inside, Shape { room: self.room, ..Shape::default() });
        let answer = result.as_ref().map(|k| k.1).map_err(Clone::clone);
        self.memo.insert((root, inside), result);
        answer
    }
    /// Kernels on the longest path.
    fn depth(&self, fused: &FxHashSet<Id>) -> usize {
        let mut levels: Vec<usize> = Vec::with_capacity(self.below.len());
        for (node, below) in self.of.candidates.nodes.iter().zip(&self.below) {
            let level = below.iter().map(|&i| levels[i]).max().unwrap_or(0);
            levels.push(level + usize::from(!fused.contains(node)));
        }
        levels.into_iter().max().unwrap_or(0)
    }
    /// Does a candidate read a matrix of weights, itself and not through others?
    fn reads_a_matrix(&self, node: Id) -> bool {
        let mut stack: Vec<Id> = self.of.derived.sources(self.g, node).collect();
        let mut seen = FxHashSet::default();
        while let Some(n) = stack.pop() {
            if self.reads.contains_key(&n) || !seen.insert(n) {
                continue;
            }
            if matches!(self.g[n].arg, Arg::Packed(..)) && self.g.dims(n).len() > 1 {
                return true;
            }
            stack.extend(self.of.derived.sources(self.g, n));
        }
        false
    }
    /// Does the candidate `reader` read `read`, directly or through others?
    fn depends(&self, reader: Id, read: Id) -> bool {
        self.reads[&reader].iter().any(|&r| r == read || self.depends(r, read))
    }
    /// Materialised nodes whose kernels read `node`, directly or through fused ones.
    fn readers(&self, node: Id, fused: &FxHashSet<Id>) -> Vec<Id> {
        let mut out = Vec::new();
        let mut seen = FxHashSet::default();
        let mut stack = vec![node];
        while let Some(n) = stack.pop() {
            for &c in &self.of.candidates.nodes {
                if self.reads[&c].contains(&n) && seen.insert(c) {
                    if fused.contains(&c) { stack.push(c) } else { out.push(c) }
                }
            }
        }
        out
    }
}

/// What a kernel's buffer costs and what would be without it: seconds of the kernels concerned.
#[derive(Clone, Copy)]
struct Saving {
    with: f64,
    without: f64,
}

impl Saving {
    fn gain(self) -> f64 {
        self.with - self.without
    }
    fn options(self) -> Vec<Alternative> {
        vec![Alternative::named("buffer", self.with), Alternative::named("fuse", self.without)]
    }
}

impl Search<'_> {
    /// Has `node` a buffer whatever it costs?
    fn is_fixed(&self, node: Id) -> bool {
        self.of.candidates.forced.contains(&node) || self.of.hints.contains_key(&node)
    }
    /// Fuses what saves most, until nothing saves; gives what a policy would not have fused.
    fn fuse_by_price(&mut self, fused: &mut FxHashSet<Id>, decider: &mut Decider) -> FxHashSet<Id> {
        // Savings of earlier rounds stay valid unless a kernel they touch has changed.
        let mut savings: FxHashMap<Id, Option<Saving>> = FxHashMap::default();
        let mut refused: FxHashSet<Id> = FxHashSet::default();
        while let Some((node, saving)) = self.best(fused, &refused, &mut savings) {
            if decider.choose(Decision::new("place", self.site(node), saving.options())) != 1 {
                refused.insert(node);
                continue;
            }
            let mut touched: FxHashSet<Id> = self.readers(node, fused).into_iter().collect();
            touched.insert(node);
            fused.insert(node);
            // Everything read by a touched kernel is priced anew.
            let is_stale = |n: &Id| touched.contains(n) || self.readers(*n, fused).iter().any(|r| touched.contains(r));
            savings.retain(|n, _| !is_stale(n));
        }
        refused
    }
    fn site(&self, node: Id) -> String {
        format!("{:?} {}", self.g[node].op, self.g.show_dims(&self.g.shape(node)))
    }
    /// With what a launch counts for, of `depth` on the longest path: the kernel that goes takes one with it only if it is on that path.
    fn on_path(&self, node: Id, saving: Saving, fused: &mut FxHashSet<Id>, depth: usize) -> Saving {
        fused.insert(node);
        let shorter = depth - self.depth(fused);
        fused.remove(&node);
        let launch = self.of.target.machine.launch;
        Saving { without: saving.without + launch * LAUNCH_ON_PATH * (1.0 - shorter as f64), ..saving }
    }
    /// The node whose fusion saves most, if one does.
    fn best(
        &mut self,
        fused: &mut FxHashSet<Id>,
        refused: &FxHashSet<Id>,
        savings: &mut FxHashMap<Id, Option<Saving>>,
    ) -> Option<(Id, Saving)> {
        let (depth, launch) = (self.depth(fused), self.of.target.machine.launch);
        let mut best: Option<(Id, Saving)> = None;
        for &node in &self.of.candidates.nodes {
            if self.is_fixed(node) || fused.contains(&node) || refused.contains(&node) {
                continue;
            }
            let known = *savings.entry(node).or_insert_with(|| saving(self, node, fused));
            // A shorter path only takes back what a launch counts for besides.
            let may_be = |saving: &Saving| saving.gain() > best.map_or(launch * LEAST_SAVING, |b| b.1.gain());
            let Some(saving) = known.filter(may_be) else { continue };
            let new = self.on_path(node, saving, fused, depth);
            if new.gain() > launch * LEAST_SAVING && best.is_none_or(|b| new.gain() > b.1.gain()) {
                best = Some((node, new));
            }
        }
        best
    }
    /// Candidates that keep their buffers, since that is cheaper: another policy than the price's may fuse them as well. What it has refused already, and what
    /// would take many times as long, is only told.
    fn offer_kept(&mut self, fused: &mut FxHashSet<Id>, refused: &FxHashSet<Id>, decider: &mut Decider) {
        let launch = self.of.target.machine.launch;
        for &node in &self.of.candidates.nodes {
            if self.is_fixed(node) || fused.contains(&node) {
                continue;
            }
            let site = self.site(node);
            let Some(saving) = saving(self, node, fused) else {
                let options = vec![Alternative::named("buffer (fusing is illegal)", 0.0)];
                decider.log.push(Decision::new("kept", site, options));
                continue;
            };
            let depth = self.depth(fused);
            let new = self.on_path(node, saving, fused, depth);
            if refused.contains(&node) || !self.of.target.fusion || new.without > MOST_TIMES_DEARER * new.with {
                decider.log.push(Decision::new("kept", site, new.options()));
                continue;
            }
            let margin = launch * LEAST_SAVING / new.with;
            if decider.choose(Decision { margin, ..Decision::new("place", site, new.options()) }) == 1 {
                fused.insert(node);
            }
        }
    }
    /// The kernels of all candidates that are not fused.
    fn kernels(&mut self, fused: &FxHashSet<Id>) -> Vec<(Draft, Price)> {
        let mut kernels = Vec::new();
        for &root in self.of.candidates.nodes.iter().filter(|n| !fused.contains(n)) {
            // Stages that are legal in the kernels that were priced are legal in the same kernels again.
            if let Err(illegal) = self.kernel(root, fused) {
                unreachable!("a kernel that was chosen cannot be cut: {illegal:?}: {:?}", self.g[root]);
            }
            let inside = self.fused_into(root, fused);
            if let Some(Ok(kernel)) = self.memo.get(&(root, inside)) {
                kernels.push(kernel.clone());
            }
        }
        kernels
    }
}

/// Direct reads between candidates.
pub fn reads(g: &Graph, candidates: &Candidates, derived: &Derived) -> FxHashMap<Id, Vec<Id>> {
    let set: FxHashSet<Id> = candidates.nodes.iter().copied().collect();
    let mut out = FxHashMap::default();
    for &c in &candidates.nodes {
        let mut found = Vec::new();
        let mut seen = FxHashSet::default();
        let mut stack: Vec<Id> = derived.sources(g, c).collect();
        while let Some(n) = stack.pop() {
            if !seen.insert(n) {
                continue;
            }
            if set.contains(&n) { found.push(n) } else { stack.extend(derived.sources(g, n)) }
        }
        found.sort();
        out.insert(c, found);
    }
    out
}

/// Runs the search.
pub fn materialise(g: &mut Graph, problem: Problem, decider: &mut Decider) -> Placement {
    let mut s = Search::new(g, problem, occupancy::room(problem.target));
    let mut fused = asked_for(&mut s);
    let refused = if problem.target.fusion { s.fuse_by_price(&mut fused, decider) } else { FxHashSet::default() };
    s.offer_kept(&mut fused, &refused, decider);
    let kernels = s.kernels(&fused);
    Placement { fused, kernels }
}

/// The kernel of `root` with these candidates inside, cut and priced.
fn cut(g: &mut Graph, of: Problem, root: Id, inside: &[Id], shape: Shape) -> Cut {
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
        plan: shape.plan,
        stages: shape.stages,
    };
    draft(g, root, &around).map(|d| {
        let price = match custom::called(g, root) {
            Some(kernel) => custom::price(g, root, kernel, of.target),
            None => price::kernel(g, &d.nests, of.target),
        };
        (d, price)
    })
}

/// What a kernel's workgroups are cut by.
#[derive(Clone, Copy, Default)]
pub struct Shape<'a> {
    /// How many a contraction of one token should have at most.
    pub room: i64,
    /// The plan; without one, what is proposed first.
    pub plan: Option<&'a Workgroup>,
    /// Which fused nodes have stages; without it, as the rule says.
    pub stages: Option<&'a StagePlan>,
}

/// A placement's kernels, to be cut again in another shape.
pub struct Again<'a> {
    problem: Problem<'a>,
    /// Fused candidates inside each kernel, sorted.
    inside: FxHashMap<Id, Vec<Id>>,
}

impl<'a> Again<'a> {
    /// The kernels of that placement, of which `reads` are the direct reads between candidates.
    pub fn new(problem: Problem<'a>, placement: &Placement, reads: &FxHashMap<Id, Vec<Id>>) -> Again<'a> {
        let roots = placement.kernels.iter().map(|k| k.0.root);
        Again { problem, inside: roots.map(|root| (root, fused_into(reads, root, &placement.fused))).collect() }
    }
    /// For whom.
    pub fn target(&self) -> &Target {
        self.problem.target
    }
    /// The shapes that a kernel could have, the one proposed first, and that alone unless `all` are wanted.
    pub fn proposals(&self, g: &Graph, draft: &Draft, room: i64, all: bool) -> Vec<Proposal<Workgroup>> {
        let Problem { hints, derived, target, .. } = self.problem;
        let node = computed(g, draft.root);
        propose::workgroup(g, &draft.uncut, &Around { node, hint: hints.get(&node), derived, target, room }, all)
    }
    /// The kernel of `root` in that shape, if it is legal.
    pub fn cut(&self, g: &mut Graph, root: Id, shape: Shape) -> Option<(Draft, Price)> {
        cut(g, self.problem, root, self.inside.get(&root)?, shape).ok()
    }
}

/// Fused candidates that `root`'s kernel would contain, sorted.
fn fused_into(reads: &FxHashMap<Id, Vec<Id>>, root: Id, fused: &FxHashSet<Id>) -> Vec<Id> {
    let mut found = FxHashSet::default();
    let mut stack = vec![root];
    while let Some(n) = stack.pop() {
        for &r in &reads[&n] {
            if fused.contains(&r) && found.insert(r) {
                stack.push(r);
            }
        }
    }
    let mut found: Vec<Id> = found.into_iter().collect();
    found.sort();
    found
}

/// What derivations want inside their kernels, where that is legal.
fn asked_for(s: &mut Search) -> FxHashSet<Id> {
    let mut fused = FxHashSet::default();
    for &node in &s.of.candidates.nodes {
        let Some(hint) = s.of.hints.get(&node) else { continue };
        let mut more = fused.clone();
        more.extend(hint.inside.iter().copied().filter(|n| s.reads.contains_key(n)));
        if s.kernel(node, &more).is_ok() {
            fused = more;
        }
    }
    fused
}

/// May the products that come into `root`'s kernel with `node` be beside those that are there? Where flags forbid it, those that read one another are chains, the others siblings.
fn may_meet(s: &Search, node: Id, root: Id, fused: &FxHashSet<Id>) -> bool {
    let Target { siblings, chains, .. } = *s.of.target;
    if siblings && chains {
        return true;
    }
    let with = |root: Id| std::iter::once(root).chain(s.fused_into(root, fused)).collect::<Vec<Id>>();
    let new = with(node);
    let products = |all: &[Id]| all.iter().copied().filter(|&n| s.reads_a_matrix(n)).collect::<Vec<Id>>();
    let there: Vec<Id> = with(root).into_iter().filter(|n| !new.contains(n)).collect();
    let (new, there) = (products(&new), products(&there));
    let allowed = |a: Id, b: Id| if s.depends(b, a) { chains } else { siblings };
    new.iter().all(|&a| there.iter().all(|&b| allowed(a, b)))
}

/// Seconds of the kernels concerned, with a buffer for `node` and without; `None` if it cannot be fused.
fn saving(s: &mut Search, node: Id, fused: &FxHashSet<Id>) -> Option<Saving> {
    let readers = s.readers(node, fused);
    let mut with = s.kernel(node, fused).ok()?.seconds;
    for &r in &readers {
        with += s.kernel(r, fused).ok()?.seconds;
    }
    let mut fused = fused.clone();
    fused.insert(node);
    let mut without = 0.0;
    for &r in &readers {
        if !may_meet(s, node, r, &fused) {
            return None;
        }
        without += s.kernel(r, &fused).ok()?.seconds;
    }
    Some(Saving { with, without })
}
