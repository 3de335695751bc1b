//! Which unit of a store has a kernel, so that what another model, another context or another plan compiled is not compiled again: of a family's
//! tests more than half of all kernels, of a model with another context those that do not depend on it.

use super::cc::Cc;
use super::isa::Isa;
use super::unit::Loaded;
use crate::text::Text;
use gristmill_runtime::store::{Key, Store};
use std::collections::BTreeMap;

/// Part of the key: another way of writing them down is another number.
const FORMAT: &str = "places of kernels 1";
/// Kernels whose places are kept; of more, the latest. 64 bytes each; a model has some hundred.
const MOST: usize = 16 << 10;
/// Bytes of a place: key of the kernel's text, key of the unit.
const PLACE: usize = 64;

/// Kernels and their units, in the order in which they were compiled.
pub struct Places {
    key: Key,
    kernels: Vec<[Key; 2]>,
    known: usize,
}

impl Places {
    /// Those of kernels that this compiler made for these instructions behind this prelude.
    pub fn open(store: &Store, cc: &Cc, isa: Isa, prelude: &str) -> Places {
        let key = cc.key(&format!("{FORMAT}\n{prelude}"), isa);
        let bytes = store.get_within(&key, (2 * MOST * PLACE) as u64).ok().flatten().unwrap_or_default();
        let half = |bytes: &[u8]| Key::from(<[u8; 32]>::try_from(bytes).expect("32 bytes"));
        let place = |place: &[u8]| [half(&place[..32]), half(&place[32..])];
        let kernels: Vec<[Key; 2]> = bytes.chunks_exact(PLACE).map(place).collect();
        Places { key, known: kernels.len(), kernels }
    }

    /// The units that have some of these texts, each with the numbers of those.
    pub fn units(&self, texts: &[&Text]) -> Vec<(Key, Vec<usize>)> {
        let places: BTreeMap<Key, Key> = self.kernels.iter().map(|&[kernel, unit]| (kernel, unit)).collect();
        let mut units: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
        for (number, text) in texts.iter().enumerate() {
            if let Some(&unit) = places.get(&text.key) {
                units.entry(unit).or_default().push(number);
            }
        }
        units.into_iter().collect()
    }

    /// The unit of that key as a library, if the store has it and it has these kernels.
    pub fn load(store: &Store, unit: &Key, texts: &[&Text]) -> Option<Loaded> {
        let loaded = Loaded::new(&store.get(unit).ok()??, store).ok()?;
        texts.iter().all(|text| loaded.function(text).is_ok()).then_some(loaded)
    }

    /// That unit has these texts.
    pub fn add<'a>(&mut self, texts: impl IntoIterator<Item = &'a Text>, unit: Key) {
        self.kernels.extend(texts.into_iter().map(|text| [text.key, unit]));
    }

    /// Keeps them, if there are new ones. Of two processes that do so at once, what one of them added is lost, and compiled again when it is asked for.
    pub fn keep(&self, store: &Store) {
        if self.kernels.len() > self.known {
            let latest = &self.kernels[self.kernels.len().saturating_sub(MOST)..];
            let bytes: Vec<u8> = latest.iter().flatten().flat_map(|key| *key.bytes()).collect();
            store.keep(&self.key, &bytes);
        }
    }
}
