//! The thread that owns a model's batcher, and runs jobs on it one after the other.

use crate::error::{Failure, Result};
use gristmill_llm::sched::Batcher;
use std::sync::mpsc::{Sender, channel};

type Job = Box<dyn FnOnce(&mut Batcher) + Send>;

/// Handle of a model's thread, which ends with it.
pub struct ModelThread {
    jobs: Sender<Job>,
}

impl ModelThread {
    /// Starts the thread, and waits until `load` has returned.
    pub fn start(load: impl FnOnce() -> Result<Batcher> + Send + 'static) -> Result<ModelThread> {
        let (jobs, queue) = channel::<Job>();
        let (loaded, result) = channel();
        let run = move || match load() {
            Ok(mut batcher) => {
                let _ = loaded.send(Ok(()));
                queue.into_iter().for_each(|job| job(&mut batcher));
            }
            Err(error) => drop(loaded.send(Err(error))),
        };
        std::thread::Builder::new()
            .name("gristmill model".into())
            .spawn(run)
            .map_err(|error| {
                let message = format_args!("cannot start a thread: {error}");
                Failure::new(
                    message,
                    "end other processes, or raise the limit of threads",
                )
            })?;
        result.recv().map_err(|_| ended())??;
        Ok(ModelThread { jobs })
    }
    /// Queues a job after the earlier ones.
    pub fn submit(&self, job: impl FnOnce(&mut Batcher) + Send + 'static) -> Result<()> {
        self.jobs.send(Box::new(job)).map_err(|_| ended())
    }
    /// Queues a job and waits for its result.
    pub fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Batcher) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (send, result) = channel();
        self.submit(move |batcher| drop(send.send(job(batcher))))?;
        result.recv().map_err(|_| ended())?
    }
}

/// Returns the error of a thread that has panicked.
pub fn ended() -> Failure {
    Failure::new(
        "the model's thread has ended by an internal error",
        "this is a bug in gristmill: please report it with the text on standard error",
    )
}
