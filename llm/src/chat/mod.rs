//! Chat templates: conversations to text.
//!
//! Model files carry a Jinja program that writes a conversation in the format the model was trained on. It runs here
//! with the options of Hugging Face's `apply_chat_template`, without any input or output, and bounded in source length,
//! steps, recursion and output. The result is a list of [`Span`]s: text that the messages wrote and that could be read
//! as a control token is *untrusted* (`trust.rs` tells how that is found).
//!
//! The bounds do not cover memory: minijinja charges a step for `x ~ x` whatever its length, so a hostile template can
//! double a string until the process runs out.

mod builtin;
mod environment;
mod error;
mod json;
mod message;
mod trust;

use std::io;

use minijinja::Environment;
use serde_json::{Map, Value as Json};

pub use builtin::{for_pre as builtin_for_pre, names as builtin_names, source as builtin_source};
pub use error::ChatError;
pub use message::{Message, RenderOptions, Span};

use crate::tokenizer::Tokenizer;

/// Longest template source in bytes; the longest known ones have about 30 kB.
const MAX_SOURCE: usize = 1 << 20;
/// Instructions a rendering may take: some hundred a message.
const FUEL: u64 = 20_000_000;
/// Nested macro calls.
const MAX_RECURSION: usize = 100;
/// Longest rendered conversation in bytes.
const MAX_OUTPUT: usize = 256 << 20;

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

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    bos: String,
    eos: String,
    marker: trust::Marker,
}

/// The name of the template within its environment.
const NAME: &str = "chat";

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// Source that is too long or does not compile.
    pub fn new(source: &str, specials: &SpecialTexts) -> Result<Self, ChatError> {
        if source.len() > MAX_SOURCE {
            return Err(ChatError::SourceTooLarge { bytes: source.len(), limit: MAX_SOURCE });
        }
        let template = Self {
            source: without_generation_tags(source),
            bos: specials.bos.clone(),
            eos: specials.eos.clone(),
            marker: trust::Marker::new(specials.control.clone()),
        };
        template.environment(None)?;
        Ok(template)
    }

    /// The template of a file, or a built-in one chosen by the pre-tokeniser's name where the file has none or it does
    /// not compile. The second value tells the user why, if so.
    ///
    /// # Errors
    /// None in practice: the built-in templates compile.
    pub fn select(
        source: Option<&str>,
        pre: &str,
        specials: &SpecialTexts,
    ) -> Result<(Self, Option<String>), ChatError> {
        let name = builtin::for_pre(pre);
        let why = match source {
            None => "the file has no chat template".to_owned(),
            Some(source) => match Self::new(source, specials) {
                Ok(template) => return Ok((template, None)),
                Err(error) => error.to_string(),
            },
        };
        let source = builtin::source(name).unwrap_or_default();
        Ok((Self::new(source, specials)?, Some(format!("{why}; using the built-in template {name:?}"))))
    }

    /// Does the template's source speak of `name`: of `tools`, say? One that does not will leave them out.
    pub fn mentions(&self, name: &str) -> bool {
        self.source.contains(name)
    }

    /// Renders a conversation. The concatenated spans are exactly what the template yields.
    ///
    /// # Errors
    /// The template refuses the conversation, fails, or exceeds a bound.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<Vec<Span>, ChatError> {
        let env = self.environment(options.now)?;
        let messages: Vec<Json> = messages.iter().map(Message::to_json).collect();
        let is_some = |tools: &&Json| !tools.is_null() && tools.as_array().is_none_or(|list| !list.is_empty());
        let tools = options.tools.as_ref().filter(is_some);
        let render = |messages: &[Json], tools: Option<&Json>| self.run(&env, messages, tools, options);
        let text = render(&messages, tools)?;
        let untrusted = self.marker.untrusted(&text, &messages, tools, |m, t| render(m, t).ok());
        let mut spans = Vec::with_capacity(2 * untrusted.len() + 1);
        let mut push = |text: &str, trusted| {
            if !text.is_empty() {
                spans.push(Span { text: text.to_owned(), trusted });
            }
        };
        let mut at = 0;
        for range in untrusted {
            push(&text[at..range.start], true);
            push(&text[range.clone()], false);
            at = range.end;
        }
        push(&text[at..], true);
        Ok(spans)
    }

    fn environment(&self, now: Option<std::time::SystemTime>) -> Result<Environment<'_>, ChatError> {
        let mut env = environment::environment(FUEL, now);
        env.set_recursion_limit(MAX_RECURSION);
        env.add_template(NAME, &self.source).map_err(|e| ChatError::Compile(error::describe(&e)))?;
        Ok(env)
    }

    fn run(
        &self,
        env: &Environment<'_>,
        messages: &[Json],
        tools: Option<&Json>,
        options: &RenderOptions,
    ) -> Result<String, ChatError> {
        let mut context: Map<String, Json> = options.extra.clone();
        context.insert("messages".into(), messages.into());
        context.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
        context.insert("bos_token".into(), self.bos.clone().into());
        context.insert("eos_token".into(), self.eos.clone().into());
        if let Some(thinking) = options.enable_thinking {
            context.insert("enable_thinking".into(), thinking.into());
        }
        if let Some(tools) = tools {
            context.insert("tools".into(), tools.clone());
        }
        let context = environment::to_value(&Json::Object(context));
        let template = env.get_template(NAME).map_err(|e| ChatError::Compile(error::describe(&e)))?;
        let mut out = Bounded { bytes: Vec::new(), full: false };
        let result = template.render_captured_to(context, &mut out).map(drop);
        match result {
            _ if out.full => Err(ChatError::OutputTooLarge(MAX_OUTPUT)),
            Err(error) => Err(ChatError::from_render(&error, FUEL)),
            Ok(()) => String::from_utf8(out.bytes).map_err(|e| ChatError::Render(e.to_string())),
        }
    }
}

/// A buffer that refuses to grow beyond [`MAX_OUTPUT`].
struct Bounded {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT {
            self.full = true;
            return Err(io::Error::other("output too large"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `{% generation %} … {% endgeneration %}` marks the assistant's tokens for training; here it is a plain block.
fn without_generation_tags(source: &str) -> String {
    let mut out = source.to_owned();
    for (tag, replacement) in [("generation", "if true"), ("endgeneration", "endif")] {
        let pattern = format!(r"\{{%([-+]?)\s*{tag}\s*([-+]?)%\}}");
        if let Ok(regex) = fancy_regex::Regex::new(&pattern) {
            out = regex.replace_all(&out, format!("{{%${{1}} {replacement} ${{2}}%}}")).into_owned();
        }
    }
    out
}
