//! Index from kernels to the stored units that contain them.
//!
//! Kernels compiled for another model, context length or plan are thereby reused: more than half of
//! the kernels in a model family's tests, and those independent of the context length.

use super::cc::Cc;
use super::isa::Isa;
use super::unit::LoadedUnit;
use crate::text::KernelText;
use gristmill_runtime::store::{Key, Store};
use std::collections::BTreeMap;

/// Version of the format, part of the key.
const KEY_VERSION: &str = "places of kernels 1";
/// Maximum entries, of 64 bytes each; the latest are kept. A model has some hundred kernels.
const MAX_ENTRIES: usize = 16 << 10;
/// Bytes of an entry: key of the kernel's text, key of the unit.
const ENTRY_BYTES: usize = 64;

/// Kernels and their units, in the order of compilation.
pub struct CodeIndex {
    key: Key,
    kernels: Vec<[Key; 2]>,
    known: usize,
}

impl CodeIndex {
    /// Opens the index of kernels with this compiler, instruction set and prelude.
    pub fn open(store: &Store, cc: &Cc, isa: Isa, prelude: &str) -> CodeIndex {
        let key = cc.key(&format!("{KEY_VERSION}\n{prelude}"), isa);
        let kernels = read_entries(store, &key);
        CodeIndex {
            key,
            known: kernels.len(),
            kernels,
        }
    }

    /// Returns the units that contain some of these texts, each with the indices of those.
    pub fn units(&self, texts: &[&KernelText]) -> Vec<(Key, Vec<usize>)> {
        let places: BTreeMap<Key, Key> = self
            .kernels
            .iter()
            .map(|&[kernel, unit]| (kernel, unit))
            .collect();
        let mut units: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
        for (number, text) in texts.iter().enumerate() {
            if let Some(&unit) = places.get(&text.key) {
                units.entry(unit).or_default().push(number);
            }
        }
        units.into_iter().collect()
    }

    /// Loads a unit from the store, if it is there and contains these kernels.
    pub fn load(store: &Store, unit: &Key, texts: &[&KernelText]) -> Option<LoadedUnit> {
        let loaded = LoadedUnit::new(&store.get(unit).ok()??, store).ok()?;
        texts
            .iter()
            .all(|text| loaded.function(text).is_ok())
            .then_some(loaded)
    }

    /// Records that a unit contains these texts.
    pub fn add<'a>(&mut self, texts: impl IntoIterator<Item = &'a KernelText>, unit: Key) {
        self.kernels
            .extend(texts.into_iter().map(|text| [text.key, unit]));
    }

    /// Saves new entries, merged with those saved meanwhile by other processes.
    ///
    /// If two processes save at the same moment, the entries of one are lost and
    /// their kernels compiled again.
    pub fn save(&self, store: &Store) {
        let new = &self.kernels[self.known..];
        if !new.is_empty() {
            let mut all = read_entries(store, &self.key);
            all.extend(new);
            let latest = &all[all.len().saturating_sub(MAX_ENTRIES)..];
            let bytes: Vec<u8> = latest
                .iter()
                .flatten()
                .flat_map(|key| *key.bytes())
                .collect();
            store.put_or_warn(&self.key, &bytes);
        }
    }
}

/// Reads the entries from a store.
fn read_entries(store: &Store, key: &Key) -> Vec<[Key; 2]> {
    let bytes = store
        .get_within(key, (2 * MAX_ENTRIES * ENTRY_BYTES) as u64)
        .ok()
        .flatten()
        .unwrap_or_default();
    let half = |bytes: &[u8]| Key::from(<[u8; 32]>::try_from(bytes).expect("32 bytes"));
    bytes
        .chunks_exact(ENTRY_BYTES)
        .map(|place| [half(&place[..32]), half(&place[32..])])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_several_writers_are_merged() {
        let folder = std::env::temp_dir().join(format!("gristmill-places-{}", std::process::id()));
        let store = Store::open(&folder, 1 << 20).expect("a store");
        let of = |name: &str| KernelText {
            key: Key::from_parts([name]),
            symbol: name.into(),
            source: name.into(),
            name: name.into(),
        };
        let (first, second) = (of("first"), of("second"));
        let open = || CodeIndex {
            key: Key::from_parts(["places"]),
            kernels: read_entries(&store, &Key::from_parts(["places"])),
            known: 0,
        };
        let (mut one, mut other) = (open(), open());
        one.add([&first], Key::from_parts(["a unit"]));
        other.add([&second], Key::from_parts(["another"]));
        one.save(&store);
        other.save(&store);
        assert_eq!(open().units(&[&first, &second]).len(), 2);
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
