//! Chat templates: render conversations to text.
//!
//! Model files carry a Jinja program that writes a conversation in the format the model was trained
//! on. It runs with the options of Hugging Face's `apply_chat_template`, without any input or
//! output. Source length, expressions, instructions, recursion and output are bounded. The result
//! is a list of [`TextSpan`]s: text from messages that could be read as a control token is
//! *untrusted* (see `trust.rs`).
//!
//! These bounds do not cover memory, stack and time: one instruction may double a string, and a
//! value that contains itself is printed by recursion. So a file's template runs in a helper
//! process with resource limits, one process per conversation ([`Isolation`]). Only built-in
//! templates are trusted to run in this process.

mod bounds;
mod budget;
mod builtin;
mod complete;
mod environment;
mod error;
mod fit;
#[cfg(not(target_family = "wasm"))]
mod helper;
#[cfg(not(target_family = "wasm"))]
mod helper_client;
mod isolation;
mod json;
mod lists;
pub mod markup;
mod message;
mod origin;
mod refit;
mod render;
pub mod reply;
mod request;
mod special;
pub mod spell;
mod trust;

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value as Json};

pub use budget::{ReasoningTexts, closing_tokens};
pub use builtin::{for_pre as builtin_for_pre, names as builtin_names, source as builtin_source};
pub use environment::strftime;
pub use error::ChatError;
#[cfg(not(target_family = "wasm"))]
pub use helper::{HelperLimits, helper, run_confined, thread_time};
#[cfg(not(target_family = "wasm"))]
pub use helper_client::{Helper, HelperFailure};
pub use isolation::Isolation;
pub use message::{Message, RenderOptions, TextSpan};

use markup::Markup;
use request::{ChatRequest, Conversation};

use crate::tokenizer::Tokenizer;

/// Bytes of rendered text allowed for any conversation; the longest fixed texts of
/// templates have some kB.
const MAX_OUTPUT_BYTES: usize = 1 << 20;
/// Additional bytes of rendered text allowed per byte of the conversation. Templates write
/// each byte once; a mark within a special text (`trust.rs`), escaped by `tojson`, makes
/// seven bytes of one.
const OUTPUT_PER_BYTE: usize = 16;

/// Special tokens of a vocabulary as text, for templates.
#[derive(Debug, Clone, Default)]
pub struct SpecialTexts {
    /// Value of the variable `bos_token`; empty if the vocabulary has none.
    pub bos: String,
    /// Value of the variable `eos_token`; empty if the vocabulary has none.
    pub eos: String,
    /// Texts of all control tokens, which message text must not be able to produce.
    pub control: Vec<String>,
}

impl From<&Tokenizer> for SpecialTexts {
    fn from(tokenizer: &Tokenizer) -> Self {
        let text = |id: Option<u32>| {
            let bytes = id
                .and_then(|id| tokenizer.token_bytes(id))
                .unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        Self {
            bos: text(tokenizer.bos()),
            eos: text(tokenizer.eos()),
            control: tokenizer.special_texts(),
        }
    }
}

/// A chat template that compiles.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    /// Template for conversations with tools, if the file has one of its own for them.
    tool_use: Option<String>,
    bos: String,
    eos: String,
    marker: trust::Marker,
    isolation: Isolation,
}

impl ChatTemplate {
    /// Creates a template and compiles it once to check it.
    ///
    /// # Errors
    /// Returns an error if the source is too long or does not compile, or if the special texts
    /// cannot be searched for.
    pub fn new(
        source: &str,
        specials: &SpecialTexts,
        isolation: &Isolation,
    ) -> Result<Self, ChatError> {
        bounds::check_length(source)?;
        let template = Self {
            source: source.to_owned(),
            tool_use: None,
            bos: specials.bos.clone(),
            eos: specials.eos.clone(),
            marker: trust::Marker::new(specials.control.clone(), source)?,
            isolation: isolation.clone(),
        };
        template.isolation.answer(&ChatRequest {
            source: template.source.clone(),
            conversation: None,
        })?;
        Ok(template)
    }

    /// Creates the file's template, or a built-in one chosen by the vocabulary if the file has none
    /// or it does not compile. The second value is the reason for the built-in template.
    ///
    /// # Errors
    /// Returns an error if the helper process cannot be started, or failed twice for a reason
    /// other than the template.
    pub fn select(
        source: Option<&str>,
        pre: &str,
        specials: &SpecialTexts,
        isolation: &Isolation,
    ) -> Result<(Self, Option<String>), ChatError> {
        let name = builtin::for_vocabulary(pre, &specials.control);
        let why = match source {
            None => "the file has no chat template".to_owned(),
            Some(source) => match Self::new_or_again(source, specials, isolation) {
                Ok(template) => return Ok((template, None)),
                Err(error @ (ChatError::Helper(_) | ChatError::HelperTimeout(_))) => {
                    return Err(error);
                }
                Err(error) => error.to_string(),
            },
        };
        let source = builtin::source(name).unwrap_or_default();
        let builtin = Self::new(source, specials, &Isolation::InProcess)?;
        Ok((
            builtin,
            Some(format!("{why}; using the built-in template {name:?}")),
        ))
    }

