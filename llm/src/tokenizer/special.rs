//! Splits text at special tokens.
//!
//! Special tokens are found *before* pre-tokenisation, longest text first: all occurrences of the
//! longest tokens are cut out, then the next length is searched in the rest. (A single
//! leftmost-longest scan differs where two tokens overlap: with tokens `abc` and `xa`, "xabc" is
//! `x`+`abc`, not `xa`+`bc`.)
//!
//! A vocabulary may have thousands of lengths (`a`, `aa`, `aaa`, …), and a text may contain all of
//! them everywhere, so a scan per length would be too slow. One Aho–Corasick automaton of the
//! reversed tokens reads the text backwards and finds, at each position, the longest token that
//! begins there. Shorter ones are prefixes of that token, found by [`Ladder`]. If a position's
//! token would overlap one that was cut out, it falls back to the longest prefix that fits. That
//! happens O(log length) times per position: the token cut out in between is at least as long as
//! the prefix and before the old border, so at most half of the room remains.

use std::collections::BTreeMap;
use std::ops::Range;

use daachorse::DoubleArrayAhoCorasick;

use super::TokenizerError;
use super::nested::longest_prefixes;

/// Maximum bytes of all special tokens together; each may be a state of the automaton. 1 MiB of
/// them, in 1,400 lengths, load in 0.05 s and take 0.4 s to search in 4 MiB of text. 6,000 tokens
/// of 20 bytes are a tenth of that.
const MAX_SPECIAL_BYTES: usize = 1 << 20;

/// Maximum bytes of a control token; known ones have some 30. The ends of each message are compared
/// with parts of each length (`chat/special.rs`), which takes time quadratic in this.
const MAX_CONTROL_BYTES: usize = 2 << 10;

/// A token to search for.
#[derive(Clone, Copy)]
pub(super) struct Special<'a> {
    pub id: u32,
    pub text: &'a str,
    /// Recognised everywhere (user-defined tokens), not only in trusted text (control tokens).
    pub always: bool,
}

/// A range of plain text, or one special token.
pub(super) enum Fragment {
    Text(Range<usize>),
    Token(u32),
}

/// Searches for all special tokens of a vocabulary.
pub(super) struct Splitter {
    /// Automaton of the reversed tokens, with nodes as values; `None` without tokens.
    automaton: Option<DoubleArrayAhoCorasick<u32>>,
    /// Token id by node, like the following fields; node 0 is not a token.
    ids: Vec<u32>,
    /// Length of each token in bytes.
    lengths: Vec<usize>,
    always: Vec<bool>,
    /// Links from a token to its prefixes that are tokens.
    prefixes: Ladder,
    /// Links to those prefixes that are recognised everywhere.
    always_prefixes: Ladder,
}

/// Offset in the text, and the node of a token there.
type Place = (usize, u32);

impl Splitter {
    /// # Errors
    /// Returns an error if the tokens are longer than [`MAX_SPECIAL_BYTES`] together, or a
    /// control token than [`MAX_CONTROL_BYTES`].
    pub(super) fn new(mut specials: Vec<Special<'_>>) -> Result<Self, TokenizerError> {
        specials.retain(|s| !s.text.is_empty());
        let count = specials.iter().map(|s| s.text.len()).sum();
        if count > MAX_SPECIAL_BYTES {
            return Err(TokenizerError::TooLarge {
                what: "bytes of special tokens",
                count,
                limit: MAX_SPECIAL_BYTES,
            });
        }
        let count = specials
            .iter()
            .filter(|s| !s.always)
            .map(|s| s.text.len())
            .max()
            .unwrap_or_default();
        if count > MAX_CONTROL_BYTES {
            return Err(TokenizerError::TooLarge {
                what: "bytes of a control token",
                count,
                limit: MAX_CONTROL_BYTES,
            });
        }
        specials.sort_unstable_by_key(|s| s.text);
        let mut splitter = Splitter {
            automaton: None,
            ids: vec![u32::MAX],
            lengths: vec![0],
            always: vec![false],
            prefixes: Ladder::default(),
            always_prefixes: Ladder::default(),
        };
        let texts: Vec<&str> = specials.iter().map(|s| s.text).collect();
        for (special, prefix) in specials.iter().zip(longest_prefixes(&texts)) {
            // Node 0 is not a token.
            let prefix = prefix.map_or(Ladder::BOTTOM, |place| place as u32 + 1);
            let always = splitter.first_always(prefix);
            splitter.prefixes.push(prefix);
            splitter.always_prefixes.push(always);
            splitter.ids.push(special.id);
            splitter.lengths.push(special.text.len());
            splitter.always.push(special.always);
        }
        let reversed = specials
            .iter()
            .map(|s| s.text.bytes().rev().collect::<Vec<u8>>());
        if !specials.is_empty() {
            // Construction fails only for empty patterns, which were removed, and for more bytes
            // than the limit above.
            let automaton = DoubleArrayAhoCorasick::with_values(reversed.zip(1..));
            splitter.automaton = Some(automaton.map_err(|error| TokenizerError::Special {
                reason: error.to_string(),
            })?);
        }
        Ok(splitter)
    }

