//! `/apply-template`: renders a conversation without running it, as in llama.cpp's server.

use super::chat::Chat;
use crate::api::interface::Interface;
use crate::app::App;
use crate::core::error::RequestError;
use crate::core::preprocess::Preprocessor;
use crate::core::tools::ToolSet;
use crate::net::body::{self, UnreadRequest};
use crate::net::ignored;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::sync::Arc;

/// `/apply-template`: returns the prompt of a chat completion's body as text.
///
/// # Errors
/// The same as for `/v1/chat/completions`.
pub async fn apply(
    State(app): State<Arc<App>>,
    asked: UnreadRequest,
) -> Result<Response, RequestError> {
    let (read, client, _) = asked.json(&app).await?;
    let text = app.run_blocking(client, move |models| {
        let body = body::parse::<<Chat as Interface>::Body>(&read)?;
        let preprocessor = Preprocessor::for_model(models, Chat::model(&body))?;
        let (tokens, ignored) = tokens(&preprocessor, body)?;
        // The counts are an extension: what the prompt takes, and of how much.
        let told = json!({
            "prompt": preprocessor.served.tokenizer.decode(&tokens, true),
            "n_tokens": tokens.len(), "n_ctx": preprocessor.served.context,
        });
        Ok((told, ignored))
    });
    let (told, ignored) = text.await?;
    let mut response = Json(told).into_response();
    ignored::name(&mut response, &ignored);
    Ok(response)
}

/// Returns the prompt of a chat completion's body as tokens, and the names of ignored fields.
///
/// # Errors
/// The same as for `/v1/chat/completions`.
pub fn tokens(
    preprocessor: &Preprocessor,
    body: <Chat as Interface>::Body,
) -> Result<(Vec<u32>, Vec<String>), RequestError> {
    let (mut request, _) = Chat::request(body, &preprocessor.served)?;
    let ignored = std::mem::take(&mut request.ignored);
    let tools = ToolSet::new(
        &request.tools,
        &request.tool_choice,
        request.several_calls,
        request.names,
    )?;
    let prompts = preprocessor.prompts(request.input, &tools, request.names)?;
    let tokens = prompts
        .iter()
        .flat_map(|prompt| prompt.tokens.iter().copied());
    Ok((tokens.collect(), ignored))
}
