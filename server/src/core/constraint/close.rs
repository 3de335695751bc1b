//! Closes the objects of a schema: an object that names its keys allows no others, unless the
//! schema says so.

use serde_json::{Map, Value, json};

/// Keywords that apply another schema to the same value. Closing either would forbid the other's
/// keys.
const APPLICATORS: &[&str] = &[
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "dependentSchemas",
    "$dynamicRef",
];
/// Keywords that decide which keys are allowed besides those of `properties`.
const KEY_KEYWORDS: &[&str] = &[
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
    "propertyNames",
    "minProperties",
];

/// Returns the schema with its objects closed, except those that are combined with other schemas.
/// If any are combined, definitions stay open as well.
pub fn closed(schema: &Value) -> Value {
    let combined = combines(schema);
    close(schema, combined)
}

/// Returns the closed schema of JSON in compact notation. Without these two restrictions a model
/// that is unsure may generate white space or invented keys endlessly.
pub fn compact(schema: &Value) -> Value {
    let mut schema = match closed(schema) {
        Value::Object(schema) => schema,
        // `true` and `false` are schemas too.
        other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
    };
    let spaced = json!({
        "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",
        "lenient": true, "coerce_one_of": true,
    });
    schema.entry("x-guidance").or_insert(spaced);
    schema.into()
}

/// Returns whether any part of the schema applies two schemas to one value.
fn combines(schema: &Value) -> bool {
    match schema {
        Value::Array(entries) => entries.iter().any(combines),
        Value::Object(members) => is_combined(members) || members.values().any(combines),
        _ => false,
    }
}

fn is_combined(members: &Map<String, Value>) -> bool {
    let applied = APPLICATORS
        .iter()
        .filter(|key| members.contains_key(**key))
        .count();
    let several = members
        .get("allOf")
        .and_then(Value::as_array)
        .is_some_and(|all| all.len() > 1);
    several || applied > 1 || applied == 1 && members.contains_key("properties")
}

fn close(schema: &Value, combined: bool) -> Value {
    let Value::Object(members) = schema else {
        return schema.clone();
    };
    if is_combined(members) {
        return schema.clone();
    }
    let all = |value: &Value| match value {
        Value::Object(named) => named
            .iter()
            .map(|(name, schema)| (name.clone(), close(schema, combined)))
            .collect(),
        other => other.clone(),
    };
    let list = |value: &Value| match value {
        Value::Array(schemas) => schemas
            .iter()
            .map(|schema| close(schema, combined))
            .collect(),
        other => close(other, combined),
    };
    let inner = |(key, value): (&String, &Value)| {
        let value = match key.as_str() {
            "properties" | "patternProperties" => all(value),
            "$defs" | "definitions" if !combined => all(value),
            "items" | "prefixItems" | "anyOf" | "oneOf" | "allOf" | "additionalProperties" => {
                list(value)
            }
            _ => value.clone(),
        };
        (key.clone(), value)
    };
    let mut out: Map<String, Value> = members.iter().map(inner).collect();
    let names = members
        .get("properties")
        .and_then(Value::as_object)
        .is_some_and(|names| !names.is_empty());
    if names && !KEY_KEYWORDS.iter().any(|key| members.contains_key(*key)) {
        out.insert("additionalProperties".into(), false.into());
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::closed;
    use serde_json::json;

    #[test]
    fn objects_that_name_their_keys_have_no_others() {
        let point =
            json!({ "type": "object", "properties": { "x": { "properties": { "y": {} } } } });
        let out = json!({
            "type": "object", "additionalProperties": false,
            "properties": { "x": { "properties": { "y": {} }, "additionalProperties": false } },
        });
        assert_eq!(closed(&point), out);
        let inside = closed(&json!({ "items": point, "$defs": { "a": point }, "anyOf": [point] }));
        for at in ["/items", "/$defs/a", "/anyOf/0"] {
            assert_eq!(inside.pointer(at), Some(&out), "{at}");
        }
    }

    #[test]
    fn who_asks_for_more_gets_more() {
        for schema in [
            json!({ "type": "object" }),
            json!({ "properties": {} }),
            json!({ "properties": { "x": {} }, "additionalProperties": true }),
            json!({ "properties": { "x": {} }, "patternProperties": { "^y": {} } }),
            json!(true),
        ] {
            assert_eq!(closed(&schema), schema);
        }
    }

    #[test]
    fn what_is_combined_stays_open() {
        let one = json!({ "properties": { "x": {} } });
        for schema in [
            json!({ "allOf": [one, { "properties": { "y": {} } }] }),
            json!({ "properties": { "x": {} }, "anyOf": [one] }),
            json!({ "$defs": { "a": one }, "items": { "$ref": "#/$defs/a", "properties": { "y": {} } } }),
        ] {
            assert_eq!(closed(&schema), schema);
        }
    }
}
