//! The pool of models: owns which of them are loaded, loads them and evicts them.
//!
//! A request for a model that is not loaded queues it for loading. Models are loaded one at a time,
//! once [`policy`](super::policy) finds room, each on a thread of its own, which then runs its
//! [`BatchWorker`]. Requests wait in the model's own queue meanwhile. An evicted model first
//! finishes the requests queued before; a later request loads it again.

use crate::core::batch_worker::BatchWorker;
use crate::core::engine_health::DeviceHealth;
use crate::core::error::RequestError;
use crate::core::event::Event;
use crate::core::limits::Limits;
use crate::core::load::Load;
use crate::core::loading::{LoadStep, Loading};
use crate::core::metrics::Metrics;
use crate::core::model::Served;
use crate::core::models::entry::{LoadError, ModelEntry, ModelSpec};
use crate::core::models::names::{NameMatch, Names, find, nearest};
use crate::core::models::policy::{Activity, EvictionDecision, Resident, decide};
use crate::core::replica::ReplicaStatus;
use gristmill_llm::engine::{Engine, Progress};
use gristmill_llm::sched::DraftSources;
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
    /// The devices and their losses.
    pub devices: Arc<DeviceHealth>,
    /// Limits of requests and answers.
    pub limits: Limits,
    /// Maximum queued requests of each model.
    pub waiting: usize,
    /// Bytes of each model's host KV cache; `None` for a share of the memory.
    pub keep: Option<usize>,
    /// Default of requests that do not set `batch_invariant`.
    pub batch_invariant: bool,
    /// Whether the events of the models' KV caches are recorded.
    pub kv_events: bool,
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
    /// Replicas of each loaded model that serve, and further ones that are being loaded.
    serving: Vec<usize>,
    joining: Vec<usize>,
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
    /// Loaded; the number of bytes it holds on each device.
    Loaded(u64),
    Evicting(u64),
}

