//! Prices of placements: modelled times, and the bytes that GPUs hold.

use super::expert_uses::ExpertUses;
use super::layer_place::{LayerPlace, Placement};
use super::parts::{CHUNK, LayerParts, OuterParts};
use gristmill_backend::Opened;
use gristmill_uop::link::DeviceLink;
use gristmill_uop::machine::{Machine, MachineKind};
use std::mem;

/// A placement with its modelled times.
#[derive(Clone, PartialEq, Debug)]
pub struct Priced {
    /// Devices of all layers.
    pub placement: Placement,
    /// Device of the embedding.
    pub embedding: usize,
    /// Device of the head.
    pub head: usize,
    /// Experts of each layer whose experts alone are on another device that the main device holds.
    pub slots: usize,
    /// Bytes of layers' weights on the main device.
    pub bytes: u64,
    /// Bytes by which layers' weights exceed the room on GPUs, in total; 0 if they fit.
    pub lacking: u64,
    /// Modelled seconds of the layers in a decode step of one sequence.
    pub decode: f64,
    /// The same for a prefill chunk of 512 tokens.
    pub chunk: f64,
}

/// A device that parts may be on.
pub(super) struct PlacedDevice {
    pub machine: Machine,
    /// Costs of its link with the main device, which has none with itself.
    pub link: DeviceLink,
    /// Bytes of layers' weights that a GPU may hold; `None` for a device with the host's memory.
    pub budget: Option<u64>,
}

/// What a placement is chosen from.
pub(super) struct Candidates {
    pub parts: Vec<LayerParts>,
    pub outer: OuterParts,
    /// GPUs, of which the first is the main device, then the device with the host's memory.
    pub devices: Vec<PlacedDevice>,
    /// Bytes of a layer's row that crosses to another device, and of the one that comes back, per
    /// token.
    pub row: f64,
    /// Whether steps of many tokens may copy experts to the main device.
    pub streams: bool,
    /// Whether decode steps may have cached experts.
    pub caches: bool,
    /// Uses of experts in earlier runs.
    pub uses: ExpertUses,
}

