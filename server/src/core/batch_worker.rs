//! The thread of a model's replica: continuous batching of the sequences of its running requests.
//!
//! A step has a token of every decoding sequence and a prefill chunk of one prompt (a mixed batch).
//! A request leaves the fair queue as soon as a sequence has room; its other choices start once its
//! prompt has been prefilled and share the prompt's pages. A request of several prompts is queued
//! again after each. Cancelled requests are removed between steps.

use crate::core::engine_health::DeviceHealth;
use crate::core::engine_request::{EngineRequest, GenerationParams, Task};
use crate::core::error::RequestError;
use crate::core::event::{Chosen, Event, Finish, Usage};
use crate::core::metrics::ReplicaMetrics;
use crate::core::models::entry::ModelEntry;
use crate::core::probabilities::probabilities;
use crate::core::published_load::PublishedLoad;
use crate::core::queue::{Queue, Waiting};
use crate::core::sequence::{Sequence, failed, failed_step};
use gristmill_llm::arch::Logits;
use gristmill_llm::engine::{Engine, TokenRun};
use gristmill_llm::sched::{
    self, Batcher, DraftSources, FailedStep, PrefixEvent, ReadySequence, SequenceId,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tokens of a prefill chunk; prompts of at most this length report no progress.
const PREFILL_CHUNK: usize = 512;

/// Maximum bytes of logits on the host at a time, while a prompt is scored.
const MAX_LOGIT_BYTES: usize = 16 << 20;

/// Number of a running request, in order of admission.
pub(super) type RequestNumber = u64;

/// Runs a part of a prompt.
pub(super) type RunPart<'r> = dyn FnMut(&mut Engine, TokenRun) -> Result<(), sched::Error> + 'r;

/// Serves the requests of one replica of a model with continuous batching.
pub struct BatchWorker {
    pub(super) batcher: Batcher,
    pub(super) model: Arc<ModelEntry>,
    /// Number of the replica and of its device.
    replica: usize,
    devices: Arc<DeviceHealth>,
    pub(super) requests: BTreeMap<RequestNumber, RunningRequest>,
    /// Running sequences, each with the request that it belongs to.
    sequences: HashMap<SequenceId, (RequestNumber, Sequence)>,
    /// Texts whose last hidden row is pooled, each with the request that it belongs to.
    pub(super) pooled: HashMap<SequenceId, RequestNumber>,
    next_request: RequestNumber,
    published: PublishedLoad,
}

/// A request that left the queue, with the sequences of its current prompt.
pub(super) struct RunningRequest {
    pub(super) request: EngineRequest,
    /// `None` for pooling, which generates nothing.
    params: Option<Arc<GenerationParams>>,
    /// Tokens and times of this prompt and its choices.
    usage: Usage,
    begun: Instant,
    /// Whether the prompt has been prefilled.
    prefilled: bool,
    /// Prefilled tokens of the prompt in the last progress report.
    reported: usize,
    sequences: Vec<SequenceId>,
}

/// Why a request ended before it was complete.
pub(super) enum Aborted {
    /// The client disconnected, or the server is closing.
    Cancelled,
    Failed(sched::Error),
}

impl From<sched::Error> for Aborted {
    fn from(error: sched::Error) -> Aborted {
        Aborted::Failed(error)
    }
}

/// Result of starting a request.
pub(super) enum Started {
    /// The request runs, with the first sequence of its prompt.
    Sequence(Arc<GenerationParams>, SequenceId, Box<Sequence>),
    /// The request runs, with its prompt as a sequence whose last hidden row is pooled.
    Pooled(SequenceId),
    /// The prompt needs no decode steps and is done.
    Done(Usage),
    /// So many prompts are done, which were texts of an encoder.
    Encoded(Usage, usize),
}

/// Breaks once a request is cancelled or its queue is closed.
fn poll_cancelled(request: &EngineRequest, queue: &Queue<EngineRequest>) -> ControlFlow<()> {
    match request.is_abandoned() || queue.is_closed() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
}

/// Logs the usage of a finished request.
fn log_finished(request: &EngineRequest) {
    let Usage {
        prompt,
        cached,
        answer,
        prompt_time,
        answer_time,
        ..
    } = request.usage;
    let milliseconds = |time: Duration| time.as_millis() as u64;
    tracing::info!(
        client = %request.client,
        prompt,
        cached,
        answer,
        prompt_ms = milliseconds(prompt_time),
        answer_ms = milliseconds(answer_time),
        total_ms = milliseconds(request.received.elapsed()),
        "answered"
    );
}

impl Drop for BatchWorker {
    /// Reports that the replica's KV cache is gone.
    fn drop(&mut self) {
        if let Some(log) = &self.model.kv_events {
            log.apply(self.replica, &[PrefixEvent::Cleared]);
        }
    }
}

impl BatchWorker {
    /// Creates the worker of a replica's loaded engine; at most `keep` bytes of host memory hold
    /// pages that are swapped out, and drafts come from these sources.
    pub fn new(
        engine: Engine,
        (keep, drafts): (usize, DraftSources),
        (model, replica): (Arc<ModelEntry>, usize),
        devices: Arc<DeviceHealth>,
    ) -> BatchWorker {
        let batcher = Batcher::new(engine);
        let batcher = if batcher.engine().cache_is_on_host() {
            batcher
        } else {
            batcher.with_host_cache(keep)
        };
        let mut batcher = batcher.with_speculation(drafts);
        if let Err(error) = batcher.measure_step_times(&|_, _| ()) {
            // The first request meets it too, and reports it.
            tracing::warn!(model = model.name(), %error, "the times of steps are not measured");
        }
        let batcher = match model.replicas.len() {
            1 if model.kv_events.is_none() => batcher,
            _ => batcher.with_prefix_events(),
        };
        let (sequences, pages) = (batcher.engine().max_sequences(), batcher.load().total_pages);
        tracing::info!(
            model = model.name(),
            replica,
            sequences,
            pages,
            "serves with continuous batching"
        );
        BatchWorker {
            batcher,
            model,
            replica,
            devices,
            requests: BTreeMap::new(),
            sequences: HashMap::new(),
            pooled: HashMap::new(),
            next_request: 0,
            published: PublishedLoad::default(),
        }
    }
    /// Returns the number of sequences that may run at a time.
    pub fn slots(&self) -> usize {
        self.batcher.engine().max_sequences()
    }
    /// Serves requests until the queue is closed, the model is evicted, its keep-alive ends, or the
    /// device is lost while others are left.
    pub fn run(mut self) {
        while self.devices.loss(self.replica).is_none() {
            if self.requests.is_empty() {
                self.publish();
                let Some(request) = self.model.queue.next(self.replica) else {
                    return;
                };
                self.admit(request);
            }
            while self.batcher.scheduler().has_room()
                && let Some(request) = self.model.queue.try_next(self.replica)
            {
                self.admit(request);
            }
            self.drop_cancelled();
            if !self.requests.is_empty() {
                self.step();
                if self.published.is_due() {
                    self.publish();
                }
            }
            self.report();
        }
        self.leave();
    }
    /// Reports to routers which prefixes the replica has, and to the queue also how much work.
    fn report(&mut self) {
        let events = self.batcher.take_prefix_events();
        if let Some(log) = &self.model.kv_events {
            log.apply(self.replica, &events);
        }
        if self.model.replicas.len() == 1 {
            return;
        }
        let pending = self.requests.values().map(|one| self.pending(one)).sum();
        let room = match self.batcher.scheduler().has_room() {
            true => self.slots().saturating_sub(self.sequences.len()),
            false => 0,
        };
        self.model.queue.report(self.replica, |state| {
            events.iter().for_each(|of| state.prefixes.apply(of));
            (state.pending, state.room) = (pending, room);
        });
    }
    /// Returns the tokens that a request is expected to compute yet.
    fn pending(&self, running: &RunningRequest) -> usize {
        let ids = running.sequences.iter();
        let params = running.params.as_ref();
        if running.prefilled {
            let sequences = ids.filter_map(|id| self.sequences.get(id));
            let expected = |of: &Sequence| params.map_or(0, |p| p.expected_tokens(of.tokens()));
            return sequences.map(|(_, sequence)| expected(sequence)).sum();
        }
        let scheduler = self.batcher.scheduler();
        let computed = ids.map(|&id| scheduler.computed(id)).max().unwrap_or(0);
        running.request.prompt().len().saturating_sub(computed)
            + params.map_or(0, |params| params.choices * params.expected_tokens(0))
    }
    /// Ends the running requests: the device is lost, and the other replicas go on.
    fn leave(&mut self) {
        self.model.queue.retire(self.replica);
        let loss = self.devices.loss(self.replica);
        let why = loss.or(self.devices.failure()).unwrap_or_default();
        let error = RequestError::internal(format!("{why}; send the request again"));
        let all: Vec<RequestNumber> = self.requests.keys().copied().collect();
        for number in all {
            if let Some(request) = self.remove_request(number, |_, _| ()) {
                self.model.metrics.failed.inc();
                self.end(&request, Event::Failed(error.clone()));
            }
        }
    }
    /// Returns the metrics of the replica.
    pub(super) fn metrics(&self) -> &ReplicaMetrics {
        &self.model.replicas[self.replica].metrics
    }
    /// Publishes the load to `/metrics` and `/v1/loads`.
    fn publish(&mut self) {
        self.metrics().running.set(self.requests.len() as i64);
        self.published
            .publish(&self.batcher, &self.model, self.replica);
    }
    /// Starts a request that left the queue.
    fn admit(&mut self, request: EngineRequest) {
        if self.devices.loss(self.replica).is_some() {
            // Another model's replica has lost the device meanwhile.
            self.model.queue.requeue(request);
            return;
        }
        if let Some(stay) = request.stay {
            self.model.queue.set_keep_alive(stay);
        }
        if let Some(why) = self.devices.failure() {
            let _ = request
                .events
                .send(Event::Failed(RequestError::failed(why)));
            return;
        }
        self.metrics().requests.inc();
        self.metrics().running.set(self.requests.len() as i64 + 1);
        if request.answered == 0 {
            self.model
                .metrics
                .queue_time
                .observe(request.received.elapsed().as_secs_f64());
        }
        // A panic of one request must not end the others.
        let started = catch_unwind(AssertUnwindSafe(|| self.start(&request)));
        match started {
            Ok(Ok(Started::Sequence(params, id, sequence))) => {
                let number = self.add_running(request, Some(params), id);
                self.sequences.insert(id, (number, *sequence));
            }
            Ok(Ok(Started::Pooled(id))) => {
                let number = self.add_running(request, None, id);
                self.pooled.insert(id, number);
            }
            Ok(Ok(Started::Done(usage))) => {
                let mut request = request;
                request.usage.add(&usage);
                self.prompt_finished(request);
            }
            Ok(Ok(Started::Encoded(usage, prompts))) => {
                let mut request = request;
                request.usage.add(&usage);
                // The last one is counted below.
                request.answered += prompts.saturating_sub(1);
                self.prompt_finished(request);
            }
            Ok(Err(aborted)) => self.fail(&request, aborted),
            Err(_) => self.fail_by_panic(&request),
        }
    }
    /// Adds a request that runs with this first sequence of its current prompt.
    fn add_running(
        &mut self,
        request: EngineRequest,
        params: Option<Arc<GenerationParams>>,
        id: SequenceId,
    ) -> RequestNumber {
        let number = self.next_request;
        self.next_request += 1;
        let running = RunningRequest {
            usage: Usage {
                prompt: request.prompt().len(),
                ..Usage::default()
            },
            request,
            params,
            begun: Instant::now(),
            prefilled: false,
            reported: 0,
            sequences: vec![id],
        };
        self.requests.insert(number, running);
        number
    }
    /// Runs a request that needs no decode steps, or adds the first sequence of the current prompt.
    fn start(&mut self, request: &EngineRequest) -> Result<Started, Aborted> {
        match &request.task {
            Task::Generate(params) => {
                if let Some(top) = params.prompt_logprobs {
                    let usage = self.score(request, params, top)?;
                    // A prompt that is only scored has no sequence.
                    if params.limit == 0 {
                        return self.finish_empty(request, params, usage);
                    }
                }
                let (id, sequence) = self.add_sequence(request, params, 0)?;
                Ok(Started::Sequence(params.clone(), id, Box::new(sequence)))
            }
            Task::Pool => self.start_pooled(request),
            Task::Load => Ok(Started::Done(Usage::default())),
        }
    }
    /// Finishes all choices of a prompt with a token limit of 0.
    fn finish_empty(
        &self,
        request: &EngineRequest,
        params: &Arc<GenerationParams>,
        usage: Usage,
    ) -> Result<Started, Aborted> {
        let _ = request.events.send(Event::Prompt(usage));
        for nth in 0..params.choices {
            Sequence::new(request, params, nth)?.end(Finish::Length);
        }
        Ok(Started::Done(usage))
    }
    /// Adds the sequence of choice `nth` of the current prompt.
    fn add_sequence(
        &mut self,
        request: &EngineRequest,
        params: &Arc<GenerationParams>,
        nth: usize,
    ) -> Result<(SequenceId, Sequence), Aborted> {
        let sequence = Sequence::new(request, params, nth)?;
        Ok((
            self.batcher.add(request.prompt(), request.options)?,
            sequence,
        ))
    }
    /// Ends the requests that were cancelled.
    fn drop_cancelled(&mut self) {
        let queue = &self.model.queue;
        let cancelled = self
            .requests
            .iter()
            .filter(|(_, running)| poll_cancelled(&running.request, queue).is_break());
        let cancelled: Vec<RequestNumber> = cancelled.map(|(&number, _)| number).collect();
        cancelled
            .into_iter()
            .for_each(|number| self.abort(number, Aborted::Cancelled));
    }
    /// Removes a request and counts the tokens of its sequences; `end` removes them from the
    /// scheduler.
    fn remove_request(
        &mut self,
        number: RequestNumber,
        end: impl Fn(&mut Batcher, SequenceId),
    ) -> Option<EngineRequest> {
        let RunningRequest {
            request, sequences, ..
        } = self.requests.remove(&number)?;
        for id in sequences {
            end(&mut self.batcher, id);
            self.pooled.remove(&id);
            if let Some((_, sequence)) = self.sequences.remove(&id) {
                self.count(&sequence);
            }
        }
        Some(request)
    }
    /// Ends a running request before it is complete.
    fn abort(&mut self, number: RequestNumber, why: Aborted) {
        if let Some(request) = self.remove_request(number, Batcher::remove) {
            self.fail(&request, why);
        }
    }
    /// Counts the tokens of a sequence that ends.
    fn count(&self, sequence: &Sequence) {
        let (tokens, metrics) = (sequence.tokens(), &self.model.metrics);
        metrics.answer_tokens.inc_by(tokens as u64);
        self.metrics().answer_tokens.inc_by(tokens as u64);
        if let Some(first) = sequence.first_token.filter(|_| tokens > 1) {
            metrics
                .token_time
                .observe(first.elapsed().as_secs_f64() / (tokens - 1) as f64);
        }
    }
    /// Reports a request that is not complete to its client.
    fn fail(&mut self, request: &EngineRequest, why: Aborted) {
        let error = match why {
            Aborted::Cancelled => {
                self.model.metrics.abandoned.inc();
                RequestError::closing()
            }
            Aborted::Failed(error) => {
                self.model.metrics.failed.inc();
                if error.is_lost() {
                    // No later request of this engine can succeed, so `/health` reports the failure
                    // from now on.
                    self.devices.lose(self.replica, error.to_string());
                }
                failed(error)
            }
        };
        self.end(request, Event::Failed(error));
    }
    fn fail_by_panic(&mut self, request: &EngineRequest) {
        self.model.metrics.failed.inc();
        let error = RequestError::internal("the answer failed; the server's log says why");
        self.end(request, Event::Failed(error));
    }
    /// Publishes the load without a request, and sends its last event.
    fn end(&mut self, request: &EngineRequest, last: Event) {
        self.publish();
        self.model
            .metrics
            .request_time
            .observe(request.received.elapsed().as_secs_f64());
        let _ = request.events.send(last);
    }
    /// Queues a request again for its next prompt, or finishes it.
    fn prompt_finished(&mut self, mut request: EngineRequest) {
        request.answered += 1;
        if request.answered < request.prompts.len() {
            if self.model.replicas.len() > 1 {
                request.hash_prefix();
            }
            self.model.queue.requeue(request);
            return;
        }
        log_finished(&request);
        self.end(&request, Event::End(request.usage));
    }
    /// Runs a step, and chooses the next token of every sequence that has logits.
    fn step(&mut self) {
        // Text may not be held back for as long as a prefill chunk takes.
        if self.requests.values().any(|running| !running.prefilled) {
            self.sequences
                .values_mut()
                .for_each(|(_, sequence)| sequence.flush());
        }
        let BatchWorker {
            batcher, sequences, ..
        } = self;
        let vocabulary = batcher.engine().model().vocabulary();
        let sequences = RefCell::new(sequences);
        let mut asking = |id, history: &[u32]| {
            let mut sequences = sequences.borrow_mut();
            let (_, sequence) = sequences.get_mut(&id)?;
            // A panic recurs in `take`, which reports it.
            catch_unwind(AssertUnwindSafe(|| {
                sequence.row_params(history, vocabulary)
            }))
            .ok()
            .flatten()
        };
        let mut drawing = |id| sequences.borrow().get(&id)?.1.sampling();
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            batcher.step_with(&mut asking, &mut drawing)
        }));
        match stepped {
            Ok(Ok(stepped)) => {
                self.report_prefill();
                stepped.into_iter().for_each(|of| self.choose(of));
            }
            Ok(Err(FailedStep { error, sequences })) => self.step_failed(&error, &sequences),
            Err(_) => {
                self.batcher.reset();
                let all: Vec<RequestNumber> = self.requests.keys().copied().collect();
                let requests: Vec<_> = all
                    .into_iter()
                    .filter_map(|number| self.remove_request(number, |_, _| ()))
                    .collect();
                requests
                    .iter()
                    .for_each(|request| self.fail_by_panic(request));
            }
        }
    }
    /// Ends the requests that had sequences in a failed step.
    fn step_failed(&mut self, error: &sched::Error, sequences: &[SequenceId]) {
        if error.is_lost() {
            self.devices.lose(self.replica, error.to_string());
        }
        let request_of = |id: &SequenceId| self.request_of(*id);
        let hit: BTreeSet<RequestNumber> = sequences.iter().filter_map(request_of).collect();
        for number in hit {
            let Some(request) = self.remove_request(number, Batcher::remove) else {
                continue;
            };
            self.model.metrics.failed.inc();
            self.end(&request, Event::Failed(failed_step(error)));
        }
    }
    /// Reports the prefill of long prompts to their clients.
    fn report_prefill(&mut self) {
        let scheduler = self.batcher.scheduler();
        for running in self
            .requests
            .values_mut()
            .filter(|running| !running.prefilled)
        {
            let Some(&first) = running.sequences.first() else {
                continue;
            };
            let found = scheduler.reused_tokens(first).unwrap_or(0);
            let done = scheduler.computed(first).saturating_sub(found);
            let total = running.request.prompt().len() - found;
            if done > running.reported && done < total && total > PREFILL_CHUNK {
                running.reported = done;
                let _ = running.request.events.send(Event::Reading(done, total));
            }
        }
    }
    /// Returns the request that a sequence belongs to.
    fn request_of(&self, id: SequenceId) -> Option<RequestNumber> {
        let generated = self.sequences.get(&id).map(|(number, _)| *number);
        generated.or_else(|| self.pooled.get(&id).copied())
    }
    /// Chooses the next token of a sequence.
    fn choose(&mut self, of: ReadySequence) {
        let Some(number) = self.request_of(of.sequence) else {
            return;
        };
        if let Err(aborted) = self.prefilled(number) {
            return self.abort(number, aborted);
        }
        match catch_unwind(AssertUnwindSafe(|| self.take(of))) {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => self.sequence_finished(of.sequence, number),
            Ok(Err(error)) => {
                self.batcher.discard(of.sequence);
                self.abort(number, Aborted::Failed(error));
            }
            Err(_) => {
                if let Some(request) = self.remove_request(number, Batcher::discard) {
                    self.fail_by_panic(&request);
                }
            }
        }
    }
    /// Reports the usage of a prompt with its first logits and adds the sequences of its other
    /// choices.
    fn prefilled(&mut self, number: RequestNumber) -> Result<(), Aborted> {
        let Some(running) = self
            .requests
            .get_mut(&number)
            .filter(|running| !running.prefilled)
        else {
            return Ok(());
        };
        let RunningRequest {
            request,
            params,
            usage,
            begun,
            prefilled,
            sequences,
            ..
        } = running;
        *prefilled = true;
        let found = sequences
            .first()
            .and_then(|&first| self.batcher.scheduler().reused_tokens(first))
            .unwrap_or(0);
        // A prompt that was scored has been run whole.
        let is_scored = params
            .as_ref()
            .is_some_and(|of| of.prompt_logprobs.is_some());
        let cached = if is_scored { 0 } else { found };
        usage.cached = cached;
        usage.prompt_time = begun.elapsed();
        let metrics = &self.model.metrics;
        metrics.prompt_tokens.inc_by((usage.prompt - cached) as u64);
        metrics.cached_tokens.inc_by(cached as u64);
        let own = &self.model.replicas[self.replica].metrics;
        own.prompt_tokens.inc_by((usage.prompt - cached) as u64);
        own.cached_tokens.inc_by(cached as u64);
        let _ = request.events.send(Event::Prompt(*usage));
        *begun = Instant::now();
        let Some(params) = params else {
            return Ok(());
        };
        for nth in 1..params.choices {
            let sequence = Sequence::new(request, params, nth)?;
            let id = self.batcher.add(request.prompt(), request.options)?;
            sequences.push(id);
            self.sequences.insert(id, (number, sequence));
        }
        Ok(())
    }
    /// Chooses the next token of a sequence; returns whether it continues.
    fn take(&mut self, of: ReadySequence) -> Result<bool, sched::Error> {
        if self.is_pooled(of.sequence) {
            return self.take_pooled(of).map(|()| false);
        }
        let Some((number, sequence)) = self.sequences.get_mut(&of.sequence) else {
            return Ok(false);
        };
        let (batcher, rows, keeps) = (
            &mut self.batcher,
            &self.model.metrics.logit_rows,
            sequence.reports_logprobs(),
        );
        let mut logits = Vec::new();
        let step = batcher.choose(of, sequence.generation(), &mut |row| {
            rows.inc();
            if keeps {
                logits.extend_from_slice(row);
            }
        })?;
        let finish = sequence.take(step, &logits);
        if sequence.first_token.is_none() && sequence.tokens() > 0 {
            sequence.first_token = Some(Instant::now());
            // The client waits for its first choice; the others start later.
            if let Some(running) = self
                .requests
                .get(number)
                .filter(|running| running.request.answered == 0)
                && sequence.nth == 0
            {
                let time = running.request.received.elapsed();
                self.model
                    .metrics
                    .first_token_time
                    .observe(time.as_secs_f64());
            }
        }
        match (finish, sequence.last_token()) {
            (None, Some(token)) => {
                self.batcher.push(of.sequence, token);
                Ok(true)
            }
            _ => Ok(false),
        }
    }
    /// Removes a finished sequence, and its request with its last one.
    fn sequence_finished(&mut self, id: SequenceId, number: RequestNumber) {
        let [drafted, kept] = self.batcher.drafts_of(id);
        self.batcher.remove(id);
        self.pooled.remove(&id);
        let sequence = self.sequences.remove(&id);
        let tokens = sequence.map_or(0, |(_, sequence)| {
            self.count(&sequence);
            sequence.tokens()
        });
        let Some(running) = self.requests.get_mut(&number) else {
            return;
        };
        running.sequences.retain(|&other| other != id);
        running.usage.answer += tokens;
        running.usage.drafted += drafted;
        running.usage.kept_drafts += kept;
        // Choices run concurrently: their time is that of the last.
        running.usage.answer_time = running.usage.answer_time.max(running.begun.elapsed());
        if running.sequences.is_empty()
            && let Some(RunningRequest {
                mut request, usage, ..
            }) = self.requests.remove(&number)
        {
            request.usage.add(&usage);
            self.prompt_finished(request);
        }
    }
    /// Runs a whole prompt and reports the probabilities of its tokens.
    fn score(
        &mut self,
        request: &EngineRequest,
        params: &GenerationParams,
        top: usize,
    ) -> Result<Usage, Aborted> {
        let prompt = request.prompt();
        let vocabulary = self.batcher.engine().model().vocabulary();
        let most = (MAX_LOGIT_BYTES / (size_of::<f32>() * vocabulary))
            .clamp(1, self.batcher.engine().chunk());
        let mut tokens = vec![Chosen {
            token: prompt[0],
            logprob: None,
            top: Vec::new(),
        }];
        let usage = self.prefill_uncached(request, most, &mut |engine, run| {
            let rows = engine.logits(run, Logits::All)?;
            for (row, &token) in rows.chunks(vocabulary).zip(&prompt[run.position + 1..]) {
                tokens.push(probabilities(row, token, top));
            }
            Ok(())
        })?;
        for nth in 0..params.choices {
            let choice = request.answered * params.choices + nth;
            let _ = request.events.send(Event::PromptLogprobs {
                choice,
                tokens: tokens.clone(),
            });
        }
        Ok(usage)
    }
    /// Runs a prompt in pages of its own while no other step runs; running sequences get pages
    /// first.
    pub(super) fn prefill_uncached(
        &mut self,
        request: &EngineRequest,
        most: usize,
        run: &mut RunPart,
    ) -> Result<Usage, Aborted> {
        let (prompt, model) = (request.prompt(), self.model.clone());
        let adapters = request.options.adapters;
        loop {
            let begun = Instant::now();
            let done =
                self.batcher
                    .run_uncached((prompt, adapters), most, &mut |engine, part| {
                        run(engine, part)?;
                        Ok(poll_cancelled(request, &model.queue))
                    })?;
            match done {
                Some(ControlFlow::Continue(())) => {
                    return Ok(Usage {
                        prompt: prompt.len(),
                        prompt_time: begun.elapsed(),
                        ..Usage::default()
                    });
                }
                Some(ControlFlow::Break(())) => return Err(Aborted::Cancelled),
                None => {
                    self.drop_cancelled();
                    self.step();
                }
            }
            if poll_cancelled(request, &model.queue).is_break() {
                return Err(Aborted::Cancelled);
            }
        }
    }
}
