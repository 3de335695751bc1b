//! Chooses a placement for the memory of the main device, by modelled times.

use super::expert_uses::ExpertUses;
use super::layer_place::{LayerPlace, Placement};
use super::link::link;
use super::parts::{CHUNK, LayerParts, layer_parts};
use crate::arch::{Model, Plan};
use crate::gguf::Gguf;
use fancy_regex::{Regex, RegexBuilder};
use gristmill_backend::Opened;
use gristmill_compiler::decision::{Alternative, Decision};
use gristmill_runtime::Error as DeviceError;
use gristmill_uop::link::DeviceLink;
use gristmill_uop::machine::{Machine, MachineKind};
use gristmill_uop::measured::Measured;
use std::fmt;
use std::sync::Arc;

/// Share of the host's free memory that experts may take when they are there twice.
const HOST_SHARE: f64 = 0.8;

/// Steps that a placement is chosen for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Goal {
    /// Requests of 1,024 tokens with answers of 256.
    #[default]
    Both,
    /// Decode steps of one sequence.
    Decode,
    /// Prefill chunks of 512 tokens.
    Prefill,
}

impl Goal {
    /// Returns the modelled seconds that a placement is ranked by.
    fn seconds(self, of: &Priced) -> f64 {
        match self {
            Goal::Both => 256.0 * of.decode + 2.0 * of.chunk,
            Goal::Decode => of.decode,
            Goal::Prefill => of.chunk,
        }
    }
    fn describe(self) -> &'static str {
        match self {
            Goal::Both => "a request",
            Goal::Decode => "a decode step",
            Goal::Prefill => "a prefill chunk",
        }
    }
}

/// A device that is opened when it is needed.
#[derive(Clone)]
pub struct OtherDevice {
    name: String,
    open: Arc<dyn Fn() -> Result<Opened, DeviceError> + Send + Sync>,
}

impl OtherDevice {
    /// Creates a device with its name for people.
    pub fn new(
        name: impl Into<String>,
        open: impl Fn() -> Result<Opened, DeviceError> + Send + Sync + 'static,
    ) -> OtherDevice {
        OtherDevice {
            name: name.into(),
            open: Arc::new(open),
        }
    }
    /// Creates a device from one that is open.
    pub fn from_opened(opened: Opened) -> OtherDevice {
        OtherDevice::new(opened.device.name().to_owned(), move || Ok(opened.clone()))
    }
}

impl fmt::Debug for OtherDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Devices that an engine may use besides its main one, and what its placement must keep to.
#[derive(Clone, Debug, Default)]
pub struct PlacementRequest {
    /// Further devices. Parts that do not fit on the main device go to the first of them.
    pub others: Vec<OtherDevice>,
    /// Memory of the main device that the engine may use, bytes; `None` for all that is free.
    pub memory: Option<u64>,
    /// Number of layers on the main device, the last ones.
    pub layers: Option<usize>,
    /// Number of layers whose experts are on another device, the first ones.
    pub experts_away: Option<usize>,
    /// Patterns of tensor names (llama.cpp's `-ot`), and the device of tensors that match.
    pub overrides: Vec<(TensorPattern, usize)>,
    /// Least tokens of a step that copies experts to the main device; `None` if their price
    /// decides.
    pub stream_from: Option<usize>,
    /// Memory of the main device for cached experts of layers whose experts are on another device,
    /// bytes, 0 for none; `None` if the uses of experts in earlier runs decide.
    pub expert_cache: Option<u64>,
    /// Steps to choose for.
    pub goal: Goal,
    /// Costs of the link to the first other device, if they are given; else those that are stored,
    /// or that are measured when a placement is chosen.
    pub link: Option<DeviceLink>,
    /// The placement, if it is given.
    pub fixed: Option<Placement>,
}

/// A regular expression over tensor names, case-sensitive, that may match anywhere.
#[derive(Clone, Debug)]
pub struct TensorPattern(Regex);

