//! What an interface calls things.

/// What an interface calls the parts of a request, for what is said of them.
#[derive(Clone, Copy, Debug)]
pub struct FieldNames {
    /// The conversation or the text.
    pub input: &'static str,
    /// The tools.
    pub tools: &'static str,
    /// Which of them.
    pub tool_choice: &'static str,
    /// Most tokens of an answer.
    pub limit: &'static str,
    /// Answers.
    pub choices: &'static str,
    /// Texts that end an answer.
    pub stop: &'static str,
}
