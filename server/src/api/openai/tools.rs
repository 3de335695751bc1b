//! Tools that a request offers, and forms that it asks for.

use crate::core::constraint::grammar::OutputFormat;
use crate::core::error::RequestError;
use crate::core::tools::{self, ToolField};
use crate::net::body::IgnoredFields;
use serde::Deserialize;
use serde_json::{Value, json};

/// A tool.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
pub struct RequestTool {
    #[serde(rename = "type")]
    kind: String,
    /// Tools of other types have none.
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

/// Which tools may, must or must not be called.
#[derive(Deserialize, Clone, Debug)]
#[serde(
    untagged,
    expecting = "expected \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}"
)]
pub enum RequestToolChoice {
    /// In general.
    Mode(ToolChoiceMode),
    /// That one must.
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

/// In general.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum ToolChoiceMode {
    /// None.
    None,
    /// As the model likes.
    Auto,
    /// At least one.
    Required,
}

/// A tool's name.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
struct Named {
    name: String,
    #[serde(flatten)]
    _others: IgnoredFields,
}

/// What form an answer must have.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
pub struct ResponseFormat {
    #[serde(rename = "type")]
    kind: FormatKind,
    json_schema: Option<JsonSchema>,
    /// Of a `json_object`, beyond OpenAI's interface.
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

/// Tools as the core takes them.
///
/// # Errors
/// The first that is none.
pub fn tools(tools: Vec<RequestTool>) -> Result<Vec<tools::Tool>, RequestError> {
    let checked = tools.into_iter().enumerate().map(|(i, tool)| {
        tool.check().map_err(|(place, message)| RequestError::parameter(format!("tools[{i}]{place}"), message))
    });
    checked.collect()
}

impl RequestTool {
    /// The function that it is; or where in it something is wrong, and what.
    fn check(self) -> Result<tools::Tool, (&'static str, String)> {
        if self.kind != "function" {
            let message = format!("only tools of type `function` can be called here, not of type `{}`", self.kind);
            return Err((".type", message));
        }
        let Function { name, description, parameters, .. } =
            self.function.ok_or((".function", "a tool of type `function` needs a function".into()))?;
        let tool = tools::Tool { name, description, parameters };
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
    /// What the text of the answer must be.
    ///
    /// # Errors
    /// A schema that is none.
    pub fn form(self) -> Result<Option<OutputFormat>, RequestError> {
        let (schema, at) = match self.kind {
            FormatKind::Text => return Ok(None),
            FormatKind::JsonObject => {
                (Some(self.schema.unwrap_or_else(|| json!({ "type": "object" }))), "response_format.schema")
            }
            FormatKind::JsonSchema => {
                (self.json_schema.and_then(|wrapped| wrapped.schema), "response_format.json_schema.schema")
            }
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
