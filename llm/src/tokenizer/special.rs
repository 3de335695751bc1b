//! Splitting text at special tokens.
//!
//! Special tokens are found *before* pre-tokenisation, longest text first: all occurrences of the longest tokens are cut
//! out, then the next length is searched in what remains. (A single leftmost-longest scan differs where two tokens
//! overlap: with tokens `abc` and `xa`, "xabc" is `x`+`abc`, not `xa`+`bc`.) One Aho–Corasick automaton per distinct
//! length does this exactly, in O(text × distinct lengths); real vocabularies have about a dozen.

use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, MatchKind};

/// A token the splitter looks for.
pub(super) struct Special<'a> {
    pub id: u32,
    pub text: &'a str,
    /// Recognised everywhere (user-defined tokens), not only in trusted text (control tokens).
    pub always: bool,
}

/// The automaton of the tokens of one length.
struct Class {
    automaton: AhoCorasick,
    ids: Vec<u32>,
    always: Vec<bool>,
}

/// A stretch of text: plain, or one special token.
pub(super) enum Fragment {
    Text(Range<usize>),
    Token(u32),
}

/// Searches for all special tokens of a vocabulary.
pub(super) struct Splitter {
    classes: Vec<Class>,
}

impl Splitter {
    pub(super) fn new(mut specials: Vec<Special<'_>>) -> Self {
        specials.retain(|s| !s.text.is_empty());
        specials.sort_by_key(|s| std::cmp::Reverse(s.text.len()));
        let classes = specials.chunk_by(|a, b| a.text.len() == b.text.len()).filter_map(|class| {
            // Building fails only on more states than 2^31: such a class is left to the BPE.
            let automaton = AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostFirst)
                .build(class.iter().map(|s| s.text.as_bytes()))
                .ok()?;
            Some(Class {
                automaton,
                ids: class.iter().map(|s| s.id).collect(),
                always: class.iter().map(|s| s.always).collect(),
            })
        });
        Self { classes: classes.collect() }
    }

    /// Splits `text`. A control token counts only where `trusted` holds for its whole byte range.
    pub(super) fn split(&self, text: &str, trusted: impl Fn(Range<usize>) -> bool) -> Vec<Fragment> {
        let mut fragments = vec![Fragment::Text(0..text.len())];
        for class in &self.classes {
            // Most texts hold no token of most classes: do not rebuild the list for those.
            if !class.automaton.is_match(text.as_bytes()) {
                continue;
            }
            let mut split = Vec::with_capacity(fragments.len());
            for fragment in fragments {
                match fragment {
                    Fragment::Text(range) => class.split(text, range, &trusted, &mut split),
                    token => split.push(token),
                }
            }
            fragments = split;
        }
        fragments
    }
}

impl Class {
    fn split(&self, text: &str, range: Range<usize>, trusted: &impl Fn(Range<usize>) -> bool, out: &mut Vec<Fragment>) {
        let (mut from, mut search) = (range.start, range.start);
        while let Some(found) = self.automaton.find(Input::new(text).range(search..range.end)) {
            let pattern = found.pattern().as_usize();
            if !self.always[pattern] && !trusted(found.range()) {
                search = found.start() + 1;
                continue;
            }
            if from < found.start() {
                out.push(Fragment::Text(from..found.start()));
            }
            out.push(Fragment::Token(self.ids[pattern]));
            (from, search) = (found.end(), found.end());
        }
        if from < range.end {
            out.push(Fragment::Text(from..range.end));
        }
    }
}

impl std::fmt::Debug for Splitter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Splitter").field("classes", &self.classes.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(splitter: &Splitter, text: &str, trusted: impl Fn(Range<usize>) -> bool) -> String {
        let show = |f| match f {
            Fragment::Text(r) => text[r].to_owned(),
            Fragment::Token(id) => format!("#{id}"),
        };
        splitter.split(text, trusted).into_iter().map(show).collect::<Vec<_>>().join(",")
    }

    fn splitter(tokens: &[(&str, bool)]) -> Splitter {
        let special = |(i, &(text, always)): (usize, &(&'static str, bool))| Special { id: i as u32, text, always };
        // The texts of the tests are literals.
        let tokens: Vec<(&'static str, bool)> =
            tokens.iter().map(|&(t, a)| (&*Box::leak(t.to_owned().into_boxed_str()), a)).collect();
        Splitter::new(tokens.iter().enumerate().map(special).collect())
    }

    #[test]
    fn longer_tokens_win_even_when_they_begin_later() {
        let s = splitter(&[("xa", true), ("abc", true), ("", true)]);
        assert_eq!(show(&s, "xabcxa", |_| true), "x,#1,#0");
    }

    #[test]
    fn control_tokens_need_trust_and_user_defined_ones_do_not() {
        let s = splitter(&[("<a>", false), ("<b>", true)]);
        assert_eq!(show(&s, "<a><b><a>", |r| r.start >= 3), "<a>,#1,#0");
        assert_eq!(show(&s, "<a><b><a>", |_| false), "<a>,#1,<a>");
        assert_eq!(show(&s, "", |_| true), "");
    }
}
