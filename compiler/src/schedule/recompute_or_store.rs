//! Reuse: what several kernels in a row compute for themselves is stored by one beside the first of them, and read by the others.
//!
//! Fusion lets every reader of a candidate compute it. Where readers wait for one another, the first could not have it sooner; those that come later can read it. So the
//! choice of experts is made in every workgroup of gate and up, where nobody waits for it, and once beside them for the products behind.

use super::fusion::Fusion;
use super::materialise::Search;
use crate::decision::{Decider, Decision, RECOMPUTE_OR_STORE};
use gristmill_uop::Id;
use gristmill_uop::machine::{Machine, MachineKind};

/// The part of the price of the kernels concerned that a buffer for the later ones must save. By the price the choice of experts saves, in functions of one token for an H100, 4 and 2 % of
/// Qwen3-30B-A3B's kernels (471 tokens a second, then 493), 3 and 1 % of gpt-oss's (522, 545), 0.6 % of V2-Lite's (906, 939), 0.9 and 2 % of GLM-4.7-Flash's (571, 568).
const MARGIN: f64 = 0.005;

/// Seconds of the kernels concerned as they are, and with those of `first` alone computing what the others read.
struct Offer {
    first: Vec<Id>,
    fused: f64,
    reused: f64,
}

impl Offer {
    fn gain(&self) -> f64 {
        self.fused - self.reused
    }
}

impl Search<'_> {
    /// Stores what saves most, until nothing saves; what is left is offered to other policies than the price's. Each candidate is offered once.
    pub fn reuse(&mut self, fusion: &mut Fusion, decider: &mut Decider) {
        if !(self.of.target.fusion && self.of.target.merge && self.of.target.reuse) {
            return;
        }
        let is_open = |n: &Id| fusion.everywhere.contains(n) && !self.is_fixed(*n);
        let mut open: Vec<Id> = self.of.candidates.nodes.iter().copied().filter(is_open).collect();
        loop {
            // Offers stay as they are until something is stored.
            let mut offers: Vec<(Id, Offer)> =
                open.iter().filter_map(|&n| self.offer(n, fusion).map(|offer| (n, offer))).collect();
            offers.sort_by(|a, b| b.1.gain().total_cmp(&a.1.gain()));
            let chosen = offers.into_iter().find(|(node, offer)| {
                open.retain(|n| n != node);
                let of = RECOMPUTE_OR_STORE.at(self.site(*node), [offer.fused, offer.reused]);
                decider.choose(Decision { margin: MARGIN, ..of }) == 1
            });
            let Some((node, offer)) = chosen else { return };
            fusion.store(node, &offer.first);
            while let Some(unread) = self.reads.unread(fusion) {
                fusion.fuse(unread);
            }
        }
    }
    /// What it would take to store `node` beside the first of its readers; `None` if none waits for another, or if it cannot be.
    fn offer(&mut self, node: Id, fusion: &Fusion) -> Option<Offer> {
        let readers = self.reads.readers(node, fusion);
        let waits = |root: &Id| self.reads.awaited(*root, fusion).iter().any(|kernel| readers.contains(kernel));
        let first: Vec<Id> = readers.iter().copied().filter(|root| !waits(root)).collect();
        if first.len() == readers.len() {
            return None;
        }
        let mut then = fusion.clone();
        then.store(node, &first);
        let own = self.kernel(node, &then).ok()?.seconds;
        let (fused, reused) = (self.seconds(&readers, fusion)?, self.seconds(&readers, &then)?);
        if self.is_alone(node, &then) || first.iter().any(|&root| self.is_alone(root, &then)) {
            return None;
        }
        let steps = self.reads.depth(&then) - self.reads.depth(fusion);
        let waiting = self.of.target.machine.launch * steps as f64;
        let beside = self.beside(own, &first, &then);
        Some(Offer { first, fused, reused: reused + beside + waiting })
    }
    /// Seconds that a kernel adds to the launch of those of `first`. On a GPU what it takes longer than they do, as there are units without work beside them; on a processor all that it takes,
    /// as in `merge`, since cores that compute it compute nothing else meanwhile.
    fn beside(&mut self, own: f64, first: &[Id], fusion: &Fusion) -> f64 {
        let Machine { kind, launch, .. } = self.of.target.machine;
        match kind {
            MachineKind::Cpu => own - launch,
            MachineKind::Gpu => {
                let costs = first.iter().filter_map(|&root| self.kernel(root, fusion).ok());
                (own - costs.map(|cost| cost.seconds).fold(0.0, f64::max)).max(0.0)
            }
        }
    }
}
