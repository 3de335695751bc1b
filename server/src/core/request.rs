//! A request as the core takes it, made by an interface of its JSON.

use crate::core::constraint::grammar::OutputFormat;
use crate::core::field_names::FieldNames;
use crate::core::sampling::SamplingOptions;
use crate::core::tools::{Tool, ToolChoice};
use gristmill_llm::chat::Message;

/// What is asked.
#[derive(Debug)]
pub struct GenerateRequest {
    /// What the interface calls it all.
    pub names: &'static FieldNames,
    /// What the answer follows.
    pub input: Input,
    /// What may be called.
    pub tools: Vec<Tool>,
    /// Whether anything may or must.
    pub tool_choice: ToolChoice,
    /// Several calls in one answer?
    pub several_calls: bool,
    /// What the text of the answer must be, and the field that asks for it.
    pub form: Option<(&'static str, OutputFormat)>,
    /// How tokens are chosen.
    pub sampling: SamplingOptions,
    /// Answers to each prompt.
    pub choices: u64,
    /// Most tokens of each; none for as many as there is room for.
    pub limit: Option<u64>,
    /// What ends them.
    pub stop: Vec<String>,
    /// Go on where the model would end?
    pub ignore_eos: bool,
    /// Tell text as it comes?
    pub stream: bool,
    /// Tell the probability of every token, and of so many others?
    pub logprobs: Option<usize>,
    /// Likewise of the prompt's tokens?
    pub prompt_logprobs: Option<usize>,
}

/// What an answer follows.
#[derive(Debug)]
pub enum Input {
    /// A conversation. One that ends with a text of the assistant's is gone on with.
    Conversation {
        /// Its messages.
        messages: Vec<Message>,
        /// How much the model is to reason.
        thinking: Thinking,
    },
    /// Prompts, each of which has its answers.
    Prompts(Vec<PromptText>),
}

/// How much a model is to reason, where it can be told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Thinking {
    /// Switched on or off.
    pub switch: Option<bool>,
    /// As templates name it: "low", "medium" or "high".
    pub effort: Option<&'static str>,
}

impl Thinking {
    /// What clients call an effort: "none" switches reasoning off; what goes beyond the three names counts as the nearest of them.
    pub fn of_effort(effort: Option<&str>) -> Thinking {
        let named = match effort {
            Some("minimal" | "low") => Some("low"),
            Some("medium") => Some("medium"),
            Some("high" | "xhigh") => Some("high"),
            _ => None,
        };
        Thinking { switch: (effort == Some("none")).then_some(false), effort: named }
    }
}

impl From<Option<bool>> for Thinking {
    fn from(switch: Option<bool>) -> Thinking {
        Thinking { switch, effort: None }
    }
}

/// A prompt.
#[derive(Clone, Debug)]
pub enum PromptText {
    /// A text, special tokens parsed.
    Text(String),
    /// Tokens.
    Tokens(Vec<u32>),
}

impl GenerateRequest {
    /// One with nothing besides.
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
            ignore_eos: false,
            stream: false,
            logprobs: None,
            prompt_logprobs: None,
        }
    }
}
