//! Searches text for the texts of special tokens, complete or cut off at an end.
//!
//! A vocabulary may have thousands of special texts that are suffixes of one another (`a`, `aa`,
//! `aaa`, …), and a message may contain all of them everywhere. An Aho-Corasick automaton finds, at
//! each position, the longest one that ends there. Shorter ones are reached by links from each text
//! to its longest proper suffix in the set, followed only as far as needed. Time and memory are
//! linear in text and vocabulary.

use std::fmt;
use std::ops::Range;

use daachorse::DoubleArrayAhoCorasick;

use super::error::ChatError;
use crate::tokenizer::nested::longest_prefixes;

/// Finds the texts of special tokens in a string.
pub(super) struct Texts {
    /// Automaton whose values are indices into `forward`; `None` for an empty set.
    automaton: Option<DoubleArrayAhoCorasick<u32>>,
    /// Texts in ascending order; a special text is identified by its index.
    forward: Vec<String>,
    /// Reversed texts in ascending order, in which each text comes after its suffixes.
    backward: Vec<Vec<u8>>,
    /// Index in `forward` of each text in `backward`.
    places: Vec<usize>,
    /// Longest other text that is a suffix of each text.
    endings: Vec<Option<usize>>,
    /// Length in bytes of the longest text.
    longest: usize,
}

impl Texts {
    /// # Errors
    /// Returns an error if the automaton cannot be built.
    pub(super) fn new(mut texts: Vec<String>) -> Result<Self, ChatError> {
        texts.retain(|text| !text.is_empty());
        texts.sort_unstable();
        texts.dedup();
        let mut reversed: Vec<(Vec<u8>, usize)> = texts
            .iter()
            .enumerate()
            .map(|(special, text)| (text.bytes().rev().collect(), special))
            .collect();
        reversed.sort_unstable();
        let (backward, places): (Vec<Vec<u8>>, Vec<usize>) = reversed.into_iter().unzip();
        let mut endings = vec![None; texts.len()];
        for (at, ending) in longest_prefixes(&backward).into_iter().enumerate() {
            endings[places[at]] = ending.map(|other| places[other]);
        }
        let automaton = match texts.is_empty() {
            true => None,
            false => Some(
                DoubleArrayAhoCorasick::with_values(texts.iter().zip(0..))
                    .map_err(|error| ChatError::Specials(error.to_string()))?,
            ),
        };
        let longest = texts.iter().map(String::len).max().unwrap_or_default();
        Ok(Self {
            automaton,
            forward: texts,
            backward,
            places,
            endings,
            longest,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.forward.is_empty()
    }

    pub(super) fn text(&self, special: usize) -> &str {
        &self.forward[special]
    }

    /// Returns the end positions of special texts in `text`, with the longest that ends there.
    fn ends<'t>(&'t self, text: &'t str) -> impl Iterator<Item = (usize, usize)> + 't {
        let found = self
            .automaton
            .iter()
            .flat_map(move |a| a.find_overlapping_no_suffix_iter(text));
        found.map(|m| (m.end(), m.value() as usize))
    }

    /// Returns the whole occurrences in `text` with their special text; of those with the same end,
    /// the longest.
    pub(super) fn occurrences<'t>(
        &'t self,
        text: &'t str,
    ) -> impl Iterator<Item = (Range<usize>, usize)> + 't {
        self.ends(text)
            .map(|(end, special)| (end - self.text(special).len()..end, special))
    }

    /// Returns prefixes of special texts at the end of `text`, longest first.
    fn beginnings(&self, text: &str) -> impl Iterator<Item = Part> {
        let start = text.len() - text.len().min(self.longest);
        parts(&self.forward, text.as_bytes()[start..].to_vec())
    }

    /// Returns suffixes of special texts at the start of `text`, longest first;
    /// their ranges index `backward`.
    fn completions(&self, text: &str) -> impl Iterator<Item = Part> {
        let mut tail: Vec<u8> = text.bytes().take(self.longest).collect();
        tail.reverse();
        parts(&self.backward, tail)
    }
}

impl fmt::Debug for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Texts").field(&self.forward).finish()
    }
}

/// A proper prefix or suffix shared by a range of special texts.
struct Part {
    length: usize,
    /// Range of the texts that begin with it, in their order.
    texts: Range<usize>,
}

