//! What a model writes, taken apart as it comes: reasoning, text, calls of tools.
//!
//! Reasoning stands between `<think>` and `</think>`; the prompt may have opened it. A call stands between `<tool_call>` and
//! `</tool_call>`, in one of two forms, told apart by how it begins: JSON (`{"name": …, "arguments": {…}}`) or GLM's tags
//! (`name<arg_key>k</arg_key><arg_value>v</arg_value>`). Nothing is told before it is certain what it is.

mod json;
mod markup;
mod tags;

pub use markup::{CALL, CALLED, MARKERS, Part, THINK, THOUGHT};
pub use tags::Schemas;

use json::JsonCall;
use markup::take_until;
use tags::TagsCall;

/// The parser of one reply.
pub struct Reply {
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
    /// After `<tool_call>`: which form it is comes next.
    Opened,
    Json(JsonCall),
    Tags(TagsCall),
    /// After a JSON call, before `</tool_call>`.
    Closing,
}

impl Reply {
    /// A reply; `reasoning` if the prompt has opened it. Calls are looked for where there are tools; `forced` if nothing but calls can come.
    pub fn new(reasoning: bool, schemas: Option<Schemas>, forced: bool) -> Reply {
        let state = if reasoning { State::Reasoning } else { State::Start };
        Reply { state, held: String::new(), fresh: reasoning, schemas, forced }
    }
    /// Can it consist of nothing but calls?
    pub fn is_forced(&self) -> bool {
        self.forced
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
        let mut parts = Vec::new();
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Content) {
            State::Reasoning => self.tell(Part::Reasoning, held.trim_end().to_owned(), &mut parts),
            _ if self.forced => {}
            State::Start | State::Content => self.tell(Part::Content, held, &mut parts),
            _ if cut => {}
            State::Opened => parts.push(Part::Content(format!("{CALL}{held}"))),
            State::Json(call) => parts.extend(call.abandon().map(|raw| Part::Content(format!("{CALL}{raw}")))),
            State::Tags(call) => parts.extend(call.abandon(&held).map(|raw| Part::Content(format!("{CALL}{raw}")))),
            State::Closing => {}
        }
        parts
    }
    /// One decision; was there one to make?
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match &mut self.state {
            State::Start => {
                let text = self.held.trim_start();
                if let Some(rest) = text.strip_prefix(THINK) {
                    self.held = rest.to_owned();
                    self.enter(State::Reasoning, true);
                } else if THINK.starts_with(text) {
                    return false;
                } else {
                    self.enter(State::Content, false);
                }
                true
            }
            State::Reasoning => {
                let (before, found) = take_until(&mut self.held, &[THOUGHT], true);
                let before = if found.is_some() { before.trim_end().to_owned() } else { before };
                self.tell(Part::Reasoning, before, parts);
                if found.is_some() {
                    self.enter(State::Content, true);
                }
                found.is_some()
            }
            State::Content => {
                let markers: &[&str] = if self.schemas.is_some() { &[CALL] } else { &[] };
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
                    self.enter(State::Tags(TagsCall::new(schemas)), true);
                    true
                }
            },
            State::Json(call) => {
                let used = call.push(&self.held, parts);
                self.held.drain(..used);
                let done = call.is_done();
                if done {
                    let raw = std::mem::take(call).abandon();
                    parts.extend(raw.map(|raw| Part::Content(format!("{CALL}{raw}"))));
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
                if let Some(rest) = text.strip_prefix(CALLED) {
                    self.held = rest.to_owned();
                } else if CALLED.starts_with(text) {
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
