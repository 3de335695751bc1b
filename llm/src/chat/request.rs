//! What is asked of whoever renders, and what comes back: within this process or from a [`Helper`](super::Helper).

use std::ops::Range;

use serde_json::{Map, Value as Json};

use super::message::Span;

/// A template, and what to do with it.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Request {
    /// The template's source.
    pub source: String,
    /// What to render; without it the source is only compiled.
    pub conversation: Option<Conversation>,
}

/// A conversation as a template gets it.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Conversation {
    pub messages: Vec<Json>,
    pub tools: Option<Json>,
    /// All variables but these two.
    pub variables: Map<String, Json>,
    /// The special texts of the vocabulary that messages or tools spell, whole or in part.
    pub control: Vec<String>,
    /// What `strftime_now` tells: seconds since 1970.
    pub now: u64,
    /// Most bytes of the text.
    pub longest: usize,
}

/// A rendered conversation.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Rendered {
    pub text: String,
    /// The bytes that messages wrote and that must not be read as special tokens, ascending and apart.
    pub untrusted: Vec<Range<usize>>,
}

impl Rendered {
    /// The text, cut where trust changes; `None` if the ranges are none of the text.
    pub(super) fn spans(&self) -> Option<Vec<Span>> {
        let mut spans = Vec::with_capacity(2 * self.untrusted.len() + 1);
        let mut push = |text: &str, trusted| {
            if !text.is_empty() {
                spans.push(Span { text: text.to_owned(), trusted });
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
            Rendered { text: "aéb".into(), untrusted }.spans()
        };
        let span = |text: &str, trusted| Span { text: text.into(), trusted };
        assert_eq!(spans(&[[1, 3]]), Some(vec![span("a", true), span("é", false), span("b", true)]));
        for ends in [&[[2, 3]][..], &[[3, 5]], &[[3, 1]], &[[1, 3], [0, 1]], &[[usize::MAX, usize::MAX]]] {
            assert_eq!(spans(ends), None, "{ends:?}");
        }
    }
}
