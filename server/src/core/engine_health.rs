//! Health of the engine and of the devices: whether they have failed for good.

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

/// The devices of all replicas. The engine has failed once every device is lost.
#[derive(Debug)]
pub struct DeviceHealth {
    /// Names of the devices; replica `n` of each model runs on the `n`-th.
    names: Vec<String>,
    losses: Vec<OnceLock<String>>,
    engine: EngineHealth,
}

impl DeviceHealth {
    /// Creates devices of these names, or a single one without a name.
    pub fn new(mut names: Vec<String>, engine: EngineHealth) -> DeviceHealth {
        if names.is_empty() {
            names.push(String::new());
        }
        DeviceHealth {
            losses: names.iter().map(|_| OnceLock::new()).collect(),
            names,
            engine,
        }
    }
    /// Returns the names of the devices, at least one.
    pub fn names(&self) -> &[String] {
        &self.names
    }
    /// Records that a device is lost. The first reason is kept.
    pub fn lose(&self, device: usize, why: impl Into<String>) {
        let why = why.into();
        tracing::error!(device = self.names[device], why, "the device is lost");
        let _ = self.losses[device].set(why.clone());
        if self.losses.iter().all(|loss| loss.get().is_some()) {
            self.engine.fail(why);
        }
    }
    /// Returns why a device was lost while others are left.
    pub fn loss(&self, device: usize) -> Option<&str> {
        let loss = self.losses[device].get()?;
        match self.engine.failure() {
            None => Some(loss),
            Some(_) => None,
        }
    }
    /// Returns why the engine failed, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.engine.failure()
    }
    /// Returns the devices that are left, or all of them if the engine failed.
    pub fn usable(&self) -> impl Iterator<Item = usize> {
        (0..self.names.len()).filter(|&device| self.loss(device).is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::{DeviceHealth, EngineHealth};

    #[test]
    fn the_first_reason_stays() {
        let health = EngineHealth::default();
        assert_eq!(health.failure(), None);
        health.clone().fail("the device was lost");
        health.fail("a launch failed");
        assert_eq!(health.failure(), Some("the device was lost"));
    }

    #[test]
    fn the_engine_fails_with_its_last_device() {
        let engine = EngineHealth::default();
        let devices = DeviceHealth::new(vec!["a".into(), "b".into()], engine.clone());
        devices.lose(1, "it fell off the bus");
        devices.lose(1, "a launch failed");
        assert_eq!(devices.loss(1), Some("it fell off the bus"));
        assert_eq!((devices.loss(0), engine.failure()), (None, None));
        assert_eq!(devices.usable().collect::<Vec<_>>(), [0]);
        devices.lose(0, "it is gone too");
        assert_eq!(engine.failure(), Some("it is gone too"));
        assert_eq!(devices.loss(1), None, "the engine's failure is reported");
    }
}