/// Returns the prefixes of `texts`, which ascend, that `tail` ends in. A partial character is never
/// one, because texts begin and end at character boundaries.
fn parts<T: AsRef<[u8]>>(texts: &[T], tail: Vec<u8>) -> impl Iterator<Item = Part> {
    (1..=tail.len()).rev().filter_map(move |length| {
        let part = &tail[tail.len() - length..];
        let first = texts.partition_point(|text| text.as_ref() <= part);
        let count = texts[first..].partition_point(|text| text.as_ref().starts_with(part));
        (count > 0).then_some(Part {
            length,
            texts: first..first + count,
        })
    })
}

/// Special texts that occur in a set of texts, whole or in part.
pub(super) struct SpecialMatches<'t> {
    texts: &'t Texts,
    /// Texts that occur as a whole, including all their suffixes.
    whole: Vec<bool>,
    /// Difference array over `forward`: +1 where a range of texts with an occurring prefix starts,
    /// −1 where it ends.
    beginnings: Vec<isize>,
    /// Difference array over `backward` for occurring suffixes.
    completions: Vec<isize>,
}

impl<'t> SpecialMatches<'t> {
    pub(super) fn none_of(texts: &'t Texts) -> Self {
        let count = texts.forward.len();
        Self {
            texts,
            whole: vec![false; count],
            beginnings: vec![0; count + 1],
            completions: vec![0; count + 1],
        }
    }

    /// Adds the special texts in `text`, those with a prefix at its end, and those with a suffix at
    /// its start. The template's own text could complete the latter two.
    pub(super) fn add(&mut self, text: &str) {
        for (_, special) in self.texts.ends(text) {
            let mut next = Some(special);
            while let Some(special) =
                next.filter(|&special| !std::mem::replace(&mut self.whole[special], true))
            {
                next = self.texts.endings[special];
            }
        }
        let text = text.trim();
        for Part { texts, .. } in self.texts.beginnings(text) {
            self.beginnings[texts.start] += 1;
            self.beginnings[texts.end] -= 1;
        }
        for Part { texts, .. } in self.texts.completions(text) {
            self.completions[texts.start] += 1;
            self.completions[texts.end] -= 1;
        }
    }

    /// Returns all matched special texts in ascending order.
    pub(super) fn specials(mut self) -> Vec<usize> {
        let within = |changes: &[isize]| -> Vec<bool> {
            changes
                .iter()
                .scan(0, |open, change| Some(add(open, *change) > 0))
                .collect()
        };
        let (beginnings, completions) = (within(&self.beginnings), within(&self.completions));
        for (at, &special) in self.texts.places.iter().enumerate() {
            self.whole[special] |= completions[at] || beginnings[special];
        }
        (0..self.whole.len())
            .filter(|&special| self.whole[special])
            .collect()
    }
}

fn add(sum: &mut isize, change: isize) -> isize {
    *sum += change;
    *sum
}

/// A subset of the special texts, prepared for search.
pub(super) struct SpecialSet<'t> {
    texts: &'t Texts,
    /// For each special text, its longest suffix (or itself) in the subset.
    longest: Vec<Option<usize>>,
    /// Prefix sums of the subset in the order of `Texts::forward`.
    forward: Vec<usize>,
    /// Prefix sums of the subset in the order of `Texts::backward`.
    backward: Vec<usize>,
}

impl<'t> SpecialSet<'t> {
    pub(super) fn new(texts: &'t Texts, chosen: impl Iterator<Item = usize>) -> Self {
        let mut is_chosen = vec![false; texts.forward.len()];
        chosen.for_each(|special| is_chosen[special] = true);
        let mut longest = vec![None; is_chosen.len()];
        let (mut forward, mut backward) = (vec![0], vec![0]);
        for &special in &texts.places {
            let ending = texts.endings[special].and_then(|ending| longest[ending]);
            longest[special] = if is_chosen[special] {
                Some(special)
            } else {
                ending
            };
            backward.push(backward[backward.len() - 1] + usize::from(is_chosen[special]));
        }
        for chosen in is_chosen {
            forward.push(forward[forward.len() - 1] + usize::from(chosen));
        }
        Self {
            texts,
            longest,
            forward,
            backward,
        }
    }

    /// Returns the whole occurrences in `text`; of those with the same end, the longest.
    pub(super) fn occurrences(&self, text: &str) -> Vec<Range<usize>> {
        let longest = |(end, special): (usize, usize)| {
            self.longest[special].map(|special| end - self.texts.text(special).len()..end)
        };
        self.texts.ends(text).filter_map(longest).collect()
    }

