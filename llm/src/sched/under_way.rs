//! What is known of steps that are started before the one before is read.

use super::batch::Batch;
use std::time::Instant;

/// What is known of such steps.
#[derive(Default)]
pub(super) struct Ahead {
    /// Are there any?
    pub wanted: bool,
    /// The step that was started and whose tokens nobody has been given, and these once they were read.
    pub under_way: Option<Batch>,
    pub landed: Option<Vec<Option<u32>>>,
    /// The tokens that were chosen for the rows of the last step.
    pub drawn: Vec<Option<u32>>,
    /// Could a token of the last step not be chosen? Then the host has a look at it, in a step of its own.
    pub by_host: bool,
    /// When the step before was read.
    pub read: Option<Instant>,
}

impl Ahead {
    pub fn new(wanted: bool) -> Ahead {
        Ahead { wanted, ..Ahead::default() }
    }
    /// Nothing is under way any more.
    pub fn forget(&mut self) {
        *self = Ahead::new(self.wanted);
    }
}
