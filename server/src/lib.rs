//! HTTP for models, in the interfaces of OpenAI, Anthropic and Ollama, and a chat page.
//!
//! Connections are served by a small tokio runtime. Which models are loaded is one place's affair ([`core::models::pool`]); each has a thread, on which its
//! engine was made and stays ([`core::batch_worker`]), and which takes requests from a fair queue of its own ([`core::queue`]) and tells its answers over
//! channels. A client that hangs up closes its channel, which the thread sees before the next token.

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

pub use config::Config;
pub use core::engine_health::EngineHealth;
pub use core::loading::Loading;
pub use core::model::{ModelFacts, ModelText};
pub use core::models::entry::{LoadError, ModelPlan, ModelSource, ModelSpec};
pub use core::models::pool::Available;

use crate::api::routes::{self, ReadinessGate};
use crate::app::App;
use crate::connection_registry::Registry;
use crate::core::admission::Admission;
use crate::core::metrics::Metrics;
use crate::core::models::pool::{Models, Shared};
use crate::net::connections::Connections;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

/// Why a server cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is not to be had.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// It.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// The only model is not there.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Something else of the system.
    #[error("the server: {0}")]
    System(#[from] io::Error),
}

impl Error {
    /// A way out, for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Listen { error, .. } if error.kind() == io::ErrorKind::AddrInUse => {
                Some("something else listens there: choose another --port, or 0 for any that is free".into())
            }
            Error::Listen { error, .. } if error.kind() == io::ErrorKind::PermissionDenied => {
                Some("ports below 1024 are for the system: choose another --port".into())
            }
            Error::Listen { .. } => Some("check --host and --port".into()),
            Error::Load(error) => error.hint.clone(),
            Error::System(_) => None,
        }
    }
}

/// Which models a server has.
pub struct Offer {
    /// They; at least one. The only one is loaded before anybody is answered, several when they are asked for.
    pub models: Vec<ModelSpec>,
    /// Most that are loaded at a time; as many as there is memory for unless said.
    pub most_loaded: Option<usize>,
    /// Bytes that models may still take.
    pub available: Available,
}

/// What a server tells whoever started it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// Requests are answered; an only model has so many tokens of context.
    Ready(Option<usize>),
    /// It was asked to end while so many requests were being answered or waited. They have that long.
    Draining(usize, Duration),
}

/// A server that listens, and says that it is loading.
pub struct Server {
    runtime: Runtime,
    address: SocketAddr,
    config: Config,
    front: ReadinessGate,
    engine_health: EngineHealth,
    connected: Arc<Registry>,
    /// Ends the connections once it is dropped or used.
    ending: oneshot::Sender<()>,
    connections: JoinHandle<()>,
}

/// Threads that serve connections.
const IO_THREADS: usize = 2;
/// Requests that are read and checked at a time.
const MAX_PREPROCESSING: usize = 2;
/// How often it is seen whether somebody is still being answered once the server was asked to end.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long connections may take to end once nobody is answered any more: clients read the rest of their answers meanwhile. A client that
/// reads nothing has [`Config::write_time`], which is less unless said; systemd kills after 90 s, and a second signal ends at once.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

impl Server {
    /// Listens. Until [`Server::run`] has its models, whoever asks is told to come back.
    ///
    /// # Errors
    /// When the address is not to be had.
    pub fn bind(config: Config) -> Result<Server, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(IO_THREADS).enable_all().build()?;
        let address = SocketAddr::new(config.host, config.port);
        let listener =
            runtime.block_on(TcpListener::bind(address)).map_err(|error| Error::Listen { address, error })?;
        let address = listener.local_addr()?;
        let front = ReadinessGate::default();
        let (ending, ended) = oneshot::channel::<()>();
        let connections = Connections::new(listener, front.router(), config.clone());
        let connected = connections.registry();
        let connections = runtime.spawn(connections.serve(async {
            let _ = ended.await;
        }));
        let engine_health = EngineHealth::default();
        Ok(Server { runtime, address, config, front, engine_health, connected, ending, connections })
    }
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
    /// What is done before there is anybody to answer: whoever looks for models or fetches one says so there, and so does the loading of an only one.
    pub fn loading(&self) -> Loading {
        self.front.loading()
    }
    /// What becomes of the engine: whoever finds out that it is gone for good says so there.
    pub fn engine_health(&self) -> EngineHealth {
        self.engine_health.clone()
    }
    /// Serves until the process is asked to end (SIGINT, SIGTERM), and ends in good order: nobody is let in any more, and who was is answered, for
    /// [`Config::drain`] at most. Asked a second time, the process ends at once.
    ///
    /// # Errors
    /// When the system fails, or there is one model and it cannot be loaded.
    pub fn run(self, offer: Offer, tell: impl Fn(Notice) + Send + Sync + 'static) -> Result<(), Error> {
        self.run_until(offer, tell, signal())
    }
    /// Serves until `end`, and ends in good order.
    ///
    /// # Errors
    /// When the system fails, or there is one model and it cannot be loaded.
    pub fn run_until(
        self,
        offer: Offer,
        tell: impl Fn(Notice) + Send + Sync + 'static,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let Server { runtime, config, front, engine_health, connected, ending, connections, .. } = self;
        let Offer { models, most_loaded, available } = offer;
        let (metrics, limits, drain) = (Metrics::default(), config.limits(), config.drain);
        let Config { keep, batch_invariant, queue: waiting, .. } = config;
        let shared = Shared { metrics, health: engine_health, limits, waiting, keep, batch_invariant };
        let models = Arc::new(Models::new(models, most_loaded, available, shared, front.loading()));
        let context = models.only().map(|only| models.load_now(only)).transpose()?;
        let admission = Admission::new(MAX_PREPROCESSING);
        let bodies = Arc::new(Semaphore::new(config.bodies.min(Semaphore::MAX_PERMITS)));
        front.open(routes::router(Arc::new(App { models: models.clone(), admission, config, bodies, connected })));
        let (all, tell) = (models.clone(), Arc::new(tell));
        let teller = tell.clone();
        runtime.spawn(async move {
            end.await;
            drained(&all, drain, &*teller).await;
            // Who still waits is let go, and who is being answered too: connections end by themselves then.
            all.close();
            let _ = ending.send(());
        });
        tell(Notice::Ready(context));
        models.wait();
        // Who has not finished a question is not waited for, and who does not take the rest of an answer not for long.
        let result = runtime.block_on(async { tokio::time::timeout(CLOSE_TIMEOUT, connections).await });
        runtime.shutdown_background();
        // They fail for nobody but their clients.
        let _ = result;
        Ok(())
    }
}

/// Lets nobody in any more, and waits until everybody was answered, for so long at most.
async fn drained(models: &Models, most: Duration, tell: &(impl Fn(Notice) + Sync)) {
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

/// The process is asked to end; a second time, it does so at once.
async fn signal() {
    asked_to_end().await;
    tokio::spawn(async {
        asked_to_end().await;
        std::process::exit(130);
    });
}

async fn asked_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let (interrupt, terminate) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    match (interrupt, terminate) {
        (Ok(mut interrupt), Ok(mut terminate)) => {
            std::future::poll_fn(|context| {
                let asked = interrupt.poll_recv(context).is_ready() || terminate.poll_recv(context).is_ready();
                if asked { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
        }
        // Signals that cannot be caught end the process without us.
        _ => std::future::pending().await,
    }
}
