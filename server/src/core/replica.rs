//! A replica of a model: the model's engine on one of the devices.

use crate::core::load::Load;
use crate::core::metrics::ReplicaMetrics;
use gristmill_llm::arch::Options;
use std::sync::{Mutex, PoisonError};

/// State of a replica, for the interfaces.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ReplicaStatus {
    /// Not loaded; it is loaded with the model.
    #[default]
    Unloaded,
    /// Being loaded, while the first replica may serve already.
    Loading,
    /// Loaded; its worker takes requests from the queue.
    Loaded,
    /// Could not be loaded while the others serve; the reason.
    Failed(String),
    /// Its device is lost; the reason.
    Lost(String),
}

impl ReplicaStatus {
    /// Returns the name of the state, and the reason of a failure.
    pub fn parts(&self) -> (&'static str, Option<&str>) {
        match self {
            ReplicaStatus::Unloaded => ("unloaded", None),
            ReplicaStatus::Loading => ("loading", None),
            ReplicaStatus::Loaded => ("loaded", None),
            ReplicaStatus::Failed(why) => ("failed", Some(why)),
            ReplicaStatus::Lost(why) => ("lost", Some(why)),
        }
    }
}

/// A replica of a model, loaded or not.
pub struct Replica {
    /// Name of its device.
    pub device: String,
    /// Metrics of the replica.
    pub metrics: ReplicaMetrics,
    status: Mutex<ReplicaStatus>,
}

impl Replica {
    /// Creates a replica that is not loaded.
    pub fn new(device: String, metrics: ReplicaMetrics) -> Replica {
        Replica {
            device,
            metrics,
            status: Mutex::default(),
        }
    }
    /// Returns a copy of the state.
    pub fn status(&self) -> ReplicaStatus {
        self.status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
    /// Sets the state. A loss is for good.
    pub fn set_status(&self, status: ReplicaStatus) {
        let mut current = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*current, ReplicaStatus::Lost(_)) {
            *current = status;
        }
    }
    /// Returns the load without the queue, which all replicas share.
    pub fn load(&self) -> Load {
        let ReplicaMetrics {
            running,
            slots,
            pages,
            pages_total,
            ..
        } = &self.metrics;
        let [running, slots, pages, pages_total] = [running, slots, pages, pages_total]
            .map(|gauge| usize::try_from(gauge.get()).unwrap_or(0));
        Load {
            running,
            waiting: 0,
            slots,
            used: pages * Options::PAGE,
            room: pages_total * Options::PAGE,
        }
    }
}
