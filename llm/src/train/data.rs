//! Training data: lines of JSON to token ids, and which of them are targets.
//!
//! A line is `{"messages": […]}` (with `"tools"`), `{"prompt": "…", "completion": "…"}` or
//! `{"text": "…"}`. Of a conversation, the targets are the assistant's words and the token that
//! ends each of its turns; of a pair, the completion; of a text, everything.

use crate::chat::{ChatError, ChatTemplate, Message, RenderOptions, TextSpan};
use crate::tokenizer::Tokenizer;
use serde_json::{Map, Value as Json};
use std::ops::Range;

/// Longest line in bytes.
const LONGEST_LINE: usize = 64 << 20;
/// Most messages of a line: a template renders every beginning of a conversation.
const MOST_MESSAGES: usize = 1000;

/// Tokens of a text before [`Example::reply`], and in it.
const SHOWN_TEXT: usize = 48;

/// Which tokens count in the loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LossOn {
    /// The assistant's replies and completions.
    Replies,
    /// Every token but the first.
    All,
}

/// Tokens of one line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Example {
    /// Token ids, those that end answers included.
    pub tokens: Vec<u32>,
    /// Whether each token is predicted.
    pub is_target: Vec<bool>,
    /// Whether the example may be cut into several; other long examples lose their end.
    pub is_text: bool,
    /// Tokens of the first reply, to compare generated ones with; of a text, some in its middle.
    pub reply: Range<usize>,
}

impl Example {
    /// The first run of targets, or the half of a text's first tokens.
    fn first_reply(&self) -> Range<usize> {
        let length = self.tokens.len();
        if self.is_text {
            let end = length.min(2 * SHOWN_TEXT);
            return end / 2..end;
        }
        let begin = self.is_target.iter().position(|&t| t).unwrap_or(length);
        let run = self.is_target[begin..].iter().take_while(|&&t| t).count();
        begin..begin + run
    }
}

/// A line that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The line is no JSON object.
    #[error("not a JSON object: {0}")]
    Json(serde_json::Error),
    /// The line is too long.
    #[error("longer than {} MB", LONGEST_LINE >> 20)]
    Length,
    /// The object has none of the known forms.
    #[error("{0}")]
    Form(String),
    /// The template refused the conversation.
    #[error("the chat template failed: {0}")]
    Template(#[from] ChatError),
    /// Nothing in the line is predicted.
    #[error("{0}")]
    NoTarget(String),
}

/// Turns lines into tokens.
pub struct ExampleReader<'a> {
    /// Tokenizer of the model.
    pub tokenizer: &'a Tokenizer,
    /// Template that renders conversations.
    pub template: &'a ChatTemplate,
    /// Which tokens are targets.
    pub loss_on: LossOn,
}

/// A text and whether it is predicted.
type Segment<'a> = (Vec<(&'a str, bool)>, bool);

