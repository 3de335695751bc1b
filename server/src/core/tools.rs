//! Tools of a request.

use crate::core::constraint::grammar::{Callable, OutputConstraint, OutputFormat};
use crate::core::error::RequestError;
use crate::core::field_names::FieldNames;
use crate::core::limits::MAX_TOOLS;
use gristmill_llm::chat::reply::Schemas;
use serde_json::{Value, json};

/// A tool: a function that the model may call.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Name of the function.
    pub name: String,
    /// Description for the model.
    pub description: Option<String>,
    /// JSON schema of the parameters, an object; `None` if the tool declares none.
    pub parameters: Option<Value>,
}

/// Whether tools may, must or must not be called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToolChoice {
    /// No tool may be called.
    None,
    /// The model decides whether to call tools.
    Auto,
    /// At least one tool must be called.
    Required,
    /// The named tool must be called.
    Named(String),
    /// Only the named tools may be called.
    Allowed {
        /// Names of the tools.
        names: Vec<String>,
        /// Whether one of them must be called.
        required: bool,
    },
}

impl ToolChoice {
    /// Returns whether a tool must be called.
    pub fn is_forced(&self) -> bool {
        matches!(
            self,
            ToolChoice::Required
                | ToolChoice::Named(_)
                | ToolChoice::Allowed { required: true, .. }
        )
    }
}

/// The checked tools and tool choice of a request.
pub struct ToolSet<'r> {
    /// Tools that are listed in the prompt; empty if no calls are allowed.
    tools: Vec<&'r Tool>,
    /// Tools one of which must be called; empty without a forced call.
    forced: Vec<&'r Tool>,
    several: bool,
}

/// Maximum bytes of a function's name, as in Anthropic's API.
const MAX_NAME: usize = 128;

impl Tool {
    /// Checks the name and the schema.
    ///
    /// # Errors
    /// The field at fault, and a message.
    pub fn check(&self) -> Result<(), (ToolField, String)> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if self.name.is_empty() || self.name.len() > MAX_NAME || !self.name.chars().all(plain) {
            let message = format!(
                "a function's name is 1 to {MAX_NAME} letters, digits, underscores, hyphens and dots"
            );
            Err((ToolField::Name, message))
        } else if !self.parameters.as_ref().is_none_or(Value::is_object) {
            Err((
                ToolField::Parameters,
                "a function's parameters are a JSON schema, an object".into(),
            ))
        } else {
            Ok(())
        }
    }
    /// Returns the tool in the form of chat templates, some of which need the properties of an
    /// object. A description that a template needs is added when it refuses the tool.
    fn to_json(&self) -> Value {
        let mut parameters = self.parameters.clone().unwrap_or_else(|| json!({}));
        if let Some(members) = parameters.as_object_mut() {
            let kind = members.entry("type").or_insert(Value::Null);
            if kind.is_null() {
                *kind = "object".into();
            }
            let properties = members.entry("properties").or_insert(Value::Null);
            if properties.is_null() {
                *properties = json!({});
            }
        }
        let mut function = json!({ "name": self.name });
        if let Some(description) = &self.description {
            function["description"] = description.clone().into();
        }
        function["parameters"] = parameters;
        json!({ "type": "function", "function": function })
    }
}

/// A field of a tool, for error messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToolField {
    /// Name of the function.
    Name,
    /// Schema of the parameters.
    Parameters,
}

impl<'r> ToolSet<'r> {
    /// Checks the tools and the choice among them.
    ///
    /// # Errors
    /// When there are too many tools, or the choice names a tool that is not among them.
    pub fn new(
        tools: &'r [Tool],
        choice: &ToolChoice,
        several: bool,
        names: &FieldNames,
    ) -> Result<ToolSet<'r>, RequestError> {
        if tools.len() > MAX_TOOLS {
            return Err(RequestError::parameter(
                names.tools,
                format!("{} tools are more than {MAX_TOOLS}", tools.len()),
            ));
        }
        let all: Vec<&Tool> = tools.iter().collect();
        if all.is_empty() && choice.is_forced() {
            return Err(RequestError::parameter(
                names.tool_choice,
                "there are no tools to choose from",
            ));
        }
        let (tools, forced) = match choice {
            ToolChoice::Auto => (all, Vec::new()),
            ToolChoice::None => (Vec::new(), Vec::new()),
            ToolChoice::Required => (all.clone(), all),
            ToolChoice::Named(name) => {
                let missing = || {
                    RequestError::parameter(
                        names.tool_choice,
                        format!("there is no tool named {name:?}"),
                    )
                };
                let named = all
                    .iter()
                    .copied()
                    .find(|tool| tool.name == *name)
                    .ok_or_else(missing)?;
                (all, vec![named])
            }
            ToolChoice::Allowed {
                names: allowed,
                required,
            } => {
                let allows = |tool: &&Tool| allowed.contains(&tool.name);
                let tools: Vec<&Tool> = all.into_iter().filter(allows).collect();
                if *required && tools.is_empty() {
                    return Err(RequestError::parameter(
                        names.tool_choice,
                        "none of the allowed tools is there",
                    ));
                }
                let forced = if *required { tools.clone() } else { Vec::new() };
                (tools, forced)
            }
        };
        Ok(ToolSet {
            tools,
            forced,
            several,
        })
    }
    /// Returns the tools in the form of chat templates.
    pub fn to_json(&self) -> Vec<Value> {
        self.tools.iter().map(|tool| tool.to_json()).collect()
    }
    /// Returns the schemas that the parser of calls needs; `None` without tools.
    pub fn schemas(&self) -> Option<Schemas> {
        let tools = self
            .tools
            .iter()
            .map(|tool| (tool.name.as_str(), tool.parameters.as_ref()));
        (!self.tools.is_empty()).then(|| Schemas::new(tools))
    }
    /// Returns whether an answer must consist of calls.
    pub fn is_forced(&self) -> bool {
        !self.forced.is_empty()
    }
    /// Returns the constraint on the answer, with the field that requests it; `None` if the answer
    /// is unconstrained.
    pub fn constraint(
        &self,
        form: Option<&'r (&'static str, OutputFormat)>,
        names: &FieldNames,
    ) -> Option<(OutputConstraint<'r>, &'static str)> {
        let callable = |tool: &'r Tool| Callable {
            name: &tool.name,
            parameters: tool.parameters.as_ref(),
        };
        let several = self.several;
        if self.is_forced() {
            let calls = self.forced.iter().copied().map(callable).collect();
            return Some((
                OutputConstraint {
                    form: None,
                    calls,
                    several,
                },
                names.tools,
            ));
        }
        let calls = self.tools.iter().copied().map(callable).collect();
        form.map(|(name, form)| {
            (
                OutputConstraint {
                    form: Some(form),
                    calls,
                    several,
                },
                *name,
            )
        })
    }
}