    /// Splits `text`. A control token counts only in trusted text: `trusted` maps an offset to the
    /// end of the trusted text that begins there, or to the offset itself if there is none.
    pub(super) fn split(&self, text: &str, trusted: impl Fn(usize) -> usize) -> Vec<Fragment> {
        let found = |a| {
            DoubleArrayAhoCorasick::find_overlapping_no_suffix_iter_from_iter(a, text.bytes().rev())
        };
        // The longest token at each position, from the end of the text to its start.
        let places: Vec<Place> = self
            .automaton
            .iter()
            .flat_map(found)
            .map(|m| (text.len() - m.end(), m.value()))
            .collect();
        let (mut cut, mut cluster, mut end) = (Vec::new(), Vec::new(), 0);
        for &(start, node) in places.iter().rev() {
            if start >= end {
                self.resolve(&mut cluster, end, &trusted, &mut cut);
            }
            cluster.push((start, node));
            end = end.max(start + self.length(node));
        }
        self.resolve(&mut cluster, end, &trusted, &mut cut);
        cut.sort_unstable();
        let (mut fragments, mut from) = (Vec::with_capacity(2 * cut.len() + 1), 0);
        for (start, node) in cut {
            if from < start {
                fragments.push(Fragment::Text(from..start));
            }
            fragments.push(Fragment::Token(self.ids[node as usize]));
            from = start + self.length(node);
        }
        if from < text.len() {
            fragments.push(Fragment::Text(from..text.len()));
        }
        fragments
    }

    /// Selects the tokens of a cluster, a group of positions with tokens that overlap directly or
    /// transitively, up to `end`. Longer tokens first, then from the left, without overlap.
    fn resolve(
        &self,
        cluster: &mut Vec<Place>,
        end: usize,
        trusted: &impl Fn(usize) -> usize,
        cut: &mut Vec<Place>,
    ) {
        let Some(&(base, _)) = cluster.first() else {
            return;
        };
        let mut by_length: BTreeMap<usize, Vec<Place>> = BTreeMap::new();
        let queue = |by_length: &mut BTreeMap<usize, Vec<_>>, start, node, room| {
            let node = self.fitting(node, room, trusted(start) - start);
            if node != Ladder::BOTTOM {
                by_length
                    .entry(self.length(node))
                    .or_default()
                    .push((start, node));
            }
        };
        let alone = cluster.len() == 1;
        for (start, node) in cluster.drain(..) {
            queue(&mut by_length, start, node, self.length(node));
        }
        if alone {
            cut.extend(by_length.into_values().flatten());
            return;
        }
        // For each byte, 1 + the start of the selected token that covers it, or 0.
        let mut taken = vec![0; end - base];
        while let Some((length, mut places)) = by_length.pop_last() {
            places.sort_unstable();
            for (start, node) in places {
                let at = start - base;
                // Selected tokens are at least as long, so one that overlaps covers the first
                // byte or the last.
                match (taken[at], taken[at + length - 1]) {
                    (0, 0) => {
                        taken[at..at + length].fill(at + 1);
                        cut.push((start, node));
                    }
                    (0, other) => queue(&mut by_length, start, node, other - 1 - at),
                    _ => {}
                }
            }
        }
    }

    /// Returns the longest token that is `node` or a prefix of it and has at most `room` bytes. A
    /// control token must also have at most `trusted` bytes.
    fn fitting(&self, node: u32, room: usize, trusted: usize) -> u32 {
        let any = self
            .prefixes
            .at_most(node, room.min(trusted), &self.lengths);
        let always = self
            .always_prefixes
            .at_most(self.first_always(node), room, &self.lengths);
        if self.length(any) >= self.length(always) {
            any
        } else {
            always
        }
    }

