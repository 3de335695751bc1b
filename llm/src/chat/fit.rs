//! Adapts conversations to a template's expectations.
//!
//! Templates differ in the content of a message without text (null or an empty string), in the
//! form of a call's arguments (object or JSON string), in the place of reasoning, and in
//! accepted call identifiers. If the conversation has calls, a small sample is rendered first to
//! detect the expected form.

use serde_json::{Map, Value as Json, json};

use super::json::{self, Style};

/// Form of messages with calls that a template expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wants {
    /// Uses an empty string instead of null for a message without text.
    empty_content: bool,
    /// Passes arguments as a JSON string instead of an object.
    text_arguments: bool,
}

/// Default system message before tools: the example in the model card of Phi-4-mini.
const SYSTEM: &str = "You are a helpful assistant with some tools.";

/// Length of call identifiers in Mistral's templates, which check it.
const IDENTIFIER: usize = 9;

/// Adapts the messages to the template `source`; `render` renders messages, or
/// returns `None` on failure.
pub(super) fn fitted(
    source: &str,
    messages: &[Json],
    tools: Option<&Json>,
    render: impl Fn(&[Json]) -> Option<String>,
) -> Vec<Json> {
    let mut messages = messages.to_vec();
    if let Some(Json::Array(tools)) = tools
        && source.contains("message['tools']")
    {
        tell_in_system(&mut messages, tools);
    }
    let calls = messages.iter().any(has_calls);
    if calls {
        let wants = wants(render);
        messages
            .iter_mut()
            .filter(|message| has_calls(message))
            .for_each(|message| wants.apply(message));
        if source.contains("length != 9") {
            identify(&mut messages);
        }
    }
    for message in messages.iter_mut().filter_map(Json::as_object_mut) {
        if source.contains("message.thinking") {
            think_apart(message);
        } else if source.contains("block['thinking']") {
            think_in_blocks(message);
        }
    }
    messages
}

fn has_calls(message: &Json) -> bool {
    message["tool_calls"]
        .as_array()
        .is_some_and(|calls| !calls.is_empty())
}

/// Returns the first form whose rendering shows the call and its arguments without Python's `None`
/// or JSON within JSON. Falls back to the form of OpenAI's API.
fn wants(render: impl Fn(&[Json]) -> Option<String>) -> Wants {
    const FORMS: [Wants; 4] = [
        Wants {
            empty_content: false,
            text_arguments: false,
        },
        Wants {
            empty_content: true,
            text_arguments: false,
        },
        Wants {
            empty_content: false,
            text_arguments: true,
        },
        Wants {
            empty_content: true,
            text_arguments: true,
        },
    ];
    let shows = |wants: &&Wants| {
        let mut calling = json!({
            "role": "assistant", "content": null,
            "tool_calls": [{ "id": "abcdef123", "type": "function", "function": { "name": "name7", "arguments": { "key7": "value7" } } }],
        });
        wants.apply(&mut calling);
        let user = json!({ "role": "user", "content": "?" });
        let tool =
            json!({ "role": "tool", "tool_call_id": "abcdef123", "name": "name7", "content": "!" });
        render(&[user, calling, tool]).is_some_and(|text| {
            ["name7", "key7", "value7"]
                .iter()
                .all(|part| text.contains(part))
                && !text.contains("None")
                && !text.contains("\\\"key7")
        })
    };
    FORMS.iter().find(shows).copied().unwrap_or(FORMS[0])
}

impl Wants {
    fn apply(self, message: &mut Json) {
        if self.empty_content && message["content"].is_null() {
            message["content"] = "".into();
        }
        if !self.text_arguments {
            return;
        }
        for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
            let call = if call.get("function").is_some() {
                &mut call["function"]
            } else {
                call
            };
            if let Some(arguments @ Json::Object(_)) = call.get_mut("arguments") {
                let mut text = String::new();
                json::write(arguments, &Style::default(), 0, &mut text);
                *arguments = text.into();
            }
        }
    }
}

/// Writes the JSON of the tools' functions to the key `tools` of the system message, as
/// Phi-4-mini's template expects.
fn tell_in_system(messages: &mut Vec<Json>, tools: &[Json]) {
    if messages
        .first()
        .is_none_or(|message| message["role"] != "system")
    {
        messages.insert(0, json!({ "role": "system", "content": SYSTEM }));
    }
    let functions: Vec<Json> = tools
        .iter()
        .map(|tool| tool.get("function").unwrap_or(tool).clone())
        .collect();
    let mut text = String::new();
    json::write(&functions.into(), &Style::default(), 0, &mut text);
    messages[0]["tools"] = text.into();
}

/// Moves reasoning to the key `thinking` of gpt-oss' template, which accepts no other text in
/// a message with calls.
fn think_apart(message: &mut Map<String, Json>) {
    let Some(thought) = message
        .get("reasoning_content")
        .filter(|it| it.as_str().is_some_and(|it| !it.is_empty()))
    else {
        return;
    };
    let thought = thought.clone();
    message.insert("thinking".into(), thought);
    if message
        .get("tool_calls")
        .and_then(Json::as_array)
        .is_some_and(|calls| !calls.is_empty())
    {
        message.insert("content".into(), "".into());
    }
}

