//! Emits the programs of launches: maps nests to the machine, lowers them, prints them in the
//! device's dialect and names each kernel by a hash of its text.

mod arrays;
mod custom;
mod dialect;
mod kernel;
mod launch;

pub use dialect::{Accessor, Array, CustomCode, CustomDialect, Dialect, Element, Signature};
pub(crate) use kernel::{Slots, verify};

use crate::decision::{Alternative, Decider, Decision};
use crate::ir::mma::tile_axes;
use crate::ir::nest::{Nest, Ranges};
use crate::ir::size_estimate::typical;
use crate::ir::title::title;
use crate::lower::spec as linear_spec;
use crate::lower::{KernelCode, finish, lower_bodies};
use crate::map::{accumulators, simd, simt, tile_terms, units};
use crate::plan::FIRST;
use crate::plan::{Accumulators, NestPlan, Proposal, TilePlan, Warps};
use crate::propose;
use crate::propose::launch::Launched;
use crate::propose::nest::ThreadNest;
use crate::schedule::{Body, Launch};
use gristmill_uop::fragment::Fragment;
use gristmill_uop::function::Function;
use gristmill_uop::launch::LaunchPlan;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::program::{BodySize, KernelContext, Param, Program, When};
use gristmill_uop::spec::Level;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op, RangeKind};
use kernel::{Kernel, fingerprint, sized};
use std::sync::Arc;

/// Inputs of code generation for the programs of one function.
pub(crate) struct Emission<'a, 'd> {
    pub slots: &'a Slots<'a>,
    pub target: &'a Target,
    /// Prints the code; without a dialect programs have no source text.
    pub dialect: Option<&'a dyn Dialect>,
    /// Chooses the plans of nests and launches.
    pub decider: &'a mut Decider<'d>,
}

/// Returns the workgroup count of each body and the time of one workgroup; empty for a single body.
fn sizes(g: &Graph, groups: &[Id], launch: &Launch, target: &Target) -> Vec<BodySize> {
    if launch.bodies.len() < 2 {
        return vec![];
    }
    let of = |(&groups, body): (&Id, &Body)| {
        let count = typical(g, groups).max(1.0);
        // With fewer workgroups than processor units, each workgroup has a unit to itself.
        BodySize {
            groups,
            seconds: body.seconds * count.min(target.machine.units as f64) / count,
        }
    };
    groups.iter().zip(&launch.bodies).map(of).collect()
}

/// Compiles a mapped launch to a program.
pub(crate) fn program(
    g: &Graph,
    launch: &Launch,
    mapped: &[Mapped],
    with: &mut Emission,
) -> Program {
    let &mut Emission {
        slots,
        target,
        dialect,
        ..
    } = with;
    if let Some((launch, kernel, dialect)) = custom::called_by(launch, dialect) {
        let emission = custom::CustomEmission {
            slots,
            target,
            dialect,
        };
        return custom::program(g, launch, kernel, &emission);
    }
    let when: Vec<When> = launch.bodies.iter().map(|b| b.when).collect();
    let nests: Vec<&[Id]> = mapped.iter().map(|m| &m.nests[..]).collect();
    let mut kernel = Kernel::new(g, &nests, &when);
    let root = kernel.root;
    verify(&kernel.graph, root, Level::Kernel, "map");
    let Lowered {
        graph: linear,
        code,
        signature,
        params,
        groups,
        sizes,
        context,
    } = lowered(&mut kernel, launch, with);
    let reduces = reduces(&kernel);
    let own = kernel.graph;
    let draft = dialect.map(|d| d.render("KERNEL", &linear, &code, &signature));
    let roots: Vec<Id> = launch.bodies.iter().filter_map(|b| b.root).collect();
    let (name, source) = named(draft, reduces, &roots);
    let notes = roots
        .iter()
        .map(|&r| format!("{:?} {}", g[r].op, g.show_dims(&g.shape(r))))
        .collect();
    Program {
        source,
        name,
        seconds: launch.cost.seconds,
        title: title(&own, root, slots.function, &params),
        params,
        vars: signature.vars.iter().map(|v| v.0.clone()).collect(),
        context,
        groups,
        bodies: sizes,
        threads: target.threads,
        scratch: signature.scratch_bytes,
        estimate: launch.cost.estimate,
        features: launch.cost.features,
        notes,
        root,
        graph: Arc::new(own),
    }
}

/// Returns whether a kernel has a reduction.
fn reduces(kernel: &Kernel) -> bool {
    let has_reduction = |&n: &Id| kernel.graph.any(n, |_, m| m.op == Op::Reduce);
    kernel.bodies.iter().flatten().any(has_reduction)
}

