//! State that all request handlers share.

use crate::config::Config;
use crate::connection_registry::Registry;
use crate::core::admission::Admission;
use crate::core::error::RequestError;
use crate::core::models::pool::Models;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// State that all request handlers share.
pub struct App {
    /// The models that the server offers.
    pub models: Arc<Models>,
    /// Limits the requests that are parsed and tokenised at a time, as they compete with the models
    /// for cores.
    pub admission: Admission,
    /// The server's configuration.
    pub config: Config,
    /// Permits for the bytes of large request bodies.
    pub bodies: Arc<Semaphore>,
    /// Registry of the open connections.
    pub connected: Arc<Registry>,
}

/// Whether a server accepts requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Health {
    /// The model is being loaded.
    Loading,
    /// Requests are accepted by at least one device.
    Ready,
    /// The server is shutting down: new requests are refused, accepted ones are served.
    Draining,
    /// The engine has failed for good; the reason.
    Failed(String),
}

impl App {
    /// Returns whether requests are accepted.
    pub fn health(&self) -> Health {
        match self.models.shared.devices.failure() {
            Some(why) => Health::Failed(why.to_owned()),
            None if self.models.is_draining() => Health::Draining,
            None => Health::Ready,
        }
    }
    /// Runs blocking work off the connection threads, in the client's turn.
    ///
    /// # Errors
    /// The error that the work returns, or an internal error if it panicked.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        client: IpAddr,
        work: impl FnOnce(&Arc<Models>) -> Result<T, RequestError> + Send + 'static,
    ) -> Result<T, RequestError> {
        let models = self.models.clone();
        self.admission
            .run_blocking(client, move || work(&models))
            .await
    }
}
