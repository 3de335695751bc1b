//! The tokenizer: text to ids, and ids to bytes.

use super::bpe::{Merges, Scratch};
use super::error::TokenizerError;
use super::pre::GEMMA4;
use super::scored::Scores;
use super::spec::TokenizerSpec;
use super::special::{Fragment, Special, Splitter};
use super::split::PreTokenizer;
use super::vocab::{self, Alphabet, TokenKind, Vocabulary};
use super::word_piece::WordPieces;
use super::{bytes::SPACE, end_tokens};
use foldhash::HashMap;
use std::ops::Range;

/// Encodes text to ids and decodes ids. Immutable, can be shared between threads.
#[derive(Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    merging: Merging,
    pre_name: String,
    specials: Splitter,
    bos: Option<u32>,
    eos: Option<u32>,
    unk: Option<u32>,
    pad: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    eog: Vec<u32>,
    /// Special tokens that absorb the white space after them, ascending.
    strips: Vec<u32>,
    warnings: Vec<String>,
}

/// Algorithm that turns text into tokens.
#[derive(Debug)]
enum Merging {
    /// Pieces merged by rank; with `whole_pieces`, a piece that is a token is not merged.
    Ranked {
        pre: PreTokenizer,
        merges: Merges,
        whole_pieces: Option<HashMap<Vec<u8>, u32>>,
    },
    /// Characters merged by rank, with spaces as U+2581. A run of line breaks that is a
    /// token is not merged.
    Characters { pre: PreTokenizer, merges: Merges },
    /// Characters merged by score (SentencePiece).
    Scored(Scores),
    /// Words cut into the longest tokens (WordPiece).
    Words(WordPieces),
}

impl Merging {
    /// Builds the tables of the file's algorithm.
    fn new(
        spec: &mut TokenizerSpec,
        pre: Option<PreTokenizer>,
        alphabet: Alphabet,
        vocabulary: &Vocabulary,
    ) -> Result<Merging, TokenizerError> {
        Ok(match (pre, alphabet) {
            (Some(pre), Alphabet::Mapped) => {
                let whole_pieces = pre.ignore_merges.then(|| vocabulary.by_bytes());
                Merging::Ranked {
                    pre,
                    merges: vocabulary.merges(&spec.merges)?,
                    whole_pieces,
                }
            }
            (Some(pre), Alphabet::Spaced) => Merging::Characters {
                pre,
                merges: vocabulary.merges(&spec.merges)?,
            },
            (None, _) if spec.model == "bert" => {
                let lowercase = spec.lowercase.unwrap_or(true);
                let strips_accents = spec.strip_accents.unwrap_or(lowercase);
                Merging::Words(WordPieces::new(vocabulary, lowercase, strips_accents)?)
            }
            (None, _) => {
                let (scores, tokens) = (spec.scores.len(), vocabulary.texts.len());
                if scores != tokens {
                    return Err(TokenizerError::Scores { scores, tokens });
                }
                Merging::Scored(Scores::new(
                    std::mem::take(&mut spec.scores),
                    vocabulary,
                    spec.add_space_prefix.unwrap_or(true),
                ))
            }
        })
    }
}

impl Tokenizer {
    /// Checks the specification and builds the tables.
    ///
    /// # Errors
    /// Returns an error for an unknown model or pre-tokeniser, no tokens, too many of them, too few
    /// types, duplicate token texts, or malformed merges. Ids of special tokens outside the
    /// vocabulary are ignored with a [warning](Self::warnings).
    pub fn new(mut spec: TokenizerSpec) -> Result<Self, TokenizerError> {
        let (alphabet, pre) = match spec.model.as_str() {
            "gpt2" => (Alphabet::Mapped, Some(PreTokenizer::new(&spec.pre)?)),
            "gemma4" => (
                Alphabet::Spaced,
                Some(PreTokenizer::for_pre_type(&GEMMA4, &spec.model)?),
            ),
            "llama" | "bert" => (Alphabet::Spaced, None),
            _ => return Err(TokenizerError::UnsupportedModel { model: spec.model }),
        };
        let mut warnings: Vec<String> = guessed_pre(&spec).into_iter().collect();
        let special_ids = vocab::checked_ids(&mut spec, &mut warnings);
        let typed = spec.token_types.is_some();
        let vocabulary = Vocabulary::new(
            std::mem::take(&mut spec.tokens),
            spec.token_types.take(),
            &special_ids,
            alphabet,
        )?;
        let add_bos = spec
            .add_bos
            .unwrap_or(pre.as_ref().is_none_or(|pre| pre.add_bos));
        let missing = vocabulary.missing_bytes().len();
        let merging = Merging::new(&mut spec, pre, alphabet, &vocabulary)?;
        if missing > 0 && spec.unk.is_none() {
            warnings.push(format!(
                "no token for {missing} byte values: text with them loses them"
            ));
        }
        if add_bos && spec.bos.is_none() {
            warnings.push("the file asks for a BOS token but names none".into());
        }
        let eog = end_tokens::end_tokens(&vocabulary, [spec.eos, spec.eot, spec.eom], typed);
        let mut strips: Vec<u32> = spec
            .strips
            .iter()
            .filter_map(|text| vocabulary.id(text))
            .collect();
        strips.sort_unstable();
        Ok(Self {
            specials: splitter(&vocabulary)?,
            vocabulary,
            merging,
            pre_name: spec.pre,
            bos: spec.bos,
            eos: spec.eos,
            unk: spec.unk,
            pad: spec.pad,
            add_bos,
            add_eos: spec.add_eos.unwrap_or(false),
            eog,
            strips,
            warnings,
        })
    }

