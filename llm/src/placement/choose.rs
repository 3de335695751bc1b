//! Chooses a placement for the memory of the GPUs, by modelled times.

use super::candidates::{Candidates, PlacedDevice, Priced, measured_machine};
use super::expert_uses::ExpertUses;
use super::layer_place::{LayerPlace, Placement};
use super::link::link;
use super::miss_costs::MissCosts;
use super::parts::{CHUNK, OuterParts, layer_parts};
use crate::arch::{Model, Plan};
use crate::gguf::Gguf;
use fancy_regex::{Regex, RegexBuilder};
use gristmill_backend::Opened;
use gristmill_compiler::decision::{Alternative, Decision};
use gristmill_runtime::{Device, Error as DeviceError};
use gristmill_uop::link::DeviceLink;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::measured::Measured;
use std::fmt;
use std::sync::{Arc, OnceLock};

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
    /// The device once it was needed.
    opened: Arc<OnceLock<Opened>>,
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
            opened: Arc::default(),
        }
    }
    /// Returns the device, opened at the first call.
    fn open(&self) -> Result<Opened, DeviceError> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened.clone());
        }
        let opened = (self.open)()?;
        Ok(self.opened.get_or_init(|| opened).clone())
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
    /// Further devices: GPUs, then one with the host's memory. Layers that do not fit on the main
    /// device are divided among the GPUs; parts that do not fit there go to the host's memory.
    pub others: Vec<OtherDevice>,
    /// Memory of each GPU that the engine may use, bytes; `None` for all that is free.
    pub memory: Option<u64>,
    /// Number of layers on GPUs, the last ones.
    pub layers: Option<usize>,
    /// Number of layers whose experts are in the host's memory, the first ones.
    pub experts_away: Option<usize>,
    /// Patterns of tensor names (llama.cpp's `-ot`), and whether tensors that match are in the
    /// host's memory.
    pub overrides: Vec<(TensorPattern, bool)>,
    /// Least tokens of a step that copies experts to the main device; `None` if their price
    /// decides.
    pub stream_from: Option<usize>,
    /// Memory of the main device for cached experts of layers whose experts are on another device,
    /// bytes, 0 for none; `None` if the uses of experts in earlier runs decide.
    pub expert_cache: Option<u64>,
    /// Steps to choose for.
    pub goal: Goal,
    /// Costs of the links to other devices, if they are given; else those that are stored, or that
    /// are measured when a placement is chosen.
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

/// The chosen placement and the best of another kind.
#[derive(Clone)]
pub struct PlacementChoice {
    /// The placement that is used.
    pub chosen: Priced,
    /// The one that came second, if there was a choice.
    pub runner_up: Option<Priced>,
    /// Everything on the main device, if that does not fit or another placement is asked for.
    pub whole: Option<Priced>,
    /// Bytes of layers' weights that each GPU may hold.
    pub budgets: Vec<u64>,
    /// Steps that it was chosen for.
    pub goal: Goal,
    /// Costs of the link between the main device and the host's memory.
    pub link: DeviceLink,
    /// Bytes per second that the cores read from the host's memory.
    pub host_bandwidth: f64,
    /// Costs of the links between the main device and other GPUs, in their order.
    pub peer_links: Vec<DeviceLink>,
    /// Number of the model's layers.
    pub layers: usize,
    /// Least tokens of a step that copies experts from host memory to the main device; `None` if no
    /// step does.
    pub stream_from: Option<usize>,
    /// The devices with parts besides the main one, opened; empty if everything is there.
    pub others: Vec<Opened>,
    /// Names of all devices that might have had parts.
    names: Vec<String>,
}

