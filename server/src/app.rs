//! What all requests share, and the way from a checked request to the engine's thread.

use crate::budget;
use crate::channel::{Receiver, channel};
use crate::condition::Condition;
use crate::config::Config;
use crate::connections::Registry;
use crate::constraint::Constraint;
use crate::error::ApiError;
use crate::job::Job;
use crate::metrics::Metrics;
use crate::model::Served;
use crate::preparing::Preparing;
use crate::queue::{Queue, Refused};
use crate::settings::Settings;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Semaphore;

/// What all requests share.
pub struct App {
    /// The model.
    pub served: Arc<Served>,
    /// What the engine's thread is to do.
    pub queue: Arc<Queue<Job>>,
    /// What was done.
    pub metrics: Arc<Metrics>,
    /// What the server was told.
    pub config: Config,
    /// Requests that are read and checked at a time: they take the cores from the model.
    pub preparing: Preparing,
    /// Bytes of large bodies that there is room for.
    pub bodies: Arc<Semaphore>,
    /// Whether the engine can answer at all.
    pub condition: Condition,
    /// Who is connected.
    pub connected: Arc<Registry>,
}

/// Runs what takes a while (templates, tokenizers, grammars) beside the threads that serve connections, in that client's turn.
///
/// # Errors
/// What it says, or that it panicked.
pub async fn prepare<T: Send + 'static>(
    app: &Arc<App>,
    client: IpAddr,
    work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    // The turn ends with the work, also where its client has left.
    let turn = app.preparing.turn(client).await;
    let shared = app.clone();
    let done = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        work(&shared)
    });
    let done = done.await;
    done.unwrap_or_else(|_| Err(ApiError::internal("the request failed; the server's log says why")))
}

impl App {
    /// Has a request wait for its turn; where its answers will be told.
    ///
    /// # Errors
    /// When there is no room for it.
    #[expect(clippy::too_many_arguments, reason = "each is a field of a job")]
    pub fn submit(
        &self,
        client: IpAddr,
        asked: Instant,
        settings: Settings,
        prompt: Vec<u32>,
        constraint: Option<Constraint>,
        markers: bool,
        logprobs: Option<usize>,
    ) -> Result<Receiver, ApiError> {
        if let Some(why) = self.condition.failure() {
            return Err(ApiError::failed(why));
        }
        let (sender, events) = channel(self.config.unread);
        let room = budget::room(&settings, self.config.answer);
        let Settings { sampling, reuse, bias, choices, limit, stop, endless, stream, .. } = settings;
        let job = Job {
            client,
            asked,
            prompt,
            reuse,
            sampling,
            bias,
            constraint,
            choices,
            limit: limit.unwrap_or(usize::MAX),
            room,
            stop,
            endless,
            markers,
            logprobs,
            stream,
            events: sender,
        };
        match self.queue.push(job) {
            Ok(()) => {
                self.metrics.requests.inc();
                Ok(events)
            }
            Err(Refused::Full(waiting)) => {
                self.metrics.refused.inc();
                Err(ApiError::busy(waiting))
            }
            Err(Refused::Closed) => Err(ApiError::closing()),
        }
    }
}
