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
        let (mut request, _) = Chat::request(body, &preprocessor.served)?;
        let ignored = std::mem::take(&mut request.ignored);
        let tools = ToolSet::new(
            &request.tools,
            &request.tool_choice,
            request.several_calls,
            request.names,
        )?;
        let prompts = preprocessor.prompts(request.input, &tools, request.names)?;
        let tokenizer = &preprocessor.served.tokenizer;
        let texts = prompts
            .iter()
            .map(|prompt| tokenizer.decode(&prompt.tokens, true));
        let tokens: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        // The counts are an extension: what the prompt takes, and of how much.
        let told = json!({
            "prompt": texts.collect::<String>(), "n_tokens": tokens, "n_ctx": preprocessor.served.context,
        });
        Ok((told, ignored))
    });
    let (told, ignored) = text.await?;
    let mut response = Json(told).into_response();
    ignored::name(&mut response, &ignored);
    Ok(response)
}
