//! Validates a [`TokenizerSpec`](super::TokenizerSpec) and builds its lookup tables.

use std::ops::Range;

use foldhash::HashMap;

use super::bpe::Merges;
use super::bytes::{SPACE, byte_of, byte_to_char, unmap};
use super::{TokenizerError, TokenizerSpec};

/// Maximum number of tokens and of merges: 16 times the tokens of Gemma 3 (0.26 million), 9 times
/// the merges of gpt-oss (0.45 million). Each takes up to 150 bytes of tables. The tables use a
/// seeded hash, because a crafted file could make all its tokens collide otherwise.
const LIMIT: usize = 1 << 22;

/// Returns an error if `count` exceeds the limit.
pub(super) fn admit(what: &'static str, count: usize) -> Result<(), TokenizerError> {
    if count > LIMIT {
        Err(TokenizerError::TooLarge {
            what,
            count,
            limit: LIMIT,
        })
    } else {
        Ok(())
    }
}

/// Kind of a token, as numbered in `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// 1, and every number not listed: byte-mapped text.
    Normal,
    /// 2: represents text outside the vocabulary.
    Unknown,
    /// 3: literal text, recognised in trusted text only, not printed.
    Control,
    /// 4: literal text, recognised everywhere, printed.
    UserDefined,
    /// 5: padding of the vocabulary.
    Unused,
}

impl TokenKind {
    fn from_gguf(number: i32) -> Self {
        match number {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            _ => Self::Normal,
        }
    }

    /// Returns true if merging may produce the token. Control, unknown and user-defined tokens come
    /// only from special splitting; plain text that spells one must not become it.
    fn is_mergeable(self) -> bool {
        matches!(self, Self::Normal | Self::Unused)
    }
}

/// Representation of normal tokens' texts in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Alphabet {
    /// One character for each byte.
    Mapped,
    /// Plain text with U+2581 for spaces and `<0x0A>` for a byte.
    Spaced,
}

impl Alphabet {
    /// Appends the bytes that a token text represents.
    fn read(self, text: &[u8], out: &mut Vec<u8>) {
        match (self, byte_of(text)) {
            (Alphabet::Mapped, _) => unmap(text, out),
            (Alphabet::Spaced, Some(byte)) => out.push(byte),
            (Alphabet::Spaced, None) => {
                let mut rest = text;
                while let Some((&first, after)) = rest.split_first() {
                    let space = rest.strip_prefix(SPACE.as_bytes());
                    out.push(space.map_or(first, |_| b' '));
                    rest = space.unwrap_or(after);
                }
            }
        }
    }
}

/// Tokens: texts in the file, output bytes, and kinds.
#[derive(Debug)]
pub(super) struct Vocabulary {
    pub texts: Vec<Vec<u8>>,
    pub kinds: Vec<TokenKind>,
    alphabet: Alphabet,
    ids: HashMap<Vec<u8>, u32>,
    bytes: Vec<u8>,
    ranges: Vec<Range<usize>>,
}

impl Vocabulary {
    /// Validates tokens written in `alphabet`. Without types in the file, the ids in
    /// `special` are control tokens.
    pub(super) fn new(
        texts: Vec<Vec<u8>>,
        types: Option<Vec<i32>>,
        special: &[u32],
        alphabet: Alphabet,
    ) -> Result<Self, TokenizerError> {
        let count = texts.len();
        if count == 0 {
            return Err(TokenizerError::EmptyVocabulary);
        }
        admit("tokens", count)?;
        let kinds = match types {
            Some(types) if types.len() < count => {
                return Err(TokenizerError::TokenTypes {
                    types: types.len(),
                    tokens: count,
                });
            }
            Some(types) => types
                .into_iter()
                .take(count)
                .map(TokenKind::from_gguf)
                .collect(),
            None => {
                let mut kinds = vec![TokenKind::Normal; count];
                for &id in special {
                    kinds[id as usize] = TokenKind::Control;
                }
                kinds
            }
        };
        let mut ids = HashMap::with_capacity_and_hasher(count, Default::default());
        let (mut bytes, mut ranges) = (Vec::new(), Vec::with_capacity(count));
        for (id, text) in (0u32..).zip(&texts) {
            if let Some(first) = ids.insert(text.clone(), id) {
                let text = String::from_utf8_lossy(text).into_owned();
                return Err(TokenizerError::DuplicateToken {
                    first,
                    second: id,
                    text,
                });
            }
            let start = bytes.len();
            match kinds[id as usize] {
                TokenKind::Normal => alphabet.read(text, &mut bytes),
                _ => bytes.extend_from_slice(text),
            }
            ranges.push(start..bytes.len());
        }
        Ok(Self {
            texts,
            kinds,
            alphabet,
            ids,
            bytes,
            ranges,
        })
    }

    pub(super) fn len(&self) -> u32 {
        self.texts.len() as u32
    }

    pub(super) fn id(&self, text: &[u8]) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// Returns the token with this text in the file, if merging may produce it. Excludes tokens
    /// that represent a byte as `<0x0A>`.
    pub(super) fn mergeable(&self, text: &[u8]) -> Option<u32> {
        let named = self.alphabet == Alphabet::Spaced && byte_of(text).is_some();
        self.id(text)
            .filter(|&id| self.kinds[id as usize].is_mergeable() && !named)
    }

    /// Returns the tokens of the form `<0x0A>` by byte; [`u32::MAX`] if there is none.
    pub(super) fn named_bytes(&self) -> Box<[u32; 256]> {
        Box::new(std::array::from_fn(|byte| {
            self.id(format!("<0x{byte:02X}>").as_bytes())
                .unwrap_or(u32::MAX)
        }))
    }

