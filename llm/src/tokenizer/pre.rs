//! Pre-tokenisers: the regexes that cut text into pieces before merging.
//!
//! [`PRE_TYPES`] is the one table: a new pre-tokeniser is one entry. Patterns are as published, with Hugging Face's
//! semantics: code points, `\s` = White_Space, `\p{..}` = general categories. llama.cpp's executor folds the letter
//! categories into one for the camel-case patterns (youtu, gpt-4o), so rare disagreements with it are expected there.
//!
//! **The look-ahead.** Most patterns end in `\s+(?!\S)|\s+`: a whitespace run leaves its last character to the word that
//! follows. A backtracking engine pays for that with a stack entry for each character and gives up at its limit (about a
//! million spaces), so the tail is compiled as plain `\s+` and the last character is given back afterwards
//! ([`Pattern::give_back`]). What remains needs no look-around, so fancy-regex hands it whole to a linear-time automaton.
//!
//! Patterns with that tail match nearly everywhere, so they are tried *at* each position instead of searched from it:
//! an unanchored search runs a second automaton backwards to find where the match began, which made the camel-case
//! patterns 25 times slower (1.1 s instead of 0.045 s for 2 MB of noise).

use std::ops::Range;

use fancy_regex::Regex;

use super::TokenizerError;

/// One line of the table.
struct PreType {
    /// Values of `tokenizer.ggml.pre`; the first is the usual one.
    names: &'static [&'static str],
    /// Applied in sequence: each splits every current piece into its matches and the gaps between them.
    patterns: &'static [&'static str],
    /// Look the whole piece up in the vocabulary before merging.
    ignore_merges: bool,
    /// `add_bos_token` where the file does not say.
    add_bos: bool,
}

/// The look-ahead tail, see the module's description.
const TAIL: &str = r"|\s+(?!\S)|\s+";
/// What [`TAIL`] is compiled as.
const PLAIN_TAIL: &str = r"|\s+";
/// The alternative that takes whitespace up to the last line break.
const LINE_BREAKS: &str = r"|\s*[\r\n]+";

macro_rules! contractions {
    () => {
        r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
    };
}

/// The common tail of the cl100k family; `$digits` and `$after` (what may follow a punctuation run) vary.
macro_rules! words_and_spaces {
    ($digits:literal, $after:literal) => {
        concat!("|", $digits, r"| ?[^\s\p{L}\p{N}]+", $after, r"|\s*[\r\n]+|\s+(?!\S)|\s+")
    };
}

/// OpenAI's cl100k pattern, used by Llama 3, GLM-4 and Qwen2.
macro_rules! cl100k {
    ($digits:literal) => {
        concat!("(?:", contractions!(), r")|[^\r\n\p{L}\p{N}]?\p{L}+", words_and_spaces!($digits, r"[\r\n]*"))
    };
}

/// OpenAI's o200k pattern: words split at a change from lower to upper case, contractions stay with their word.
macro_rules! camel_case {
    ($upper:literal, $lower:literal, $digits:literal, $after:literal) => {
        camel_case!(concat!("(?:", contractions!(), ")?"), $upper, $lower, $digits, $after)
    };
    ($contraction:expr, $upper:literal, $lower:literal, $digits:literal, $after:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?",
            $upper,
            "*",
            $lower,
            "+",
            $contraction,
            r"|[^\r\n\p{L}\p{N}]?",
            $upper,
            "+",
            $lower,
            "*",
            $contraction,
            words_and_spaces!($digits, $after)
        )
    };
}

/// Letters of the scripts that DeepSeek's first tokenizers treat as words (with an optional space in front).
const DEEPSEEK_WORD: &str = concat!(
    r"\s?[",
    r"\x{41}-\x{5A}\x{61}-\x{7A}\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}",
    r"\x{295}-\x{2AF}\x{370}-\x{373}\x{376}-\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}",
    r"\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}",
    r"\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}",
    r"\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}",
    r"\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}",
    r"\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}",
    r"\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}",
    r"\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}-\x{2184}\x{2C00}-\x{2C7B}",
    r"\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}-\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}",
    r"\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}",
    r"\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}",
    r"\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}",
    r"]+"
);

