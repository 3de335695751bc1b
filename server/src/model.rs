//! The model that is served, as far as text goes: its name, its tokens, its template, its grammars.

use crate::constraint::Grammars;
use crate::reply::MARKERS;
use gristmill_llm::chat::ChatTemplate;
use gristmill_llm::sampling::SamplingParams;
use gristmill_llm::tokenizer::{TokenKind, Tokenizer};
use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};

/// What a server needs to know of a model besides how to run it.
pub struct Text {
    /// What clients call it.
    pub name: String,
    /// Its tokens.
    pub tokenizer: Tokenizer,
    /// How conversations are written.
    pub template: ChatTemplate,
    /// How tokens are chosen unless a request says.
    pub sampling: SamplingParams,
}

/// The same, prepared.
pub struct Served {
    /// What clients call it.
    pub name: String,
    /// Its tokens.
    pub tokenizer: Tokenizer,
    /// How conversations are written.
    pub template: ChatTemplate,
    /// How tokens are chosen unless a request says.
    pub sampling: SamplingParams,
    /// Tokens of context.
    pub context: usize,
    /// How grammars become masks.
    pub grammars: Grammars,
    /// Since when it is served: seconds since 1970.
    pub created: u64,
    /// Special tokens that structure a reply.
    markers: HashSet<u32>,
    /// Most bytes of a token.
    longest: usize,
}

impl Served {
    /// A model with so many logits and so much context.
    pub fn new(text: Text, vocabulary: usize, context: usize) -> Served {
        let Text { name, tokenizer, template, sampling } = text;
        let markers = MARKERS.iter().filter_map(|marker| tokenizer.token_id(marker)).collect();
        let lengths = (0..tokenizer.n_tokens() as u32).filter_map(|id| tokenizer.token_bytes(id)).map(<[u8]>::len);
        let longest = lengths.max().unwrap_or(1).max(1);
        let grammars = Grammars::new(&tokenizer, vocabulary);
        Served { name, tokenizer, template, sampling, context, grammars, created: now(), markers, longest }
    }
    /// The bytes that a token adds to an answer; with `markers`, those of special tokens that structure a reply too.
    pub fn shown(&self, token: u32, markers: bool) -> &[u8] {
        let show = match self.tokenizer.token_kind(token) {
            Some(TokenKind::Normal | TokenKind::UserDefined) => true,
            _ => markers && self.markers.contains(&token),
        };
        if show { self.bytes(token) } else { &[] }
    }
    /// The fewest tokens that a text of so many bytes can have.
    pub fn least_tokens(&self, bytes: usize) -> usize {
        bytes / self.longest
    }
    /// The bytes of a token, special or not.
    pub fn bytes(&self, token: u32) -> &[u8] {
        self.tokenizer.token_bytes(token).unwrap_or_default()
    }
    /// Is that its name, give or take what a file is called?
    pub fn is_called(&self, name: &str) -> bool {
        let plain = |name: &str| name.rsplit('/').next().unwrap_or(name).trim_end_matches(".gguf").to_lowercase();
        plain(name) == plain(&self.name)
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
