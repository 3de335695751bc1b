//! Field names of an interface's requests.

/// Names that an interface gives to the fields of a request, for error messages.
#[derive(Clone, Copy, Debug)]
pub struct FieldNames {
    /// The conversation or the prompt.
    pub input: &'static str,
    /// List of the offered tools.
    pub tools: &'static str,
    /// Choice among the tools.
    pub tool_choice: &'static str,
    /// Maximum tokens of an answer.
    pub limit: &'static str,
    /// Number of answers to each prompt.
    pub choices: &'static str,
    /// Strings that end an answer.
    pub stop: &'static str,
}
