//! Errors of linear code.

use std::fmt;

/// Violation of a rule of linear code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinearError {
    /// Text of the violated rule.
    pub rule: &'static str,
    /// Index of the statement; the number of statements if the violation is at the end.
    pub statement: usize,
    /// The node and its sources, in text form.
    pub node: String,
}

impl fmt::Display for LinearError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Linear level, statement {}: {}\n{}",
            self.statement, self.rule, self.node
        )
    }
}

impl std::error::Error for LinearError {}

pub(super) type Checked = Result<(), LinearError>;
