//! Turns the tokens of an answer into text, and reasoning apart from the rest.

use crate::event::PageEvent;
use gristmill_llm::chat::markup::Markup;
use gristmill_llm::chat::reply::{Begins, Reply, ReplyPart};
use gristmill_llm::tokenizer::{Decoder, TokenKind, Tokenizer};

/// Decoder of one answer.
pub struct AnswerWriter<'t> {
    tokenizer: &'t Tokenizer,
    /// Special tokens that are parts of the markup are text to `reply`.
    decoder: Decoder<'t>,
    markers: Vec<u32>,
    reply: Reply,
}

impl<'t> AnswerWriter<'t> {
    /// Creates the decoder of a reply that begins like this.
    pub fn new(
        tokenizer: &'t Tokenizer,
        markup: &'static Markup,
        begins: Begins,
    ) -> AnswerWriter<'t> {
        let markers = markup.markers().into_iter();
        AnswerWriter {
            markers: markers
                .filter_map(|text| tokenizer.token_id(text))
                .collect(),
            decoder: Decoder::new(tokenizer).show_special(true),
            reply: Reply::new(markup, begins, None, false),
            tokenizer,
        }
    }
    /// Decodes a token; its text may become certain only with a later one.
    pub fn push(&mut self, id: u32) -> Vec<PageEvent> {
        let kind = self.tokenizer.token_kind(id);
        let is_text = matches!(kind, Some(TokenKind::Normal | TokenKind::UserDefined));
        if !is_text && !self.markers.contains(&id) {
            return vec![];
        }
        let text = self.decoder.push(id);
        events(self.reply.push(&text))
    }
    /// Returns the text that was held back; `cut` if the answer was stopped early.
    pub fn finish(mut self, cut: bool) -> Vec<PageEvent> {
        let rest = self.decoder.finish();
        let mut parts = self.reply.push(&rest);
        parts.extend(self.reply.finish(cut));
        events(parts)
    }
}

fn events(parts: Vec<ReplyPart>) -> Vec<PageEvent> {
    let event = |part| match part {
        ReplyPart::Reasoning(text) => PageEvent::Text {
            text,
            reasoning: true,
        },
        // Without tools, calls are content.
        ReplyPart::Content(text) | ReplyPart::Call(text) | ReplyPart::Arguments(text) => {
            PageEvent::Text {
                text,
                reasoning: false,
            }
        }
    };
    let events = parts.into_iter().map(event);
    events
        .filter(|event| !matches!(event, PageEvent::Text { text, .. } if text.is_empty()))
        .collect()
}
