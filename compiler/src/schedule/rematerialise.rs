//! Rematerialise: candidates that the first kernels which read them compute, and that a kernel beside these stores for those that come later.
//!
//! Where readers wait for one another, a buffer makes all of them wait for its kernel, and fusion makes all of them compute it. Here the first compute it, so that nobody waits,
//! and the last read it. So the choice of experts is made in every workgroup of gate and up, and once beside them for the products behind; so the largest of a block, which codes
//! of activations are divided by, is with the codes, and stored as their scale.

use super::fusion::Fusion;
use super::materialise::{LEAST_SAVING, MOST_TIMES_DEARER, Search};
use crate::decision::{Alternative, Decider, Decision};
use gristmill_uop::Id;
use rustc_hash::{FxHashMap, FxHashSet};

/// What a kernel is said to take longer for what it computes besides counts so many times: prices are wrong by half. With less, GLM-4.7-Flash's absorbed keys would compute the
/// queries through their low rank, 20 times their weights, for a launch.
const DOUBT: f64 = 1.5;

/// Seconds of the kernels concerned as they are, and with those of `first` computing what the others read.
#[derive(Clone)]
struct Offer {
    first: Vec<Id>,
    is: f64,
    would_be: f64,
}

impl Offer {
    fn gain(&self) -> f64 {
        self.is - self.would_be
    }
    fn options(&self, fused: bool) -> Vec<Alternative> {
        let is = if fused { "fuse" } else { "buffer" };
        vec![Alternative::named(is, self.is), Alternative::named("rematerialise", self.would_be)]
    }
}

impl Search<'_> {
    /// Takes what saves most, until nothing saves; what is left is offered to other policies than the price's.
    pub fn rematerialise(&mut self, fusion: &mut Fusion, decider: &mut Decider) {
        if !(self.of.target.fusion && self.of.target.merge && self.of.target.rematerialise) {
            return;
        }
        let mut known: FxHashMap<Id, Option<Offer>> = FxHashMap::default();
        let mut settled: FxHashSet<Id> = FxHashSet::default();
        loop {
            let mut best: Option<(Id, Offer)> = None;
            for &node in &self.of.candidates.nodes {
                if self.is_fixed(node) || settled.contains(&node) {
                    continue;
                }
                let offer = known.entry(node).or_insert_with(|| self.offer(node, fusion));
                let Some(offer) = offer else { continue };
                if best.as_ref().is_none_or(|b| offer.gain() > b.1.gain()) {
                    best = Some((node, offer.clone()));
                }
            }
            let Some((node, offer)) = best else { return };
            settled.insert(node);
            let options = offer.options(fusion.everywhere.contains(&node));
            if offer.would_be > MOST_TIMES_DEARER * offer.is {
                decider.log.push(Decision::new("kept", self.site(node), options));
                continue;
            }
            let margin = self.of.target.machine.launch * LEAST_SAVING / offer.is;
            let of = Decision { margin, ..Decision::new("rematerialise", self.site(node), options) };
            if decider.choose(of) == 0 {
                continue;
            }
            let mut touched: FxHashSet<Id> = self.reads.readers(node, fusion).into_iter().collect();
            fusion.rematerialise(node, &offer.first);
            touched.extend(self.reads.readers(node, fusion));
            touched.insert(node);
            // What a touched kernel reads or computes has another price now.
            let is_stale =
                |n: &Id| touched.contains(n) || self.reads.readers(*n, fusion).iter().any(|r| touched.contains(r));
            known.retain(|n, _| !is_stale(n));
        }
    }
    /// What it would take to have `node` computed by the first of its readers and read by the others; `None` if none waits for another, or if it cannot be.
    fn offer(&mut self, node: Id, fusion: &Fusion) -> Option<Offer> {
        let readers = self.reads.readers(node, fusion);
        let waits = |r: Id| self.reads.awaited(r, fusion).iter().any(|kernel| readers.contains(kernel));
        let first: Vec<Id> = readers.iter().copied().filter(|&r| !waits(r)).collect();
        let fused = fusion.everywhere.contains(&node);
        if first.len() == readers.len() {
            return None;
        }
        let mut then = fusion.clone();
        then.rematerialise(node, &first);
        let own = self.kernel(node, &then).ok()?.seconds;
        let is = self.seconds(&readers, fusion)?;
        let longer = (self.seconds(&first, &then)? - self.seconds(&first, fusion)?).max(0.0);
        let would_be = self.seconds(&readers, &then)? + (DOUBT - 1.0) * longer;
        if self.is_alone(node, &then) || first.iter().any(|&r| self.is_alone(r, &then)) {
            return None;
        }
        // Its kernel is beside those of the first readers, in their launch: it takes what it takes longer than they do.
        let longest = first.iter().filter_map(|&r| self.kernel(r, &then).ok()).map(|p| p.seconds).fold(0.0, f64::max);
        let would_be = would_be + (own - longest).max(0.0);
        // Steps of the longest path are launches.
        let launch = self.of.target.machine.launch;
        let is = if fused { is } else { is + own - launch };
        let steps = self.reads.depth(&then) as f64 - self.reads.depth(fusion) as f64;
        let would_be = would_be + launch * steps;
        Some(Offer { first, is, would_be })
    }
}