    /// Calls [`ChatTemplate::new`], with one retry if the helper process was lost, as on a machine
    /// that is briefly overloaded.
    fn new_or_again(
        source: &str,
        specials: &SpecialTexts,
        isolation: &Isolation,
    ) -> Result<Self, ChatError> {
        match Self::new(source, specials, isolation) {
            Err(ChatError::Helper(_)) => Self::new(source, specials, isolation),
            outcome => outcome,
        }
    }

    /// Adds the template that the file has for conversations with tools; one that does not compile
    /// is ignored.
    pub fn with_tool_use(mut self, source: &str) -> Self {
        let compiled = bounds::check_length(source).is_ok()
            && self
                .isolation
                .answer(&ChatRequest {
                    source: source.to_owned(),
                    conversation: None,
                })
                .is_ok();
        self.tool_use = compiled.then(|| source.to_owned());
        self
    }

    /// Returns true if the template source contains `name`, such as `tools`. A template without
    /// it ignores the variable.
    pub fn mentions(&self, name: &str) -> bool {
        let mut sources = [Some(&self.source), self.tool_use.as_ref()]
            .into_iter()
            .flatten();
        sources.any(|source| source.contains(name))
    }

    /// Returns the template for a conversation: that for tools if tools, calls or results occur.
    fn source_for(&self, messages: &[Message], options: &RenderOptions) -> &str {
        let tools = options.tools.as_ref().and_then(Json::as_array);
        let calls = |message: &Message| message.role == "tool" || message.tool_calls.is_some();
        let used = tools.is_some_and(|tools| !tools.is_empty()) || messages.iter().any(calls);
        match &self.tool_use {
            Some(source) if used => source,
            _ => &self.source,
        }
    }

    /// Returns the markup of the model's replies.
    pub fn markup(&self) -> &'static Markup {
        Markup::detect(|sign| self.mentions(sign))
    }

    /// Returns the process in which the template runs.
    pub fn isolation(&self) -> &Isolation {
        &self.isolation
    }

    /// Returns the Jinja source of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation. The concatenated spans are exactly the template's output.
    ///
    /// # Errors
    /// Returns an error if the template refuses the conversation, fails, or exceeds a bound.
    pub fn render(
        &self,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<Vec<TextSpan>, ChatError> {
        let conversation = self.conversation(messages, options)?;
        let request = ChatRequest {
            source: self.source_for(messages, options).to_owned(),
            conversation: Some(conversation),
        };
        let mut rendered = self.isolation.answer(&request)?;
        self.marker.guard(&mut rendered);
        rendered.spans().ok_or_else(|| {
            ChatError::Helper("answered with ranges that are none of its text".into())
        })
    }

    fn conversation(
        &self,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<Conversation, ChatError> {
        let messages: Vec<Json> = messages.iter().map(Message::to_json).collect();
        let is_some = |tools: &&Json| {
            !tools.is_null() && tools.as_array().is_none_or(|list| !list.is_empty())
        };
        let tools = options.tools.as_ref().filter(is_some);
        let bytes = bounds::weigh(messages.iter().chain(tools).chain(options.extra.values()))?;
        let mut variables = Map::new();
        variables.insert(
            "add_generation_prompt".into(),
            options.add_generation_prompt.into(),
        );
        variables.insert("bos_token".into(), self.bos.clone().into());
        variables.insert("eos_token".into(), self.eos.clone().into());
        if let Some(thinking) = options.enable_thinking {
            // `thinking` is DeepSeek's name of the variable; other templates use `enable_thinking`.
            variables.insert("thinking".into(), thinking.into());
            variables.insert("enable_thinking".into(), thinking.into());
        }
        let now = options.now.unwrap_or_else(SystemTime::now);
        Ok(Conversation {
            guarded: !self.marker.is_empty(),
            control: self
                .marker
                .spelled(&messages, Some(&Conversation::aside(tools, &options.extra))),
            tools: tools.cloned(),
            given: options.extra.clone(),
            messages,
            variables,
            now: now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            longest: MAX_OUTPUT_BYTES.saturating_add(bytes.saturating_mul(OUTPUT_PER_BYTE)),
        })
    }
}
