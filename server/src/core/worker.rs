//! The thread that owns an engine: many answers at a time, where its cache is a pool that sequences share, else one.

use crate::core::alone::Alone;
use crate::core::condition::Condition;
use crate::core::event::Usage;
use crate::core::job::Job;
use crate::core::models::entry::Model;
use crate::core::queue::{Queue, Waiting};
use crate::core::together::Together;
use gristmill_llm::engine::Engine;
use gristmill_llm::sched::Batcher;
use gristmill_llm::session::{self, Session};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// The thread's work.
pub enum Worker {
    /// One answer after the other.
    Alone(Alone),
    /// Many in one step.
    Together(Together),
}

impl Worker {
    /// With an engine; one that answers one by one keeps at most so many bytes of earlier prompts.
    pub fn new(engine: Engine, keep: usize, model: Arc<Model>, condition: Condition) -> Worker {
        match Batcher::new(engine) {
            Ok(batcher) => {
                let (sequences, pages) = (batcher.engine().most_sequences(), batcher.load().total_pages);
                tracing::info!(model = model.name(), sequences, pages, "answers several requests together");
                Worker::Together(Together::new(batcher, model, condition))
            }
            Err(engine) => {
                let why = match engine.model().batches() {
                    true => "its cache is one sequence's",
                    false => "its layers keep states of one sequence",
                };
                tracing::info!(model = model.name(), why, "answers one request after the other");
                Worker::Alone(Alone { session: Session::with_prefixes(*engine, keep), model, condition })
            }
        }
    }
    /// Works until the queue is closed, or the model is told to leave.
    pub fn run(self) {
        match self {
            Worker::Alone(worker) => worker.run(),
            Worker::Together(worker) => worker.run(),
        }
    }
}

/// Tokens of a prompt that is run in one piece, but for its end: of no more than these there is no progress to tell.
pub(super) const LONG: usize = 512;

/// Why a request came to no end of its own.
pub(super) enum Broken {
    /// Nobody waits for the answer, or the server is closing.
    Off,
    Failed(session::Error),
}

impl From<session::Error> for Broken {
    fn from(error: session::Error) -> Broken {
        Broken::Failed(error)
    }
}

/// Goes on while somebody waits for it.
pub(super) fn flow(job: &Job, queue: &Queue<Job>) -> ControlFlow<()> {
    match job.is_abandoned() || queue.is_closed() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
}

/// Writes what a request took to the log.
pub(super) fn note(job: &Job) {
    let Usage { prompt, cached, answer, prompt_time, answer_time } = job.usage;
    let milliseconds = |time: Duration| time.as_millis() as u64;
    tracing::info!(
        client = %job.client,
        prompt,
        cached,
        answer,
        prompt_ms = milliseconds(prompt_time),
        answer_ms = milliseconds(answer_time),
        total_ms = milliseconds(job.asked.elapsed()),
        "answered"
    );
}

/// The mean of hidden rows, each of length 1, and itself of length 1: a few entries of such rows are a thousand times the others.
pub(super) struct Mean(Vec<f64>);

impl Mean {
    /// Of no rows yet.
    pub fn new(width: usize) -> Mean {
        Mean(vec![0.0; width])
    }
    /// With these rows, one after the other.
    pub fn add(&mut self, rows: &[f32]) {
        for row in rows.chunks(self.0.len()) {
            let scale = 1.0 / length(row.iter().map(|&x| f64::from(x)));
            self.0.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x) * scale);
        }
    }
    /// The vector.
    pub fn values(self) -> Vec<f32> {
        let scale = 1.0 / length(self.0.iter().copied());
        self.0.into_iter().map(|x| (x * scale) as f32).collect()
    }
}

/// The length of a vector, of one that is not all zeros.
fn length(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|x| x * x).sum::<f64>().sqrt().max(f64::MIN_POSITIVE)
}
