//! Emit: the programs of launches. Nests are mapped to the machine, lowered, printed by the device's dialect, and named by their text.

mod custom;
mod launch;

use crate::custom as call;
use crate::decision::{Alternative, Decider, Decision};
use crate::lower::spec as linear_spec;
use crate::lower::{Code, KernelCode, finish, lower_bodies, tiles};
use crate::map::{simd, simt, tile_terms};
use crate::nest::{Ranges, global_ranges};
use crate::schedule::{Body, Launch};
use crate::tile::plan::FIRST;
use crate::tile::propose::launch::Launched;
use crate::tile::{NestPlan, Proposal, TilePlan, propose};
use crate::title::title;
use gristmill_uop::custom::CustomRef;
use gristmill_uop::function::{Function, SlotKind};
use gristmill_uop::launch::LaunchPlan;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::program::{Access, Extent, KernelContext, Param, Program, When};
use gristmill_uop::spec::{self, Level};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, Sources};
use rustc_hash::FxHashMap;
use smallvec::smallvec;
use std::sync::Arc;

/// Turns linear code into a device's text. What differs between devices is here; everything before is shared.
pub trait Dialect: Send + Sync {
    /// What texts of users' own kernels are found by; none where they are computed by their references alone.
    fn language(&self) -> Option<&'static str> {
        None
    }
    /// The text of a kernel named `name` around a user's text, in a dialect whose language users write.
    fn render_custom(&self, name: &str, _: &Graph, code: &CustomCode, _: &Signature) -> String {
        unreachable!("{name}: {:?} has no text in this dialect", code.kernel)
    }
    /// The text of a kernel named `name`, which runs the bodies of `code` side by side over the launch. All that there is to decide stands in `code`.
    fn render(&self, name: &str, graph: &Graph, code: &KernelCode, signature: &Signature) -> String;
}

/// A kernel of the user's own, on its way to text.
#[derive(Clone, Copy, Debug)]
pub struct CustomCode {
    /// Which.
    pub kernel: CustomRef,
    /// The parameter that it writes.
    pub output: Id,
    /// The value that stands for it: what it reads are the sources, loads of parameters and variables; the last is its number of workgroups.
    pub value: Id,
    /// Threads of a workgroup.
    pub threads: usize,
}

/// The arguments of a kernel.
#[derive(Clone, Debug)]
pub struct Signature {
    /// Slots in the order of the buffer arguments, with how each is used and the node that stands for it.
    pub params: Vec<(u32, Access, Id)>,
    /// Variables in the order of the scalar arguments, with the nodes that stand for them.
    pub vars: Vec<(Arc<str>, Id)>,
    /// Number of workgroups of each body.
    pub groups: Vec<Id>,
    /// Offset of each workgroup buffer in a worker's scratch.
    pub scratch: Vec<(Id, usize)>,
    /// Bytes of scratch.
    pub scratch_bytes: usize,
}

/// What is known of the slots of a function's kernels.
pub(crate) struct Slots<'a> {
    pub function: &'a Function,
    /// Those whose rows are interleaved.
    pub streams: Vec<u32>,
    /// How much of a slot's buffer a kernel may touch.
    pub extent: &'a dyn Fn(u32) -> Extent,
}

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
    let (signature, groups) = sized(&mut own, &bodies, launch, slots.function, target);
    // Linear code lives in a copy: `own` stays what the oracle runs.
    let mut linear = own.clone();
    let codes = lower_bodies(&mut linear, &bodies, &when, target);
    let launched = launched(&linear, &codes, launch, &signature, groups, target);
    let plan = launch_plan(&launched, launch, groups, slots.function, decider);
    let context = KernelContext { when, plan, streams: slots.streams.clone() };
    let code = finish(&linear, codes, &context, target);
    verify_linear(&linear, &code, target);
    let reduces = bodies.iter().flatten().any(|&n| own.any(n, |_, m| m.op == Op::Reduce));
    // Named by what it is, so that equal kernels of different models are one.
    let draft = dialect.map(|d| d.render("KERNEL", &linear, &code, &signature));
    let roots: Vec<Id> = launch.bodies.iter().filter_map(|b| b.root).collect();
    let text = draft.clone().unwrap_or_else(|| format!("{roots:?}"));
    let name = format!("{}_{:016x}", if reduces { "r" } else { "e" }, fingerprint(&text));
    let notes = roots.iter().map(|&r| format!("{:?} {}", g[r].op, g.show_dims(&g.shape(r)))).collect();
    let params: Vec<Param> =
        signature.params.iter().map(|p| Param { slot: p.0, access: p.1, extent: (slots.extent)(p.0) }).collect();
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
        let mut nests = Vec::new();
        for (i, &nest) in body.nests.iter().enumerate() {
            let site = format!("{function} {} nest {i}", body.title);
            let site = Decision::new("nest", site, vec![]);
            let (mapped, chosen) = match target.machine.kind {
                MachineKind::Cpu => of_vectors(g, nest, target, &mut ranges, site, decider),
                MachineKind::Gpu => of_threads(g, nest, target, &mut ranges, site, decider),
            };
            nests.push(mapped);
            plan.nests.push(chosen);
        }
        Mapped { nests, plan }
    };
    launch.bodies.iter().map(&mut body).collect()
}

