//! Errors as responses: their status, and a body in the shape that most clients read. An interface with another shape writes it over that.

use crate::core::error::{Kind, RequestError};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// The status of a kind of error.
pub fn status(kind: Kind) -> StatusCode {
    match kind {
        Kind::Invalid => StatusCode::BAD_REQUEST,
        Kind::Unauthorized => StatusCode::UNAUTHORIZED,
        Kind::Forbidden => StatusCode::FORBIDDEN,
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::Method => StatusCode::METHOD_NOT_ALLOWED,
        Kind::Timeout => StatusCode::REQUEST_TIMEOUT,
        Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Kind::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Kind::Busy => StatusCode::TOO_MANY_REQUESTS,
        Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// OpenAI's error object.
pub fn to_json(error: &RequestError) -> Value {
    let kind = match error.kind {
        Kind::Busy => "rate_limit_error",
        Kind::Unavailable | Kind::Internal => "server_error",
        _ => "invalid_request_error",
    };
    json!({ "error": { "message": error.message, "type": kind, "param": error.field, "code": error.code } })
}

/// A response of that error with that body.
pub fn respond(error: &RequestError, body: Value) -> Response {
    let status = status(error.kind);
    let mut response = (status, Json(body)).into_response();
    let headers = response.headers_mut();
    match status {
        // Clients wait that long before they try again, if they do.
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
        // For an interface that tells it otherwise.
        response.extensions_mut().insert(self);
        response
    }
}
