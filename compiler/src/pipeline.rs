//! The pipeline, top to bottom: from a captured function to programs.

use crate::custom;
use crate::decision::{Decider, Decision, Policy};
use crate::decompose::attention::plan::AttentionPlan;
use crate::decompose::{attention, int8, layouts, scan};
use crate::emit::{Dialect, Slots, map, program, verify};
use crate::layout::Layout;
use crate::schedule::{self, Decomposed, Launch, TEMP};
use crate::tile::text::ParseError;
use crate::tile::{NestPlan, StagePlan, TilePlan, Workgroup};
use crate::watch::Watch;
use gristmill_uop::function::{Function, SlotKind, Storage};
use gristmill_uop::launch::LaunchPlan;
use gristmill_uop::program::{Extent, Program};
use gristmill_uop::spec::Level;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, Sources};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// A compiled function.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Programs, one for each launch, in order.
    pub programs: Vec<Arc<Program>>,
    /// Level of each launch.
    pub levels: Vec<usize>,
    /// Layout that each packed slot must have; the file's for those that are not listed.
    pub layouts: Vec<(u32, Layout)>,
    /// Bytes and arena offset of each intermediate; its slot is its number plus [`TEMP`].
    pub temps: Vec<(usize, usize)>,
    /// Bytes of the arena.
    pub arena: usize,
    /// How each launch is computed: a plan for each of its bodies.
    pub plans: Vec<Vec<TilePlan>>,
    /// What was decided; nothing of what was read from a [`record`](crate::record).
    pub decisions: Vec<Decision>,
    /// Which rules fired, and how often, also for kernels that were only tried; nothing of what was read from a record.
    pub rules: Vec<(&'static str, u32)>,
    /// Modelled seconds of one call: the sum over its launches.
    pub seconds: f64,
}

/// Compiles a function for a target.
pub fn compile(
    function: &Function,
    target: &Target,
    dialect: Option<&dyn Dialect>,
    policy: &mut dyn Policy,
) -> Compiled {
    compile_watched(function, target, dialect, policy, &mut ())
}

/// The same, looked on by somebody.
pub fn compile_watched(
    function: &Function,
    target: &Target,
    dialect: Option<&dyn Dialect>,
    policy: &mut dyn Policy,
    watch: &mut dyn Watch,
) -> Compiled {
    let mut decider = Decider { policy, plans: &target.plans, log: Vec::new() };
    // decompose: named ops in terms of others.
    let (mut graph, mut hints) = (function.graph.clone(), FxHashMap::default());
    let mut roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    watch.pass("captured", &mut graph, &roots);
    custom::resolve(&mut graph, &mut roots, dialect);
    scan::expand(&mut graph, &mut roots);
    watch.pass("scan", &mut graph, &roots);
    attention::expand(&mut graph, &mut roots, &mut hints, target, &function.name, &mut decider);
    watch.pass("attention", &mut graph, &roots);
    let derived = int8::derive(&mut graph, &mut roots, &mut hints, function, target);
    watch.pass("int8", &mut graph, &roots);
    let outputs = apart(&mut graph, function, &roots);
    roots = outputs.iter().map(|o| o.1).collect();
    watch.pass("outputs", &mut graph, &roots);
    for &(_, root) in &outputs {
        verify(&graph, root, Level::Tensor, "decompose");
    }
    let mut layouts: Vec<(u32, Layout)> = derived.layouts.iter().map(|(&slot, l)| (slot, l.0)).collect();
    layouts.sort_by_key(|l| l.0);
    decider.log.extend(layouts::told(function, &layouts, target));
    // materialise, merge, plan memory.
    let of = Decomposed { function, outputs: &outputs, hints: &hints, derived: &derived };
    let scheduled = schedule::schedule(&of, graph, target, &mut decider);
    let mut graph = scheduled.graph;
    watch.pass("schedule", &mut graph, &nests_of(&scheduled.launches));
    // map, lower, render: kernel by kernel.
    let extent = |slot| match temp(&scheduled.temps, slot) {
        Some((bytes, _)) => Extent::Fixed(bytes),
        None => Extent::Fixed(slot_bytes(function, &layouts, slot)),
    };
    let slots = Slots { function, streams: layouts.iter().map(|l| l.0).collect(), extent: &extent };
    let (mut programs, mut plans, mut nests) = (Vec::new(), Vec::new(), Vec::new());
    let mut seconds = 0.0;
    for launch in &scheduled.launches {
        seconds += launch.price.seconds;
        let mapped = map(&mut graph, launch, &function.name, target, &mut decider);
        programs.push(Arc::new(program(&graph, launch, &mapped, &slots, target, dialect, &mut decider)));
        nests.extend(mapped.iter().flat_map(|m| &m.nests));
        plans.push(mapped.into_iter().map(|m| m.plan).collect());
    }
    watch.pass("map", &mut graph, &nests);
    Compiled {
        programs,
        plans,
        layouts,
        levels: scheduled.launches.iter().map(|l| l.level).collect(),
        temps: scheduled.temps,
        arena: scheduled.arena,
        decisions: decider.log,
        rules: gristmill_uop::rules::fired(&graph),
        seconds,
    }
}

