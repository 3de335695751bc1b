//! The interfaces besides OpenAI's chat: whole and streamed responses, tools, and error formats.

use super::shared;
use serde_json::{Value, json};

const JAPAN: &str = "What is the capital of Japan?";
const TOKYO: &str = "The capital of Japan is Tokyo.";

/// Returns the events of a stream with their names.
fn named_events(body: &str) -> Vec<(String, Value)> {
    let events = body.split("\n\n").filter_map(|event| {
        let (name, data) = event.strip_prefix("event: ")?.split_once("\ndata: ")?;
        Some((name.to_owned(), serde_json::from_str(data).expect("JSON")))
    });
    events.collect()
}

/// Parameters of a tool that a small model can fill in.
fn parameters() -> Value {
    json!({
        "type": "object", "required": ["city", "days"],
        "properties": { "city": { "type": "string", "enum": ["Tokyo", "Paris"] }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
    })
}

fn is_weather(arguments: &Value) -> bool {
    ["Tokyo", "Paris"].contains(&arguments["city"].as_str().unwrap_or_default())
        && (1..=9).contains(&arguments["days"].as_u64().unwrap_or(0))
        && arguments
            .as_object()
            .is_some_and(|object| object.len() == 2)
}

fn message(settings: Value) -> Value {
    let mut body = json!({
        "model": "demo", "max_tokens": 100, "temperature": 0, "messages": [{ "role": "user", "content": JAPAN }],
    });
    settings
        .as_object()
        .into_iter()
        .flatten()
        .for_each(|(key, value)| body[key] = value.clone());
    body
}

#[test]
fn messages_are_told_whole() {
    let client = shared();
    let answer = client.post("/v1/messages", &message(json!({}))).ok();
    assert_eq!(
        (&answer["type"], &answer["role"]),
        (&json!("message"), &json!("assistant"))
    );
    assert_eq!(
        answer["content"],
        json!([{ "type": "text", "text": TOKYO }])
    );
    assert_eq!(
        (&answer["stop_reason"], &answer["stop_sequence"]),
        (&json!("end_turn"), &Value::Null)
    );
    let usage = &answer["usage"];
    let prompt = usage["input_tokens"].as_u64().unwrap()
        + usage["cache_read_input_tokens"].as_u64().unwrap();
    let count = client
        .post("/v1/messages/count_tokens", &message(json!({})))
        .ok();
    assert_eq!(count["input_tokens"], prompt);
    let cut = client
        .post("/v1/messages", &message(json!({ "max_tokens": 2 })))
        .ok();
    assert_eq!(cut["stop_reason"], "max_tokens");
    let stopped = client
        .post(
            "/v1/messages",
            &message(json!({ "stop_sequences": ["never", " Japan"] })),
        )
        .ok();
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!(" Japan"))
    );
    assert_eq!(stopped["content"][0]["text"], "The capital of");
}

