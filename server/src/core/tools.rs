//! Tools that a request offers.

use crate::core::constraint::grammar::{Callable, OutputConstraint, OutputFormat};
use crate::core::error::RequestError;
use crate::core::field_names::FieldNames;
use crate::core::limits::MAX_TOOLS;
use gristmill_llm::chat::reply::Schemas;
use serde_json::{Value, json};

/// A tool: a function that may be called.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// The JSON schema of its parameters, an object.
    pub parameters: Option<Value>,
}

/// Which tools may, must or must not be called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToolChoice {
    /// None.
    None,
    /// As the model likes.
    Auto,
    /// At least one.
    Required,
    /// That one.
    Named(String),
}

/// Tools and what is asked of them, checked.
pub struct ToolSet<'r> {
    /// The tools that may be called; empty for none.
    tools: Vec<&'r Tool>,
    /// One of these must be called.
    forced: Vec<&'r Tool>,
    several: bool,
}

impl Tool {
    /// What is wrong with it, and where in it, as `name` and `parameters`.
    ///
    /// # Errors
    /// A name or a schema that cannot be one.
    pub fn check(&self) -> Result<(), (ToolField, String)> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(plain) {
            let message = "a function's name is 1 to 64 letters, digits, underscores, hyphens and dots";
            Err((ToolField::Name, message.into()))
        } else if !self.parameters.as_ref().is_none_or(Value::is_object) {
            Err((ToolField::Parameters, "a function's parameters are a JSON schema, an object".into()))
        } else {
            Ok(())
        }
    }
    /// As templates take it.
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

/// A part of a tool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToolField {
    /// Its name.
    Name,
    /// Its schema.
    Parameters,
}

impl<'r> ToolSet<'r> {
    /// Checks them.
    ///
    /// # Errors
    /// What makes no sense.
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
        if all.is_empty() && matches!(choice, ToolChoice::Required | ToolChoice::Named(_)) {
            return Err(RequestError::parameter(names.tool_choice, "there are no tools to choose from"));
        }
        let (tools, forced) = match choice {
            ToolChoice::Auto => (all, Vec::new()),
            ToolChoice::None => (Vec::new(), Vec::new()),
            ToolChoice::Required => (all.clone(), all),
            ToolChoice::Named(name) => {
                let missing = || RequestError::parameter(names.tool_choice, format!("there is no tool named {name:?}"));
                let named = all.iter().copied().find(|tool| tool.name == *name).ok_or_else(missing)?;
                (all, vec![named])
            }
        };
        Ok(ToolSet { tools, forced, several })
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
    pub fn is_forced(&self) -> bool {
        !self.forced.is_empty()
    }
    /// What an answer must be, and which field asks for it; none where it may be anything.
    pub fn constraint(
        &self,
        form: Option<&'r (&'static str, OutputFormat)>,
        names: &FieldNames,
    ) -> Option<(OutputConstraint<'r>, &'static str)> {
        let callable = |tool: &'r Tool| Callable { name: &tool.name, parameters: tool.parameters.as_ref() };
        let several = self.several;
        if self.is_forced() {
            let calls = self.forced.iter().copied().map(callable).collect();
            return Some((OutputConstraint { form: None, calls, several }, names.tools));
        }
        let calls = self.tools.iter().copied().map(callable).collect();
        form.map(|(name, form)| (OutputConstraint { form: Some(form), calls, several }, *name))
    }
}
