//! A reply of messages with headers, `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`.

use super::parts::{Held, Part, Search};
use crate::chat::markup::{Form, Markup, Messages};

/// Most bytes of a header; longer ones are none, and what stands in their place is a text.
const HEADER: usize = 512;

/// The parser.
pub struct MessageReply {
    messages: Messages,
    /// What stands before a tool's name.
    tools: &'static str,
    /// Are there tools that may be called?
    callable: bool,
    phase: Phase,
    /// Nothing of this message has been told yet.
    fresh: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Header,
    Reasoning,
    Content,
    Call,
}

/// The channel of what the model thinks; what is on others is said to the user.
const REASONING: &str = "analysis";

impl MessageReply {
    /// A reply that begins within its first header, or within its answer. Before the names of tools stands `tools`.
    pub fn new(messages: Messages, tools: &'static str, callable: bool, answer: bool) -> MessageReply {
        let phase = if answer { Phase::Content } else { Phase::Header };
        MessageReply { messages, tools, callable, phase, fresh: false }
    }
    /// One decision about `held`; was there one to make?
    pub fn step(&mut self, held: &mut Held, parts: &mut Vec<Part>) -> bool {
        let Messages { start, channel, body, ends, .. } = self.messages;
        if self.phase == Phase::Header {
            if !self.may_be_header(held.trimmed()) {
                self.enter(Phase::Content);
                return true;
            }
            match held.until_within(&[body], HEADER) {
                Search::Found(header, _) => self.begin(&header, parts),
                Search::Far(text) => {
                    self.enter(Phase::Content);
                    self.tell(text, parts);
                }
                Search::Open => return false,
            }
            return true;
        }
        let markers: Vec<&'static str> = ends.iter().copied().chain([start[0], channel]).collect();
        let (before, found) = held.stream(&markers, false);
        self.tell(before, parts);
        if let Some(found) = found {
            if self.phase == Phase::Call && self.fresh {
                self.tell("{}".into(), parts);
            }
            if !ends.contains(&found) {
                // It is of the header.
                let rest = held.take();
                held.push(found);
                held.push(&rest);
            }
            self.enter(Phase::Header);
        }
        found.is_some()
    }
    /// Does a header begin so? What does not is a text that lacks one.
    fn may_be_header(&self, text: &str) -> bool {
        let Messages { start, channel, recipient, body, ends, .. } = self.messages;
        let mut begins = [start[0], start[1], channel, recipient, body].into_iter().chain(ends.iter().copied());
        begins.any(|begin| text.starts_with(begin) || begin.starts_with(text))
    }
    /// The body follows of a message with that header.
    fn begin(&mut self, header: &str, parts: &mut Vec<Part>) {
        let word = |text: &'static str| {
            let (_, rest) = header.split_once(text)?;
            rest.split(|c: char| c.is_whitespace() || c == '<').next()
        };
        let tool = word(self.messages.recipient).and_then(|recipient| recipient.strip_prefix(self.tools));
        let phase = match (tool.filter(|_| self.callable), word(self.messages.channel)) {
            (Some(tool), _) => {
                parts.push(Part::Call(tool.to_owned()));
                Phase::Call
            }
            (None, Some(REASONING)) => Phase::Reasoning,
            (None, _) => Phase::Content,
        };
        self.enter(phase);
    }
    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.fresh = true;
    }
    fn tell(&mut self, text: String, parts: &mut Vec<Part>) {
        if text.is_empty() {
            return;
        }
        self.fresh = false;
        parts.push(match self.phase {
            Phase::Reasoning => Part::Reasoning(text),
            Phase::Call => Part::Arguments(text),
            Phase::Header | Phase::Content => Part::Content(text),
        });
    }
    /// The end, with what is left; `cut` if more would have come, `forced` if nothing but calls can.
    pub fn finish(&mut self, held: String, cut: bool, forced: bool, parts: &mut Vec<Part>) {
        match self.phase {
            // The beginning of a header is no text; what only looked like one is.
            Phase::Header if cut || held.contains(self.messages.start[0]) || held.contains(self.messages.channel) => {}
            Phase::Header if forced => {}
            Phase::Content if forced => {}
            Phase::Call if self.fresh && held.is_empty() && !cut => self.tell("{}".into(), parts),
            _ => self.tell(held, parts),
        }
    }
}

/// What stands before the names of tools in the headers of that markup.
pub fn before_tools(markup: &Markup) -> &'static str {
    match markup.form {
        Form::Named(name, _) => name.before,
        Form::Object { .. } => "",
    }
}
