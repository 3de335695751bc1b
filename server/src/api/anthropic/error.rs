//! Anthropic's error object.

use crate::core::error::{Kind, RequestError};
use serde_json::{Value, json};

/// The object.
pub fn to_json(error: &RequestError) -> Value {
    let kind = match error.kind {
        Kind::Invalid | Kind::Method | Kind::MediaType | Kind::Timeout => "invalid_request_error",
        Kind::Unauthorized => "authentication_error",
        Kind::Forbidden => "permission_error",
        Kind::NotFound => "not_found_error",
        Kind::TooLarge => "request_too_large",
        Kind::Busy => "rate_limit_error",
        Kind::Unavailable => "overloaded_error",
        Kind::Internal => "api_error",
    };
    // The interface has no place of its own for which field it is.
    let message = match error.field.as_ref().filter(|field| !error.message.contains(field.as_str())) {
        Some(field) => format!("{field}: {}", error.message),
        None => error.message.clone(),
    };
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}
