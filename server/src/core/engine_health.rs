//! Whether the engine can answer at all.

use std::sync::{Arc, OnceLock};

/// What became of the engine. Copies tell of the same one.
///
/// A server whose engine is gone for good goes on: `/health` says why with status 503, and so does the answer to every request. Whoever
/// watches it starts another.
#[derive(Clone, Debug, Default)]
pub struct EngineHealth {
    failure: Arc<OnceLock<String>>,
}

impl EngineHealth {
    /// The engine is gone for good (its device was lost, say), and why. The first reason stays.
    pub fn fail(&self, why: impl Into<String>) {
        // What comes after the first is a consequence of it.
        let _ = self.failure.set(why.into());
    }
    /// Why the engine is gone, if it is.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::EngineHealth;

    #[test]
    fn the_first_reason_stays() {
        let health = EngineHealth::default();
        assert_eq!(health.failure(), None);
        health.clone().fail("the device was lost");
        health.fail("a launch failed");
        assert_eq!(health.failure(), Some("the device was lost"));
    }
}
