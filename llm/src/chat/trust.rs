//! Identifies the parts of a rendered conversation that come from messages.
//!
//! If a user writes `<|system|>`, these characters must be tokenised as text, while the template's
//! own markers must become control tokens. The rendered string alone does not distinguish them, and
//! escaping the user's text before rendering would change the template's computations (`strip`,
//! `split('</think>')`, `in`, `tojson`).
//!
//! So the conversation is rendered unchanged, which gives the text, and then once more with a
//! *mark* (one code point that occurs nowhere else) after each character of every special-token
//! text within the messages. Marks are not inserted into white space, so trimming works as before.
//! They are accepted only if the second rendering without its marks *equals* the first. Then
//! exactly the marked characters are untrusted. Fragments count too: `<|us` at the end of a message
//! is marked, because the template's next characters could complete it.
//!
//! Markers that structure an assistant's turn ([`Markup::within_turn`]) are never marked in an
//! assistant's message: the model wrote them as tokens, and a template that repeats the turn means
//! those tokens. They cannot begin another role's turn.
//!
//! The renderings differ if a template examines special texts within messages: it splits an
//! assistant's reasoning off at `</think>`, or looks for `<tool_response>` in a user's message.
//! Then each group (assistant or not, special text) is marked alone, and groups that change the
//! result are left unmarked. For the assistant, whose text is the model's own, they stay trusted.
//! For all other authors the text is looked up in the result: every occurrence of the message is
//! untrusted, or, if there is none, every occurrence of the special text. This errs towards text: a
//! marker of the template may degrade, but a user's marker never becomes a token.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde_json::Value as Json;

use super::error::ChatError;
use super::markup::Markup;
use super::request::{Origin, Rendered};
use super::special::{SpecialMatches, SpecialSet, Texts, merge};

/// Maximum groups that are tried one by one; each costs a rendering.
const MAX_TRIALS: usize = 32;