#[test]
fn messages_are_told_as_they_come() {
    let answer = shared().post("/v1/messages", &message(json!({ "stream": true })));
    let events = named_events(&answer.body);
    assert!(
        events.iter().all(|(name, data)| data["type"] == *name),
        "{events:?}"
    );
    let mut names: Vec<&str> = events.iter().map(|event| event.0.as_str()).collect();
    names.dedup();
    assert_eq!(
        names,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    let text: String = events
        .iter()
        .filter_map(|(_, data)| data["delta"]["text"].as_str())
        .collect();
    assert_eq!(text, TOKYO);
    let end = &events[events.len() - 2].1;
    assert_eq!(end["delta"]["stop_reason"], "end_turn");
    assert!(end["usage"]["output_tokens"].as_u64().unwrap() > 3);
}

#[test]
fn messages_call_tools_and_take_results() {
    let client = shared();
    let tools = json!([{ "name": "get_weather", "description": "The weather.", "input_schema": parameters() }]);
    let asked = json!({ "tools": tools, "tool_choice": { "type": "any", "disable_parallel_tool_use": true }, "temperature": 1 });
    let answer = client.post("/v1/messages", &message(asked.clone())).ok();
    assert_eq!(answer["stop_reason"], "tool_use");
    let call = &answer["content"][0];
    assert_eq!(
        (&call["type"], &call["name"]),
        (&json!("tool_use"), &json!("get_weather"))
    );
    assert!(is_weather(&call["input"]), "{call}");
    let mut streaming = asked;
    streaming["stream"] = true.into();
    let events = named_events(&client.post("/v1/messages", &message(streaming)).body);
    let start = &events
        .iter()
        .find(|(name, _)| name == "content_block_start")
        .expect("a block")
        .1;
    assert_eq!(start["content_block"]["name"], "get_weather");
    let arguments: String = events
        .iter()
        .filter_map(|(_, data)| data["delta"]["partial_json"].as_str())
        .collect();
    assert!(
        is_weather(&serde_json::from_str(&arguments).expect("JSON")),
        "{arguments}"
    );
    let conversation = json!([
        { "role": "user", "content": [{ "type": "text", "text": JAPAN, "cache_control": { "type": "ephemeral" } }] },
        { "role": "assistant", "content": [{ "type": "thinking", "thinking": "Hm.", "signature": "" }, call] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": call["id"], "content": "rain", "is_error": false }] },
    ]);
    client
        .post(
            "/v1/messages",
            &message(json!({ "messages": conversation, "tools": tools, "max_tokens": 4 })),
        )
        .ok();
}

#[test]
fn messages_are_refused_in_their_own_shape() {
    let client = shared();
    let refused = |body: Value, status: u16| {
        let answer = client.post("/v1/messages", &body);
        assert_eq!(answer.status, status, "{answer:?}");
        let error = answer.json();
        assert_eq!(error["type"], "error");
        (
            error["error"]["type"].as_str().unwrap().to_owned(),
            error["error"]["message"].as_str().unwrap().to_owned(),
        )
    };
    for (settings, field) in [
        (json!({ "max_tokens": null }), "max_tokens"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "messages": [] }), "messages"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image", "source": {} }] }] }),
            "messages[0].content[0].type",
        ),
        (
            json!({ "tools": [{ "name": "x y", "input_schema": {} }] }),
            "tools[0].name",
        ),
        (
            json!({ "tool_choice": { "type": "tool", "name": "x" } }),
            "tool_choice",
        ),
        (json!({ "stop_sequences": vec!["x"; 99] }), "stop_sequences"),
        (json!({ "max_token": 4 }), "max_token"),
    ] {
        let (kind, message) = refused(message(settings.clone()), 400);
        assert!(
            kind == "invalid_request_error" && message.contains(field),
            "{settings}: {message}"
        );
    }
    assert_eq!(
        refused(message(json!({ "model": "claude-x" })), 404).0,
        "not_found_error"
    );
    assert_eq!(
        client.get("/v1/messages").json()["error"]["type"],
        "invalid_request_error"
    );
}

fn response(settings: Value) -> Value {
    let mut body = json!({ "model": "demo", "temperature": 0, "input": JAPAN });
    settings
        .as_object()
        .into_iter()
        .flatten()
        .for_each(|(key, value)| body[key] = value.clone());
    body
}

