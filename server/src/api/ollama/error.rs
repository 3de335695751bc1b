//! Ollama's error object.

use crate::core::error::RequestError;
use serde_json::{Value, json};

/// The object.
pub fn to_json(error: &RequestError) -> Value {
    // The interface has no place of its own for which field it is.
    match error.field.as_ref().filter(|field| !error.message.contains(field.as_str())) {
        Some(field) => json!({ "error": format!("{field}: {}", error.message) }),
        None => json!({ "error": error.message }),
    }
}
