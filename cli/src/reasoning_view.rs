//! Decodes an answer's tokens into text to show, content and reasoning.

use crate::style::THINKING;
use gristmill_llm::chat::markup::{Frame, Markup};
use gristmill_llm::chat::reply::{Begins, Reply, ReplyPart};
use gristmill_llm::tokenizer::{Decoder, TokenKind, Tokenizer, Utf8Stream};
use std::collections::HashSet;

/// Decoder of one answer.
pub struct Reader<'t> {
    tokenizer: &'t Tokenizer,
    text: Text<'t>,
    /// The content so far.
    pub said: String,
    /// The reasoning so far, if the model marks it.
    pub thought: Option<String>,
}

enum Text<'t> {
    /// Text as generated, with `<think>` tags.
    Plain(Decoder<'t>),
    /// Text of a model with other markup, parsed and shown with `<think>` tags.
    Marked(Box<Marked>),
}

struct Marked {
    reply: Reply,
    markers: HashSet<u32>,
    characters: Utf8Stream,
    thinking: bool,
}

impl<'t> Reader<'t> {
    /// Decodes without parsing markup.
    pub fn plain(tokenizer: &'t Tokenizer) -> Reader<'t> {
        Reader {
            tokenizer,
            text: Text::Plain(Decoder::new(tokenizer)),
            said: String::new(),
            thought: None,
        }
    }
    /// Decodes replies in this markup; the prompt has not begun the reply.
    pub fn for_markup(tokenizer: &'t Tokenizer, markup: &'static Markup) -> Reader<'t> {
        if markup.frame == Frame::Text && markup.think == THINKING {
            return Reader::plain(tokenizer);
        }
        let markers = markup
            .markers()
            .into_iter()
            .filter_map(|marker| tokenizer.token_id(marker))
            .collect();
        let reply = Reply::new(markup, Begins::Open, None, false);
        let marked = Marked {
            reply,
            markers,
            characters: Utf8Stream::default(),
            thinking: false,
        };
        Reader {
            text: Text::Marked(Box::new(marked)),
            ..Reader::plain(tokenizer)
        }
    }
    pub fn tokenizer(&self) -> &'t Tokenizer {
        self.tokenizer
    }
    /// Returns the text that a token adds.
    pub fn push(&mut self, id: u32) -> String {
        let marked = match &mut self.text {
            Text::Plain(decoder) => {
                let piece = decoder.push(id);
                self.said.push_str(&piece);
                return piece;
            }
            Text::Marked(marked) => marked,
        };
        let normal = matches!(
            self.tokenizer.token_kind(id),
            Some(TokenKind::Normal | TokenKind::UserDefined)
        );
        let shown = normal || marked.markers.contains(&id);
        let mut text = String::new();
        if shown {
            marked.characters.push(
                self.tokenizer.token_bytes(id).unwrap_or_default(),
                &mut text,
            );
        }
        let parts = marked.reply.push(&text);
        self.take(parts)
    }
    /// Returns the text that was held back; `cut` if the answer was stopped early.
    pub fn finish(&mut self, cut: bool) -> String {
        let marked = match &mut self.text {
            Text::Plain(decoder) => {
                let rest = decoder.finish();
                self.said.push_str(&rest);
                return rest;
            }
            Text::Marked(marked) => marked,
        };
        let mut text = String::new();
        marked.characters.finish(&mut text);
        let mut parts = marked.reply.push(&text);
        parts.extend(marked.reply.finish(cut));
        self.take(parts)
    }
    fn take(&mut self, parts: Vec<ReplyPart>) -> String {
        let Text::Marked(marked) = &mut self.text else {
            return String::new();
        };
        let [open, close] = THINKING;
        let mut shown = String::new();
        for part in parts {
            match part {
                ReplyPart::Reasoning(text) => {
                    if !std::mem::replace(&mut marked.thinking, true) {
                        shown.push_str(open);
                    }
                    shown.push_str(&text);
                    self.thought.get_or_insert_default().push_str(&text);
                }
                // Without tools, calls are content.
                ReplyPart::Content(text) | ReplyPart::Call(text) | ReplyPart::Arguments(text) => {
                    if std::mem::take(&mut marked.thinking) {
                        shown.push_str(close);
                        shown.push_str("\n\n");
                    }
                    shown.push_str(&text);
                    self.said.push_str(&text);
                }
            }
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_llm::chat::markup::TABLE;
    use gristmill_llm::tokenizer::TokenizerSpec;

    /// Letters, and the special tokens of harmony messages.
    fn tokenizer() -> Tokenizer {
        let markers = TABLE
            .iter()
            .find(|row| row.name == "harmony")
            .unwrap()
            .tokens;
        let letters = ('a'..='z').map(String::from);
        let tokens: Vec<Vec<u8>> = letters
            .chain(markers.iter().map(|m| m.to_string()))
            .map(String::into_bytes)
            .collect();
        let token_types = Some(
            (0..tokens.len())
                .map(|i| if i < 26 { 1 } else { 3 })
                .collect(),
        );
        let spec = TokenizerSpec {
            model: "gpt2".into(),
            pre: "gpt-4o".into(),
            tokens,
            token_types,
            ..TokenizerSpec::default()
        };
        Tokenizer::new(spec).unwrap()
    }

    #[test]
    fn channels_are_read_as_thoughts_and_answers() {
        let tokenizer = tokenizer();
        let harmony = TABLE.iter().find(|row| row.name == "harmony").unwrap();
        let mut reader = Reader::for_markup(&tokenizer, harmony);
        let text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes";
        let mut shown: String = tokenizer
            .encode(text, true, false)
            .into_iter()
            .map(|id| reader.push(id))
            .collect();
        shown += &reader.finish(false);
        assert_eq!(shown, "<think>hm</think>\n\nyes");
        assert_eq!(
            (reader.said.as_str(), reader.thought.as_deref()),
            ("yes", Some("hm"))
        );
    }

    #[test]
    fn other_answers_are_read_as_they_come() {
        let tokenizer = tokenizer();
        let mut reader = Reader::for_markup(&tokenizer, &gristmill_llm::chat::markup::JSON);
        let shown: String = tokenizer
            .encode("yes", true, false)
            .into_iter()
            .map(|id| reader.push(id))
            .collect();
        assert_eq!(
            (shown.as_str(), reader.said.as_str(), reader.thought),
            ("yes", "yes", None)
        );
    }
}
