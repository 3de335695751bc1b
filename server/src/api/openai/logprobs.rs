//! Probabilities of tokens, in the forms of both interfaces. They are written as they are: as values of JSON they would take ten times
//! the memory.

use crate::core::event::Chosen;
use crate::core::model::Served;
use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

fn text(served: &Served, token: u32) -> String {
    String::from_utf8_lossy(served.bytes(token)).into_owned()
}

/// JSON has no −∞; this is what OpenAI's interface has in its place.
fn finite(logprob: f32) -> f64 {
    logprob.max(-9999.0).into()
}

/// As chat completions have them.
pub struct ChatLogprobs<'a> {
    /// Whose tokens they are.
    pub served: &'a Served,
    /// They.
    pub tokens: &'a [Chosen],
}

impl Serialize for ChatLogprobs<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut object = to.serialize_struct("ChatLogprobs", 2)?;
        object.serialize_field("content", &Listed(|| self.tokens.iter().map(|chosen| self.entry(chosen))))?;
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

/// A token and its probability; with the alternatives to it, where it is one that was chosen.
struct Entry<'a> {
    served: &'a Served,
    token: u32,
    logprob: f32,
    top: Option<&'a [(u32, f32)]>,
}

impl Serialize for Entry<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let &Entry { served, token, logprob, top } = self;
        let mut object = to.serialize_struct("Entry", 3 + usize::from(top.is_some()))?;
        object.serialize_field("token", &text(served, token))?;
        object.serialize_field("logprob", &finite(logprob))?;
        object.serialize_field("bytes", served.bytes(token))?;
        if let Some(top) = top {
            let other = |&(token, logprob): &(u32, f32)| Entry { served, token, logprob, top: None };
            object.serialize_field("top_logprobs", &Listed(|| top.iter().map(other)))?;
        }
        object.end()
    }
}

/// An array of what an iterator gives.
struct Listed<F>(F);

impl<I: IntoIterator<Item: Serialize>, F: Fn() -> I> Serialize for Listed<F> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq((self.0)())
    }
}

/// As completions have them.
pub struct CompletionLogprobs<'a> {
    /// Whose tokens they are.
    pub served: &'a Served,
    /// They.
    pub tokens: &'a [Chosen],
    /// Characters of the answer before them.
    pub offset: usize,
}

impl CompletionLogprobs<'_> {
    /// Characters of the answer after them.
    pub fn end(&self) -> usize {
        self.offset + self.tokens.iter().map(|chosen| self.characters(chosen)).sum::<usize>()
    }
    fn characters(&self, chosen: &Chosen) -> usize {
        // Special tokens are no text.
        match self.served.shown(chosen.token, false) {
            [] => 0,
            bytes => String::from_utf8_lossy(bytes).chars().count(),
        }
    }
}

impl Serialize for CompletionLogprobs<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let &CompletionLogprobs { served, tokens, offset } = self;
        let mut object = to.serialize_struct("CompletionLogprobs", 4)?;
        object.serialize_field("tokens", &Listed(|| tokens.iter().map(|chosen| text(served, chosen.token))))?;
        object.serialize_field("token_logprobs", &Listed(|| tokens.iter().map(|chosen| chosen.logprob.map(finite))))?;
        object.serialize_field("top_logprobs", &Listed(|| tokens.iter().map(|chosen| Top { served, chosen })))?;
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

/// The alternatives to a token, by their texts.
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
        // Tokens whose bytes are no text may look alike; the most probable one stands for them.
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