impl TensorPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<TensorPattern, String> {
        let regex = RegexBuilder::new(text)
            .backtrack_limit(PATTERN_STEPS)
            .build();
        regex.map(TensorPattern).map_err(|error| error.to_string())
    }
    fn is_match(&self, name: &str) -> bool {
        self.0.is_match(name).unwrap_or(false)
    }
}

/// Bound on the work of a pattern for one name.
const PATTERN_STEPS: usize = 10_000;

/// A placement with its modelled times.
#[derive(Clone, PartialEq, Debug)]
pub struct Priced {
    /// Devices of all layers.
    pub placement: Placement,
    /// Experts of each layer whose experts alone are on another device that the main device holds.
    pub slots: usize,
    /// Bytes of layers' weights on the main device.
    pub bytes: u64,
    /// Modelled seconds of the layers in a decode step of one sequence.
    pub decode: f64,
    /// The same for a prefill chunk of 512 tokens.
    pub chunk: f64,
}

/// The chosen placement and the best of another kind.
#[derive(Clone)]
pub struct PlacementChoice {
    /// The placement that is used.
    pub chosen: Priced,
    /// The one that came second, if there was a choice.
    pub runner_up: Option<Priced>,
    /// Everything on the main device, if that does not fit or another placement is asked for.
    pub whole: Option<Priced>,
    /// Bytes of layers' weights that the main device may hold.
    pub budget: u64,
    /// Steps that it was chosen for.
    pub goal: Goal,
    /// Costs of the link to the first other device.
    pub link: DeviceLink,
    /// Number of the model's layers.
    pub layers: usize,
    /// Least tokens of a step that copies experts from host memory to the main device; `None` if no
    /// step does.
    pub stream_from: Option<usize>,
    /// The devices besides the main one, opened; empty if everything is there.
    pub others: Vec<Opened>,
}

/// What a placement is chosen from.
struct Candidates {
    parts: Vec<LayerParts>,
    main: Machine,
    other: Machine,
    link: DeviceLink,
    /// Bytes of a layer's row that crosses to another device, and of the one that comes back, per
    /// token.
    row: f64,
    /// Whether steps of many tokens may copy experts to the main device.
    streams: bool,
    /// Whether decode steps may have cached experts.
    caches: bool,
    /// Uses of experts in earlier runs.
    uses: ExpertUses,
}

