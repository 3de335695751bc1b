//! Minimum bytes that a step must read: the bound to compare its speed with.

use crate::arch::{Bind, Plan};
use gristmill_uop::function::{Function, Slot, SlotKind};
use gristmill_uop::op::Op;
use gristmill_uop::{Arg, Graph, Id};
use std::collections::BTreeSet;

/// Minimum bytes that one step reads.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Traffic {
    /// Bytes of weights; for stacked experts and the embedding only the rows in use.
    pub weights: f64,
    /// Bytes of KV cache.
    pub cache: f64,
}

impl Traffic {
    /// Returns the sum of both parts.
    pub fn total(&self) -> f64 {
        self.weights + self.cache
    }
}

/// Returns the bytes of weights that a step of `tokens` tokens reads, from the plan
/// of a decode step.
///
/// Every tensor counts once. Tensors that are read through an index count with the rows expected to
/// be hit if tokens choose independently: `rows·(1 − (1 − chosen/rows)^tokens)`. `bytes` returns
/// the size of a tensor.
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

/// Returns the bytes of KV cache that a decode step reads with `rows` positions of context,
/// including its own. Windowed layers count at most their window.
pub fn cache(plan: &Plan, rows: usize) -> f64 {
    plan.calls
        .iter()
        .map(|call| of_cache(&call.function, rows))
        .sum::<usize>() as f64
}

/// Returns the bytes of KV cache that one function's attentions read, from any layer's cache.
fn of_cache(function: &Function, rows: usize) -> usize {
    let g = &function.graph;
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    let mut bytes = 0;
    for id in g
        .toposort(&roots)
        .into_iter()
        .filter(|&id| g[id].op == Op::Attention)
    {
        let src = &g[id].src;
        let window = src.get(5).and_then(|&w| g.int_value(w)).filter(|&w| w > 0);
        let seen = window.map_or(rows, |w| rows.min(w as usize));
        for slot in states(g, &src[1..3]) {
            let Slot { dims, storage, .. } = &function.slots[slot as usize];
            bytes += seen * storage.bytes(dims).unwrap_or(0) / dims[0].max(1) as usize;
        }
    }
    bytes
}

/// Returns the state slots that these nodes read, without the values written to them.
fn states(g: &Graph, from: &[Id]) -> BTreeSet<u32> {
    let (mut found, mut seen, mut left) = (BTreeSet::new(), BTreeSet::new(), from.to_vec());
    while let Some(id) = left.pop() {
        let n = &g[id];
        match (n.op, &n.arg) {
            _ if !seen.insert(id) => (),
            (Op::Assign, _) => left.extend(n.src.first()),
            (Op::Param, Arg::Param(slot)) => _ = found.insert(*slot),
            _ => left.extend(&n.src),
        }
    }
    found
}

/// Returns the fraction of a weight that a step of `tokens` tokens is expected to read: 1, or less
/// for a weight read only through an index.
pub fn share(function: &Function, slot: u32, tokens: usize) -> f64 {
    chosen(function, slot).map_or(1.0, |share| 1.0 - (1.0 - share).powi(tokens as i32))
}

/// Returns the fraction of a weight that one token reads; `None` unless it is
/// read only through indices.
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
            rows += g
                .shape(g[id].src[1])
                .iter()
                .map(|&d| g.max_of(d) as f64)
                .product::<f64>();
            debug_assert!(decoded(source));
        }
    }
    let all = function.slots[slot as usize]
        .dims
        .first()
        .map_or(1.0, |&n| n as f64);
    Some((rows / all).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::CacheType;
    use crate::arch::{self, Functions, Logits, Options, Pools, StepKind};
    use crate::gguf::Gguf;

    /// Returns the plan of a decode step with a KV cache of type `cache`.
    fn plan(file: &Gguf, cache: CacheType) -> Plan {
        let model = arch::load(file.metadata(), file).unwrap();
        let (logits, tile, pools) = (Logits::Last, Options::TILE, Pools::from_pages(1));
        let options = Options {
            tokens: StepKind::Decode,
            rows: 64,
            pools,
            contiguous: true,
            depth: 64,
            cache,
            logits,
            tile,
            cached: None,
            draft: None,
        };
        model.plan(&options, &mut Functions::new())
    }

    /// Returns the MB of weights that a step of `tokens` tokens reads.
    fn megabytes(preset: &str, quant: &str, tokens: usize) -> f64 {
        let file = Gguf::synth(preset, quant).unwrap();
        let plan = plan(&file, CacheType::F16);
        weights(&plan, tokens, &|name| {
            file.tensor(name).map_or(0, |t| t.bytes)
        }) / 1e6
    }

    #[test]
    fn of_a_window_only_its_positions_count() {
        let read = |file: &Gguf, cache, rows| super::cache(&plan(file, cache), rows);
        let preset = |name: &str| Gguf::synth(name, "q4_0").unwrap();
        // 47 layers of 576 numbers; 32 layers with keys and values of 8 heads of 128.
        assert_eq!(
            read(&preset("glm-4.7-flash"), CacheType::F16, 4096),
            4096.0 * 47.0 * 1152.0
        );
        assert_eq!(
            read(&preset("glm-4.7-flash"), CacheType::Int8, 10),
            10.0 * 47.0 * (576.0 + 36.0)
        );
        assert_eq!(
            read(&preset("llama-3.1-8b"), CacheType::F16, 100),
            100.0 * 32.0 * 4096.0
        );
        // 40 of 48 layers have a window of 1,024 positions; keys and values of 8 heads of 256.
        let gemma = preset("gemma-3-12b");
        assert_eq!(
            read(&gemma, CacheType::F16, 4096),
            (40.0 * 1024.0 + 8.0 * 4096.0) * 8192.0
        );
        assert_eq!(read(&gemma, CacheType::F16, 1000), 48.0 * 1000.0 * 8192.0);
        // Two layers with a window of 16 and one full layer; two further layers share the windowed
        // caches and one the full one. One head of 32 or 64.
        let shared = Gguf::open(format!(
            "{}/tests/data/families/gemma4-q8_0.gguf",
            env!("CARGO_MANIFEST_DIR")
        ))
        .unwrap();
        assert_eq!(
            read(&shared, CacheType::F16, 100),
            4.0 * 16.0 * 128.0 + 2.0 * 100.0 * 256.0
        );
    }

    #[test]
    fn only_the_experts_in_use_count() {
        let near = |found: f64, expected: f64| {
            assert!(
                (found / expected - 1.0).abs() < 0.002,
                "{found}, {expected}"
            )
        };
        // docs/deepseek2.md, section 7: bytes for one token, and for eight
        // that choose experts independently.
        near(megabytes("glm-4.7-flash", "q4_0", 1), 2117.0);
        near(megabytes("glm-4.7-flash", "q4_0", 8), 7440.0);
        near(megabytes("deepseek-v2-lite", "q4_k_m", 1), 1611.8);
        near(megabytes("youtu-llm-2b", "q4_0", 1), 1171.8);
    }
}
