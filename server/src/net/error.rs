//! Error responses: HTTP status, and a body in OpenAI's format, which other interfaces replace.

use crate::core::error::{ErrorKind, RequestError};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Returns the HTTP status of a kind of error.
pub fn status(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::Unauthorized => StatusCode::UNAUTHORIZED,
        ErrorKind::Forbidden => StatusCode::FORBIDDEN,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Method => StatusCode::METHOD_NOT_ALLOWED,
        ErrorKind::Timeout => StatusCode::REQUEST_TIMEOUT,
        ErrorKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorKind::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ErrorKind::Busy => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Converts an error into OpenAI's error object.
pub fn to_json(error: &RequestError) -> Value {
    let kind = match error.kind {
        ErrorKind::Busy => "rate_limit_error",
        ErrorKind::Unavailable | ErrorKind::Internal => "server_error",
        _ => "invalid_request_error",
    };
    json!({ "error": { "message": error.message, "type": kind, "param": error.field, "code": error.code } })
}

/// Response of an error with the given body.
pub fn respond(error: &RequestError, body: Value) -> Response {
    let status = status(error.kind);
    let mut response = (status, Json(body)).into_response();
    let headers = response.headers_mut();
    match status {
        // Clients that retry wait for this time.
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        StatusCode::UNAUTHORIZED => {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        _ => {}
    }
    response
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        let mut response = respond(&self, to_json(&self));
        // Interfaces with another format encode the error anew.
        response.extensions_mut().insert(self);
        response
    }
}
