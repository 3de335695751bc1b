//! Determines which characters of a rendered conversation stem from its messages.
//!
//! A template may alter a message: `lower` makes the control token `<|im_start|>` of the harmless
//! text `<|IM_START|>`; `replace`, slices, reversal and joined fields make others. Marks within
//! spelt special texts (`trust.rs`) do not detect these.
//!
//! So the conversation is rendered once more in *disguise*: letters, digits and brackets of its
//! strings are replaced by others of the same case and UTF-8 length ([`disguise`]). Texts that the
//! template itself names stay, because it may look for them (`split('</think>')`). A character that
//! differs between the renderings stems from a message, and no control token may contain it. This
//! holds if every character is either equal or disguised at the same position.
//!
//! If not, as where a `replace` changes the length of one rendering only, the same characters are
//! marked instead, as in `trust.rs`. If marks change the text as well, the positions stay unknown,
//! and the control tokens of both renderings are counted: one that is more frequent in the original
//! is text wherever it occurs ([`Marker::guard`](super::trust::Marker::guard)).

use std::collections::BTreeSet;
use std::ops::Range;

use minijinja::machinery::{Token, Tokenizer};
use serde_json::Value as Json;

use super::environment;
use super::error::ChatError;
use super::markup::Markup;
use super::request::Origin;
use super::special::{Texts, merge};
use super::trust::{
    Author, author, for_each_string_mut, mark_ranges, strings, unmark, unused_char,
};

/// Types of JSON schemas, and of tools.
const SCHEMA_TYPES: &[&str] = &[
    "array", "boolean", "function", "integer", "null", "number", "object", "string",
];

/// Finds the characters of a rendered conversation that stem from messages.
pub(super) struct Tracer {
    /// Identifiers and string constants of the template, in lower case, and types of JSON schemas:
    /// templates choose their form by these.
    names: BTreeSet<String>,
    /// String constants of the template.
    constants: Texts,
    /// Texts that an assistant's message may contain as tokens.
    own: Texts,
}

impl Tracer {
    /// Creates a tracer for the template `source`.
    ///
    /// # Errors
    /// Returns an error if the template's constants cannot be searched for.
    pub(super) fn new(source: &str) -> Result<Self, ChatError> {
        let own = Markup::detect(|sign| source.contains(sign)).within_turn();
        let (names, constants) = names(source);
        Ok(Self {
            names,
            constants: Texts::new(constants)?,
            own: Texts::new(own.into_iter().map(str::to_owned).collect())?,
        })
    }

    /// Returns the origin of the characters of `rendered`, by at most two renderings of altered
    /// messages and tools.
    pub(super) fn origin(
        &self,
        rendered: &str,
        messages: &[Json],
        aside: &Json,
        render: impl Fn(&[Json], Option<&Json>) -> Option<String>,
    ) -> Origin {
        let altered = |change: &dyn Fn(&mut String, &[Range<usize>])| {
            let (messages, aside) = self.altered(messages, aside, change);
            render(&messages, Some(&aside))
        };
        let other = altered(&disguise_ranges);
        let compared = other.as_ref().and_then(|other| compare(rendered, other));
        if let Some(ranges) = compared {
            return Origin::of_ranges(&ranges);
        }
        let all = strings(messages, Some(aside)).into_iter();
        let marked = unused_char(all.map(|(_, text)| text).chain([rendered])).and_then(|mark| {
            let marked = altered(&|text, ranges| mark_ranges(text, ranges, mark))?;
            Some(unmark(&marked, mark, rendered))
        });
        match (marked, other) {
            (Some((plain, ranges)), _) if plain == rendered => Origin::of_ranges(&ranges),
            (_, Some(other)) => Origin::Compared(other),
            (_, None) => Origin::Unknown,
        }
    }

    /// Returns messages and tools with all open ranges changed; roles stay.
    fn altered(
        &self,
        messages: &[Json],
        aside: &Json,
        change: &dyn Fn(&mut String, &[Range<usize>]),
    ) -> (Vec<Json>, Json) {
        let mut messages = messages.to_vec();
        for message in &mut messages {
            let (author, role) = (author(message), message.get("role").cloned());
            for_each_string_mut(message, &mut |text| change(text, &self.open(text, author)));
            if let Some(role) = role {
                message["role"] = role;
            }
        }
        let mut aside = aside.clone();
        for_each_string_mut(&mut aside, &mut |text| {
            change(text, &self.open(text, Author::Anyone));
        });
        (messages, aside)
    }

    /// Returns the ranges of a string that may be disguised, in ascending order.
    fn open(&self, text: &str, author: Author) -> Vec<Range<usize>> {
        if self.names.contains(&text.to_ascii_lowercase()) {
            return Vec::new();
        }
        let constants = self.constants.occurrences(text);
        let own = self
            .own
            .occurrences(text)
            .filter(|_| author == Author::Assistant);
        let kept = merge(constants.chain(own).map(|(range, _)| range).collect());
        let is_kept = |at: usize| {
            let next = kept.partition_point(|range| range.end <= at);
            kept.get(next).is_some_and(|range| range.start <= at)
        };
        let chars = text
            .char_indices()
            .filter(|&(at, c)| disguise(c) != c && !is_kept(at));
        merge(chars.map(|(at, c)| at..at + c.len_utf8()).collect())
    }
}

