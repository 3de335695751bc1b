//! Types of tool parameters, as needed to parse replies.

use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// String parameters of each tool. A value between tags alone does not say whether `7` is a
/// number or a string.
#[derive(Clone, Debug, Default)]
pub struct Schemas {
    /// Tool name to the names of its string parameters.
    strings: Arc<HashMap<String, HashSet<String>>>,
}

impl Schemas {
    /// Collects the string parameters from tool names and their JSON schemas.
    pub fn new<'t>(tools: impl Iterator<Item = (&'t str, Option<&'t Value>)>) -> Schemas {
        let strings = tools.map(|(name, parameters)| {
            let properties = parameters
                .and_then(|p| p.get("properties"))
                .and_then(Value::as_object);
            let strings = properties
                .into_iter()
                .flatten()
                .filter(|(_, schema)| is_string(schema));
            (
                name.to_owned(),
                strings.map(|(key, _)| key.clone()).collect(),
            )
        });
        Schemas {
            strings: Arc::new(strings.collect()),
        }
    }
    /// Returns true if a tool of this name exists.
    pub fn has(&self, tool: &str) -> bool {
        self.strings.contains_key(tool)
    }
    /// Returns true if parameter `key` of the tool has type string.
    pub fn is_string(&self, tool: &str, key: &str) -> bool {
        self.strings
            .get(tool)
            .is_some_and(|strings| strings.contains(key))
    }
}

fn is_string(schema: &Value) -> bool {
    let all = |values: &Value| {
        values
            .as_array()
            .is_some_and(|v| !v.is_empty() && v.iter().all(Value::is_string))
    };
    schema.get("type").is_some_and(|kind| kind == "string")
        || schema.get("type").is_none() && schema.get("enum").is_some_and(all)
}
