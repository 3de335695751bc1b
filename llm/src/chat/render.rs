//! Renders templates, in a helper process or, if trusted, in this process.

use std::io;
use std::time::{Duration, UNIX_EPOCH};

use minijinja::Environment;
use serde_json::Value as Json;

use super::error::{self, ChatError};
use super::request::{ChatRequest, Conversation, Rendered};
use super::trust::Marker;
use super::{bounds, environment, fit};

/// Maximum instructions of one rendering; a message takes some hundred.
const FUEL: u64 = 20_000_000;
/// Maximum depth of nested macro calls.
const MAX_RECURSION: usize = 100;

const NAME: &str = "chat";

/// Compiles the template and renders the conversation, if the request has one.
pub(super) fn answer(request: &ChatRequest) -> Result<Rendered, ChatError> {
    let source = without_generation_tags(&request.source);
    bounds::check_source(&source, environment::syntax())?;
    let now = request
        .conversation
        .as_ref()
        .map_or(0, |conversation| conversation.now);
    let mut env = environment::environment(FUEL, UNIX_EPOCH + Duration::from_secs(now));
    env.set_recursion_limit(MAX_RECURSION);
    env.add_template(NAME, &source)
        .map_err(|e| ChatError::Compile(error::describe(&e)))?;
    let Some(conversation) = &request.conversation else {
        return Ok(Rendered::default());
    };
    let tools = conversation.tools.as_ref();
    let trial = |messages: &[Json]| {
        run(&env, messages, None, conversation)
            .ok()
            .map(|rendered| rendered.text)
    };
    let messages = &fit::fitted(&request.source, &conversation.messages, tools, trial);
    let Text { text, steps } = run(&env, messages, tools, conversation)?;
    let marker = Marker::new(conversation.control.clone(), &request.source)?;
    // All trials together may take as long as one rendering.
    let trials = usize::try_from(FUEL / steps.max(1)).unwrap_or(usize::MAX);
    let again = |messages: &[Json], tools: Option<&Json>| {
        run(&env, messages, tools, conversation)
            .ok()
            .map(|rendered| rendered.text)
    };
    let untrusted = marker.untrusted(&text, messages, tools, trials, again);
    Ok(Rendered { text, untrusted })
}

/// Rendered text, and the instructions it took.
struct Text {
    text: String,
    steps: u64,
}

fn run(
    env: &Environment<'_>,
    messages: &[Json],
    tools: Option<&Json>,
    conversation: &Conversation,
) -> Result<Text, ChatError> {
    let mut context = conversation.variables.clone();
    context.insert("messages".into(), messages.into());
    if let Some(tools) = tools {
        context.insert("tools".into(), tools.clone());
    }
    let context = environment::to_value(&Json::Object(context));
    let template = env
        .get_template(NAME)
        .map_err(|e| ChatError::Compile(error::describe(&e)))?;
    let mut out = Bounded {
        bytes: Vec::new(),
        longest: conversation.longest,
        full: false,
    };
    let result = template.render_captured_to(context, &mut out);
    let steps = match result {
        _ if out.full => return Err(ChatError::OutputTooLarge(out.longest)),
        Err(error) => return Err(ChatError::from_render(&error, FUEL)),
        Ok(captured) => captured
            .state()
            .fuel_levels()
            .map_or(0, |(consumed, _)| consumed),
    };
    let text = String::from_utf8(out.bytes).map_err(|e| ChatError::Render(e.to_string()))?;
    Ok(Text { text, steps })
}

/// Output buffer with a maximum length.
struct Bounded {
    bytes: Vec<u8>,
    longest: usize,
    full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.longest {
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

/// Replaces `{% generation %} … {% endgeneration %}`, which marks the assistant's tokens for
/// training, by a plain block.
fn without_generation_tags(source: &str) -> String {
    let mut out = source.to_owned();
    // Few templates have these tags, and the patterns take longer to compile than most templates.
    if !source.contains("endgeneration") {
        return out;
    }
    for (tag, replacement) in [("generation", "if true"), ("endgeneration", "endif")] {
        let pattern = format!(r"\{{%([-+]?)\s*{tag}\s*([-+]?)%\}}");
        if let Ok(regex) = fancy_regex::Regex::new(&pattern) {
            out = regex
                .replace_all(&out, format!("{{%${{1}} {replacement} ${{2}}%}}"))
                .into_owned();
        }
    }
    out
}
