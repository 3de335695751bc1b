//! Ollama's error object.

use crate::core::error::RequestError;
use serde_json::{Value, json};

/// Converts an error into Ollama's error object.
pub fn to_json(error: &RequestError) -> Value {
    // The error object has no field for the parameter's name, so the message carries it.
    match error
        .field
        .as_ref()
        .filter(|field| !error.message.contains(field.as_str()))
    {
        Some(field) => json!({ "error": format!("{field}: {}", error.message) }),
        None => json!({ "error": error.message }),
    }
}
