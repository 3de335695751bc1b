//! Streaming parser of replies: separates reasoning, content and tool calls.
//!
//! A row of [`markup`](crate::chat::markup) defines the delimiters. The prompt may have opened
//! reasoning or content. If several markups share an opening delimiter, the text after it selects
//! one, because models sometimes write a related markup. A part is emitted only when its kind is
//! certain; the text held back until then is bounded, or emitted at the end of a value.

mod bare;
mod calls;
mod messages;
mod named;
mod object;
mod parts;
mod schemas;
mod tags;
mod values;

pub use parts::ReplyPart;
pub use schemas::Schemas;

use crate::chat::markup::{Frame, Markup};
use calls::{Calls, FENCES};
use messages::{MessageReply, before_tools};
use parts::{Beginning, HeldText};

/// State of the reply at the end of the prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Begins {
    /// Nothing has been opened; the reply decides.
    #[default]
    Open,
    /// The prompt has opened reasoning.
    Reasoning,
    /// The prompt has opened content.
    Answer,
}

/// Streaming parser of one reply.
pub struct Reply {
    markup: &'static Markup,
    state: State,
    /// Text not yet assigned to a part.
    held: HeldText,
    /// True until text of this kind was emitted; white space before the first text is dropped.
    fresh: bool,
    schemas: Option<Schemas>,
    /// Only calls are allowed, so an unfinished beginning at the end is discarded rather
    /// than emitted as text.
    forced: bool,
}

enum State {
    Start,
    Reasoning,
    /// After reasoning, or after a call without closing text: a JSON object may be a call.
    Behind,
    Content,
    Calls(Box<Calls>),
    Messages(MessageReply),
}

