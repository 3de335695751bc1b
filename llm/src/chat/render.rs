//! Renders templates, in a helper process or, if trusted, in this process.

use gristmill_uop::clock::Instant;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::time::{Duration, UNIX_EPOCH};

use minijinja::Environment;
use serde_json::{Map, Value as Json};

use super::error::{self, ChatError};
use super::origin::Tracer;
use super::request::{ChatRequest, Conversation, Origin, Rendered};
use super::trust::Marker;
use super::{bounds, environment, fit, refit};

/// Maximum instructions of one rendering; a message takes some hundred.
const FUEL: u64 = 20_000_000;
/// Maximum depth of nested macro calls.
const MAX_RECURSION: usize = 100;

/// Time after which no further changes of a refused conversation are tried; the helper process has
/// two seconds.
const REFIT_TIME: Duration = Duration::from_millis(500);

const NAME: &str = "chat";

/// Compiles the template and renders the conversation, if the request has one.
pub(super) fn answer(request: &ChatRequest) -> Result<Rendered, ChatError> {
    // Jinja reads every line break as "\n".
    let source = request.source.replace("\r\n", "\n").replace('\r', "\n");
    let source = without_generation_tags(&source);
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
    let (fitted, Text { text, steps }) = fitted(&env, &request.source, conversation)?;
    let marker = Marker::new(conversation.control.clone(), &request.source)?;
    // All trials together may take as long as one rendering.
    let trials = usize::try_from(FUEL / steps.max(1)).unwrap_or(usize::MAX);
    let Fitted { messages, aside } = &fitted;
    let again = |messages: &[Json], aside: Option<&Json>| {
        run(&env, messages, aside, conversation)
            .ok()
            .map(|rendered| rendered.text)
    };
    let untrusted = marker.untrusted(&text, messages, Some(aside), trials, again);
    let origin = match conversation.guarded {
        true => Tracer::new(&source)?.origin(&text, messages, aside, again),
        false => Origin::Unknown,
    };
    Ok(Rendered {
        text,
        untrusted,
        origin,
    })
}

/// A conversation in the form that the template accepts.
struct Fitted {
    messages: Vec<Json>,
    /// Tools and the client's variables (`Conversation::aside`).
    aside: Json,
}

/// Renders the conversation with the mildest changes that the template accepts.
///
/// # Errors
/// Returns the error of the conversation as given if no change helps.
fn fitted(
    env: &Environment<'_>,
    source: &str,
    conversation: &Conversation,
) -> Result<(Fitted, Text), ChatError> {
    let trial = |messages: &[Json]| {
        run(env, messages, None, conversation)
            .ok()
            .map(|rendered| rendered.text)
    };
    let needed = refit::needed(source, &conversation.messages, trial);
    let began = Instant::now();
    let mut first = None;
    for plan in refit::PLANS {
        let (mut messages, mut tools) = (conversation.messages.clone(), conversation.tools.clone());
        refit::apply(&needed, source, &mut messages, &mut tools);
        refit::apply(plan, source, &mut messages, &mut tools);
        let fitted = Fitted {
            messages: fit::fitted(source, &messages, tools.as_ref(), trial),
            aside: Conversation::aside(tools.as_ref(), &conversation.given),
        };
        match run(env, &fitted.messages, Some(&fitted.aside), conversation) {
            Ok(text) => return Ok((fitted, text)),
            Err(error @ (ChatError::Raised(_) | ChatError::Render(_))) => {
                let error = first.get_or_insert(error);
                if began.elapsed() > REFIT_TIME {
                    return Err(error.clone());
                }
            }
            Err(error) => return Err(first.unwrap_or(error)),
        }
    }
    Err(first.unwrap_or_else(|| ChatError::Render("no form was tried".into())))
}

/// Rendered text, and the instructions it took.
struct Text {
    text: String,
    steps: u64,
}

fn run(
    env: &Environment<'_>,
    messages: &[Json],
    aside: Option<&Json>,
    conversation: &Conversation,
) -> Result<Text, ChatError> {
    let mut context = Map::new();
    if let Some(Json::Array(aside)) = aside {
        if let Some(Json::Object(given)) = aside.get(1) {
            context.extend(given.clone());
        }
        if let Some(tools) = aside.first().filter(|tools| !tools.is_null()) {
            context.insert("tools".into(), tools.clone());
        }
    }
    context.extend(conversation.variables.clone());
    context.insert("messages".into(), messages.into());
    let context = environment::to_value(&Json::Object(context));
    let template = env
        .get_template(NAME)
        .map_err(|e| ChatError::Compile(error::describe(&e)))?;
    let mut out = Bounded {
        bytes: Vec::new(),
        longest: conversation.longest,
        full: false,
    };
    // minijinja panics on some expressions, such as the reverse of an empty string.
    let rendering = AssertUnwindSafe(|| template.render_captured_to(context, &mut out));
    let Ok(result) = panic::catch_unwind(rendering) else {
        return Err(ChatError::Panicked);
    };
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
