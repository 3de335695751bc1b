//! Maps the nests of a body to the machine, nest by nest, as their plans say.

use crate::ir::mma::tile_axes;
use crate::ir::nest::{Nest, Ranges};
use crate::map::{accumulators, simd, simt, tile_terms, units};
use crate::plan::{Accumulators, FIRST, NestPlan, Proposal, Vectors, Warps};
use crate::propose;
use crate::propose::nest::ThreadNest;
use gristmill_uop::fragment::Fragment;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind};

/// The nests of a body, of which the first ones are mapped.
#[derive(Clone)]
pub struct Mapping<'a> {
    target: &'a Target,
    /// Allocates new ranges, numbered after all ranges of the scheduler.
    ranges: Ranges,
    /// Nests that are mapped, and their plans.
    nests: Vec<Id>,
    plans: Vec<NestPlan>,
    /// Accumulator layout of the last product that fills a stage, which later nests may take.
    before: Option<Accumulators>,
}

impl<'a> Mapping<'a> {
    /// A body of which no nest is mapped yet.
    pub fn new(g: &Graph, nests: &[Id], target: &'a Target) -> Mapping<'a> {
        let numbers = g.toposort(nests).into_iter().map(|n| g.range_number(n));
        Mapping {
            target,
            ranges: Ranges::after(numbers.max().unwrap_or(0)),
            nests: vec![],
            plans: vec![],
            before: None,
        }
    }
    /// Candidates for the next nest, the heuristic's first; only that one unless `all` is set.
    pub fn proposals(&self, g: &mut Graph, nest: Id, all: bool) -> Vec<Proposal<NestPlan>> {
        let bare = Bare::new(g, nest, self.target);
        let only = |plan| vec![Proposal { name: FIRST, plan }];
        match self.target.machine.kind {
            _ if bare.tile.is_some() => only(NestPlan::Tiles),
            MachineKind::Cpu => {
                let mut ranges = self.ranges.clone();
                let first = simd::nest(g, bare.nest, None, self.target, &mut ranges).1;
                match all {
                    true => self.distinct(g, bare.nest, propose::vectors::vectors(&first)),
                    false => only(first),
                }
            }
            MachineKind::Gpu => {
                let fits = |of: &Accumulators| {
                    shares_loop(g, nest) && accumulators::fits(g, bare.nest, of)
                };
                let accumulators = self.before.filter(fits);
                let fused = simt::fused(g, bare.nest);
                let of = ThreadNest {
                    store: bare.nest,
                    fused,
                    accumulators,
                };
                of.proposals(g, self.target, all)
            }
        }
    }
    /// The first plan, and those that map the nest in another way.
    fn distinct(
        &self,
        g: &mut Graph,
        nest: Id,
        mut plans: Vec<Proposal<NestPlan>>,
    ) -> Vec<Proposal<NestPlan>> {
        let mut mapped = |plan: &NestPlan| match plan {
            NestPlan::Vectors(vectors) => {
                let mut ranges = self.ranges.clone();
                Some(simd::nest(g, nest, Some(vectors), self.target, &mut ranges).0)
            }
            _ => None,
        };
        let first = mapped(&plans[0].plan);
        let mut others = plans.split_off(1);
        others.retain(|of| mapped(&of.plan) != first);
        plans.extend(others);
        plans
    }
    /// Maps the next nest by that plan, one of its candidates.
    pub fn map(&mut self, g: &mut Graph, nest: Id, plan: NestPlan) {
        let bare = Bare::new(g, nest, self.target);
        let (target, ranges) = (self.target, &mut self.ranges);
        let mapped = match (&plan, bare.tile) {
            (_, Some(of)) => tile_terms::nest(g, bare.nest, of, &target.machine, ranges),
            (NestPlan::Vectors(vectors), _) => by_vectors(g, bare.nest, vectors, target, ranges),
            (NestPlan::Warps(_) | NestPlan::Accumulators(_), _) => {
                simt::nest(g, bare.nest, &plan, target, ranges)
            }
            _ if target.machine.kind == MachineKind::Cpu => {
                simd::nest(g, bare.nest, None, target, ranges).0
            }
            _ => {
                let fused = simt::fused(g, bare.nest);
                simt::nest(g, fused, &plan, target, ranges)
            }
        };
        self.before = accumulators_of(g, nest, &plan).or(self.before);
        let mapped = Nest::from_store(g, mapped).with_loops(&bare.shared);
        self.nests.push(mapped.store(g));
        self.plans.push(plan);
    }
    /// The mapped nests and their plans.
    pub fn finish(self, g: &mut Graph) -> (Vec<Id>, Vec<NestPlan>) {
        let nests = units::units(g, self.nests, &self.plans, &self.target.machine);
        (nests, self.plans)
    }
}

/// Maps all nests of a body by these plans, and those behind the last plan by the heuristic.
pub fn map_body(
    g: &mut Graph,
    nests: &[Id],
    plans: &[NestPlan],
    target: &Target,
) -> (Vec<Id>, Vec<NestPlan>) {
    let mut mapping = Mapping::new(g, nests, target);
    mapping.map_rest(g, nests, plans);
    mapping.finish(g)
}

impl Mapping<'_> {
    /// Maps the nests that are not mapped yet, by these plans and then by the heuristic.
    pub fn map_rest(&mut self, g: &mut Graph, nests: &[Id], plans: &[NestPlan]) {
        for (i, &nest) in nests.iter().enumerate().skip(self.nests.len()) {
            let plan = match plans.get(i) {
                Some(plan) => plan.clone(),
                None => self.proposals(g, nest, false).swap_remove(0).plan,
            };
            self.map(g, nest, plan);
        }
    }
}

/// Maps a nest by that plan. The heuristic's own mapping is kept where it has that plan.
fn by_vectors(
    g: &mut Graph,
    nest: Id,
    vectors: &Vectors,
    target: &Target,
    ranges: &mut Ranges,
) -> Id {
    let mut own = ranges.clone();
    let (mapped, plan) = simd::nest(g, nest, None, target, &mut own);
    if plan == NestPlan::Vectors(vectors.clone()) {
        *ranges = own;
        return mapped;
    }
    simd::nest(g, nest, Some(vectors), target, ranges).0
}

/// A nest without the loop that several nests share, which stays around them unchanged.
struct Bare {
    nest: Id,
    shared: Vec<Id>,
    /// Fragment of the tiles that its reduction is laid out in, if any.
    tile: Option<&'static Fragment>,
}

impl Bare {
    fn new(g: &mut Graph, nest: Id, target: &Target) -> Bare {
        let (bare, shared) = Nest::from_store(g, nest).split_loops(g, RangeKind::Fused);
        let machine = &target.machine;
        let tile = tile_axes::ranges(g, &g[bare].src[3..], machine).and(machine.tile_fragment());
        Bare {
            nest: bare,
            shared,
            tile,
        }
    }
}

/// The accumulator layout of a nest that fills a stage with a multi-warp MMA product. Every warp
/// must have all columns.
fn accumulators_of(g: &Graph, nest: Id, plan: &NestPlan) -> Option<Accumulators> {
    let &NestPlan::Warps(Warps {
        groups: true,
        rows,
        columns: 1,
        wide,
        tall: 1,
        ..
    }) = plan
    else {
        return None;
    };
    (g[Nest::from_store(g, nest).buffer].op == Op::Local).then_some(Accumulators { rows, wide })
}

/// Whether the nest is one of those that share a loop.
fn shares_loop(g: &Graph, nest: Id) -> bool {
    g.any(nest, |_, n| {
        matches!(n.arg, Arg::Range(_, RangeKind::Fused))
    })
}
