//! Response formats of chat requests.

use crate::api::tool_choice::schema_value;
use crate::core::constraint::grammar::OutputFormat;
use crate::core::error::RequestError;
use crate::net::body::IgnoredFields;
use serde::Deserialize;
use serde_json::{Value, json};

/// Format that constrains the answer.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
pub struct ResponseFormat {
    #[serde(rename = "type", default)]
    kind: FormatKind,
    json_schema: Option<JsonSchema>,
    /// Schema of a `json_object`; an extension of OpenAI's interface.
    schema: Option<Value>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(rename_all = "snake_case")]
enum FormatKind {
    #[default]
    Text,
    JsonObject,
    JsonSchema,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
struct JsonSchema {
    schema: Option<Value>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

impl ResponseFormat {
    /// Returns the constraint on the answer's text, or `None` for plain text.
    ///
    /// # Errors
    /// When the schema is missing, or neither an object nor a boolean.
    pub fn output_format(self) -> Result<Option<OutputFormat>, RequestError> {
        let (schema, at) = match self.kind {
            FormatKind::Text => return Ok(None),
            FormatKind::JsonObject => (
                Some(self.schema.unwrap_or_else(|| json!({ "type": "object" }))),
                "response_format.schema",
            ),
            FormatKind::JsonSchema => (
                // llama.cpp has the schema beside the type.
                self.json_schema
                    .and_then(|wrapped| wrapped.schema)
                    .or(self.schema),
                "response_format.json_schema.schema",
            ),
        };
        match schema
            .map(schema_value)
            .filter(|schema| schema.is_object() || schema.is_boolean())
        {
            Some(schema) => Ok(Some(OutputFormat::Schema(schema))),
            None => {
                let message = "a response_format of this type needs a schema, an object";
                Err(RequestError::parameter(at, message))
            }
        }
    }
}
