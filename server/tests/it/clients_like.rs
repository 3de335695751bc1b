//! Requests as known client programs send them, after their public sources: all are answered, and
//! what has no effect is named.

use super::shared;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const HI: &str = "Hi";

/// Sends a request that must be answered; returns the body and the names of ignored fields.
#[track_caller]
fn answered(path: &str, body: &Value) -> (String, String) {
    let response = shared().post(path, body);
    assert_eq!(response.status, 200, "{path} {body}: {response:?}");
    let mut lines = response.head.lines();
    let names = lines.find_map(|line| line.strip_prefix("x-gristmill-ignored: "));
    let names = names.unwrap_or_default().to_owned();
    (response.body, names)
}

fn user() -> Value {
    json!({ "role": "user", "content": HI })
}

fn schema() -> Value {
    json!({ "type": "object", "properties": { "city": { "enum": ["Tokyo"] } }, "required": ["city"] })
}

/// Items of calls that other models made, each with whether it is left out.
fn foreign_items() -> Vec<(Value, bool)> {
    let exec = json!({ "type": "exec", "command": ["ls"], "env": {} });
    let search = json!({ "type": "search", "query": "x" });
    let shot = json!({ "type": "computer_screenshot", "image_url": "x" });
    vec![
        (
            json!({ "type": "web_search_call", "id": "w", "action": search }),
            true,
        ),
        (
            json!({ "type": "file_search_call", "id": "f", "queries": ["x"], "results": null }),
            true,
        ),
        (
            json!({ "type": "image_generation_call", "id": "i", "result": "aGk=" }),
            true,
        ),
        (
            json!({ "type": "mcp_list_tools", "id": "m", "server_label": "y", "tools": [] }),
            true,
        ),
        (
            json!({ "type": "compaction", "encrypted_content": "x" }),
            true,
        ),
        (
            json!({ "type": "computer_call", "call_id": "c", "action": { "type": "wait" } }),
            false,
        ),
        (
            json!({ "type": "computer_call_output", "call_id": "c", "output": shot }),
            true,
        ),
        (
            json!({ "type": "mcp_call", "id": "m", "name": "x", "arguments": "{}", "output": "ok" }),
            false,
        ),
        (
            json!({ "type": "code_interpreter_call", "id": "c", "code": "1", "outputs": [{ "type": "logs", "logs": "1" }] }),
            false,
        ),
        (
            json!({ "type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "***" }),
            false,
        ),
        (
            json!({ "type": "custom_tool_call_output", "call_id": "c", "output": [{ "type": "input_text", "text": "z" }] }),
            false,
        ),
        (
            json!({ "type": "local_shell_call", "call_id": "c", "action": exec }),
            false,
        ),
        (
            json!({ "type": "local_shell_call_output", "id": "c", "output": "x" }),
            false,
        ),
        (
            json!({ "type": "reasoning", "id": "r", "summary": [], "content": null, "encrypted_content": "x" }),
            false,
        ),
    ]
}

#[test]
fn items_of_other_models_are_spelt_out_or_left_out() {
    for (item, is_left_out) in foreign_items() {
        let kind = item["type"].as_str().unwrap().to_owned();
        let body = json!({ "input": [user(), item, user()], "max_output_tokens": 1 });
        let (_, names) = answered("/v1/responses", &body);
        assert_eq!(!names.is_empty(), is_left_out, "{kind}: {names}");
        assert!(
            names.is_empty() || names == format!("input.{kind}") || kind == "computer_call_output"
        );
    }
}

#[test]
fn codex_is_answered() {
    let function =
        json!({ "type": "function", "name": "shell", "strict": false, "parameters": schema() });
    let custom = json!({ "type": "custom", "name": "apply_patch", "format": { "type": "grammar", "syntax": "lark", "definition": "start: \"a\"" } });
    let tools = json!([function, custom, { "type": "web_search" }, { "type": "local_shell" }]);
    let text = |text: &str| json!([{ "type": "input_text", "text": text }]);
    let mut input = vec![
        json!({ "type": "message", "role": "developer", "content": text("Be short.") }),
        json!({ "type": "message", "role": "user", "content": text(HI) }),
    ];
    input.extend(foreign_items().into_iter().map(|(item, _)| item));
    input.push(json!({ "type": "message", "role": "user", "content": text(HI) }));
    let body = json!({
        "model": "demo", "instructions": "You are Codex.", "input": input, "tools": tools, "tool_choice": "auto",
        "parallel_tool_calls": false, "reasoning": { "effort": "medium", "summary": "auto" }, "store": false,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "text": { "verbosity": "low" },
        "metadata": { "a": "b" }, "max_output_tokens": 2, "client_metadata": { "x": "y" },
    });
    let (answer, names) = answered("/v1/responses", &body);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    for name in [
        "tools",
        "metadata",
        "reasoning",
        "parallel_tool_calls",
        "tool_choice",
    ] {
        assert_eq!(answer[name], body[name], "{name}");
    }
    let format = json!({ "format": { "type": "text" }, "verbosity": "low" });
    assert_eq!(answer["text"], format);
    for name in [
        "tools.custom",
        "tools.web_search",
        "tools.local_shell",
        "input.web_search_call",
    ] {
        assert!(
            names.split(", ").any(|other| other == name),
            "{name}: {names}"
        );
    }
}

#[test]
fn claude_code_is_answered() {
    let marked = |text: &str| json!({ "type": "text", "text": text, "cache_control": { "type": "ephemeral" } });
    let call = |id: &str| json!({ "type": "tool_use", "id": id, "name": "Read", "input": { "city": "Tokyo" } });
    let image = json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "aGk=" } });
    let document = |source: Value| json!({ "type": "document", "source": source, "title": "T", "citations": { "enabled": true } });
    let plain = json!({ "type": "text", "media_type": "text/plain", "data": "Hello." });
    let found = json!({ "type": "search_result", "source": "http://x", "title": "T", "content": [{ "type": "text", "text": "b" }] });
    let messages = json!([
        { "role": "user", "content": [marked(HI), document(plain), found] },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "Hm.", "signature": "s" }, { "type": "redacted_thinking", "data": "x" },
            { "type": "server_tool_use", "id": "s", "name": "web_search", "input": { "query": "x" } },
            { "type": "web_search_tool_result", "tool_use_id": "s", "content": [{ "type": "web_search_result", "url": "u" }] },
            { "type": "text", "text": "Well." }, call("a"), call("b"),
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "a", "content": [image], "is_error": false },
            { "type": "tool_result", "tool_use_id": "b", "content": [{ "type": "text", "text": "no" }], "is_error": true },
            { "type": "text", "text": "Go on." },
        ] },
    ]);
    let tools = json!([
        { "name": "Read", "input_schema": schema(), "cache_control": { "type": "ephemeral" } },
        { "type": "web_search_20250305", "name": "web_search", "max_uses": 5 },
    ]);
    let body = json!({
        "model": "demo", "max_tokens": 2, "system": [marked("You are Claude Code."), marked("Be short.")],
        "messages": messages, "tools": tools, "tool_choice": { "type": "auto" }, "metadata": { "user_id": "x" },
        "thinking": { "type": "enabled", "budget_tokens": 1024 }, "betas": ["a"], "context_management": { "edits": [] },
        "temperature": 1, "stop_sequences": null, "top_k": null,
    });
    let (_, names) = answered("/v1/messages?beta=true", &body);
    assert_eq!(names, "messages.image, tools.web_search_20250305");
    let (counted, names) = answered("/v1/messages/count_tokens?beta=true", &body);
    assert!(counted.contains("input_tokens") && names.contains("messages.image"));
    let refused =
        document(json!({ "type": "base64", "media_type": "application/pdf", "data": "aGk=" }));
    let refused =
        json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": [refused] }] });
    assert_eq!(shared().post("/v1/messages", &refused).status, 400);
}