impl ExampleReader<'_> {
    /// Reads a line of at most `context` tokens that count.
    ///
    /// # Errors
    /// When the line is malformed, or none of its first `context` tokens is a target.
    pub fn read(&self, line: &str, context: usize) -> Result<Example, LineError> {
        if line.len() > LONGEST_LINE {
            return Err(LineError::Length);
        }
        let object: Map<String, Json> = serde_json::from_str(line).map_err(LineError::Json)?;
        let mut example = self.example(&object)?;
        example.reply = example.first_reply();
        if self.loss_on == LossOn::All {
            example.is_target.fill(true);
        }
        // The first token has no predecessor.
        if let Some(first) = example.is_target.first_mut() {
            *first = false;
        }
        let seen = example.is_target.len().min(context);
        if example.is_target[..seen].contains(&true) {
            return Ok(example);
        }
        Err(LineError::NoTarget(
            match example.is_target.contains(&true) {
                true => format!("its reply begins after {context} tokens, the context of a row"),
                false => "it has no reply to learn".into(),
            },
        ))
    }
    fn example(&self, object: &Map<String, Json>) -> Result<Example, LineError> {
        let text = |name: &str| match object.get(name) {
            None | Some(Json::Null) => Ok(None),
            Some(Json::String(text)) => Ok(Some(text.as_str())),
            Some(_) => Err(LineError::Form(format!("\"{name}\" is no text"))),
        };
        let list = |name: &str| object.get(name).and_then(Json::as_array);
        if let Some(messages) = list("messages").or_else(|| list("conversations")) {
            return self.conversation(messages, object);
        }
        // Prompts and completions may be lists of messages.
        if let (Some(prompt), Some(completion)) = (list("prompt"), list("completion")) {
            let messages: Vec<Json> = prompt.iter().chain(completion).cloned().collect();
            return self.conversation(&messages, object);
        }
        if let (Some(prompt), Some(completion)) = (text("prompt")?, text("completion")?) {
            let mut example = self.tokens(prompt, false, true);
            self.append(
                &mut example,
                self.tokenizer.encode(completion, true, false),
                true,
            );
            self.end(&mut example);
            return Ok(example);
        }
        if let Some(text) = text("text")? {
            let mut example = self.tokens(text, true, true);
            self.end(&mut example);
            example.is_text = true;
            return Ok(example);
        }
        let expected = "expected \"messages\", \"prompt\" and \"completion\", or \"text\"";
        Err(LineError::Form(expected.into()))
    }
    fn tokens(&self, text: &str, is_target: bool, is_first: bool) -> Example {
        let mut example = Example::default();
        let tokens = self.tokenizer.encode(text, true, is_first);
        self.append(&mut example, tokens, is_target);
        example
    }
    fn append(&self, example: &mut Example, tokens: Vec<u32>, is_target: bool) {
        example
            .is_target
            .resize(example.is_target.len() + tokens.len(), is_target);
        example.tokens.extend(tokens);
    }
    /// Appends the end-of-text token if the last token ends no answer.
    fn end(&self, example: &mut Example) {
        let ended = example
            .tokens
            .last()
            .is_some_and(|&t| self.tokenizer.is_eog(t));
        if let Some(eos) = self.tokenizer.eos().filter(|_| !ended) {
            self.append(example, vec![eos], true);
        }
    }
    fn conversation(
        &self,
        messages: &[Json],
        object: &Map<String, Json>,
    ) -> Result<Example, LineError> {
        if messages.len() > MOST_MESSAGES {
            return Err(LineError::Form(format!(
                "more than {MOST_MESSAGES} messages"
            )));
        }
        let messages: Vec<Message> = messages.iter().map(message).collect::<Result<_, _>>()?;
        let tools = object.get("tools").filter(|t| !t.is_null()).cloned();
        let rendered = Conversation {
            reader: self,
            messages: &messages,
            tools,
        };
        let spans = rendered.spans(messages.len(), false)?;
        let text = TextSpan::concat(&spans);
        let replies = rendered.replies(&text)?;
        let mut example = Example::default();
        for (part, is_target) in segments(&spans, &replies) {
            let is_first = example.tokens.is_empty();
            let tokens = self.tokenizer.encode_spans(&part, is_first);
            self.append(&mut example, tokens, is_target);
        }
        // A reply that ends the conversation ends with a token that ends answers.
        if replies
            .last()
            .is_some_and(|r| r.end == text.trim_end().len())
        {
            self.end(&mut example);
        }
        Ok(example)
    }
}

/// Reads a message: the fields that templates know, and any others.
fn message(json: &Json) -> Result<Message, LineError> {
    let Json::Object(fields) = json else {
        return Err(LineError::Form("a message is no object".into()));
    };
    // ShareGPT's names.
    let field = |names: [&str; 2]| names.iter().find_map(|name| fields.get(*name));
    let Some(Json::String(role)) = field(["role", "from"]) else {
        return Err(LineError::Form("a message has no role".into()));
    };
    let role = match role.as_str() {
        "human" => "user",
        "gpt" | "model" => "assistant",
        role => role,
    };
    let text = |name: &str| fields.get(name).and_then(Json::as_str).map(str::to_owned);
    let known = [
        "role",
        "from",
        "content",
        "value",
        "reasoning_content",
        "tool_calls",
        "tool_call_id",
        "name",
    ];
    let other = |(name, _): &(&String, &Json)| !known.contains(&name.as_str());
    Ok(Message {
        role: role.to_owned(),
        content: field(["content", "value"]).cloned().unwrap_or(Json::Null),
        reasoning_content: text("reasoning_content"),
        tool_calls: fields.get("tool_calls").filter(|c| !c.is_null()).cloned(),
        tool_call_id: text("tool_call_id"),
        name: text("name"),
        extra: fields
            .iter()
            .filter(other)
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
    })
}

