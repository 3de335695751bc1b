//! Splits text into pieces by a row of [`PRE_TYPES`](super::pre::PRE_TYPES).
//!
//! **Look-ahead.** Most patterns end in `\s+(?!\S)|\s+`: a run of white space leaves its last
//! character to the following word. A backtracking engine needs a stack entry per character for
//! that and fails at its limit (about a million spaces). So the tail is compiled as plain `\s+`,
//! and the last character is given back afterwards ([`Pattern::give_back`]). The rest needs no
//! look-around, so fancy-regex delegates it to a linear-time automaton.
//!
//! Patterns with that tail match nearly everywhere, so they are tried *at* each position instead
//! of searched from it. An unanchored search runs a second automaton backwards to find the start
//! of the match, which made the camel-case patterns 25 times slower (1.1 s instead of 0.045 s for
//! 2 MB of noise).

use std::ops::Range;

use fancy_regex::Regex;

use super::TokenizerError;
use super::pre::{PRE_TYPES, PreType, SplitStep, supported_names};

/// The look-ahead tail; see the module's description.
const TAIL: &str = r"|\s+(?!\S)|\s+";
/// Replacement of [`TAIL`] in compiled patterns.
const PLAIN_TAIL: &str = r"|\s+";
/// The alternative that takes white space up to the last line break.
const LINE_BREAKS: &str = r"|\s*[\r\n]+";

/// A compiled pre-tokeniser.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    patterns: Vec<Pattern>,
    pub ignore_merges: bool,
    pub add_bos: bool,
}

#[derive(Debug)]
struct Pattern {
    regex: Regex,
    /// The published pattern ends in [`TAIL`]; the regex is anchored.
    look_ahead: bool,
    /// The pattern also has [`LINE_BREAKS`].
    line_breaks: bool,
    /// Splits matches into groups of this many characters, counted from their end.
    group: Option<usize>,
}

impl PreTokenizer {
    /// Compiles the pre-tokeniser `name` of the table.
    pub(super) fn new(name: &str) -> Result<Self, TokenizerError> {
        let pre = PRE_TYPES
            .iter()
            .find(|pre| pre.names.contains(&name))
            .ok_or_else(|| TokenizerError::UnsupportedPre {
                pre: name.to_owned(),
                supported: supported_names().join(", "),
            })?;
        Self::for_pre_type(pre, name)
    }

    /// Compiles a row of the table; `name` is the file's name for it, used in errors.
    pub(super) fn for_pre_type(pre: &PreType, name: &str) -> Result<Self, TokenizerError> {
        let steps = pre.steps.iter().map(|step| match *step {
            SplitStep::Match(published) => (published, None),
            SplitStep::Thousands(published) => (published, Some(3)),
        });
        Ok(Self {
            patterns: compile(steps, name)?,
            ignore_merges: pre.ignore_merges,
            add_bos: pre.add_bos,
        })
    }

    /// Compiles the patterns of another pre-tokeniser.
    pub(super) fn from_patterns(patterns: &[String]) -> Result<Self, TokenizerError> {
        let steps = patterns.iter().map(|pattern| (pattern.as_str(), None));
        Ok(Self {
            patterns: compile(steps, "tokenizer.json")?,
            ignore_merges: false,
            add_bos: false,
        })
    }

    /// Returns the pieces of `text` in order: non-empty byte ranges that cover it.
    pub(super) fn split(&self, text: &str) -> Vec<Range<usize>> {
        let mut pieces = Vec::new();
        if !text.is_empty() {
            pieces.push(0..text.len());
        }
        for pattern in &self.patterns {
            let mut finer = Vec::with_capacity(pieces.len());
            for piece in pieces {
                pattern.split(&text[piece.clone()], piece.start, &mut finer);
            }
            pieces = finer;
        }
        pieces
    }
}

/// Compiles steps: patterns, and the characters of a group of a match, counted from its end.
fn compile<'s>(
    steps: impl Iterator<Item = (&'s str, Option<usize>)>,
    name: &str,
) -> Result<Vec<Pattern>, TokenizerError> {
    let compiled = |(published, group): (&str, Option<usize>)| {
        let head = published.strip_suffix(TAIL);
        let plain = head.map_or_else(
            || published.to_owned(),
            |head| format!("^(?:{head}{PLAIN_TAIL})"),
        );
        let regex = Regex::new(&plain).map_err(|e| TokenizerError::Pattern {
            pre: name.to_owned(),
            pattern: published.to_owned(),
            reason: e.to_string(),
        })?;
        Ok(Pattern {
            regex,
            look_ahead: head.is_some(),
            line_breaks: published.contains(LINE_BREAKS),
            group,
        })
    };
    steps.map(compiled).collect()
}

impl Pattern {
    /// Appends matches and gaps of `piece`, shifted by `offset`.
    fn split(&self, piece: &str, offset: usize, out: &mut Vec<Range<usize>>) {
        let mut at = 0;
        while let Some(found) = self.find(piece, at) {
            let (start, end) = (found.start, found.end - self.give_back(piece, found));
            // No pattern of the table matches the empty string; if one did, the rest
            // would remain one piece.
            if start >= end {
                break;
            }
            if at < start {
                out.push(offset + at..offset + start);
            }
            match self.group {
                None => out.push(offset + start..offset + end),
                Some(group) => push_groups(&piece[start..end], group, offset + start, out),
            }
            at = end;
        }
        if at < piece.len() {
            out.push(offset + at..offset + piece.len());
        }
    }

