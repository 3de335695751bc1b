//! A model that may be loaded: how that is done, what is known of it before, and who waits for it.

use crate::core::engine_request::EngineRequest;
use crate::core::error::RequestError;
use crate::core::load::Load;
use crate::core::loading::Loading;
use crate::core::metrics::ModelMetrics;
use crate::core::model::{ModelFacts, ModelText, Served, now};
use crate::core::models::names::Names;
use crate::core::queue::Queue;
use gristmill_llm::arch::Options;
use gristmill_llm::engine::{Engine, Progress};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Where a model comes from. What it does takes a while, and is asked for beside the threads that serve connections.
pub trait ModelSource: Send + Sync + 'static {
    /// What is known before it is loaded: of the heads of its files alone.
    ///
    /// # Errors
    /// When it is none that can be run, or is too large for this machine.
    fn plan(&self) -> Result<ModelPlan, LoadError>;
    /// How it reads and writes.
    ///
    /// # Errors
    /// When that cannot be read.
    fn text(&self) -> Result<ModelText, LoadError>;
    /// Itself, with so many tokens of context; fewer where that much memory is not there after all. It stays on the thread that asks.
    ///
    /// # Errors
    /// When it cannot be read, or does not fit.
    fn load(&self, context: usize, progress: &dyn Fn(Progress)) -> Result<Engine, LoadError>;
}

/// What is known of a model before it is loaded.
#[derive(Clone, Debug)]
pub struct ModelPlan {
    /// Facts for whoever asks.
    pub about: ModelFacts,
    /// Tokens of context.
    pub context: usize,
    /// Bytes that it will take: weights, cache, activations.
    pub bytes: u64,
}

/// Why a model is not there.
#[derive(Clone, PartialEq, Eq, Debug, Default, thiserror::Error)]
#[error("{message}")]
pub struct LoadError {
    /// The cause.
    pub message: String,
    /// The way out, where one is known.
    pub hint: Option<String>,
    /// Is it larger than the memory? Then it will not be there a moment later either.
    pub too_large: bool,
    /// Is the device lost? Then no model will ever be there.
    pub lost: bool,
}

impl LoadError {
    /// The cause and the way out.
    pub fn text(&self) -> String {
        self.hint.iter().fold(self.message.clone(), |text, hint| format!("{text}; {hint}"))
    }
    /// What whoever asked for that model is told.
    pub(crate) fn to_request_error(&self, name: &str) -> RequestError {
        RequestError::not_loaded(name, &self.text(), self.too_large)
    }
}

/// A model, as a server is told of it.
pub struct ModelSpec {
    /// What clients call it, in all interfaces.
    pub name: String,
    /// What else it answers to.
    pub aliases: Vec<String>,
    /// What is known of it, or why that is not known: it is asked for again then.
    pub plan: Result<ModelPlan, LoadError>,
    /// Where it comes from.
    pub source: Arc<dyn ModelSource>,
}

/// A model, loaded or not.
pub struct ModelEntry {
    /// What it is called.
    pub names: Names,
    /// Since when it is served: seconds since 1970.
    pub created: u64,
    /// Where it comes from.
    pub source: Arc<dyn ModelSource>,
    /// Who waits for it. They wait there also while it is not loaded.
    pub queue: Queue<EngineRequest>,
    /// What was counted of it.
    pub metrics: ModelMetrics,
    /// How far it is while it is being loaded.
    pub loading: Loading,
    plan: Mutex<Result<ModelPlan, LoadError>>,
    /// How it reads and writes, while somebody needs that.
    served: Mutex<Weak<Served>>,
    used: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ModelEntry {
    /// One that is not loaded, for which at most so many requests wait.
    pub fn new(spec: ModelSpec, waiting: usize, metrics: ModelMetrics, loading: Loading) -> ModelEntry {
        let ModelSpec { name, aliases, plan, source } = spec;
        ModelEntry {
            names: Names { name, aliases },
            created: now(),
            source,
            queue: Queue::new(waiting),
            metrics,
            loading,
            plan: Mutex::new(plan),
            served: Mutex::default(),
            used: AtomicU64::new(0),
        }
    }
    /// What clients call it.
    pub fn name(&self) -> &str {
        &self.names.name
    }
    /// What tells it from others by that name: of the name and the facts, since nobody has read all of its weights.
    pub fn digest(&self) -> String {
        let about = self.cached_plan().map(|plan| plan.about);
        blake3::hash(format!("{} {about:?}", self.name()).as_bytes()).to_hex().to_string()
    }
    /// What is known of it, where anything is.
    pub fn cached_plan(&self) -> Option<ModelPlan> {
        lock(&self.plan).as_ref().ok().cloned()
    }
    /// The same; it is looked at again where it could not be said before: there may be more memory now, or another file.
    ///
    /// # Errors
    /// Why it cannot be said.
    pub fn plan(&self) -> Result<ModelPlan, LoadError> {
        let mut plan = lock(&self.plan);
        if plan.is_err() {
            *plan = self.source.plan();
        }
        plan.clone()
    }
    /// Returns how busy it is. A page counts once, whole, however many sequences share it.
    pub fn load(&self) -> Load {
        let ModelMetrics { running, slots, pages, pages_total, .. } = &self.metrics;
        let [running, slots, pages, pages_total] =
            [running, slots, pages, pages_total].map(|gauge| usize::try_from(gauge.get()).unwrap_or(0));
        let (used, room) = match pages_total {
            0 => (0, self.cached_plan().map_or(0, |plan| plan.context)),
            _ => (pages * Options::PAGE, pages_total * Options::PAGE),
        };
        Load { running, waiting: self.queue.len(), slots: slots.max(1), used, room }
    }
    /// Why it cannot be said, where it could not.
    pub fn unplanned(&self) -> Option<LoadError> {
        lock(&self.plan).as_ref().err().cloned()
    }
    /// How it reads and writes: as it is known to whoever uses it now, else read anew.
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
    /// The same with another context, which it turned out to have.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn served_with(&self, context: usize) -> Result<Arc<Served>, LoadError> {
        let ModelPlan { about, bytes, .. } = self.plan()?;
        *lock(&self.plan) = Ok(ModelPlan { about: about.clone(), context, bytes });
        let fresh = self.build_served(about, context)?;
        *lock(&self.served) = Arc::downgrade(&fresh);
        Ok(fresh)
    }
    fn build_served(&self, about: ModelFacts, context: usize) -> Result<Arc<Served>, LoadError> {
        let text = ModelText { name: self.name().to_owned(), ..self.source.text()? };
        let mut served = Served::new(text, about, context);
        served.created = self.created;
        Ok(Arc::new(served))
    }
    /// It is used at that moment; a larger number is later.
    pub fn touch(&self, moment: u64) {
        self.used.fetch_max(moment, Ordering::Relaxed);
    }
    /// When it was used last.
    pub fn last_used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}
