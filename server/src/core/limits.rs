//! Limits of requests and answers.

/// Configurable limits of requests and answers.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Approximate maximum bytes of a response that is not streamed: text, and log-probabilities as
    /// JSON. At the limit the answer ends.
    pub answer: usize,
    /// Approximate maximum bytes of a stream that the client has not read; beyond it the request is
    /// cancelled.
    pub unread: usize,
    /// Maximum answers to one prompt.
    pub choices: usize,
    /// Maximum tokens of reasoning of requests that set none; `None` is unlimited.
    pub reasoning: Option<usize>,
    /// Message before the end of reasoning that is cut off; `None` for the default one.
    pub reasoning_message: Option<String>,
}

/// Maximum prompts of one request.
pub const MAX_PROMPTS: usize = 256;
/// Maximum texts of one embedding request, as in OpenAI's API.
pub const MAX_EMBEDDINGS: usize = 2048;
/// Maximum documents of one rerank request, as in Jina's API.
pub const MAX_DOCUMENTS: usize = 2048;
/// Maximum bytes of all prompts of a rerank request, each with the query.
pub const MAX_RERANK_BYTES: usize = 16 << 20;
/// Maximum alternatives returned with the log-probability of a token.
pub const MAX_TOP_LOGPROBS: u64 = 20;
/// Maximum number of stop strings, and maximum bytes of each.
pub const MAX_STOPS: (usize, usize) = (64, 1024);
/// Maximum tokens that end an answer.
pub const MAX_STOP_TOKENS: usize = 64;
/// Maximum bytes of the message before the end of reasoning that is cut off.
pub const MAX_REASONING_MESSAGE: usize = 4096;
/// Maximum tools of a request.
pub const MAX_TOOLS: usize = 128;
