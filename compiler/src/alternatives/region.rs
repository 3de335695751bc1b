//! The price of a form: the part of the body in which forms differ, scheduled as a function of its own.
//!
//! To schedule a layer takes most of the time that compiling it does, so a whole one is scheduled once, in the form that is chosen. What all forms compute is an input of
//! the part, or is moved, read from a weight or from the cache as it is in the layer. So the price knows nothing of what the part's first and last kernels could share
//! with the rest of the layer; that is the same for all forms, near enough. Parts that are equal have one price, whatever function they are of ([`part`]).

use super::part::{self, Subfunction};
use crate::decision::{Cheapest, Decider, Decision, Policy};
use crate::decompose::attention::plan::{AttentionPlan, FEW};
use crate::decompose::f16_split;
use crate::planned::planned;
use gristmill_uop::function::{Function, Slot, SlotKind, Storage};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// The part of each form, given by what it computes the same outputs by; all are nodes of one graph.
pub fn parts(graph: &Graph, function: &Function, forms: &[Vec<Id>], target: &Target) -> Vec<Subfunction> {
    let mut shared = shared(graph, forms);
    if target.machine.kind == MachineKind::Gpu {
        // What a GPU's fragments multiply as halves is halves in the part too, of a prompt: of twice the size its stages would not fit.
        let of_prompt = |id: Id| graph.dims(id).first().is_some_and(|&n| graph.max_of(n) > FEW);
        shared.retain(|&id| !(f16_split::rounded(graph, id) && of_prompt(id)));
    }
    forms.iter().map(|outputs| one(graph, function, outputs, &shared)).collect()
}

/// Seconds of each part; they are scheduled beside one another.
pub fn seconds(parts: &[Subfunction], target: &Target) -> Vec<f64> {
    std::thread::scope(|scope| {
        let others: Vec<_> =
            parts[1..].iter().map(|part| scope.spawn(|| part::cost(part, target, scheduled))).collect();
        let first = part::cost(&parts[0], target, scheduled);
        std::iter::once(first).chain(others.into_iter().map(|t| t.join().expect("a part that is scheduled"))).collect()
    })
}

/// The cheapest, but for one loop over all chunks of an attention: a price counts all of its iterations, also those in tokens' futures, where of a kernel that has a chunk a workgroup
/// most are left out. Forms are compared by the kernels whose prices are alike.
struct InChunks;

impl Policy for InChunks {
    fn choose(&mut self, decision: &Decision) -> usize {
        let chosen = Cheapest.choose(decision);
        let online = |plan: &str| plan.parse().is_ok_and(|plan: AttentionPlan| plan.online);
        if decision.kind == "attention" && online(&decision.options[chosen].plan) { 0 } else { chosen }
    }
    fn explores(&self) -> bool {
        Cheapest.explores()
    }
}

/// What a part takes.
fn scheduled(part: &Subfunction, target: &Target) -> f64 {
    let plans = BTreeMap::new();
    let mut decider = Decider { policy: &mut InChunks, plans: &plans, log: vec![] };
    let planned = planned(&part.function(), target, &mut decider, &mut ());
    planned.scheduled.launches.iter().map(|l| l.cost.seconds).sum()
}

/// Nodes that every form needs.
fn shared(graph: &Graph, forms: &[Vec<Id>]) -> FxHashSet<Id> {
    let needed = |outputs: &Vec<Id>| graph.toposort(outputs).into_iter().collect::<FxHashSet<Id>>();
    let Some((first, rest)) = forms.split_first() else { return FxHashSet::default() };
    let mut all = needed(first);
    for outputs in rest {
        let other = needed(outputs);
        all.retain(|n| other.contains(n));
    }
    all
}

/// Is a node read where it lies, or moved, so that the part has it too?
fn is_read(graph: &Graph, id: Id) -> bool {
    let op = graph[id].op;
    let source = matches!(op, Op::Param | Op::Const | Op::Var | Op::Iota);
    let moved = op.is_movement() && op != Op::Cat || matches!(op, Op::Cast | Op::Decode | Op::Assign | Op::Gather);
    graph.dims(id).is_empty() || source || moved
}

/// With what is shared as inputs.
fn one(graph: &Graph, function: &Function, outputs: &[Id], shared: &FxHashSet<Id>) -> Subfunction {
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
    Slot { name: String::new(), kind, dims, storage: Storage::Plain(graph.scalar(id)) }
}

/// The shared nodes that are computed, and that what is not shared reaches.
fn edge(graph: &Graph, outputs: &[Id], shared: &FxHashSet<Id>) -> Vec<Id> {
    let (mut edge, mut seen) = (Vec::new(), FxHashSet::default());
    let mut stack: Vec<Id> = outputs.to_vec();
    while let Some(id) = stack.pop() {
        if !seen.insert(id) {
            continue;
        }
        if shared.contains(&id) && !is_read(graph, id) && !outputs.contains(&id) {
            edge.push(id);
        } else if !graph.dims(id).is_empty() {
            stack.extend(graph[id].src.iter().copied());
        }
    }
    edge.sort_unstable();
    edge
}
