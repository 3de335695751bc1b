//! Place, the heart of fusion: which intermediates get a buffer, and which are computed inside the kernels that read them.
//!
//! Greedy from all-buffers: for every candidate, the kernels that would read it are cut again without its buffer and priced; the best
//! saving is taken first, everything re-priced, until nothing saves. Deterministic. Whether a fused node becomes an epilogue or a stage
//! follows from how it is read (`kernel`), so nothing here is a special case: RMSNorm before a matvec is a stage because every
//! row reads all of it, SiLU an epilogue because every element reads its own.

use super::candidates::Candidates;
use super::kernel::{Draft, Illegal, Surroundings, draft};
use super::workgroup::{self, Hint};
use crate::decision::{Decider, Decision};
use crate::derive::Derived;
use crate::price::{self, Price};
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id};
use rustc_hash::{FxHashMap, FxHashSet};

/// Savings smaller than this part of a launch are not worth a longer kernel.
const WORTH: f64 = 0.02;
/// Kernels without a path between them share a launch later (`merge`), so a launch is mostly the price of one more step on the longest path;
/// the rest is charged to every kernel, so that one of two parallel kernels may go before the path gets shorter.
const ON_PATH: f64 = 0.5;

/// The choice made: which nodes are fused, and the kernels of the others.
pub struct Placement {
    /// Candidates without a buffer.
    pub fused: FxHashSet<Id>,
    /// One kernel for every other candidate that is read, in topological order, with its price.
    pub kernels: Vec<(Draft, Price)>,
}

/// A kernel cut with a given set of fused nodes inside, or why it cannot be.
type Cut = Result<(Draft, Price), Illegal>;

struct Search<'a> {
    g: &'a mut Graph,
    candidates: &'a Candidates,
    all_buffers: &'a FxHashMap<Id, Id>,
    hints: &'a FxHashMap<Id, Hint>,
    derived: &'a Derived,
    target: &'a Target,
    /// Workgroups that contractions of one token should have at most.
    room: i64,
    /// Candidates read directly (through nodes that are none) by each candidate.
    reads: FxHashMap<Id, Vec<Id>>,
    memo: FxHashMap<(Id, Vec<Id>), Cut>,
}

impl<'a> Search<'a> {
    fn new(
        g: &'a mut Graph,
        (candidates, all_buffers): (&'a Candidates, &'a FxHashMap<Id, Id>),
        (hints, derived): (&'a FxHashMap<Id, Hint>, &'a Derived),
        target: &'a Target,
        room: i64,
    ) -> Search<'a> {
        let reads = reads(g, candidates, derived);
        Search { g, candidates, all_buffers, hints, derived, target, room, reads, memo: FxHashMap::default() }
    }
}

