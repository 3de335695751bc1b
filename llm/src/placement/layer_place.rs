//! Devices of a model's parts, as values.

use crate::arch::{Bind, CachedExperts, Plan};
use std::collections::BTreeMap;

/// Devices of a layer's parts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LayerPlace {
    /// Device of attention, dense feed-forward, shared expert and KV cache.
    pub layer: usize,
    /// Device of the routed experts.
    pub experts: usize,
}

/// Devices of a model's weights, as indices into an engine's devices.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Placement {
    /// Layers that are listed; the others are on the main device.
    layers: Vec<LayerPlace>,
    /// Weights outside of layers, such as the embedding, that are not on the main device.
    outer: BTreeMap<String, usize>,
}

impl Placement {
    /// Creates a placement from the places of all layers.
    pub fn new(layers: Vec<LayerPlace>) -> Placement {
        Placement {
            layers,
            outer: BTreeMap::new(),
        }
    }
    /// Puts weights outside of layers on a device.
    #[must_use]
    pub fn with_outer(
        mut self,
        names: impl IntoIterator<Item = String>,
        device: usize,
    ) -> Placement {
        let away = names.into_iter().filter(|_| device != 0);
        self.outer.extend(away.map(|name| (name, device)));
        self
    }
    /// Returns the weights outside of layers that are not on the main device, with their devices.
    pub fn outer(&self) -> impl Iterator<Item = (&str, usize)> {
        self.outer.iter().map(|(name, &at)| (name.as_str(), at))
    }
    /// Returns the places of a layer's parts.
    pub fn layer(&self, layer: usize) -> LayerPlace {
        self.layers.get(layer).copied().unwrap_or_default()
    }
    /// Returns whether everything is on the main device.
    pub fn is_whole(&self) -> bool {
        let is_main = |at: &LayerPlace| *at == LayerPlace::default();
        self.outer.is_empty() && self.layers.iter().all(is_main)
    }
    /// Returns whether no layer has its experts elsewhere, and the main device everything else.
    pub(crate) fn has_whole_layers(&self) -> bool {
        self.outer.is_empty() && self.layers.iter().all(|at| at.layer == at.experts)
    }
    /// Returns whether a device may compute logits: the main device, or one with weights outside of
    /// layers.
    pub(crate) fn has_logits(&self, device: usize) -> bool {
        device == 0 || self.outer.values().any(|&at| at == device)
    }
    /// Returns the number of devices up to the last one with a part.
    pub(super) fn devices(&self) -> usize {
        let layers = self.layers.iter().map(|at| at.layer.max(at.experts));
        let outer = self.outer.values().copied();
        layers.chain(outer).max().unwrap_or(0) + 1
    }
    /// Returns whether a weight is of experts whose layer is on the main device and that are not.
    pub fn is_streamable(&self, name: &str) -> bool {
        layer_of(name).is_some_and(|(layer, rest)| {
            let at = self.layer(layer);
            let is_away = at.layer == 0 && at.experts != 0;
            is_of_experts(rest) && is_away && !is_cached(name)
        })
    }
    /// Returns the layers whose experts alone are not on the main device.
    pub fn streamable_layers(&self) -> Vec<usize> {
        let all = self.layers.iter().enumerate();
        let away = all.filter(|(_, at)| at.layer == 0 && at.experts != 0);
        away.map(|(layer, _)| layer).collect()
    }
    /// Returns the placement of steps that copy experts to the main device.
    pub(super) fn streamed(&self) -> Placement {
        let at = |at: &LayerPlace| match at.layer {
            0 => LayerPlace::default(),
            _ => *at,
        };
        Placement {
            layers: self.layers.iter().map(at).collect(),
            outer: self.outer.clone(),
        }
    }
    /// Puts layers that read another layer's cache where that layer is; `plan` is the plan of a
    /// step.
    #[must_use]
    pub(super) fn tied(mut self, plan: &Plan) -> Placement {
        if self.is_whole() {
            return self;
        }
        for call in &plan.calls {
            let weights = call.binds.iter().filter_map(|bind| match bind {
                Bind::Weight(name) => layer_of(name).map(|of| of.0),
                _ => None,
            });
            let Some(layer) = weights.min() else { continue };
            let place = self.layer(layer);
            let home = self.home(&call.binds);
            if let Some(own) = self.layers.get_mut(layer) {
                let experts = if place.experts == place.layer {
                    home
                } else {
                    place.experts
                };
                *own = LayerPlace {
                    layer: home,
                    experts,
                };
            }
        }
        self
    }
    /// Returns the device of a weight tensor.
    pub fn weight(&self, name: &str) -> usize {
        match layer_of(name) {
            Some((layer, rest)) if is_of_experts(rest) && !is_cached(name) => {
                self.layer(layer).experts
            }
            Some((layer, _)) => self.layer(layer).layer,
            None => self.outer.get(name).copied().unwrap_or(0),
        }
    }
    /// Returns the device of a call with these bindings: that of the cache that it reads, else that
    /// of its layer, else the one that has all its weights, or the main device.
    pub(super) fn home(&self, binds: &[Bind]) -> usize {
        let cache = binds.iter().find_map(|bind| match bind {
            Bind::State(layer, _) => Some(*layer),
            _ => None,
        });
        let layer = || {
            binds.iter().find_map(|bind| match bind {
                Bind::Weight(name) => layer_of(name).map(|of| of.0),
                _ => None,
            })
        };
        match cache.or_else(layer) {
            Some(layer) => self.layer(layer).layer,
            None => self.common_device(binds),
        }
    }
    /// Returns the device that has all weights of these bindings, or the main device.
    fn common_device(&self, binds: &[Bind]) -> usize {
        let mut devices = binds.iter().filter_map(|bind| match bind {
            Bind::Weight(name) => Some(self.weight(name)),
            _ => None,
        });
        let first = devices.next().unwrap_or(0);
        if devices.all(|device| device == first) {
            first
        } else {
            0
        }
    }
}

/// Returns the layer of a tensor name `blk.N.REST`, and the rest. Adapters' names have a prefix.
pub(crate) fn layer_of(name: &str) -> Option<(usize, &str)> {
    let (number, rest) = name.split_once("blk.")?.1.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

/// Returns whether a weight has slots of cached experts.
pub(crate) fn is_cached(name: &str) -> bool {
    name.starts_with(CachedExperts::PREFIX)
}

/// Returns whether a layer's tensor belongs to its routed experts; the router does not. The name
/// says it for all of them: in the tensor table, their biases and scales have the roles of others',
/// and adapters have no row. A test compares it with the roles of the table.
pub(crate) fn is_of_experts(rest: &str) -> bool {
    rest.contains("_exps.")
}
