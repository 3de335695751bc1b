//! Experts in host memory that steps of many tokens copy to the main device.
//!
//! A step has two sets of buffers for the experts of a layer: while one layer computes, the experts
//! of the next one arrive.

use super::host_experts::{ExpertCopies, HostExperts, WantedCopy};
use crate::arch::{Bind, BoundCall, Plan};
use crate::error::Error;
use crate::gguf::Gguf;
use crate::load::{self, Layouts, Weights};
use crate::placement::Placement;
use gristmill_runtime::{Buffer, Memory};
use gristmill_tensor::jit::Jit;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Sets of buffers: one that computes, and one that is filled.
pub(super) const SETS: usize = 2;

/// Experts of all layers that are streamed, by weight name.
#[derive(Default)]
pub(super) struct ExpertStream {
    weights: FxHashMap<String, Arc<ExpertCopies>>,
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
    /// Prepares copies of the weights of `layouts` from the host's memory.
    ///
    /// # Errors
    /// When memory is short, or the device fails.
    pub fn new(
        file: &Gguf,
        jit: &mut Jit,
        layouts: &Layouts,
        placement: &Placement,
        host: &mut HostExperts,
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
        let mut wanted = Vec::new();
        for (number, names) in by_layer(layouts, placement).into_iter().enumerate() {
            for name in names {
                let layout = layouts[name];
                let bytes = load::packed_bytes(file, name, layout);
                wanted.push(WantedCopy {
                    name,
                    layout,
                    to: sets[number % SETS][&stem(name)].slice(0, bytes)?,
                    is_single: false,
                });
            }
        }
        let mut stream = ExpertStream::default();
        for (of, copies) in wanted.iter().zip(host.copies(jit, &wanted)?) {
            stream.bound.insert(of.name, of.layout, of.to.clone());
            stream.weights.insert(of.name.to_owned(), Arc::new(copies));
        }
        Ok(stream)
    }
    /// Returns the copies of a streamed weight.
    pub fn get(&self, name: &str) -> Option<&Arc<ExpertCopies>> {
        self.weights.get(name)
    }
    /// Returns the bytes of the buffers of all sets.
    pub fn bytes(&self) -> u64 {
        let mut seen: Vec<Buffer> = Vec::new();
        for weight in self.weights.values() {
            if !seen.contains(weight.buffer()) {
                seen.push(weight.buffer().clone());
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