    /// Returns the ranges of `text` that spell a member of the subset: whole, as a prefix at the
    /// end, or as a suffix at the start.
    pub(super) fn ranges(&self, text: &str) -> Vec<Range<usize>> {
        let mut ranges = self.occurrences(text);
        let (start, trimmed) = (text.len() - text.trim_start().len(), text.trim());
        let end = start + trimmed.len();
        let has = |before: &[usize], part: &Part| before[part.texts.start] < before[part.texts.end];
        let beginning = self
            .texts
            .beginnings(trimmed)
            .find(|part| has(&self.forward, part));
        let completion = self
            .texts
            .completions(trimmed)
            .find(|part| has(&self.backward, part));
        ranges.extend(beginning.map(|part| end - part.length..end));
        ranges.extend(completion.map(|part| start..start + part.length));
        merge(ranges)
    }
}

/// Sorts ranges, drops empty ones, and joins those that touch or overlap.
pub(super) fn merge(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference implementation: all occurrences of special texts, of their prefixes at the end,
    /// and of their suffixes at the start.
    fn by_definition(texts: &[String], text: &str) -> Vec<(Range<usize>, usize)> {
        let mut found = Vec::new();
        let start = text.len() - text.trim_start().len();
        let trimmed = text.trim();
        for (special, whole) in texts.iter().enumerate() {
            let at =
                (0..text.len()).filter(|&at| text.as_bytes()[at..].starts_with(whole.as_bytes()));
            found.extend(at.map(|at| (at..at + whole.len(), special)));
            let cuts = || (1..whole.len()).filter(|&cut| whole.is_char_boundary(cut));
            if let Some(cut) = cuts().rev().find(|&cut| trimmed.ends_with(&whole[..cut])) {
                let end = start + trimmed.len();
                found.push((end - cut..end, special));
            }
            if let Some(cut) = cuts().find(|&cut| trimmed.starts_with(&whole[cut..])) {
                found.push((start..start + whole.len() - cut, special));
            }
        }
        found
    }

    #[test]
    fn any_texts_are_found_by_the_definition() {
        let mut state = 1u64;
        let mut below = move |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let (mut whole, mut some) = (0, 0);
        for round in 0..4000 {
            let letters = 1 + below(4);
            let mut word = |least: u64, most: u64| -> String {
                (0..least + below(most))
                    .map(|_| ['a', 'é', ' ', 'è'][below(letters) as usize])
                    .collect()
            };
            let texts = Texts::new((0..1 + round % 7).map(|_| word(1, 6)).collect()).unwrap();
            let text = word(0, 30);
            let found = by_definition(&texts.forward, &text);
            let mut specials: Vec<usize> = found.iter().map(|(_, special)| *special).collect();
            specials.sort_unstable();
            specials.dedup();
            let mut all = SpecialMatches::none_of(&texts);
            all.add(&text);
            assert_eq!(all.specials(), specials, "{texts:?} {text:?}");
            let chosen: Vec<usize> = (0..texts.forward.len()).filter(|_| below(3) > 0).collect();
            let want = merge(
                found
                    .into_iter()
                    .filter(|(_, s)| chosen.contains(s))
                    .map(|(range, _)| range)
                    .collect(),
            );
            assert_eq!(
                SpecialSet::new(&texts, chosen.iter().copied()).ranges(&text),
                want,
                "{texts:?} {chosen:?} {text:?}"
            );
            whole += usize::from(want.first() == Some(&(0..text.len())));
            some += usize::from(want.len() > 1);
        }
        assert!(whole > 100 && some > 100, "{whole} {some}");
    }

    #[test]
    fn nested_texts_are_found_in_time() {
        let texts = Texts::new((1..=1400).map(|n| "a".repeat(n)).collect()).unwrap();
        let text = "a".repeat(1 << 20);
        let begun = super::super::helper::thread_time();
        let mut found = SpecialMatches::none_of(&texts);
        found.add(&text);
        assert_eq!(found.specials().len(), 1400);
        let choice = SpecialSet::new(&texts, 0..700);
        let ranges = choice.ranges(&text);
        assert_eq!((ranges.len(), ranges.first()), (1, Some(&(0..text.len()))));
        assert_eq!(choice.occurrences(&text).len(), text.len());
        let took = super::super::helper::thread_time() - begun;
        assert!(took.as_secs() < 5, "{took:?}");
    }
}
