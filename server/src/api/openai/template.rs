//! `/apply-template`: renders a conversation without running it, as in llama.cpp's server.

use super::chat::Chat;
use crate::api::interface::Interface;
use crate::app::App;
use crate::core::error::RequestError;
use crate::core::preprocess::Preprocessor;
use crate::core::tools::ToolSet;
use crate::net::body::{self, UnreadRequest};
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use std::sync::Arc;

/// `/apply-template`: returns the prompt of a chat completion's body as text.
///
/// # Errors
/// The same as for `/v1/chat/completions`.
pub async fn apply(
    State(app): State<Arc<App>>,
    asked: UnreadRequest,
) -> Result<Json<Value>, RequestError> {
    let (read, client, _) = asked.json(&app).await?;
    let text = app.run_blocking(client, move |models| {
        let body = body::parse::<<Chat as Interface>::Body>(&read)?;
        let preprocessor = Preprocessor::for_model(models, Chat::model(&body))?;
        let (request, _) = Chat::request(body, &preprocessor.served)?;
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
        Ok(texts.collect::<String>())
    });
    Ok(Json(json!({ "prompt": text.await? })))
}
