//! A call whose name stands before its arguments.

use super::bare::BareArguments;
use super::parts::{Held, Part, Search, words};
use super::schemas::Schemas;
use super::tags::{TagArguments, Tags};
use super::values::JsonArguments;
use crate::chat::markup::{Arguments, Markup, Name};

/// Most bytes of a name with what stands around it: names have up to 64 of them. What is longer is no call.
const NAME: usize = 256;

/// The parser of one call, behind what opens it.
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
    /// It is no call: what stood in place of a name.
    Other(String),
}

impl NamedCall {
    /// A call in that markup, whose names and arguments stand so.
    pub fn new(row: &'static Markup, name: Name, arguments: Arguments, schemas: Schemas) -> NamedCall {
        NamedCall { row, name, arguments, schemas, phase: Phase::Name }
    }
    /// Have its arguments ended?
    pub fn is_done(&self) -> bool {
        match &self.phase {
            Phase::Name | Phase::Other(_) => false,
            Phase::Json(arguments) => arguments.is_done(),
            Phase::Tags(arguments) => arguments.is_done(),
            Phase::Bare(arguments) => arguments.is_done(),
        }
    }
    /// The text that it is instead of a call, once that is certain.
    pub fn other(&self) -> Option<&str> {
        if let Phase::Other(text) = &self.phase { Some(text) } else { None }
    }
    /// One decision about `held`; was there one to make?
    pub fn step(&mut self, held: &mut Held, parts: &mut Vec<Part>) -> bool {
        match &mut self.phase {
            Phase::Name => self.begin(held, parts),
            Phase::Json(arguments) => {
                let around = [self.row.call[1], self.row.section[1], self.row.call[0]].into_iter().flat_map(words);
                let ends: Vec<&'static str> = around.chain(self.row.also.iter().copied()).collect();
                arguments.step(held, &ends, parts)
            }
            Phase::Tags(arguments) => arguments.step(held, parts),
            Phase::Bare(arguments) => arguments.step(held, parts),
            Phase::Other(_) => false,
        }
    }
    fn begin(&mut self, held: &mut Held, parts: &mut Vec<Part>) -> bool {
        let tags = match self.arguments {
            Arguments::Tags { key, value } => Some(Tags { key, value, close: self.row.call[1] }),
            Arguments::Json | Arguments::Bare(_) => None,
        };
        let mut markers = vec![self.name.after.trim()];
        match &tags {
            Some(tags) => markers.extend(TagArguments::behind_name(tags)),
            None => markers.push("{"),
        }
        let (before, found) = match held.until_within(&markers, NAME) {
            Search::Found(before, found) => (before, found),
            Search::Far(text) => {
                self.phase = Phase::Other(text);
                return true;
            }
            Search::Open => return false,
        };
        let name = before.trim();
        let name = name.strip_prefix(self.name.before).unwrap_or(name);
        let name =
            self.name.id.and_then(|id| name.split_once(id.before)).map_or(name, |(name, _)| name).trim().to_owned();
        parts.push(Part::Call(name.clone()));
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
    /// The end, before which it was not complete; `cut` if more would have come. The text, of which `held` is left, if it was no call after all.
    pub fn finish(self, held: &str, cut: bool, parts: &mut Vec<Part>) -> Option<String> {
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
