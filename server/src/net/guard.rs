//! API key authentication.

use crate::app::App;
use crate::core::error::RequestError;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;

/// Refuses requests without the configured API key.
pub async fn check_key(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, RequestError> {
    if let Some(key) = &app.config.api_key {
        // Comparing hashes takes constant time, regardless of the lengths.
        let same =
            |given: &str| blake3::hash(given.trim().as_bytes()) == blake3::hash(key.as_bytes());
        if !given(request.headers()).is_some_and(same) {
            return Err(RequestError::key());
        }
    }
    Ok(next.run(request).await)
}

/// Returns the key of a request: a bearer token, or the header that Anthropic's clients send.
fn given(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.split_once(' '));
    let bearer = bearer
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, key)| key);
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok())
}
