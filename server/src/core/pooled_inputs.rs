//! Preprocessing of texts whose hidden rows are pooled: texts to embed, and documents to rank.

use crate::core::client::Origin;
use crate::core::engine_request::{EngineRequest, Task};
use crate::core::error::RequestError;
use crate::core::limits::{MAX_DOCUMENTS, MAX_EMBEDDINGS, MAX_RERANK_BYTES};
use crate::core::output::Outputs;
use crate::core::preprocess::{Preprocessor, Replies};
use crate::core::prompt::{self, Prompt};
use crate::core::request::PromptText;
use gristmill_llm::pooling::{PoolingKind, unit};
use gristmill_llm::sched::{Reuse, SequenceOptions};

/// Treatment of texts to embed that exceed the context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// Refuses prompts that exceed the context.
    Refuse,
    /// Cuts their ends off.
    Truncate,
}

impl Preprocessor {
    /// Tokenises texts to embed; `name` is their field.
    ///
    /// # Errors
    /// When the model embeds no texts, there are none or too many, or one does not fit.
    pub fn prepare_embeddings(
        &self,
        origin: Origin,
        mut texts: Vec<PromptText>,
        name: &str,
        fit: Fit,
    ) -> Result<(EngineRequest, Outputs), RequestError> {
        let why = match self.served.pooling.kind() {
            Some(PoolingKind::Rank) => Some("a reranker, which scores documents: use /v1/rerank"),
            Some(PoolingKind::None) => {
                Some("without pooling (`none`): start the server with --pooling mean, cls or last")
            }
            _ => None,
        };
        if let Some(why) = why {
            let message = format!("{} is {why}", self.model.name());
            return Err(RequestError::parameter("model", message));
        }
        check_count(name, texts.len(), MAX_EMBEDDINGS)?;
        if fit == Fit::Truncate {
            texts.iter_mut().for_each(|text| self.truncate(text));
        }
        let is_single = texts.len() == 1;
        let read = |(number, mut text)| {
            self.read_plainly(&mut text);
            let numbered = || format!("{name}[{number}]");
            let name = if is_single {
                name.to_owned()
            } else {
                numbered()
            };
            match text {
                PromptText::Text(text) => prompt::text(&self.served, &text, &name),
                PromptText::Tokens(tokens) => prompt::tokens(&self.served, tokens, &name),
                PromptText::Mixed(pieces) => prompt::mixed(&self.served, &pieces, &name),
            }
        };
        let prompts: Result<Vec<Prompt>, _> = texts.into_iter().enumerate().map(read).collect();
        self.pooled(origin, prompts?)
    }
    /// Renders and tokenises a query with each document.
    ///
    /// # Errors
    /// When the model is no reranker, there are no documents or too many, or one does not fit.
    pub fn prepare_scores(
        &self,
        origin: Origin,
        query: &str,
        documents: &[String],
    ) -> Result<(EngineRequest, Outputs), RequestError> {
        let served = &self.served;
        if served.pooling.kind() != Some(PoolingKind::Rank) {
            let message = format!(
                "{} is no reranker: its file has no classifier (pooling type `rank`)",
                self.model.name()
            );
            return Err(RequestError::parameter("model", message));
        }
        check_count("documents", documents.len(), MAX_DOCUMENTS)?;
        prompt::check_size(served, "query", query.len())?;
        let bytes = |document: &String| served.rerank.bytes(query.len(), document.len());
        let all = documents.iter().map(bytes).fold(0, usize::saturating_add);
        if all > MAX_RERANK_BYTES {
            let message = format!(
                "the documents, each with the query, have {all} bytes; the limit is \
                 {MAX_RERANK_BYTES}: send fewer at a time"
            );
            return Err(RequestError::parameter("documents", message));
        }
        let read = |(number, document): (usize, &String)| {
            let name = format!("documents[{number}]");
            prompt::check_size(served, &name, bytes(document))?;
            let tokens = served.rerank.encode(&served.tokenizer, query, document);
            prompt::tokens(served, tokens, &name)
        };
        let prompts: Result<Vec<Prompt>, _> = documents.iter().enumerate().map(read).collect();
        self.pooled(origin, prompts?)
    }
    /// Creates the request to pool the hidden rows of each prompt.
    fn pooled(
        &self,
        origin: Origin,
        prompts: Vec<Prompt>,
    ) -> Result<(EngineRequest, Outputs), RequestError> {
        // A text that runs alone has the same values whatever the prefix cache holds.
        let options = SequenceOptions {
            speculates: false,
            reuse: Reuse::Exact,
            batch_invariant: self.models.shared.batch_invariant,
            adapters: self.adapters(None)?,
            hidden: true,
        };
        Ok(self.engine_request(origin, Task::Pool, prompts, options, Replies::default()))
    }
    /// Cuts a text to the context.
    fn truncate(&self, text: &mut PromptText) {
        let (served, most) = (&self.served, self.served.max_prompt());
        if let PromptText::Text(long) = text {
            let least = served.min_tokens(long.len());
            if least > most {
                // The rest has more tokens than the context anyway.
                let end = long.len() / least * (most + 1);
                let whole = (0..=end).rev().find(|&at| long.is_char_boundary(at));
                long.truncate(whole.unwrap_or(0));
            }
            let tokens = served.tokenizer.encode(long, false, true);
            if tokens.len() <= most {
                return;
            }
            *text = PromptText::Tokens(tokens);
        }
        if let PromptText::Tokens(tokens) = text
            && let Some(cut) = tokens.len().checked_sub(most).filter(|&cut| cut > 0)
        {
            // The last token is pooled: where the file adds the end of the sequence, it stays.
            let eos = served
                .tokenizer
                .eos()
                .filter(|_| served.tokenizer.adds_eos());
            let ends = eos.filter(|_| tokens.last().copied() == eos);
            tokens.truncate(tokens.len() - cut - usize::from(ends.is_some()));
            tokens.extend(ends);
        }
    }
    /// Tokenises a text to embed. What it spells like a special token is text.
    fn read_plainly(&self, text: &mut PromptText) {
        let served = &self.served;
        match text {
            // A text that is certainly too long is refused later, without its tokens.
            PromptText::Text(plain) if served.min_tokens(plain.len()) <= served.max_prompt() => {
                *text = PromptText::Tokens(served.tokenizer.encode(plain, false, true));
            }
            _ => {}
        }
    }
}

