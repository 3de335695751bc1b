//! Emit: the programs of launches. Nests are mapped to the machine, lowered, printed by the device's dialect, and named by their text.

mod custom;
mod dialect;
mod kernel;
mod launch;

pub use dialect::{CustomCode, CustomDialect, Dialect, Signature};
pub(crate) use kernel::{Slots, verify};

use crate::custom as call;
use crate::decision::{Alternative, Decider, Decision};
use crate::lower::spec as linear_spec;
use crate::lower::{Code, KernelCode, finish, lower_bodies, tiles};
use crate::map::{accumulators, simd, simt, tile_terms, units};
use crate::nest::{Nest, Ranges};
use crate::schedule::{Body, Launch};
use crate::tile::plan::FIRST;
use crate::tile::propose::launch::Launched;
use crate::tile::{Accumulators, NestPlan, Proposal, TilePlan, Warps, propose};
use crate::title::title;
use gristmill_uop::fragment::Fragment;
use gristmill_uop::function::Function;
use gristmill_uop::launch::LaunchPlan;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::program::{KernelContext, Program, When};
use gristmill_uop::spec::Level;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op, RangeKind};
use kernel::{Kernel, fingerprint, sized};
use std::sync::Arc;

/// The program of a launch.
pub(crate) fn program(
    g: &Graph,
    launch: &Launch,
    mapped: &[Mapped],
    slots: &Slots,
    target: &Target,
    dialect: Option<&dyn Dialect>,
    decider: &mut Decider,
) -> Program {
    if let Some((launch, kernel, dialect)) = custom::of(g, launch, dialect) {
        return custom::program(g, launch, kernel, &custom::Around { slots, target, dialect });
    }
    let when: Vec<When> = launch.bodies.iter().map(|b| b.when).collect();
    let nests: Vec<&[Id]> = mapped.iter().map(|m| &m.nests[..]).collect();
    let Kernel { graph: mut own, root, bodies, when } = Kernel::of(g, &nests, &when);
    verify(&own, root, Level::Kernel, "map");
    let (mut signature, groups) = sized(&mut own, &bodies, launch, slots.function, target);
    let params = signature.cut(slots, target);
    // Linear code lives in a copy: `own` stays what the oracle runs.
    let mut linear = own.clone();
    let codes = lower_bodies(&mut linear, &bodies, &when, target);
    signature.place_stages(&linear, &codes);
    let launched = launched(&linear, &codes, launch, &signature, groups, target);
    let plan = launch_plan(&launched, launch, groups, slots.function, decider);
    let context = KernelContext { when, plan, streams: slots.streams.clone() };
    let code = finish(&mut linear, codes, &context, target);
    signature.add_rings(&linear, &code);
    verify_linear(&linear, &code, target);
    let reduces = bodies.iter().flatten().any(|&n| own.any(n, |_, m| m.op == Op::Reduce));
    // Named by what it is, so that equal kernels of different models are one.
    let draft = dialect.map(|d| d.render("KERNEL", &linear, &code, &signature));
    let roots: Vec<Id> = launch.bodies.iter().filter_map(|b| b.root).collect();
    let text = draft.clone().unwrap_or_else(|| format!("{roots:?}"));
    let name = format!("{}_{:016x}", if reduces { "r" } else { "e" }, fingerprint(&text));
    let notes = roots.iter().map(|&r| format!("{:?} {}", g[r].op, g.show_dims(&g.shape(r)))).collect();
    Program {
        source: draft.map(|d| d.replace("KERNEL", &name)).unwrap_or_default(),
        name,
        seconds: launch.price.seconds,
        title: title(&own, root, slots.function, &params),
        params,
        vars: signature.vars.iter().map(|v| v.0.clone()).collect(),
        context,
        groups,
        threads: target.threads,
        scratch: signature.scratch_bytes,
        estimate: launch.price.estimate,
        notes,
        root,
        graph: Arc::new(own),
    }
}

/// A launch of these bodies, in so many workgroups.
fn launched<'a>(
    g: &'a Graph,
    bodies: &'a [Code],
    launch: &Launch,
    signature: &Signature,
    groups: Id,
    target: &'a Target,
) -> Launched<'a> {
    let units = target.machine.units.max(1) as i64;
    let beside = (g.max_of(groups).saturating_add(units - 1)) / units;
    Launched { g, bodies, beside, scratch: signature.scratch_bytes, first: launch.level == 0, target }
}

/// How a launch is run, which is a question of GPUs.
fn launch_plan(of: &Launched, launch: &Launch, groups: Id, function: &Function, decider: &mut Decider) -> LaunchPlan {
    if of.target.machine.kind == MachineKind::Cpu {
        return LaunchPlan::default();
    }
    let titles: Vec<&str> = launch.bodies.iter().map(|b| b.title.as_str()).collect();
    let site = format!("{} {}", function.name, titles.join(" beside "));
    launch::decided(of, groups, launch.price.seconds, site, decider)
}

/// A body whose ranges are mapped to the machine.
pub(crate) struct Mapped {
    /// Its nests.
    pub nests: Vec<Id>,
    /// How it is computed.
    pub plan: TilePlan,
}

