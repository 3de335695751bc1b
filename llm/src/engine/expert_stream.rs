//! Experts in host memory that steps of many tokens copy to the main device.
//!
//! A step has two sets of buffers for the experts of a layer: while one layer computes, the experts
//! of the next one arrive. The copies in host memory have the layout that the main device's kernels
//! read, since that device packed them at load.

use crate::arch::{Bind, BoundCall, Plan};
use crate::error::{Error, Progress};
use crate::gguf::Gguf;
use crate::load::{self, Layouts, Weights};
use crate::placement::Placement;
use gristmill_compiler::ir::layout::Layout;
use gristmill_runtime::{Buffer, KeptBytes, Memory};
use gristmill_tensor::jit::Jit;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Sets of buffers: one that computes, and one that is filled.
pub(super) const SETS: usize = 2;

/// Kept bytes of a weight and the buffer that it is copied to.
#[derive(Clone)]
pub(super) struct StreamedWeight {
    pub kept: Arc<dyn KeptBytes>,
    pub buffer: Buffer,
}

/// Experts of all layers that are streamed, by weight name.
#[derive(Default)]
pub(super) struct ExpertStream {
    weights: FxHashMap<String, StreamedWeight>,
    /// The buffers as weights, for checks of their layouts.
    pub bound: Weights,
}

/// Returns the layouts of streamed weights, by layer.
fn by_layer<'l>(layouts: &'l Layouts, placement: &Placement) -> Vec<Vec<&'l String>> {
    let mut layers: BTreeMap<usize, Vec<&String>> = BTreeMap::new();
    for layer in placement.streamable_layers() {
        let begin = format!("blk.{layer}.");
        let mut names: Vec<&String> = layouts.keys().filter(|n| n.contains(&begin)).collect();
        names.sort();
        layers.insert(layer, names);
    }
    layers
        .into_values()
        .filter(|names| !names.is_empty())
        .collect()
}

/// A weight's name without its layer: what is before it (for adapters) and behind it.
type Stem<'n> = (&'n str, &'n str);

fn stem(name: &str) -> Stem<'_> {
    let parts = name.split_once("blk.").and_then(|(before, rest)| {
        let (_, behind) = rest.split_once('.')?;
        Some((before, behind))
    });
    parts.unwrap_or((name, ""))
}

impl ExpertStream {
    /// Returns the bytes of both sets of buffers.
    pub fn slot_bytes(file: &Gguf, layouts: &Layouts, placement: &Placement) -> u64 {
        let sizes = ExpertStream::sizes(file, layouts, placement);
        SETS as u64 * sizes.values().sum::<usize>() as u64
    }
    /// Returns the largest size of each kind of weight.
    fn sizes<'l>(
        file: &Gguf,
        layouts: &'l Layouts,
        placement: &Placement,
    ) -> FxHashMap<Stem<'l>, usize> {
        let mut sizes: FxHashMap<Stem<'_>, usize> = FxHashMap::default();
        for name in by_layer(layouts, placement).into_iter().flatten() {
            let bytes = load::packed_bytes(file, name, layouts[name]);
            let most = sizes.entry(stem(name)).or_default();
            *most = bytes.max(*most);
        }
        sizes
    }
    /// Loads the weights of `layouts`, a layer at a time, and keeps them in host memory.
    ///
    /// # Errors
    /// When memory is short, or the device fails.
    pub fn load(
        file: &Gguf,
        jit: &mut Jit,
        layouts: &Layouts,
        placement: &Placement,
        progress: &dyn Fn(Progress),
    ) -> Result<ExpertStream, Error> {
        let device = jit.device().clone();
        let mut sets: Vec<FxHashMap<Stem<'_>, Buffer>> = Vec::new();
        for _ in 0..SETS {
            let sizes = ExpertStream::sizes(file, layouts, placement);
            let buffers = sizes
                .into_iter()
                .map(|(stem, bytes)| Ok::<_, Error>((stem, device.alloc(bytes, Memory::Weights)?)));
            sets.push(buffers.collect::<Result<_, _>>()?);
        }
        let total = load::missing(file, layouts, &Weights::default());
        let mut stream = ExpertStream::default();
        let mut done = 0;
        for (number, names) in by_layer(layouts, placement).into_iter().enumerate() {
            let own: Layouts = names.iter().map(|&n| (n.clone(), layouts[n])).collect();
            let weights = load::weights(file, jit, &own, Weights::default(), &|step| {
                if let Progress::Loading(bytes, _) = step {
                    progress(Progress::Loading((done + bytes).min(total), total));
                }
            })?;
            for name in names {
                let Some(from) = weights.get(name) else {
                    continue;
                };
                let buffer = sets[number % SETS][&stem(name)].slice(0, from.len())?;
                let kept = device.keep(from)?;
                stream.bound.insert(name, layouts[name], buffer.clone());
                done += from.len() as u64;
                stream
                    .weights
                    .insert(name.clone(), StreamedWeight { kept, buffer });
            }
        }
        Ok(stream)
    }
    /// Returns a streamed weight.
    pub fn get(&self, name: &str) -> Option<&StreamedWeight> {
        self.weights.get(name)
    }
    /// Returns the bytes of a streamed weight, if it has this layout.
    pub fn kept(&self, name: &str, layout: Layout) -> Option<Arc<dyn KeptBytes>> {
        let has = self.bound.has(name, layout);
        self.weights
            .get(name)
            .filter(|_| has)
            .map(|of| of.kept.clone())
    }
    /// Returns the bytes of the buffers of all sets.
    pub fn bytes(&self) -> u64 {
        let mut seen: Vec<Buffer> = Vec::new();
        for weight in self.weights.values() {
            if !seen.contains(&weight.buffer) {
                seen.push(weight.buffer.clone());
            }
        }
        seen.iter().map(|buffer| buffer.len() as u64).sum()
    }
    /// Returns, for each call of a plan, the streamed weights that it reads on the main device.
    pub fn of_calls(&self, plan: &Plan) -> Vec<Vec<String>> {
        let of = |call: &BoundCall| {
            let binds = call.binds.iter().filter(|_| call.device == 0);
            let names = binds.filter_map(|bind| match bind {
                Bind::Weight(name) if self.weights.contains_key(name) => Some(name.clone()),
                _ => None,
            });
            names.collect()
        };
        plan.calls.iter().map(of).collect()
    }
}