/// Checks a number of texts, 1 to `most`; `name` is their field.
fn check_count(name: &str, count: usize, most: usize) -> Result<(), RequestError> {
    if (1..=most).contains(&count) {
        return Ok(());
    }
    let message = format!("{name} has {count} texts; there must be 1 to {most}");
    Err(RequestError::parameter(name, message))
}

/// Cuts an embedding to its first `dimensions` values and scales it to length 1 again.
pub fn cut(vector: &mut Vec<f32>, dimensions: usize) {
    if dimensions >= vector.len() {
        return;
    }
    vector.truncate(dimensions);
    let kept: Vec<f64> = vector.iter().map(|&x| f64::from(x)).collect();
    *vector = unit(&kept).into_iter().map(|x| x as f32).collect();
}

/// Checks a requested number of values against the width of the model's embeddings.
///
/// # Errors
/// When it is 0 or larger.
pub fn check_dimensions(dimensions: Option<u64>, width: usize) -> Result<usize, RequestError> {
    match dimensions {
        None => Ok(width),
        Some(count) if (1..=width as u64).contains(&count) => Ok(count as usize),
        Some(count) => {
            let message =
                format!("dimensions is {count}; it must be 1 to {width}, the model's width");
            Err(RequestError::parameter("dimensions", message))
        }
    }
}
