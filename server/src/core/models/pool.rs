//! The pool of models: owns which of them are loaded, loads them and evicts them.
//!
//! A request for a model that is not loaded queues it for loading. Models are loaded one at a time,
//! once [`policy`](super::policy) finds room, each on a thread of its own, which then runs its
//! [`BatchWorker`]. Requests wait in the model's own queue meanwhile. An evicted model first
//! finishes the requests queued before; a later request loads it again.

use crate::core::batch_worker::BatchWorker;
use crate::core::engine_health::EngineHealth;
use crate::core::error::RequestError;
use crate::core::event::Event;
use crate::core::limits::Limits;
use crate::core::load::Load;
use crate::core::loading::{LoadStep, Loading};
use crate::core::metrics::{Metrics, ModelMetrics};
use crate::core::model::Served;
use crate::core::models::entry::{LoadError, ModelEntry, ModelSpec};
use crate::core::models::names::{NameMatch, Names, find, nearest};
use crate::core::models::policy::{Activity, EvictionDecision, Resident, decide};
use gristmill_llm::engine::{Engine, Progress};
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Returns the bytes still available for device buffers; `None` if that is unknown.
pub type Available = Box<dyn Fn() -> Option<u64> + Send + Sync>;

/// Conversations of full context length that the host KV cache holds by default, memory permitting.
const CACHED_CONVERSATIONS: usize = 4;
/// The host KV cache takes by default at most one part in this number of the available memory.
const CACHE_MEMORY_SHARE: u64 = 8;
/// Stack size of a model's thread in bytes, the default of main threads: the compiler is recursive.
const WORKER_STACK_BYTES: usize = 8 << 20;
/// Minimum time between two progress reports of the same loading step.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// Bytes of a megabyte in error messages.
const MB: u64 = 1_000_000;

/// State and settings that all models share.
pub struct Shared {
    /// Metrics of the server and of all models.
    pub metrics: Metrics,
    /// Health of the device's engine.
    pub health: EngineHealth,
    /// Limits of requests and answers.
    pub limits: Limits,
    /// Maximum queued requests of each model.
    pub waiting: usize,
    /// Bytes of each model's host KV cache; `None` for a share of the memory.
    pub keep: Option<usize>,
    /// Default of requests that do not set `batch_invariant`.
    pub batch_invariant: bool,
    /// Whether an unknown name means the model that is loaded, or the first one.
    pub any_model: bool,
}

/// The pool of all served models.
pub struct Models {
    all: Vec<Arc<ModelEntry>>,
    /// State and settings that all models share.
    pub shared: Shared,
    /// Maximum number of models that are loaded at a time.
    most: Option<usize>,
    available: Available,
    state: Mutex<State>,
    changed: Condvar,
    /// Logical clock of model uses.
    clock: AtomicU64,
}

struct State {
    phases: Vec<Phase>,
    /// Failure of each model's last load.
    failures: Vec<Option<LoadError>>,
    /// Models that are queued for loading, in order.
    line: VecDeque<usize>,
    /// Bytes available for models when none was loaded. Loaded models may not have touched all of
    /// their memory.
    room: u64,
    /// New requests are refused.
    draining: bool,
    closed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Away,
    InLine,
    Loading,
    /// Loaded; the number of bytes it holds.
    Loaded(u64),
    Evicting(u64),
}

/// A model that has been loaded.
struct Ready {
    worker: BatchWorker,
    served: Arc<Served>,
    bytes: u64,
}

/// Status of a model, for the interfaces.
#[derive(Clone, PartialEq, Debug)]
pub enum Status {
    /// Not loaded; a request for it loads it.
    Unloaded,
    /// Being loaded or queued for loading, with the current step if known.
    Loading(Option<LoadStep>),
    /// Loaded; the number of bytes it holds.
    Loaded(u64),
    /// Its last load failed. A request for it tries again.
    Failed(LoadError),
}

