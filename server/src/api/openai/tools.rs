//! Tools, tool choice and response formats of chat requests.

use crate::core::constraint::grammar::OutputFormat;
use crate::core::error::RequestError;
use crate::core::tools::{self, ToolField};
use crate::net::body::IgnoredFields;
use serde::Deserialize;
use serde_json::{Value, json};

/// A tool that the model may call.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
pub struct RequestTool {
    #[serde(rename = "type")]
    kind: String,
    /// Absent in tools of other types than `function`.
    function: Option<Function>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
struct Function {
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

/// Whether tools may, must or must not be called, or one tool by name.
#[derive(Deserialize, Clone, Debug)]
#[serde(
    untagged,
    expecting = "expected \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}"
)]
pub enum RequestToolChoice {
    Mode(ToolChoiceMode),
    /// The named tool must be called.
    Named(NamedToolChoice),
}

/// A tool that must be called.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
pub struct NamedToolChoice {
    function: Named,
    #[serde(flatten)]
    _others: IgnoredFields,
}

/// A tool choice that names no tool.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum ToolChoiceMode {
    /// No tool may be called.
    None,
    /// The model decides whether to call tools.
    Auto,
    /// At least one tool must be called.
    Required,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
struct Named {
    name: String,
    #[serde(flatten)]
    _others: IgnoredFields,
}

/// Format that constrains the answer.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
pub struct ResponseFormat {
    #[serde(rename = "type")]
    kind: FormatKind,
    json_schema: Option<JsonSchema>,
    /// Schema of a `json_object`; an extension of OpenAI's interface.
    schema: Option<Value>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
enum FormatKind {
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

/// Converts the tools into those of the core.
///
/// # Errors
/// The first tool that is invalid.
pub fn tools(tools: Vec<RequestTool>) -> Result<Vec<tools::Tool>, RequestError> {
    let checked = tools.into_iter().enumerate().map(|(i, tool)| {
        tool.check().map_err(|(place, message)| {
            RequestError::parameter(format!("tools[{i}]{place}"), message)
        })
    });
    checked.collect()
}

impl RequestTool {
    /// Returns the function; on error, the path of the invalid field within the tool and a message.
    fn check(self) -> Result<tools::Tool, (&'static str, String)> {
        if self.kind != "function" {
            let message = format!(
                "tools of type `{}` are not supported; only `function` is",
                self.kind
            );
            return Err((".type", message));
        }
        let Function {
            name,
            description,
            parameters,
            ..
        } = self.function.ok_or((
            ".function",
            "a tool of type `function` needs a function".into(),
        ))?;
        let tool = tools::Tool {
            name,
            description,
            parameters,
        };
        tool.check().map_err(|(place, message)| match place {
            ToolField::Name => (".function.name", message),
            ToolField::Parameters => (".function.parameters", message),
        })?;
        Ok(tool)
    }
}

impl From<RequestToolChoice> for tools::ToolChoice {
    fn from(choice: RequestToolChoice) -> tools::ToolChoice {
        match choice {
            RequestToolChoice::Mode(ToolChoiceMode::None) => tools::ToolChoice::None,
            RequestToolChoice::Mode(ToolChoiceMode::Auto) => tools::ToolChoice::Auto,
            RequestToolChoice::Mode(ToolChoiceMode::Required) => tools::ToolChoice::Required,
            RequestToolChoice::Named(choice) => tools::ToolChoice::Named(choice.function.name),
        }
    }
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
                self.json_schema.and_then(|wrapped| wrapped.schema),
                "response_format.json_schema.schema",
            ),
        };
        match schema.filter(|schema| schema.is_object() || schema.is_boolean()) {
            Some(schema) => Ok(Some(OutputFormat::Schema(schema))),
            None => {
                let message = "a response_format of this type needs a schema, an object";
                Err(RequestError::parameter(at, message))
            }
        }
    }
}
