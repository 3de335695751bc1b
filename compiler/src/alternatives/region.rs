//! Costs a form by scheduling the part of the body in which forms differ as a function of its own.
//!
//! Scheduling takes most of a layer's compile time, so the whole layer is scheduled only in its
//! chosen form. Values common to all forms are inputs of the part, except movements and reads of
//! weights and of the KV cache, which are duplicated into it. The cost therefore ignores fusion of
//! the part's first and last kernels with the rest of the layer; that effect is about equal for all
//! forms. Equal parts share one cost across functions ([`part`]).

use super::part::{self, Subfunction};
use crate::decision::{Cheapest, Decider, Decision, Policy};
use crate::decompose::attention::plan::{AttentionPlan, FEW};
use crate::decompose::f16_split;
use crate::planned::planned;
use gristmill_uop::concurrent::map_each;
use gristmill_uop::function::{Function, Slot, SlotKind, Storage};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// Returns the part of each form, given the nodes of its outputs. All forms are nodes of one graph.
pub fn parts(
    graph: &Graph,
    function: &Function,
    forms: &[Vec<Id>],
    target: &Target,
) -> Vec<Subfunction> {
    let mut shared = shared(graph, forms);
    if target.machine.kind == MachineKind::Gpu {
        // In a prefill, values rounded to f16 for GPU fragments are rounded in the part too: as f32
        // inputs they would not fit into stages.
        let of_prompt = |id: Id| {
            graph
                .dims(id)
                .first()
                .is_some_and(|&n| graph.max_of(n) > FEW)
        };
        shared.retain(|&id| !(f16_split::rounded(graph, id) && of_prompt(id)));
    }
    forms
        .iter()
        .map(|outputs| one(graph, function, outputs, &shared))
        .collect()
}

/// Seconds of each part. Parts are scheduled in parallel threads.
pub fn seconds(parts: &[Subfunction], target: &Target) -> Vec<f64> {
    map_each(parts, |part| part::cost(part, target, scheduled))
}

/// Picks the cheapest option, but never an online loop for attention. Its cost counts all
/// iterations, including those in tokens' future, most of which a chunked kernel skips. Forms are
/// compared by kernels with comparable costs.
struct InChunks;

impl Policy for InChunks {
    fn choose(&mut self, decision: &Decision) -> usize {
        let chosen = Cheapest.choose(decision);
        let online = |plan: &str| plan.parse().is_ok_and(|plan: AttentionPlan| plan.online);
        if decision.kind == "attention" && online(&decision.options[chosen].plan) {
            0
        } else {
            chosen
        }
    }
    fn explores(&self) -> bool {
        Cheapest.explores()
    }
}

/// Schedules a part and returns its cost in seconds.
fn scheduled(part: &Subfunction, target: &Target) -> f64 {
    cost(&part.function(), target, &mut decider(&mut InChunks))
}

/// Returns the cost of a part in its best form, in seconds.
pub(super) fn best_seconds(
    part: &Subfunction,
    target: &Target,
    choose: impl FnOnce(&Function, &mut Decider) -> Option<Function>,
) -> f64 {
    let function = part.function();
    let mut policy = InChunks;
    let mut decider = decider(&mut policy);
    let chosen = choose(&function, &mut decider);
    cost(chosen.as_ref().unwrap_or(&function), target, &mut decider)
}

fn decider(policy: &mut InChunks) -> Decider<'_> {
    static NONE: BTreeMap<String, String> = BTreeMap::new();
    Decider {
        policy,
        plans: &NONE,
        log: vec![],
    }
}

/// Schedules a function and returns the cost of its launches in seconds.
fn cost(function: &Function, target: &Target, decider: &mut Decider) -> f64 {
    let planned = planned(function, target, decider, true, &mut ());
    planned
        .scheduled
        .launches
        .iter()
        .map(|l| l.cost.seconds)
        .sum()
}

/// Nodes that all forms need.
pub(super) fn shared(graph: &Graph, forms: &[Vec<Id>]) -> FxHashSet<Id> {
    let needed = |outputs: &Vec<Id>| {
        graph
            .toposort(outputs)
            .into_iter()
            .collect::<FxHashSet<Id>>()
    };
    let Some((first, rest)) = forms.split_first() else {
        return FxHashSet::default();
    };
    let mut all = needed(first);
    for outputs in rest {
        let other = needed(outputs);
        all.retain(|n| other.contains(n));
    }
    all
}

/// Whether a node is a read or a movement, which the part duplicates.
fn is_read(graph: &Graph, id: Id) -> bool {
    let op = graph[id].op;
    let source = matches!(op, Op::Param | Op::Const | Op::Var | Op::Iota);
    let moved = op.is_movement() && op != Op::Cat
        || matches!(op, Op::Cast | Op::Decode | Op::Assign | Op::Gather);
    graph.dims(id).is_empty() || source || moved
}

/// Builds one form's part, with the shared nodes as inputs.
pub(super) fn one(
    graph: &Graph,
    function: &Function,
    outputs: &[Id],
    shared: &FxHashSet<Id>,
) -> Subfunction {
    let mut g = graph.clone();
    let mut slots = function.slots.clone();
    let mut inputs: FxHashMap<Id, Id> = FxHashMap::default();
    for id in edge(graph, outputs, shared) {
        let (dims, scalar) = (g.shape(id), g.scalar(id));
        slots.push(slot(graph, id, SlotKind::Input));
        let param = g.param(slots.len() as u32 - 1, &dims, scalar);
        inputs.insert(id, param);
    }
    let mut roots = Vec::new();
    for &output in outputs {
        slots.push(slot(graph, output, SlotKind::Output));
        roots.push((slots.len() as u32 - 1, g.substitute(output, &mut inputs)));
    }
    Subfunction::new(&g, &slots, &roots)
}

fn slot(graph: &Graph, id: Id, kind: SlotKind) -> Slot {
    let dims = graph.dims(id).iter().map(|&d| graph.max_of(d)).collect();
    Slot {
        name: String::new(),
        kind,
        dims,
        storage: Storage::Plain(graph.scalar(id)),
    }
}

/// Nodes from which lengths of axes are computed. An input would not have their bounds.
fn of_lengths(graph: &Graph, outputs: &[Id]) -> FxHashSet<Id> {
    let nodes = graph.toposort(outputs).into_iter();
    let dims = nodes.flat_map(|id| graph.shape(id));
    let lengths: Vec<Id> = dims.filter(|&d| graph.int_value(d).is_none()).collect();
    graph.toposort(&lengths).into_iter().collect()
}

/// Shared computed nodes that are read by nodes outside the shared set.
fn edge(graph: &Graph, outputs: &[Id], shared: &FxHashSet<Id>) -> Vec<Id> {
    let lengths = of_lengths(graph, outputs);
    let is_input = |id: Id| {
        shared.contains(&id)
            && !is_read(graph, id)
            && !outputs.contains(&id)
            && !lengths.contains(&id)
    };
    let (mut edge, mut seen) = (Vec::new(), FxHashSet::default());
    let mut stack: Vec<Id> = outputs.to_vec();
    while let Some(id) = stack.pop() {
        if !seen.insert(id) {
            continue;
        }
        if is_input(id) {
            edge.push(id);
        } else if !graph.dims(id).is_empty() {
            stack.extend(graph[id].src.iter().copied());
        }
    }
    edge.sort_unstable();
    edge
}
