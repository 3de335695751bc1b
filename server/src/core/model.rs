//! Text properties of a served model: name, tokenizer, chat template and grammars.

use crate::core::constraint::check;
use crate::core::constraint::mask::Grammars;
use crate::core::fim::Fim;
use gristmill_llm::chat::markup::Markup;
use gristmill_llm::chat::{ChatTemplate, Isolation};
use gristmill_llm::pooling::Pooling;
use gristmill_llm::rerank::RerankPrompt;
use gristmill_llm::sampling::SamplingParams;
use gristmill_llm::tokenizer::{TokenKind, Tokenizer};
use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};

/// Tokenizer, chat template, default sampling parameters and other text properties of a model.
pub struct ModelText {
    /// Name of the model for clients.
    pub name: String,
    /// Tokenizer with the model's vocabulary.
    pub tokenizer: Tokenizer,
    /// Chat template that renders conversations.
    pub template: ChatTemplate,
    /// Default sampling parameters, which requests override.
    pub sampling: SamplingParams,
    /// Pooling of embeddings and of a reranker's scores.
    pub pooling: Pooling,
    /// Prompt of a reranker.
    pub rerank: RerankPrompt,
}

/// Metadata of a model that does not concern its text.
#[derive(Clone, Debug)]
pub struct ModelFacts {
    /// `general.architecture` of the GGUF file.
    pub architecture: String,
    /// Number of logits of each position.
    pub vocabulary: usize,
    /// Entries of a hidden row.
    pub width: usize,
    /// Total size of the weights in bytes.
    pub weight_bytes: u64,
}

/// A model's tokenizer, template and metadata, prepared for requests.
pub struct Served {
    /// Name of the model for clients.
    pub name: String,
    /// Tokenizer with the model's vocabulary.
    pub tokenizer: Tokenizer,
    /// Chat template that renders conversations.
    pub template: ChatTemplate,
    /// Markup of its replies: reasoning, calls, message headers.
    pub markup: &'static Markup,
    /// Default sampling parameters, which requests override.
    pub sampling: SamplingParams,
    /// Pooling of embeddings and of a reranker's scores.
    pub pooling: Pooling,
    /// Prompt of a reranker.
    pub rerank: RerankPrompt,
    /// Context length in tokens.
    pub context: usize,
    /// Metadata of the model.
    pub about: ModelFacts,
    /// Compiler of grammars into token masks.
    pub grammars: Grammars,
    /// Its fill-in-the-middle tokens, if it has any.
    pub fim: Option<Fim>,
    /// Time since which it is served, in seconds since the Unix epoch.
    pub created: u64,
    /// Special tokens that structure a reply.
    markers: HashSet<u32>,
    /// Maximum bytes of a token's text.
    longest: usize,
}

impl Served {
    /// Prepares a model with a context of `context` tokens.
    pub fn new(text: ModelText, about: ModelFacts, context: usize) -> Served {
        let ModelText {
            name,
            tokenizer,
            template,
            sampling,
            pooling,
            rerank,
        } = text;
        let lengths = (0..tokenizer.n_tokens() as u32)
            .filter_map(|id| tokenizer.token_bytes(id))
            .map(<[u8]>::len);
        let longest = match tokenizer.drops_text() {
            true => usize::MAX,
            false => lengths.max().unwrap_or(1).max(1),
        };
        let markup = template.markup();
        let markers = markup
            .markers()
            .into_iter()
            .filter_map(|marker| tokenizer.token_id(marker))
            .collect();
        let helper = match template.isolation() {
            Isolation::Helper(helper) => Some(helper.with_arguments([check::ARGUMENT])),
            Isolation::InProcess => None,
        };
        let grammars = Grammars::new(&tokenizer, about.vocabulary, helper);
        let fim = Fim::new(&tokenizer);
        Served {
            name,
            tokenizer,
            template,
            markup,
            sampling,
            pooling,
            rerank,
            context,
            about,
            grammars,
            fim,
            created: now(),
            markers,
            longest,
        }
    }
    /// Returns the bytes that a token adds to an answer. Special tokens add none, except that
    /// `markers` includes those that structure a reply.
    pub fn shown(&self, token: u32, markers: bool) -> &[u8] {
        let show = match self.tokenizer.token_kind(token) {
            Some(TokenKind::Normal | TokenKind::UserDefined) => true,
            _ => markers && self.markers.contains(&token),
        };
        if show { self.bytes(token) } else { &[] }
    }
    /// Returns a lower bound of the tokens of a text of `bytes` bytes.
    pub fn min_tokens(&self, bytes: usize) -> usize {
        bytes / self.longest
    }
    /// Returns the most tokens of a prompt: an answer needs one of the context, a text encoder
    /// answers with none.
    pub fn max_prompt(&self) -> usize {
        match self.pooling.is_of_encoder() {
            true => self.context,
            false => self.context.saturating_sub(1),
        }
    }
    /// Returns the bytes of a token, special or not.
    pub fn bytes(&self, token: u32) -> &[u8] {
        self.tokenizer.token_bytes(token).unwrap_or_default()
    }
}

/// Returns the current time in seconds since the Unix epoch.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Returns the demo model. Its template does not support tools.
#[cfg(test)]
pub fn demo() -> Served {
    use gristmill_llm::{file::ModelFile, language};
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo-glm-Q4_0.gguf");
    let file = ModelFile::open(&path).unwrap();
    let tokenizer = language::tokenizer(file.metadata()).unwrap();
    let (template, _) =
        language::template(file.metadata(), &tokenizer, &Isolation::InProcess).unwrap();
    let text = ModelText {
        name: "demo".into(),
        tokenizer,
        template,
        sampling: SamplingParams::default(),
        pooling: Pooling::default(),
        rerank: RerankPrompt::default(),
    };
    let about = ModelFacts {
        architecture: "deepseek2".into(),
        vocabulary: 2048,
        width: 64,
        weight_bytes: 0,
    };
    Served::new(text, about, 2048)
}
