//! Whether the engine can answer at all.

use std::sync::{Arc, OnceLock};

/// What became of the engine. Copies tell of the same one.
///
/// A server whose engine is gone for good goes on: `/health` says why with status 503, and so does the answer to every request. Whoever
/// watches it starts another.
#[derive(Clone, Debug, Default)]
pub struct Condition {
    failure: Arc<OnceLock<String>>,
}

impl Condition {
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
    use super::Condition;

    #[test]
    fn the_first_reason_stays() {
        let condition = Condition::default();
        assert_eq!(condition.failure(), None);
        condition.clone().fail("the device was lost");
        condition.fail("a launch failed");
        assert_eq!(condition.failure(), Some("the device was lost"));
    }
}
