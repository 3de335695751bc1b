//! What the batching worker needs besides its loop.

use crate::core::event::Usage;
use crate::core::job::Job;
use crate::core::queue::{Queue, Waiting};
use gristmill_llm::session;
use std::ops::ControlFlow;
use std::time::Duration;

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
