//! Model loading progress.

use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};

/// Progress of loading a model, shared by all clones.
#[derive(Clone, Debug, Default)]
pub struct Loading {
    now: Arc<Mutex<Option<LoadStep>>>,
}

/// The current step of loading.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadStep {
    /// Description in lower case.
    pub what: String,
    /// Amount of the step that is done.
    pub done: u64,
    /// Total amount of the step; 0 if it is unknown.
    pub total: u64,
}

impl Loading {
    /// Sets the current step, its progress and its total amount.
    pub fn set(&self, what: &str, done: u64, total: u64) {
        let step = LoadStep {
            what: what.to_owned(),
            done,
            total,
        };
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = Some(step);
    }
    /// Returns the current step, if there is one.
    pub(crate) fn step(&self) -> Option<LoadStep> {
        self.now
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
    /// Clears the current step.
    pub(crate) fn clear(&self) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
    /// Returns the status and progress as JSON, for `/health`.
    pub(crate) fn to_json(&self) -> Value {
        match self.step() {
            None => json!({ "status": "loading" }),
            Some(LoadStep { what, done, total }) => {
                json!({ "status": "loading", "message": what, "done": done, "total": total })
            }
        }
    }
}
