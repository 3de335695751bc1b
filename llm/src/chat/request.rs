//! Request and answer of template rendering, within this process or with a
//! [`Helper`](super::Helper).

use std::ops::Range;

use serde_json::{Map, Value as Json};

use super::message::TextSpan;

/// A template to compile, and optionally a conversation to render.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct ChatRequest {
    pub source: String,
    /// Conversation to render; `None` compiles the source only.
    pub conversation: Option<Conversation>,
}

/// A conversation in the form that templates receive.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Conversation {
    pub messages: Vec<Json>,
    pub tools: Option<Json>,
    /// Variables of the client, with untrusted texts.
    pub given: Map<String, Json>,
    /// All other template variables, which take precedence.
    pub variables: Map<String, Json>,
    /// True if the vocabulary has special texts, so that the origin of the text is determined.
    pub guarded: bool,
    /// Special texts of the vocabulary that occur in messages or tools, whole or in part.
    pub control: Vec<String>,
    /// Time for `strftime_now` in seconds since 1970.
    pub now: u64,
    /// Maximum bytes of the rendered text.
    pub longest: usize,
}

impl Conversation {
    /// Returns what is untrusted besides messages, as a list: tools or null, and the client's
    /// variables.
    pub(super) fn aside(tools: Option<&Json>, given: &Map<String, Json>) -> Json {
        vec![tools.cloned().unwrap_or_default(), given.clone().into()].into()
    }
}

#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Rendered {
    pub text: String,
    /// Byte ranges written by messages that must not be read as special
    /// tokens; ascending and disjoint.
    pub untrusted: Vec<Range<usize>>,
    /// Characters that stem from messages; no special token may contain them.
    pub origin: Origin,
}

/// Origin of the characters of a rendered text.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) enum Origin {
    /// The template refuses any other conversation.
    #[default]
    Unknown,
    /// Lengths in bytes of parts that stem from the template and from messages, in turn.
    Parts(Vec<usize>),
    /// The same conversation rendered with other texts, because positions could not be determined.
    Compared(String),
}

impl Origin {
    /// Creates the origin of a text with these ascending ranges of message text.
    pub(super) fn of_ranges(ranges: &[Range<usize>]) -> Self {
        let mut at = 0;
        let lengths = ranges.iter().flat_map(|range| {
            let before = range.start - std::mem::replace(&mut at, range.end);
            [before, range.len()]
        });
        Self::Parts(lengths.collect())
    }
}

impl Rendered {
    /// Splits the text where trust changes; `None` if the ranges are invalid for the text.
    pub(super) fn spans(&self) -> Option<Vec<TextSpan>> {
        let mut spans = Vec::with_capacity(2 * self.untrusted.len() + 1);
        let mut push = |text: &str, trusted| {
            if !text.is_empty() {
                spans.push(TextSpan {
                    text: text.to_owned(),
                    trusted,
                });
            }
        };
        let mut at = 0;
        for range in &self.untrusted {
            push(self.text.get(at..range.start)?, true);
            push(self.text.get(range.clone())?, false);
            at = range.end;
        }
        push(self.text.get(at..)?, true);
        Some(spans)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_beside_the_text_are_refused() {
        let spans = |ends: &[[usize; 2]]| {
            let untrusted = ends.iter().map(|&[start, end]| start..end).collect();
            Rendered {
                text: "aéb".into(),
                untrusted,
                origin: Origin::Unknown,
            }
            .spans()
        };
        let span = |text: &str, trusted| TextSpan {
            text: text.into(),
            trusted,
        };
        assert_eq!(
            spans(&[[1, 3]]),
            Some(vec![span("a", true), span("é", false), span("b", true)])
        );
        for ends in [
            &[[2, 3]][..],
            &[[3, 5]],
            &[[3, 1]],
            &[[1, 3], [0, 1]],
            &[[usize::MAX, usize::MAX]],
        ] {
            assert_eq!(spans(ends), None, "{ends:?}");
        }
    }
}