/// Converts reasoning to a content part of type `thinking`.
fn think_in_blocks(message: &mut Map<String, Json>) {
    let Some(thought) = message
        .get("reasoning_content")
        .and_then(Json::as_str)
        .filter(|it| !it.is_empty())
    else {
        return;
    };
    let mut blocks = vec![json!({ "type": "thinking", "thinking": thought })];
    match message.get("content") {
        Some(Json::String(text)) if !text.is_empty() => {
            blocks.push(json!({ "type": "text", "text": text }))
        }
        Some(Json::Array(parts)) => blocks.extend(parts.iter().cloned()),
        _ => {}
    }
    message.insert("content".into(), blocks.into());
}

/// Gives calls and results identifiers of nine letters and digits: valid ones are kept, others are
/// hashed. Results without an identifier are assigned to the preceding calls in order.
fn identify(messages: &mut [Json]) {
    let (mut count, mut open) = (0usize, Vec::new());
    for message in messages {
        if has_calls(message) {
            open.clear();
            for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
                let own = call["id"]
                    .as_str()
                    .map_or_else(|| count.to_string(), str::to_owned);
                count += 1;
                call["id"] = identifier(&own).into();
                open.push(call["id"].clone());
            }
            open.reverse();
        } else if message["role"] == "tool" {
            let next = open.pop();
            let own = message["tool_call_id"]
                .as_str()
                .map(|id| Json::from(identifier(id)));
            message["tool_call_id"] = own.or(next).unwrap_or_else(|| identifier("").into());
        }
    }
}

fn identifier(own: &str) -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    if own.len() == IDENTIFIER && own.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return own.to_owned();
    }
    // Hash function: FNV-1a.
    let mut hash = own.bytes().fold(0xCBF2_9CE4_8422_2325u64, |hash, b| {
        (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3)
    });
    let mut digit = || {
        let digit = DIGITS[(hash % 62) as usize];
        hash /= 62;
        char::from(digit)
    };
    (0..IDENTIFIER).map(|_| digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calling(id: &str) -> Json {
        json!({
            "role": "assistant", "content": null, "reasoning_content": "hm",
            "tool_calls": [{ "id": id, "function": { "name": "f", "arguments": { "x": "é" } } }],
        })
    }

    #[test]
    fn identifiers_are_nine_letters_and_digits_alike_for_calls_and_results() {
        let result =
            |id: Option<&str>| json!({ "role": "tool", "content": "r", "tool_call_id": id });
        let messages = [
            calling("call_0123"),
            result(Some("call_0123")),
            calling("abcdef123"),
            result(None),
        ];
        let fitted = fitted("{% if id|length != 9 %}", &messages, None, |_| None);
        let id = fitted[0]["tool_calls"][0]["id"].as_str().unwrap();
        assert!(
            id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()),
            "{id}"
        );
        assert_eq!(fitted[1]["tool_call_id"], id);
        assert_eq!(
            (
                &fitted[2]["tool_calls"][0]["id"],
                &fitted[3]["tool_call_id"]
            ),
            (&"abcdef123".into(), &"abcdef123".into())
        );
    }

    #[test]
    fn content_and_arguments_have_the_form_that_shows_them() {
        let with = |accepts: fn(&Json) -> Option<String>| {
            let fitted = fitted("", &[calling("1")], None, |messages| accepts(&messages[1]));
            (
                fitted[0]["content"].clone(),
                fitted[0]["tool_calls"][0]["function"]["arguments"].clone(),
            )
        };
        assert_eq!(with(|_| None), (Json::Null, json!({ "x": "é" })));
        assert_eq!(
            with(|m| m["content"]
                .as_str()
                .map(|_| m["tool_calls"][0]["function"].to_string()))
            .0,
            ""
        );
        // A template that concatenates arguments needs the JSON string.
        let adds = |m: &Json| {
            m["tool_calls"][0]["function"]["arguments"]
                .as_str()
                .map(|it| format!("name7{it}"))
        };
        assert_eq!(with(adds), (Json::Null, "{\"x\": \"é\"}".into()));
    }

    #[test]
    fn tools_are_a_part_of_the_systems_message_where_a_template_looks_for_them_there() {
        let user = json!({ "role": "user", "content": "?" });
        let tools = json!([{ "type": "function", "function": { "name": "f", "parameters": {} } }]);
        let with =
            |source: &str, messages: &[Json]| fitted(source, messages, Some(&tools), |_| None);
        let told = with("{{ message['tools'] }}", std::slice::from_ref(&user));
        assert_eq!((&told[0]["role"], &told[1]), (&"system".into(), &user));
        assert_eq!(told[0]["tools"], "[{\"name\": \"f\", \"parameters\": {}}]");
        let own = json!({ "role": "system", "content": "Be brief." });
        let told = with("{{ message['tools'] }}", &[own, user.clone()]);
        assert_eq!((told.len(), &told[0]["content"]), (2, &"Be brief.".into()));
        assert_eq!(with("{{ tools }}", std::slice::from_ref(&user)), [user]);
    }

    #[test]
    fn reasoning_stands_where_a_template_looks_for_it() {
        let apart = fitted("{{ message.thinking }}", &[calling("1")], None, |_| None);
        assert_eq!(
            (&apart[0]["thinking"], &apart[0]["content"]),
            (&"hm".into(), &"".into())
        );
        let blocks = fitted("{{ block['thinking'] }}", &[calling("1")], None, |_| None);
        assert_eq!(
            blocks[0]["content"],
            json!([{ "type": "thinking", "thinking": "hm" }])
        );
        assert_eq!(fitted("", &[calling("1")], None, |_| None)[0], calling("1"));
    }
}