/// A replica that has been loaded.
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
            let entry = ModelEntry::new(
                spec,
                shared.waiting,
                (&shared.metrics, shared.devices.names()),
                loading.take().unwrap_or_default(),
            );
            Arc::new(entry.with_kv_events(shared.kv_events))
        };
        let all: Vec<Arc<ModelEntry>> = specs.into_iter().map(model).collect();
        let state = State {
            phases: vec![Phase::Away; all.len()],
            serving: vec![0; all.len()],
            joining: vec![0; all.len()],
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
            (Phase::Loaded(_) | Phase::Evicting(_), _) => Status::Loaded(model.bytes()),
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
                    let device = self.shared.devices.usable().next().unwrap_or(0);
                    self.fail(state, (at, device), too_large(need, room));
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
    /// Starts loading a model, on the first of the devices that are left.
    fn start_load(self: &Arc<Models>, state: &mut State, at: usize) {
        state.phases[at] = Phase::Loading;
        let device = self.shared.devices.usable().next().unwrap_or(0);
        if let Err(error) = self.spawn(at, device, Models::work_first) {
            self.fail(state, (at, device), error);
        }
    }
    /// Starts the thread of a replica.
    fn spawn(
        self: &Arc<Models>,
        at: usize,
        device: usize,
        work: fn(&Arc<Models>, usize, usize),
    ) -> Result<(), LoadError> {
        let models = self.clone();
        let thread = std::thread::Builder::new()
            .name("gristmill-model".into())
            .stack_size(WORKER_STACK_BYTES);
        self.all[at].replicas[device].set_status(ReplicaStatus::Loading);
        let spawned = thread.spawn(move || work(&models, at, device));
        spawned.map(drop).map_err(|error| LoadError {
            message: format!("there is no thread for it: {error}"),
            ..LoadError::default()
        })
    }
    /// Body of the thread of a model's first replica: loads the model, serves its requests, and
    /// frees it. The other replicas are loaded while it serves.
    fn work_first(self: &Arc<Models>, at: usize, device: usize) {
        let model = &self.all[at];
        let loaded = caught(|| self.load(model, device));
        model.loading.clear();
        match loaded {
            Ok(ready) => {
                if let Some(others) = self.keeps_resident(at, device, &ready) {
                    self.start_others(at, &others);
                    ready.run();
                }
                self.worker_ended(at, device);
            }
            Err(error) => {
                let mut state = self.lock();
                self.fail(&mut state, (at, device), error);
                self.schedule_loads(&mut state);
            }
        }
    }
    /// Starts loading the replicas on the other devices, which count as joining already.
    fn start_others(self: &Arc<Models>, at: usize, others: &[usize]) {
        for &device in others {
            if let Err(error) = self.spawn(at, device, Models::work_another) {
                self.fail_replica(at, device, error);
            }
        }
    }
    /// Body of the thread of another replica of a model that is loaded.
    fn work_another(self: &Arc<Models>, at: usize, device: usize) {
        match caught(|| self.load_another(&self.all[at], device)) {
            Ok(ready) => {
                if self.joins(at, device, &ready) {
                    ready.run();
                }
                self.worker_ended(at, device);
            }
            Err(error) => self.fail_replica(at, device, error),
        }
    }
    /// Loads another replica of a model that is loaded, with the same context length.
    fn load_another(&self, model: &Arc<ModelEntry>, device: usize) -> Result<Ready, LoadError> {
        let served = model.served()?;
        let begun = Instant::now();
        let engine = model.source.load(device, served.context, &|_| ())?;
        if engine.context() < served.context {
            let message = format!(
                "it has memory for a context of {} tokens, and the others have {}",
                engine.context(),
                served.context
            );
            return Err(LoadError {
                message,
                too_large: true,
                ..LoadError::default()
            });
        }
        let drafts = model.source.drafts(device, &engine)?;
        Ok(self.ready((model, device), (engine, drafts), served, begun))
    }
    /// Creates the worker of a replica's engine.
    fn ready(
        &self,
        (model, replica): (&Arc<ModelEntry>, usize),
        (engine, drafts): (Engine, DraftSources),
        served: Arc<Served>,
        begun: Instant,
    ) -> Ready {
        let bytes = engine.memory_bytes();
        let keep = self
            .shared
            .keep
            .unwrap_or_else(|| self.prefix_cache_bytes(&engine));
        tracing::info!(
            model = model.name(),
            replica,
            bytes,
            load_ms = begun.elapsed().as_millis() as u64,
            "loaded"
        );
        let with = (keep / model.replicas.len(), drafts);
        let devices = self.shared.devices.clone();
        Ready {
            worker: BatchWorker::new(engine, with, (model.clone(), replica), devices),
            served,
            bytes,
        }
    }
    fn load(&self, model: &Arc<ModelEntry>, device: usize) -> Result<Ready, LoadError> {
        let begun = Instant::now();
        let mut served = model.served()?;
        let told = Cell::new(None::<(&str, Instant)>);
        let engine = model.source.load(device, served.context, &|progress| {
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
        let drafts = model.source.drafts(device, &engine)?;
        Ok(self.ready((model, device), (engine, drafts), served, begun))
    }
    fn prefix_cache_bytes(&self, engine: &Engine) -> usize {
        let whole = engine.cache().sequence_bytes(engine.context());
        let share = gristmill_runtime::memory::available().unwrap_or(u64::MAX) / CACHE_MEMORY_SHARE;
        (whole * CACHED_CONVERSATIONS).min(usize::try_from(share).unwrap_or(usize::MAX))
    }
    /// Records that the first replica of a model is loaded, and that the others are being loaded;
    /// returns their devices, or `None` if the pool was closed meanwhile.
    fn keeps_resident(
        self: &Arc<Models>,
        at: usize,
        device: usize,
        ready: &Ready,
    ) -> Option<Vec<usize>> {
        let model = &self.all[at];
        let mut state = self.lock();
        state.phases[at] = Phase::Loaded(ready.bytes);
        model.queue.stay();
        model.metrics.loads.inc();
        model.metrics.loaded.set(1);
        self.serves(&mut state, (at, device), ready);
        self.touch(model);
        let usable = self.shared.devices.usable();
        let others: Vec<usize> = usable.filter(|&other| other != device).collect();
        let others = Some(others).filter(|_| !state.closed);
        for &other in others.iter().flatten() {
            state.joining[at] += 1;
            model.replicas[other].set_status(ReplicaStatus::Loading);
        }
        self.schedule_loads(&mut state);
        self.changed.notify_all();
        others
    }
    /// Records that another replica is loaded; returns false if the model leaves meanwhile.
    fn joins(&self, at: usize, device: usize, ready: &Ready) -> bool {
        let mut state = self.lock();
        state.joining[at] -= 1;
        self.serves(&mut state, (at, device), ready)
    }
    /// Records that a replica serves requests from now on; returns false if the model leaves.
    fn serves(&self, state: &mut State, (at, device): (usize, usize), ready: &Ready) -> bool {
        let model = &self.all[at];
        state.serving[at] += 1;
        let replica = &model.replicas[device];
        let bytes = i64::try_from(ready.bytes).unwrap_or(i64::MAX);
        replica.metrics.bytes.set(bytes);
        replica.metrics.up.set(1);
        replica.set_status(ReplicaStatus::Loaded);
        model.queue.join(device, ready.worker.slots())
    }
    /// Records that a replica has freed its memory, and the model with its last one.
    fn worker_ended(self: &Arc<Models>, at: usize, device: usize) {
        let mut state = self.lock();
        self.set_left(at, device, ReplicaStatus::Unloaded);
        state.serving[at] -= 1;
        self.unload_with_last(&mut state, at);
    }
    /// Records that a replica cannot be loaded; the others serve without it.
    fn fail_replica(self: &Arc<Models>, at: usize, device: usize, error: LoadError) {
        let (model, why) = (&self.all[at], error.text());
        tracing::warn!(
            model = model.name(),
            device,
            why,
            "a replica cannot be loaded"
        );
        model.metrics.load_failures.inc();
        if error.lost {
            self.shared.devices.lose(device, error.message);
        }
        let mut state = self.lock();
        self.set_left(at, device, ReplicaStatus::Failed(why));
        state.joining[at] -= 1;
        self.unload_with_last(&mut state, at);
    }
    /// Sets the state of a replica that has left.
    fn set_left(&self, at: usize, device: usize, status: ReplicaStatus) {
        let (model, loss) = (&self.all[at], self.shared.devices.loss(device));
        model.queue.retire(device);
        model.replicas[device].metrics.clear();
        let lost = loss.map(|why| ReplicaStatus::Lost(why.to_owned()));
        model.replicas[device].set_status(lost.unwrap_or(status));
    }
    /// Records that a model has freed its memory, if no replica is left.
    fn unload_with_last(self: &Arc<Models>, state: &mut State, at: usize) {
        if state.serving[at] + state.joining[at] > 0 {
            self.changed.notify_all();
            return;
        }
        let model = &self.all[at];
        tracing::info!(model = model.name(), "has left");
        state.phases[at] = Phase::Away;
        model.metrics.loaded.set(0);
        if !state.closed && model.queue.len() > 0 {
            self.queue_load(state, at);
        }
        self.schedule_loads(state);
        self.changed.notify_all();
    }
    /// Records a failed load and reports it to the queued requests. If the device is lost and
    /// others are left, the model is loaded there.
    fn fail(self: &Arc<Models>, state: &mut State, (at, device): (usize, usize), error: LoadError) {
        let model = &self.all[at];
        model.loading.clear();
        model.metrics.load_failures.inc();
        tracing::info!(
            model = model.name(),
            why = error.message,
            "cannot be loaded"
        );
        if error.lost {
            self.shared.devices.lose(device, error.message.clone());
            self.set_left(at, device, ReplicaStatus::Unloaded);
            if self.shared.devices.failure().is_none() {
                return self.start_load(state, at);
            }
        }
        model.replicas[device].set_status(ReplicaStatus::Failed(error.text()));
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
        while !state.closed || state.serving.iter().any(|&replicas| replicas > 0) {
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

/// Loads a replica; a panic is a failure.
fn caught(load: impl FnOnce() -> Result<Ready, LoadError>) -> Result<Ready, LoadError> {
    catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|_| {
        let message = "loading it failed; the server's log says why".into();
        Err(LoadError {
            message,
            ..LoadError::default()
        })
    })
}

impl Ready {
    /// Serves requests until the replica leaves.
    fn run(self) {
        let Ready { worker, served, .. } = self;
        // The worker's memory is freed even if it panics.
        let _ = catch_unwind(AssertUnwindSafe(|| worker.run()));
        // Requests share the tokenizer and template until here.
        drop(served);
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