    /// Returns `node`, or its longest prefix that is recognised everywhere.
    fn first_always(&self, node: u32) -> u32 {
        if self.always[node as usize] {
            node
        } else {
            self.always_prefixes.below(node)
        }
    }

    fn length(&self, node: u32) -> usize {
        self.lengths[node as usize]
    }
}

/// Chains of ever shorter tokens with skip links, so that a given length is found in O(log n) steps
/// (Myers 1983, "An applicative random-access stack").
#[derive(Default)]
struct Ladder {
    /// By node, without the bottom.
    steps: Vec<Step>,
}

#[derive(Clone, Copy)]
struct Step {
    below: u32,
    far: u32,
    height: u32,
}

impl Ladder {
    /// End of all chains: no token.
    const BOTTOM: u32 = 0;

    fn step(&self, node: u32) -> Step {
        let bottom = Step {
            below: Self::BOTTOM,
            far: Self::BOTTOM,
            height: 0,
        };
        (node as usize)
            .checked_sub(1)
            .map_or(bottom, |at| self.steps[at])
    }
    fn below(&self, node: u32) -> u32 {
        self.step(node).below
    }
    /// Adds the next node, above `below`.
    fn push(&mut self, below: u32) {
        let one = self.step(below);
        let two = self.step(one.far);
        let three = self.step(two.far);
        // Two skips of equal length are joined.
        let joined = one.height - two.height == two.height - three.height;
        let far = if joined { two.far } else { below };
        self.steps.push(Step {
            below,
            far,
            height: one.height + 1,
        });
    }
    /// Returns the first node from `node` down with at most `most` bytes.
    fn at_most(&self, mut node: u32, most: usize, lengths: &[usize]) -> u32 {
        while lengths[node as usize] > most {
            let Step { below, far, .. } = self.step(node);
            node = if lengths[far as usize] > most {
                far
            } else {
                below
            };
        }
        node
    }
}