    pub(super) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// Returns the output bytes of a token; empty outside the vocabulary.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        self.ranges
            .get(id as usize)
            .map_or(&[], |range| &self.bytes[range.clone()])
    }

    /// Maps output bytes to ids of normal tokens, for pre-tokenisers with `ignore_merges`.
    pub(super) fn by_bytes(&self) -> HashMap<Vec<u8>, u32> {
        let normal = (0u32..self.len()).filter(|&id| self.kinds[id as usize] == TokenKind::Normal);
        normal.map(|id| (self.bytes(id).to_vec(), id)).collect()
    }

    /// Parses the merge lines in order of rank. The first of two equal pairs wins, as in llama.cpp.
    pub(super) fn merges(&self, lines: &[String]) -> Result<Merges, TokenizerError> {
        admit("merges", lines.len())?;
        let mut symbols = Symbols {
            vocabulary: self,
            extra: HashMap::default(),
        };
        let (alphabet, mut characters) = match self.alphabet {
            Alphabet::Mapped => {
                let symbol = |byte| symbols.intern(byte_to_char(byte as u8).to_string().as_bytes());
                (Box::new(std::array::from_fn(symbol)), None)
            }
            Alphabet::Spaced => (self.named_bytes(), Some(self.characters())),
        };
        let (mut merged, mut text) = (Vec::with_capacity(lines.len()), Vec::new());
        for (index, line) in lines.iter().enumerate() {
            let (left, right) = halves(line).ok_or_else(|| TokenizerError::BadMerge {
                index,
                line: line.chars().take(80).collect(),
            })?;
            text.clear();
            text.extend_from_slice(left.as_bytes());
            text.extend_from_slice(right.as_bytes());
            merged.push(symbols.intern(&text));
            for half in [left, right] {
                if let (Some(characters), Some(c)) = (&mut characters, single(half)) {
                    characters
                        .entry(c)
                        .or_insert_with(|| symbols.intern(half.as_bytes()));
                }
            }
        }
        let mut pairs = HashMap::with_capacity_and_hasher(lines.len(), Default::default());
        for ((rank, line), merged) in (0..).zip(lines).zip(merged) {
            // A half that is neither a byte, a token nor a merge result never occurs, so
            // the merge is dropped.
            let known = |half: &str| symbols.number(half.as_bytes());
            if let Some((left, right)) =
                halves(line).and_then(|(left, right)| known(left).zip(known(right)))
            {
                pairs
                    .entry(Merges::key(left, right))
                    .or_insert((rank, merged));
            }
        }
        Ok(Merges::new(pairs, alphabet, characters, self.len()))
    }

    /// Returns the tokens that consist of one character.
    fn characters(&self) -> HashMap<char, u32> {
        let character =
            |text: &Vec<u8>| single(std::str::from_utf8(text).ok()?).zip(self.mergeable(text));
        self.texts.iter().filter_map(character).collect()
    }

    /// Returns the bytes of well-formed UTF-8 that no token represents.
    pub(super) fn missing_bytes(&self) -> Vec<u8> {
        let named = self.named_bytes();
        let missing = |&byte: &u8| match self.alphabet {
            Alphabet::Mapped => self
                .mergeable(byte_to_char(byte).to_string().as_bytes())
                .is_none(),
            Alphabet::Spaced => named[usize::from(byte)] == u32::MAX,
        };
        (0..=0xF4)
            .filter(|byte| !matches!(byte, 0xC0 | 0xC1))
            .filter(missing)
            .collect()
    }
}

/// Numbers texts: mergeable tokens by id, all others starting at the vocabulary's length.
struct Symbols<'v> {
    vocabulary: &'v Vocabulary,
    extra: HashMap<Vec<u8>, u32>,
}

impl Symbols<'_> {
    /// Returns the number of a text, if it has one.
    fn number(&self, text: &[u8]) -> Option<u32> {
        self.vocabulary
            .mergeable(text)
            .or_else(|| self.extra.get(text).copied())
    }
    /// Returns the number of a text, assigning a new one if needed.
    fn intern(&mut self, text: &[u8]) -> u32 {
        self.number(text).unwrap_or_else(|| {
            let next = self.vocabulary.len() + self.extra.len() as u32;
            self.extra.insert(text.to_vec(), next);
            next
        })
    }
}

/// Returns the only character of a text, if it has exactly one.
fn single(text: &str) -> Option<char> {
    let mut characters = text.chars();
    characters.next().filter(|_| characters.next().is_none())
}

/// Splits a merge at the first space at byte 1 or later, so the left half is never empty.
fn halves(line: &str) -> Option<(&str, &str)> {
    let space = line
        .bytes()
        .skip(1)
        .position(|b| b == b' ')
        .map(|at| at + 1)?;
    (space + 1 < line.len()).then(|| (&line[..space], &line[space + 1..]))
}

/// Returns the valid ids of special tokens. Ids outside the vocabulary are dropped with a warning.
pub(super) fn checked_ids(spec: &mut TokenizerSpec, warnings: &mut Vec<String>) -> Vec<u32> {
    let count = spec.tokens.len();
    let mut valid = Vec::new();
    for (name, slot) in [
        ("bos", &mut spec.bos),
        ("eos", &mut spec.eos),
        ("eot", &mut spec.eot),
        ("eom", &mut spec.eom),
        ("unknown", &mut spec.unk),
        ("padding", &mut spec.pad),
    ] {
        match *slot {
            Some(id) if id as usize >= count => {
                warnings.push(format!(
                    "{name} token id {id} ignored: the vocabulary has {count} tokens"
                ));
                *slot = None;
            }
            Some(id) => valid.push(id),
            None => {}
        }
    }
    valid
}
