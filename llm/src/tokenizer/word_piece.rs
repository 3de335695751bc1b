//! WordPiece, as in BERT: text is cleaned and split into words and punctuation, and each word is
//! cut into the longest tokens from left to right.
//!
//! In GGUF files a token that begins a word has U+2581 before it, and a token within a word has no
//! `##`. Cleaning and splitting are those of transformers' BertTokenizer.

use super::TokenizerError;
use super::bytes::SPACE;
use super::vocab::Vocabulary;
use fancy_regex::Regex;
use unicode_normalization::UnicodeNormalization;

/// Longer words, in characters, are unknown.
const LONGEST_WORD: usize = 100;
/// Characters that are removed: control characters, formats, private use.
const REMOVED: &str = r"[\p{Cc}\p{Cf}\p{Co}\x{FFFD}&&[^\t\n\r]]+";
/// Accents that combine with the character before them.
const ACCENTS: &str = r"\p{Mn}+";
/// Class of these characters and those of `$begin`.
macro_rules! words {
    ($begin:literal) => {
        concat!(
            $begin,
            r"\p{P}!-/:-@\[-`{-~\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}",
            r"\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}\x{2B920}-\x{2CEAF}\x{F900}-\x{FAFF}",
            r"\x{2F800}-\x{2FA1F}]"
        )
    };
}

/// Punctuation and ideographs, each a word; and other words. The last range of ideographs is that
/// of Hugging Face's tokenizers, which begins 256 characters late.
const WORDS: &str = concat!(words!("["), "|", words!(r"[^\s"), "+");

/// Cleaning and splitting of text.
#[derive(Debug)]
pub(super) struct WordPieces {
    lowercase: bool,
    removed: Regex,
    /// Present if accents are removed.
    accents: Option<Regex>,
    words: Regex,
    /// Bytes of the longest token.
    longest: usize,
}

impl WordPieces {
    /// Compiles the patterns for a vocabulary whose words are in lower case, without accents, or
    /// both.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        lowercase: bool,
        strips_accents: bool,
    ) -> Result<WordPieces, TokenizerError> {
        let compile = |pattern: &str| {
            Regex::new(pattern).map_err(|error| TokenizerError::Pattern {
                pre: "bert".into(),
                pattern: pattern.into(),
                reason: error.to_string(),
            })
        };
        Ok(WordPieces {
            lowercase,
            removed: compile(REMOVED)?,
            accents: strips_accents.then(|| compile(ACCENTS)).transpose()?,
            words: compile(WORDS)?,
            longest: vocabulary.texts.iter().map(Vec::len).max().unwrap_or(0),
        })
    }

    /// Appends the ids of a text. A word that is not made of tokens becomes `unknown`.
    pub(super) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        unknown: Option<u32>,
        out: &mut Vec<u32>,
    ) {
        let text = self.cleaned(text);
        for word in self.words.find_iter(&text).flatten() {
            let begin = out.len();
            if !self.encode_word(vocabulary, word.as_str(), out) {
                out.truncate(begin);
                out.extend(unknown);
            }
        }
    }

    /// Returns the text without control characters and, as the vocabulary has it, without accents
    /// and in lower case.
    fn cleaned(&self, text: &str) -> String {
        let text = self.removed.replace_all(text, "");
        let text = match &self.accents {
            None => text.into_owned(),
            Some(accents) => {
                let apart: String = text.nfd().collect();
                accents.replace_all(&apart, "").into_owned()
            }
        };
        match self.lowercase {
            true => text.chars().flat_map(char::to_lowercase).collect(),
            false => text,
        }
    }

    /// Appends the longest tokens that a word is made of; returns false if there are none.
    fn encode_word(&self, vocabulary: &Vocabulary, word: &str, out: &mut Vec<u32>) -> bool {
        // Within a word, a token that begins with the mark is that of another word.
        if word.chars().count() > LONGEST_WORD || word.contains(SPACE) {
            return false;
        }
        let marked = format!("{SPACE}{word}");
        // The mark alone is no piece of a word.
        let (mut begin, mut least) = (0, SPACE.len());
        while begin < marked.len() {
            let most = marked.len().min(begin + self.longest);
            let ends = (begin + least + 1..=most).rev();
            let mut ends = ends.filter(|&end| marked.is_char_boundary(end));
            let found = ends.find_map(|end| {
                let id = vocabulary.mergeable(&marked.as_bytes()[begin..end])?;
                Some((id, end))
            });
            let Some((id, end)) = found else {
                return false;
            };
            out.push(id);
            (begin, least) = (end, 0);
        }
        true
    }
}
