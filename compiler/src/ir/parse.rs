//! Parsing of the text form of plans: the error, and words that all of them have.

use std::fmt::{self, Display, Formatter};

/// Why a text is no plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError(
    /// The words that no plan has there.
    pub String,
);

impl Display for ParseError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "no tile plan has `{}` there", self.0)
    }
}

impl std::error::Error for ParseError {}

/// No plan has these words there.
///
/// # Errors
/// Always.
pub fn bad<T>(words: &str) -> Result<T, ParseError> {
    Err(ParseError(words.trim().to_string()))
}

/// A number that counts something: one at least, and less than a machine could hold.
///
/// # Errors
/// For another word.
pub fn count(word: &str) -> Result<i64, ParseError> {
    match word.parse() {
        Ok(n) if (1..=1 << 24).contains(&n) => Ok(n),
        _ => bad(word),
    }
}