/// A kernel after lowering.
struct Lowered {
    /// Graph of the linear code.
    graph: Graph,
    code: KernelCode,
    signature: Signature,
    params: Vec<Param>,
    /// Total number of workgroups.
    groups: Id,
    sizes: Vec<BodySize>,
    context: KernelContext,
}

/// Lowers a kernel to linear code.
fn lowered(kernel: &mut Kernel, launch: &Launch, with: &mut Emission) -> Lowered {
    let &mut Emission { slots, target, .. } = with;
    let (own, when) = (&mut kernel.graph, std::mem::take(&mut kernel.when));
    let bodies = &kernel.bodies;
    let (mut signature, groups) = sized(own, bodies, launch, slots.function, target);
    let sizes = sizes(own, &signature.groups, launch, target);
    let params = signature.cut(slots, target);
    // Lowering works on a copy: `own` stays as the reference interpreter runs it.
    let mut linear = own.clone();
    let codes = lower_bodies(&mut linear, bodies, &when, target);
    signature.place_stages(&linear, &codes);
    let units = target.machine.units.max(1) as i64;
    let launched = Launched {
        g: &linear,
        bodies: &codes,
        workgroups_per_unit: (linear.max_of(groups).saturating_add(units - 1)) / units,
        scratch: signature.scratch_bytes,
        first: launch.level == 0,
        target,
    };
    let plan = launch_plan(&launched, launch, groups, slots.function, with.decider);
    let context = KernelContext {
        when,
        plan,
        streams: slots.streams.clone(),
    };
    let code = finish(&mut linear, codes, &context, target);
    signature.add_rings(&linear, &code, target);
    signature.in_words(&mut linear, target);
    verify_linear(&linear, &code, target);
    Lowered {
        graph: linear,
        code,
        signature,
        params,
        groups,
        sizes,
        context,
    }
}

/// Returns the name and the source text of a kernel. The name is a hash of the text, so equal
/// kernels of different models share one name.
fn named(draft: Option<String>, reduces: bool, roots: &[Id]) -> (String, String) {
    let text = draft.clone().unwrap_or_else(|| format!("{roots:?}"));
    let name = format!(
        "{}_{:016x}",
        if reduces { "r" } else { "e" },
        fingerprint(&text)
    );
    let source = draft
        .map(|d| d.replace("KERNEL", &name))
        .unwrap_or_default();
    (name, source)
}

/// Chooses the launch plan of a GPU kernel; CPUs use the default plan.
fn launch_plan(
    of: &Launched,
    launch: &Launch,
    groups: Id,
    function: &Function,
    decider: &mut Decider,
) -> LaunchPlan {
    if of.target.machine.kind == MachineKind::Cpu {
        return LaunchPlan::default();
    }
    let titles: Vec<&str> = launch.bodies.iter().map(|b| b.title.as_str()).collect();
    let site = format!("{} {}", function.full_name(), titles.join(" beside "));
    launch::decided(of, groups, launch.cost.seconds, site, decider)
}

/// A body after mapping to the machine.
pub(crate) struct Mapped {
    /// Nests of the body, in order.
    pub nests: Vec<Id>,
    pub plan: TilePlan,
}

/// Maps the ranges of all bodies of a launch to the machine, as the decider chooses.
pub(crate) fn map(g: &mut Graph, launch: &Launch, with: &mut Emission) -> Vec<Mapped> {
    launch
        .bodies
        .iter()
        .map(|body| mapped(g, body, with))
        .collect()
}

fn mapped(g: &mut Graph, body: &Body, with: &mut Emission) -> Mapped {
    let &mut Emission { slots, target, .. } = with;
    if body.kernel.is_some() {
        return Mapped {
            nests: body.nests.clone(),
            plan: body.plan.clone(),
        };
    }
    // Numbers new ranges after all ranges of the scheduler.
    let last = g
        .toposort(&body.nests)
        .iter()
        .map(|&n| g.range_number(n))
        .max()
        .unwrap_or(0);
    let (mut ranges, mut plan) = (Ranges::after(last), body.plan.clone());
    let (mut nests, mut before) = (Vec::new(), None);
    for (i, &nest) in body.nests.iter().enumerate() {
        let site = format!("{} {} nest {i}", slots.function.full_name(), body.title);
        let site = Decision::new("nest", site, vec![]);
        // A loop that several nests share stays around them unchanged.
        let (bare, shared) = Nest::from_store(g, nest).split_loops(g, RangeKind::Fused);
        let tile = tile_axes::ranges(g, &g[bare].src[3..], &target.machine)
            .and(target.machine.tile_fragment());
        let mapping = Mapping {
            target,
            ranges: &mut ranges,
            site,
            decider: with.decider,
        };
        let (mapped, chosen) = match target.machine.kind {
            _ if let Some(of) = tile => mapping.of_tiles(g, bare, of),
            MachineKind::Cpu => mapping.of_vectors(g, bare),
            MachineKind::Gpu => {
                let before =
                    before.filter(|of| shares_loop(g, nest) && accumulators::fits(g, bare, of));
                mapping.of_threads(g, bare, before)
            }
        };
        before = accumulators_of(g, nest, &chosen).or(before);
        nests.push(Nest::from_store(g, mapped).with_loops(&shared).store(g));
        plan.nests.push(chosen);
    }
    let nests = units::units(g, nests, &plan.nests, &target.machine);
    Mapped { nests, plan }
}

