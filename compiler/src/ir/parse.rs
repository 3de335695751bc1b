//! Parsing helpers for the text form of plans.

use std::fmt::{self, Display, Formatter};

/// A text that is not a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError(
    /// The words that do not parse.
    pub String,
);

impl Display for ParseError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "no tile plan has `{}` there", self.0)
    }
}

impl std::error::Error for ParseError {}

/// Returns the error for these words.
///
/// # Errors
/// Always returns one.
pub fn bad<T>(words: &str) -> Result<T, ParseError> {
    Err(ParseError(words.trim().to_string()))
}

/// Parses a count between 1 and 2^24.
///
/// # Errors
/// For any other word.
pub fn count(word: &str) -> Result<i64, ParseError> {
    match word.parse() {
        Ok(n) if (1..=1 << 24).contains(&n) => Ok(n),
        _ => bad(word),
    }
}