impl PlacementRequest {
    /// Returns whether the user forced a placement.
    fn is_forced(&self) -> bool {
        self.layers.is_some() || self.experts_away.is_some() || !self.overrides.is_empty()
    }
    /// Returns the forced places of a layer: those of flags, then those of patterns.
    fn forced(&self, layer: usize, of: &Candidates) -> LayerPlace {
        let (layers, host) = (of.parts.len(), of.host());
        let has_experts = of.parts[layer].experts.bytes > 0;
        let first = layers.saturating_sub(self.layers.unwrap_or(layers));
        let is_away = layer < self.experts_away.unwrap_or(0);
        let mut place = match (layer < first, is_away) {
            (true, _) => of.away(),
            (false, true) => of.experts_away(layer),
            (false, false) => LayerPlace::default(),
        };
        let named = |stem: &str| {
            let name = format!("blk.{layer}.{stem}.weight");
            let mut rules = self.overrides.iter();
            let rule = rules.find(|rule| rule.0.is_match(&name));
            rule.map(|rule| if rule.1 { host } else { 0 })
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
    /// Returns the weights outside of layers that patterns put into the host's memory.
    fn forced_outer(&self, of: &Candidates) -> Vec<String> {
        let is_away = |name: &&String| {
            let rule = self.overrides.iter().find(|rule| rule.0.is_match(name));
            rule.is_some_and(|rule| rule.1)
        };
        of.outer.parts.keys().filter(is_away).cloned().collect()
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
    /// Returns the devices that parts may be on, with the bytes of layers' weights for which GPUs
    /// have room. `budget` returns them by device and the number of GPUs.
    fn devices(
        &self,
        main: &Opened,
        opened: &[Opened],
        budget: &dyn Fn(&dyn Device, usize) -> u64,
    ) -> Result<Vec<PlacedDevice>, DeviceError> {
        let is_gpu = |of: &&Opened| of.target.machine.kind == MachineKind::Gpu;
        let gpus = 1 + opened.iter().take_while(is_gpu).count();
        let all = std::iter::once(main).chain(opened).enumerate();
        all.map(|(number, of)| {
            let other = Some(of).filter(|_| number > 0);
            Ok(PlacedDevice {
                machine: measured_machine(of),
                link: self.link_to(main, other)?,
                budget: (number < gpus).then(|| budget(&*of.device, gpus)),
            })
        })
        .collect()
    }
    /// Chooses a placement of the layers of a model: `plan` is the plan of a decode step; `budget`
    /// returns the bytes of layers' weights that a GPU may hold, if so many GPUs hold the model.
    /// Everything is on the main device if it fits, or if there is no other device.
    ///
    /// # Errors
    /// When another device is needed and cannot be opened.
    pub(crate) fn choose(
        &self,
        file: &Gguf,
        model: &dyn Model,
        plan: &Plan,
        main: &Opened,
        budget: &dyn Fn(&dyn Device, usize) -> u64,
    ) -> Result<PlacementChoice, DeviceError> {
        let layers = model.layers();
        let parts = layer_parts(file, plan, layers);
        let bytes: u64 = parts.iter().map(|p| p.layer.bytes + p.experts.bytes).sum();
        let is_asked = self.is_forced() || self.fixed.is_some();
        let fits = bytes <= budget(&*main.device, 1);
        let is_whole = !self.may_place(main) || !is_asked && fits;
        let mut opened: Vec<Opened> = match is_whole {
            true => Vec::new(),
            false => self
                .others
                .iter()
                .map(OtherDevice::open)
                .collect::<Result<_, _>>()?,
        };
        let mut of = Candidates {
            devices: self.devices(main, &opened, budget)?,
            row: (model.width() * size_of::<f32>()) as f64,
            streams: false,
            caches: model.adapters().is_empty(),
            uses: match is_whole {
                true => ExpertUses::default(),
                false => ExpertUses::stored(file, &*main.device),
            },
            parts,
            outer: OuterParts::new(file, plan),
        };
        let budgets: Vec<u64> = of.devices.iter().filter_map(|of| of.budget).collect();
        of.streams = of.devices.len() > of.gpus();
        let (chosen, runner_up) = match is_whole {
            true => (of.price(Placement::default(), 0), None),
            false => self.among(&of, plan),
        };
        let stream_from = match self.stream_from {
            Some(tokens) if !is_whole => Some(tokens),
            None if of.streams => of.stream_from(&chosen.placement),
            _ => None,
        };
        let whole = (!is_whole).then(|| of.price(Placement::default(), 0));
        if !is_asked {
            opened.truncate(chosen.placement.devices().saturating_sub(1));
        }
        let peers = of.devices.iter().filter(|of| of.budget.is_some());
        Ok(PlacementChoice {
            stream_from,
            whole: whole.filter(|whole| whole.placement != chosen.placement),
            chosen,
            runner_up,
            goal: self.goal,
            link: of.host_link(),
            host_bandwidth: of.devices[of.host()].machine.bandwidth,
            peer_links: peers.skip(1).map(|of| of.link).collect(),
            budgets,
            layers,
            names: self.others.iter().map(|of| of.name.clone()).collect(),
            others: opened,
        })
    }
    /// Returns the forced placement, or the best that fits and the one that came second.
    fn among(&self, of: &Candidates, plan: &Plan) -> (Priced, Option<Priced>) {
        let (layers, gpus) = (of.parts.len(), of.gpus());
        let cache = self.expert_cache.unwrap_or(0);
        let priced = |placement: Placement, cache| of.price(placement.tied(plan), cache);
        if let Some(fixed) = &self.fixed {
            return (priced(fixed.clone(), cache), None);
        }
        if self.is_forced() {
            let places = (0..layers).map(|layer| self.forced(layer, of)).collect();
            let outer = self.forced_outer(of);
            let placement = of.spread(gpus, places).with_outer(outer, of.host());
            return (priced(placement, cache), None);
        }
        let tables = &of.outer.tables[..];
        let outer = if tables.is_empty() {
            vec![&[][..]]
        } else {
            vec![&[], tables]
        };
        let by_layers = outer.iter().map(|outer| {
            let of = of.fill((gpus, 0, outer), &|_| of.away());
            priced(of.placement, 0)
        });
        // Uses of earlier runs say whether slots for experts of all layers are worth more than
        // whole layers.
        let budget = of.devices[0].budget.unwrap_or(0);
        let caches = match self.expert_cache {
            Some(cache) => vec![cache],
            None if of.uses.0.is_empty() => vec![0],
            None => (0..=CACHE_SHARES)
                .map(|n| budget * n / CACHE_SHARES)
                .collect(),
        };
        let mut gpus = vec![gpus, 1];
        gpus.dedup();
        let outer = &outer;
        let by_experts = gpus.iter().flat_map(|&gpus| {
            let away = move |&cache: &u64| {
                let all = outer.iter();
                all.map(move |o| of.fill((gpus, cache, o), &|layer| of.experts_away(layer)))
            };
            caches.iter().flat_map(away)
        });
        let rank = |p: &Priced| (p.lacking > 0, self.goal.seconds(p));
        let order = |a: &Priced, b: &Priced| {
            let (a, b) = (rank(a), rank(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        };
        let mut all: Vec<Priced> = by_experts.chain(by_layers).collect();
        all.sort_by(order);
        let mut all = all.into_iter();
        let best = all
            .next()
            .unwrap_or_else(|| of.price(Placement::default(), 0));
        // One that puts other parts elsewhere tells more than one with a layer more or less.
        let kind = |priced: &Priced| priced.kind(layers, of.devices.len());
        let (others, alike): (Vec<_>, Vec<_>) = all
            .filter(|of| of.placement != best.placement)
            .partition(|priced| kind(priced) != kind(&best));
        let second = others.into_iter().chain(alike).next();
        (best, second)
    }
}

/// Parts of the memory for layers that may be slots for experts.
const CACHE_SHARES: u64 = 8;

impl PlacementChoice {
    /// Returns the costs of chosen experts that the main device does not hold.
    pub(crate) fn miss_costs(&self) -> MissCosts {
        MissCosts::new(&self.link, self.host_bandwidth)
    }
    /// Returns whether layers are on devices that queue the copies between them, so that these work
    /// on different parts of a prompt at a time; `main` is the main device.
    pub(crate) fn is_pipelined(&self, main: &dyn Device) -> bool {
        let others = || self.others.iter().map(|of| &*of.device);
        let devices = || std::iter::once(main).chain(others());
        let joined = |to: &dyn Device| devices().all(|from| to.queues_copies_from(from));
        let placement = &self.chosen.placement;
        !placement.is_whole() && placement.has_whole_layers() && devices().all(joined)
    }
    /// Returns the names of the devices besides the main one.
    fn names(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }
    /// Returns the choice as a decision: all placements that were priced, with the seconds of the
    /// steps that it was chosen for; the runner-up is the second.
    pub fn decision(&self) -> Decision {
        let names = self.names();
        let option = |of: &Priced| {
            let too_large = if of.lacking > 0 { ", too large" } else { "" };
            Alternative {
                name: of.kind(self.layers, names.len() + 1),
                plan: format!(
                    "{}: decode {:.2} ms, prefill of {CHUNK} tokens {:.1} ms, {:.1} MB{too_large}",
                    of.parts(self.layers, &names),
                    of.decode * 1e3,
                    of.chunk * 1e3,
                    of.bytes as f64 / 1e6,
                ),
                seconds: self.goal.seconds(of),
            }
        };
        let others = [&self.runner_up, &self.whole].into_iter().flatten();
        let all = std::iter::once(&self.chosen).chain(others);
        let links = self.peer_links.iter().chain([&self.link]);
        let links = names.iter().zip(links).map(|(name, link)| {
            let costs = link.rounded().text();
            format!(", link to {name} with {costs}")
        });
        let links: String = links.filter(|_| self.runner_up.is_some()).collect();
        let budgets = self.budgets.iter();
        let budgets: Vec<String> = budgets
            .map(|&of| format!("{:.1}", of as f64 / 1e6))
            .collect();
        let (goal, budgets) = (self.goal.describe(), budgets.join(" + "));
        Decision::new(
            "placement",
            format!("by {goal}, {budgets} MB for weights{links}"),
            all.map(option).collect(),
        )
    }
    /// Describes the choice for people: what is where, and what came second.
    pub fn lines(&self) -> Vec<String> {
        let chosen = self.chosen.line(self.layers, &self.names());
        let second = self.runner_up.iter();
        let second = second.map(|of| format!("runner-up: {}", of.line(self.layers, &self.names())));
        std::iter::once(chosen).chain(second).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::parts::{LayerParts, Part};
    use gristmill_uop::machine::Machine;

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
    /// Room on each GPU.
    const BUDGET: u64 = 5_000_000_000;

    /// 20 layers, on `gpus` GPUs and a CPU.
    fn candidates(gpus: usize, link: DeviceLink) -> Candidates {
        let device = |machine, budget| PlacedDevice {
            machine,
            link,
            budget,
        };
        let gpu = || device(Machine::named("h200").expect("a machine"), Some(BUDGET));
        let cpu = device(Machine::cpu("avx2", 8, 16), None);
        Candidates {
            parts: vec![layer(); 20],
            outer: OuterParts::default(),
            devices: (0..gpus).map(|_| gpu()).chain([cpu]).collect(),
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
        let of = candidates(1, link);
        let (best, second) = request.among(&of, &Plan { calls: Vec::new() });
        (best.kind(20, 2), second.map(|second| second.kind(20, 2)))
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
            let of = candidates(1, at(rate));
            let best = of.fill((1, 0, &[]), &|layer| of.experts_away(layer));
            (of.stream_from(&best.placement), best.chunk)
        };
        let (fast, slow) = (stream_from(55e9), stream_from(1e9));
        assert!(fast.0 < slow.0, "{fast:?} {slow:?}");
        assert!(fast.1 < slow.1, "{fast:?} {slow:?}");
    }

    #[test]
    fn skewed_uses_are_worth_slots_in_all_layers() {
        let slots = |uses: Option<Vec<u32>>| {
            let mut of = candidates(1, handover(20e-6));
            of.uses = ExpertUses(uses.into_iter().map(|uses| (4, uses)).collect());
            let request = PlacementRequest {
                goal: Goal::Decode,
                ..PlacementRequest::default()
            };
            let (best, _) = request.among(&of, &Plan { calls: Vec::new() });
            assert!(best.bytes <= BUDGET);
            let text = best.line(20, &["cpu"]);
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

    /// Weights outside of layers: an embedding of 400 MB, of which a token reads a row, and a head.
    fn outer() -> OuterParts {
        let part = |bytes: u64, decode: f64| Part {
            bytes,
            decode,
            chunk: decode,
            terms: decode,
        };
        let [embedding, head] = [part(400_000_000, 4e3), part(400_000_000, 400e6)];
        let parts = [("token_embd.weight", embedding), ("output.weight", head)];
        OuterParts {
            parts: parts.map(|(name, part)| (name.to_owned(), part)).into(),
            tables: vec!["token_embd.weight".into()],
        }
    }

    #[test]
    fn an_embedding_in_host_memory_leaves_room_for_experts() {
        let experts = |outer| {
            let mut of = candidates(1, handover(10e-6));
            of.outer = outer;
            let request = PlacementRequest::default();
            let (best, _) = request.among(&of, &Plan { calls: Vec::new() });
            let away = best.placement.streamable_layers().len();
            (best.parts(20, &["cpu"]), away, best.lacking)
        };
        let (without, with) = (experts(OuterParts::default()), experts(outer()));
        assert_eq!(without.0, "experts of 12 of 20 layers on cpu");
        let text = "embedding and experts of 11 of 20 layers on cpu";
        assert_eq!((with.0.as_str(), with.1, with.2), (text, without.1 - 1, 0));
    }

    #[test]
    fn patterns_move_weights_outside_of_layers() {
        let mut of = candidates(1, handover(10e-6));
        of.outer = outer();
        let priced = |pattern: &str| {
            let pattern = TensorPattern::parse(pattern).expect("a pattern");
            let request = PlacementRequest {
                overrides: vec![(pattern, true)],
                ..PlacementRequest::default()
            };
            request.among(&of, &Plan { calls: Vec::new() }).0
        };
        let (head, none) = (priced("^output"), priced("^blk\\.99"));
        assert_eq!((head.head, head.embedding), (1, 0));
        assert_eq!(head.parts(20, &["cpu"]), "head on cpu");
        assert!(
            head.decode > none.decode + 1e-3,
            "400 MB on the host's cores"
        );
        assert_eq!(priced("token_embd").kind(20, 2), "embedding");
    }

    #[test]
    fn a_choice_is_told_as_a_decision() {
        let of = candidates(1, DeviceLink::ASSUMED);
        let best = of.fill((1, 0, &[]), &|layer| of.experts_away(layer));
        let choice = PlacementChoice {
            runner_up: Some(of.fill((1, 0, &[]), &|_| of.away())),
            whole: Some(of.price(Placement::default(), 0)),
            chosen: best,
            budgets: vec![BUDGET],
            goal: Goal::Both,
            link: of.host_link(),
            host_bandwidth: 1e11,
            peer_links: Vec::new(),
            names: vec!["cpu".into()],
            layers: 20,
            stream_from: None,
            others: Vec::new(),
        };
        let text = choice.decision().explain();
        let start = "placement by a request, 5000.0 MB for weights, link to cpu with ";
        assert!(text.starts_with(start), "{text}");
        for part in [
            ": *experts (experts of",
            " layers (",
            "none (all layers on the main device: decode",
            "MB, too large)",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn layers_are_divided_among_gpus_before_the_host_has_any() {
        let placed = |gpus: usize, room: &[u64]| {
            let mut of = candidates(gpus, DeviceLink::ASSUMED);
            for (device, &room) in of.devices.iter_mut().zip(room) {
                device.budget = Some(room);
            }
            let request = PlacementRequest::default();
            request.among(&of, &Plan { calls: Vec::new() }).0
        };
        let layers = |of: &Priced, device| {
            let at = (0..20).filter(|&l| of.placement.layer(l).layer == device);
            at.collect::<Vec<usize>>()
        };
        // 8.8 GB in the ratio of the memory, each GPU with a run of layers.
        let even = placed(2, &[]);
        assert_eq!(even.lacking, 0);
        let first: Vec<usize> = (0..10).collect();
        assert_eq!(layers(&even, 0), first);
        assert_eq!(even.parts(20, &["gpu", "cpu"]), "10 of 20 layers on gpu");
        let uneven = placed(2, &[6_000_000_000, 3_000_000_000]);
        let counts = [0, 1, 2].map(|device| layers(&uneven, device).len());
        // 13 layers fit on the first one, and 14 without the experts of one.
        assert_eq!((uneven.lacking, counts), (0, [14, 6, 0]));
        assert_eq!(uneven.placement.layer(0).experts, 2);
        let three = placed(3, &[3_200_000_000; 3]);
        let counts = [0, 1, 2].map(|device| layers(&three, device).len());
        assert_eq!((three.lacking, counts.iter().sum::<usize>()), (0, 20));
        assert!(counts.iter().all(|&n| n == 6 || n == 7), "{counts:?}");
        // 6 GB on both together: experts of some layers of each are in the host's memory.
        let short = placed(2, &[3_000_000_000; 2]);
        assert_eq!(short.lacking, 0);
        let text = short.parts(20, &["gpu", "cpu"]);
        assert!(
            text.contains(" of 20 layers on gpu, experts of 10 of 20 layers on cpu"),
            "{text}"
        );
    }
}