/// Author of a string, and index of a special text in it.
type Group = (Author, usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Author {
    /// Users, tools, the system prompt, tool descriptions.
    Anyone,
    /// Messages with the role "assistant".
    Assistant,
}

/// Special texts of a vocabulary, prepared for search.
#[derive(Debug)]
pub(super) struct Marker {
    texts: Texts,
    /// Texts that an assistant's message may contain as tokens.
    own: Vec<&'static str>,
}

impl Marker {
    /// Creates a marker for the template `source`.
    ///
    /// # Errors
    /// Returns an error if the texts cannot be searched for.
    pub(super) fn new(texts: Vec<String>, source: &str) -> Result<Self, ChatError> {
        let own = Markup::detect(|sign| source.contains(sign)).within_turn();
        Ok(Self {
            texts: Texts::new(texts)?,
            own,
        })
    }

    /// Returns the special texts that occur in messages or tools, whole or in part. A marker of
    /// these alone finds the same ranges.
    pub(super) fn spelled(&self, messages: &[Json], tools: Option<&Json>) -> Vec<String> {
        let mut found = SpecialMatches::none_of(&self.texts);
        strings(messages, tools)
            .iter()
            .for_each(|&(_, text)| found.add(text));
        found
            .specials()
            .into_iter()
            .map(|special| self.texts.text(special).to_owned())
            .collect()
    }

    /// Returns the byte ranges of `rendered` that come from messages and must not be read as
    /// special tokens, in ascending order.
    ///
    /// `render` renders modified messages and tools, or returns `None` on failure. It is called at
    /// most `trials` + 2 times.
    pub(super) fn untrusted(
        &self,
        rendered: &str,
        messages: &[Json],
        tools: Option<&Json>,
        trials: usize,
        render: impl Fn(&[Json], Option<&Json>) -> Option<String>,
    ) -> Vec<Range<usize>> {
        let strings = strings(messages, tools);
        let groups = self.groups(&strings);
        if groups.is_empty() {
            return Vec::new();
        }
        let everything = || strings.iter().map(|&(_, text)| text).chain([rendered]);
        let attempt = |chosen: &BTreeSet<Group>| {
            let mark = unused_char(everything())?;
            let [anyone, assistant] =
                [Author::Anyone, Author::Assistant].map(|who| self.choice(chosen, who));
            let mut messages = messages.to_vec();
            for message in &mut messages {
                let choice = if author(message) == Author::Assistant {
                    &assistant
                } else {
                    &anyone
                };
                for_each_string_mut(message, &mut |text| {
                    mark_ranges(text, &choice.ranges(text), mark)
                });
            }
            let mut tools = tools.cloned();
            if let Some(tools) = &mut tools {
                for_each_string_mut(tools, &mut |text| {
                    mark_ranges(text, &anyone.ranges(text), mark)
                });
            }
            let (plain, ranges) = unmark(&render(&messages, tools.as_ref())?, mark, rendered);
            (plain == rendered).then_some(ranges)
        };
        if let Some(ranges) = attempt(&groups) {
            return ranges;
        }
        // A template depends on a group if marking it alone changes the result. Untried groups are
        // not assumed to be independent.
        let (mut inert, mut examined) = (BTreeSet::new(), BTreeSet::new());
        for &group in groups.iter().take(trials.min(MAX_TRIALS)) {
            let alone = attempt(&BTreeSet::from([group])).is_some();
            (if alone { &mut inert } else { &mut examined }).insert(group);
        }
        let (mut ranges, marked) = match attempt(&inert) {
            Some(ranges) => (ranges, inert),
            None => (Vec::new(), BTreeSet::new()),
        };
        let is_left = |group: &Group| group.0 == Author::Anyone || !examined.contains(group);
        let left: BTreeSet<Group> = groups
            .difference(&marked)
            .copied()
            .filter(is_left)
            .collect();
        for who in [Author::Anyone, Author::Assistant] {
            self.look_up(rendered, &strings, who, &left, &mut ranges);
        }
        merge(ranges)
    }

    /// Returns whether the vocabulary has no special texts.
    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Adds to the untrusted ranges what messages contribute to special texts after the template
    /// altered them (`origin.rs`).
    pub(super) fn guard(&self, rendered: &mut Rendered) {
        let found = self.texts.occurrences(&rendered.text);
        let altered = match &rendered.origin {
            Origin::Unknown => return,
            Origin::Parts(lengths) => {
                intersection(merge(found.map(|(range, _)| range).collect()), lengths)
            }
            Origin::Compared(other) => self.surplus(rendered, other),
        };
        rendered.untrusted.extend(altered);
        rendered.untrusted = merge(std::mem::take(&mut rendered.untrusted));
    }

    /// Returns the trusted occurrences of those special texts that `other` has less often.
    fn surplus(&self, rendered: &Rendered, other: &str) -> Vec<Range<usize>> {
        let is_trusted = |range: &Range<usize>| {
            let next = rendered
                .untrusted
                .partition_point(|it| it.end <= range.start);
            let next = rendered.untrusted.get(next);
            next.is_none_or(|next| range.end <= next.start)
        };
        let mut surplus: BTreeMap<usize, isize> = BTreeMap::new();
        let found = || {
            let found = self.texts.occurrences(&rendered.text);
            found.filter(|(range, _)| is_trusted(range))
        };
        found().for_each(|(_, special)| *surplus.entry(special).or_default() += 1);
        for (_, special) in self.texts.occurrences(other) {
            *surplus.entry(special).or_default() -= 1;
        }
        found()
            .filter(|(_, special)| surplus[special] > 0)
            .map(|(range, _)| range)
            .collect()
    }

    /// Returns the groups that occur in the strings, without an assistant's own markers.
    fn groups(&self, strings: &[(Author, &str)]) -> BTreeSet<Group> {
        let mut groups: BTreeSet<Group> = BTreeSet::new();
        for who in [Author::Anyone, Author::Assistant] {
            let mut found = SpecialMatches::none_of(&self.texts);
            strings
                .iter()
                .filter(|(author, _)| *author == who)
                .for_each(|&(_, text)| found.add(text));
            let own = |special: usize| {
                who == Author::Assistant && self.own.contains(&self.texts.text(special))
            };
            groups.extend(
                found
                    .specials()
                    .into_iter()
                    .filter(|&special| !own(special))
                    .map(|special| (who, special)),
            );
        }
        groups
    }

    /// Returns the special texts of one author's groups.
    fn choice(&self, groups: &BTreeSet<Group>, who: Author) -> SpecialSet<'_> {
        let chosen = groups
            .iter()
            .filter(|(author, _)| *author == who)
            .map(|&(_, special)| special);
        SpecialSet::new(&self.texts, chosen)
    }

    /// Fallback for texts that cannot be marked: adds all occurrences of a message with such a
    /// text, or else all occurrences of the text.
    fn look_up(
        &self,
        rendered: &str,
        strings: &[(Author, &str)],
        who: Author,
        groups: &BTreeSet<Group>,
        ranges: &mut Vec<Range<usize>>,
    ) {
        let choice = self.choice(groups, who);
        let (mut seen, mut lost) = (BTreeSet::new(), SpecialMatches::none_of(&self.texts));
        for &(author, text) in strings {
            let text = text.trim();
            if author != who || !seen.insert(text) {
                continue;
            }
            let inside = choice.ranges(text);
            if inside.is_empty() {
                continue;
            }
            let before = ranges.len();
            for (at, _) in rendered.match_indices(text) {
                ranges.extend(inside.iter().map(|range| at + range.start..at + range.end));
            }
            if ranges.len() == before {
                lost.add(text);
            }
        }
        let lost = lost
            .specials()
            .into_iter()
            .filter(|&special| groups.contains(&(who, special)));
        ranges.extend(SpecialSet::new(&self.texts, lost).occurrences(rendered));
    }
}

