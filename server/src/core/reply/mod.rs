//! What a model writes, taken apart as it comes: reasoning, text, calls of tools.
//!
//! Which texts structure it says a row of [`gristmill_llm::chat::markup`]. The prompt may have opened reasoning. A call in JSON is told from one
//! in tags by how it begins: models that were made for the one write the other now and then. Nothing is told before it is certain what it is.

mod json;
mod parts;
mod tags;

pub use parts::Part;
pub use tags::Schemas;

use gristmill_llm::chat::markup::Markup;
use json::JsonCall;
use parts::take_until;
use tags::TagsCall;

/// The parser of one reply.
pub struct Reply {
    markup: Markup,
    state: State,
    /// What is not decided yet.
    held: String,
    /// Nothing of this kind has been told yet, so that white space before it is no part of it.
    fresh: bool,
    schemas: Option<Schemas>,
    /// It consists of calls: what is none yet at its end is the beginning of one, and no text.
    forced: bool,
}

enum State {
    Start,
    Reasoning,
    Content,
    /// After what opens a call: which form it is comes next.
    Opened,
    Json(JsonCall),
    Tags(TagsCall),
    /// After a JSON call, before what closes it.
    Closing,
}

impl Reply {
    /// A reply in that markup; `reasoning` if the prompt has opened it. Calls are looked for where there are tools; `forced` if nothing but calls can come.
    pub fn new(markup: Markup, reasoning: bool, schemas: Option<Schemas>, forced: bool) -> Reply {
        let state = if reasoning { State::Reasoning } else { State::Start };
        Reply { markup, state, held: String::new(), fresh: reasoning, schemas, forced }
    }
    /// More text; what it makes certain.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }
    /// The end; the rest. `cut` if more would have come: a call that has begun is markup then, and no text.
    pub fn finish(&mut self, cut: bool) -> Vec<Part> {
        let [call_open, _] = self.markup.call;
        let mut parts = Vec::new();
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Content) {
            State::Reasoning => self.tell(Part::Reasoning, held.trim_end().to_owned(), &mut parts),
            _ if self.forced => {}
            State::Start | State::Content => self.tell(Part::Content, held, &mut parts),
            _ if cut => {}
            State::Opened => parts.push(Part::Content(format!("{call_open}{held}"))),
            State::Json(call) => parts.extend(call.abandon().map(|raw| Part::Content(format!("{call_open}{raw}")))),
            State::Tags(call) => {
                parts.extend(call.abandon(&held).map(|raw| Part::Content(format!("{call_open}{raw}"))))
            }
            State::Closing => {}
        }
        parts
    }
    /// One decision; was there one to make?
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        let ([think_open, think_close], [call_open, call_close]) = (self.markup.think, self.markup.call);
        match &mut self.state {
            State::Start => {
                let text = self.held.trim_start();
                if let Some(rest) = text.strip_prefix(think_open) {
                    self.held = rest.to_owned();
                    self.enter(State::Reasoning, true);
                } else if think_open.starts_with(text) {
                    return false;
                } else {
                    self.enter(State::Content, false);
                }
                true
            }
            State::Reasoning => {
                let (before, found) = take_until(&mut self.held, &[think_close], true);
                let before = if found.is_some() { before.trim_end().to_owned() } else { before };
                self.tell(Part::Reasoning, before, parts);
                if found.is_some() {
                    self.enter(State::Content, true);
                }
                found.is_some()
            }
            State::Content => {
                let markers: &[&str] = if self.schemas.is_some() { &[call_open] } else { &[] };
                let (before, found) = take_until(&mut self.held, markers, self.schemas.is_some());
                let before = if found.is_some() { before.trim_end().to_owned() } else { before };
                self.tell(Part::Content, before, parts);
                if found.is_some() {
                    self.enter(State::Opened, true);
                }
                found.is_some()
            }
            State::Opened => match self.held.trim_start().chars().next() {
                None => false,
                Some('{') => {
                    self.enter(State::Json(JsonCall::default()), true);
                    true
                }
                Some(_) => {
                    let schemas = self.schemas.clone().unwrap_or_default();
                    self.enter(State::Tags(TagsCall::new(&self.markup, schemas)), true);
                    true
                }
            },
            State::Json(call) => {
                let used = call.push(&self.held, parts);
                self.held.drain(..used);
                let done = call.is_done();
                if done {
                    let raw = std::mem::take(call).abandon();
                    parts.extend(raw.map(|raw| Part::Content(format!("{call_open}{raw}"))));
                    self.enter(State::Closing, true);
                }
                done
            }
            State::Tags(call) => {
                let more = call.step(&mut self.held, parts);
                if call.is_done() {
                    self.enter(State::Content, true);
                }
                more
            }
            State::Closing => {
                let text = self.held.trim_start();
                if let Some(rest) = text.strip_prefix(call_close) {
                    self.held = rest.to_owned();
                } else if call_close.starts_with(text) {
                    return false;
                }
                self.enter(State::Content, true);
                true
            }
        }
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
