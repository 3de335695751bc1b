//! What handlers share.

use crate::config::Config;
use crate::core::intake::Intake;
use crate::net::connections::Registry;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// What handlers share.
pub struct App {
    /// The way to the engine.
    pub intake: Arc<Intake>,
    /// What the server was told.
    pub config: Config,
    /// Bytes of large bodies that there is room for.
    pub bodies: Arc<Semaphore>,
    /// Who is connected.
    pub connected: Arc<Registry>,
}