impl Candidates {
    /// Returns the main device.
    fn main(&self) -> &Machine {
        &self.devices[0].machine
    }
    /// Returns the number of GPUs.
    pub fn gpus(&self) -> usize {
        self.devices.iter().filter(|of| of.budget.is_some()).count()
    }
    /// Returns the device with the host's memory; the last one if there is none.
    pub fn host(&self) -> usize {
        self.gpus().max(1).min(self.devices.len() - 1)
    }
    /// Returns the costs of copies between the main device and the host's memory.
    pub fn host_link(&self) -> DeviceLink {
        self.devices[self.host()].link
    }
    /// Prices a placement with `cache` bytes for cached experts.
    pub fn price(&self, placement: Placement, cache: u64) -> Priced {
        let slots = self.slots(&placement, cache);
        let machine = |device: usize| &self.devices[device].machine;
        let host = self.host_link();
        let mut bytes = vec![0; self.devices.len()];
        let mut outer = self.outer_prices(&placement, &mut bytes);
        let (mut decode, mut chunk) = (outer.decode, outer.chunk);
        let mut before = outer.embedding;
        for (number, of) in self.parts.iter().enumerate() {
            let at = placement.layer(number);
            for (part, device) in [(&of.layer, at.layer), (&of.experts, at.experts)] {
                bytes[device] += part.bytes;
                if part.bytes > 0 {
                    let may_cache = device != 0 && at.layer == 0;
                    let hits = if may_cache {
                        self.hits(number, slots)
                    } else {
                        0.0
                    };
                    decode += (1.0 - hits) * part.decode_seconds(machine(device));
                    decode += hits * part.decode_seconds(self.main());
                    let copied = host.upload_seconds(part.bytes as f64);
                    let streamed = part.chunk_seconds(self.main()).max(copied);
                    let computed = part.chunk_seconds(machine(device));
                    let may_stream = self.streams && device != 0 && at.layer == 0;
                    chunk += if may_stream {
                        streamed.min(computed)
                    } else {
                        computed
                    };
                }
            }
            // A layer elsewhere than the one before is half of a hand-over and back.
            for (a, b, share) in [(at.layer, at.experts, 1.0), (before, at.layer, 0.5)] {
                if a == b || share == 1.0 && of.experts.bytes == 0 {
                    continue;
                }
                let link = &self.devices[a.max(b)].link;
                let rows = CHUNK as f64 * self.row;
                let copies = link.upload_seconds(rows) + link.download_seconds(rows);
                decode += share * link.handover_seconds();
                chunk += share * (link.handover_seconds() + copies);
            }
            before = at.layer;
        }
        // The sampler is on the main device.
        for (a, b) in [(before, outer.head), (outer.head, 0)] {
            decode += 0.5 * f64::from(a != b) * self.devices[a.max(b)].link.handover_seconds();
        }
        if self.streams {
            bytes[0] += self.slot_bytes(&placement);
        }
        let away = placement.streamable_layers().into_iter();
        for of in away.filter_map(|layer| self.parts.get(layer)) {
            bytes[0] += of.experts.bytes / of.count.max(1) as u64 * slots as u64;
        }
        let of_gpus = bytes.iter().zip(&self.devices);
        let lacking = of_gpus.map(|(&bytes, of)| {
            let room = of.budget.map(|budget| budget + mem::take(&mut outer.freed));
            bytes.saturating_sub(room.unwrap_or(bytes))
        });
        Priced {
            placement,
            embedding: outer.embedding,
            head: outer.head,
            slots,
            bytes: bytes[0],
            lacking: lacking.sum(),
            decode,
            chunk,
        }
    }
    /// Prices the weights outside of layers that are not on the main device, whose bytes are added
    /// to those of their devices. The times of the others are the same in all placements.
    fn outer_prices(&self, placement: &Placement, bytes: &mut [u64]) -> OuterPrices {
        let mut prices = OuterPrices::default();
        for (name, device) in placement.outer() {
            let Some(part) = self.outer.parts.get(name) else {
                continue;
            };
            let machine = &self.devices[device].machine;
            bytes[device] += part.bytes;
            prices.freed += part.bytes;
            prices.decode += part.decode_seconds(machine) - part.decode_seconds(self.main());
            prices.chunk += part.chunk_seconds(machine) - part.chunk_seconds(self.main());
            match self.outer.is_of_head(name) {
                true => prices.head = device,
                false => prices.embedding = device,
            }
        }
        prices
    }
    /// Bytes of the main device for experts that steps copy there: those of two layers.
    fn slot_bytes(&self, placement: &Placement) -> u64 {
        let layers = placement.streamable_layers().into_iter();
        2 * layers
            .filter_map(|l| Some(self.parts.get(l)?.experts.bytes))
            .max()
            .unwrap_or(0)
    }
    /// Returns the least tokens of a step for which copying a layer's experts takes less than
    /// computing them on the other device.
    pub fn stream_from(&self, placement: &Placement) -> Option<usize> {
        let layer = *placement.streamable_layers().first()?;
        let experts = &self.parts.get(layer)?.experts;
        let of_token = experts.chunk_seconds(&self.devices[self.host()].machine) / CHUNK as f64;
        let copied = self.host_link().upload_seconds(experts.bytes as f64);
        // A decode step of one sequence reads few experts, which the model of chunks leaves out.
        Some(((copied / of_token).ceil() as usize).max(2))
    }
    /// Returns the experts of each layer that `memory` bytes hold, of layers whose experts alone
    /// are on another device.
    fn slots(&self, placement: &Placement, memory: u64) -> usize {
        let away = placement.streamable_layers().into_iter();
        let away = away.filter_map(|layer| self.parts.get(layer));
        let away: Vec<&LayerParts> = away.filter(|of| of.count > 0).collect();
        let bytes: u64 = away
            .iter()
            .map(|of| of.experts.bytes / of.count as u64)
            .sum();
        let count = away.iter().map(|of| of.count).min();
        match count.filter(|_| self.caches && bytes > 0) {
            Some(count) => count.min((memory / bytes) as usize),
            None => 0,
        }
    }
    /// Returns the share of a layer's chosen experts that slots hold, by the uses of earlier runs,
    /// or as if experts were used alike.
    fn hits(&self, layer: usize, slots: usize) -> f64 {
        let alike = || slots as f64 / self.parts[layer].count.max(1) as f64;
        match slots {
            0 => 0.0,
            slots => self.uses.share(layer, slots).unwrap_or_else(alike).min(1.0),
        }
    }
    /// Moves the first layers' parts until the others fit on the first `gpus` GPUs, or all are
    /// moved; `outer` are weights outside of layers that are in the host's memory.
    pub fn fill(
        &self,
        (gpus, cache, outer): (usize, u64, &[String]),
        moved: &dyn Fn(usize) -> LayerPlace,
    ) -> Priced {
        let layers = self.parts.len();
        let place = |count: usize| {
            let at = |layer| match layer < count {
                true => moved(layer),
                false => LayerPlace::default(),
            };
            let places = self.spread(gpus, (0..layers).map(at).collect());
            self.price(places.with_outer(outer.iter().cloned(), self.host()), cache)
        };
        // The least number of moved layers that fits.
        let fits = |count: &usize| place(*count).lacking == 0;
        place((0..=layers).find(fits).unwrap_or(layers))
    }
    /// Divides what is on the main device among the first `gpus` GPUs, each with a run of layers:
    /// in the ratio of their memory, or as many as fit on each if a whole number of layers does not
    /// fit that way.
    pub fn spread(&self, gpus: usize, places: Vec<LayerPlace>) -> Placement {
        let budgets = self.devices.iter().take(gpus).filter_map(|of| of.budget);
        let mut budgets: Vec<f64> = budgets.map(|bytes| bytes as f64).collect();
        if budgets.len() < 2 {
            return Placement::new(places);
        }
        if self.streams {
            budgets[0] -= self.slot_bytes(&Placement::new(places.clone())) as f64;
        }
        let bytes = |layer: usize| {
            let (at, of) = (places[layer], &self.parts[layer]);
            let own = |part: u64, device: usize| if device == 0 { part as f64 } else { 0.0 };
            own(of.layer.bytes, at.layer) + own(of.experts.bytes, at.experts)
        };
        let all: f64 = (0..places.len()).map(bytes).sum();
        let share = (all / budgets.iter().sum::<f64>()).min(1.0);
        let divided = |limits: &dyn Fn(usize) -> f64, part: f64| {
            let (mut gpu, mut held) = (0, 0.0);
            let at = |(layer, at): (usize, &LayerPlace)| {
                while gpu + 1 < budgets.len() && held + part * bytes(layer) > limits(gpu) {
                    held -= if part < 1.0 { limits(gpu) } else { held };
                    gpu += 1;
                }
                held += bytes(layer);
                let on = |device: usize| if device == 0 { gpu } else { device };
                LayerPlace {
                    layer: on(at.layer),
                    experts: on(at.experts),
                }
            };
            Placement::new(places.iter().enumerate().map(at).collect())
        };
        let even = divided(&|gpu| budgets[gpu] * share, 0.5);
        match self.price(even.clone(), 0).lacking {
            0 => even,
            _ => divided(&|gpu| budgets[gpu], 1.0),
        }
    }
    /// Returns the place of a layer with its experts alone in the host's memory.
    pub fn experts_away(&self, layer: usize) -> LayerPlace {
        LayerPlace {
            layer: 0,
            experts: match self.parts[layer].experts.bytes {
                0 => 0,
                _ => self.host(),
            },
        }
    }
    /// Returns the place of a layer that is in the host's memory as a whole.
    pub fn away(&self) -> LayerPlace {
        LayerPlace {
            layer: self.host(),
            experts: self.host(),
        }
    }
}