impl Models {
    /// Creates the pool with no model loaded. The first model reports its loading progress to
    /// `first`.
    pub fn new(
        specs: Vec<ModelSpec>,
        most: Option<usize>,
        available: Available,
        shared: Shared,
        first: Loading,
    ) -> Models {
        let mut loading = Some(first);
        let model = |spec: ModelSpec| {
            let metrics = shared.metrics.model(&spec.name);
            Arc::new(ModelEntry::new(
                spec,
                shared.waiting,
                metrics,
                loading.take().unwrap_or_default(),
            ))
        };
        let all: Vec<Arc<ModelEntry>> = specs.into_iter().map(model).collect();
        let state = State {
            phases: vec![Phase::Away; all.len()],
            failures: vec![None; all.len()],
            line: VecDeque::new(),
            room: 0,
            draining: false,
            closed: false,
        };
        let (state, changed, clock) = (Mutex::new(state), Condvar::new(), AtomicU64::new(1));
        Models {
            all,
            shared,
            most,
            available,
            state,
            changed,
            clock,
        }
    }
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Returns all served models.
    pub fn entries(&self) -> &[Arc<ModelEntry>] {
        &self.all
    }
    /// Returns the only model, if there is exactly one: requests need not name it.
    pub fn single_model(&self) -> Option<&Arc<ModelEntry>> {
        self.all.first().filter(|_| self.all.len() == 1)
    }
    /// Finds the model that a client means by `asked`.
    ///
    /// # Errors
    /// When no model or several match, or if several models are served and none is named.
    pub fn find(&self, asked: Option<&str>) -> Result<&Arc<ModelEntry>, RequestError> {
        let names: Vec<&Names> = self.all.iter().map(|model| &model.names).collect();
        let called: Vec<&str> = self.all.iter().map(|model| model.name()).collect();
        if self.shared.any_model && asked.is_none_or(|asked| find(asked, &names) == NameMatch::None)
        {
            let is_loaded =
                |model: &&Arc<ModelEntry>| matches!(self.status(model), Status::Loaded(_));
            return Ok(self.all.iter().find(is_loaded).unwrap_or(&self.all[0]));
        }
        let Some(asked) = asked else {
            return self
                .single_model()
                .ok_or_else(|| RequestError::which_model(&called));
        };
        match find(asked, &names) {
            NameMatch::One(at) => Ok(&self.all[at]),
            NameMatch::Several(places) => {
                let meant: Vec<&str> = places.into_iter().map(|at| called[at]).collect();
                Err(RequestError::ambiguous_model(asked, &meant))
            }
            NameMatch::None => {
                // With a single model the message names it anyway.
                let near = nearest(asked, &names)
                    .filter(|_| self.all.len() > 1)
                    .map(|at| called[at]);
                Err(RequestError::model(asked, &called, near))
            }
        }
    }
    fn index_of(&self, model: &ModelEntry) -> usize {
        self.all
            .iter()
            .position(|other| std::ptr::eq(other.as_ref(), model))
            .expect("a model of these")
    }
    /// Returns the status of a model.
    pub fn status(&self, model: &ModelEntry) -> Status {
        let at = self.index_of(model);
        let state = self.lock();
        match (state.phases[at], &state.failures[at]) {
            (Phase::Loaded(bytes) | Phase::Evicting(bytes), _) => Status::Loaded(bytes),
            (Phase::InLine | Phase::Loading, _) => Status::Loading(model.loading.step()),
            (Phase::Away, Some(error)) => Status::Failed(error.clone()),
            (Phase::Away, None) => model.unplanned().map_or(Status::Unloaded, Status::Failed),
        }
    }
    /// Queues a model for loading, unless it is loaded or queued already.
    pub fn request_load(self: &Arc<Models>, model: &ModelEntry) {
        let at = self.index_of(model);
        self.touch(model);
        let mut state = self.lock();
        if state.phases[at] == Phase::Away {
            self.queue_load(&mut state, at);
            self.schedule_loads(&mut state);
        }
    }
    /// Records that the model is used now.
    fn touch(&self, model: &ModelEntry) {
        model.touch(self.clock.fetch_add(1, Ordering::Relaxed));
    }
    fn queue_load(&self, state: &mut State, at: usize) {
        state.phases[at] = Phase::InLine;
        state.failures[at] = None;
        state.line.push_back(at);
        self.report_progress(
            &self.all[at],
            LoadStep {
                what: "waiting to be loaded".into(),
                done: 0,
                total: 0,
            },
        );
    }
    /// Reports loading progress to the queued requests of a model.
    fn report_progress(&self, model: &ModelEntry, step: LoadStep) {
        model.loading.set(&step.what, step.done, step.total);
        model.queue.for_each(|request| {
            let _ = request.events.send(Event::Loading(step.clone()));
        });
    }
    /// Returns the bytes that a further model may take.
    fn free(&self, state: &mut State) -> u64 {
        let available = (self.available)().unwrap_or(u64::MAX / 2);
        let taken = state
            .phases
            .iter()
            .filter_map(|phase| phase.bytes())
            .fold(0, u64::saturating_add);
        if taken == 0 {
            state.room = available;
        }
        available.min(state.room.saturating_sub(taken))
    }
    /// Loads the first queued models while there is room, or evicts others to make room.
    fn schedule_loads(self: &Arc<Models>, state: &mut State) {
        while !state.closed && !state.phases.contains(&Phase::Loading) {
            let Some(&at) = state.line.front() else {
                return;
            };
            let need = self.all[at].cached_plan().map_or(0, |plan| plan.bytes);
            let free = self.free(state);
            let places: Vec<usize> = (0..self.all.len())
                .filter(|&at| state.phases[at].bytes().is_some())
                .collect();
            let residents: Vec<Resident> = places
                .iter()
                .map(|&at| self.resident(state.phases[at], at))
                .collect();
            match decide(need, free, self.most, &residents) {
                EvictionDecision::Load => {
                    state.line.pop_front();
                    self.start_load(state, at);
                }
                EvictionDecision::Evict(who) => {
                    for at in who.into_iter().map(|who| places[who]) {
                        state.phases[at] = Phase::Evicting(state.phases[at].bytes().unwrap_or(0));
                        tracing::info!(model = self.all[at].name(), "leaves");
                        self.all[at].queue.leave();
                    }
                    return;
                }
                EvictionDecision::Wait => return,
                EvictionDecision::TooLarge(room) => {
                    state.line.pop_front();
                    self.fail(state, at, too_large(need, room));
                }
            }
        }
    }
    fn resident(&self, phase: Phase, at: usize) -> Resident {
        let model = &self.all[at];
        let activity = match phase {
            Phase::Evicting(_) => Activity::Evicting,
            _ if model.queue.is_busy() => Activity::Busy,
            _ => Activity::Idle,
        };
        Resident {
            bytes: phase.bytes().unwrap_or(0),
            last_used: model.last_used(),
            activity,
        }
    }
    /// Starts the thread of a model.
    fn start_load(self: &Arc<Models>, state: &mut State, at: usize) {
        state.phases[at] = Phase::Loading;
        let models = self.clone();
        let thread = std::thread::Builder::new()
            .name("gristmill-model".into())
            .stack_size(WORKER_STACK_BYTES);
        if let Err(error) = thread.spawn(move || models.work(at)) {
            self.fail(
                state,
                at,
                LoadError {
                    message: format!("there is no thread for it: {error}"),
                    ..LoadError::default()
                },
            );
        }
    }
    /// Body of a model's thread: loads the model, serves its requests, and frees it.
    fn work(self: Arc<Models>, at: usize) {
        let model = &self.all[at];
        let loaded = catch_unwind(AssertUnwindSafe(|| self.load(model))).unwrap_or_else(|_| {
            let message = "loading it failed; the server's log says why".into();
            Err(LoadError {
                message,
                ..LoadError::default()
            })
        });
        model.loading.clear();
        match loaded {
            Ok(Ready {
                worker,
                served,
                bytes,
            }) => {
                if self.keeps_resident(at, bytes) {
                    // The worker's memory is freed even if it panics.
                    let _ = catch_unwind(AssertUnwindSafe(|| worker.run()));
                    // Requests share the tokenizer and template until here.
                    drop(served);
                }
                self.worker_ended(at);
            }
            Err(error) => {
                let mut state = self.lock();
                self.fail(&mut state, at, error);
                self.schedule_loads(&mut state);
            }
        }
    }
    fn load(&self, model: &Arc<ModelEntry>) -> Result<Ready, LoadError> {
        let begun = Instant::now();
        let mut served = model.served()?;
        let told = Cell::new(None::<(&str, Instant)>);
        let engine = model.source.load(served.context, &|progress| {
            let (what, done, total) = match progress {
                Progress::Loading(done, total) => ("loading weights", done, total),
                Progress::Planning(done, total) => {
                    ("scheduling kernels", done as u64, total as u64)
                }
                Progress::Compiling(done, total) => {
                    ("compiling kernels", done as u64, total as u64)
                }
            };
            // All kernels were in the cache.
            if total == 0 {
                return;
            }
            model.loading.set(what, done, total);
            if told
                .get()
                .is_none_or(|(told, when)| told != what || when.elapsed() >= PROGRESS_INTERVAL)
            {
                told.set(Some((what, Instant::now())));
                self.report_progress(
                    model,
                    LoadStep {
                        what: what.into(),
                        done,
                        total,
                    },
                );
            }
        })?;
        if engine.context() != served.context {
            served = model.served_with(engine.context())?;
        }
        let bytes = engine.memory_bytes();
        let keep = self
            .shared
            .keep
            .unwrap_or_else(|| self.prefix_cache_bytes(&engine));
        let (model, health) = (model.clone(), self.shared.health.clone());
        tracing::info!(
            model = model.name(),
            bytes,
            load_ms = begun.elapsed().as_millis() as u64,
            "loaded"
        );
        let worker = BatchWorker::new(engine, keep, model, health);
        Ok(Ready {
            worker,
            served,
            bytes,
        })
    }
    fn prefix_cache_bytes(&self, engine: &Engine) -> usize {
        let whole = engine.cache().sequence_bytes(engine.context());
        let share = gristmill_runtime::memory::available().unwrap_or(u64::MAX) / CACHE_MEMORY_SHARE;
        (whole * CACHED_CONVERSATIONS).min(usize::try_from(share).unwrap_or(usize::MAX))
    }
    /// Records that a model is loaded; returns false if the pool was closed meanwhile.
    fn keeps_resident(self: &Arc<Models>, at: usize, bytes: u64) -> bool {
        let model = &self.all[at];
        let mut state = self.lock();
        state.phases[at] = Phase::Loaded(bytes);
        model.queue.stay();
        model.metrics.loads.inc();
        model.metrics.loaded.set(1);
        model
            .metrics
            .bytes
            .set(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.touch(model);
        self.schedule_loads(&mut state);
        self.changed.notify_all();
        !state.closed
    }
    /// Records that a model has freed its memory.
    fn worker_ended(self: &Arc<Models>, at: usize) {
        let model = &self.all[at];
        let mut state = self.lock();
        tracing::info!(model = model.name(), "has left");
        state.phases[at] = Phase::Away;
        let ModelMetrics {
            loaded,
            bytes,
            kept_bytes,
            running,
            slots,
            pages,
            pages_total,
            pages_leaked,
            pages_away,
            ..
        } = &model.metrics;
        for gauge in [
            loaded,
            bytes,
            kept_bytes,
            running,
            slots,
            pages,
            pages_total,
            pages_leaked,
            pages_away,
        ] {
            gauge.set(0);
        }
        if !state.closed && model.queue.len() > 0 {
            self.queue_load(&mut state, at);
        }
        self.schedule_loads(&mut state);
        self.changed.notify_all();
    }
    /// Records a failed load and reports it to the queued requests.
    fn fail(&self, state: &mut State, at: usize, error: LoadError) {
        let model = &self.all[at];
        model.loading.clear();
        model.metrics.load_failures.inc();
        tracing::info!(
            model = model.name(),
            why = error.message,
            "cannot be loaded"
        );
        if error.lost {
            self.shared.health.fail(error.message.clone());
        }
        let told = error.to_request_error(model.name());
        model.queue.dismiss(|request| {
            let _ = request.events.send(Event::Failed(told.clone()));
        });
        state.phases[at] = Phase::Away;
        state.failures[at] = Some(error);
        self.changed.notify_all();
    }
    /// Loads a model, waits for it and returns its context length in tokens.
    ///
    /// # Errors
    /// When it cannot be loaded.
    pub fn load_now(self: &Arc<Models>, model: &ModelEntry) -> Result<usize, LoadError> {
        self.request_load(model);
        let at = self.index_of(model);
        let mut state = self.lock();
        loop {
            match (state.phases[at], &state.failures[at]) {
                (Phase::Loaded(_) | Phase::Evicting(_), _) => return Ok(model.plan()?.context),
                (Phase::Away, Some(error)) => return Err(error.clone()),
                _ => {
                    state = self
                        .changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner)
                }
            }
        }
    }
    /// Refuses new requests; running and queued ones are still served.
    pub fn drain(&self) {
        self.lock().draining = true;
    }
    /// Returns whether new requests are refused.
    pub fn is_draining(&self) -> bool {
        self.lock().draining
    }
    /// Returns the sum of all models' loads.
    pub fn total_load(&self) -> Load {
        self.all
            .iter()
            .map(|model| model.load())
            .fold(Load::default(), Load::plus)
    }
    /// Returns whether any model has running or queued requests.
    pub fn is_busy(&self) -> bool {
        self.all.iter().any(|model| model.queue.is_busy())
    }
    /// Closes all queues: queued requests are dropped and running ones are cancelled.
    pub fn close(&self) {
        self.lock().closed = true;
        self.all.iter().for_each(|model| model.queue.close());
        self.changed.notify_all();
    }
    /// Waits until the pool is closed and no model is loaded. A load in progress cannot be
    /// cancelled and is not awaited.
    pub fn wait(&self) {
        let mut state = self.lock();
        while !state.closed || state.phases.iter().any(|phase| phase.bytes().is_some()) {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
    /// Marks a model as loaded, for a consumer that takes from its queue without an engine.
    #[cfg(feature = "fuzzing")]
    pub fn pretend_loaded(&self, model: &ModelEntry) {
        self.lock().phases[self.index_of(model)] = Phase::Loaded(0);
    }
}

impl Phase {
    fn bytes(self) -> Option<u64> {
        match self {
            Phase::Loaded(bytes) | Phase::Evicting(bytes) => Some(bytes),
            Phase::Away | Phase::InLine | Phase::Loading => None,
        }
    }
}

fn too_large(need: u64, room: u64) -> LoadError {
    LoadError {
        message: format!(
            "it takes {} MB, and there are {} MB of memory for models",
            need.div_ceil(MB),
            room / MB
        ),
        hint: Some("try a smaller quantisation of it, a smaller model, or a shorter --ctx".into()),
        too_large: true,
        lost: false,
    }
}
