//! State of asynchronous scheduling: the step in flight and the tokens that the last one chose.

use super::batch::Batch;
use gristmill_uop::clock::Instant;

/// State of asynchronous scheduling.
#[derive(Default)]
pub(super) struct InFlight {
    /// Whether step t+1 starts before step t's tokens are read.
    pub enabled: bool,
    /// The step in flight, and its tokens if they were read but not yet returned.
    pub batch: Option<Batch>,
    pub waited: Option<Vec<Option<u32>>>,
    /// Tokens that the device sampled for the rows of the last step.
    pub drawn: Vec<Option<u32>>,
    /// A token of the last step could not be chosen: the host reads its logits,
    /// in a synchronous step.
    pub host_chooses: bool,
    /// Time at which the previous step was read.
    pub last_read: Option<Instant>,
}

impl InFlight {
    pub fn new(wanted: bool) -> InFlight {
        InFlight {
            enabled: wanted,
            ..InFlight::default()
        }
    }
    pub fn forget(&mut self) {
        *self = InFlight::new(self.enabled);
    }
}
