//! What a model writes, taken apart as it comes: reasoning, text, calls of tools.
//!
//! Which texts structure it says a row of [`markup`](crate::chat::markup). The prompt may have opened reasoning, or the answer. Where several
//! markups begin calls alike, how a call goes on decides: models that were made for the one write the other now and then. Nothing is told before
//! it is certain what it is, and whatever is held back for that has a bound, or is told at the end of a value.

mod bare;
mod calls;
mod messages;
mod named;
mod object;
mod parts;
mod schemas;
mod tags;
mod values;

pub use parts::Part;
pub use schemas::Schemas;

use crate::chat::markup::{Frame, Markup};
use calls::Calls;
use messages::{MessageReply, before_tools};
use parts::{Beginning, Held};

/// What a reply goes on with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Begins {
    /// Anything.
    #[default]
    Open,
    /// Reasoning, which the prompt has opened.
    Reasoning,
    /// Text that the prompt has begun.
    Answer,
}

/// The parser of one reply.
pub struct Reply {
    markup: &'static Markup,
    state: State,
    /// What is not decided yet.
    held: Held,
    /// Nothing of this kind has been told yet, so that white space before it is no part of it.
    fresh: bool,
    schemas: Option<Schemas>,
    /// It consists of calls: what is none yet at its end is the beginning of one, and no text.
    forced: bool,
}

enum State {
    Start,
    Reasoning,
    /// Behind reasoning, or behind a call that nothing closes: an object may be a call.
    Behind,
    Content,
    Calls(Box<Calls>),
    Messages(MessageReply),
}

impl Reply {
    /// A reply in that markup. Calls are looked for where there are tools; `forced` if nothing but calls can come.
    pub fn new(markup: &'static Markup, begins: Begins, schemas: Option<Schemas>, forced: bool) -> Reply {
        let state = match (markup.frame, begins) {
            (Frame::Messages(messages), _) => {
                let answer = begins == Begins::Answer;
                State::Messages(MessageReply::new(messages, before_tools(markup), schemas.is_some(), answer))
            }
            (Frame::Text, Begins::Open) => State::Start,
            (Frame::Text, Begins::Reasoning) => State::Reasoning,
            (Frame::Text, Begins::Answer) => State::Content,
        };
        let fresh = matches!(state, State::Reasoning);
        Reply { markup, state, held: Held::default(), fresh, schemas, forced }
    }
    /// More text; what it makes certain.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push(text);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }
    /// The end; the rest. `cut` if more would have come: a call that has begun is markup then, and no text.
    pub fn finish(&mut self, cut: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        let held = self.held.take();
        match std::mem::replace(&mut self.state, State::Content) {
            State::Messages(mut messages) => messages.finish(held, cut, self.forced, &mut parts),
            State::Reasoning => self.tell(Part::Reasoning, held.trim_end().to_owned(), &mut parts),
            State::Start | State::Behind | State::Content if self.forced => {}
            State::Start | State::Behind | State::Content => self.tell(Part::Content, held, &mut parts),
            State::Calls(calls) => {
                let text = calls.finish(&held, cut, &mut parts);
                parts.extend(text.filter(|_| !cut && !self.forced).map(Part::Content));
            }
        }
        parts
    }
    /// One decision; was there one to make?
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match &mut self.state {
            State::Start => self.start(),
            State::Reasoning => {
                let (before, found) = self.held.stream(&[self.markup.think[1]], true);
                let before = if found.is_some() { before.trim_end().to_owned() } else { before };
                self.tell(Part::Reasoning, before, parts);
                if found.is_some() {
                    self.enter(State::Behind, true);
                }
                found.is_some()
            }
            State::Behind => self.behind(),
            State::Content => self.content(parts),
            State::Calls(calls) => {
                let more = calls.step(&mut self.held, parts);
                if let Some(text) = calls.other() {
                    self.enter(State::Content, false);
                    self.tell(Part::Content, text, parts);
                    return true;
                }
                if calls.is_done() {
                    let next = if self.markup.is_bare() { State::Behind } else { State::Content };
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
            // White space before reasoning is nobody's, before text it is the text's.
            Beginning::Other => self.enter(State::Behind, false),
        }
        true
    }
    /// Is this an object that may be a call?
    fn behind(&mut self) -> bool {
        let tools = self.schemas.as_ref().filter(|_| self.markup.is_bare());
        if let Some(tools) = tools {
            match self.held.trimmed().chars().next() {
                None => return false,
                Some('{') => {
                    self.enter(State::Calls(Box::new(Calls::bare(self.markup, tools.clone()))), true);
                    return true;
                }
                Some(_) => {}
            }
        }
        let fresh = self.fresh;
        self.enter(State::Content, fresh);
        true
    }
    fn content(&mut self, parts: &mut Vec<Part>) -> bool {
        let markers: Vec<&'static str> =
            if self.schemas.is_some() { self.markup.opens().collect() } else { Vec::new() };
        let (before, found) = self.held.stream(&markers, self.schemas.is_some());
        let before = if found.is_some() { before.trim_end().to_owned() } else { before };
        self.tell(Part::Content, before, parts);
        if let Some(found) = found {
            let schemas = self.schemas.clone().unwrap_or_default();
            self.enter(State::Calls(Box::new(Calls::opened(self.markup, found, schemas))), true);
        }
        found.is_some()
    }
    fn enter(&mut self, state: State, fresh: bool) {
        self.state = state;
        self.fresh = fresh;
    }
    fn tell(&mut self, part: fn(String) -> Part, text: String, parts: &mut Vec<Part>) {
        let text = if self.fresh { text.trim_start().to_owned() } else { text };
        if !text.is_empty() {
            self.fresh = false;
            parts.push(part(text));
        }
    }
}

#[cfg(test)]
mod tests;