/// A conversation whose beginnings can be rendered.
struct Conversation<'a> {
    reader: &'a ExampleReader<'a>,
    messages: &'a [Message],
    tools: Option<Json>,
}

impl Conversation<'_> {
    fn spans(&self, count: usize, prompt: bool) -> Result<Vec<TextSpan>, LineError> {
        let options = RenderOptions {
            add_generation_prompt: prompt,
            tools: self.tools.clone(),
            ..RenderOptions::default()
        };
        Ok(self
            .reader
            .template
            .render(&self.messages[..count], &options)?)
    }
    fn text(&self, count: usize, prompt: bool) -> Result<String, LineError> {
        Ok(TextSpan::concat(&self.spans(count, prompt)?))
    }
    /// Byte ranges of the assistant's turns in the rendered `text`, with the token that ends each.
    fn replies(&self, text: &str) -> Result<Vec<Range<usize>>, LineError> {
        let mut found: Vec<Range<usize>> = Vec::new();
        let turns = self.messages.iter().enumerate();
        for (i, message) in turns.filter(|(_, m)| m.role == "assistant") {
            let from = found.last().map_or(0, |r| r.end);
            let mut begin = None;
            for prompt in [true, false] {
                // A template may refuse a conversation that begins with the assistant.
                let before = self.text(i, prompt).unwrap_or_default();
                if before.len() >= from && text.starts_with(&before) {
                    begin = Some(before.len());
                    break;
                }
            }
            let content = message.content.as_str().unwrap_or_default().trim();
            let by_content = |from: usize| {
                let at = from + text[from..].find(content).filter(|_| !content.is_empty())?;
                Some(at..at + content.len())
            };
            let after = match i + 1 == self.messages.len() {
                true => Some(text.to_owned()),
                false => self.text(i + 1, false).ok(),
            };
            let after = after.filter(|after| text.starts_with(after.as_str()));
            let hidden = || {
                let problem = "the chat template does not show the reply as it is";
                LineError::Form(format!("message {}: {problem}", i + 1))
            };
            let range = match (begin, after) {
                (Some(begin), Some(after)) if after.trim_end().len() > begin => {
                    begin..after.trim_end().len()
                }
                // A turn without a word.
                (Some(_), _) if content.is_empty() => continue,
                (Some(begin), _) => begin..by_content(begin).ok_or_else(hidden)?.end,
                (None, _) => by_content(from).ok_or_else(hidden)?,
            };
            found.push(self.with_ending(text, range));
        }
        Ok(found)
    }
    /// Extends a reply by the control token that follows it, unless it ends with one.
    fn with_ending(&self, text: &str, range: Range<usize>) -> Range<usize> {
        let control = self.reader.tokenizer.special_texts();
        let is_ended = control
            .iter()
            .any(|c| !c.is_empty() && text[range.clone()].ends_with(c.as_str()));
        let following = || {
            let rest = &text[range.end..];
            let blank = rest.len() - rest.trim_start().len();
            let fits = |c: &&String| !c.is_empty() && rest[blank..].starts_with(c.as_str());
            control.iter().filter(fits).map(|c| blank + c.len()).max()
        };
        match is_ended {
            true => range,
            false => range.start..range.end + following().unwrap_or(0),
        }
    }
}

/// Cuts rendered spans at the borders of replies.
fn segments<'a>(spans: &'a [TextSpan], replies: &[Range<usize>]) -> Vec<Segment<'a>> {
    let mut borders: Vec<(usize, bool)> = Vec::new();
    let mut at = 0;
    for reply in replies {
        borders.extend([(reply.start, false), (reply.end, true)]);
        at = reply.end;
    }
    let length = spans.iter().map(|s| s.text.len()).sum::<usize>();
    if at < length {
        borders.push((length, false));
    }
    let (mut out, mut from): (Vec<Segment<'a>>, usize) = (Vec::new(), 0);
    for (to, is_target) in borders {
        let (mut part, mut at) = (Vec::new(), 0);
        for span in spans {
            let (begin, end) = (from.max(at), to.min(at + span.text.len()));
            if begin < end {
                part.push((&span.text[begin - at..end - at], span.trusted));
            }
            at += span.text.len();
        }
        if !part.is_empty() {
            out.push((part, is_target));
        }
        from = to;
    }
    out
}
