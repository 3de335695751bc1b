//! Stores a fused value that several dependent kernels would recompute.
//!
//! Fusion makes every reader recompute a candidate. If readers depend on one another, the first of
//! them cannot get it sooner, but the later ones can read it from a buffer that a parallel kernel
//! fills. For example, expert selection is computed in every workgroup of gate and up, and once in
//! parallel to them for the later products.

use super::fusion::Fusion;
use super::materialise::Search;
use crate::decision::{Decider, RECOMPUTE_OR_STORE};
use gristmill_uop::Id;
use gristmill_uop::machine::{Machine, MachineKind};

/// Seconds of the affected kernels as they are, and if only the kernels of
/// `first` recompute the value.
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
    /// Repeatedly stores the value with the best saving. Remaining offers go to policies that
    /// ignore cost; each candidate is offered once.
    pub fn reuse(&mut self, fusion: &mut Fusion, decider: &mut Decider) {
        if !(self.of.target.fusion && self.of.target.merge && self.of.target.reuse) {
            return;
        }
        let is_open = |n: &Id| fusion.everywhere.contains(n) && !self.is_fixed(*n);
        let mut open: Vec<Id> = self
            .of
            .candidates
            .nodes
            .iter()
            .copied()
            .filter(is_open)
            .collect();
        loop {
            // Offers stay valid until something is stored.
            let mut offers: Vec<(Id, Offer)> = open
                .iter()
                .filter_map(|&n| self.offer(n, fusion).map(|offer| (n, offer)))
                .collect();
            offers.sort_by(|a, b| b.1.gain().total_cmp(&a.1.gain()));
            let chosen = offers.into_iter().find(|(node, offer)| {
                open.retain(|n| n != node);
                let of = RECOMPUTE_OR_STORE.at(self.site(*node), [offer.fused, offer.reused]);
                decider.choose(of) == 1
            });
            let Some((node, offer)) = chosen else { return };
            fusion.store(node, &offer.first);
            while let Some(unread) = self.reads.unread(fusion) {
                fusion.fuse(unread);
            }
        }
    }
    /// The offer to store `node` in parallel to the first of its readers; `None` if no reader
    /// depends on another, or if a kernel involved is illegal or cannot share a launch.
    fn offer(&mut self, node: Id, fusion: &Fusion) -> Option<Offer> {
        let readers = self.reads.readers(node, fusion);
        let waits = |root: &Id| {
            self.reads
                .awaited(*root, fusion)
                .iter()
                .any(|kernel| readers.contains(kernel))
        };
        let first: Vec<Id> = readers
            .iter()
            .copied()
            .filter(|root| !waits(root))
            .collect();
        if first.len() == readers.len() {
            return None;
        }
        let mut then = fusion.clone();
        then.store(node, &first);
        let own = self.kernel(node, &then).ok()?.seconds;
        let (fused, reused) = (
            self.seconds(&readers, fusion)?,
            self.seconds(&readers, &then)?,
        );
        if self.is_alone(node, &then) || first.iter().any(|&root| self.is_alone(root, &then)) {
            return None;
        }
        let steps = self.reads.depth(&then) - self.reads.depth(fusion);
        let waiting = self.of.target.machine.launch * steps as f64;
        let beside = self.beside(own, &first, &then);
        Some(Offer {
            first,
            fused,
            reused: reused + beside + waiting,
        })
    }
    /// Seconds that a kernel adds to the launch of the kernels of `first`. On a GPU only the excess
    /// over the longest of them, since other units are idle; on a CPU all of it, as in `merge`,
    /// since it occupies cores.
    fn beside(&mut self, own: f64, first: &[Id], fusion: &Fusion) -> f64 {
        let Machine { kind, launch, .. } = self.of.target.machine;
        match kind {
            MachineKind::Cpu => own - launch,
            MachineKind::Gpu => {
                let costs = first
                    .iter()
                    .filter_map(|&root| self.kernel(root, fusion).ok());
                (own - costs.map(|cost| cost.seconds).fold(0.0, f64::max)).max(0.0)
            }
        }
    }
}