/// The bodies of a launch of that function, with their ranges mapped to the machine as is decided.
pub(crate) fn map(
    g: &mut Graph,
    launch: &Launch,
    function: &str,
    target: &Target,
    decider: &mut Decider,
) -> Vec<Mapped> {
    let mut body = |body: &Body| {
        if call::value(g, &body.nests).is_some() {
            return Mapped { nests: body.nests.clone(), plan: body.plan.clone() };
        }
        // New ranges are numbered after all of the scheduler's.
        let last = g.toposort(&body.nests).iter().map(|&n| g.range_number(n)).max().unwrap_or(0);
        let (mut ranges, mut plan) = (Ranges::after(last), body.plan.clone());
        let (mut nests, mut before) = (Vec::new(), None);
        for (i, &nest) in body.nests.iter().enumerate() {
            let site = format!("{function} {} nest {i}", body.title);
            let site = Decision::new("nest", site, vec![]);
            // A loop that nests share stays around them as it is.
            let (bare, shared) = Nest::of(g, nest).apart(g, RangeKind::Fused);
            let tile = tiles::ranges(g, &g[bare].src[3..], &target.machine).and(target.machine.tile_fragment());
            let (mapped, chosen) = match target.machine.kind {
                _ if let Some(of) = tile => of_tiles(g, bare, of, target, &mut ranges, site, decider),
                MachineKind::Cpu => of_vectors(g, bare, target, &mut ranges, site, decider),
                MachineKind::Gpu => {
                    let before = before.filter(|of| shares_loop(g, nest) && accumulators::fits(g, bare, of));
                    of_threads(g, bare, before, target, &mut ranges, site, decider)
                }
            };
            before = accumulators_of(g, nest, &chosen).or(before);
            nests.push(Nest::of(g, mapped).within(&shared).store(g));
            plan.nests.push(chosen);
        }
        let nests = units::units(g, nests, &plan.nests, &target.machine);
        Mapped { nests, plan }
    };
    launch.bodies.iter().map(&mut body).collect()
}

/// One of these plans. The price sees neither threads nor registers: of equals the first is taken.
fn chosen(of: Decision, proposals: &[Proposal<NestPlan>], decider: &mut Decider) -> usize {
    let option = |p: &Proposal<NestPlan>| Alternative { name: p.name, plan: p.plan.to_string(), seconds: 0.0 };
    decider.choose(Decision { options: proposals.iter().map(option).collect(), ..of })
}

/// The accumulators of a nest that fills a stage with a product of several warps, each of which has all columns.
fn accumulators_of(g: &Graph, nest: Id, plan: &NestPlan) -> Option<Accumulators> {
    let &NestPlan::Warps(Warps { groups: true, rows, columns: 1, wide, tall: 1, .. }) = plan else { return None };
    (g[Nest::of(g, nest).buffer].op == Op::Local).then_some(Accumulators { rows, wide })
}

/// Is it one of the nests that share a loop?
fn shares_loop(g: &Graph, nest: Id) -> bool {
    g.toposort(&[nest]).into_iter().any(|n| g.range_kind(n) == Some(RangeKind::Fused))
}

/// A nest shared by threads, and how.
fn of_threads(
    g: &mut Graph,
    nest: Id,
    before: Option<Accumulators>,
    target: &Target,
    ranges: &mut Ranges,
    site: Decision,
    decider: &mut Decider,
) -> (Id, NestPlan) {
    let fused = simt::fused(g, nest);
    let mut proposals = propose::nest::of_threads(g, nest, fused, before, target, decider.explores(&site));
    let plan = proposals.swap_remove(chosen(site, &proposals, decider)).plan;
    let of = if matches!(plan, NestPlan::Warps(_) | NestPlan::Accumulators(_)) { nest } else { fused };
    (simt::nest(g, of, &plan, target, ranges), plan)
}

/// A nest that is a product of tiles.
fn of_tiles(
    g: &mut Graph,
    nest: Id,
    of: &Fragment,
    target: &Target,
    ranges: &mut Ranges,
    site: Decision,
    decider: &mut Decider,
) -> (Id, NestPlan) {
    chosen(site, &[Proposal { name: FIRST, plan: NestPlan::Tiles }], decider);
    (tile_terms::nest(g, nest, of, &target.machine, ranges), NestPlan::Tiles)
}

/// A nest of vectors, and how.
fn of_vectors(
    g: &mut Graph,
    nest: Id,
    target: &Target,
    ranges: &mut Ranges,
    site: Decision,
    decider: &mut Decider,
) -> (Id, NestPlan) {
    let first = simd::nest(g, nest, None, target, ranges);
    if !decider.explores(&site) {
        chosen(site, &[Proposal { name: FIRST, plan: first.1.clone() }], decider);
        return first;
    }
    let mut proposals = propose::vectors::vectors(&first.1);
    match chosen(site, &proposals, decider) {
        0 => first,
        other => match proposals.swap_remove(other).plan {
            NestPlan::Vectors(plan) => simd::nest(g, nest, Some(&plan), target, ranges),
            _ => first,
        },
    }
}

/// After lowering, as [`verify`] between the passes before.
fn verify_linear(g: &Graph, code: &KernelCode, target: &Target) {
    let machine = &target.machine;
    if cfg!(debug_assertions)
        && let Err(e) = linear_spec::check(g, code).and_then(|()| linear_spec::check_widths(g, code, machine))
    {
        panic!("after lower: {e}");
    }
}
