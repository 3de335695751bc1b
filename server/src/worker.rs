//! The thread that owns the engine: it takes a request, makes its answers, takes the next.
//!
//! One answer at a time. Running several in one step is a matter of this file: [`Generation`] is one answer whose every token is a call
//! of its own, and [`Queue`] hands requests out in a fair order.

use crate::condition::Condition;
use crate::error::ApiError;
use crate::event::{Event, Usage};
use crate::generation::{Generation, failed};
use crate::job::Job;
use crate::metrics::Metrics;
use crate::model::Served;
use crate::queue::{Queue, Waiting};
use gristmill_llm::session::{self, Session};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The thread's work.
pub struct Worker {
    /// The model and what its cache holds.
    pub session: Session,
    /// The same, as text.
    pub served: Arc<Served>,
    /// What is to be done.
    pub queue: Arc<Queue<Job>>,
    /// What was done.
    pub metrics: Arc<Metrics>,
    /// Whether the engine can answer at all.
    pub condition: Condition,
}

/// Why a request came to no end of its own.
enum Broken {
    /// Nobody waits for the answer, or the server is closing.
    Off,
    Failed(session::Error),
}

impl From<session::Error> for Broken {
    fn from(error: session::Error) -> Broken {
        Broken::Failed(error)
    }
}

impl Worker {
    /// Works until the queue is closed.
    pub fn run(mut self) {
        while let Some(job) = self.queue.next() {
            if let Some(why) = self.condition.failure() {
                let _ = job.events.send(Event::Failed(ApiError::failed(why)));
                continue;
            }
            self.metrics.running.set(1);
            self.metrics.queue_time.observe(job.asked.elapsed().as_secs_f64());
            // A fault of ours in one answer must not end all others.
            let outcome = catch_unwind(AssertUnwindSafe(|| self.answer(&job)));
            match outcome {
                Ok(Ok(usage)) => {
                    let _ = job.events.send(Event::End(usage));
                }
                Ok(Err(Broken::Off)) => {
                    self.metrics.abandoned.inc();
                    let _ = job.events.send(Event::Failed(ApiError::closing()));
                }
                Ok(Err(Broken::Failed(error))) => {
                    self.metrics.failed.inc();
                    if error.is_lost() {
                        // Nothing that is asked of this engine will succeed again: `/health` says so from now on.
                        self.condition.fail(error.to_string());
                    }
                    let _ = job.events.send(Event::Failed(failed(error)));
                }
                Err(_) => {
                    self.metrics.failed.inc();
                    self.session.reset();
                    let _ = job
                        .events
                        .send(Event::Failed(ApiError::internal("the answer failed; the server's log says why")));
                }
            }
            self.metrics.request_time.observe(job.asked.elapsed().as_secs_f64());
            self.metrics.kept_bytes.set(self.session.kept_bytes() as i64);
            self.metrics.running.set(0);
        }
    }
    fn answer(&mut self, job: &Job) -> Result<Usage, Broken> {
        let Worker { session, served, queue, metrics, .. } = self;
        let is_over = || job.is_abandoned() || queue.is_closed();
        let fed = session.feed_with(&job.prompt, job.reuse, &mut |_, _| match is_over() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        });
        let fed = fed?;
        metrics.prompt_tokens.inc_by(fed.run as u64);
        metrics.cached_tokens.inc_by(fed.reused as u64);
        if !fed.complete {
            return Err(Broken::Off);
        }
        let mut usage =
            Usage { prompt: job.prompt.len(), cached: fed.reused, prompt_time: fed.time, ..Usage::default() };
        // Other answers begin where the first one did.
        let logits = if job.choices > 1 { session.logits().to_vec() } else { Vec::new() };
        for choice in 0..job.choices {
            if choice > 0 {
                session.rewind(job.prompt.len(), &logits);
            }
            let mut generation = Generation::new(served, job, choice)?;
            let start = Instant::now();
            let mut first = Duration::ZERO;
            let ended = loop {
                if is_over() {
                    break Err(Broken::Off);
                }
                let end = generation.step(session);
                if generation.tokens() == 1 && first.is_zero() {
                    first = start.elapsed();
                    // Whoever asked waits for the first answer's; those of the others come when it has long begun.
                    if choice == 0 {
                        metrics.first_token_time.observe(job.asked.elapsed().as_secs_f64());
                    }
                }
                match end {
                    Ok(None) => {}
                    Ok(Some(_)) => break Ok(()),
                    Err(error) => break Err(Broken::Failed(error)),
                }
            };
            session.finish()?;
            let (tokens, time) = (generation.tokens(), start.elapsed());
            metrics.answer_tokens.inc_by(tokens as u64);
            if tokens > 1 {
                metrics.token_time.observe((time - first).as_secs_f64() / (tokens - 1) as f64);
            }
            usage.answer += tokens;
            usage.answer_time += time;
            ended?;
        }
        Ok(usage)
    }
}
