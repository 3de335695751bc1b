//! Completes calls and tool descriptions that lack what templates read.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

/// Key of arguments that are no object, such as a list or a text that was cut off.
const WRAPPED: &str = "arguments";

/// Reads arguments of a call: an object, its JSON text (once or twice encoded), or nothing.
/// Returns `None` for anything else.
pub(super) fn parsed(arguments: &Json) -> Option<Map<String, Json>> {
    match arguments {
        Json::Null => Some(Map::new()),
        Json::Object(map) => Some(map.clone()),
        Json::Array(items) if items.is_empty() => Some(Map::new()),
        Json::String(text) if text.trim().is_empty() => Some(Map::new()),
        Json::String(text) => match serde_json::from_str(text).ok()? {
            Json::String(inner) => match serde_json::from_str(&inner).ok()? {
                Json::Object(map) => Some(map),
                _ => None,
            },
            Json::Null => Some(Map::new()),
            value @ (Json::Object(_) | Json::Array(_)) => parsed(&value),
            _ => None,
        },
        _ => None,
    }
}

/// Reads arguments of a call; wraps those that are no object in one.
pub(super) fn object(arguments: &Json) -> Map<String, Json> {
    parsed(arguments).unwrap_or_else(|| {
        let value = match arguments {
            Json::String(text) => {
                serde_json::from_str(text).unwrap_or_else(|_| text.clone().into())
            }
            other => other.clone(),
        };
        Map::from_iter([(WRAPPED.to_owned(), value)])
    })
}

/// Makes the arguments of all calls objects.
pub(super) fn arguments(messages: &mut [Json]) {
    for function in functions(messages) {
        let read = object(function.get("arguments").unwrap_or(&Json::Null));
        function.insert("arguments".into(), read.into());
    }
}

/// Returns the functions of all calls, with or without the level "function" around them.
fn functions(messages: &mut [Json]) -> impl Iterator<Item = &mut Map<String, Json>> {
    messages
        .iter_mut()
        .filter_map(|message| message.get_mut("tool_calls")?.as_array_mut())
        .flatten()
        .filter_map(|call| match call.get("function").is_some() {
            true => call["function"].as_object_mut(),
            false => call.as_object_mut(),
        })
}

/// Names results after their calls.
pub(super) fn names(messages: &mut [Json]) {
    let mut names: BTreeMap<String, Json> = BTreeMap::new();
    for message in messages {
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let function = call.get("function").unwrap_or(call);
            if let Some(id) = call["id"].as_str() {
                names.insert(id.to_owned(), function["name"].clone());
            }
        }
        if message["role"] == "tool" && message["name"].is_null() {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            if let Some(name) = names.get(id) {
                message["name"] = name.clone();
            }
        }
    }
}

/// Adds missing descriptions, parameters and types to a list of tools.
pub(super) fn tools(tools: &mut Json) {
    for tool in tools.as_array_mut().into_iter().flatten() {
        let function = match tool.get("function").is_some() {
            true => &mut tool["function"],
            false => tool,
        };
        if function["description"].is_null() {
            function["description"] = "".into();
        }
        if !function["parameters"].is_object() {
            function["parameters"] = json!({});
        }
        let parameters = &mut function["parameters"];
        if parameters["type"].is_null() {
            parameters["type"] = "object".into();
        }
        if !parameters["properties"].is_object() {
            parameters["properties"] = json!({});
        }
        if parameters["required"].is_null() {
            parameters["required"] = json!([]);
        }
        for schema in parameters["properties"]
            .as_object_mut()
            .into_iter()
            .flatten()
        {
            property(schema.1);
        }
    }
}

/// Adds the type and the description of a parameter.
fn property(schema: &mut Json) {
    if !schema.is_object() {
        *schema = json!({});
    }
    if schema["description"].is_null() {
        schema["description"] = "".into();
    }
    if schema["type"].is_null() {
        let first = ["anyOf", "oneOf", "allOf"]
            .iter()
            .filter_map(|key| {
                schema[*key]
                    .as_array()?
                    .iter()
                    .find_map(|it| it["type"].as_str())
            })
            .next();
        let kind = match &schema["enum"][0] {
            Json::Number(_) => "number",
            Json::Bool(_) => "boolean",
            _ => first.unwrap_or(if schema["properties"].is_object() {
                "object"
            } else {
                "string"
            }),
        };
        schema["type"] = kind.into();
    }
}
