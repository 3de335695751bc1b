//! Tools that a request offers, and forms that it asks for.

use crate::error::ApiError;
use crate::grammar::{Callable, Form};
use crate::reply::Schemas;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::LazyLock;

/// A tool.
#[derive(Deserialize, Clone, Debug)]
pub struct Tool {
    #[serde(rename = "type")]
    kind: String,
    function: Function,
}

#[derive(Deserialize, Clone, Debug)]
struct Function {
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
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
    Named {
        /// It.
        function: Named,
    },
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
pub struct Named {
    name: String,
}

/// What form an answer must have.
#[derive(Deserialize, Clone, Debug)]
pub struct ResponseFormat {
    #[serde(rename = "type")]
    kind: FormatKind,
    json_schema: Option<JsonSchema>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
enum FormatKind {
    Text,
    JsonObject,
    JsonSchema,
}

#[derive(Deserialize, Clone, Debug)]
struct JsonSchema {
    schema: Option<Value>,
}

/// Most tools of a request.
const TOOLS: usize = 128;

/// Tools and forms, checked.
pub struct Wishes<'r> {
    /// The tools that may be called; empty for none.
    tools: &'r [Tool],
    /// One of these must be called.
    forced: Vec<&'r Tool>,
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
        for (i, tool) in tools.iter().enumerate() {
            tool.check().map_err(|message| ApiError::parameter(format!("tools[{i}]"), message))?;
        }
        let needs_tools = |forced: bool| match tools.is_empty() && forced {
            true => Err(ApiError::parameter("tool_choice", "there are no tools to choose from")),
            false => Ok(()),
        };
        let (tools, forced) = match choice {
            None | Some(ToolChoice::Mode(Mode::Auto)) => (tools, Vec::new()),
            Some(ToolChoice::Mode(Mode::None)) => (&[][..], Vec::new()),
            Some(ToolChoice::Mode(Mode::Required)) => {
                needs_tools(true)?;
                (tools, tools.iter().collect())
            }
            Some(ToolChoice::Named { function }) => {
                needs_tools(true)?;
                let named = tools.iter().find(|tool| tool.function.name == function.name);
                let missing =
                    || ApiError::parameter("tool_choice", format!("there is no tool named {:?}", function.name));
                (tools, vec![named.ok_or_else(missing)?])
            }
        };
        let schema = format.map(ResponseFormat::schema).transpose()?.flatten();
        Ok(Wishes { tools, forced, schema, several })
    }
    /// The tools as templates take them.
    pub fn to_json(&self) -> Vec<Value> {
        self.tools.iter().map(Tool::to_json).collect()
    }
    /// What a parser of calls needs; none where none can come.
    pub fn schemas(&self) -> Option<Schemas> {
        let tools = self.tools.iter().map(|tool| (tool.function.name.as_str(), tool.function.parameters.as_ref()));
        (!self.tools.is_empty()).then(|| Schemas::new(tools))
    }
    /// The form an answer must have, and which parameter asks for it.
    pub fn form(&self) -> Option<(Form<'r>, &'static str)> {
        let callable =
            |tool: &'r Tool| Callable { name: &tool.function.name, parameters: tool.function.parameters.as_ref() };
        let several = self.several;
        if !self.forced.is_empty() {
            let calls = self.forced.iter().copied().map(callable).collect();
            return Some((Form { schema: None, calls, several }, "tools"));
        }
        let calls = self.tools.iter().map(callable).collect();
        self.schema.map(|schema| (Form { schema: Some(schema), calls, several }, "response_format"))
    }
}

impl Tool {
    fn check(&self) -> Result<(), String> {
        let name = &self.function.name;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if self.kind != "function" {
            Err("only tools of type `function` can be called".into())
        } else if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            Err("a function's name is 1 to 64 letters, digits, underscores, hyphens and dots".into())
        } else if !self.function.parameters.as_ref().is_none_or(Value::is_object) {
            Err("a function's parameters are a JSON schema, an object".into())
        } else {
            Ok(())
        }
    }
    fn to_json(&self) -> Value {
        let Function { name, description, parameters } = &self.function;
        let mut function = json!({ "name": name });
        if let Some(description) = description {
            function["description"] = description.clone().into();
        }
        function["parameters"] = parameters.clone().unwrap_or_else(|| json!({ "type": "object", "properties": {} }));
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
