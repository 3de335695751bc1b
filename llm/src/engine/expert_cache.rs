//! Experts of layers in host memory that the main device holds for decode steps.
//!
//! Each layer whose experts alone are on another device has slots on the main device. A step
//! returns the experts that its tokens chose; the host looks them up, and the main device computes
//! those in slots while the other one computes the rest. Slots hold the experts that are used most:
//! counts of uses are halved from time to time, and an expert that was missed replaces the least
//! used one, from the host's memory: before the layer computes, if waiting for the copy takes less
//! than the other device ([`MissCosts`]), or after the step.

use super::host_experts::{ExpertCopies, HostExperts, WantedCopy, whole};
use crate::arch::ExpertBind;
use crate::error::Error;
use crate::gguf::Gguf;
use crate::load::{self, Layouts, Weights};
use crate::placement::{ExpertUses, MissCosts, PlacementChoice, is_of_experts, layer_of};
use gristmill_compiler::ir::layout::Layout;
use gristmill_runtime::store::Key;
use gristmill_runtime::{Buffer, Device, Error as DeviceError, Memory};
use gristmill_tensor::jit::Jit;
use gristmill_uop::link::DeviceLink;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Uses of a layer's experts after which all counts are halved, for each expert of the layer: a
/// change of topic shows after some hundred tokens.
const HALVED_AFTER: u64 = 64;
/// Share of a step's time in which copies of experts may keep the link busy.
const LINK_SHARE: f64 = 0.25;
/// Steps after which uses are stored again, besides when the engine is dropped.
const STORED_EVERY: u32 = 4096;

/// What lookups found since the engine was loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExpertCacheStats {
    /// Experts of a layer that the main device can hold.
    pub slots: usize,
    /// Experts of a layer.
    pub experts: usize,
    /// Number of layers that have slots.
    pub layers: usize,
    /// Chosen experts that were in slots.
    pub hits: u64,
    /// Chosen experts that were not in slots.
    pub misses: u64,
    /// Experts copied to slots.
    pub copied: u64,
    /// Those of them that a step waited for.
    pub waited: u64,
}

impl fmt::Display for ExpertCacheStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (chosen, slots) = (self.hits + self.misses, self.slots);
        let share = 100.0 * self.hits as f64 / chosen.max(1) as f64;
        write!(
            f,
            "{slots} of {} experts cached in each of {} layers: {share:.1} % of {chosen} chosen \
             experts were, {} were copied, {} of them before their layer",
            self.experts, self.layers, self.copied, self.waited
        )
    }
}

#[derive(Default)]
struct CachedLayer {
    /// Copies of each kind of weight to the slots.
    weights: Vec<ExpertCopies>,
    /// Slot that holds each expert, and the uses of each.
    slot_of: Vec<Option<u32>>,
    uses: Vec<u32>,
    /// Expert that each slot holds.
    expert_in: Vec<u32>,
    /// Sum of uses since they were halved.
    used: u64,
    /// Experts that steps missed and that were not copied since.
    missed: Vec<u32>,
}

