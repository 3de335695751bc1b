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
    match app.config.admits(given(request.headers())) {
        true => Ok(next.run(request).await),
        false => Err(RequestError::key()),
    }
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