impl Candidates {
    /// Prices a placement with `cache` bytes for cached experts.
    fn price(&self, placement: Placement, cache: u64) -> Priced {
        let slots = self.slots(&placement, cache);
        let machine = |device: usize| if device == 0 { &self.main } else { &self.other };
        let (mut bytes, mut decode, mut chunk) = (0, 0.0, 0.0);
        let mut before = 0;
        for (number, of) in self.parts.iter().enumerate() {
            let at = placement.layer(number);
            for (part, device) in [(&of.layer, at.layer), (&of.experts, at.experts)] {
                bytes += if device == 0 { part.bytes } else { 0 };
                if part.bytes > 0 {
                    let may_cache = device != 0 && at.layer == 0;
                    let hits = if may_cache {
                        self.hits(number, slots)
                    } else {
                        0.0
                    };
                    decode += (1.0 - hits) * part.decode_seconds(machine(device));
                    decode += hits * part.decode_seconds(&self.main);
                    let copied = self.link.upload_seconds(part.bytes as f64);
                    let streamed = part.chunk_seconds(&self.main).max(copied);
                    let computed = part.chunk_seconds(machine(device));
                    let may_stream = self.streams && device != 0 && at.layer == 0;
                    chunk += if may_stream {
                        streamed.min(computed)
                    } else {
                        computed
                    };
                }
            }
            let experts_cross = of.experts.bytes > 0 && at.experts != at.layer;
            let crossings =
                usize::from(experts_cross) as f64 + (before != at.layer) as u8 as f64 / 2.0;
            let rows = CHUNK as f64 * self.row;
            let copies = self.link.upload_seconds(rows) + self.link.download_seconds(rows);
            decode += crossings * self.link.handover_seconds();
            chunk += crossings * (self.link.handover_seconds() + copies);
            before = at.layer;
        }
        if self.streams {
            bytes += self.slot_bytes(&placement);
        }
        let away = placement.streamable_layers().into_iter();
        for of in away.filter_map(|layer| self.parts.get(layer)) {
            bytes += of.experts.bytes / of.count.max(1) as u64 * slots as u64;
        }
        Priced {
            placement,
            slots,
            bytes,
            decode,
            chunk,
        }
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
    fn stream_from(&self, placement: &Placement) -> Option<usize> {
        let layer = *placement.streamable_layers().first()?;
        let experts = &self.parts.get(layer)?.experts;
        let of_token = experts.chunk_seconds(&self.other) / CHUNK as f64;
        let copied = self.link.upload_seconds(experts.bytes as f64);
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
    /// Moves the first layers' parts until at most `budget` bytes are on the main device, or all
    /// are moved.
    fn fill(&self, budget: u64, cache: u64, moved: &dyn Fn(usize) -> LayerPlace) -> Priced {
        let layers = self.parts.len();
        let place = |count: usize| {
            let at = |layer| match layer < count {
                true => moved(layer),
                false => LayerPlace::default(),
            };
            self.price(Placement::new((0..layers).map(at).collect()), cache)
        };
        // The least number of moved layers that fits.
        let fits = |count: &usize| place(*count).bytes <= budget;
        place((0..=layers).find(fits).unwrap_or(layers))
    }
    fn experts_away(&self, layer: usize) -> LayerPlace {
        LayerPlace {
            layer: 0,
            experts: usize::from(self.parts[layer].experts.bytes > 0),
        }
    }
}

/// Returns the machine of a device. A CPU has its measured memory bandwidth, if there is one:
/// that of its description is an assumption for all CPUs, which kernels are compiled for.
fn measured_machine(of: &Opened) -> Machine {
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

/// Both parts of a layer on the first other device.
const AWAY: LayerPlace = LayerPlace {
    layer: 1,
    experts: 1,
};

impl PlacementRequest {
    /// Returns whether the user forced a placement.
    fn is_forced(&self) -> bool {
        self.layers.is_some() || self.experts_away.is_some() || !self.overrides.is_empty()
    }
    /// Returns the forced places of a layer: those of flags, then those of patterns.
    fn forced(&self, layer: usize, layers: usize, has_experts: bool) -> LayerPlace {
        let first = layers.saturating_sub(self.layers.unwrap_or(layers));
        let is_away = layer < self.experts_away.unwrap_or(0) && has_experts;
        let mut place = match layer < first {
            true => AWAY,
            false => LayerPlace {
                layer: 0,
                experts: usize::from(is_away),
            },
        };
        let named = |stem: &str| {
            let name = format!("blk.{layer}.{stem}.weight");
            let mut rules = self.overrides.iter();
            rules.find(|rule| rule.0.is_match(&name)).map(|rule| rule.1)
        };
        let of_layer = ["attn_output", "attn_norm", "ffn_down"].into_iter();
        if let Some(device) = of_layer.filter_map(named).max() {
            place.layer = device;
        }
        let of_experts = [
            "ffn_down_exps",
            "ffn_gate_exps",
            "ffn_up_exps",
            "ffn_gate_up_exps",
        ];
        let experts = of_experts.into_iter().filter_map(named).max();
        match experts.filter(|_| has_experts) {
            Some(device) => place.experts = device,
            None if !has_experts => place.experts = place.layer,
            None => {}
        }
        place
    }
    /// Returns whether parts may be on other devices: if they are given, and the main device does
    /// not use the host's memory, as the others do.
    fn may_place(&self, main: &Opened) -> bool {
        let has_own_memory = main.target.machine.kind == MachineKind::Gpu;
        !self.others.is_empty() && (has_own_memory || self.fixed.is_some())
    }
    /// Returns the costs of the link to another device. Nothing is measured for a given placement.
    fn link_to(&self, main: &Opened, other: Option<&Opened>) -> Result<DeviceLink, DeviceError> {
        match (self.link, other) {
            (Some(link), _) => Ok(link),
            (None, Some(other)) if self.fixed.is_none() => link(main, other),
            _ => Ok(DeviceLink::ASSUMED),
        }
    }
    /// Chooses a placement of the layers of a model: `plan` is the plan of a decode step, `budget`
    /// the bytes of layers' weights that the main device may hold. Everything is there if it fits,
    /// or if there is no other device.
    ///
    /// # Errors
    /// When another device is needed and cannot be opened.
    pub(crate) fn choose(
        &self,
        file: &Gguf,
        model: &dyn Model,
        plan: &Plan,
        main: &Opened,
        budget: u64,
    ) -> Result<PlacementChoice, DeviceError> {
        let layers = model.layers();
        let parts = layer_parts(file, plan, layers);
        let bytes: u64 = parts.iter().map(|p| p.layer.bytes + p.experts.bytes).sum();
        let is_asked = self.is_forced() || self.fixed.is_some();
        let is_whole = !self.may_place(main) || !is_asked && bytes <= budget;
        let opened = match is_whole {
            true => Vec::new(),
            false => self
                .others
                .iter()
                .map(|of| (of.open)())
                .collect::<Result<_, _>>()?,
        };
        let of = Candidates {
            other: measured_machine(opened.first().unwrap_or(main)),
            main: measured_machine(main),
            link: self.link_to(main, opened.first())?,
            row: (model.width() * size_of::<f32>()) as f64,
            // Experts are then in host memory twice: packed for its cores, and for the main device.
            streams: opened.first().is_some_and(|of| {
                let free = of.device.available().unwrap_or(u64::MAX);
                let away = bytes.saturating_sub(budget);
                free as f64 * HOST_SHARE > 2.0 * away as f64
            }),
            caches: model.adapters().is_empty(),
            uses: match is_whole {
                true => ExpertUses::default(),
                false => ExpertUses::stored(file, &*main.device),
            },
            parts,
        };
        let (chosen, runner_up) = match is_whole {
            true => (of.price(Placement::default(), 0), None),
            false => self.among(&of, plan, budget),
        };
        let stream_from = match self.stream_from {
            Some(tokens) if !is_whole => Some(tokens),
            None if of.streams => of.stream_from(&chosen.placement),
            _ => None,
        };
        let whole = (!is_whole).then(|| of.price(Placement::default(), 0));
        Ok(PlacementChoice {
            stream_from,
            whole: whole.filter(|whole| whole.placement != chosen.placement),
            chosen,
            runner_up,
            budget,
            goal: self.goal,
            link: of.link,
            layers,
            others: opened,
        })
    }
    /// Returns the forced placement, or the best within the budget and the one that came second.
    fn among(&self, of: &Candidates, plan: &Plan, budget: u64) -> (Priced, Option<Priced>) {
        let layers = of.parts.len();
        let cache = self.expert_cache.unwrap_or(0);
        let priced = |placement: Placement, cache| of.price(placement.tied(plan), cache);
        if let Some(fixed) = &self.fixed {
            return (priced(fixed.clone(), cache), None);
        }
        if self.is_forced() {
            let at = |layer: usize| self.forced(layer, layers, of.parts[layer].experts.bytes > 0);
            let places = (0..layers).map(at).collect();
            return (priced(Placement::new(places), cache), None);
        }
        let by_layers = priced(of.fill(budget, 0, &|_| AWAY).placement, 0);
        // Uses of earlier runs say whether slots for experts of all layers are worth more than
        // whole layers.
        let caches = match self.expert_cache {
            Some(cache) => vec![cache],
            None if of.uses.0.is_empty() => vec![0],
            None => (0..=CACHE_SHARES)
                .map(|n| budget * n / CACHE_SHARES)
                .collect(),
        };
        let by_experts = caches
            .into_iter()
            .map(|cache| of.fill(budget, cache, &|layer| of.experts_away(layer)));
        let rank = |p: &Priced| (p.bytes > budget, self.goal.seconds(p));
        let order = |a: &Priced, b: &Priced| {
            let (a, b) = (rank(a), rank(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        };
        let mut all: Vec<Priced> = by_experts.chain([by_layers]).collect();
        all.sort_by(order);
        let mut all = all.into_iter();
        let best = all
            .next()
            .unwrap_or_else(|| of.price(Placement::default(), 0));
        let second = all.find(|of| of.placement != best.placement);
        (best, second)
    }
}

/// Parts of the memory for layers that may be slots for experts.
const CACHE_SHARES: u64 = 8;

impl Priced {
    /// Returns the number of layers that are not on the main device, and of those of which only the
    /// experts are not.
    fn away(&self, layers: usize) -> (usize, usize) {
        let count = |test: &dyn Fn(LayerPlace) -> bool| {
            (0..layers)
                .filter(|&l| test(self.placement.layer(l)))
                .count()
        };
        let experts = count(&|at| at.layer == 0 && at.experts != 0);
        (count(&|at| at.layer != 0), experts)
    }
    /// Returns what is not on the main device, in a word.
    fn kind(&self, layers: usize) -> &'static str {
        match self.away(layers) {
            (0, 0) => "none",
            (0, _) => "experts",
            (_, 0) => "layers",
            _ => "both",
        }
    }
    /// Describes the placement of `layers` layers, such as `experts of layers 0 to 25 on cpu`.
    fn parts(&self, layers: usize, other: &str) -> String {
        let parts = match self.away(layers) {
            (0, 0) => "all layers on the main device".into(),
            (0, n) => format!("experts of {n} of {layers} layers on {other}"),
            (n, 0) => format!("{n} of {layers} layers on {other}"),
            (n, m) => format!("{n} of {layers} layers and the experts of {m} on {other}"),
        };
        match self.slots {
            0 => parts,
            slots => format!("{parts}, {slots} of each such layer cached"),
        }
    }
    /// Describes the placement and its modelled times in a line.
    fn line(&self, layers: usize, other: &str) -> String {
        format!(
            "{}: modelled {:.1} ms a token, {:.0} ms for 512 tokens of a prompt",
            self.parts(layers, other),
            self.decode * 1e3,
            self.chunk * 1e3
        )
    }
}

impl PlacementChoice {
    /// Returns the choice as a decision: all placements that were priced, with the seconds of the
    /// steps that it was chosen for; the runner-up is the second.
    pub fn decision(&self) -> Decision {
        let other = self.others.first().map_or("", |of| of.device.name());
        let option = |of: &Priced| {
            let is_over = of.bytes > self.budget;
            let too_large = if is_over { ", too large" } else { "" };
            Alternative {
                name: of.kind(self.layers),
                plan: format!(
                    "{}: decode {:.2} ms, prefill of {CHUNK} tokens {:.1} ms, {:.1} MB{too_large}",
                    of.parts(self.layers, other),
                    of.decode * 1e3,
                    of.chunk * 1e3,
                    of.bytes as f64 / 1e6,
                ),
                seconds: self.goal.seconds(of),
            }
        };
        let others = [&self.runner_up, &self.whole].into_iter().flatten();
        let all = std::iter::once(&self.chosen).chain(others);
        let link = match self.others.is_empty() {
            true => String::new(),
            false => format!(", link to {other} with {}", self.link.rounded().text()),
        };
        let budget = self.budget as f64 / 1e6;
        let goal = self.goal.describe();
        Decision::new(
            "placement",
            format!("by {goal}, {budget:.1} MB for weights{link}"),
            all.map(option).collect(),
        )
    }
    /// Describes the choice for people: what is where, and what came second.
    pub fn lines(&self) -> Vec<String> {
        let other = self.others.first().map_or("", |of| of.device.name());
        let chosen = self.chosen.line(self.layers, other);
        let second = self.runner_up.iter();
        let second = second.map(|of| format!("runner-up: {}", of.line(self.layers, other)));
        std::iter::once(chosen).chain(second).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::parts::Part;

    /// A layer of 40 MB, and 400 MB of experts of which a token reads a tenth.
    fn layer() -> LayerParts {
        let part = |bytes: f64, share: f64| Part {
            bytes: bytes as u64,
            decode: bytes * share,
            chunk: bytes,
            terms: 2.0 * bytes * share,
        };
        LayerParts {
            layer: part(40e6, 1.0),
            experts: part(400e6, 0.1),
            count: 100,
        }
    }
    fn candidates(link: DeviceLink) -> Candidates {
        Candidates {
            parts: vec![layer(); 20],
            main: Machine::named("h200").expect("a machine"),
            other: Machine::cpu("avx2", 8, 16),
            link,
            row: 8192.0,
            streams: true,
            caches: true,
            uses: ExpertUses::default(),
        }
    }
    fn handover(seconds: f64) -> DeviceLink {
        DeviceLink {
            handover: Some(seconds),
            ..DeviceLink::ASSUMED
        }
    }
    fn chosen(goal: Goal, link: DeviceLink) -> (&'static str, Option<&'static str>) {
        let request = PlacementRequest {
            goal,
            ..PlacementRequest::default()
        };
        let of = candidates(link);
        let (best, second) = request.among(&of, &Plan { calls: Vec::new() }, 5_000_000_000);
        (best.kind(20), second.map(|second| second.kind(20)))
    }

    #[test]
    fn the_cost_of_a_handover_decides_between_experts_and_layers() {
        // A hand-over per layer whose experts are away, but one for all layers.
        let [quick, slow] = [10e-6, 50e-3].map(|seconds| chosen(Goal::Decode, handover(seconds)));
        assert_eq!(quick, ("experts", Some("layers")));
        assert_eq!(slow, ("layers", Some("experts")));
    }

    #[test]
    fn the_bandwidth_of_a_link_decides_what_is_copied() {
        let at = |rate: f64| DeviceLink {
            upload: Some(rate),
            ..DeviceLink::ASSUMED
        };
        let stream_from = |rate: f64| {
            let of = candidates(at(rate));
            let best = of.fill(5_000_000_000, 0, &|layer| of.experts_away(layer));
            (of.stream_from(&best.placement), best.chunk)
        };
        let (fast, slow) = (stream_from(55e9), stream_from(1e9));
        assert!(fast.0 < slow.0, "{fast:?} {slow:?}");
        assert!(fast.1 < slow.1, "{fast:?} {slow:?}");
    }

    #[test]
    fn skewed_uses_are_worth_slots_in_all_layers() {
        let slots = |uses: Option<Vec<u32>>| {
            let mut of = candidates(handover(20e-6));
            of.uses = ExpertUses(uses.into_iter().map(|uses| (4, uses)).collect());
            let request = PlacementRequest {
                goal: Goal::Decode,
                ..PlacementRequest::default()
            };
            let (best, _) = request.among(&of, &Plan { calls: Vec::new() }, 5_000_000_000);
            assert!(best.bytes <= 5_000_000_000);
            let text = best.line(20, "cpu");
            assert_eq!(
                text.contains(" of each such layer cached"),
                best.slots > 0,
                "{text}"
            );
            best.slots
        };
        let zipf = (1..=100).map(|rank| 10_000 / rank).collect();
        assert_eq!(slots(None), 0);
        assert_eq!(slots(Some(vec![70; 100])), 0);
        assert!(slots(Some(zipf)) > 20);
    }

    #[test]
    fn a_choice_is_told_as_a_decision() {
        let of = candidates(DeviceLink::ASSUMED);
        let budget = 5_000_000_000;
        let best = of.fill(budget, 0, &|layer| of.experts_away(layer));
        let choice = PlacementChoice {
            runner_up: Some(of.fill(budget, 0, &|_| AWAY)),
            whole: Some(of.price(Placement::default(), 0)),
            chosen: best,
            budget,
            goal: Goal::Both,
            link: of.link,
            layers: 20,
            stream_from: None,
            others: Vec::new(),
        };
        let text = choice.decision().explain();
        assert!(
            text.starts_with("placement by a request, 5000.0 MB for weights: *experts (experts of")
        );
        for part in [
            " layers (",
            "none (all layers on the main device: decode",
            "MB, too large)",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