impl Search<'_> {
    /// Fused candidates that `root`'s kernel would contain, sorted.
    fn inside(&self, root: Id, fused: &FxHashSet<Id>) -> Vec<Id> {
        let mut found = FxHashSet::default();
        let mut stack = vec![root];
        while let Some(n) = stack.pop() {
            for &r in &self.reads[&n] {
                if fused.contains(&r) && found.insert(r) {
                    stack.push(r);
                }
            }
        }
        let mut found: Vec<Id> = found.into_iter().collect();
        found.sort();
        found
    }
    fn kernel(&mut self, root: Id, fused: &FxHashSet<Id>) -> Result<Price, Illegal> {
        let inside = self.inside(root, fused);
        if let Some(known) = self.memo.get(&(root, inside.clone())) {
            return known.as_ref().map(|k| k.1).map_err(Clone::clone);
        }
        let inside_set: FxHashSet<Id> = inside.iter().copied().collect();
        let buffers: FxHashMap<Id, Id> =
            self.all_buffers.iter().filter(|(n, _)| !inside_set.contains(n)).map(|(&n, &b)| (n, b)).collect();
        let around = Surroundings {
            buffers: &buffers,
            fused: &inside_set,
            order: &self.candidates.order,
            hints: self.hints,
            derived: self.derived,
            target: self.target,
            room: self.room,
        };
        let result = draft(self.g, root, &around, 0).map(|d| {
            let price = price::kernel(self.g, &d.nests, self.target);
            (d, price)
        });
        let answer = result.as_ref().map(|k| k.1).map_err(Clone::clone);
        self.memo.insert((root, inside), result);
        answer
    }
    /// Kernels on the longest path.
    fn depth(&self, fused: &FxHashSet<Id>) -> usize {
        let mut level: FxHashMap<Id, usize> = FxHashMap::default();
        for &n in &self.candidates.nodes {
            let below = self.reads[&n].iter().map(|r| level[r]).max().unwrap_or(0);
            level.insert(n, below + !fused.contains(&n) as usize);
        }
        level.values().copied().max().unwrap_or(0)
    }
    /// Materialised nodes whose kernels read `node`, directly or through fused ones.
    fn readers(&self, node: Id, fused: &FxHashSet<Id>) -> Vec<Id> {
        let mut out = Vec::new();
        let mut seen = FxHashSet::default();
        let mut stack = vec![node];
        while let Some(n) = stack.pop() {
            for &c in &self.candidates.nodes {
                if self.reads[&c].contains(&n) && seen.insert(c) {
                    if fused.contains(&c) { stack.push(c) } else { out.push(c) }
                }
            }
        }
        out
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
pub fn place(
    g: &mut Graph,
    candidates: &Candidates,
    all_buffers: &FxHashMap<Id, Id>,
    hints: &FxHashMap<Id, Hint>,
    derived: &Derived,
    target: &Target,
    decider: &mut Decider,
) -> Placement {
    let mut s = Search::new(g, (candidates, all_buffers), (hints, derived), target, workgroup::room(target));
    let mut fused = asked_for(&mut s);
    // Savings of earlier rounds stay valid unless a kernel they touch has changed.
    let mut savings: FxHashMap<Id, Option<(f64, f64)>> = FxHashMap::default();
    let mut refused: FxHashSet<Id> = FxHashSet::default();
    loop {
        if !target.fusion {
            break;
        }
        let depth = s.depth(&fused);
        let mut best: Option<(Id, f64, f64)> = None;
        for &node in &candidates.nodes {
            let fixed = candidates.forced.contains(&node) || hints.contains_key(&node);
            if fixed || fused.contains(&node) || refused.contains(&node) {
                continue;
            }
            let entry = match savings.get(&node) {
                Some(&e) => e,
                None => {
                    let e = saving(&mut s, node, &fused);
                    savings.insert(node, e);
                    e
                }
            };
            if let Some((with, without)) = entry {
                // The kernel that goes takes a launch with it only if it is on the longest path.
                fused.insert(node);
                let shorter = depth - s.depth(&fused);
                fused.remove(&node);
                let without = without + target.machine.launch * ON_PATH * (1.0 - shorter as f64);
                let gain = with - without;
                if gain > target.machine.launch * WORTH && best.is_none_or(|b| gain > b.1 - b.2) {
                    best = Some((node, with, without));
                }
            }
        }
        let Some((node, with, without)) = best else { break };
        let site = format!("place {:?} {}", s.g[node].op, s.g.show_dims(&s.g.shape(node)));
        let fuse = decider.choose(site, vec![("buffer".into(), with), ("fuse".into(), without)]) == 1;
        if !fuse {
            refused.insert(node);
            continue;
        }
        let mut touched: FxHashSet<Id> = s.readers(node, &fused).into_iter().collect();
        touched.insert(node);
        fused.insert(node);
        // Everything read by a touched kernel is priced anew.
        let stale: Vec<Id> = savings
            .keys()
            .copied()
            .filter(|&n| touched.contains(&n) || s.readers(n, &fused).iter().any(|r| touched.contains(r)))
            .collect();
        for n in stale {
            savings.remove(&n);
        }
    }
    for &node in &candidates.nodes {
        if candidates.forced.contains(&node) || hints.contains_key(&node) || fused.contains(&node) {
            continue;
        }
        let site = format!("kept {:?} {}", s.g[node].op, s.g.show_dims(&s.g.shape(node)));
        let options = match saving(&mut s, node, &fused) {
            Some((with, without)) => vec![("buffer".into(), with), ("fuse".into(), without)],
            None => vec![("buffer (fusing is illegal)".into(), 0.0)],
        };
        decider.log.push(Decision { site, options, chosen: 0 });
    }
    let mut kernels = Vec::new();
    let roots: Vec<Id> = candidates.nodes.iter().copied().filter(|n| !fused.contains(n)).collect();
    for root in roots {
        // A kernel that cannot be cut alone has stages that were legal when they were fused: cannot happen.
        if s.kernel(root, &fused).is_ok() {
            let inside = s.inside(root, &fused);
            if let Some(Ok(k)) = s.memo.get(&(root, inside)) {
                kernels.push(k.clone());
            }
        }
    }
    Placement { fused, kernels }
}

/// The kernel of `root` again, for so many workgroups.
pub fn again(
    g: &mut Graph,
    (candidates, all_buffers, fused): (&Candidates, &FxHashMap<Id, Id>, &FxHashSet<Id>),
    (hints, derived): (&FxHashMap<Id, Hint>, &Derived),
    target: &Target,
    root: Id,
    room: i64,
) -> Option<Draft> {
    let mut s = Search::new(g, (candidates, all_buffers), (hints, derived), target, room);
    s.kernel(root, fused).ok()?;
    let inside = s.inside(root, fused);
    s.memo.remove(&(root, inside))?.ok().map(|cut| cut.0)
}

/// What derivations want inside their kernels, where that is legal.
fn asked_for(s: &mut Search) -> FxHashSet<Id> {
    let mut fused = FxHashSet::default();
    for &node in &s.candidates.nodes {
        let Some(hint) = s.hints.get(&node) else { continue };
        let mut more = fused.clone();
        more.extend(hint.inside.iter().copied().filter(|n| s.reads.contains_key(n)));
        if s.kernel(node, &more).is_ok() {
            fused = more;
        }
    }
    fused
}

/// Seconds of the kernels concerned, with a buffer for `node` and without; `None` if it cannot be fused.
fn saving(s: &mut Search, node: Id, fused: &FxHashSet<Id>) -> Option<(f64, f64)> {
    let readers = s.readers(node, fused);
    let mut with = s.kernel(node, fused).ok()?.seconds;
    for &r in &readers {
        with += s.kernel(r, fused).ok()?.seconds;
    }
    let mut fused = fused.clone();
    fused.insert(node);
    let mut without = 0.0;
    for &r in &readers {
        without += s.kernel(r, &fused).ok()?.seconds;
    }
    Some((with, without))
}