#[test]
fn open_webui_is_answered() {
    let body = json!({
        "model": "demo", "messages": [user()], "stream": false, "max_tokens": 1, "params": {}, "session_id": "s",
        "features": { "web_search": false }, "variables": { "{{USER_NAME}}": "x" }, "chat_id": "c",
        "background_tasks": { "title_generation": true }, "metadata": { "task": "title_generation" }, "files": [],
    });
    let (_, names) = answered(CHAT, &body);
    assert!(
        names.contains("features") && !names.contains("metadata"),
        "{names}"
    );
    for keep_alive in [
        json!("5m"),
        json!("300"),
        json!(-1),
        json!("-1"),
        json!(""),
        json!(null),
    ] {
        let body = json!({
            "model": "demo:latest", "messages": [user()], "stream": "false", "options": { "num_predict": 1, "temperature": "0.5" },
            "format": "", "template": null, "think": null, "keep_alive": keep_alive, "tools": [{ "type": "web_search" }],
        });
        assert_eq!(answered("/api/chat", &body).1, "tools.web_search");
    }
    answered(
        "/api/chat",
        &json!({ "model": "demo", "messages": [user()], "options": null, "stream": false }),
    );
    answered("/api/show", &json!({ "model": "demo", "verbose": true }));
}

#[test]
fn sillytavern_is_answered() {
    let body = json!({
        "model": "demo", "prompt": "Once", "max_tokens": 1, "n_predict": 1, "temperature": 3, "top_k": 40, "top_p": 0.95,
        "typical_p": 0.9, "top_a": 0.1, "tfs": 0.95, "min_p": 0.05, "repetition_penalty": 1.1, "rep_pen": 1.1, "seed": -1,
        "mirostat_mode": 2, "mirostat": 2, "mirostat_tau": 5, "dynatemp_range": 0.5, "smoothing_factor": 0.2,
        "dry_multiplier": 0.8, "dry_sequence_breakers": ["\n"], "xtc_threshold": 0.1, "xtc_probability": 0.5,
        "sampler_order": [6, 0, 1], "samplers": ["dry"], "logit_bias": [[5, 1.5], ["a", false]], "grammar": "",
        "json_schema": null, "stop": ["\nYou:", "", null], "banned_strings": [], "skip_special_tokens": true,
        "add_bos_token": true, "truncation_length": 2048, "ban_eos_token": false, "ignore_eos": false, "stream": false,
    });
    for path in ["/v1/completions", "/completion"] {
        let (_, names) = answered(path, &body);
        for name in [
            "top_a",
            "tfs",
            "mirostat_mode",
            "dry_multiplier",
            "xtc_threshold",
            "sampler_order",
        ] {
            assert!(
                names.split(", ").any(|other| other == name),
                "{name}: {names}"
            );
        }
    }
    for prompt in [
        json!(["Once", 5, " upon"]),
        json!({ "prompt_string": "Once" }),
        json!([5, 6]),
    ] {
        answered("/completion", &json!({ "prompt": prompt, "n_predict": 1 }));
    }
}

