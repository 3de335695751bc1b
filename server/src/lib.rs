//! LLM server over HTTP: the interfaces of OpenAI, Anthropic and Ollama, and a chat page.
//!
//! A small tokio runtime serves the connections. The pool ([`core::models::pool`]) owns which
//! models are loaded. Each model has a thread that loads its engine and runs it
//! ([`core::batch_worker`]): it takes requests from the model's fair queue ([`core::queue`]) and
//! sends events to the responses over channels. A client that disconnects closes its channel, and
//! the worker cancels its request before the next step.

mod api;
mod app;
mod config;
mod connection_registry;
mod core;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod net;
mod page;
pub mod worker;

pub use config::Config;
pub use core::adapters::NamedAdapter;
pub use core::constraint::check::{ARGUMENT as GRAMMAR_HELPER, helper as grammar_helper};
pub use core::engine_health::EngineHealth;
pub use core::loading::Loading;
pub use core::model::{ModelFacts, ModelText};
pub use core::models::entry::{LoadError, ModelPlan, ModelSource, ModelSpec};
pub use core::models::pool::Available;

use crate::api::routes::{self, ReadinessGate};
use crate::app::App;
use crate::connection_registry::Registry;
use crate::core::admission::Admission;
use crate::core::engine_health::DeviceHealth;
use crate::core::metrics::Metrics;
use crate::core::models::pool::{Models, Shared};
use crate::net::connections::Connections;
use crate::worker::Worker;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

/// Reason why a server cannot start or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The listen address is not available.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// Address that was to be bound.
        address: SocketAddr,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The only model failed to load.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Another error of the operating system.
    #[error("the server: {0}")]
    System(#[from] io::Error),
}

impl Error {
    /// Returns how to avoid the error, if known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Listen { error, .. } if error.kind() == io::ErrorKind::AddrInUse => Some(
                "something else listens there: choose another --port, or 0 for any that is free"
                    .into(),
            ),
            Error::Listen { error, .. } if error.kind() == io::ErrorKind::PermissionDenied => {
                Some("ports below 1024 are for the system: choose another --port".into())
            }
            Error::Listen { .. } => Some("check --host and --port".into()),
            Error::Load(error) => error.hint.clone(),
            Error::System(_) => None,
        }
    }
}

/// Models that a server offers, and their memory limits.
pub struct Offer {
    /// The models, at least one. A single one is loaded before requests are accepted, several are
    /// loaded on demand.
    pub models: Vec<ModelSpec>,
    /// Maximum number of models loaded at a time; `None` is limited by memory only.
    pub most_loaded: Option<usize>,
    /// Names of the devices. Each model is loaded once on each of them, as a replica.
    pub devices: Vec<String>,
    /// Returns the bytes of memory that models may still take on each device.
    pub available: Available,
}

/// Notice from a running server to its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// Requests are accepted; the context length in tokens if there is a single model.
    Ready(Option<usize>),
    /// Graceful shutdown has begun: the number of running and queued requests, and their time
    /// limit.
    Draining(usize, Duration),
}

/// A server that listens, and answers 503 until [`Server::run`] has loaded its models.
pub struct Server {
    runtime: Runtime,
    address: SocketAddr,
    config: Config,
    front: ReadinessGate,
    engine_health: EngineHealth,
    connected: Arc<Registry>,
    /// Shuts down the connections when it is used or dropped.
    ending: oneshot::Sender<()>,
    connections: JoinHandle<()>,
    worker: Worker,
    /// Tasks that serve other protocols.
    beside: Vec<JoinHandle<()>>,
}

/// Threads of the tokio runtime that serve connections.
const IO_THREADS: usize = 2;
/// Maximum requests that are parsed and tokenised at a time.
const MAX_PREPROCESSING: usize = 2;
/// Interval at which a graceful shutdown checks for remaining requests.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time for connections to end after the last request, while clients read the rest of their
/// responses. A client that reads nothing is limited by [`Config::write_time`], which is shorter by
/// default; systemd kills after 90 s, and a second signal ends at once.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