#[test]
fn responses_are_told_whole_and_as_they_come() {
    let client = shared();
    let answer = client.post("/v1/responses", &response(json!({}))).ok();
    assert_eq!(
        (&answer["object"], &answer["status"]),
        (&json!("response"), &json!("completed"))
    );
    let item = &answer["output"][0];
    assert_eq!(
        (&item["type"], &item["content"][0]["text"]),
        (&json!("message"), &json!(TOKYO))
    );
    let cut = client
        .post(
            "/v1/responses",
            &response(json!({ "max_output_tokens": 2 })),
        )
        .ok();
    assert_eq!(
        (&cut["status"], &cut["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    let events = named_events(
        &client
            .post("/v1/responses", &response(json!({ "stream": true })))
            .body,
    );
    for (number, (name, data)) in events.iter().enumerate() {
        assert_eq!(
            (&data["type"], &data["sequence_number"]),
            (&json!(name), &json!(number))
        );
    }
    let mut names: Vec<&str> = events
        .iter()
        .map(|event| event.0.trim_start_matches("response."))
        .collect();
    names.dedup();
    assert_eq!(
        names,
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ]
    );
    let text: String = events
        .iter()
        .filter_map(|(_, data)| data["delta"].as_str())
        .collect();
    assert_eq!(text, TOKYO);
    let last = &events[events.len() - 1].1["response"];
    assert_eq!(
        (&last["output"][0]["content"], &last["usage"]),
        (&item["content"], &{
            let mut usage = answer["usage"].clone();
            usage["input_tokens_details"] = last["usage"]["input_tokens_details"].clone();
            usage
        })
    );
}

#[test]
fn responses_call_tools_and_take_results() {
    let client = shared();
    let tools = json!([{ "type": "function", "name": "get_weather", "parameters": parameters(), "strict": true }]);
    let asked = json!({ "tools": tools, "tool_choice": "required", "parallel_tool_calls": false, "temperature": 1 });
    let answer = client.post("/v1/responses", &response(asked.clone())).ok();
    let call = &answer["output"][0];
    assert_eq!(
        (&call["type"], &call["name"]),
        (&json!("function_call"), &json!("get_weather"))
    );
    assert!(
        is_weather(&serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap()),
        "{call}"
    );
    let mut streaming = asked;
    streaming["stream"] = true.into();
    let events = named_events(&client.post("/v1/responses", &response(streaming)).body);
    let told = |name: &'static str| {
        events
            .iter()
            .filter(move |event| event.0 == name)
            .map(|event| &event.1)
    };
    let arguments: String = told("response.function_call_arguments.delta")
        .filter_map(|data| data["delta"].as_str())
        .collect();
    let done = told("response.function_call_arguments.done")
        .next()
        .expect("an end");
    assert_eq!(done["arguments"], arguments);
    assert!(is_weather(&serde_json::from_str(&arguments).unwrap()));
    let input = json!([
        { "role": "user", "content": [{ "type": "input_text", "text": JAPAN }] }, call,
        { "type": "function_call_output", "call_id": call["call_id"], "output": "rain" },
    ]);
    let after = client
        .post(
            "/v1/responses",
            &response(json!({ "input": input, "max_output_tokens": 3 })),
        )
        .ok();
    assert_eq!(after["output"][0]["type"], "message");
    let schema = json!({ "type": "json_schema", "name": "x", "schema": parameters() });
    let form = client
        .post(
            "/v1/responses",
            &response(json!({ "text": { "format": schema } })),
        )
        .ok();
    assert!(is_weather(
        &serde_json::from_str(form["output"][0]["content"][0]["text"].as_str().unwrap()).unwrap()
    ));
}

#[test]
fn responses_refuse_what_is_kept_nowhere() {
    let client = shared();
    for (settings, field) in [
        (
            json!({ "previous_response_id": "resp_1" }),
            "previous_response_id",
        ),
        (json!({ "conversation": "conv_1" }), "conversation"),
        (json!({ "background": true }), "background"),
        (json!({ "input": [] }), "input"),
        (
            json!({ "input": [{ "type": "item_reference", "id": "x" }] }),
            "input[0].type",
        ),
        (
            json!({ "input": [{ "role": "user", "content": [{ "type": "input_image" }] }] }),
            "input[0].content[0].type",
        ),
        (json!({ "max_output_tokens": 0 }), "max_output_tokens"),
    ] {
        let error = client
            .post("/v1/responses", &response(settings.clone()))
            .refused(400);
        assert_eq!(error["param"], field, "{settings}");
    }
}

