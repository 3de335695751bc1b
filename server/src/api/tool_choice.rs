//! Tools and tool choices in the notations of OpenAI's two interfaces.

use crate::core::error::RequestError;
use crate::core::tools::{Tool, ToolChoice, ToolField};
use crate::net::body::IgnoredFields;
use serde::Deserialize;
use serde_json::Value;

/// A tool that the model may call. Chat completions have its parts in `function`, responses in the
/// tool itself.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
pub struct RequestTool {
    #[serde(rename = "type")]
    kind: Option<String>,
    function: Option<Function>,
    name: Option<String>,
    description: Option<String>,
    parameters: Option<Value>,
    /// Anthropic's name of `parameters`.
    input_schema: Option<Value>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

/// A function that the model may call.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
pub struct Function {
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

/// Whether tools may, must or must not be called, one tool by name, or some of the tools.
#[derive(Deserialize, Clone, Debug)]
#[serde(
    untagged,
    expecting = "expected \"none\", \"auto\", \"required\" or {\"type\": \"function\", …} with a name"
)]
pub enum RequestToolChoice {
    Mode(ToolChoiceMode),
    Chosen(ChosenTools),
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
    #[serde(alias = "any")]
    Required,
}

/// A tool that must be called, or the tools that may be.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
pub struct ChosenTools {
    #[serde(rename = "type")]
    kind: Option<String>,
    name: Option<String>,
    function: Option<NamedTool>,
    allowed_tools: Option<AllowedTools>,
    mode: Option<ToolChoiceMode>,
    tools: Option<Vec<NamedTool>>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
struct AllowedTools {
    mode: Option<ToolChoiceMode>,
    tools: Vec<NamedTool>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

/// The name of a tool, in either notation.
#[derive(Deserialize, Clone, Debug)]
#[serde(expecting = "an object")]
struct NamedTool {
    name: Option<String>,
    function: Option<Box<NamedTool>>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

impl NamedTool {
    fn name(self) -> Option<String> {
        self.name.or_else(|| self.function?.name)
    }
}

/// Converts the tools into those of the core. Tools of other types than `function`, which only a
/// hosted service runs, are left out and named in `ignored`.
///
/// # Errors
/// The first function that is invalid.
pub fn tools(
    tools: Vec<RequestTool>,
    ignored: &mut Vec<String>,
) -> Result<Vec<Tool>, RequestError> {
    let mut functions = Vec::new();
    for (i, tool) in tools.into_iter().enumerate() {
        if let Some(kind) = tool.kind.as_deref().filter(|kind| *kind != "function") {
            leave_out("tools", kind, ignored);
            continue;
        }
        functions.push(tool.function(i)?);
    }
    Ok(functions)
}

/// Maximum names of parts that are left out.
const MAX_LEFT_OUT: usize = 64;

/// Names a part of the list `field` that is left out as it is of type `kind`.
pub fn leave_out(field: &str, kind: &str, ignored: &mut Vec<String>) {
    if ignored.len() >= MAX_LEFT_OUT {
        return;
    }
    let kind: String = kind.chars().take(40).collect();
    let name = format!("{field}.{kind}");
    if !ignored.contains(&name) {
        ignored.push(name);
    }
}

/// Parses a schema that is given as its text.
pub fn schema_value(schema: Value) -> Value {
    let text = schema.as_str();
    let parsed: Option<Value> = text.and_then(|text| serde_json::from_str(text).ok());
    parsed.filter(Value::is_object).unwrap_or(schema)
}

impl Function {
    fn into_tool(self) -> Tool {
        Tool {
            name: self.name,
            description: self.description,
            parameters: self.parameters.map(schema_value),
        }
    }
}

/// Converts `functions`, the predecessor of `tools`.
///
/// # Errors
/// The first function that is invalid.
pub fn functions(functions: Vec<Function>) -> Result<Vec<Tool>, RequestError> {
    let convert = |(i, function): (usize, Function)| {
        let tool = function.into_tool();
        tool.check().map_err(|(field, why)| {
            RequestError::parameter(format!("functions[{i}].{}", field_name(field)), why)
        })?;
        Ok(tool)
    };
    functions.into_iter().enumerate().map(convert).collect()
}

fn field_name(field: ToolField) -> &'static str {
    match field {
        ToolField::Name => "name",
        ToolField::Parameters => "parameters",
    }
}

impl RequestTool {
    /// Returns the function, which is tool `i` of the request.
    fn function(self, i: usize) -> Result<Tool, RequestError> {
        let (tool, at) = match (self.function, self.name) {
            (Some(function), _) => (function.into_tool(), ".function"),
            (None, Some(name)) => (
                Tool {
                    name,
                    description: self.description,
                    parameters: self.parameters.or(self.input_schema).map(schema_value),
                },
                "",
            ),
            (None, None) => {
                return Err(RequestError::parameter(
                    format!("tools[{i}].function"),
                    "a tool of type `function` needs a function with a name",
                ));
            }
        };
        tool.check().map_err(|(field, why)| {
            RequestError::parameter(format!("tools[{i}]{at}.{}", field_name(field)), why)
        })?;
        Ok(tool)
    }
}

impl From<ToolChoiceMode> for ToolChoice {
    fn from(mode: ToolChoiceMode) -> ToolChoice {
        match mode {
            ToolChoiceMode::None => ToolChoice::None,
            ToolChoiceMode::Auto => ToolChoice::Auto,
            ToolChoiceMode::Required => ToolChoice::Required,
        }
    }
}

impl From<RequestToolChoice> for ToolChoice {
    fn from(choice: RequestToolChoice) -> ToolChoice {
        let chosen = match choice {
            RequestToolChoice::Mode(mode) => return mode.into(),
            RequestToolChoice::Chosen(chosen) => chosen,
        };
        let (mode, tools) = match chosen.allowed_tools {
            Some(allowed) => (allowed.mode, Some(allowed.tools)),
            None => (chosen.mode, chosen.tools),
        };
        if let Some(tools) = tools {
            if mode == Some(ToolChoiceMode::None) {
                return ToolChoice::None;
            }
            return ToolChoice::Allowed {
                names: tools.into_iter().filter_map(NamedTool::name).collect(),
                required: mode == Some(ToolChoiceMode::Required),
            };
        }
        let is_left_out = |kind: &str| !["function", "tool"].contains(&kind);
        let is_left_out = chosen.kind.as_deref().is_some_and(is_left_out);
        let name = chosen.function.and_then(NamedTool::name).or(chosen.name);
        match name.filter(|_| !is_left_out) {
            Some(name) => ToolChoice::Named(name),
            // A hosted tool, which is left out, or a mode as an object.
            None => match chosen.kind.as_deref() {
                Some("none") => ToolChoice::None,
                Some("required" | "any") => ToolChoice::Required,
                _ => ToolChoice::Auto,
            },
        }
    }
}
