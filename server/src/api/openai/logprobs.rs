//! Log-probabilities in the formats of chat completions and of completions. They are serialised
//! directly: as JSON values they would take ten times the memory.

use crate::core::event::Chosen;
use crate::core::model::Served;
use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

fn text(served: &Served, token: u32) -> String {
    String::from_utf8_lossy(served.bytes(token)).into_owned()
}

/// JSON has no −∞; OpenAI's interface has −9999 in its place.
fn finite(logprob: f32) -> f64 {
    logprob.max(-9999.0).into()
}

/// Log-probabilities in the format of chat completions.
pub struct ChatLogprobs<'a> {
    /// Model that generated the tokens.
    pub served: &'a Served,
    /// The sampled tokens with their alternatives.
    pub tokens: &'a [Chosen],
}

impl Serialize for ChatLogprobs<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut object = to.serialize_struct("ChatLogprobs", 2)?;
        object.serialize_field(
            "content",
            &Listed(|| self.tokens.iter().map(|chosen| self.entry(chosen))),
        )?;
        object.serialize_field("refusal", &())?;
        object.end()
    }
}

impl<'a> ChatLogprobs<'a> {
    fn entry(&self, chosen: &'a Chosen) -> Entry<'a> {
        Entry {
            served: self.served,
            token: chosen.token,
            logprob: chosen.logprob.unwrap_or(f32::NEG_INFINITY),
            top: Some(&chosen.top),
        }
    }
}

/// A token with its log-probability; a sampled token also has its alternatives.
struct Entry<'a> {
    served: &'a Served,
    token: u32,
    logprob: f32,
    top: Option<&'a [(u32, f32)]>,
}

impl Serialize for Entry<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let &Entry {
            served,
            token,
            logprob,
            top,
        } = self;
        let mut object = to.serialize_struct("Entry", 3 + usize::from(top.is_some()))?;
        object.serialize_field("token", &text(served, token))?;
        object.serialize_field("logprob", &finite(logprob))?;
        object.serialize_field("bytes", served.bytes(token))?;
        if let Some(top) = top {
            let other = |&(token, logprob): &(u32, f32)| Entry {
                served,
                token,
                logprob,
                top: None,
            };
            object.serialize_field("top_logprobs", &Listed(|| top.iter().map(other)))?;
        }
        object.end()
    }
}

/// Serialises the items of an iterator as an array.
struct Listed<F>(F);

impl<I: IntoIterator<Item: Serialize>, F: Fn() -> I> Serialize for Listed<F> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq((self.0)())
    }
}

/// Log-probabilities in the format of text completions.
pub struct CompletionLogprobs<'a> {
    /// Model that generated the tokens.
    pub served: &'a Served,
    /// The sampled tokens with their alternatives.
    pub tokens: &'a [Chosen],
    /// Characters of the text before the first of the tokens.
    pub offset: usize,
}

impl CompletionLogprobs<'_> {
    /// Returns the number of characters up to the end of the tokens.
    pub fn end(&self) -> usize {
        self.offset
            + self
                .tokens
                .iter()
                .map(|chosen| self.characters(chosen))
                .sum::<usize>()
    }
    fn characters(&self, chosen: &Chosen) -> usize {
        // Special tokens have no text.
        match self.served.shown(chosen.token, false) {
            [] => 0,
            bytes => String::from_utf8_lossy(bytes).chars().count(),
        }
    }
}

impl Serialize for CompletionLogprobs<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let &CompletionLogprobs {
            served,
            tokens,
            offset,
        } = self;
        let mut object = to.serialize_struct("CompletionLogprobs", 4)?;
        object.serialize_field(
            "tokens",
            &Listed(|| tokens.iter().map(|chosen| text(served, chosen.token))),
        )?;
        object.serialize_field(
            "token_logprobs",
            &Listed(|| tokens.iter().map(|chosen| chosen.logprob.map(finite))),
        )?;
        object.serialize_field(
            "top_logprobs",
            &Listed(|| tokens.iter().map(|chosen| Top { served, chosen })),
        )?;
        let offsets = || {
            tokens.iter().scan(offset, |end, chosen| {
                let begin = *end;
                *end += self.characters(chosen);
                Some(begin)
            })
        };
        object.serialize_field("text_offset", &Listed(offsets))?;
        object.end()
    }
}

/// The alternatives to a token, keyed by their text.
struct Top<'a> {
    served: &'a Served,
    chosen: &'a Chosen,
}

impl Serialize for Top<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.chosen.logprob.is_none() {
            return to.serialize_none();
        }
        let mut map = to.serialize_map(None)?;
        // Tokens that are not valid UTF-8 may decode to the same text; the most probable one is
        // kept.
        let mut told: Vec<String> = Vec::new();
        for &(token, logprob) in &self.chosen.top {
            let text = text(self.served, token);
            if !told.contains(&text) {
                map.serialize_entry(&text, &finite(logprob))?;
                told.push(text);
            }
        }
        map.end()
    }
}