/// Modelled times of weights outside of layers on other devices than the main one, beyond those
/// that they would have there.
#[derive(Clone, Copy, Default)]
struct OuterPrices {
    decode: f64,
    chunk: f64,
    /// Bytes that the main device has for layers instead.
    freed: u64,
    /// Device of the embedding.
    embedding: usize,
    head: usize,
}

/// Returns the machine of a device. A CPU has its measured memory bandwidth, if there is one:
/// that of its description is an assumption for all CPUs, which kernels are compiled for.
pub(super) fn measured_machine(of: &Opened) -> Machine {
    let machine = of.target.machine.clone();
    let measured = of.device.measured().and_then(|costs| costs.bandwidth);
    match measured.filter(|_| machine.kind == MachineKind::Cpu) {
        Some(bandwidth) => Machine {
            bandwidth,
            ..machine
        },
        None => machine,
    }
}

impl Priced {
    /// Returns the number of layers on a device, and of those of which only the experts are there.
    fn on(&self, device: usize, layers: usize) -> (usize, usize) {
        let count = |test: &dyn Fn(LayerPlace) -> bool| {
            (0..layers)
                .filter(|&l| test(self.placement.layer(l)))
                .count()
        };
        let experts = count(&|at| at.layer != device && at.experts == device);
        (count(&|at| at.layer == device), experts)
    }
    /// Returns what is not on the main device of `devices`, in a word.
    pub(super) fn kind(&self, layers: usize, devices: usize) -> &'static str {
        let others = (1..devices).map(|device| self.on(device, layers));
        match others.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1)) {
            (0, 0) if self.head != 0 => "head",
            (0, 0) if self.embedding != 0 => "embedding",
            (0, 0) => "none",
            (0, _) => "experts",
            (_, 0) => "layers",
            _ => "both",
        }
    }
    /// Describes the placement of `layers` layers, such as `experts of 26 of 47 layers on cpu`;
    /// `others` are the names of the devices besides the main one.
    pub(super) fn parts(&self, layers: usize, others: &[&str]) -> String {
        let on = |(number, other): (usize, &&str)| {
            let of_layers = match self.on(number + 1, layers) {
                (0, 0) => None,
                (0, n) => Some(format!("experts of {n} of {layers} layers")),
                (n, 0) => Some(format!("{n} of {layers} layers")),
                (n, m) => Some(format!("{n} of {layers} layers and the experts of {m}")),
            };
            let is_here = |device: usize| device == number + 1;
            let embedding = is_here(self.embedding).then(|| "embedding".to_owned());
            let head = is_here(self.head).then(|| "head".to_owned());
            let parts = [embedding, of_layers, head].into_iter().flatten();
            let parts: Vec<String> = parts.collect();
            (!parts.is_empty()).then(|| format!("{} on {other}", parts.join(" and ")))
        };
        let parts: Vec<String> = others.iter().enumerate().filter_map(on).collect();
        let parts = match parts.is_empty() {
            true => "all layers on the main device".into(),
            false => parts.join(", "),
        };
        match self.slots {
            0 => parts,
            slots => format!("{parts}, {slots} of each such layer cached"),
        }
    }
    /// Describes the placement and its modelled times in a line.
    pub(super) fn line(&self, layers: usize, others: &[&str]) -> String {
        format!(
            "{}: modelled {:.1} ms a token, {:.0} ms for 512 tokens of a prompt",
            self.parts(layers, others),
            self.decode * 1e3,
            self.chunk * 1e3
        )
    }
}
