//! The server as a router's worker: requests of token ids, health, load and KV events, for
//! protocols other than HTTP. Requests take the same path as those of the HTTP interfaces.

pub use crate::app::Health;
pub use crate::core::constraint::grammar::OutputFormat;
pub use crate::core::error::{ErrorKind, RequestError};
pub use crate::core::event::{Chosen, Finish, Usage};
pub use crate::core::field_names::FieldNames;
pub use crate::core::kv_events::{KvEventBatch, KvSubscription};
pub use crate::core::load::Load;
pub use crate::core::output::{OutputEvent, Outputs, StreamItem};
pub use crate::core::request::{GenerateRequest, Input, PromptText};
pub use crate::core::sampling::{BiasKey, SamplingOptions};
pub use gristmill_llm::sched::{PrefixEvent, StoredPage};

use crate::app::App;
use crate::config::Config;
use crate::core::client::Origin;
use crate::core::models::entry::ModelEntry;
use crate::core::preprocess::Preprocessor;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::sync::watch;

/// Handle of a server's only model, for another protocol. Clones are the same worker.
#[derive(Clone)]
pub struct Worker {
    app: Arc<OnceLock<Arc<App>>>,
    closed: watch::Sender<bool>,
    config: Arc<Config>,
}

/// Facts about the model that a worker serves.
#[derive(Clone, Debug)]
pub struct WorkerModel {
    /// Name of the model for clients.
    pub name: String,
    /// `general.architecture` of the GGUF file.
    pub architecture: String,
    /// Context length in tokens.
    pub context: usize,
    /// Number of logits of each position.
    pub vocabulary: usize,
    /// Tokens that end a sequence.
    pub eog: Vec<u32>,
    /// Token that begins a sequence.
    pub bos: Option<u32>,
    /// Token that pads sequences.
    pub pad: Option<u32>,
}

impl Worker {
    /// Creates the worker of a server that has no models yet.
    pub(crate) fn new(config: &Config) -> Worker {
        Worker {
            app: Arc::default(),
            closed: watch::Sender::new(false),
            config: Arc::new(config.clone()),
        }
    }
    /// Accepts requests from now on.
    pub(crate) fn open(&self, app: Arc<App>) {
        // It opens once.
        let _ = self.app.set(app);
    }
    /// Ends the connections of the other protocol.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }
    /// Completes when the server has drained and closes its connections.
    pub async fn closed(&self) {
        let mut closed = self.closed.subscribe();
        // The sender is this worker's.
        let _ = closed.wait_for(|&closed| closed).await;
    }
    /// Returns the server's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }
    /// Returns whether the server accepts requests, as `/health` reports it.
    pub fn health(&self) -> Health {
        self.app.get().map_or(Health::Loading, |app| app.health())
    }
    /// Returns whether a client with this API key may send requests.
    pub fn admits(&self, key: Option<&str>) -> bool {
        self.config.admits(key)
    }
    fn app(&self) -> Result<&Arc<App>, RequestError> {
        self.app.get().ok_or_else(RequestError::loading)
    }
    fn entry(&self) -> Result<&Arc<ModelEntry>, RequestError> {
        self.app()?.models.find(None)
    }
    /// Returns facts about the model. Its tokenizer may have to be read, which takes a while.
    ///
    /// # Errors
    /// While the server is loading, and when the model cannot be read.
    pub async fn model(&self, client: IpAddr) -> Result<WorkerModel, RequestError> {
        let read = |models: &Arc<_>| Ok(Preprocessor::for_model(models, None)?.served);
        let served = self.app()?.run_blocking(client, read).await?;
        let tokenizer = &served.tokenizer;
        Ok(WorkerModel {
            name: served.name.clone(),
            architecture: served.about.architecture.clone(),
            context: served.context,
            vocabulary: served.about.vocabulary,
            eog: tokenizer.eog().to_vec(),
            bos: tokenizer.bos(),
            pad: tokenizer.pad(),
        })
    }
    /// Returns the model's load.
    ///
    /// # Errors
    /// While the server is loading.
    pub fn load(&self) -> Result<Load, RequestError> {
        Ok(self.entry()?.load())
    }
    /// Queues a request and returns its outputs; dropping them cancels it.
    ///
    /// # Errors
    /// When the request is invalid, the queue is full, or the server does not accept requests.
    pub async fn generate(
        &self,
        client: IpAddr,
        request: GenerateRequest,
    ) -> Result<Outputs, RequestError> {
        let received = Instant::now();
        let prepare = move |models: &Arc<_>| {
            let preprocessor = Preprocessor::for_model(models, None)?;
            let (request, outputs) = preprocessor.prepare(Origin { client, received }, request)?;
            Ok((preprocessor, request, outputs))
        };
        let prepared = self.app()?.run_blocking(client, prepare).await?;
        let (preprocessor, request, outputs) = prepared;
        preprocessor.submit(request)?;
        Ok(outputs)
    }
    /// Subscribes to the KV events after the batch `from`; 0 begins with the present state.
    ///
    /// # Errors
    /// While the server is loading, and when there are too many subscribers.
    pub fn subscribe(&self, from: u64) -> Result<KvSubscription, RequestError> {
        let log = self.entry()?.kv_events.as_ref();
        log.ok_or_else(RequestError::no_kv_events)?.subscribe(from)
    }
}
