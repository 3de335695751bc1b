//! The thread that owns an engine: many answers at a time, where its cache is a pool that sequences share, else one.

use crate::core::alone::Alone;
use crate::core::condition::Condition;
use crate::core::models::entry::Model;
use crate::core::together::Together;
use gristmill_llm::engine::Engine;
use gristmill_llm::sched::Batcher;
use gristmill_llm::session::Session;
use std::sync::Arc;

/// The thread's work.
pub enum Worker {
    /// One answer after the other.
    Alone(Box<Alone>),
    /// Many in one step.
    Together(Box<Together>),
}

impl Worker {
    /// With an engine; one that answers one by one, or whose cache is not in the host's memory, keeps at most so many bytes of earlier prompts there, and one that makes several answers together is `batch_invariant` or not.
    pub fn new(engine: Engine, keep: usize, batch_invariant: bool, model: Arc<Model>, condition: Condition) -> Worker {
        match Batcher::new(engine, batch_invariant) {
            Ok(batcher) => {
                let batcher = match batcher.engine().cache_is_the_hosts() {
                    true => batcher,
                    false => batcher.keeping(keep),
                };
                let (sequences, pages) = (batcher.engine().most_sequences(), batcher.load().total_pages);
                tracing::info!(model = model.name(), sequences, pages, "answers several requests together");
                Worker::Together(Box::new(Together::new(batcher, model, condition)))
            }
            Err(engine) => {
                tracing::info!(
                    model = model.name(),
                    "answers one request after the other: its cache is one sequence's"
                );
                Worker::Alone(Box::new(Alone { session: Session::with_prefixes(*engine, keep), model, condition }))
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
