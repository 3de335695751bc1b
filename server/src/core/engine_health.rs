//! Health of the engine: whether it has failed for good.

use std::sync::{Arc, OnceLock};

/// Failure of the engine, shared by all clones.
///
/// A server with a failed engine keeps running: `/health` and all requests get status 503 with the
/// reason, so that a supervisor can replace it.
#[derive(Clone, Debug, Default)]
pub struct EngineHealth {
    failure: Arc<OnceLock<String>>,
}

impl EngineHealth {
    /// Records that the engine failed for good, for example because its device was lost. The first
    /// reason is kept.
    pub fn fail(&self, why: impl Into<String>) {
        // Later failures are consequences of the first.
        let _ = self.failure.set(why.into());
    }
    /// Returns why the engine failed, if it did.
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
