//! Chat templates: conversations to text.
//!
//! Model files carry a Jinja program that writes a conversation in the format the model was trained on. It runs here
//! with the options of Hugging Face's `apply_chat_template`, without any input or output, and bounded in source length,
//! expressions, steps, recursion and output. The result is a list of [`Span`]s: text that the messages wrote and that could
//! be read as a control token is *untrusted* (`trust.rs` tells how that is found).
//!
//! Those bounds do not cover memory, stack and time: one step may double a string, and a value that holds itself is printed
//! by recursion. So the template of a file runs in a helper process with limits, one for each conversation, which may end as
//! it likes ([`Isolation`]). Only built-in templates are trusted to run in this process.

mod bounds;
mod builtin;
mod environment;
mod error;
mod fit;
mod helper;
mod isolation;
mod json;
mod lists;
pub mod markup;
mod message;
mod render;
pub mod reply;
mod request;
mod special;
pub mod spell;
mod trust;

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value as Json;

pub use builtin::{for_pre as builtin_for_pre, names as builtin_names, source as builtin_source};
pub use environment::strftime;
pub use error::ChatError;
pub use helper::helper;
pub use isolation::{Helper, Isolation};
pub use message::{Message, RenderOptions, Span};

use markup::Markup;
use request::{Conversation, Request};

use crate::tokenizer::Tokenizer;

/// Bytes of text that any conversation may become: more than the longest fixed texts of templates, which have some kB.
const OUTPUT: usize = 1 << 20;
/// Bytes of text that each byte of a conversation may become besides. Templates write each once; a mark within a special
/// text (`trust.rs`), escaped by `tojson`, makes seven of one.
const OUTPUT_PER_BYTE: usize = 16;

/// The special texts of a vocabulary, for templates.
#[derive(Debug, Clone, Default)]
pub struct SpecialTexts {
    /// The variable `bos_token`; empty where there is none.
    pub bos: String,
    /// The variable `eos_token`.
    pub eos: String,
    /// Texts that messages must not be able to spell: all control tokens.
    pub control: Vec<String>,
}

impl From<&Tokenizer> for SpecialTexts {
    fn from(tokenizer: &Tokenizer) -> Self {
        let text = |id: Option<u32>| {
            let bytes = id.and_then(|id| tokenizer.token_bytes(id)).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        Self { bos: text(tokenizer.bos()), eos: text(tokenizer.eos()), control: tokenizer.special_texts() }
    }
}

/// A chat template that compiles.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    bos: String,
    eos: String,
    marker: trust::Marker,
    isolation: Isolation,
}

impl ChatTemplate {
    /// A template that runs as `isolation` says, compiled once to see whether it can be.
    ///
    /// # Errors
    /// Source that is too long or does not compile, or special texts that cannot be searched for.
    pub fn new(source: &str, specials: &SpecialTexts, isolation: &Isolation) -> Result<Self, ChatError> {
        bounds::check_length(source)?;
        let template = Self {
            source: source.to_owned(),
            bos: specials.bos.clone(),
            eos: specials.eos.clone(),
            marker: trust::Marker::new(specials.control.clone(), source)?,
            isolation: isolation.clone(),
        };
        template.isolation.answer(&Request { source: template.source.clone(), conversation: None })?;
        Ok(template)
    }

    /// The template of a file, which runs as `isolation` says, or a built-in one chosen by the pre-tokeniser's name where
    /// the file has none or it does not compile. The second value tells the user why, if so.
    ///
    /// # Errors
    /// The process that compiles it cannot be started, or twice came to an end that is not the template's doing.
    pub fn select(
        source: Option<&str>,
        pre: &str,
        specials: &SpecialTexts,
        isolation: &Isolation,
    ) -> Result<(Self, Option<String>), ChatError> {
        let name = builtin::for_pre(pre);
        let why = match source {
            None => "the file has no chat template".to_owned(),
            Some(source) => match Self::new_or_again(source, specials, isolation) {
                Ok(template) => return Ok((template, None)),
                Err(error @ ChatError::Helper(_)) => return Err(error),
                Err(error) => error.to_string(),
            },
        };
        let source = builtin::source(name).unwrap_or_default();
        let builtin = Self::new(source, specials, &Isolation::InProcess)?;
        Ok((builtin, Some(format!("{why}; using the built-in template {name:?}"))))
    }

    /// [`ChatTemplate::new`], once more where its process was lost: a machine may be busy for a moment.
    fn new_or_again(source: &str, specials: &SpecialTexts, isolation: &Isolation) -> Result<Self, ChatError> {
        match Self::new(source, specials, isolation) {
            Err(ChatError::Helper(_)) => Self::new(source, specials, isolation),
            outcome => outcome,
        }
    }

    /// Does the template's source speak of `name`: of `tools`, say? One that does not will leave them out.
    pub fn mentions(&self, name: &str) -> bool {
        self.source.contains(name)
    }

    /// How its model marks up replies.
    pub fn markup(&self) -> &'static Markup {
        Markup::of(|sign| self.mentions(sign))
    }

    /// Its source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation. The concatenated spans are exactly what the template yields.
    ///
    /// # Errors
    /// The template refuses the conversation, fails, or exceeds a bound.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<Vec<Span>, ChatError> {
        let conversation = self.conversation(messages, options)?;
        let request = Request { source: self.source.clone(), conversation: Some(conversation) };
        let spans = self.isolation.answer(&request)?.spans();
        spans.ok_or_else(|| ChatError::Helper("answered with ranges that are none of its text".into()))
    }

    fn conversation(&self, messages: &[Message], options: &RenderOptions) -> Result<Conversation, ChatError> {
        let messages: Vec<Json> = messages.iter().map(Message::to_json).collect();
        let is_some = |tools: &&Json| !tools.is_null() && tools.as_array().is_none_or(|list| !list.is_empty());
        let tools = options.tools.as_ref().filter(is_some);
        let bytes = bounds::weigh(messages.iter().chain(tools).chain(options.extra.values()))?;
        let mut variables = options.extra.clone();
        variables.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
        variables.insert("bos_token".into(), self.bos.clone().into());
        variables.insert("eos_token".into(), self.eos.clone().into());
        if let Some(thinking) = options.enable_thinking {
            // DeepSeek's name for it, and everybody else's.
            variables.insert("thinking".into(), thinking.into());
            variables.insert("enable_thinking".into(), thinking.into());
        }
        let now = options.now.unwrap_or_else(SystemTime::now);
        Ok(Conversation {
            control: self.marker.spelled(&messages, tools),
            tools: tools.cloned(),
            messages,
            variables,
            now: now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            longest: OUTPUT.saturating_add(bytes.saturating_mul(OUTPUT_PER_BYTE)),
        })
    }
}
