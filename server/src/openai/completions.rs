//! `/v1/completions`: a text goes on.

use super::events::{self, Teller};
use super::frame::Frame;
use super::logprobs::CompletionLogprobs;
use super::settings::request;
use super::{finish_name, fresh_id};
use crate::app::{self, App};
use crate::body::{self, Asked};
use crate::budget;
use crate::error::ApiError;
use crate::event::{Chosen, Delta, Finish, Usage};
use crate::model::{Served, now};
use crate::prompt::{self, Prompt};
use crate::settings::Settings;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;

request! {
    /// A request.
    CompletionRequest {
        /// The text.
        prompt: PromptText,
        /// Tell the probability of every token, and of so many others?
        logprobs: Option<u64>,
        /// Not possible.
        suffix: Option<String>,
        /// Not possible.
        echo: Option<bool>,
        /// Not possible but as `n`.
        best_of: Option<u64>,
    }
}

/// A text, in one of the forms that the interface allows.
#[derive(Deserialize, Clone, Debug)]
#[serde(untagged, expecting = "expected a string or an array of tokens")]
enum PromptText {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

/// Tokens of an answer unless said, as the interface has it.
const LIMIT: usize = 16;
/// Most alternatives to a token.
const TOP: u64 = 20;

impl CompletionRequest {
    fn check(&self, app: &App) -> Result<(Settings, Prompt, Option<usize>), ApiError> {
        let mut settings = self.raw().check(app)?;
        if self.max_tokens.is_none() {
            settings.limit = Some(LIMIT);
        }
        for (name, asked) in [
            ("suffix", self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty())),
            ("echo", self.echo == Some(true)),
            ("best_of", self.best_of.is_some_and(|best| best != settings.choices as u64)),
        ] {
            if asked {
                return Err(ApiError::parameter(name, format!("{name} is not possible here")));
            }
        }
        let logprobs = match self.logprobs {
            Some(top) if top > TOP => {
                return Err(ApiError::parameter("logprobs", format!("logprobs may be at most {TOP}")));
            }
            top => top.map(|top| top as usize),
        };
        let served = &app.served;
        let single = || ApiError::parameter("prompt", "one prompt a request is possible here");
        let prompt = match &self.prompt {
            PromptText::Text(text) => prompt::text(served, text),
            PromptText::Tokens(tokens) => prompt::tokens(served, tokens.clone()),
            PromptText::Texts(texts) => {
                prompt::text(served, texts.first().filter(|_| texts.len() == 1).ok_or_else(single)?)
            }
            PromptText::TokenLists(lists) => {
                prompt::tokens(served, lists.first().filter(|_| lists.len() == 1).ok_or_else(single)?.clone())
            }
        };
        let prompt = prompt?;
        budget::check(&settings, served, prompt.tokens.len(), logprobs, app.config.answer)?;
        Ok((settings, prompt, logprobs))
    }
}

/// Answers one.
pub async fn complete(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, ApiError> {
    let (read, client, when) = asked.json(&app).await?;
    let ready = app::prepare(&app, client, move |app| body::parse::<CompletionRequest>(&read)?.check(app)).await?;
    let (settings, prompt, logprobs) = ready;
    let telling = Telling {
        served: app.served.clone(),
        frame: Frame {
            id: fresh_id("cmpl-"),
            whole: "text_completion",
            piece: "text_completion",
            created: now(),
            model: app.served.name.clone(),
            include_usage: settings.include_usage,
        },
        logprobs: logprobs.is_some(),
        offsets: vec![0; settings.choices],
    };
    let (stream, choices) = (settings.stream, settings.choices);
    let mut events = app.submit(client, when, settings, prompt.tokens, None, false, logprobs)?;
    if stream {
        return Ok(events::respond(events, telling));
    }
    let mut texts: Vec<(String, Vec<Chosen>)> = vec![Default::default(); choices];
    let mut ends: Vec<(usize, Finish)> = Vec::new();
    let usage = events::collect(
        &mut events,
        |delta| {
            let (text, tokens) = &mut texts[delta.choice];
            text.push_str(&delta.text);
            tokens.extend(delta.tokens);
        },
        |choice, reason| ends.push((choice, reason)),
    )
    .await?;
    let choices = ends.iter().map(|&(index, reason)| {
        let (text, tokens) = &texts[index];
        telling.choice(index, text, tokens, Some(finish_name(reason)))
    });
    Ok(telling.frame.whole(choices, &usage))
}

/// What an answer, or a piece of one, has of one choice. What it says of probabilities is only written.
#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<CompletionLogprobs<'a>>,
    finish_reason: Option<&'static str>,
}

/// How a completion is told.
struct Telling {
    served: Arc<Served>,
    frame: Frame,
    logprobs: bool,
    /// Characters of each answer so far.
    offsets: Vec<usize>,
}

impl Telling {
    fn choice<'a>(
        &'a self,
        index: usize,
        text: &'a str,
        tokens: &'a [Chosen],
        finish_reason: Option<&'static str>,
    ) -> Choice<'a> {
        let offset = self.offsets[index];
        let logprobs = self.logprobs.then_some(CompletionLogprobs { served: &self.served, tokens, offset });
        Choice { index, text, logprobs, finish_reason }
    }
}

impl Teller for Telling {
    fn delta(&mut self, delta: Delta, chunks: &mut VecDeque<Value>) {
        if !delta.text.is_empty() || !delta.tokens.is_empty() {
            let choice = self.choice(delta.choice, &delta.text, &delta.tokens, None);
            let end = choice.logprobs.as_ref().map(CompletionLogprobs::end);
            chunks.push_back(self.frame.piece(json!([choice])));
            self.offsets[delta.choice] = end.unwrap_or(0);
        }
    }
    fn finish(&mut self, choice: usize, reason: Finish, chunks: &mut VecDeque<Value>) {
        let choice = self.choice(choice, "", &[], Some(finish_name(reason)));
        chunks.push_back(self.frame.piece(json!([choice])));
    }
    fn end(&mut self, usage: &Usage, chunks: &mut VecDeque<Value>) {
        chunks.extend(self.frame.end(usage));
    }
}
