//! Events for the page, and its requests, as JSON.

use gristmill_llm::chat::Message;
use serde::{Deserialize, Serialize};

/// An event for the page.
#[derive(Serialize, Clone, PartialEq, Debug)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum PageEvent {
    /// Progress of opening a model.
    Progress {
        /// Stage: `planning`, `compiling` or `loading`.
        stage: &'static str,
        /// Functions, kernels or bytes so far.
        done: u64,
        /// Functions, kernels or bytes in total.
        total: u64,
    },
    /// A model is open.
    Ready {
        /// Name in the file, else its architecture.
        name: String,
        /// Description of the device.
        device: String,
        /// Bytes of the file.
        bytes: u64,
        /// Context length of the model here, tokens.
        context: usize,
        /// Warnings about the file.
        warnings: Vec<String>,
    },
    /// A part of an answer.
    Text {
        /// Text that is added.
        text: String,
        /// Whether it is reasoning.
        reasoning: bool,
    },
    /// An answer has ended.
    End {
        /// Reason, as a phrase.
        why: String,
        /// Statistics of the answer.
        #[serde(flatten)]
        stats: Stats,
    },
    /// A failure; the model is still open unless it was being opened.
    Failure {
        /// Failed action and its cause, one line.
        error: String,
        /// Advice for the user, one line.
        hint: String,
    },
}

/// Statistics of an answer.
#[derive(Serialize, Clone, Copy, PartialEq, Debug, Default)]
pub struct Stats {
    /// Tokens of the prompt that were computed, and not found in the KV cache.
    pub prompt: usize,
    /// Seconds of the prefill.
    pub prefill: f64,
    /// Tokens of the answer.
    pub tokens: usize,
    /// Decode steps; the first token comes with the prompt.
    pub steps: usize,
    /// Seconds of the decode steps.
    pub seconds: f64,
}

/// A request for an answer.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct Ask {
    /// The conversation; the last message is the user's.
    pub messages: Vec<AskedMessage>,
    /// Maximum number of tokens; none for no limit.
    pub limit: Option<usize>,
    /// Temperature; the model's own if none is given.
    pub temperature: Option<f32>,
    /// Top-p sampling; the model's own if none is given.
    pub top_p: Option<f32>,
    /// Seed of the sampler, a random number of the page.
    pub seed: u64,
    /// Whether the model reasons first, if it can.
    pub thinking: Option<bool>,
    /// Present time, milliseconds since 1970.
    pub now: u64,
}

/// A message of a conversation.
#[derive(Deserialize, Clone, Debug)]
pub struct AskedMessage {
    role: String,
    content: String,
}

impl AskedMessage {
    /// Returns the message for a chat template.
    pub fn message(&self) -> Message {
        Message::new(self.role.as_str(), self.content.as_str())
    }
}

/// A failure with a way out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageFailure {
    /// Failed action and its cause, one line.
    pub error: String,
    /// Advice for the user, one line.
    pub hint: String,
}

impl PageFailure {
    /// Creates a failure from an error and a hint.
    pub fn new(error: impl ToString, hint: impl Into<String>) -> PageFailure {
        PageFailure {
            error: error.to_string(),
            hint: hint.into(),
        }
    }
    /// Returns the event that shows it.
    pub fn event(self) -> PageEvent {
        let PageFailure { error, hint } = self;
        PageEvent::Failure { error, hint }
    }
}

/// Advice where an error has none of its own.
const OTHER_MODEL: &str = "open another file, or the demo";

/// Errors that have a hint for the user.
macro_rules! with_hint { ($($error:ty)*) => { $(
    impl From<$error> for PageFailure {
        fn from(error: $error) -> PageFailure {
            let hint = error.hint().unwrap_or_else(|| OTHER_MODEL.into());
            PageFailure::new(error, hint)
        }
    }
)* } }

with_hint! {
    gristmill_llm::file::Error
    gristmill_llm::language::Error
    gristmill_llm::arch::Error
    gristmill_llm::engine::Error
    gristmill_llm::sched::Error
    gristmill_llm::chat::ChatError
}
