//! How far the model is, before there is one.

use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};

/// How far it is. Copies tell of the same one.
#[derive(Clone, Debug, Default)]
pub struct Loading {
    now: Arc<Mutex<Option<LoadStep>>>,
}

/// What is done at the moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadStep {
    /// What, in lower case.
    pub what: String,
    /// How much of it is done.
    pub done: u64,
    /// Of how much; 0 where that cannot be said.
    pub total: u64,
}

impl Loading {
    /// So much is done of that much, of what there is to do at the moment.
    pub fn set(&self, what: &str, done: u64, total: u64) {
        let step = LoadStep { what: what.to_owned(), done, total };
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = Some(step);
    }
    /// What is done at the moment, where that was said.
    pub(crate) fn step(&self) -> Option<LoadStep> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    /// Nothing is being loaded any more, or not yet again.
    pub(crate) fn clear(&self) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
    /// For whoever watches.
    pub(crate) fn to_json(&self) -> Value {
        match self.step() {
            None => json!({ "status": "loading" }),
            Some(LoadStep { what, done, total }) => {
                json!({ "status": "loading", "message": what, "done": done, "total": total })
            }
        }
    }
}
