//! Generation request of the core, which an interface builds from its JSON.

use crate::core::constraint::grammar::OutputFormat;
use crate::core::error::RequestError;
use crate::core::field_names::FieldNames;
use crate::core::sampling::SamplingOptions;
use crate::core::tools::{Tool, ToolChoice};
use gristmill_llm::chat::Message;
use serde_json::{Map, Value};

/// Parameters of a generation request.
#[derive(Debug)]
pub struct GenerateRequest {
    /// Field names of the interface, for error messages.
    pub names: &'static FieldNames,
    /// Conversation or prompts that the answers continue.
    pub input: Input,
    /// Tools that the model may call.
    pub tools: Vec<Tool>,
    /// Whether tools may or must be called.
    pub tool_choice: ToolChoice,
    /// Whether one answer may have several calls.
    pub several_calls: bool,
    /// Format that constrains the answer, with the name of its field.
    pub form: Option<(&'static str, OutputFormat)>,
    /// Sampling parameters of the request.
    pub sampling: SamplingOptions,
    /// Number of answers to each prompt.
    pub choices: u64,
    /// Maximum tokens of each answer; `None` is bounded by the context only.
    pub limit: Option<u64>,
    /// Strings that end an answer.
    pub stop: Vec<String>,
    /// Tokens that end an answer, besides those that end a sequence.
    pub stop_tokens: Vec<u32>,
    /// Whether generation continues past end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Whether the response is streamed.
    pub stream: bool,
    /// Number of alternatives returned with each token; `None` returns no log-probabilities.
    pub logprobs: Option<usize>,
    /// Whether each token is returned, also without log-probabilities.
    pub token_ids: bool,
    /// Number of alternatives returned with each prompt token; `None` returns no log-probabilities
    /// of prompts.
    pub prompt_logprobs: Option<usize>,
    /// Names of the request's fields that have no effect.
    pub ignored: Vec<String>,
}

/// Input of a generation request.
#[derive(Debug)]
pub enum Input {
    /// A conversation. If its last message is a text of the assistant, generation continues it.
    Conversation {
        /// Messages in their order.
        messages: Vec<Message>,
        /// Control of the model's reasoning.
        thinking: Thinking,
    },
    /// Prompts, each with its own answers.
    Prompts(Vec<PromptText>),
}

/// Control of a model's reasoning, if the model supports it.
#[derive(Clone, Debug, Default)]
pub struct Thinking {
    /// Switches reasoning on or off; `None` leaves it to the template.
    pub switch: Option<bool>,
    /// Effort for the template: "low", "medium" or "high".
    pub effort: Option<&'static str>,
    /// Variables of the client for the chat template (`chat_template_kwargs`).
    pub variables: Map<String, Value>,
    /// Maximum tokens of the reasoning; `None` leaves it to the server.
    pub budget: Option<ReasoningLimit>,
    /// Message before the end of reasoning that is cut off; `None` leaves it to the server.
    pub message: Option<String>,
}

/// Maximum tokens of a reply's reasoning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReasoningLimit {
    /// Any number of tokens.
    Unlimited,
    /// So many tokens; with 0, reasoning is closed at once.
    Tokens(usize),
}

impl ReasoningLimit {
    /// Checks a client's number of tokens, of which -1 means no limit; `name` is its parameter.
    ///
    /// # Errors
    /// When it is below -1.
    pub fn new(name: &str, tokens: i64) -> Result<ReasoningLimit, RequestError> {
        match usize::try_from(tokens) {
            Ok(tokens) => Ok(ReasoningLimit::Tokens(tokens)),
            Err(_) if tokens == -1 => Ok(ReasoningLimit::Unlimited),
            Err(_) => {
                let message =
                    format!("{name} is {tokens}; it must be at least 0, or -1 for no limit");
                Err(RequestError::parameter(name, message))
            }
        }
    }
    /// Limit of an effort; `None` for efforts that need none.
    pub fn for_effort(effort: Option<&str>) -> Option<ReasoningLimit> {
        let row = EFFORT_TOKENS.iter().find(|row| Some(row.0) == effort);
        row.map(|row| ReasoningLimit::Tokens(row.1))
    }
}

/// Tokens of reasoning by effort, for models whose template has no efforts. Higher efforts are not
/// limited.
const EFFORT_TOKENS: [(&str, usize); 4] = [
    ("none", 0),
    ("minimal", 512),
    ("low", 2048),
    ("medium", 8192),
];

impl Thinking {
    /// Converts a client's effort: "none" switches reasoning off; efforts beyond the three names
    /// become the nearest one.
    pub fn of_effort(effort: Option<&str>) -> Thinking {
        let named = match effort {
            Some("minimal" | "low") => Some("low"),
            Some("medium") => Some("medium"),
            Some("high" | "xhigh" | "max") => Some("high"),
            _ => None,
        };
        Thinking {
            switch: (effort == Some("none")).then_some(false),
            effort: named,
            ..Thinking::default()
        }
    }
}

impl From<Option<bool>> for Thinking {
    fn from(switch: Option<bool>) -> Thinking {
        Thinking {
            switch,
            ..Thinking::default()
        }
    }
}

/// A prompt for text completion.
#[derive(Clone, Debug)]
pub enum PromptText {
    /// A text; special tokens in it are parsed.
    Text(String),
    /// Token ids of the vocabulary.
    Tokens(Vec<u32>),
    /// Texts and tokens in turn.
    Mixed(Vec<PromptText>),
}

impl GenerateRequest {
    /// Request with an input and default parameters.
    pub fn new(names: &'static FieldNames, input: Input) -> GenerateRequest {
        GenerateRequest {
            names,
            input,
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            several_calls: true,
            form: None,
            sampling: SamplingOptions::default(),
            choices: 1,
            limit: None,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_eos: false,
            stream: false,
            logprobs: None,
            token_ids: false,
            prompt_logprobs: None,
            ignored: Vec::new(),
        }
    }
}
