//! What is wrong with linear code.

use std::fmt;

/// A statement that linear code does not allow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinearError {
    /// What does not hold.
    pub rule: &'static str,
    /// Which statement; the number of all where it is the end.
    pub statement: usize,
    /// The node and its sources, in the text form.
    pub node: String,
}

impl fmt::Display for LinearError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Linear level, statement {}: {}\n{}", self.statement, self.rule, self.node)
    }
}

impl std::error::Error for LinearError {}

/// Nothing, or what is wrong.
pub(super) type Checked = Result<(), LinearError>;
