//! Continuous batching: which tokens of which sequences run in the next step, and
//! in which KV pages.
//!
//! The [`Scheduler`] plans batches over a [`PagePool`](pages::PagePool), the [`Batcher`] runs them
//! on an engine, [`generate`] drives one sequence.

mod async_schedule;
mod batch;
mod batcher;
mod error;
mod generate;
pub mod generation;
mod in_flight;
mod ngram;
mod pages;
mod prefill_budget;
mod prefix_log;
mod prefix_node;
mod reasoning_budget;
mod reuse;
mod scheduler;
mod sequence;
mod sliding_window_pages;
mod sliding_window_pool;
mod speculation;
mod state_pool;
mod state_snapshots;
#[cfg(test)]
mod tests;

pub use batch::{Batch, Decode, DraftRow, Load, PrefillChunk, SchedulerConfig};
pub use batcher::{Batcher, FailedStep, ReadySequence, RowParamsFn, SamplingFn, StepCounts};
pub use error::{ConstraintError, Error};
pub use generate::{Generated, PrefillStats, generate};
pub use pages::Swap;
pub use prefix_log::{PrefixEvent, StoredPage, prefix_hashes};
pub use reasoning_budget::ReasoningBudget;
pub use reuse::{BLOCK, Reuse};
pub use scheduler::Scheduler;
pub use sequence::{SequenceId, SequenceOptions};
pub use speculation::{DraftCounts, DraftOrigin, DraftSources, Drafter, SpeculationStats};
