//! Tools that a request offers, and forms that it asks for.

use crate::body::Others;
use crate::error::ApiError;
use crate::grammar::{Callable, Form};
use crate::reply::Schemas;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::LazyLock;

/// A tool.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
pub struct Tool {
    #[serde(rename = "type")]
    kind: String,
    /// Tools of other types have none.
    function: Option<Function>,
    #[serde(flatten)]
    _others: Others,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
struct Function {
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
    #[serde(flatten)]
    _others: Others,
}

/// Which tools may, must or must not be called.
#[derive(Deserialize, Clone, Debug)]
#[serde(
    untagged,
    expecting = "expected \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}"
)]
pub enum ToolChoice {
    /// In general.
    Mode(Mode),
    /// That one must.
    Named(Choice),
}

/// A tool that must be called.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
pub struct Choice {
    function: Named,
    #[serde(flatten)]
    _others: Others,
}

/// In general.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
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
    _others: Others,
}

/// What form an answer must have.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
pub struct ResponseFormat {
    #[serde(rename = "type")]
    kind: FormatKind,
    json_schema: Option<JsonSchema>,
    #[serde(flatten)]
    _others: Others,
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
    _others: Others,
}

/// Most tools of a request.
const TOOLS: usize = 128;

/// Tools and forms, checked.
pub struct Wishes<'r> {
    /// The tools that may be called; empty for none.
    tools: Vec<&'r Function>,
    /// One of these must be called.
    forced: Vec<&'r Function>,
    /// The answer must be JSON of that schema.
    schema: Option<&'r Value>,
    several: bool,
}

static OBJECT: LazyLock<Value> = LazyLock::new(|| json!({ "type": "object" }));

impl<'r> Wishes<'r> {
    /// Checks them.
    ///
    /// # Errors
    /// What makes no sense.
    pub fn new(
        tools: Option<&'r [Tool]>,
        choice: Option<&'r ToolChoice>,
        format: Option<&'r ResponseFormat>,
        several: bool,
    ) -> Result<Wishes<'r>, ApiError> {
        let tools = tools.unwrap_or_default();
        if tools.len() > TOOLS {
            return Err(ApiError::parameter("tools", format!("{} tools are more than {TOOLS}", tools.len())));
        }
        let checked = tools.iter().enumerate().map(|(i, tool)| {
            tool.check().map_err(|(place, message)| ApiError::parameter(format!("tools[{i}]{place}"), message))
        });
        let tools = checked.collect::<Result<Vec<_>, _>>()?;
        let needs_tools = |forced: bool| match tools.is_empty() && forced {
            true => Err(ApiError::parameter("tool_choice", "there are no tools to choose from")),
            false => Ok(()),
        };
        let (tools, forced) = match choice {
            None | Some(ToolChoice::Mode(Mode::Auto)) => (tools, Vec::new()),
            Some(ToolChoice::Mode(Mode::None)) => (Vec::new(), Vec::new()),
            Some(ToolChoice::Mode(Mode::Required)) => {
                needs_tools(true)?;
                (tools.clone(), tools)
            }
            Some(ToolChoice::Named(Choice { function, .. })) => {
                needs_tools(true)?;
                let named = tools.iter().copied().find(|tool| tool.name == function.name);
                let missing =
                    || ApiError::parameter("tool_choice", format!("there is no tool named {:?}", function.name));
                let named = named.ok_or_else(missing)?;
                (tools, vec![named])
            }
        };
        let schema = format.map(ResponseFormat::schema).transpose()?.flatten();
        Ok(Wishes { tools, forced, schema, several })
    }
    /// The tools as templates take them.
    pub fn to_json(&self) -> Vec<Value> {
        self.tools.iter().map(|tool| tool.to_json()).collect()
    }
    /// What a parser of calls needs; none where none can come.
    pub fn schemas(&self) -> Option<Schemas> {
        let tools = self.tools.iter().map(|tool| (tool.name.as_str(), tool.parameters.as_ref()));
        (!self.tools.is_empty()).then(|| Schemas::new(tools))
    }
    /// Must an answer consist of calls?
    pub fn forced(&self) -> bool {
        !self.forced.is_empty()
    }
    /// The form an answer must have, and which parameter asks for it.
    pub fn form(&self) -> Option<(Form<'r>, &'static str)> {
        let callable = |tool: &'r Function| Callable { name: &tool.name, parameters: tool.parameters.as_ref() };
        let several = self.several;
        if !self.forced.is_empty() {
            let calls = self.forced.iter().copied().map(callable).collect();
            return Some((Form { schema: None, calls, several }, "tools"));
        }
        let calls = self.tools.iter().copied().map(callable).collect();
        self.schema.map(|schema| (Form { schema: Some(schema), calls, several }, "response_format"))
    }
}

impl Tool {
    /// The function that it is; or where in it something is wrong, and what.
    fn check(&self) -> Result<&Function, (&'static str, String)> {
        if self.kind != "function" {
            let message = format!("only tools of type `function` can be called here, not of type `{}`", self.kind);
            return Err((".type", message));
        }
        let function =
            self.function.as_ref().ok_or((".function", "a tool of type `function` needs a function".into()))?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if function.name.is_empty() || function.name.len() > 64 || !function.name.chars().all(plain) {
            Err((
                ".function.name",
                "a function's name is 1 to 64 letters, digits, underscores, hyphens and dots".into(),
            ))
        } else if !function.parameters.as_ref().is_none_or(Value::is_object) {
            Err((".function.parameters", "a function's parameters are a JSON schema, an object".into()))
        } else {
            Ok(function)
        }
    }
}

impl Function {
    fn to_json(&self) -> Value {
        let mut function = json!({ "name": self.name });
        if let Some(description) = &self.description {
            function["description"] = description.clone().into();
        }
        let none = || json!({ "type": "object", "properties": {} });
        function["parameters"] = self.parameters.clone().unwrap_or_else(none);
        json!({ "type": "function", "function": function })
    }
}

impl ResponseFormat {
    fn schema(&self) -> Result<Option<&Value>, ApiError> {
        match self.kind {
            FormatKind::Text => Ok(None),
            FormatKind::JsonObject => Ok(Some(&OBJECT)),
            FormatKind::JsonSchema => {
                let schema = self.json_schema.as_ref().and_then(|wrapped| wrapped.schema.as_ref());
                match schema.filter(|schema| schema.is_object() || schema.is_boolean()) {
                    Some(schema) => Ok(Some(schema)),
                    None => {
                        let at = "response_format.json_schema.schema";
                        Err(ApiError::parameter(at, "a response_format of type json_schema needs a schema, an object"))
                    }
                }
            }
        }
    }
}
