//! Parser of replies with message headers,
//! `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`.

use super::parts::{HeldText, ReplyPart, Search};
use crate::chat::markup::{CallFormat, Markup, Messages};

/// Maximum bytes of a header; a longer one is treated as text.
const MAX_HEADER_BYTES: usize = 512;

/// Streaming parser of a reply with message headers.
pub struct MessageReply {
    messages: Messages,
    /// Prefix of tool names in headers.
    tools: &'static str,
    /// True if tools may be called.
    callable: bool,
    phase: Phase,
    /// True until text of the current message was emitted.
    fresh: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Header,
    Reasoning,
    Content,
    Call,
}

/// Channel of reasoning; all other channels are content.
const REASONING: &str = "analysis";

impl MessageReply {
    /// Creates a parser. The reply begins within its first header, or in content if `answer`;
    /// `tools` is the prefix of tool names.
    pub fn new(
        messages: Messages,
        tools: &'static str,
        callable: bool,
        answer: bool,
    ) -> MessageReply {
        let phase = if answer {
            Phase::Content
        } else {
            Phase::Header
        };
        MessageReply {
            messages,
            tools,
            callable,
            phase,
            fresh: false,
        }
    }
    /// Consumes one element of `held`. Returns false if more text is needed.
    pub fn step(&mut self, held: &mut HeldText, parts: &mut Vec<ReplyPart>) -> bool {
        let Messages {
            start,
            channel,
            body,
            ends,
            ..
        } = self.messages;
        if self.phase == Phase::Header {
            if !self.may_be_header(held.trimmed()) {
                self.enter(Phase::Content);
                return true;
            }
            match held.until_within(&[body], MAX_HEADER_BYTES) {
                Search::Found(header, _) => self.begin(&header, parts),
                Search::Far(text) => {
                    self.enter(Phase::Content);
                    self.emit(text, parts);
                }
                Search::Open => return false,
            }
            return true;
        }
        let markers: Vec<&'static str> = ends.iter().copied().chain([start[0], channel]).collect();
        let (before, found) = held.stream(&markers, false);
        self.emit(before, parts);
        if let Some(found) = found {
            if self.phase == Phase::Call && self.fresh {
                self.emit("{}".into(), parts);
            }
            if !ends.contains(&found) {
                // The marker belongs to the next header.
                let rest = held.take();
                held.push(found);
                held.push(&rest);
            }
            self.enter(Phase::Header);
        }
        found.is_some()
    }
    /// Returns true if `text` may be the beginning of a header; otherwise it is
    /// a message without one.
    fn may_be_header(&self, text: &str) -> bool {
        let Messages {
            start,
            channel,
            recipient,
            body,
            ends,
            ..
        } = self.messages;
        let mut begins = [start[0], start[1], channel, recipient, body]
            .into_iter()
            .chain(ends.iter().copied());
        begins.any(|begin| text.starts_with(begin) || begin.starts_with(text))
    }
    /// Starts the message that the header describes.
    fn begin(&mut self, header: &str, parts: &mut Vec<ReplyPart>) {
        let word = |text: &'static str| {
            let (_, rest) = header.split_once(text)?;
            rest.split(|c: char| c.is_whitespace() || c == '<').next()
        };
        let tool =
            word(self.messages.recipient).and_then(|recipient| recipient.strip_prefix(self.tools));
        let phase = match (tool.filter(|_| self.callable), word(self.messages.channel)) {
            (Some(tool), _) => {
                parts.push(ReplyPart::Call(tool.to_owned()));
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
    fn emit(&mut self, text: String, parts: &mut Vec<ReplyPart>) {
        if text.is_empty() {
            return;
        }
        self.fresh = false;
        parts.push(match self.phase {
            Phase::Reasoning => ReplyPart::Reasoning(text),
            Phase::Call => ReplyPart::Arguments(text),
            Phase::Header | Phase::Content => ReplyPart::Content(text),
        });
    }
    /// Ends the input; `cut` if generation was truncated, `forced` if only calls are allowed.
    pub fn finish(&mut self, held: String, cut: bool, forced: bool, parts: &mut Vec<ReplyPart>) {
        match self.phase {
            // Discards the beginning of a header; emits text that only resembled one.
            Phase::Header
                if cut
                    || held.contains(self.messages.start[0])
                    || held.contains(self.messages.channel) => {}
            Phase::Header if forced => {}
            Phase::Content if forced => {}
            Phase::Call if self.fresh && held.is_empty() && !cut => self.emit("{}".into(), parts),
            _ => self.emit(held, parts),
        }
    }
}

/// Returns the prefix of tool names in headers of this markup.
pub fn before_tools(markup: &Markup) -> &'static str {
    match markup.form {
        CallFormat::Named(name, _) => name.before,
        CallFormat::Object { .. } => "",
    }
}