#[test]
fn older_clients_call_functions() {
    let weather = json!({ "name": "weather", "parameters": schema() });
    let call = json!({ "name": "weather", "arguments": "{\"city\":\"Tokyo\"}" });
    let body = json!({
        "messages": [
            user(), { "role": "assistant", "content": null, "function_call": call },
            { "role": "function", "name": "weather", "content": "rain" }, user(),
        ],
        "functions": [weather], "function_call": { "name": "weather" }, "max_tokens": 90, "seed": 1,
    });
    let answer = shared().post(CHAT, &body).ok();
    let choice = &answer["choices"][0];
    let told = &choice["message"]["function_call"];
    assert_eq!(
        (&told["name"], &choice["finish_reason"]),
        (&json!("weather"), &json!("function_call"))
    );
    assert_eq!(
        told["arguments"]
            .as_str()
            .map(|text| text.contains("Tokyo")),
        Some(true)
    );
    let mut body = body;
    body["stream"] = true.into();
    let events = shared().post(CHAT, &body).events();
    let parts = events
        .iter()
        .map(|event| &event["choices"][0]["delta"]["function_call"]);
    let text = |name: &str| -> String {
        parts
            .clone()
            .filter_map(|part| part[name].as_str())
            .collect()
    };
    assert_eq!(
        (text("name"), text("arguments")),
        (
            "weather".into(),
            told["arguments"].as_str().unwrap().to_owned()
        )
    );
}