impl Server {
    /// Binds the listen address. Until [`Server::run`] has its models, requests get status 503.
    ///
    /// # Errors
    /// When the address is not available.
    pub fn bind(config: Config) -> Result<Server, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(IO_THREADS)
            .enable_all()
            .build()?;
        let address = SocketAddr::new(config.host, config.port);
        let listener = runtime
            .block_on(TcpListener::bind(address))
            .map_err(|error| Error::Listen { address, error })?;
        let address = listener.local_addr()?;
        let front = ReadinessGate::default();
        let (ending, ended) = oneshot::channel::<()>();
        let connections = Connections::new(listener, front.router(), config.clone());
        let connected = connections.registry();
        let connections = runtime.spawn(connections.serve(async {
            let _ = ended.await;
        }));
        let engine_health = EngineHealth::default();
        let worker = Worker::new(&config);
        Ok(Server {
            runtime,
            address,
            config,
            front,
            engine_health,
            connected,
            ending,
            connections,
            worker,
            beside: Vec::new(),
        })
    }
    /// Serves another protocol on the server's runtime: `bind` opens its listener, and `serve` runs
    /// until [`Worker::closed`] completes and its clients are served.
    ///
    /// # Errors
    /// The error of `bind`.
    pub fn serve_beside<L, E, S>(
        &mut self,
        bind: impl Future<Output = Result<L, E>>,
        serve: impl FnOnce(L, Worker) -> S,
    ) -> Result<(), E>
    where
        S: Future<Output = ()> + Send + 'static,
    {
        let listener = self.runtime.block_on(bind)?;
        let serving = serve(listener, self.worker.clone());
        self.beside.push(self.runtime.spawn(serving));
        Ok(())
    }
    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
    /// Returns the handle for progress before the server is ready: searching or downloading models,
    /// and loading a single one.
    pub fn loading(&self) -> Loading {
        self.front.loading()
    }
    /// Returns the engine's health, on which a permanent failure of the engine is recorded.
    pub fn engine_health(&self) -> EngineHealth {
        self.engine_health.clone()
    }
    /// Serves until SIGINT or SIGTERM and then shuts down gracefully: new requests are refused, and
    /// accepted ones are served for at most [`Config::drain`]. A second signal ends the process at
    /// once.
    ///
    /// # Errors
    /// When the system fails, or there is one model and it cannot be loaded.
    pub fn run(
        self,
        offer: Offer,
        tell: impl Fn(Notice) + Send + Sync + 'static,
    ) -> Result<(), Error> {
        self.run_until(offer, tell, signal())
    }
    /// Serves until `end` completes, and then shuts down gracefully.
    ///
    /// # Errors
    /// When the system fails, or there is one model and it cannot be loaded.
    pub fn run_until(
        self,
        offer: Offer,
        tell: impl Fn(Notice) + Send + Sync + 'static,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let Server {
            runtime,
            config,
            front,
            engine_health,
            connected,
            ending,
            connections,
            worker,
            beside,
            ..
        } = self;
        let drain = config.drain;
        let models = Arc::new(models(offer, &config, engine_health, front.loading()));
        let context = models
            .single_model()
            .map(|only| models.load_now(only))
            .transpose()?;
        let admission = Admission::new(MAX_PREPROCESSING);
        let bodies = Arc::new(Semaphore::new(config.bodies.min(Semaphore::MAX_PERMITS)));
        let app = Arc::new(App {
            models: models.clone(),
            admission,
            config,
            bodies,
            connected,
        });
        worker.open(app.clone());
        front.open(routes::router(app));
        let (all, tell) = (models.clone(), Arc::new(tell));
        let teller = tell.clone();
        runtime.spawn(async move {
            end.await;
            drain_requests(&all, drain, &*teller).await;
            // Drops queued requests and cancels running ones, so that their connections end.
            all.close();
            let _ = ending.send(());
            worker.close();
        });
        tell(Notice::Ready(context));
        models.wait();
        // Connections without a whole request are not awaited, and those whose client does not read
        // the rest of a response only up to the timeout.
        let all = futures_util::future::join_all(std::iter::once(connections).chain(beside));
        let result = runtime.block_on(async { tokio::time::timeout(CLOSE_TIMEOUT, all).await });
        runtime.shutdown_background();
        // Failures of connections concern their clients only.
        let _ = result;
        Ok(())
    }
}

/// Creates the models on offer, none of them loaded.
fn models(offer: Offer, config: &Config, health: EngineHealth, loading: Loading) -> Models {
    let Offer {
        models,
        most_loaded,
        devices,
        available,
    } = offer;
    let (metrics, limits) = (Metrics::default(), config.limits());
    let &Config {
        keep,
        batch_invariant,
        kv_events,
        any_model,
        queue: waiting,
        ..
    } = config;
    let shared = Shared {
        metrics,
        devices: Arc::new(DeviceHealth::new(devices, health)),
        limits,
        waiting,
        keep,
        batch_invariant,
        kv_events,
        any_model,
    };
    Models::new(models, most_loaded, available, shared, loading)
}

/// Refuses new requests and waits until the accepted ones have been served, for at most `most`.
async fn drain_requests(models: &Models, most: Duration, tell: &(impl Fn(Notice) + Sync)) {
    models.drain();
    if !models.is_busy() {
        return;
    }
    let requests = models.total_load().requests();
    tracing::info!(requests, most_s = most.as_secs(), "draining");
    tell(Notice::Draining(requests, most));
    let answered = async {
        while models.is_busy() {
            tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
        }
    };
    if tokio::time::timeout(most, answered).await.is_err() {
        tracing::info!(requests = models.total_load().requests(), "broken off");
    }
}

/// Completes at the first SIGINT or SIGTERM; the second one ends the process.
async fn signal() {
    shutdown_signal().await;
    tokio::spawn(async {
        shutdown_signal().await;
        std::process::exit(130);
    });
}

async fn shutdown_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (interrupt, terminate) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    );
    match (interrupt, terminate) {
        (Ok(mut interrupt), Ok(mut terminate)) => {
            std::future::poll_fn(|context| {
                let asked = interrupt.poll_recv(context).is_ready()
                    || terminate.poll_recv(context).is_ready();
                if asked {
                    std::task::Poll::Ready(())
                } else {
                    std::task::Poll::Pending
                }
            })
            .await;
        }
        // If the handlers cannot be installed, signals keep their default action.
        _ => std::future::pending().await,
    }
}
