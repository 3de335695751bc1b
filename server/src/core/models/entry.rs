//! A model that can be loaded: its source, its plan, its queue and its metrics.

use crate::core::adapters::{NamedAdapter, joined_names};
use crate::core::engine_request::EngineRequest;
use crate::core::error::RequestError;
use crate::core::kv_events::KvEventLog;
use crate::core::load::Load;
use crate::core::loading::Loading;
use crate::core::metrics::{Metrics, ModelMetrics};
use crate::core::model::{ModelFacts, ModelText, Served, now};
use crate::core::models::names::Names;
use crate::core::queue::Queue;
use crate::core::replica::Replica;
use gristmill_llm::engine::{Engine, Progress};
use gristmill_llm::sched::DraftSources;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Source of a model. The methods read files and take a while, so they are called off the
/// connection threads.
pub trait ModelSource: Send + Sync + 'static {
    /// Plans the model from its files' headers, before it is loaded.
    ///
    /// # Errors
    /// When the model is not supported, or is too large for this machine.
    fn plan(&self) -> Result<ModelPlan, LoadError>;
    /// Reads the model's tokenizer, template and sampling defaults.
    ///
    /// # Errors
    /// When they cannot be read.
    fn text(&self) -> Result<ModelText, LoadError>;
    /// Loads the model on a device, by its index, with `context` tokens of context, or fewer if
    /// memory is short. The engine stays on the calling thread.
    ///
    /// # Errors
    /// When the model cannot be read or does not fit into memory.
    fn load(
        &self,
        device: usize,
        context: usize,
        progress: &dyn Fn(Progress),
    ) -> Result<Engine, LoadError>;
    /// Returns where the drafts of a loaded engine come from; nowhere by default.
    ///
    /// # Errors
    /// When a model that drafts cannot be loaded.
    fn drafts(&self, _device: usize, _engine: &Engine) -> Result<DraftSources, LoadError> {
        Ok(DraftSources::default())
    }
}

/// Metadata and memory estimate of a model that need not be loaded.
#[derive(Clone, Debug)]
pub struct ModelPlan {
    /// Metadata of the model.
    pub about: ModelFacts,
    /// Context length in tokens.
    pub context: usize,
    /// Bytes of memory on each device for weights, KV cache and activations.
    pub bytes: u64,
}

/// Reason why a model cannot be planned or loaded.
#[derive(Clone, PartialEq, Eq, Debug, Default, thiserror::Error)]
#[error("{message}")]
pub struct LoadError {
    /// Cause of the failure.
    pub message: String,
    /// How to avoid the failure, if known.
    pub hint: Option<String>,
    /// Whether the model exceeds the memory, so that a retry cannot succeed.
    pub too_large: bool,
    /// Whether the device is lost, so that no model can be loaded any more.
    pub lost: bool,
}

impl LoadError {
    /// Returns the cause and the hint.
    pub fn text(&self) -> String {
        self.hint
            .iter()
            .fold(self.message.clone(), |text, hint| format!("{text}; {hint}"))
    }
    /// Converts the failure into the error of a request for the model.
    pub(crate) fn to_request_error(&self, name: &str) -> RequestError {
        RequestError::not_loaded(name, &self.text(), self.too_large)
    }
}

/// Configuration of a served model.
pub struct ModelSpec {
    /// Name of the model in all interfaces.
    pub name: String,
    /// Further names by which clients may request the model.
    pub aliases: Vec<String>,
    /// Adapters that requests may choose, in the order of the engine's.
    pub adapters: Vec<NamedAdapter>,
    /// The plan, or why there is none; a failed plan is retried when the model is requested.
    pub plan: Result<ModelPlan, LoadError>,
    /// Source that plans and loads the model.
    pub source: Arc<dyn ModelSource>,
}