    /// Checks the number of tokens and merges against the limits.
    ///
    /// # Errors
    /// Returns an error if there are more than any known vocabulary has.
    pub fn admit(tokens: usize, merges: usize) -> Result<(), TokenizerError> {
        vocab::admit("tokens", tokens)?;
        vocab::admit("merges", merges)
    }

    /// Encodes text to token ids.
    ///
    /// User-defined tokens are always recognised, control tokens only with `parse_special`. With
    /// `add_special`, BOS and EOS are added if the file requests them and the text does not have
    /// them already (a rendered chat template often begins with BOS).
    pub fn encode(&self, text: &str, parse_special: bool, add_special: bool) -> Vec<u32> {
        let trusted = |at| if parse_special { text.len() } else { at };
        self.encode_fragments(text, self.specials.split(text, trusted), add_special)
    }

    /// Encodes the concatenation of `(text, trusted)` spans.
    ///
    /// Control tokens are recognised only if they are completely in trusted text. In all other
    /// respects the spans are one text: words may cross their borders, so `"User: "` + `"hi"` has
    /// the same ids as `"User: hi"`.
    pub fn encode_spans<S: AsRef<str>>(&self, spans: &[(S, bool)], add_special: bool) -> Vec<u32> {
        let mut text = String::with_capacity(spans.iter().map(|(t, _)| t.as_ref().len()).sum());
        // Untrusted byte ranges in ascending order.
        let mut untrusted: Vec<Range<usize>> = Vec::new();
        for (part, trusted) in spans {
            let start = text.len();
            text.push_str(part.as_ref());
            if !trusted && start < text.len() {
                untrusted.push(start..text.len());
            }
        }
        let trusted = |at: usize| {
            let first = untrusted.partition_point(|u| u.end <= at);
            untrusted.get(first).map_or(text.len(), |u| u.start.max(at))
        };
        self.encode_fragments(&text, self.specials.split(&text, trusted), add_special)
    }

    fn encode_fragments(
        &self,
        text: &str,
        fragments: Vec<Fragment>,
        add_special: bool,
    ) -> Vec<u32> {
        let (mut ids, mut scratch) = (Vec::new(), Scratch::default());
        let (mut first, mut strip) = (true, false);
        for fragment in fragments {
            match fragment {
                Fragment::Token(id) => {
                    ids.push(id);
                    (first, strip) = (true, self.strips.binary_search(&id).is_ok());
                }
                Fragment::Text(range) => {
                    let text = &text[range];
                    let text = if strip { text.trim_start() } else { text };
                    if !text.is_empty() {
                        self.encode_plain(text, first, &mut scratch, &mut ids);
                        first = false;
                    }
                }
            }
        }
        if add_special {
            match self.bos {
                Some(bos) if self.add_bos && ids.first() != Some(&bos) => ids.insert(0, bos),
                _ => {}
            }
            match self.eos {
                Some(eos) if self.add_eos && ids.last() != Some(&eos) => ids.push(eos),
                _ => {}
            }
        }
        ids
    }

    /// Appends the ids of text without special tokens; `first` at the start of the text and
    /// after a special token.
    fn encode_plain(&self, text: &str, first: bool, scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let (pre, merges, whole_pieces) = match &self.merging {
            Merging::Scored(scores) => {
                return scores.encode(&self.vocabulary, text, first, self.unk, ids);
            }
            Merging::Words(words) => {
                return words.encode(&self.vocabulary, text, self.unk, ids);
            }
            Merging::Characters { pre, merges } => {
                return self.encode_characters(
                    pre,
                    merges,
                    &text.replace(' ', SPACE),
                    scratch,
                    ids,
                );
            }
            Merging::Ranked {
                pre,
                merges,
                whole_pieces,
            } => (pre, merges, whole_pieces),
        };
        for range in pre.split(text) {
            let piece = &text.as_bytes()[range];
            match whole_pieces.as_ref().and_then(|whole| whole.get(piece)) {
                Some(&id) => ids.push(id),
                None => merges.encode(piece, self.unk, scratch, ids),
            }
        }
    }

    fn encode_characters(
        &self,
        pre: &PreTokenizer,
        merges: &Merges,
        text: &str,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) {
        for range in pre.split(text) {
            let piece = &text.as_bytes()[range];
            let breaks = piece.iter().all(|&byte| byte == b'\n');
            match self.vocabulary.mergeable(piece).filter(|_| breaks) {
                Some(id) => ids.push(id),
                None => merges.encode(piece, self.unk, scratch, ids),
            }
        }
    }