/// Returns the accumulator layout of a nest that fills a stage with a multi-warp MMA product. Every
/// warp must have all columns.
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

/// Returns whether the nest is one of those that share a loop.
fn shares_loop(g: &Graph, nest: Id) -> bool {
    g.toposort(&[nest])
        .into_iter()
        .any(|n| g.range_kind(n) == Some(RangeKind::Fused))
}

/// Inputs for mapping one nest to the machine.
struct Mapping<'a, 'd> {
    target: &'a Target,
    /// Allocates the new ranges.
    ranges: &'a mut Ranges,
    /// The decision on the nest's plan; its options are still empty.
    site: Decision,
    decider: &'a mut Decider<'d>,
}

impl Mapping<'_, '_> {
    /// Returns whether the decider wants alternatives besides the first plan.
    fn explores(&self) -> bool {
        self.decider.explores(&self.site)
    }
    /// Returns the index of the chosen plan. All have cost 0, since the cost model sees neither
    /// threads nor registers, and the first of equal candidates wins.
    fn chosen(&mut self, proposals: &[Proposal<NestPlan>]) -> usize {
        let option = |p: &Proposal<NestPlan>| Alternative {
            name: p.name,
            plan: p.plan.to_string(),
            seconds: 0.0,
        };
        self.decider.choose(Decision {
            options: proposals.iter().map(option).collect(),
            ..self.site.clone()
        })
    }
    /// Maps a nest to GPU threads and returns its plan. The nest may take the accumulator layout of
    /// the preceding product (`before`).
    fn of_threads(
        mut self,
        g: &mut Graph,
        nest: Id,
        before: Option<Accumulators>,
    ) -> (Id, NestPlan) {
        let fused = simt::fused(g, nest);
        let of = ThreadNest {
            store: nest,
            fused,
            accumulators: before,
        };
        let mut proposals = of.proposals(g, self.target, self.explores());
        let plan = proposals.swap_remove(self.chosen(&proposals)).plan;
        let of = if matches!(plan, NestPlan::Warps(_) | NestPlan::Accumulators(_)) {
            nest
        } else {
            fused
        };
        (simt::nest(g, of, &plan, self.target, self.ranges), plan)
    }
    /// Maps a nest that is a product of MMA tiles.
    fn of_tiles(mut self, g: &mut Graph, nest: Id, of: &Fragment) -> (Id, NestPlan) {
        self.chosen(&[Proposal {
            name: FIRST,
            plan: NestPlan::Tiles,
        }]);
        (
            tile_terms::nest(g, nest, of, &self.target.machine, self.ranges),
            NestPlan::Tiles,
        )
    }
    /// Maps a nest to CPU vectors and returns its plan.
    fn of_vectors(mut self, g: &mut Graph, nest: Id) -> (Id, NestPlan) {
        let first = simd::nest(g, nest, None, self.target, self.ranges);
        if !self.explores() {
            self.chosen(&[Proposal {
                name: FIRST,
                plan: first.1.clone(),
            }]);
            return first;
        }
        let mut proposals = propose::vectors::vectors(&first.1);
        match self.chosen(&proposals) {
            0 => first,
            other => match proposals.swap_remove(other).plan {
                NestPlan::Vectors(plan) => {
                    simd::nest(g, nest, Some(&plan), self.target, self.ranges)
                }
                _ => first,
            },
        }
    }
}

/// Verifies the linear code in debug builds, as [`verify`] does between the earlier passes.
fn verify_linear(g: &Graph, code: &KernelCode, target: &Target) {
    let machine = &target.machine;
    if cfg!(debug_assertions)
        && let Err(e) =
            linear_spec::check(g, code).and_then(|()| linear_spec::check_widths(g, code, machine))
    {
        panic!("after lower: {e}");
    }
}
