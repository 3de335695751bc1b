//! Reuse: what several kernels in a row compute for themselves is stored by one beside the first of them, and read by the others.
//!
//! Fusion lets every reader of a candidate compute it. Where readers wait for one another, the first could not have it sooner; those that come later can read it. So the
//! choice of experts is made in every workgroup of gate and up, where nobody waits for it, and once beside them for the products behind.

use super::fusion::Fusion;
use super::materialise::Search;
use crate::decision::{Alternative, Decider, Decision};
use gristmill_uop::Id;
use rustc_hash::{FxHashMap, FxHashSet};

/// The part of the price of the kernels concerned that a buffer for the later ones must save. H100, one token: the choice of experts saves 4 and 2 % of Qwen3-30B-A3B's by the price (471
/// tokens a second, then 493), 3 and 1 % of gpt-oss's (522, 545), 0.6 % of V2-Lite's (906, 939), 0.9 and 2 % of GLM-4.7-Flash's (571, 568).
const MARGIN: f64 = 0.005;

/// Seconds of the kernels concerned as they are, and with those of `first` alone computing what the others read.
#[derive(Clone)]
struct Offer {
    first: Vec<Id>,
    fused: f64,
    reused: f64,
}

impl Offer {
    fn gain(&self) -> f64 {
        self.fused - self.reused
    }
    fn options(&self) -> Vec<Alternative> {
        vec![Alternative::named("fuse", self.fused), Alternative::named("reuse", self.reused)]
    }
}

impl Search<'_> {
    /// Stores what saves most, until nothing saves; what is left is offered to other policies than the price's.
    pub fn reuse(&mut self, fusion: &mut Fusion, decider: &mut Decider) {
        if !(self.of.target.fusion && self.of.target.merge && self.of.target.reuse) {
            return;
        }
        let mut known: FxHashMap<Id, Option<Offer>> = FxHashMap::default();
        let mut settled: FxHashSet<Id> = FxHashSet::default();
        while let Some((node, offer)) = self.best_offer(fusion, &settled, &mut known) {
            settled.insert(node);
            let of = Decision { margin: MARGIN, ..Decision::new("reuse", self.site(node), offer.options()) };
            if decider.choose(of) == 0 {
                continue;
            }
            let mut touched: FxHashSet<Id> = self.reads.readers(node, fusion).into_iter().collect();
            touched.insert(node);
            fusion.store(node, &offer.first);
            // What a touched kernel computes has another price now.
            let is_stale =
                |n: &Id| touched.contains(n) || self.reads.readers(*n, fusion).iter().any(|r| touched.contains(r));
            known.retain(|n, _| !is_stale(n));
        }
    }
    /// The fused candidate whose buffer would save most, or cost least.
    fn best_offer(
        &mut self,
        fusion: &Fusion,
        settled: &FxHashSet<Id>,
        known: &mut FxHashMap<Id, Option<Offer>>,
    ) -> Option<(Id, Offer)> {
        let mut best: Option<(Id, Offer)> = None;
        for &node in &self.of.candidates.nodes {
            if !fusion.everywhere.contains(&node) || self.is_fixed(node) || settled.contains(&node) {
                continue;
            }
            let Some(offer) = known.entry(node).or_insert_with(|| self.offer(node, fusion)) else { continue };
            if best.as_ref().is_none_or(|b| offer.gain() > b.1.gain()) {
                best = Some((node, offer.clone()));
            }
        }
        best
    }
    /// What it would take to store `node` beside the first of its readers; `None` if none waits for another, or if it cannot be.
    fn offer(&mut self, node: Id, fusion: &Fusion) -> Option<Offer> {
        let readers = self.reads.readers(node, fusion);
        let waits = |r: Id| self.reads.awaited(r, fusion).iter().any(|kernel| readers.contains(kernel));
        let first: Vec<Id> = readers.iter().copied().filter(|&r| !waits(r)).collect();
        if first.len() == readers.len() {
            return None;
        }
        let mut then = fusion.clone();
        then.store(node, &first);
        let own = self.kernel(node, &then).ok()?.seconds;
        let (fused, reused) = (self.seconds(&readers, fusion)?, self.seconds(&readers, &then)?);
        if self.is_alone(node, &then) || first.iter().any(|&r| self.is_alone(r, &then)) {
            return None;
        }
        // Its kernel is in the launch of the first readers: it takes what it takes longer than they do, and a launch where the longest path has to wait for it.
        let longest = first.iter().filter_map(|&r| self.kernel(r, &then).ok()).map(|p| p.seconds).fold(0.0, f64::max);
        let steps = self.reads.depth(&then) - self.reads.depth(fusion);
        let beside = (own - longest).max(0.0) + self.of.target.machine.launch * steps as f64;
        Some(Offer { first, fused, reused: reused + beside })
    }
}
