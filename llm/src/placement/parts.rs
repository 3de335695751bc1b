//! Parts of a model that a placement moves, with their bytes and modelled times on a device.

use super::layer_place::{is_of_experts, layer_of};
use crate::arch::{Bind, Plan};
use crate::gguf::{Gguf, TensorInfo};
use crate::traffic;
use gristmill_uop::machine::{Machine, MachineKind};
use std::collections::BTreeMap;

/// Tokens of the prefill chunk that a placement is judged by.
pub(super) const CHUNK: usize = 512;

/// Bytes and work of a part.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Part {
    /// Bytes of its weights.
    pub bytes: u64,
    /// Bytes that a decode step of one sequence reads, and those that a chunk reads.
    pub decode: f64,
    pub chunk: f64,
    /// Multiply-adds of one token.
    pub terms: f64,
}

impl Part {
    /// Adds the work of a call that reads a tensor; `share` returns the share that a number of
    /// tokens reads.
    fn add(&mut self, tensor: &TensorInfo, share: &dyn Fn(usize) -> f64) {
        let elements: f64 = tensor.dims.iter().map(|&d| d as f64).product();
        self.decode += tensor.bytes as f64 * share(1);
        self.chunk += tensor.bytes as f64 * share(CHUNK);
        self.terms += elements * share(1);
    }
    /// Modelled seconds of a decode step.
    pub fn decode_seconds(&self, machine: &Machine) -> f64 {
        self.decode / machine.bandwidth + machine.launch
    }
    /// Modelled seconds of a prefill chunk of [`CHUNK`] tokens.
    pub fn chunk_seconds(&self, machine: &Machine) -> f64 {
        let rate = products(machine);
        let work = 2.0 * self.terms * CHUNK as f64 / rate;
        work.max(self.chunk / machine.bandwidth) + machine.launch
    }
}

/// Operations per second that the machine's products with packed weights reach.
fn products(machine: &Machine) -> f64 {
    // An instruction that adds four byte products does the work of four float products.
    let vectors = if machine.dot4 { 4.0 } else { 1.0 };
    if machine.kind == MachineKind::Cpu {
        return machine.operations * vectors * machine.cpu_facts().expert_rate_reached;
    }
    let halves = machine.fragments.iter().filter(|of| of.operand.is_half());
    let fragment = halves
        .map(|of| of.rate / machine.rate)
        .fold(vectors, f64::max);
    machine.operations * fragment * machine.gpu_facts().product_rate_reached
}

/// The parts of a layer.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct LayerParts {
    /// Everything but the routed experts.
    pub layer: Part,
    /// Routed experts; zero if there are none.
    pub experts: Part,
    /// Number of routed experts.
    pub count: usize,
}

/// The weights outside of layers, by name.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct OuterParts {
    pub parts: BTreeMap<String, Part>,
    /// Those of which steps read the rows of their tokens alone, such as the embedding.
    pub tables: Vec<String>,
}

impl OuterParts {
    /// Returns the weights outside of layers, from the plan of a decode step.
    pub fn new(file: &Gguf, plan: &Plan) -> OuterParts {
        let mut parts: BTreeMap<String, Part> = BTreeMap::new();
        let mut is_whole: BTreeMap<String, bool> = BTreeMap::new();
        for (name, share) in weights(plan) {
            let Some(tensor) = file.tensor(name).filter(|_| layer_of(name).is_none()) else {
                continue;
            };
            let part = parts.entry(name.to_owned()).or_default();
            part.bytes = tensor.bytes;
            part.add(tensor, &share);
            *is_whole.entry(name.to_owned()).or_default() |= share(1) >= 1.0;
        }
        let tables = is_whole.into_iter().filter(|of| !of.1);
        OuterParts {
            parts,
            tables: tables.map(|of| of.0).collect(),
        }
    }
    /// Returns whether steps read all rows of a weight.
    pub fn is_of_head(&self, name: &str) -> bool {
        !self.tables.iter().any(|table| table == name)
    }
}

/// Returns the weights that the calls of a plan read, with the share of each that a number of
/// tokens reads.
fn weights(plan: &Plan) -> impl Iterator<Item = (&str, impl Fn(usize) -> f64)> {
    plan.calls.iter().flat_map(|call| {
        let binds = call.binds.iter().enumerate();
        binds.filter_map(move |(slot, bind)| match bind {
            Bind::Weight(name) => {
                let share = move |tokens| traffic::share(&call.function, slot as u32, tokens);
                Some((name.as_str(), share))
            }
            _ => None,
        })
    })
}

/// Returns the parts of all layers, from the plan of a decode step.
pub(super) fn layer_parts(file: &Gguf, plan: &Plan, layers: usize) -> Vec<LayerParts> {
    let mut parts = vec![LayerParts::default(); layers];
    for (name, share) in weights(plan) {
        let (Some((layer, rest)), Some(tensor)) = (layer_of(name), file.tensor(name)) else {
            continue;
        };
        let Some(of_layer) = parts.get_mut(layer) else {
            continue;
        };
        let part = match is_of_experts(rest) {
            true => {
                of_layer.count = tensor.dims.last().map_or(0, |&n| n as usize);
                &mut of_layer.experts
            }
            false => &mut of_layer.layer,
        };
        part.bytes += tensor.bytes;
        part.add(tensor, &share);
    }
    parts
}
