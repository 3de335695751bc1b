//! Middleware that encodes errors in the format of the requested interface.

use crate::api::{anthropic, ollama};
use crate::core::error::RequestError;
use crate::net::error::respond;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;

/// Re-encodes an error in the format of the path's interface; all other paths keep OpenAI's format.
pub async fn shape_errors(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let shape: Option<fn(&RequestError) -> serde_json::Value> = match path {
        _ if path.starts_with("/api/") => Some(ollama::error::to_json),
        _ if path.starts_with("/v1/messages") => Some(anthropic::error::to_json),
        // Both interfaces have this path; Anthropic's clients send a version header.
        _ if path.starts_with("/v1/models")
            && request.headers().contains_key("anthropic-version") =>
        {
            Some(anthropic::error::to_json)
        }
        _ => None,
    };
    let mut response = next.run(request).await;
    match (shape, response.extensions_mut().remove::<RequestError>()) {
        (Some(shape), Some(error)) => respond(&error, shape(&error)),
        _ => response,
    }
}