/// Returns the JSON lines of a stream.
fn lines(body: &str) -> Vec<Value> {
    body.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

#[test]
fn ollama_chats_and_generates() {
    let client = shared();
    let options = json!({ "temperature": 0 });
    let messages = json!([{ "role": "user", "content": JAPAN }]);
    let chat = json!({ "model": "demo:latest", "messages": messages, "options": options });
    let told = lines(&client.post("/api/chat", &chat).body);
    let text: String = told
        .iter()
        .filter_map(|line| line["message"]["content"].as_str())
        .collect();
    let last = &told[told.len() - 1];
    assert_eq!(
        (text.as_str(), &last["done"], &last["done_reason"]),
        (TOKYO, &json!(true), &json!("stop"))
    );
    assert!(
        last["eval_count"].as_u64().unwrap() > 3 && last["prompt_eval_count"].as_u64().unwrap() > 5
    );
    let mut whole = chat.clone();
    whole["stream"] = false.into();
    assert_eq!(
        client.post("/api/chat", &whole).ok()["message"]["content"],
        TOKYO
    );
    let prompt = json!({ "model": "demo", "prompt": JAPAN, "options": options, "stream": false });
    assert_eq!(
        client.post("/api/generate", &prompt).ok()["response"],
        TOKYO
    );
    let raw = json!({
        "model": "demo", "prompt": "Once upon a time", "raw": true, "stream": false, "options": { "temperature": 0, "num_predict": 8 },
    });
    let answer = client.post("/api/generate", &raw).ok();
    assert!(
        answer["response"]
            .as_str()
            .unwrap()
            .starts_with(" there was"),
        "{answer}"
    );
    assert_eq!(
        (&answer["done_reason"], &answer["eval_count"]),
        (&json!("length"), &json!(8))
    );
    assert_eq!(
        client
            .post("/api/generate", &json!({ "model": "demo" }))
            .ok()["done_reason"],
        "load"
    );
    let mut form = whole;
    form["format"] = parameters();
    let answer = client.post("/api/chat", &form).ok();
    assert!(
        is_weather(&serde_json::from_str(answer["message"]["content"].as_str().unwrap()).unwrap()),
        "{answer}"
    );
}

#[test]
fn ollama_tells_what_there_is() {
    let client = shared();
    assert_eq!(client.get("/api/tags").ok()["models"][0]["model"], "demo");
    assert_eq!(client.get("/api/ps").ok()["models"][0]["name"], "demo");
    assert!(client.get("/api/version").ok()["version"].is_string());
    let shown = client.post("/api/show", &json!({ "model": "demo" })).ok();
    assert_eq!(
        shown["model_info"]["deepseek2.context_length"].as_u64(),
        Some(2048)
    );
    assert!(
        shown["capabilities"]
            .as_array()
            .unwrap()
            .contains(&json!("completion"))
    );
    for (path, body, status) in [
        (
            "/api/chat",
            json!({ "model": "llama3", "messages": [{ "role": "user", "content": "x" }] }),
            404,
        ),
        (
            "/api/chat",
            json!({ "model": "demo", "messages": [{ "role": "user", "content": "x", "images": ["AA=="] }] }),
            400,
        ),
        (
            "/api/generate",
            json!({ "model": "demo", "prompt": "x", "stream": false, "options": { "num_ctx": 999_999, "num_predict": 1 } }),
            200,
        ),
        (
            "/api/generate",
            json!({ "model": "demo", "prompt": "x", "template": "{{ .Prompt }}" }),
            400,
        ),
        (
            "/api/generate",
            json!({ "model": "demo", "prompt": "x", "stream": false, "options": { "mirostat": 2, "num_predict": 1 } }),
            200,
        ),
        (
            "/api/generate",
            json!({ "model": "demo", "prompt": "x", "options": { "temprature": 2 } }),
            400,
        ),
        (
            "/api/embed",
            json!({ "model": "demo", "input": "word ".repeat(5000) }),
            200,
        ),
        ("/api/embed", json!({ "model": "demo", "input": "" }), 200),
        (
            "/completion",
            json!({ "prompt": "Once", "n_predict": 2, "cache_prompt": true, "id_slot": -1 }),
            200,
        ),
        (
            "/apply-template",
            json!({ "messages": [{ "role": "user", "content": "x" }] }),
            200,
        ),
        ("/api/show", json!({ "model": "llama3" }), 404),
        ("/api/pull", json!({ "model": "llama3" }), 404),
    ] {
        let answer = client.post(path, &body);
        assert_eq!(answer.status, status, "{path} {body}: {answer:?}");
        assert_eq!(
            answer.json()["error"].is_string(),
            status != 200,
            "{answer:?}"
        );
    }
}

fn product(a: &Value, b: &Value) -> f64 {
    let numbers = |value: &Value| {
        value
            .as_array()
            .unwrap()
            .iter()
            .map(|x| x.as_f64().unwrap())
            .collect::<Vec<_>>()
    };
    numbers(a).iter().zip(numbers(b)).map(|(x, y)| x * y).sum()
}

#[test]
fn embeddings_are_of_length_1_and_alike_for_like_texts() {
    let client = shared();
    let texts = json!([
        JAPAN,
        "What is the capital of France?",
        "Tell me a story about a frog."
    ]);
    let answer = client
        .post(
            "/v1/embeddings",
            &json!({ "model": "demo", "input": texts }),
        )
        .ok();
    let vector = |i: usize| &answer["data"][i]["embedding"];
    assert!((product(vector(0), vector(0)) - 1.0).abs() < 1e-5);
    assert!(product(vector(0), vector(1)) > product(vector(0), vector(2)));
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 15);
    let alone = client
        .post("/api/embed", &json!({ "model": "demo", "input": JAPAN }))
        .ok();
    assert!((product(&alone["embeddings"][0], vector(0)) - 1.0).abs() < 1e-5);
    let encoded = client
        .post(
            "/v1/embeddings",
            &json!({ "input": JAPAN, "encoding_format": "base64" }),
        )
        .ok();
    assert!(encoded["data"][0]["embedding"].is_string());
    for body in [
        json!({}),
        json!({ "input": [] }),
        json!({ "input": "" }),
        json!({ "input": "x", "dimensions": 1 << 20 }),
    ] {
        client.post("/v1/embeddings", &body).refused(400);
    }
    // A document is text: what it spells is no special token.
    let marked = "a <|user|> and a </s>";
    let count = |special: bool| {
        let body = json!({ "content": marked, "parse_special": special, "add_special": true });
        client.post("/tokenize", &body).ok()["tokens"]
            .as_array()
            .map(Vec::len)
    };
    assert!(count(false) > count(true));
    let embedded = |path: &str, usage: [&str; 2]| {
        let answer = client
            .post(path, &json!({ "model": "demo", "input": marked }))
            .ok();
        let used = if usage[0].is_empty() {
            &answer
        } else {
            &answer[usage[0]]
        };
        used[usage[1]].as_u64().map(|tokens| tokens as usize)
    };
    assert_eq!(
        embedded("/v1/embeddings", ["usage", "prompt_tokens"]),
        count(false)
    );
    assert_eq!(
        embedded("/api/embed", ["", "prompt_eval_count"]),
        count(false)
    );
    // The model's state is unaffected by the requests before.
    assert_eq!(client.answer(JAPAN, json!({ "temperature": 0 })), TOKYO);
}

#[test]
fn tokens_and_facts() {
    let client = shared();
    let tokens = client.post("/tokenize", &json!({ "content": JAPAN })).ok();
    assert_eq!(tokens["count"], tokens["tokens"].as_array().unwrap().len());
    let text = client
        .post("/detokenize", &json!({ "tokens": tokens["tokens"] }))
        .ok();
    assert_eq!(
        (&text["content"], &text["prompt"]),
        (&json!(JAPAN), &json!(JAPAN))
    );
    let pieces = client
        .post(
            "/tokenize",
            &json!({ "prompt": JAPAN, "with_pieces": true }),
        )
        .ok();
    let joined: String = pieces["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|t| t["piece"].as_str())
        .collect();
    assert_eq!(joined, JAPAN);
    client
        .post("/detokenize", &json!({ "tokens": [99_999] }))
        .refused(400);
    assert_eq!(client.get("/props").ok()["n_ctx"], 2048);
    assert!(client.get("/tokenizer_info").ok()["chat_template"].is_string());
}
