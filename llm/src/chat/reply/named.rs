//! Parser of a call with its name before its arguments.

use super::bare::BareArguments;
use super::parts::{HeldText, ReplyPart, Search, words};
use super::schemas::Schemas;
use super::tags::{TagArguments, Tags};
use super::values::JsonArguments;
use crate::chat::markup::{Arguments, Markup, Name};

/// Maximum bytes of a name and its delimiters; names have up to 64. Longer text is not a call.
const MAX_NAME_BYTES: usize = 256;

/// Streaming parser of one call after its opening text.
pub struct NamedCall {
    row: &'static Markup,
    name: Name,
    arguments: Arguments,
    schemas: Schemas,
    phase: Phase,
}

enum Phase {
    Name,
    Json(JsonArguments),
    Tags(TagArguments),
    Bare(BareArguments),
    /// Not a call; holds the text in place of a name.
    Other(String),
}

impl NamedCall {
    /// Creates a parser for the given delimiters of names and format of arguments.
    pub fn new(
        row: &'static Markup,
        name: Name,
        arguments: Arguments,
        schemas: Schemas,
    ) -> NamedCall {
        NamedCall {
            row,
            name,
            arguments,
            schemas,
            phase: Phase::Name,
        }
    }
    /// Returns true after the arguments.
    pub fn is_done(&self) -> bool {
        match &self.phase {
            Phase::Name | Phase::Other(_) => false,
            Phase::Json(arguments) => arguments.is_done(),
            Phase::Tags(arguments) => arguments.is_done(),
            Phase::Bare(arguments) => arguments.is_done(),
        }
    }
    /// Returns the consumed text if it is not a call.
    pub fn other(&self) -> Option<&str> {
        if let Phase::Other(text) = &self.phase {
            Some(text)
        } else {
            None
        }
    }
    /// Consumes one element of `held`. Returns false if more text is needed.
    pub fn step(&mut self, held: &mut HeldText, parts: &mut Vec<ReplyPart>) -> bool {
        match &mut self.phase {
            Phase::Name => self.begin(held, parts),
            Phase::Json(arguments) => {
                let around = [self.row.call[1], self.row.section[1], self.row.call[0]]
                    .into_iter()
                    .flat_map(words);
                let ends: Vec<&'static str> = around.chain(self.row.also.iter().copied()).collect();
                arguments.step(held, &ends, parts)
            }
            Phase::Tags(arguments) => arguments.step(held, parts),
            Phase::Bare(arguments) => arguments.step(held, parts),
            Phase::Other(_) => false,
        }
    }
    fn begin(&mut self, held: &mut HeldText, parts: &mut Vec<ReplyPart>) -> bool {
        let tags = match self.arguments {
            Arguments::Tags { key, value } => Some(Tags {
                key,
                value,
                close: self.row.call[1],
            }),
            Arguments::Json | Arguments::Bare(_) => None,
        };
        let mut markers = vec![self.name.after.trim()];
        match &tags {
            Some(tags) => markers.extend(TagArguments::behind_name(tags)),
            None => markers.push("{"),
        }
        let (before, found) = match held.until_within(&markers, MAX_NAME_BYTES) {
            Search::Found(before, found) => (before, found),
            Search::Far(text) => {
                self.phase = Phase::Other(text);
                return true;
            }
            Search::Open => return false,
        };
        let name = before.trim();
        let name = name.strip_prefix(self.name.before).unwrap_or(name);
        let name = self
            .name
            .id
            .and_then(|id| name.split_once(id.before))
            .map_or(name, |(name, _)| name)
            .trim()
            .to_owned();
        parts.push(ReplyPart::Call(name.clone()));
        self.phase = match (self.arguments, tags) {
            (_, Some(tags)) => {
                let mut arguments = TagArguments::new(tags, self.schemas.clone(), name);
                arguments.begin(found, parts);
                Phase::Tags(arguments)
            }
            (Arguments::Bare(quote), _) => Phase::Bare(BareArguments::new(quote, parts)),
            _ => {
                if found == "{" {
                    let rest = held.take();
                    held.push("{");
                    held.push(&rest);
                }
                Phase::Json(JsonArguments::default())
            }
        };
        true
    }
    /// Ends an incomplete call; `cut` if generation was truncated. Returns the text, including
    /// `held`, if it is not a call.
    pub fn finish(self, held: &str, cut: bool, parts: &mut Vec<ReplyPart>) -> Option<String> {
        match self.phase {
            Phase::Name => Some(held.to_owned()),
            Phase::Other(text) => Some(text + held),
            Phase::Json(arguments) => {
                arguments.finish(held, cut, parts);
                None
            }
            Phase::Tags(_) | Phase::Bare(_) => None,
        }
    }
}
