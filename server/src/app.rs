//! What handlers share.

use crate::config::Config;
use crate::connection_registry::Registry;
use crate::core::admission::Admission;
use crate::core::error::RequestError;
use crate::core::models::pool::Models;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// What handlers share.
pub struct App {
    /// The models that there are.
    pub models: Arc<Models>,
    /// Requests that are read and checked at a time: they take the cores from the models.
    pub admission: Admission,
    /// What the server was told.
    pub config: Config,
    /// Bytes of large bodies that there is room for.
    pub bodies: Arc<Semaphore>,
    /// Who is connected.
    pub connected: Arc<Registry>,
}

impl App {
    /// Runs what takes a while beside the threads that serve connections, in that client's turn.
    ///
    /// # Errors
    /// What it says, or that it panicked.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        client: IpAddr,
        work: impl FnOnce(&Arc<Models>) -> Result<T, RequestError> + Send + 'static,
    ) -> Result<T, RequestError> {
        let models = self.models.clone();
        self.admission.run_blocking(client, move || work(&models)).await
    }
}