impl std::fmt::Debug for Splitter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Splitter")
            .field("tokens", &self.ids.len().saturating_sub(1))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(splitter: &Splitter, text: &str, trusted: impl Fn(usize) -> usize) -> String {
        let show = |f| match f {
            Fragment::Text(r) => text[r].to_owned(),
            Fragment::Token(id) => format!("#{id}"),
        };
        splitter
            .split(text, trusted)
            .into_iter()
            .map(show)
            .collect::<Vec<_>>()
            .join(",")
    }

    fn splitter(tokens: &[(&str, bool)]) -> Splitter {
        let special = |(i, &(text, always)): (usize, &(&'static str, bool))| Special {
            id: i as u32,
            text,
            always,
        };
        // The texts of the tests are literals.
        let tokens: Vec<(&'static str, bool)> = tokens
            .iter()
            .map(|&(t, a)| (&*Box::leak(t.to_owned().into_boxed_str()), a))
            .collect();
        Splitter::new(tokens.iter().enumerate().map(special).collect()).unwrap()
    }

    #[test]
    fn longer_tokens_win_even_when_they_begin_later() {
        let s = splitter(&[("xa", true), ("abc", true), ("", true)]);
        assert_eq!(show(&s, "xabcxa", |_| usize::MAX), "x,#1,#0");
    }

    #[test]
    fn control_tokens_need_trust_and_user_defined_ones_do_not() {
        let s = splitter(&[("<a>", false), ("<b>", true)]);
        assert_eq!(
            show(&s, "<a><b><a>", |at| if at >= 3 { usize::MAX } else { at }),
            "<a>,#1,#0"
        );
        assert_eq!(show(&s, "<a><b><a>", |at| at), "<a>,#1,<a>");
        assert_eq!(show(&s, "", |_| usize::MAX), "");
    }

    /// Reference implementation: all tokens of a length from the left, then the next
    /// length in the rest.
    fn by_definition(tokens: &[(&str, bool)], text: &str, untrusted: &[bool]) -> String {
        let mut lengths: Vec<usize> = tokens.iter().map(|t| t.0.len()).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let mut owner: Vec<Option<(usize, usize)>> = vec![None; text.len()];
        for &length in lengths.iter().rev() {
            for start in 0..(text.len() + 1).saturating_sub(length) {
                let range = start..start + length;
                let fits = |t: &(&str, bool)| {
                    text.as_bytes()[range.clone()] == *t.0.as_bytes()
                        && (t.1 || !untrusted[range.clone()].contains(&true))
                };
                if let Some(id) = tokens
                    .iter()
                    .position(fits)
                    .filter(|_| owner[range.clone()].iter().all(Option::is_none))
                {
                    owner[range].fill(Some((id, start)));
                }
            }
        }
        let runs = owner.chunk_by(|a, b| a == b).scan(0, |at, run| {
            let from = *at;
            *at += run.len();
            Some(run[0].map_or_else(|| text[from..*at].to_owned(), |(id, _)| format!("#{id}")))
        });
        runs.collect::<Vec<_>>().join(",")
    }

    #[test]
    fn any_tokens_are_cut_out_by_the_definition() {
        let mut state = 1u64;
        let mut below = move |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let (mut cut, mut shortened) = (0, 0);
        for round in 0..4000 {
            let letters = 1 + below(3);
            let mut word = |most: u64| -> String {
                (0..1 + below(most))
                    .map(|_| ['a', 'b', 'c'][below(letters) as usize])
                    .collect()
            };
            let mut texts: Vec<String> = (0..1 + round % 7).map(|_| word(6)).collect();
            texts.sort_unstable();
            texts.dedup();
            let text = word(40);
            let tokens: Vec<(&str, bool)> =
                texts.iter().map(|t| (t.as_str(), below(2) == 0)).collect();
            let untrusted: Vec<bool> = (0..text.len()).map(|_| below(5) == 0).collect();
            let special = |(id, &(text, always)): (usize, &(&'static str, bool))| Special {
                id: id as u32,
                text,
                always,
            };
            let leaked: Vec<(&'static str, bool)> = tokens
                .iter()
                .map(|&(t, a)| (&*Box::leak(t.to_owned().into_boxed_str()), a))
                .collect();
            let splitter = Splitter::new(leaked.iter().enumerate().map(special).collect()).unwrap();
            let end = |at: usize| {
                (at..text.len())
                    .find(|&i| untrusted[i])
                    .unwrap_or(text.len())
            };
            let shown = show(&splitter, &text, end);
            assert_eq!(
                shown,
                by_definition(&tokens, &text, &untrusted),
                "{tokens:?} {text} {untrusted:?}"
            );
            cut += usize::from(shown.contains('#'));
            shortened += usize::from(shown.matches('#').count() > 3);
        }
        assert!(cut > 2000 && shortened > 1000, "{cut} {shortened}");
    }

    #[test]
    fn chains_of_prefixes_are_built_and_searched_in_time() {
        let word = |n: usize| "a".repeat(n);
        let texts: Vec<String> = (1..1400).map(word).collect();
        let specials = |extra: usize| -> Vec<Special<'_>> {
            texts
                .iter()
                .take(texts.len() - extra)
                .enumerate()
                .map(|(id, text)| Special {
                    id: id as u32,
                    text,
                    always: id % 2 == 0,
                })
                .collect()
        };
        let start = std::time::Instant::now();
        let splitter = Splitter::new(specials(0)).unwrap();
        let built = start.elapsed();
        let text = word(4 << 20);
        let whole = splitter.split(&text, |_| text.len());
        let odd = splitter.split(&text, |at| if at % 3 == 0 { at } else { at + 1 });
        let took = start.elapsed();
        println!(
            "built in {built:?}, all in {took:?}, {} and {} fragments",
            whole.len(),
            odd.len()
        );
        assert!(took.as_secs() < 30, "{built:?} {took:?}");
        assert!(
            matches!(whole[0], Fragment::Token(1398)) && whole.len() == text.len().div_ceil(1399)
        );
        // Above the limit the file is refused.
        let more = word(MAX_SPECIAL_BYTES);
        let too_many = [
            specials(0),
            vec![Special {
                id: 5000,
                text: &more,
                always: true,
            }],
        ]
        .concat();
        assert!(matches!(
            Splitter::new(too_many),
            Err(TokenizerError::TooLarge { .. })
        ));
    }

    #[test]
    fn what_cannot_be_searched_for_is_refused() {
        let long = "a".repeat(MAX_CONTROL_BYTES + 1);
        let special = |text, always| Special {
            id: 1,
            text,
            always,
        };
        assert!(matches!(
            Splitter::new(vec![special(&long, false)]),
            Err(TokenizerError::TooLarge { .. })
        ));
        Splitter::new(vec![special(&long, true), special(&long[1..], false)]).unwrap();
    }
}