    /// Returns the first match starting at or after `at`. An error of the engine
    /// counts as no match.
    fn find(&self, piece: &str, at: usize) -> Option<Range<usize>> {
        if !self.look_ahead {
            return self
                .regex
                .find_from_pos(piece, at)
                .ok()?
                .map(|found| found.range());
        }
        let mut starts = piece[at..].char_indices().map(|(i, _)| at + i);
        starts.find_map(|start| {
            let found = self.regex.find(&piece[start..]).ok()??;
            Some(start..start + found.end())
        })
    }

    /// Returns the bytes that the look-ahead `\s+(?!\S)` would have left to the next match.
    ///
    /// A match that ends in white space is one of `\s+`, with two exceptions that end in CR or LF:
    /// [`LINE_BREAKS`], and punctuation with its line breaks. If [`LINE_BREAKS`] is an earlier
    /// alternative, `\s+` matches only runs without CR and LF. So the last character identifies
    /// the alternative. `\s+` is greedy: it is followed by the end of the text or by a character
    /// other than white space.
    fn give_back(&self, piece: &str, found: Range<usize>) -> usize {
        let matched = &piece[found.clone()];
        match matched.chars().next_back() {
            Some(last)
                if self.look_ahead
                    && last.is_whitespace()
                    && !(self.line_breaks && matches!(last, '\r' | '\n'))
                    && found.end < piece.len()
                    && matched.len() > last.len_utf8() =>
            {
                last.len_utf8()
            }
            _ => 0,
        }
    }
}

/// Appends a match that begins at `offset`, in groups of `group` characters counted from its end.
fn push_groups(matched: &str, group: usize, offset: usize, out: &mut Vec<Range<usize>>) {
    let characters = matched.chars().count();
    let mut from = offset;
    for (i, (at, _)) in matched.char_indices().enumerate().skip(1) {
        if (characters - i).is_multiple_of(group) {
            out.push(from..offset + at);
            from = offset + at;
        }
    }
    out.push(from..offset + matched.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        let pre = PreTokenizer::new(name).unwrap();
        pre.split(text)
            .into_iter()
            .map(|range| &text[range])
            .collect()
    }

    #[test]
    fn every_line_of_the_table_compiles_and_covers_its_text() {
        let text =
            "Hello, WORLD's  fooBar\r\n \n x1234567  中文カナ한글 é\u{301} ½ \u{1}\u{85}\u{3000}! ";
        for name in supported_names() {
            assert_eq!(pieces(name, text).concat(), text, "{name}");
            assert!(pieces(name, "").is_empty(), "{name}");
        }
    }

    #[test]
    fn characteristic_splits() {
        let cases: &[(&str, &str, &[&str])] = &[
            (
                "glm4",
                "I'LL go  12345 \n\n x",
                &["I", "'LL", " go", " ", " ", "123", "45", " \n\n", " x"],
            ),
            ("qwen2", "a12", &["a", "1", "2"]),
            (
                "gpt-2",
                "it's\n\n ok 123  ",
                &["it", "'s", "\n\n", " ok", " 123", "  "],
            ),
            ("gpt-2", "a\n\nb", &["a", "\n", "\n", "b"]),
            (
                "deepseek-llm",
                "a  b\nc中文x",
                &["a", " ", " b", "\n", "c", "中文", "x"],
            ),
            ("deepseek-coder", "x12, y", &["x", "1", "2", ",", " y"]),
            (
                "deepseek-v3",
                "foo.bar 1234中文ab",
                &["foo", ".bar", " ", "123", "4", "中文", "ab"],
            ),
            (
                "gpt-4o",
                "fooBar's ABCdef 1234 a/\n/",
                &["foo", "Bar's", " ABCdef", " ", "123", "4", " a", "/\n/"],
            ),
            (
                "tekken",
                "fooBar's 12 a/\n/",
                &["foo", "Bar", "'s", " ", "1", "2", " a", "/\n/"],
            ),
            (
                "youtu",
                "fooBar 12中文，한",
                &["foo", "Bar", " ", "1", "2", "中文", "，", "한"],
            ),
            (
                "kimi-k2",
                "abc中文Def 1234é漢ab",
                &["abc", "中文", "Def", " ", "123", "4", "é", "漢", "ab"],
            ),
        ];
        for (name, text, expected) in cases {
            assert_eq!(&pieces(name, text), expected, "{name} {text:?}");
        }
    }

    /// Reference splits from Hugging Face's tokenizers with the published patterns.
    #[test]
    fn splits_are_those_of_the_published_patterns() {
        let file = include_str!("../../tests/data/vocab/pre-splits.json");
        let file: serde_json::Value = serde_json::from_str(file).unwrap();
        let texts: Vec<&str> = file["texts"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|text| text.as_str())
            .collect();
        let splits = file["splits"].as_object().unwrap();
        assert!(texts.len() == 40 && splits.len() > 20);
        for (name, lengths) in splits {
            let pre = PreTokenizer::new(name).unwrap();
            for (text, lengths) in texts.iter().zip(lengths.as_array().unwrap()) {
                let found = pre
                    .split(text)
                    .into_iter()
                    .map(|range| text[range].chars().count().to_string());
                assert_eq!(
                    found.collect::<Vec<_>>().join(" "),
                    lengths.as_str().unwrap(),
                    "{name} {text:?}"
                );
            }
        }
    }

    #[test]
    fn unknown_names_are_errors_that_list_the_known() {
        let error = PreTokenizer::new("nope").unwrap_err();
        assert!(error.hint().unwrap().contains("glm4"));
    }
}
