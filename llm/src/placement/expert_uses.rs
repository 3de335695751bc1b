//! How often a model's experts were used, which outlives an engine.

use crate::gguf::Gguf;
use gristmill_runtime::Device;
use gristmill_runtime::store::{Key, Store};
use std::collections::BTreeMap;

/// Uses of each expert, by layer, of layers whose experts were not on the main device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ExpertUses(pub BTreeMap<usize, Vec<u32>>);

impl ExpertUses {
    /// Returns the key under which they are stored: models with the same name and tensors share
    /// them.
    pub fn key(file: &Gguf) -> Key {
        let named = file.tensors().iter().map(|tensor| {
            let (name, dims) = (&tensor.name, &tensor.dims);
            format!("{name} {dims:?} {}", tensor.encoding.name)
        });
        let name = file.metadata().str("general.name").ok().flatten();
        let first = [
            "expert uses 1".to_owned(),
            name.unwrap_or_default().to_owned(),
        ];
        Key::from_parts(first.into_iter().chain(named))
    }
    /// Returns those that an earlier run stored; none if there was none.
    pub fn stored(file: &Gguf, device: &dyn Device) -> ExpertUses {
        let store = device.store();
        let uses = store.and_then(|store| ExpertUses::read(store, &ExpertUses::key(file)));
        uses.unwrap_or_default()
    }
    /// Reads the uses under a key; `None` if there are none.
    pub fn read(store: &Store, key: &Key) -> Option<ExpertUses> {
        let bytes = store.get(key).ok()??;
        serde_json::from_slice(&bytes).ok().map(ExpertUses)
    }
    /// Stores them for later runs, if there are any.
    pub fn save(&self, store: &Store, key: &Key) {
        let is_known = self.0.values().flatten().any(|&uses| uses > 0);
        if let (Ok(bytes), true) = (serde_json::to_vec(&self.0), is_known) {
            store.put_or_warn(key, &bytes);
        }
    }
    /// Returns the share of a layer's uses that the `count` experts used most had: the mean of
    /// other layers if the layer has none; `None` without any.
    pub fn share(&self, layer: usize, count: usize) -> Option<f64> {
        let share = |uses: &Vec<u32>| {
            let mut uses: Vec<u64> = uses.iter().map(|&n| u64::from(n)).collect();
            uses.sort_unstable_by(|a, b| b.cmp(a));
            let all: u64 = uses.iter().sum();
            (all > 0).then(|| uses.iter().take(count).sum::<u64>() as f64 / all as f64)
        };
        let own = self.0.get(&layer).and_then(share);
        own.or_else(|| {
            let known: Vec<f64> = self.0.values().filter_map(share).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        })
    }
}