impl CachedLayer {
    fn new(experts: usize, known: Option<&Vec<u32>>) -> CachedLayer {
        let known = known.filter(|known| known.len() == experts);
        let uses = known.cloned().unwrap_or_else(|| vec![0; experts]);
        CachedLayer {
            slot_of: vec![None; experts],
            used: uses.iter().map(|&n| u64::from(n)).sum(),
            uses,
            ..CachedLayer::default()
        }
    }
    /// Fills slots with the experts that are used most.
    fn fill(&mut self, slots: usize) -> Result<(), DeviceError> {
        let mut experts: Vec<u32> = (0..self.uses.len() as u32).collect();
        experts.sort_by_key(|&expert| Reverse(self.uses[expert as usize]));
        experts.truncate(slots);
        self.expert_in.clone_from(&experts);
        for (slot, expert) in experts.into_iter().enumerate() {
            self.copy(expert, slot as u32)?;
        }
        Ok(())
    }
    fn count(&mut self, expert: usize) {
        let Some(uses) = self.uses.get_mut(expert) else {
            return;
        };
        *uses = uses.saturating_add(1);
        self.used += 1;
        if self.used >= HALVED_AFTER * self.uses.len() as u64 {
            self.uses.iter_mut().for_each(|uses| *uses /= 2);
            self.used /= 2;
        }
    }
    fn bytes(&self) -> usize {
        self.weights.iter().map(ExpertCopies::piece_bytes).sum()
    }
    /// Copies an expert to a slot.
    fn copy(&mut self, expert: u32, slot: u32) -> Result<(), DeviceError> {
        for weight in &self.weights {
            weight.copy(expert as usize, slot as usize)?;
        }
        let before = std::mem::replace(&mut self.expert_in[slot as usize], expert);
        self.slot_of[before as usize] = None;
        self.slot_of[expert as usize] = Some(slot);
        Ok(())
    }
    /// Returns the slot whose expert is used least, among those whose experts are not `kept`.
    fn least_used(&self, kept: &[u32]) -> Option<u32> {
        let slots = (0..).zip(&self.expert_in);
        let others = slots.filter(|of| !kept.contains(of.1));
        let least = others.min_by_key(|of| self.uses[*of.1 as usize]);
        least.map(|of| of.0)
    }
    /// Returns the missed expert that is used most and the slot that it replaces, if it is used
    /// more than the expert there.
    fn replacement(&self) -> Option<(u32, u32)> {
        let uses = |&expert: &u32| self.uses[expert as usize];
        let candidate = self.missed.iter().copied().max_by_key(uses)?;
        let least = self.least_used(&[])?;
        let held = uses(&self.expert_in[least as usize]);
        (uses(&candidate) > held + 1).then_some((candidate, least))
    }
    /// Counts chosen experts. Returns how many were in slots, and those that were not, once each,
    /// the most used first.
    fn count_chosen(&mut self, chosen: &[u32]) -> (usize, Vec<u32>) {
        let (mut hits, mut missed) = (0, Vec::new());
        for &expert in chosen {
            self.count(expert as usize);
            if self.slot_of[expert as usize].is_some() {
                hits += 1;
            } else if !missed.contains(&expert) {
                missed.push(expert);
            }
        }
        missed.sort_by_key(|&expert| Reverse(self.uses[expert as usize]));
        (hits, missed)
    }
    /// Divides chosen experts by their places: see [`ExpertCache::look_up`].
    fn divide(&self, used: usize, (chosen, weights): (&[u32], &[f32]), widths: &[usize]) -> Lookup {
        let mut found = Lookup::default();
        let is_missed = |&&expert: &&u32| self.slot_of[expert as usize].is_none();
        let rows = chosen.chunks(used);
        let most = rows.map(|row| row.iter().filter(is_missed).count()).max();
        let width = widths.iter().copied().find(|&width| Some(width) >= most);
        found.width = match most {
            None | Some(0) => 0,
            Some(most) => width.unwrap_or(most),
        };
        let any = chosen.iter().find(is_missed).copied().unwrap_or(0);
        for (row, weights) in chosen.chunks(used).zip(weights.chunks(used)) {
            let begin = found.misses.len();
            for (&expert, &weight) in row.iter().zip(weights) {
                let slot = self.slot_of[expert as usize];
                found.hits.push(slot.unwrap_or(0));
                found
                    .hit_weights
                    .push(if slot.is_some() { weight } else { 0.0 });
                if slot.is_none() {
                    found.misses.push(expert);
                    found.miss_weights.push(weight);
                }
            }
            let fill = found.misses.get(begin).copied().unwrap_or(any);
            found.misses.resize(begin + found.width, fill);
            found.miss_weights.resize(begin + found.width, 0.0);
        }
        found
    }
}

/// Experts of a layer's tokens in both places, in the order of the buffers that calls read.
#[derive(Default)]
pub(super) struct Lookup {
    pub hits: Vec<u32>,
    pub hit_weights: Vec<f32>,
    pub misses: Vec<u32>,
    pub miss_weights: Vec<f32>,
    /// Misses of a token that are computed; 0 if no token missed any.
    pub width: usize,
}

/// The uses of all layers' experts, and the slots of those that are used most.
pub(super) struct ExpertCache {
    device: Arc<dyn Device>,
    layers: BTreeMap<usize, CachedLayer>,
    stats: ExpertCacheStats,
    /// Link over which experts are copied, and the costs of those that are missed.
    link: DeviceLink,
    costs: MissCosts,
    /// Key of the stored uses, and steps since they were stored.
    key: Key,
    unstored: u32,
}

/// Returns the bytes of one expert in a layout; `None` if the layout mixes experts.
fn expert_bytes(file: &Gguf, name: &str, layout: Layout) -> Option<usize> {
    let info = file.tensor(whole(name))?;
    let count = *info.dims.last()? as usize;
    let rows: u64 = info.dims.iter().skip(1).rev().skip(1).product();
    let is_apart = (rows as i64) % layout.lanes() == 0;
    let bytes = load::packed_bytes(file, whole(name), layout);
    (is_apart && bytes.is_multiple_of(count)).then_some(bytes / count)
}