#[test]
fn messages_are_taken_as_clients_write_them() {
    let custom = json!({ "id": "a", "type": "custom", "custom": { "name": "x", "input": "y" } });
    for messages in [
        json!([{ "role": "developer", "content": HI }, { "role": "User", "content": [HI] }]),
        json!([{ "role": "user", "content": null }, { "role": "model", "content": HI }, user()]),
        json!([{ "role": "user", "content": [{ "type": "input_text", "text": HI }, { "type": "text", "text": null }] }]),
        json!([user(), { "role": "assistant", "content": [{ "type": "thinking", "thinking": "Hm." }, { "type": "output_text", "text": HI }] }, user()]),
        json!([user(), { "role": "assistant", "tool_calls": [custom] }, { "role": "tool", "tool_call_id": "a", "content": ["ok"] }]),
        json!([user(), { "role": "assistant", "content": [{ "type": "tool_use", "id": "a", "name": "x", "input": {} }], "tool_calls": [custom] }, user()]),
    ] {
        answered(CHAT, &json!({ "messages": messages, "max_tokens": 1 }));
    }
    for settings in [
        json!({ "reasoning_effort": "HIGH" }),
        json!({ "reasoning_effort": "auto" }),
        json!({ "temperature": "0.5", "max_tokens": "1", "stream": "false", "seed": "7" }),
        json!({ "response_format": {} }),
        json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": "{\"enum\":[1]}" } } }),
        json!({ "tools": [{ "type": "function", "function": { "name": "a", "parameters": "{\"type\":\"object\"}" } }] }),
        json!({ "tools": [{ "name": "a", "input_schema": schema() }], "tool_choice": { "type": "custom", "name": "x" } }),
    ] {
        let mut body = json!({ "messages": [user()], "max_tokens": 1 });
        let fields = settings.as_object().into_iter().flatten();
        fields.for_each(|(name, value)| body[name] = value.clone());
        answered(CHAT, &body);
    }
}

/// Converters of conversations leave Anthropic's calls in the content.
#[test]
fn calls_may_be_parts_of_the_content() {
    let part =
        json!({ "type": "tool_use", "id": "a", "name": "weather", "input": { "city": "Rome" } });
    let function = json!({ "name": "weather", "arguments": "{\"city\": \"Rome\"}" });
    let call = json!({ "id": "a", "type": "function", "function": function });
    let prompt = |calling: Value| {
        let result = json!({ "role": "tool", "tool_call_id": "a", "content": "warm" });
        let body = json!({ "messages": [user(), calling, result] });
        let told = answered("/apply-template", &body).0;
        serde_json::from_str::<Value>(&told).unwrap()["prompt"].take()
    };
    let text = json!({ "type": "text", "text": "Hm." });
    let plain = prompt(json!({ "role": "assistant", "content": "Hm.", "tool_calls": [call] }));
    assert!(plain.as_str().unwrap().contains("Rome"), "{plain}");
    for calling in [
        json!({ "role": "assistant", "content": [text, part] }),
        json!({ "role": "assistant", "content": [text, part], "tool_calls": [call] }),
    ] {
        assert_eq!(prompt(calling), plain);
    }
    let body = json!({ "messages": [{ "role": "user", "content": [part] }] });
    shared().post(CHAT, &body).refused(400);
}

/// vLLM's clients count the tokens of a conversation.
#[test]
fn conversations_are_tokenized() {
    let body = json!({ "messages": [user()] });
    let told = |path| serde_json::from_str::<Value>(&answered(path, &body).0).unwrap();
    let (tokens, prompt) = (told("/tokenize"), told("/apply-template"));
    assert_eq!(tokens["count"], prompt["n_tokens"]);
    let text = shared()
        .post("/detokenize", &json!({ "tokens": tokens["tokens"] }))
        .ok();
    assert_eq!(text["content"], prompt["prompt"]);
}

#[test]
fn the_last_of_equal_keys_counts() {
    let send = |path: &str, body: &str| {
        let response = shared().post_bytes(path, "application/json", body.as_bytes());
        assert_eq!(response.status, 200, "{body}: {response:?}");
        response.json()
    };
    let body = r#"{"messages":[{"role":"king","role":"user","content":"a"}],"max_tokens":9,"max_tokens":1}"#;
    assert_eq!(send(CHAT, body)["usage"]["completion_tokens"], 1);
    let body = r#"{"max_tokens":9,"max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"a","text":"b"}]}]}"#;
    assert_eq!(send("/v1/messages", body)["usage"]["output_tokens"], 1);
}
