//! `/v1/embeddings`: mean-pooled hidden states of a generative model. No dedicated embedding model
//! is supported.

use crate::app::App;
use crate::core::client::Origin;
use crate::core::error::RequestError;
use crate::core::output::embeddings;
use crate::core::preprocess::Preprocessor;
use crate::core::request::PromptText;
use crate::net::body::{self, UnreadRequest};
use axum::Json;
use axum::extract::State;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct EmbeddingRequest {
    model: Option<String>,
    input: Input,
    encoding_format: Option<Encoding>,
    dimensions: Option<u64>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Deserialize, Debug)]
#[serde(
    untagged,
    expecting = "expected a string, an array of strings or of tokens"
)]
enum Input {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    Float,
    Base64,
}

impl EmbeddingRequest {
    fn texts(self, width: usize) -> Result<Vec<PromptText>, RequestError> {
        let unknown: Vec<&str> = self
            .others
            .keys()
            .map(String::as_str)
            .filter(|&name| name != "user")
            .collect();
        if !unknown.is_empty() {
            return Err(RequestError::unknown(&unknown));
        }
        if self
            .dimensions
            .is_some_and(|dimensions| dimensions != width as u64)
        {
            let message = format!("dimensions can only be {width}, the width of the model");
            return Err(RequestError::parameter("dimensions", message));
        }
        Ok(match self.input {
            Input::Text(text) => vec![PromptText::Text(text)],
            Input::Tokens(tokens) => vec![PromptText::Tokens(tokens)],
            Input::Texts(texts) => texts.into_iter().map(PromptText::Text).collect(),
            Input::TokenLists(lists) => lists.into_iter().map(PromptText::Tokens).collect(),
        })
    }
}

/// `/v1/embeddings`.
///
/// # Errors
/// When the request is invalid or the model fails to compute the embeddings.
pub async fn embed(
    State(app): State<Arc<App>>,
    asked: UnreadRequest,
) -> Result<Json<Value>, RequestError> {
    let (read, client, received) = asked.json(&app).await?;
    let ready = app.run_blocking(client, move |models| {
        let request: EmbeddingRequest = body::parse(&read)?;
        let preprocessor = Preprocessor::for_model(models, request.model.as_deref())?;
        let encoding = request.encoding_format.unwrap_or(Encoding::Float);
        let (texts, origin) = (
            request.texts(preprocessor.served.about.width)?,
            Origin { client, received },
        );
        let (request, outputs) = preprocessor.prepare_embeddings(origin, texts, "input")?;
        Ok((encoding, request, outputs, preprocessor))
    });
    let (encoding, request, outputs, preprocessor) = ready.await?;
    let prompts = request.prompts.len();
    preprocessor.submit(request)?;
    let (vectors, usage) = embeddings(outputs, prompts).await?;
    let data = vectors.iter().enumerate().map(|(index, vector)| {
        let embedding = match encoding {
            Encoding::Float => json!(vector),
            Encoding::Base64 => {
                let bytes: Vec<u8> = vector
                    .iter()
                    .flat_map(|value| value.to_le_bytes())
                    .collect();
                BASE64_STANDARD.encode(bytes).into()
            }
        };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    });
    let data: Vec<Value> = data.collect();
    let usage = json!({ "prompt_tokens": usage.prompt, "total_tokens": usage.prompt });
    Ok(Json(
        json!({ "object": "list", "data": data, "model": preprocessor.model.name(), "usage": usage }),
    ))
}