impl Drop for ExpertCache {
    fn drop(&mut self) {
        self.store_uses();
    }
}

impl ExpertCache {
    /// Returns the bytes of `slots` slots of weights in these layouts.
    pub fn slot_bytes(file: &Gguf, layouts: &Layouts, slots: usize) -> u64 {
        let of = |(name, layout): (&String, &Layout)| expert_bytes(file, name, *layout);
        let bytes: usize = layouts.iter().filter_map(of).sum();
        (slots * bytes) as u64
    }
    /// Creates a cache without slots for layers whose experts alone are not on the main device.
    pub fn new(file: &Gguf, device: &Arc<dyn Device>, choice: &PlacementChoice) -> ExpertCache {
        let placement = &choice.chosen.placement;
        let away = placement.streamable_layers();
        let known = match away[..] {
            [] => ExpertUses::default(),
            _ => ExpertUses::stored(file, &**device),
        };
        let experts = |layer: usize| {
            let begin = format!("blk.{layer}.");
            let mut tensors = file.tensors().iter();
            let is_of_experts = |name: &str| name.starts_with(&begin) && is_of_experts(name);
            let tensor = tensors.find(|tensor| is_of_experts(&tensor.name))?;
            Some(*tensor.dims.last()? as usize)
        };
        let layer = |layer| {
            let of = CachedLayer::new(experts(layer)?, known.0.get(&layer));
            Some((layer, of))
        };
        let layers: BTreeMap<_, _> = away.into_iter().filter_map(layer).collect();
        ExpertCache {
            device: device.clone(),
            stats: ExpertCacheStats {
                layers: layers.len(),
                experts: layers.values().next().map_or(0, |of| of.uses.len()),
                ..ExpertCacheStats::default()
            },
            layers,
            link: choice.link,
            costs: choice.miss_costs(),
            key: ExpertUses::key(file),
            unstored: 0,
        }
    }
    /// Allocates `slots` slots of each layer for weights in these layouts, adds them to `weights`,
    /// and fills them with the experts that are used most.
    ///
    /// # Errors
    /// When memory is short, or the device fails.
    pub fn allocate(
        &mut self,
        file: &Gguf,
        jit: &mut Jit,
        layouts: &Layouts,
        (slots, host): (usize, &mut HostExperts),
        weights: &mut Weights,
    ) -> Result<(), Error> {
        let mut names: Vec<&String> = layouts.keys().collect();
        names.sort();
        let mut wanted = Vec::new();
        for name in names {
            let layout = layouts[name];
            let Some(bytes) = expert_bytes(file, name, layout) else {
                return Err(DeviceError::invalid(name.clone(), "has experts in no order").into());
            };
            let to = self.device.alloc(bytes * slots, Memory::Weights)?;
            weights.insert(name, layout, to.clone());
            wanted.push(WantedCopy {
                name: whole(name),
                layout,
                to,
                is_single: true,
            });
        }
        for (of, copies) in wanted.iter().zip(host.copies(jit, &wanted)?) {
            let layer = layer_of(of.name).and_then(|(layer, _)| self.layers.get_mut(&layer));
            if let Some(layer) = layer {
                layer.weights.push(copies);
            }
        }
        for layer in self.layers.values_mut() {
            layer.fill(slots)?;
        }
        self.stats.slots = slots;
        Ok(())
    }
    fn store_uses(&mut self) {
        self.unstored = 0;
        if let Some(store) = self.device.store() {
            self.uses().save(store, &self.key);
        }
    }
    /// Returns the uses of each expert, by layer.
    fn uses(&self) -> ExpertUses {
        let layers = self.layers.iter();
        ExpertUses(layers.map(|(&at, of)| (at, of.uses.clone())).collect())
    }
    /// Counts experts that tokens chose without a lookup.
    pub fn observe(&mut self, layer: usize, chosen: impl Iterator<Item = u32>) {
        if let Some(of) = self.layers.get_mut(&layer) {
            chosen.for_each(|expert| of.count(expert as usize));
        }
    }
    pub fn stats(&self) -> ExpertCacheStats {
        self.stats
    }
    /// Divides the experts `chosen [n, k]` with their `weights [n, k]`. Misses of a token are
    /// filled up to the least of `widths` with others of weight 0, which are in caches already.
    ///
    /// Nothing that reads the layer's slots may run: missed experts are copied there, as many as
    /// take less time than computing them on the other device.
    ///
    /// # Errors
    /// When the device fails.
    pub fn look_up(
        &mut self,
        layer: usize,
        used: usize,
        (chosen, weights): (&[u32], &[f32]),
        widths: &[usize],
    ) -> Result<Lookup, DeviceError> {
        let Some(of) = self.layers.get_mut(&layer) else {
            return Ok(Lookup::default());
        };
        let last = of.slot_of.len() as u32 - 1;
        let chosen: Vec<u32> = chosen.iter().map(|&expert| expert.min(last)).collect();
        let (hits, missed) = of.count_chosen(&chosen);
        self.stats.hits += hits as u64;
        self.stats.misses += (chosen.len() - hits) as u64;
        let (waited, left) = missed.split_at(self.costs.copies(missed.len(), of.bytes()));
        for &expert in waited {
            // None if all slots have chosen experts.
            if let Some(slot) = of.least_used(&chosen) {
                of.copy(expert, slot)?;
                self.stats.copied += 1;
                self.stats.waited += 1;
            }
        }
        let others = left.iter().filter(|&expert| !of.missed.contains(expert));
        let others: Vec<u32> = others.copied().collect();
        of.missed.extend(others);
        Ok(of.divide(used, (&chosen, weights), widths))
    }
    /// Copies missed experts that are used more than those in slots, after a step that took `step`
    /// and that nothing runs behind.
    ///
    /// # Errors
    /// When the device fails.
    pub fn refill(&mut self, step: Duration) -> Result<(), DeviceError> {
        self.unstored += 1;
        if self.unstored >= STORED_EVERY {
            self.store_uses();
        }
        let mut left = step.as_secs_f64() * LINK_SHARE;
        for of in self.layers.values_mut() {
            let seconds = self.link.upload_seconds(of.bytes() as f64);
            while let Some((expert, slot)) = of.replacement() {
                if left < seconds {
                    break;
                }
                left -= seconds;
                of.copy(expert, slot)?;
                of.missed.retain(|&other| other != expert);
                self.stats.copied += 1;
            }
            of.missed.clear();
        }
        Ok(())
    }
}