/// Returns the names in a template, in lower case, and its constants of several characters that a
/// disguise could change.
fn names(source: &str) -> (BTreeSet<String>, Vec<String>) {
    let mut tokens = Tokenizer::new(source, "", false, environment::syntax());
    let (mut names, mut constants) = (BTreeSet::<String>::new(), Vec::new());
    while let Ok(Some((token, _))) = tokens.next_token() {
        match token {
            Token::Ident(name) => {
                names.insert(name.to_owned());
            }
            Token::Str(text) => constants.push(text.to_owned()),
            Token::String(text) => constants.push(text.into()),
            _ => {}
        }
    }
    names.extend(constants.iter().cloned());
    names.extend(SCHEMA_TYPES.iter().map(|&name| name.to_owned()));
    let names = names.iter().map(|name| name.to_ascii_lowercase()).collect();
    let is_open = |text: &str| text.chars().any(|c| disguise(c) != c);
    constants.retain(|text| text.chars().nth(1).is_some() && is_open(text));
    (names, constants)
}

/// Returns another character of the same UTF-8 length and case, or `c` itself for white space and
/// most punctuation.
///
/// Letters and digits become their successors, which preserves the order of most words. No disguise
/// is one of the brackets that delimit control tokens.
fn disguise(c: char) -> char {
    match c {
        'a'..='y' | 'A'..='Y' | '0'..='8' => char::from(c as u8 + 1),
        'z' | 'Z' | '9' => char::from(c as u8 - 1),
        '<' => '=',
        '>' => '?',
        '|' => '}',
        '[' | ']' => '^',
        _ if c.is_ascii() || c.is_whitespace() => c,
        _ => {
            // Characters without case: digits of N'Ko, and those of private use.
            let [one, other] = match c.len_utf8() {
                2 => ['\u{7C0}', '\u{7C1}'],
                3 => ['\u{E000}', '\u{E001}'],
                _ => ['\u{F0000}', '\u{F0001}'],
            };
            if c == one { other } else { one }
        }
    }
}

fn disguise_ranges(text: &mut String, ranges: &[Range<usize>]) {
    let (mut disguised, mut at) = (String::with_capacity(text.len()), 0);
    for range in ranges {
        disguised.push_str(&text[at..range.start]);
        disguised.extend(text[range.clone()].chars().map(disguise));
        at = range.end;
    }
    disguised.push_str(&text[at..]);
    *text = disguised;
}

/// Returns the byte ranges of `rendered` whose characters are disguised in `other`, joined across
/// characters without disguise; `None` if the texts differ otherwise.
fn compare(rendered: &str, other: &str) -> Option<Vec<Range<usize>>> {
    if rendered.len() != other.len() {
        return None;
    }
    let mut ranges: Vec<Range<usize>> = Vec::new();
    // Whether all characters since the last range have no disguise.
    let mut joins = false;
    for ((at, c), d) in rendered.char_indices().zip(other.chars()) {
        let end = at + c.len_utf8();
        match ranges.last_mut() {
            _ if c == d => joins &= disguise(c) == c,
            _ if disguise(c) != d => return None,
            Some(last) if joins => last.end = end,
            _ => {
                ranges.push(at..end);
                joins = true;
            }
        }
    }
    Some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disguises_keep_lengths_and_case_and_delimit_nothing() {
        for c in (0..=0x10FFFF).filter_map(char::from_u32) {
            let other = disguise(c);
            assert_eq!(other.len_utf8(), c.len_utf8(), "{c:?}");
            assert_eq!(other.is_whitespace(), c.is_whitespace(), "{c:?}");
            assert_eq!(
                disguise(c.to_ascii_lowercase()),
                other.to_ascii_lowercase(),
                "{c:?}"
            );
            assert!(!"<>|[]".contains(other), "{c:?}");
            let is_changed = c.is_alphanumeric() || "<>|[]｜▁".contains(c);
            assert!(!is_changed || other != c, "{c:?}");
        }
    }

    #[test]
    fn ranges_are_joined_across_punctuation() {
        let of = |rendered: &str, other: &str| {
            let bounds = |range: &std::ops::Range<usize>| (range.start, range.end);
            compare(rendered, other).map(|found| found.iter().map(bounds).collect::<Vec<_>>())
        };
        assert_eq!(
            of("<s>Hi, é!</s>", "<s>Ij, \u{7C0}!</s>"),
            Some(vec![(3, 9)])
        );
        assert_eq!(of("a b", "b b"), Some(vec![(0, 1)]));
        assert_eq!(of("ab", "bx"), None);
        assert_eq!(of("ab", "bcd"), None);
    }
}
