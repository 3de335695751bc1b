//! How much of everything there may be.

/// What bounds requests and answers.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes of an answer that is told at once, about: text, and probabilities as JSON. It ends where they are used up.
    pub answer: usize,
    /// Most bytes of an answer that were not read yet, about; then it is ended.
    pub unread: usize,
    /// Most answers to one prompt.
    pub choices: usize,
}

/// Most prompts of one request.
pub const MAX_PROMPTS: usize = 256;
/// Most alternatives to a token whose probabilities are told.
pub const MAX_TOP_LOGPROBS: u64 = 20;
/// Most texts that end an answer, and most bytes of one.
pub const MAX_STOPS: (usize, usize) = (16, 1024);
/// Most tools of a request.
pub const MAX_TOOLS: usize = 128;