/// Ideographs, the range up to them, and Hangul (DeepSeek LLM and Coder).
const DEEPSEEK_CJK: &str = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+";

/// Every supported pre-tokeniser. Sources: llama.cpp's `llama-vocab.cpp` and the models' `tokenizer.json`; kimi-k2 from
/// the `pat_str` of its `tokenization_kimi.py`. Aliases are names for exactly the same behaviour.
const PRE_TYPES: &[PreType] = &[
    PreType {
        names: &["glm4", "chatglm-bpe"],
        patterns: &[cl100k!(r"\p{N}{1,3}")],
        ignore_merges: false,
        add_bos: false,
    },
    PreType {
        names: &["deepseek-llm"],
        patterns: &[
            r"[\r\n]",
            DEEPSEEK_WORD,
            r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
            r"\s+$",
            DEEPSEEK_CJK,
            r"\p{N}+",
        ],
        ignore_merges: false,
        add_bos: false,
    },
    PreType {
        names: &["youtu"],
        patterns: &[
            concat!(
                r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+",
                r"|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}",
                r"\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+",
                r"|[\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
            ),
            camel_case!(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"\p{N}", r"[\r\n/]*"),
        ],
        ignore_merges: true,
        add_bos: false,
    },
    PreType {
        names: &["llama-bpe", "llama3", "llama-v3"],
        patterns: &[cl100k!(r"\p{N}{1,3}")],
        ignore_merges: true,
        add_bos: true,
    },
    PreType {
        names: &["qwen2", "deepseek-r1-qwen"],
        patterns: &[cl100k!(r"\p{N}")],
        ignore_merges: false,
        add_bos: false,
    },
    PreType {
        names: &["gpt-2", "gpt2"],
        patterns: &[r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"],
        ignore_merges: false,
        add_bos: false,
    },
    PreType {
        names: &["deepseek-coder"],
        patterns: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"],
        ignore_merges: false,
        add_bos: false,
    },
    PreType {
        names: &["deepseek-v3"],
        patterns: &[
            r"\p{N}{1,3}",
            r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
            concat!(
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
                r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
        ],
        ignore_merges: false,
        add_bos: false,
    },
    PreType {
        names: &["gpt-4o"],
        patterns: &[camel_case!(
            r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
            r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
            r"\p{N}{1,3}",
            r"[\r\n/]*"
        )],
        ignore_merges: false,
        add_bos: false,
    },
    PreType {
        names: &["tekken"],
        patterns: &[camel_case!(
            "",
            r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
            r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
            r"\p{N}",
            r"[\r\n/]*"
        )],
        ignore_merges: true,
        add_bos: true,
    },
    PreType {
        names: &["kimi-k2"],
        patterns: &[concat!(
            r"\p{Han}+|",
            camel_case!(
                r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
                r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
                r"\p{N}{1,3}",
                r"[\r\n]*"
            )
        )],
        ignore_merges: false,
        add_bos: false,
    },
];

/// Every name of the table.
pub(super) fn supported_names() -> Vec<&'static str> {
    PRE_TYPES.iter().flat_map(|pre| pre.names).copied().collect()
}

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
    /// It also has [`LINE_BREAKS`].
    line_breaks: bool,
}

impl PreTokenizer {
    pub(super) fn new(name: &str) -> Result<Self, TokenizerError> {
        let pre = PRE_TYPES.iter().find(|pre| pre.names.contains(&name)).ok_or_else(|| {
            TokenizerError::UnsupportedPre { pre: name.to_owned(), supported: supported_names().join(", ") }
        })?;
        let patterns = pre.patterns.iter().map(|published| {
            let head = published.strip_suffix(TAIL);
            let plain = head.map_or_else(|| (*published).to_owned(), |head| format!("^(?:{head}{PLAIN_TAIL})"));
            let regex = Regex::new(&plain).map_err(|e| TokenizerError::Pattern {
                pre: name.to_owned(),
                pattern: (*published).to_owned(),
                reason: e.to_string(),
            })?;
            Ok(Pattern { regex, look_ahead: head.is_some(), line_breaks: published.contains(LINE_BREAKS) })
        });
        let patterns = patterns.collect::<Result<_, TokenizerError>>()?;
        Ok(Self { patterns, ignore_merges: pre.ignore_merges, add_bos: pre.add_bos })
    }