/// Returns the common parts of ascending ranges and of every second part with these lengths.
fn intersection(ranges: Vec<Range<usize>>, lengths: &[usize]) -> Vec<Range<usize>> {
    let mut at = 0usize;
    let ends = lengths.iter().map(|length| {
        at = at.saturating_add(*length);
        at
    });
    let ends: Vec<usize> = ends.collect();
    let mut parts = ends.chunks_exact(2).map(|ends| ends[0]..ends[1]).peekable();
    let mut common = Vec::new();
    for range in ranges {
        while parts.next_if(|part| part.end <= range.start).is_some() {}
        // A part may reach into the next range.
        while let Some(part) = parts.peek().filter(|part| part.start < range.end).cloned() {
            common.push(part.start.max(range.start)..part.end.min(range.end));
            if part.end > range.end {
                break;
            }
            parts.next();
        }
    }
    common
}

/// Inserts a mark after each character of the ranges, which ascend.
pub(super) fn mark_ranges(text: &mut String, ranges: &[Range<usize>], mark: char) {
    if ranges.is_empty() {
        return;
    }
    let mut marked = String::with_capacity(text.len() * 2);
    let mut at = 0;
    for range in ranges {
        marked.push_str(&text[at..range.start]);
        for c in text[range.clone()].chars() {
            marked.push(c);
            marked.push(mark);
        }
        at = range.end;
    }
    marked.push_str(&text[at..]);
    *text = marked;
}

pub(super) fn author(message: &Json) -> Author {
    if message.get("role").and_then(Json::as_str) == Some("assistant") {
        Author::Assistant
    } else {
        Author::Anyone
    }
}

/// Returns all strings of a conversation with their authors: values and keys.
pub(super) fn strings<'j>(messages: &'j [Json], tools: Option<&'j Json>) -> Vec<(Author, &'j str)> {
    fn walk<'j>(value: &'j Json, author: Author, out: &mut Vec<(Author, &'j str)>) {
        match value {
            Json::String(text) => out.push((author, text)),
            Json::Array(items) => items.iter().for_each(|item| walk(item, author, out)),
            Json::Object(map) => {
                for (key, item) in map {
                    out.push((author, key));
                    walk(item, author, out);
                }
            }
            _ => {}
        }
    }
    let mut out = Vec::new();
    messages
        .iter()
        .for_each(|message| walk(message, author(message), &mut out));
    tools
        .iter()
        .for_each(|tools| walk(tools, Author::Anyone, &mut out));
    out
}

pub(super) fn for_each_string_mut(value: &mut Json, change: &mut impl FnMut(&mut String)) {
    match value {
        Json::String(text) => change(text),
        Json::Array(items) => items
            .iter_mut()
            .for_each(|item| for_each_string_mut(item, change)),
        Json::Object(map) => {
            // Keys cannot be changed in place, and the order must be preserved.
            *map = std::mem::take(map)
                .into_iter()
                .map(|(mut key, mut item)| {
                    change(&mut key);
                    for_each_string_mut(&mut item, change);
                    (key, item)
                })
                .collect();
        }
        _ => {}
    }
}

/// Returns a noncharacter (U+FDD0..U+FDEF) or, failing that, a private-use character that occurs in
/// none of the texts. All have four hexadecimal digits.
pub(super) fn unused_char<'a>(texts: impl Iterator<Item = &'a str>) -> Option<char> {
    let is_candidate = |c: &char| matches!(c, '\u{FDD0}'..='\u{FDEF}' | '\u{E000}'..='\u{F8FF}');
    let used: BTreeSet<char> = texts.flat_map(str::chars).filter(is_candidate).collect();
    ('\u{FDD0}'..='\u{FDEF}')
        .chain('\u{E000}'..='\u{F8FF}')
        .find(|c| !used.contains(c))
}

/// Removes the marks, including those escaped by `tojson`. Returns the ranges of
/// the characters before them.
pub(super) fn unmark(marked: &str, mark: char, rendered: &str) -> (String, Vec<Range<usize>>) {
    let escaped = format!("\\u{:04x}", mark as u32);
    let marked = match rendered.contains(&escaped) {
        true => marked.to_owned(),
        false => marked.replace(&escaped, mark.encode_utf8(&mut [0; 4])),
    };
    let (mut plain, mut ranges, mut last) = (String::with_capacity(marked.len()), Vec::new(), 0);
    for c in marked.chars() {
        if c == mark {
            ranges.push(last..plain.len());
        } else {
            last = plain.len();
            plain.push(c);
        }
    }
    (plain, merge(ranges))
}