impl Reply {
    /// Creates a parser. Calls are parsed only with `schemas`; `forced` if only calls are allowed.
    pub fn new(
        markup: &'static Markup,
        begins: Begins,
        schemas: Option<Schemas>,
        forced: bool,
    ) -> Reply {
        let state = match (markup.frame, begins) {
            (Frame::Messages(messages), _) => {
                let answer = begins == Begins::Answer;
                State::Messages(MessageReply::new(
                    messages,
                    before_tools(markup),
                    schemas.is_some(),
                    answer,
                ))
            }
            (Frame::Text, Begins::Open) => State::Start,
            (Frame::Text, Begins::Reasoning) => State::Reasoning,
            (Frame::Text, Begins::Answer) => State::Content,
        };
        let fresh = matches!(state, State::Reasoning);
        Reply {
            markup,
            state,
            held: HeldText::default(),
            fresh,
            schemas,
            forced,
        }
    }
    /// Adds text and returns the parts that became certain.
    pub fn push(&mut self, text: &str) -> Vec<ReplyPart> {
        self.held.push(text);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }
    /// Ends the reply and returns the remaining parts. `cut` if generation was truncated: an
    /// unfinished call is then discarded.
    pub fn finish(&mut self, cut: bool) -> Vec<ReplyPart> {
        let mut parts = Vec::new();
        let held = self.held.take();
        match std::mem::replace(&mut self.state, State::Content) {
            State::Messages(mut messages) => messages.finish(held, cut, self.forced, &mut parts),
            State::Reasoning => {
                self.emit(ReplyPart::Reasoning, held.trim_end().to_owned(), &mut parts)
            }
            State::Start | State::Behind | State::Content if self.forced => {}
            State::Start | State::Behind | State::Content => {
                self.emit(ReplyPart::Content, held, &mut parts)
            }
            State::Calls(calls) => {
                let text = calls.finish(&held, cut, &mut parts);
                parts.extend(
                    text.filter(|_| !cut && !self.forced)
                        .map(ReplyPart::Content),
                );
            }
        }
        parts
    }
    /// Consumes one element. Returns false if more text is needed.
    fn step(&mut self, parts: &mut Vec<ReplyPart>) -> bool {
        match &mut self.state {
            State::Start => self.start(),
            State::Reasoning => {
                let (before, found) = self.held.stream(&[self.markup.think[1]], true);
                let before = if found.is_some() {
                    before.trim_end().to_owned()
                } else {
                    before
                };
                self.emit(ReplyPart::Reasoning, before, parts);
                if found.is_some() {
                    self.enter(State::Behind, true);
                }
                found.is_some()
            }
            State::Behind => self.begins_bare_call(),
            State::Content => self.content(parts),
            State::Calls(calls) => {
                let more = calls.step(&mut self.held, parts);
                if let Some(text) = calls.other() {
                    self.enter(State::Content, false);
                    self.emit(ReplyPart::Content, text, parts);
                    return true;
                }
                if calls.is_done() {
                    let next = if self.markup.is_bare() || calls.is_bare() {
                        State::Behind
                    } else {
                        State::Content
                    };
                    self.enter(next, true);
                    return true;
                }
                more
            }
            State::Messages(messages) => messages.step(&mut self.held, parts),
        }
    }
    fn start(&mut self) -> bool {
        match self.held.begins(self.markup.think[0]) {
            Beginning::Part => return false,
            Beginning::Whole(end) => {
                self.held.split(end);
                self.enter(State::Reasoning, true);
            }
            // White space before reasoning is dropped; before content it is part of the content.
            Beginning::Other => self.enter(State::Behind, false),
        }
        true
    }
    /// Checks for a JSON object, also in a Markdown block, that may be a call.
    fn begins_bare_call(&mut self) -> bool {
        if let Some(tools) = self.schemas.clone() {
            match opens_object(self.held.text()) {
                None => return false,
                Some(None) => {}
                Some(Some(at)) => {
                    let before = self.held.split(at);
                    let dropped = self.fresh && !self.markup.is_bare();
                    let before = if dropped {
                        before.trim_start()
                    } else {
                        &before
                    };
                    let calls = Calls::bare(self.markup, tools, before.to_owned());
                    self.enter(State::Calls(Box::new(calls)), true);
                    return true;
                }
            }
        }
        let fresh = self.fresh;
        self.enter(State::Content, fresh);
        true
    }
    fn content(&mut self, parts: &mut Vec<ReplyPart>) -> bool {
        let markers: Vec<&'static str> = if self.schemas.is_some() {
            self.markup.opens().collect()
        } else {
            Vec::new()
        };
        let (before, found) = self.held.stream(&markers, self.schemas.is_some());
        let before = if found.is_some() {
            before.trim_end().to_owned()
        } else {
            before
        };
        self.emit(ReplyPart::Content, before, parts);
        if let Some(found) = found {
            let schemas = self.schemas.clone().unwrap_or_default();
            self.enter(
                State::Calls(Box::new(Calls::opened(self.markup, found, schemas))),
                true,
            );
        }
        found.is_some()
    }
    fn enter(&mut self, state: State, fresh: bool) {
        self.state = state;
        self.fresh = fresh;
    }
    fn emit(&mut self, part: fn(String) -> ReplyPart, text: String, parts: &mut Vec<ReplyPart>) {
        let text = if self.fresh {
            text.trim_start().to_owned()
        } else {
            text
        };
        if !text.is_empty() {
            self.fresh = false;
            parts.push(part(text));
        }
    }
}

/// Maximum bytes before a JSON object: white space, a fence and a language.
const MAX_OPENING: usize = 64;

/// Returns the byte at which a text's JSON object begins, after white space and the opening of a
/// fence; `Some(None)` without an object, `None` if more text decides.
fn opens_object(text: &str) -> Option<Option<usize>> {
    let mut rest = text.trim_start();
    let mut opens = FENCES.iter().map(|[open, _]| *open);
    if let Some(fenced) = opens.clone().find_map(|open| rest.strip_prefix(open)) {
        let language = |c: char| c.is_ascii_alphabetic() || c == '_';
        rest = fenced.trim_start_matches(language).trim_start();
    } else if opens.any(|open| open.starts_with(rest)) {
        rest = "";
    }
    let at = text.len() - rest.len();
    match rest.chars().next() {
        None if at > MAX_OPENING => Some(None),
        None => None,
        Some('{') => Some(Some(at)),
        Some(_) => Some(None),
    }
}

#[cfg(test)]
mod tests;
