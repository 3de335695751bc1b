//! Times of steps that are kept between starts, by model and device.

use super::Speculation;
use crate::engine::Engine;
use gristmill_runtime::Device;
use gristmill_runtime::store::Key;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Largest size of an entry in bytes.
const LONGEST: u64 = 1 << 16;

/// Where the times of a model's steps are kept.
pub(super) struct KeptTimes {
    device: Arc<dyn Device>,
    key: Key,
}

impl std::fmt::Debug for KeptTimes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.device.name())
    }
}

/// Seconds of steps by rows: of the model, and of the one that drafts.
#[derive(Default, Serialize, Deserialize)]
struct Times {
    steps: BTreeMap<usize, f64>,
    drafting: BTreeMap<usize, f64>,
}

impl Speculation {
    /// Begins with the times that an earlier start has measured, and keeps those of this one.
    pub fn with_kept_times(mut self, engine: &Engine) -> Speculation {
        if self.assumes_times {
            return self;
        }
        let (device, model) = (engine.device().clone(), engine.model());
        let tensors = model.tensors().iter();
        let tensors = tensors.map(|tensor| format!("{} {:?}", tensor.name, tensor.dims));
        let about = [
            "times of steps 1".to_owned(),
            device.name().to_owned(),
            model.architecture().to_owned(),
            format!("{:?} {:?}", self.drafter, engine.step_rows()),
            engine.weights().bytes().to_string(),
        ];
        let key = Key::from_parts(about.into_iter().chain(tensors));
        let read = device
            .store()
            .and_then(|store| store.get_within(&key, LONGEST).ok()?);
        let known = read.and_then(|bytes| serde_json::from_slice::<Times>(&bytes).ok());
        let Times { steps, drafting } = known.unwrap_or_default();
        self.times.restore(steps);
        self.draft_times.restore(drafting);
        self.kept = Some(KeptTimes { device, key });
        self
    }
}

impl Drop for Speculation {
    /// Keeps the times that were measured.
    fn drop(&mut self) {
        let Some(KeptTimes { device, key }) = self.kept.take() else {
            return;
        };
        let times = Times {
            steps: self.times.known(),
            drafting: self.draft_times.known(),
        };
        let is_known = !times.steps.is_empty();
        if let (Some(store), Ok(bytes), true) =
            (device.store(), serde_json::to_vec(&times), is_known)
        {
            store.put_or_warn(&key, &bytes);
        }
    }
}