/// One of these plans. The price sees neither threads nor registers: of equals the first is taken.
fn chosen(of: Decision, proposals: &[Proposal<NestPlan>], decider: &mut Decider) -> usize {
    let option = |p: &Proposal<NestPlan>| Alternative { name: p.name, plan: p.plan.to_string(), seconds: 0.0 };
    decider.choose(Decision { options: proposals.iter().map(option).collect(), ..of })
}

/// A nest shared by threads, and how.
fn of_threads(
    g: &mut Graph,
    nest: Id,
    target: &Target,
    ranges: &mut Ranges,
    site: Decision,
    decider: &mut Decider,
) -> (Id, NestPlan) {
    let fused = simt::fused(g, nest);
    let mut proposals = propose::nest::of_threads(g, nest, fused, target, decider.explores(&site));
    let plan = proposals.swap_remove(chosen(site, &proposals, decider)).plan;
    let of = if matches!(plan, NestPlan::Warps(_)) { nest } else { fused };
    (simt::nest(g, of, &plan, target, ranges), plan)
}

/// A nest of vectors, or of tiles, and how.
fn of_vectors(
    g: &mut Graph,
    nest: Id,
    target: &Target,
    ranges: &mut Ranges,
    site: Decision,
    decider: &mut Decider,
) -> (Id, NestPlan) {
    if tiles::ranges(g, &g[nest].src[3..], target).is_some() {
        chosen(site, &[Proposal { name: FIRST, plan: NestPlan::Tiles }], decider);
        let nest = target.machine.tile_fragment().map_or(nest, |of| tile_terms::nest(g, nest, of, ranges));
        return (nest, NestPlan::Tiles);
    }
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

/// A kernel in a graph of its own: for `interp`, for the text form, and to be lowered.
struct Kernel {
    graph: Graph,
    root: Id,
    /// Nests of each body.
    bodies: Vec<Vec<Id>>,
    when: Vec<When>,
}

impl Kernel {
    /// Of these nests of `g`, and what holds for the workgroups of each body.
    fn of(g: &Graph, bodies: &[&[Id]], when: &[When]) -> Kernel {
        let mut own = Graph::new();
        let mut map = FxHashMap::default();
        let bodies: Vec<Vec<Id>> =
            bodies.iter().map(|nests| nests.iter().map(|&n| strip(g, &mut own, n, &mut map)).collect()).collect();
        let body_nodes: Sources = bodies
            .iter()
            .map(|nests| {
                let src: Sources = nests.iter().copied().collect();
                let dtype = own[src[0]].dtype;
                own.intern(Node { op: Op::Body, dtype, src, arg: Arg::None })
            })
            .collect();
        let mut stripped = |x: Option<Id>| x.map(|x| strip(g, &mut own, x, &mut map));
        let when = when.iter().map(|w| When { skip: stripped(w.skip), early: stripped(w.early), ..*w }).collect();
        let dtype = own[body_nodes[0]].dtype;
        let root = own.intern(Node { op: Op::Kernel, dtype, src: body_nodes, arg: Arg::None });
        Kernel { graph: own, root, bodies, when }
    }
}

/// The arguments of a kernel on its machine, and the number of its workgroups.
fn sized(g: &mut Graph, bodies: &[Vec<Id>], launch: &Launch, function: &Function, target: &Target) -> (Signature, Id) {
    let mut signature = signature(g, bodies, function);
    // More than half of what there is leaves no room for another.
    if launch.bodies.iter().any(|b| b.when.alone) {
        signature.scratch_bytes = signature.scratch_bytes.max((target.machine.shared_per_workgroup / 2 + 64) & !63);
    }
    let zero = g.int(0);
    let groups = signature.groups.iter().fold(zero, |sum, &n| g.add(sum, n));
    (signature, groups)
}

/// A nest in a graph of its own, PARAMs without their dims.
fn strip(from: &Graph, to: &mut Graph, nest: Id, map: &mut FxHashMap<Id, Id>) -> Id {
    for id in from.toposort(&[nest]) {
        if map.contains_key(&id) {
            continue;
        }
        let node = &from[id];
        let src: Sources = if node.op == Op::Param { smallvec![] } else { node.src.iter().map(|s| map[s]).collect() };
        let new = to.intern(Node { op: node.op, dtype: node.dtype, src, arg: node.arg.clone() });
        map.insert(id, new);
    }
    map[&nest]
}

/// The arguments of a kernel of these bodies.
fn signature(g: &mut Graph, bodies: &[Vec<Id>], function: &Function) -> Signature {
    let mut params: Vec<(u32, Access, Id)> = Vec::new();
    let mut vars: Vec<(Arc<str>, Id)> = Vec::new();
    let mut scratch: Vec<(Id, usize)> = Vec::new();
    let mut scratch_bytes = 0;
    let mut groups = Vec::new();
    for nests in bodies {
        let bytes_of = |g: &Graph, n: Id| {
            let elements = g.int_value(g[n].src[0]).unwrap_or(0) as usize;
            (elements * g[n].dtype.scalar.bytes()).next_multiple_of(64)
        };
        let order = g.toposort(nests);
        // Stages of equal number and size are one node in every body: what this body adds comes after those it shares.
        let shared = scratch.iter().filter(|s| order.contains(&s.0)).map(|s| s.1 + bytes_of(g, s.0));
        let mut size = shared.max().unwrap_or(0);
        for &n in &order {
            let node = &g[n];
            match (&node.op, &node.arg) {
                (Op::Param, Arg::Param(slot) | Arg::Packed(slot, _)) if !params.iter().any(|p| p.0 == *slot) => {
                    params.push((*slot, Access::Read, n));
                }
                (Op::Var, Arg::Var(name, ..)) if !vars.iter().any(|v| v.0 == *name) => vars.push((name.clone(), n)),
                (Op::Local, _) if !scratch.iter().any(|s| s.0 == n) => {
                    scratch.push((n, size));
                    size += bytes_of(g, n);
                }
                _ => {}
            }
        }
        scratch_bytes = scratch_bytes.max(size);
        for &n in nests {
            let buffer = g[n].src[0];
            if let Arg::Param(slot) | Arg::Packed(slot, _) = g[buffer].arg {
                let state = function.slots.get(slot as usize).is_some_and(|s| s.kind == SlotKind::State);
                for p in params.iter_mut().filter(|p| p.0 == slot) {
                    p.1 = if state { Access::ReadWrite } else { Access::Write };
                }
            }
        }
        let one = g.int(1);
        let bounds: Vec<Id> = global_ranges(g, nests).iter().map(|&r| g[r].src[0]).collect();
        groups.push(bounds.iter().fold(one, |p, &b| g.mul(p, b)));
    }
    Signature { params, vars, groups, scratch, scratch_bytes }
}

/// Between passes, in tests and debug builds: the graph keeps to what its level allows. A failure is a bug of the pass before.
pub(crate) fn verify(g: &Graph, root: Id, level: Level, after: &str) {
    if cfg!(debug_assertions)
        && let Err(e) = spec::check(g, root, level)
    {
        panic!("after {after}: {e}");
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

/// FNV-1a, 64 bits: kernels are named by it; the store on disk has a real hash.
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ b as u64).wrapping_mul(0x100_0000_01b3))
}