    /// The pieces of `text`, in order: non-empty byte ranges that cover it.
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

impl Pattern {
    /// Appends matches and gaps of `piece`, moved by `offset`.
    fn split(&self, piece: &str, offset: usize, out: &mut Vec<Range<usize>>) {
        let mut at = 0;
        while let Some(found) = self.find(piece, at) {
            let (start, end) = (found.start, found.end - self.give_back(piece, found));
            // The table has no pattern that matches nothing; if it had, the rest would stay one piece.
            if start >= end {
                break;
            }
            if at < start {
                out.push(offset + at..offset + start);
            }
            out.push(offset + start..offset + end);
            at = end;
        }
        if at < piece.len() {
            out.push(offset + at..offset + piece.len());
        }
    }

    /// The first match from `at` on. An error of the engine counts as none.
    fn find(&self, piece: &str, at: usize) -> Option<Range<usize>> {
        if !self.look_ahead {
            return self.regex.find_from_pos(piece, at).ok()?.map(|found| found.range());
        }
        let mut starts = piece[at..].char_indices().map(|(i, _)| at + i);
        starts.find_map(|start| {
            let found = self.regex.find(&piece[start..]).ok()??;
            Some(start..start + found.end())
        })
    }

    /// Bytes that the look-ahead `\s+(?!\S)` would have left to the next match.
    ///
    /// A match that ends in whitespace is one of `\s+`, except that [`LINE_BREAKS`] and punctuation with its line breaks
    /// end in CR or LF; and `\s+` is only reached in a run without CR and LF where [`LINE_BREAKS`] stands before it. So
    /// the last character tells the alternative. `\s+` is greedy: what follows is the end or no whitespace.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        let pre = PreTokenizer::new(name).unwrap();
        pre.split(text).into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn every_line_of_the_table_compiles_and_covers_its_text() {
        let text = "Hello, WORLD's  fooBar\r\n \n x1234567  中文カナ한글 é\u{301} ½ \u{1}\u{85}\u{3000}! ";
        for name in supported_names() {
            assert_eq!(pieces(name, text).concat(), text, "{name}");
            assert!(pieces(name, "").is_empty(), "{name}");
        }
    }

    #[test]
    fn characteristic_splits() {
        let cases: &[(&str, &str, &[&str])] = &[
            ("glm4", "I'LL go  12345 \n\n x", &["I", "'LL", " go", " ", " ", "123", "45", " \n\n", " x"]),
            ("qwen2", "a12", &["a", "1", "2"]),
            ("gpt-2", "it's\n\n ok 123  ", &["it", "'s", "\n\n", " ok", " 123", "  "]),
            ("gpt-2", "a\n\nb", &["a", "\n", "\n", "b"]),
            ("deepseek-llm", "a  b\nc中文x", &["a", " ", " b", "\n", "c", "中文", "x"]),
            ("deepseek-coder", "x12, y", &["x", "1", "2", ",", " y"]),
            ("deepseek-v3", "foo.bar 1234中文ab", &["foo", ".bar", " ", "123", "4", "中文", "ab"]),
            ("gpt-4o", "fooBar's ABCdef 1234 a/\n/", &["foo", "Bar's", " ABCdef", " ", "123", "4", " a", "/\n/"]),
            ("tekken", "fooBar's 12 a/\n/", &["foo", "Bar", "'s", " ", "1", "2", " a", "/\n/"]),
            ("youtu", "fooBar 12中文，한", &["foo", "Bar", " ", "1", "2", "中文", "，", "한"]),
            ("kimi-k2", "abc中文Def 1234é漢ab", &["abc", "中文", "Def", " ", "123", "4", "é", "漢", "ab"]),
        ];
        for (name, text, expected) in cases {
            assert_eq!(&pieces(name, text), expected, "{name} {text:?}");
        }
    }

    #[test]
    fn unknown_names_are_errors_that_list_the_known() {
        let error = PreTokenizer::new("nope").unwrap_err();
        assert!(error.hint().unwrap().contains("glm4"));
    }
}
