//! Proposals for mapping a nest to threads.

use super::threads::threads;
use crate::ir::mma::product::MmaProduct;
use crate::ir::nest::Nest;
use crate::plan::Accumulators;
use crate::plan::warps::warps;
use crate::plan::{FIRST, NestPlan, Proposal, proposals};
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id};

/// A nest to be shared by the threads of a GPU workgroup.
pub struct ThreadNest {
    /// The store node of the nest.
    pub store: Id,
    /// The nest, with reductions over the same terms fused into one loop.
    pub fused: Id,
    /// Accumulator layout of the preceding product, if the nest can use it.
    pub accumulators: Option<Accumulators>,
}

impl ThreadNest {
    /// Candidate mappings, the heuristic's first; only that one unless `all` is set.
    pub fn proposals(&self, g: &Graph, target: &Target, all: bool) -> Vec<Proposal<NestPlan>> {
        let without = || threads(g, &Nest::from_store(g, self.fused), target, all);
        if let Some(first) = self.accumulators.map(NestPlan::Accumulators) {
            let others = if all { without() } else { vec![] };
            let name = |p: &Proposal<NestPlan>| {
                if p.name == FIRST {
                    "threads apart"
                } else {
                    p.name
                }
            };
            return proposals(first, others.into_iter().map(|p| (name(&p), p.plan)));
        }
        let of_warps = target.threads as i64 % target.machine.subgroup == 0;
        match of_warps
            .then(|| MmaProduct::from_store(g, self.store, &target.machine))
            .flatten()
        {
            None => without(),
            Some(product) => {
                if !all {
                    return warps(g, self.store, &product, target)
                        .into_iter()
                        .take(1)
                        .collect();
                }
                let renamed = |p: Proposal<NestPlan>| Proposal {
                    name: "without fragments",
                    ..p
                };
                let plain = without().into_iter().find(|p| p.name == FIRST).map(renamed);
                warps(g, self.store, &product, target)
                    .into_iter()
                    .chain(plain)
                    .collect()
            }
        }
    }
}