/// Buffers of a step's experts on one device.
pub(super) struct ExpertBuffers {
    chosen: Buffer,
    hits: Buffer,
    misses: Buffer,
    /// Byte at which weights begin; numbers are before it.
    weights_at: usize,
}

impl ExpertBuffers {
    /// Returns the bytes of a buffer for `most` experts.
    pub fn bytes(most: usize) -> usize {
        2 * ExpertBuffers::half(most)
    }
    fn half(most: usize) -> usize {
        /// Alignment of buffer bindings on all devices, bytes.
        const ALIGNMENT: usize = 256;
        (most * size_of::<u32>()).next_multiple_of(ALIGNMENT)
    }
    /// Allocates buffers for `most` experts in each place; `chosen` is the one for chosen experts,
    /// if there is one already.
    ///
    /// # Errors
    /// When the device lacks the memory.
    pub fn new(
        device: &dyn Device,
        most: usize,
        chosen: Option<Buffer>,
    ) -> Result<ExpertBuffers, Error> {
        let alloc = |memory| device.alloc(ExpertBuffers::bytes(most), memory);
        Ok(ExpertBuffers {
            chosen: match chosen {
                Some(chosen) => chosen,
                None => alloc(Memory::Readback)?,
            },
            hits: alloc(Memory::Scratch)?,
            misses: alloc(Memory::Scratch)?,
            weights_at: ExpertBuffers::half(most),
        })
    }
    /// Returns the buffer that a binding has.
    pub fn bound(&self, bind: ExpertBind) -> Buffer {
        let is_weights = matches!(
            bind,
            ExpertBind::ChosenWeights | ExpertBind::HitWeights | ExpertBind::MissWeights
        );
        let begin = if is_weights { self.weights_at } else { 0 };
        self.whole(bind)
            .slice(begin, self.weights_at)
            .expect("both halves lie in the buffer")
    }
    /// Returns the buffer with numbers and weights.
    pub fn whole(&self, numbers: ExpertBind) -> Buffer {
        match numbers {
            ExpertBind::Chosen | ExpertBind::ChosenWeights => self.chosen.clone(),
            ExpertBind::Hits | ExpertBind::HitWeights => self.hits.clone(),
            ExpertBind::Misses | ExpertBind::MissWeights => self.misses.clone(),
        }
    }
    pub fn buffers(&self) -> [&Buffer; 3] {
        [&self.chosen, &self.hits, &self.misses]
    }
    pub fn weights_at(&self) -> usize {
        self.weights_at
    }
}

#[cfg(test)]
mod tests;