/// The nests of all kernels.
fn nests_of(launches: &[Launch]) -> Vec<Id> {
    launches.iter().flat_map(|launch| &launch.bodies).flat_map(|body| &body.nests).copied().collect()
}

/// Bytes of a function's own slot in its layout. More than any buffer has where they cannot be counted, so that no launch is made of it.
fn slot_bytes(function: &Function, layouts: &[(u32, Layout)], number: u32) -> usize {
    let slot = &function.slots[number as usize];
    let layout = layouts.iter().find(|l| l.0 == number).map_or(Layout::File, |l| l.1);
    let bytes = match slot.storage {
        Storage::Plain(_) => slot.storage.bytes(&slot.dims),
        Storage::Packed(e) => layout.bytes(e, &slot.dims),
    };
    bytes.unwrap_or(usize::MAX)
}

/// Bytes and arena offset of the intermediate of that slot, if it is one.
fn temp(temps: &[(usize, usize)], slot: u32) -> Option<(usize, usize)> {
    temps.get(slot.checked_sub(TEMP)? as usize).copied()
}

/// The outputs, each with a node of its own, since a node is written to one place: what another slot has already, or has as its state, is copied.
fn apart(g: &mut Graph, function: &Function, roots: &[Id]) -> Vec<(u32, Id)> {
    let mut taken: FxHashSet<Id> = FxHashSet::default();
    let own = |(&(slot, _), &root): (&(u32, Id), &Id)| {
        let mut node = root;
        if function.slots[slot as usize].kind != SlotKind::State {
            while g[node].op == Op::Assign || !taken.insert(node) {
                let dtype = g[node].dtype;
                let src: Sources = std::iter::once(node).chain(g.shape(node)).collect();
                // Not built: the rules know that it is the same.
                node = g.intern(Node { op: Op::Reshape, dtype, src, arg: Arg::None });
            }
        }
        (slot, node)
    };
    function.outputs.iter().zip(roots).map(own).collect()
}

impl Compiled {
    /// Bytes and arena offset of a slot that is an intermediate; `None` for the function's own slots.
    pub fn temp(&self, slot: u32) -> Option<(usize, usize)> {
        temp(&self.temps, slot)
    }
}

/// Is that the text of something that decisions choose: what a workgroup computes, how a nest is mapped, how an attention is divided, how a launch
/// is run?
///
/// # Errors
/// The words that no plan has there.
pub fn check_plan(text: &str) -> Result<(), ParseError> {
    match text.trim_start().split_once(':').map(|t| t.0) {
        Some("workgroup") => text.parse::<Workgroup>().map(drop),
        Some("attention") => text.parse::<AttentionPlan>().map(drop),
        Some("stages") => text.parse::<StagePlan>().map(drop),
        Some("launch") => text.parse::<LaunchPlan>().map(drop).map_err(ParseError),
        _ => text.parse::<NestPlan>().map(drop),
    }
}
