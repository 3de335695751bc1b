//! State of asynchronous scheduling: the step in flight and the tokens that the last one chose.

use super::batch::Batch;
use std::time::Instant;

/// State of asynchronous scheduling.
#[derive(Default)]
pub(super) struct InFlight {
    /// Starts step t+1 before step t's tokens are read?
    pub enabled: bool,
    /// The step in flight, and its tokens once they were read without being handed out.
    pub batch: Option<Batch>,
    pub waited: Option<Vec<Option<u32>>>,
    /// Tokens that the device drew for the rows of the last step.
    pub drawn: Vec<Option<u32>>,
    /// A token of the last step could not be chosen: the host looks at its logits, in a step of its own.
    pub by_host: bool,
    /// When the step before was read.
    pub read: Option<Instant>,
}

impl InFlight {
    pub fn new(wanted: bool) -> InFlight {
        InFlight { enabled: wanted, ..InFlight::default() }
    }
    /// Forgets the step in flight.
    pub fn forget(&mut self) {
        *self = InFlight::new(self.enabled);
    }
}
