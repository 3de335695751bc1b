//! The compilation pipeline, from a captured function to programs.

use crate::alternatives::{self, cache_rows};
use crate::custom;
use crate::decision::{Decider, Decision, Pair, Policy};
use crate::decompose::attention;
use crate::decompose::attention::plan::AttentionPlan;
use crate::decompose::{matmul_variant, scatter};
use crate::emit::{CustomDialect, Dialect, Emission, Slots, map, program};
use crate::ir::layout::Layout;
use crate::ir::parse::ParseError;
use crate::plan::{KernelPlan, NestPlan, StagePlan, Workgroup};
use crate::planned::{Planned, planned};
use crate::schedule::{Launch, TEMP, select_plan};
use crate::watch::Watch;
use gristmill_uop::Id;
use gristmill_uop::function::{Function, Storage};
use gristmill_uop::launch::LaunchPlan;
use gristmill_uop::program::{Extent, Program};
use gristmill_uop::target::Target;
use std::sync::Arc;

/// Result of compiling a function.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Programs, one for each launch, in execution order.
    pub programs: Vec<Arc<Program>>,
    /// Dependency level of each launch.
    pub levels: Vec<usize>,
    /// Layout that each packed slot must have. Slots that are not listed use the file layout.
    pub layouts: Vec<(u32, Layout)>,
    /// Bytes and arena offset of each intermediate; its slot is its index plus [`TEMP`].
    pub temps: Vec<(usize, usize)>,
    /// Size of the arena of intermediates in bytes.
    pub arena: usize,
    /// Plan of each launch.
    pub plans: Vec<KernelPlan>,
    /// Log of decisions; empty if the function was read from a [`record`](crate::record).
    pub decisions: Vec<Decision>,
    /// Rules that fired and how often, including in kernels that were only tried; empty if
    /// read from a record.
    pub rules: Vec<(&'static str, u32)>,
    /// Modelled seconds of one call, summed over the launches.
    pub seconds: f64,
    /// Values that attention's partial result holds for one query row and one chunk of the KV
    /// cache. The maximum over the attentions of the function, in their chosen form.
    pub partial: usize,
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

/// Compiles as [`compile`] does, and passes the graph after each pass to `watch`.
pub fn compile_watched(
    function: &Function,
    target: &Target,
    dialect: Option<&dyn Dialect>,
    policy: &mut dyn Policy,
    watch: &mut dyn Watch,
) -> Compiled {
    let mut decider = Decider {
        policy,
        plans: &target.plans,
        log: Vec::new(),
    };
    let function = &captured(function, dialect, watch);
    // rows: attention over a quantised KV cache as it is stored, or dequantised to f16.
    let dequantised = cache_rows::choose(function, target, &mut decider);
    let function = dequantised.as_ref().unwrap_or(function);
    // alternatives: the cheapest of all forms of the body that the rewrite rules derive.
    let chosen = alternatives::choose(function, target, &mut decider);
    let function = chosen.as_ref().unwrap_or(function);
    watch.pass(
        "alternatives",
        &mut function.graph.clone(),
        &roots(function),
    );
    // decompose, materialise, fuse launches, plan memory.
    let Planned { scheduled, layouts } = planned(function, target, &mut decider, false, watch);
    let (mut graph, mut launches) = (scheduled.graph, scheduled.launches);
    for launch in &mut launches {
        select_plan(&graph, launch, function, target, &mut decider);
    }
    watch.pass("schedule", &mut graph, &nests_of(&launches));
    // map, lower, render: kernel by kernel.
    let extent = |slot| match temp(&scheduled.temps, slot) {
        Some((bytes, _)) => Extent::Fixed(bytes),
        None => Extent::Fixed(slot_bytes(function, &layouts, slot)),
    };
    let slots = Slots {
        function,
        streams: layouts.iter().map(|l| l.0).collect(),
        extent: &extent,
    };
    let (mut programs, mut plans, mut nests) = (Vec::new(), Vec::new(), Vec::new());
    let mut seconds = 0.0;
    let with = Emission {
        slots: &slots,
        target,
        dialect,
    };
    for launch in &launches {
        seconds += launch.cost.seconds;
        let mapped = map(&mut graph, launch, target);
        programs.push(Arc::new(program(&graph, launch, &mapped, &with)));
        nests.extend(mapped.into_iter().flatten());
        plans.push(launch.plan.clone());
    }
    watch.pass("map", &mut graph, &nests);
    Compiled {
        programs,
        plans,
        layouts,
        levels: launches.iter().map(|l| l.level).collect(),
        temps: scheduled.temps,
        arena: scheduled.arena,
        partial: attention::partial(function, &decider.log),
        decisions: decider.log,
        rules: gristmill_uop::rules::fired(&graph),
        seconds,
    }
}

/// Output nodes of a function.
fn roots(function: &Function) -> Vec<Id> {
    function.outputs.iter().map(|o| o.1).collect()
}

/// The function with each `Op::Call` resolved: to a custom kernel if the device has source text for
/// it, else to its reference.
fn captured(function: &Function, dialect: Option<&dyn Dialect>, watch: &mut dyn Watch) -> Function {
    let (mut graph, mut roots) = (function.graph.clone(), roots(function));
    watch.pass("captured", &mut graph, &roots);
    custom::resolve(
        &mut graph,
        &mut roots,
        dialect
            .and_then(Dialect::custom)
            .map(CustomDialect::language),
    );
    let outputs = function
        .outputs
        .iter()
        .zip(roots)
        .map(|(output, root)| (output.0, root))
        .collect();
    Function {
        graph,
        outputs,
        ..function.clone()
    }
}

/// Nests of all kernels.
fn nests_of(launches: &[Launch]) -> Vec<Id> {
    launches
        .iter()
        .flat_map(|launch| &launch.bodies)
        .flat_map(|body| &body.nests)
        .copied()
        .collect()
}

/// Bytes of one of the function's own slots in its layout. `usize::MAX` if they cannot be counted,
/// so that no launch is built from it.
fn slot_bytes(function: &Function, layouts: &[(u32, Layout)], number: u32) -> usize {
    let slot = &function.slots[number as usize];
    let layout = layouts
        .iter()
        .find(|l| l.0 == number)
        .map_or(Layout::File, |l| l.1);
    let bytes = match slot.storage {
        Storage::Plain(_) => slot.storage.bytes(&slot.dims),
        Storage::Packed(e) => layout.bytes(e, &slot.dims),
    };
    bytes.unwrap_or(usize::MAX)
}

/// Bytes and arena offset of the intermediate in that slot; `None` for other slots.
fn temp(temps: &[(usize, usize)], slot: u32) -> Option<(usize, usize)> {
    temps.get(slot.checked_sub(TEMP)? as usize).copied()
}

impl Compiled {
    /// Bytes and arena offset of an intermediate's slot; `None` for the function's own slots.
    pub fn temp(&self, slot: u32) -> Option<(usize, usize)> {
        temp(&self.temps, slot)
    }
}

/// Checks that `text` is a plan of some kind of decision: layout, workgroup, stages, nest,
/// attention, product variant, scatter variant, launch, or one of the named pairs.
///
/// # Errors
/// The words that do not parse.
pub fn check_plan(text: &str) -> Result<(), ParseError> {
    if Pair::ALL.iter().any(|pair| pair.has(text)) {
        return Ok(());
    }
    match text.trim_start().split_once(':').map(|t| t.0) {
        Some("workgroup") => text.parse::<Workgroup>().map(drop),
        Some("layout") => text.parse::<Layout>().map(drop),
        Some("attention") => text.parse::<AttentionPlan>().map(drop),
        Some("stages") => text.parse::<StagePlan>().map(drop),
        Some("product") => text.parse::<matmul_variant::MatmulVariant>().map(drop),
        Some("scatter") => text.parse::<scatter::ScatterVariant>().map(drop),
        Some("launch") => text.parse::<LaunchPlan>().map(drop).map_err(ParseError),
        _ => text.parse::<NestPlan>().map(drop),
    }
}