/// A served model, loaded or not.
pub struct ModelEntry {
    /// Name and aliases of the model.
    pub names: Names,
    /// Adapters that requests may choose.
    pub adapters: Vec<NamedAdapter>,
    /// Time since which it is served, in seconds since the Unix epoch.
    pub created: u64,
    /// Source that plans and loads the model.
    pub source: Arc<dyn ModelSource>,
    /// Queued requests; they wait here also while the model is not loaded.
    pub queue: Queue<EngineRequest>,
    /// The replicas, one for each device.
    pub replicas: Vec<Replica>,
    /// Metrics of the model.
    pub metrics: ModelMetrics,
    /// Progress while it is being loaded.
    pub loading: Loading,
    /// Events of its KV cache, if they are recorded.
    pub kv_events: Option<Arc<KvEventLog>>,
    plan: Mutex<Result<ModelPlan, LoadError>>,
    /// Text side of the model; dropped when neither a worker nor a request uses it.
    served: Mutex<Weak<Served>>,
    used: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ModelEntry {
    /// Creates a model that is not loaded, with a queue of at most `waiting` requests and a replica
    /// for each device.
    pub fn new(
        spec: ModelSpec,
        waiting: usize,
        (metrics, devices): (&Metrics, &[String]),
        loading: Loading,
    ) -> ModelEntry {
        let ModelSpec {
            name,
            mut aliases,
            adapters,
            plan,
            source,
        } = spec;
        aliases.extend(joined_names(&name, &adapters));
        let replica = |(number, device): (usize, &String)| {
            Replica::new(device.clone(), metrics.replica(&name, number, device))
        };
        let replicas = devices.iter().enumerate().map(replica).collect();
        let metrics = metrics.model(&name);
        ModelEntry {
            names: Names { name, aliases },
            adapters,
            created: now(),
            source,
            queue: Queue::new(waiting, devices.len()),
            replicas,
            metrics,
            loading,
            kv_events: None,
            plan: Mutex::new(plan),
            served: Mutex::default(),
            used: AtomicU64::new(0),
        }
    }
    /// Records the events of its KV cache, if `wanted`.
    pub fn with_kv_events(self, wanted: bool) -> ModelEntry {
        let kv_events = wanted.then(|| Arc::new(KvEventLog::new(self.replicas.len())));
        ModelEntry { kv_events, ..self }
    }
    /// Returns the name for clients.
    pub fn name(&self) -> &str {
        &self.names.name
    }
    /// Returns a hash of the name and the metadata, as hashing the weights would take too long.
    pub fn digest(&self) -> String {
        let about = self.cached_plan().map(|plan| plan.about);
        blake3::hash(format!("{} {about:?}", self.name()).as_bytes())
            .to_hex()
            .to_string()
    }
    /// Returns the plan, if there is one.
    pub fn cached_plan(&self) -> Option<ModelPlan> {
        lock(&self.plan).as_ref().ok().cloned()
    }
    /// Returns the plan. A failed one is retried, as there may be more memory or another file by
    /// now.
    ///
    /// # Errors
    /// When the model cannot be planned.
    pub fn plan(&self) -> Result<ModelPlan, LoadError> {
        let mut plan = lock(&self.plan);
        if plan.is_err() {
            *plan = self.source.plan();
        }
        plan.clone()
    }
    /// Returns the load. A page counts once, as a whole, regardless of how many sequences share it.
    pub fn load(&self) -> Load {
        let loads = self.replicas.iter().map(Replica::load);
        let sum = loads.fold(Load::default(), Load::plus);
        let room = match sum.room {
            0 => self.cached_plan().map_or(0, |plan| plan.context),
            room => room,
        };
        Load {
            waiting: self.queue.len(),
            slots: sum.slots.max(1),
            room,
            ..sum
        }
    }
    /// Returns the bytes of memory that the replicas hold.
    pub fn bytes(&self) -> u64 {
        let bytes = |replica: &Replica| u64::try_from(replica.metrics.bytes.get()).unwrap_or(0);
        self.replicas.iter().map(bytes).sum()
    }
    /// Sets the model's gauges that are sums over the replicas.
    pub fn sum_metrics(&self) {
        let replicas = self.replicas.iter().map(|replica| &replica.metrics);
        self.metrics.sum(replicas);
    }
    /// Returns why there is no plan, if planning failed.
    pub fn unplanned(&self) -> Option<LoadError> {
        lock(&self.plan).as_ref().err().cloned()
    }
    /// Returns the model's tokenizer, template and metadata, shared with current users or read from
    /// files.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn served(&self) -> Result<Arc<Served>, LoadError> {
        let mut served = lock(&self.served);
        if let Some(served) = served.upgrade() {
            return Ok(served);
        }
        let ModelPlan { about, context, .. } = self.plan()?;
        let fresh = self.build_served(about, context)?;
        *served = Arc::downgrade(&fresh);
        Ok(fresh)
    }
    /// Returns the same with `context` as context length, which loading chose.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn served_with(&self, context: usize) -> Result<Arc<Served>, LoadError> {
        let ModelPlan { about, bytes, .. } = self.plan()?;
        *lock(&self.plan) = Ok(ModelPlan {
            about: about.clone(),
            context,
            bytes,
        });
        let fresh = self.build_served(about, context)?;
        *lock(&self.served) = Arc::downgrade(&fresh);
        Ok(fresh)
    }
    fn build_served(&self, about: ModelFacts, context: usize) -> Result<Arc<Served>, LoadError> {
        let text = ModelText {
            name: self.name().to_owned(),
            ..self.source.text()?
        };
        let mut served = Served::new(text, about, context);
        served.created = self.created;
        Ok(Arc::new(served))
    }
    /// Records a use at the logical time `moment`.
    pub fn touch(&self, moment: u64) {
        self.used.fetch_max(moment, Ordering::Relaxed);
    }
    /// Returns the logical time of the last use.
    pub fn last_used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}
