//! Times of steps that are kept between starts, by model and device.

use crate::engine::Engine;
use gristmill_runtime::Device;
use gristmill_runtime::store::Key;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Largest size of an entry in bytes.
const LONGEST: u64 = 1 << 16;

/// Seconds of steps by rows: of the model, and of the one that drafts.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Times {
    pub steps: BTreeMap<usize, f64>,
    pub drafting: BTreeMap<usize, f64>,
}

/// Entry of a store for the times of a model's steps.
pub(super) struct KeptTimes {
    device: Arc<dyn Device>,
    key: Key,
}

impl fmt::Debug for KeptTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.device.name())
    }
}

impl KeptTimes {
    /// Finds the entry of an engine with this source of drafts.
    pub fn new(engine: &Engine, drafter: &str) -> KeptTimes {
        let (device, model) = (engine.device().clone(), engine.model());
        let tensors = model.tensors().iter();
        let tensors = tensors.map(|tensor| format!("{} {:?}", tensor.name, tensor.dims));
        let about = [
            "times of steps 1".to_owned(),
            device.name().to_owned(),
            model.architecture().to_owned(),
            format!("{drafter} {}", engine.step_rows()),
            engine.weights().bytes().to_string(),
        ];
        KeptTimes {
            key: Key::from_parts(about.into_iter().chain(tensors)),
            device,
        }
    }
    /// Returns the times of an earlier start; none if there was none.
    pub fn read(&self) -> Times {
        let store = self.device.store();
        let read = store.and_then(|store| store.get_within(&self.key, LONGEST).ok()?);
        let known = read.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        known.unwrap_or_default()
    }
    /// Keeps times for later starts, if any were measured.
    pub fn write(&self, times: &Times) {
        let is_known = !times.steps.is_empty();
        if let (Some(store), Ok(bytes), true) =
            (self.device.store(), serde_json::to_vec(times), is_known)
        {
            store.put_or_warn(&self.key, &bytes);
        }
    }
}
