//! The bytes that a step must read: what its speed is measured against.

use crate::arch::{Bind, Plan};
use gristmill_uop::function::{Function, SlotKind};
use gristmill_uop::op::Op;
use gristmill_uop::{Arg, Id};

/// Bytes that one step reads at least.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Traffic {
    /// Of weights; of stacked experts and of the embedding only what is used.
    pub weights: f64,
    /// Of the cache.
    pub cache: f64,
}

impl Traffic {
    /// Both.
    pub fn total(&self) -> f64 {
        self.weights + self.cache
    }
}

/// Bytes of weights that a step of `tokens` tokens reads, from the plan of a step of one: every tensor once, but of those
/// that are read through an index the rows that are expected to be hit when tokens choose independently,
/// `rows·(1 − (1 − chosen/rows)^tokens)`. `bytes` tells the size of a tensor.
pub fn weights(plan: &Plan, tokens: usize, bytes: &dyn Fn(&str) -> u64) -> f64 {
    let mut sum = 0.0;
    for call in &plan.calls {
        for (slot, bind) in call.binds.iter().enumerate() {
            if let Bind::Weight(name) = bind {
                sum += share(&call.function, slot as u32, tokens) * bytes(name) as f64;
            }
        }
    }
    sum
}

/// The share of a weight that a step of `tokens` tokens is expected to read: all of it, or of one that is read through an index
/// alone the rows that are hit.
pub fn share(function: &Function, slot: u32, tokens: usize) -> f64 {
    chosen(function, slot).map_or(1.0, |share| 1.0 - (1.0 - share).powi(tokens as i32))
}

/// The share of a weight that one token reads, if it reads it only through indices.
fn chosen(function: &Function, slot: u32) -> Option<f64> {
    let g = &function.graph;
    if function.slots[slot as usize].kind != SlotKind::Weight {
        return None;
    }
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    let order = g.toposort(&roots);
    let packed = |id: Id| matches!(g[id].arg, Arg::Packed(s, _) if s == slot);
    let decoded = |id: Id| g[id].op == Op::Decode && packed(g[id].src[0]);
    let mut rows = 0.0;
    for &id in &order {
        for (place, &source) in g[id].src.iter().enumerate().filter(|(_, s)| decoded(**s)) {
            if g[id].op != Op::Gather || place != 0 {
                return None;
            }
            rows += g.shape(g[id].src[1]).iter().map(|&d| g.max_of(d) as f64).product::<f64>();
            debug_assert!(decoded(source));
        }
    }
    let all = function.slots[slot as usize].dims.first().map_or(1.0, |&n| n as f64);
    Some((rows / all).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{self, AttentionForm, Functions, Logits, Options, TokenClass};
    use crate::gguf::Gguf;
    use gristmill_uop::dtype::Scalar;

    /// MB of weights that a step of `tokens` reads.
    fn megabytes(preset: &str, quant: &str, tokens: usize) -> f64 {
        let file = Gguf::synth(preset, quant).unwrap();
        let model = arch::load(file.metadata(), &file).unwrap();
        let (attention, logits) = (AttentionForm::Absorbed, Logits::Last);
        let options = Options {
            tokens: TokenClass::One,
            rows: 64,
            depth: 64,
            cache: Scalar::F16,
            attention,
            logits,
            tile: Options::TILE,
        };
        let plan = model.plan(&options, &mut Functions::new());
        weights(&plan, tokens, &|name| file.tensor(name).map_or(0, |t| t.bytes)) / 1e6
    }

    #[test]
    fn only_the_experts_in_use_count() {
        let near = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.002, "{found}, {expected}");
        // docs/deepseek2.md, section 7: bytes of one token, and of eight that choose independently.
        near(megabytes("glm-4.7-flash", "q4_0", 1), 2117.0);
        near(megabytes("glm-4.7-flash", "q4_0", 8), 7440.0);
        near(megabytes("deepseek-v2-lite", "q4_k_m", 1), 1611.8);
        near(megabytes("youtu-llm-2b", "q4_0", 1), 1171.8);
    }
}
