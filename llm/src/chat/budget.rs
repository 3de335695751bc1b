//! Text that ends a reply's reasoning when its budget is used up.

use super::markup::{Frame, Markup};
use crate::tokenizer::Tokenizer;

/// What a model says before it closes reasoning that is cut off, so that it goes on with an answer;
/// unless the user gives another message.
const MESSAGE: &str = "I have reasoned for long enough, so I give my answer now.";

/// Texts that delimit reasoning in a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReasoningTexts {
    /// Text that opens reasoning.
    pub open: &'static str,
    /// Text that closes it.
    pub close: &'static str,
    /// Whether reasoning may begin anywhere in a reply, and more than once.
    pub repeats: bool,
}

impl ReasoningTexts {
    /// Returns the texts of a model's markup.
    pub fn for_markup(markup: &Markup) -> ReasoningTexts {
        ReasoningTexts {
            open: markup.think[0],
            close: markup.think[1],
            repeats: matches!(markup.frame, Frame::Messages(_)),
        }
    }
}

/// Returns the tokens that close reasoning after `budget` tokens. Where an answer is a message of
/// its own, they open it too, unless the model `may_call` tools instead. `message` is plain text
/// before the closing text; an empty one leaves that alone.
pub fn closing_tokens(
    markup: &Markup,
    tokenizer: &Tokenizer,
    budget: usize,
    message: Option<&str>,
    may_call: bool,
) -> Vec<u32> {
    let message = match (message.map(str::trim), budget) {
        (Some(""), _) | (None, 0) => "\n".to_owned(),
        (message, _) => format!("\n\n{}\n", message.unwrap_or(MESSAGE)),
    };
    let close = markup.think[1];
    let (message, close) = match markup.frame {
        Frame::Text => (message, close.to_owned()),
        Frame::Messages(_) if may_call => (message.trim().to_owned(), close.to_owned()),
        Frame::Messages(of) => {
            let [start, author] = of.start;
            let answer = of.answer;
            (
                message.trim().to_owned(),
                format!("{close}{start}{author}{answer}"),
            )
        }
    };
    tokenizer.encode_spans(&[(message, false), (close, true)], false)
}
