//! Continuous batching: which tokens of which sequences are in the next step, and which pages of the KV cache they have.
//!
//! The [`Scheduler`] decides over a [`PagePool`](pages::PagePool), the [`Batcher`] runs its batches on an engine, [`generate`] drives one sequence.

mod async_schedule;
mod batch;
mod batcher;
mod error;
mod generate;
pub mod generation;
mod in_flight;
mod pace;
mod pages;
mod prefix_node;
mod reuse;
mod scheduler;
mod sequence;
mod state_pool;
mod states;
#[cfg(test)]
mod tests;
mod window_pool;
mod windows;

pub use batch::{Batch, Decode, Load, Piece, SchedulerConfig};
pub use batcher::{Asking, Batcher, Drawing, Failed, Stepped, Steps};
pub use error::{ConstraintError, Error};
pub use generate::{Generated, PrefillStats, generate};
pub use pages::Swap;
pub use reuse::{BLOCK, Reuse};
pub use scheduler::Scheduler;
pub use sequence::{SequenceId, SequenceOptions};
