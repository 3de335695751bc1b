//! Tokenizer and model metadata endpoints in the formats of llama.cpp's server and of vLLM.

use super::openai::chat::Chat;
use super::openai::template;
use crate::api::interface::Interface;
use crate::app::App;
use crate::core::error::RequestError;
use crate::core::models::entry::ModelEntry;
use crate::core::models::pool::{Models, Status};
use crate::core::preprocess::Preprocessor;
use crate::net::body::{self, IgnoredFields, UnreadRequest};
use crate::net::lenient::TokenId;
use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::sync::Arc;

/// Maximum tokens that `/tokenize` returns with their texts; each takes nearly a kB of JSON values.
const MAX_PIECES: usize = 1 << 17;

/// Body of `/tokenize`: the text is llama.cpp's `content` or vLLM's `prompt`, or a chat
/// completion's messages are rendered.
#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct TokenizeRequest {
    content: Option<String>,
    prompt: Option<String>,
    /// A conversation in place of a text, as in vLLM's server.
    messages: Option<IgnoredAny>,
    model: Option<String>,
    /// Whether to add the model's special tokens (BOS); off by default, as in llama.cpp (vLLM adds
    /// them by default).
    add_special: Option<bool>,
    /// vLLM's name of `add_special`.
    add_special_tokens: Option<bool>,
    /// Whether the text of a special token is encoded as that token; on by default.
    parse_special: Option<bool>,
    /// Whether each token is returned with its text.
    with_pieces: Option<bool>,
    /// vLLM's name of `with_pieces`.
    return_token_strs: Option<bool>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

/// `/tokenize`: encodes a text as tokens.
///
/// # Errors
/// When the request is malformed or the model is unknown.
pub async fn tokenize(
    State(app): State<Arc<App>>,
    asked: UnreadRequest,
) -> Result<Json<Value>, RequestError> {
    let (read, client, _) = asked.json(&app).await?;
    let tokens = app.run_blocking(client, move |models| {
        let request: TokenizeRequest = body::parse(&read)?;
        let preprocessor = Preprocessor::for_model(models, request.model.as_deref())?;
        let tokenizer = &preprocessor.served.tokenizer;
        let (special, add) = (
            request.parse_special.unwrap_or(true),
            request
                .add_special
                .or(request.add_special_tokens)
                .unwrap_or(false),
        );
        let with_pieces = request.with_pieces.or(request.return_token_strs);
        let text = request.content.or(request.prompt);
        let tokens = match (text, request.messages) {
            (Some(text), _) => tokenizer.encode(&text, special, add),
            (None, Some(_)) => {
                let body = body::parse::<<Chat as Interface>::Body>(&read)?;
                template::tokens(&preprocessor, body)?.0
            }
            (None, None) => return Err(RequestError::missing("content")),
        };
        let count = tokens.len();
        if with_pieces == Some(true) && count > MAX_PIECES {
            let message = format!(
                "the text has {count} tokens, and with pieces at most {MAX_PIECES} are returned; \
                 hint: split the text, or leave with_pieces out"
            );
            return Err(RequestError::parameter("with_pieces", message));
        }
        let piece = |&id: &u32| json!({ "id": id, "piece": tokenizer.decode(&[id], true) });
        let told = match with_pieces {
            Some(true) => tokens.iter().map(piece).collect(),
            _ => json!(tokens),
        };
        Ok(json!({ "tokens": told, "count": count, "max_model_len": preprocessor.served.context }))
    });
    Ok(Json(tokens.await?))
}

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct DetokenizeRequest {
    tokens: Vec<TokenId>,
    model: Option<String>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

/// `/detokenize`: decodes tokens into text.
///
/// # Errors
/// When a token is not in the model's vocabulary.
pub async fn detokenize(
    State(app): State<Arc<App>>,
    asked: UnreadRequest,
) -> Result<Json<Value>, RequestError> {
    let (read, client, _) = asked.json(&app).await?;
    let text = app.run_blocking(client, move |models| {
        let request: DetokenizeRequest = body::parse(&read)?;
        let preprocessor = Preprocessor::for_model(models, request.model.as_deref())?;
        let most = preprocessor.served.tokenizer.n_tokens();
        let tokens: Vec<u32> = request.tokens.iter().map(|token| token.0).collect();
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= most) {
            return Err(RequestError::parameter(
                "tokens",
                format!("token {token} is not one of the model's {most}"),
            ));
        }
        Ok(preprocessor.served.tokenizer.decode(&tokens, true))
    });
    let text = text.await?;
    Ok(Json(json!({ "content": text, "prompt": text })))
}

/// Responds with metadata of the model named in the query.
async fn facts(
    app: &App,
    asked: UnreadRequest,
    tell: fn(&Preprocessor) -> Value,
) -> Result<Json<Value>, RequestError> {
    let (client, model) = asked.parameter("model");
    let told = app.run_blocking(client, move |models| {
        Ok(tell(&Preprocessor::for_model(models, model.as_deref())?))
    });
    Ok(Json(told.await?))
}

/// `/tokenizer_info?model=NAME`: special tokens, chat template and context length in vLLM's format.
///
/// # Errors
/// When there is no such model, or it cannot be read.
pub async fn tokenizer_info(
    State(app): State<Arc<App>>,
    asked: UnreadRequest,
) -> Result<Json<Value>, RequestError> {
    facts(&app, asked, |preprocessor| {
        let served = &preprocessor.served;
        let tokenizer = &served.tokenizer;
        let text = |id: Option<u32>| id.map(|id| tokenizer.decode(&[id], true));
        let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
        json!({
            "tokenizer_class": "gristmill", "bos_token": bos, "eos_token": eos, "pad_token": eos,
            "chat_template": served.template.source(), "model_max_length": served.context,
        })
    })
    .await
}

/// `/props?model=NAME`: metadata of the model in llama.cpp's format.
///
/// With several models and no name in the query, returns properties of the server.
///
/// # Errors
/// When there is no such model, or it cannot be read.
pub async fn props(
    State(app): State<Arc<App>>,
    asked: UnreadRequest,
) -> Result<Json<Value>, RequestError> {
    if app.models.single_model().is_none() && asked.parameter("model").1.is_none() {
        return Ok(Json(server_props(&app.models)));
    }
    facts(&app, asked, |preprocessor| {
        let served = &preprocessor.served;
        let p = &served.sampling;
        let params = json!({
            "temperature": p.temperature, "top_k": p.top_k, "top_p": p.top_p, "min_p": p.min_p,
            "repeat_penalty": p.repeat_penalty, "n_predict": -1,
        });
        json!({
            "default_generation_settings": { "n_ctx": served.context, "params": params },
            "total_slots": preprocessor.model.load().slots, "model_alias": served.name, "model_path": served.name,
            "chat_template": served.template.source(), "n_ctx": served.context, "n_vocab": served.about.vocabulary,
            "modalities": { "vision": false, "audio": false }, "build_info": BUILD,
        })
    })
    .await
}

const BUILD: &str = concat!("gristmill ", env!("CARGO_PKG_VERSION"));

fn server_props(models: &Models) -> Value {
    let names = |loaded: bool| -> Vec<&str> {
        let is_loaded =
            |model: &&Arc<ModelEntry>| matches!(models.status(model), Status::Loaded(_));
        models
            .entries()
            .iter()
            .filter(|model| !loaded || is_loaded(model))
            .map(|model| model.name())
            .collect()
    };
    json!({ "role": "router", "build_info": BUILD, "models": names(false), "models_loaded": names(true) })
}
