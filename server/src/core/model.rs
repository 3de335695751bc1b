//! The model that is served, as far as text goes: its name, its tokens, its template, its grammars.

use crate::core::constraint::mask::Grammars;
use crate::core::fim::Fim;
use gristmill_llm::chat::ChatTemplate;
use gristmill_llm::chat::markup::Markup;
use gristmill_llm::sampling::SamplingParams;
use gristmill_llm::tokenizer::{TokenKind, Tokenizer};
use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};

/// What a server needs to know of a model besides how to run it.
pub struct ModelText {
    /// What clients call it.
    pub name: String,
    /// Its tokens.
    pub tokenizer: Tokenizer,
    /// How conversations are written.
    pub template: ChatTemplate,
    /// How tokens are chosen unless a request says.
    pub sampling: SamplingParams,
}

/// What is known of a model besides its text.
#[derive(Clone, Debug)]
pub struct ModelFacts {
    /// `general.architecture`.
    pub architecture: String,
    /// Logits of a token.
    pub vocabulary: usize,
    /// Numbers of a hidden row.
    pub width: usize,
    /// Bytes of its weights.
    pub weight_bytes: u64,
}

/// The same, prepared.
pub struct Served {
    /// What clients call it.
    pub name: String,
    /// Its tokens.
    pub tokenizer: Tokenizer,
    /// How conversations are written.
    pub template: ChatTemplate,
    /// How its replies are marked up.
    pub markup: &'static Markup,
    /// How tokens are chosen unless a request says.
    pub sampling: SamplingParams,
    /// Tokens of context.
    pub context: usize,
    /// Facts for whoever asks.
    pub about: ModelFacts,
    /// How grammars become masks.
    pub grammars: Grammars,
    /// Its fill-in-the-middle tokens, where it has any.
    pub fim: Option<Fim>,
    /// Since when it is served: seconds since 1970.
    pub created: u64,
    /// Special tokens that structure a reply.
    markers: HashSet<u32>,
    /// Most bytes of a token.
    longest: usize,
}

impl Served {
    /// A model with so much context.
    pub fn new(text: ModelText, about: ModelFacts, context: usize) -> Served {
        let ModelText { name, tokenizer, template, sampling } = text;
        let lengths = (0..tokenizer.n_tokens() as u32).filter_map(|id| tokenizer.token_bytes(id)).map(<[u8]>::len);
        let longest = lengths.max().unwrap_or(1).max(1);
        let markup = template.markup();
        let markers = markup.markers().into_iter().filter_map(|marker| tokenizer.token_id(marker)).collect();
        let grammars = Grammars::new(&tokenizer, about.vocabulary);
        let fim = Fim::new(&tokenizer);
        Served {
            name,
            tokenizer,
            template,
            markup,
            sampling,
            context,
            about,
            grammars,
            fim,
            created: now(),
            markers,
            longest,
        }
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
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The demo model, whose template knows no tools.
#[cfg(test)]
pub fn demo() -> Served {
    use gristmill_llm::chat::Isolation;
    use gristmill_llm::{file::ModelFile, language};
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo-glm-Q4_0.gguf");
    let file = ModelFile::open(&path).unwrap();
    let tokenizer = language::tokenizer(file.metadata()).unwrap();
    let (template, _) = language::template(file.metadata(), &tokenizer, &Isolation::InProcess).unwrap();
    let text = ModelText { name: "demo".into(), tokenizer, template, sampling: SamplingParams::default() };
    let about = ModelFacts { architecture: "deepseek2".into(), vocabulary: 2048, width: 64, weight_bytes: 0 };
    Served::new(text, about, 2048)
}
