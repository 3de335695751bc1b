//! Anthropic's error object.

use crate::core::error::{ErrorKind, RequestError};
use serde_json::{Value, json};

/// Converts an error into Anthropic's error object.
pub fn to_json(error: &RequestError) -> Value {
    let kind = match error.kind {
        ErrorKind::Invalid | ErrorKind::Method | ErrorKind::MediaType | ErrorKind::Timeout => {
            "invalid_request_error"
        }
        ErrorKind::Unauthorized => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::NotFound => "not_found_error",
        ErrorKind::TooLarge => "request_too_large",
        ErrorKind::Busy => "rate_limit_error",
        ErrorKind::Unavailable => "overloaded_error",
        ErrorKind::Internal => "api_error",
    };
    // The error object has no field for the parameter's name, so the message carries it.
    let message = match error
        .field
        .as_ref()
        // Clients look for an overflow's first words.
        .filter(|_| error.code != Some("context_length_exceeded"))
        .filter(|field| !error.message.contains(field.as_str()))
    {
        Some(field) => format!("{field}: {}", error.message),
        None => error.message.clone(),
    };
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}