    /// Decodes a whole sequence; see [`Decoder`] for the rules. The space that encoding added
    /// before the text is removed.
    pub fn decode(&self, ids: &[u32], show_special: bool) -> String {
        let mut bytes = ids
            .iter()
            .flat_map(|&id| self.output_bytes(id, show_special))
            .copied()
            .collect::<Vec<u8>>();
        let begins_with_space = match &self.merging {
            Merging::Scored(scores) => scores.space_prefix,
            Merging::Words(_) => true,
            Merging::Ranked { .. } | Merging::Characters { .. } => false,
        };
        if begins_with_space && bytes.first() == Some(&b' ') {
            bytes.remove(0);
        }
        String::from_utf8(bytes)
            .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
    }

    /// Returns the output bytes of a token: nothing for special tokens unless `show_special`.
    pub(crate) fn output_bytes(&self, id: u32, show_special: bool) -> &[u8] {
        match self.vocabulary.kind(id) {
            Some(TokenKind::Normal | TokenKind::UserDefined) => self.vocabulary.bytes(id),
            Some(_) if show_special => self.vocabulary.bytes(id),
            _ => &[],
        }
    }

    /// Returns the bytes of a token, special or not; `None` outside the vocabulary. They
    /// may be incomplete characters.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.vocabulary.kind(id).map(|_| self.vocabulary.bytes(id))
    }

    /// Returns the kind of a token; `None` outside the vocabulary.
    pub fn token_kind(&self, id: u32) -> Option<TokenKind> {
        self.vocabulary.kind(id)
    }

    /// Returns the token with this text *in the file*: literal for special tokens,
    /// byte-mapped for normal ones.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.vocabulary.id(text.as_bytes())
    }

    /// Returns the number of tokens. A model may have more output rows (padding).
    pub fn n_tokens(&self) -> usize {
        self.vocabulary.texts.len()
    }

    /// Returns the pre-tokeniser's name in the file.
    pub fn pre(&self) -> &str {
        &self.pre_name
    }

    /// Returns the beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Returns the end-of-sequence token.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Returns the token for text outside the vocabulary.
    pub fn unk(&self) -> Option<u32> {
        self.unk
    }

    /// Returns the padding token.
    pub fn pad(&self) -> Option<u32> {
        self.pad
    }

    /// Returns true if encoding adds BOS.
    pub fn adds_bos(&self) -> bool {
        self.add_bos && self.bos.is_some()
    }
    /// Returns true if encoded text ends with EOS.
    pub fn adds_eos(&self) -> bool {
        self.add_eos && self.eos.is_some()
    }

    /// Returns true if parts of a text of any length may have one token or none: unknown words, and
    /// white space between words.
    pub fn drops_text(&self) -> bool {
        matches!(self.merging, Merging::Words(_))
    }

    /// Returns true if generation ends with `id`.
    pub fn is_eog(&self, id: u32) -> bool {
        self.eog.binary_search(&id).is_ok()
    }

    /// Returns all end-of-generation tokens, ascending: EOS, EOT and EOM of the file,
    /// and known end markers.
    pub fn eog(&self) -> &[u32] {
        &self.eog
    }

    /// Returns warnings about the file, to be shown to the user.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the literal texts of control and unknown tokens, which untrusted text must not
    /// be able to produce.
    pub fn special_texts(&self) -> Vec<String> {
        let special = |kind: &TokenKind| matches!(kind, TokenKind::Control | TokenKind::Unknown);
        let texts = self
            .vocabulary
            .texts
            .iter()
            .zip(&self.vocabulary.kinds)
            .filter(|(_, kind)| special(kind));
        texts
            .filter_map(|(text, _)| String::from_utf8(text.clone()).ok())
            .filter(|text| !text.is_empty())
            .collect()
    }
}

/// Creates the splitter for user-defined, control and unknown tokens.
fn splitter(vocabulary: &Vocabulary) -> Result<Splitter, TokenizerError> {
    let tokens = (0u32..).zip(vocabulary.texts.iter().zip(&vocabulary.kinds));
    let specials = tokens.filter_map(|(id, (text, kind))| {
        let always = match kind {
            TokenKind::UserDefined => true,
            TokenKind::Control | TokenKind::Unknown => false,
            _ => return None,
        };
        Some(Special {
            id,
            text: std::str::from_utf8(text).ok()?,
            always,
        })
    });
    Splitter::new(specials.collect())
}

/// Returns a warning if the pre-tokeniser is guessed.
fn guessed_pre(spec: &TokenizerSpec) -> Option<String> {
    (spec.guessed_pre && spec.model == "gpt2").then(|| {
        format!(
            "the file does not name its pre-tokeniser (tokenizer.ggml.pre); {:?} is guessed, and \
             text may be split otherwise than in training: use a newer conversion",
            spec.pre
        )
    })
}
