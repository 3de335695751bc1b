//! Swaps which of two fused nodes is materialised, if that shortens the critical path.
//!
//! The fusion search is greedy: it first fuses a product into the node that consumes it, since that
//! saves most. The consumer may also need a value that a parallel kernel computes. For example, a
//! router's scores wait for a norm's scale, which their product does not need; if the product's
//! sums are materialised instead, the product does not wait. If the product's own kernel reads the
//! scale anyway, the scale is fused.

use super::fusion::Fusion;
use super::materialise::{LAUNCH_ON_PATH, MIN_SAVING, Search, may_meet};
use crate::decision::{Decider, Decision, SWAP_MATERIALISED};
use gristmill_uop::Id;
use rustc_hash::FxHashSet;

/// Materialising `inner`, which is fused into the kernel of `outer`, instead of `outer`.
struct Offer {
    outer: Id,
    inner: Id,
    /// Seconds of the affected kernels, before and after.
    seconds: [f64; 2],
}

impl Offer {
    fn gain(&self) -> f64 {
        self.seconds[0] - self.seconds[1]
    }
}

impl Search<'_> {
    /// Repeatedly applies the best swap. Skips nodes that the policy refused to fuse and
    /// nodes that hints fuse.
    pub fn exchange(
        &mut self,
        fusion: &mut Fusion,
        wanted: &Fusion,
        refused: &mut FxHashSet<Id>,
        decider: &mut Decider,
    ) {
        let least = self.of.target.machine.launch * MIN_SAVING;
        let mut asked: FxHashSet<(Id, Id)> = FxHashSet::default();
        loop {
            let mut offers = self.offers(fusion, wanted, refused);
            offers.retain(|of| of.gain() > least && !asked.contains(&(of.outer, of.inner)));
            let Some(best) = offers
                .into_iter()
                .max_by(|a, b| a.gain().total_cmp(&b.gain()))
            else {
                return;
            };
            asked.insert((best.outer, best.inner));
            let site = format!(
                "{} for {}",
                self.site(best.outer),
                self.of_function(best.inner)
            );
            if decider.choose(Decision {
                margin: least / best.seconds[0],
                ..SWAP_MATERIALISED.at(site, best.seconds)
            }) == 1
            {
                *fusion = exchanged(fusion, best.outer, best.inner);
                // The policy has now decided twice on this node.
                refused.insert(best.inner);
            }
        }
    }
    /// Fuses nodes that a hint marks to run in parallel if their launch would lengthen the critical
    /// path and fusion is cheaper.
    pub fn fuse_on_path(&mut self, fusion: &mut Fusion, decider: &mut Decider) {
        let is_concurrent = |n: &Id| self.of.hints.get(n).is_some_and(|hint| hint.concurrent);
        let nodes: Vec<Id> = self
            .of
            .candidates
            .nodes
            .iter()
            .copied()
            .filter(is_concurrent)
            .collect();
        for node in nodes {
            let mut then = fusion.clone();
            then.everywhere.insert(node);
            if self.reads.depth(&then) == self.reads.depth(fusion) {
                continue;
            }
            let Some(saving) = self.saving(node, fusion) else {
                continue;
            };
            if decider.choose(saving.decision(self.site(node))) == 1 {
                *fusion = then;
            }
        }
    }
    /// Swaps that shorten the critical path.
    fn offers(&mut self, fusion: &Fusion, wanted: &Fusion, refused: &FxHashSet<Id>) -> Vec<Offer> {
        let depth = self.reads.depth(fusion);
        let stays =
            |n: &Id| self.is_fixed(*n) || fusion.everywhere.contains(n) || refused.contains(n);
        let outer: Vec<Id> = self
            .of
            .candidates
            .nodes
            .iter()
            .copied()
            .filter(|n| !stays(n))
            .collect();
        let mut offers = Vec::new();
        for outer in outer {
            for inner in self.reads.inside(outer, fusion) {
                let then = exchanged(fusion, outer, inner);
                let shorter = depth.saturating_sub(self.reads.depth(&then));
                if shorter > 0 && !wanted.everywhere.contains(&inner) {
                    offers.extend(self.offered(fusion, &then, [outer, inner], shorter));
                }
            }
        }
        offers
    }
    fn offered(
        &mut self,
        fusion: &Fusion,
        then: &Fusion,
        [outer, inner]: [Id; 2],
        shorter: usize,
    ) -> Option<Offer> {
        let mut readers = self.reads.readers(outer, fusion);
        if readers.is_empty() {
            return None;
        }
        readers.extend(self.reads.readers(inner, fusion));
        readers.retain(|&n| n != outer);
        readers.sort_unstable();
        readers.dedup();
        let may_meet = self
            .reads
            .readers(outer, fusion)
            .into_iter()
            .all(|root| may_meet(self, outer, root, then));
        if !may_meet {
            return None;
        }
        let before = self.seconds(&readers, fusion)? + self.kernel(outer, fusion).ok()?.seconds;
        let after = self.seconds(&readers, then)? + self.kernel(inner, then).ok()?.seconds;
        let path = self.of.target.machine.launch * LAUNCH_ON_PATH * shorter as f64;
        Some(Offer {
            outer,
            inner,
            seconds: [before, after - path],
        })
    }
    /// The site without the function's name.
    fn of_function(&self, node: Id) -> String {
        self.site(node)
            .split_once(' ')
            .map_or_else(String::new, |site| site.1.into())
    }
}

/// The fusion with `inner` materialised instead of `outer`.
fn exchanged(fusion: &Fusion, outer: Id, inner: Id) -> Fusion {
    let mut then = fusion.clone();
    then.everywhere.remove(&inner);
    then.everywhere.insert(outer);
    then
}
