//! Many sequences at a time: which of their tokens are in the next step, and which pages of the cache they have.
//!
//! [`Scheduler`] decides, [`PagePool`](pages::PagePool) counts, [`Batcher`] has an engine do it.

mod ahead;
mod batch;
mod batcher;
mod pace;
mod pages;
mod prefix_node;
mod scheduler;
mod sequence;
mod state_pool;
mod states;
#[cfg(test)]
mod tests;
mod under_way;
mod window_pool;
mod windows;

pub use batch::{Batch, Decode, Load, Piece, SchedulerConfig};
pub use batcher::{Asking, Batcher, Drawing, Failed, Stepped, Steps};
pub use pages::Swap;
pub use scheduler::Scheduler;
pub use sequence::{SequenceId, SequenceOptions};
