//! Parts of a model that a placement moves, with their bytes and modelled times on a device.

use super::layer_place::{is_of_experts, layer_of};
use crate::arch::{Bind, Plan};
use crate::gguf::Gguf;
use crate::traffic;
use gristmill_uop::machine::{Machine, MachineKind};

/// Tokens of the prefill chunk that a placement is judged by.
pub(super) const CHUNK: usize = 512;

/// Part of a GPU's peak rate of matrix products that kernels reach (docs/experiments/110 to 125).
const GPU_RATE: f64 = 0.4;
/// Part of a CPU's peak rate of byte products that experts reach: a Xeon with 16 cores does 1.5e12
/// operations per second, with matrix units too, since weights are dequantised for few tokens each
/// (docs/experiments/146).
const CPU_RATE: f64 = 0.25;

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
        return machine.operations * vectors * CPU_RATE;
    }
    let halves = machine.fragments.iter().filter(|of| of.operand.is_half());
    let fragment = halves
        .map(|of| of.rate / machine.rate)
        .fold(vectors, f64::max);
    machine.operations * fragment * GPU_RATE
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

/// Returns the parts of all layers, from the plan of a decode step.
pub(super) fn layer_parts(file: &Gguf, plan: &Plan, layers: usize) -> Vec<LayerParts> {
    let mut parts = vec![LayerParts::default(); layers];
    for call in &plan.calls {
        for (slot, bind) in call.binds.iter().enumerate() {
            let Bind::Weight(name) = bind else { continue };
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
            let share = |tokens| traffic::share(&call.function, slot as u32, tokens);
            let elements: f64 = tensor.dims.iter().map(|&d| d as f64).product();
            part.bytes += tensor.bytes;
            part.decode += tensor.bytes as f64 * share(1);
            part.chunk += tensor.bytes as f64 * share(CHUNK);
            part.terms += elements * share(1);
        }
    }
    parts
}
