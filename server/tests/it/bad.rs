//! Malformed requests: refused with a reason.

use super::client::{Response, asking};
use super::{shared, start};
use gristmill_server::Config;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";

#[test]
fn bodies_that_are_no_requests() {
    let client = shared();
    let json = |body: &[u8]| {
        client
            .post_bytes(CHAT, "application/json", body)
            .refused(400)
    };
    for body in [
        "",
        "{",
        "null",
        "[]",
        "7",
        "\"text\"",
        "{\"messages\":[]} more",
        "{\"messages\": [}",
        "\u{feff}{}",
    ] {
        json(body.as_bytes());
    }
    json(b"\xff\xfe{}");
    json("[".repeat(100_000).as_bytes());
    json(format!("{{\"messages\":{}", "[".repeat(10_000)).as_bytes());
    assert!(
        json(b"{}")["message"]
            .as_str()
            .unwrap()
            .contains("messages")
    );
    // A type other than JSON is refused from pages only.
    client.post_bytes(CHAT, "text/plain", b"{}").refused(400);
    client
        .post_bytes(CHAT, "application/x-www-form-urlencoded", b"messages=1")
        .refused(400);
    client.get(CHAT).refused(405);
    client.get("/v2/chat").refused(404);
    client.get("/v1/models/other").refused(404);
    client
        .post_bytes("/v1/models/%ff", "application/json", b"{}")
        .refused(405);
    assert!((400..500).contains(&client.get("/v1/models/%ff%fe").status));
}

#[test]
fn fields_that_make_no_sense_are_named() {
    let client = shared();
    for (settings, param) in [
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "temperature": -1 }), "temperature"),
        (json!({ "temperature": 101 }), "temperature"),
        (json!({ "top_p": 1.5 }), "top_p"),
        (json!({ "top_k": -2 }), "top_k"),
        (json!({ "top_k": 1.5 }), "top_k"),
        (json!({ "min_p": -0.1 }), "min_p"),
        (json!({ "frequency_penalty": 3 }), "frequency_penalty"),
        (json!({ "presence_penalty": [] }), "presence_penalty"),
        (json!({ "repetition_penalty": 0 }), "repetition_penalty"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "max_tokens": -5 }), "max_tokens"),
        (json!({ "max_tokens": 1.5 }), "max_tokens"),
        (
            json!({ "max_completion_tokens": 0 }),
            "max_completion_tokens",
        ),
        (json!({ "n": 0 }), "n"),
        (json!({ "n": 1000 }), "n"),
        (json!({ "seed": "one" }), "seed"),
        (json!({ "seed": 1e30 }), "seed"),
        (json!({ "stop": 7 }), "stop"),
        (json!({ "stop": vec!["x"; 100] }), "stop"),
        (json!({ "stream": "yes" }), "stream"),
        (
            json!({ "stream_options": { "include_usage": true } }),
            "stream_options",
        ),
        (json!({ "logprobs": 5 }), "logprobs"),
        (json!({ "top_logprobs": 5 }), "top_logprobs"),
        (
            json!({ "logprobs": true, "top_logprobs": 21 }),
            "top_logprobs",
        ),
        (json!({ "logit_bias": { "x": 1 } }), "logit_bias"),
        (json!({ "logit_bias": { "5": 1000 } }), "logit_bias"),
        (json!({ "model": 7 }), "model"),
        (json!({ "messages": "hello" }), "messages"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": [7] }), "messages[0]"),
        (
            json!({ "messages": [{ "role": "king", "content": "x" }] }),
            "messages[0].role",
        ),
        (
            json!({ "messages": [{ "role": "user" }] }),
            "messages[0].content",
        ),
        (
            json!({ "messages": [{ "role": "user", "content": 7 }] }),
            "messages[0].content",
        ),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
            "messages[0].content[0].type",
        ),
        (json!({ "tools": 7 }), "tools"),
        (json!({ "response_format": "json" }), "response_format"),
        (
            json!({ "response_format": ["json_object", null] }),
            "response_format",
        ),
        (
            json!({ "messages": [["user", "Hi", null, null, null, null]] }),
            "messages[0]",
        ),
        (
            json!({ "messages": [{ "role": "assistant", "tool_calls": [["a", ["b", "{}"]]] }] }),
            "messages[0].tool_calls[0]",
        ),
        (
            json!({ "tools": [["function", ["a", null, null]]] }),
            "tools[0]",
        ),
        (
            json!({ "stream": true, "stream_options": [true] }),
            "stream_options",
        ),
        (
            json!({ "chat_template_kwargs": [true] }),
            "chat_template_kwargs",
        ),
        (
            json!({ "chat_template_kwargs": { "foo": "x".repeat(1 << 17) } }),
            "chat_template_kwargs",
        ),
        (json!({ "reasoning_effort": "banana" }), "reasoning_effort"),
        (json!({ "modalities": ["text", "audio"] }), "modalities"),
        (json!({ "audio": { "voice": "alloy" } }), "audio"),
        (json!({ "use_beam_search": true }), "use_beam_search"),
        (json!({ "max_token": 3 }), "max_token"),
        (json!({ "maxTokens": 3 }), "maxTokens"),
    ] {
        let error = client.ask("Hm?", settings.clone()).refused(400);
        assert_eq!(error["param"], param, "{settings}: {error}");
    }
    assert_eq!(
        client.ask("Hm?", json!({ "model": "gpt-9" })).refused(404)["code"],
        "model_not_found"
    );
    for (body, param) in [
        (json!({}), "prompt"),
        (json!({ "prompt": "word ".repeat(5000) }), "prompt"),
        (json!({ "prompt": "" }), "prompt"),
        (json!({ "prompt": { "x": 1 } }), "prompt"),
        (json!({ "prompt": [99999] }), "prompt"),
        (json!({ "prompt": [] }), "prompt"),
        (json!({ "prompt": vec!["a"; 300] }), "prompt"),
        (json!({ "prompt": ["a", ""] }), "prompt"),
        (json!({ "prompt": "x", "suffix": "y" }), "suffix"),
        (
            json!({ "prompt": "x", "best_of": 4, "stream": true }),
            "best_of",
        ),
        (json!({ "prompt": "x", "best_of": 1, "n": 2 }), "best_of"),
        (json!({ "prompt": "x", "best_of": 99 }), "n"),
        (json!({ "prompt": "x", "max_tokens": -2 }), "max_tokens"),
        (json!({ "prompt": "x", "logprobs": 99 }), "logprobs"),
    ] {
        assert_eq!(
            client.post("/v1/completions", &body).refused(400)["param"],
            param,
            "{body}"
        );
    }
}

#[test]
fn unknown_parameters_are_ignored_and_named() {
    let client = shared();
    let named = |response: &Response| {
        let mut lines = response.head.lines();
        lines.find_map(|line| Some(line.strip_prefix("x-gristmill-ignored: ")?.to_owned()))
    };
    let settings = json!({ "max_tokens": 1, "typical_p": 1, "mirostat": 0, "min_tokens": 2, "n_predict": 1, "user": "me" });
    let response = client.ask("Hm?", settings);
    assert_eq!(response.status, 200);
    let names = named(&response).unwrap_or_default();
    assert_eq!(names, "typical_p, mirostat, min_tokens");
    let response = client.ask("Hm?", json!({ "max_tokens": 1 }));
    assert_eq!(named(&response), None);
    let error = client.ask("Hm?", json!({ "max_token": 3 })).refused(400);
    assert_eq!(
        error["message"],
        "Unrecognized request argument supplied: max_token; did you mean max_tokens?"
    );
    // Parameters that clients send and that are ignored here.
    let harmless = json!({
        "max_tokens": 1, "user": "me", "metadata": { "a": "b" }, "store": false, "service_tier": "auto", "parallel_tool_calls": true,
        "safety_identifier": "x", "prompt_cache_key": "y", "modalities": ["text"], "verbosity": "medium", "prediction": null,
        "audio": null, "stream": true, "stream_options": { "include_usage": true, "include_obfuscation": false },
        "reasoning_effort": "low", "chat_template_kwargs": { "enable_thinking": false },
    });
    assert!(!client.ask("Hm?", harmless).events().is_empty());
    // Responses are accepted as messages of the next request.
    let answer = json!({ "role": "assistant", "content": "Hm.", "refusal": null, "annotations": [], "audio": null });
    let messages =
        json!([{ "role": "user", "content": "Hm?" }, answer, { "role": "user", "content": "Hm?" }]);
    client
        .chat(json!({ "messages": messages, "max_tokens": 1 }))
        .ok();
}

#[test]
fn requests_are_taken_as_clients_spell_them() {
    let client = shared();
    for settings in [
        json!({ "top_k": 40.0, "n": 1.0, "seed": u64::MAX }),
        json!({ "repeat_penalty": 1.1, "repetition_penalty": 1.1 }),
        json!({ "stop": null, "tools": null, "grammar": null, "stream_options": null }),
        json!({ "structured_outputs": { "choice": ["a", "b"] } }),
        json!({ "functions": [], "function_call": "auto", "logit_bias": [[5, -1.0], [6, false]] }),
    ] {
        let mut settings = settings;
        settings["max_tokens"] = json!(2.0);
        let response = client.ask("Hm?", settings.clone());
        assert_eq!(response.status, 200, "{settings}: {response:?}");
    }
    let call = json!({ "id": "a", "function": { "name": "now", "arguments": { "zone": 9 } } });
    let messages = json!([
        { "role": "user", "content": "Hm?" },
        { "role": "assistant", "reasoning": "a", "reasoning_content": "", "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "a", "content": null },
    ]);
    let body = json!({ "messages": messages, "max_tokens": 1 });
    for path in [
        CHAT,
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/chat/completions",
    ] {
        assert_eq!(client.post(path, &body).status, 200, "{path}");
    }
    let body = br#"{"messages":[{"role":"user","content":"cut \ud83d"}],"max_tokens":1}"#;
    let marked = [b"\xef\xbb\xbf".as_slice(), body].concat();
    assert_eq!(
        client.post_bytes(CHAT, "application/json", &marked).status,
        200
    );
    assert_eq!(client.post_bytes(CHAT, "text/json", body).status, 200);
}

#[test]
fn any_model_name_is_answered_where_asked_for() {
    let server = start(Config {
        any_model: true,
        ..Config::default()
    });
    let body = asking("Hm?", json!({ "model": "gpt-9", "max_tokens": 1 }));
    assert_eq!(server.client.chat(body).ok()["model"], "demo");
}

#[test]
fn types_are_called_as_in_json() {
    let client = shared();
    for (settings, said) in [
        (
            json!({ "temperature": "hot" }),
            "temperature: expected a number, found the string \"hot\"",
        ),
        (
            json!({ "top_k": 1.5 }),
            "top_k: expected a whole number, found the number `1.5`",
        ),
        (
            json!({ "response_format": 7 }),
            "response_format: expected an object, found the number `7`",
        ),
        (
            json!({ "messages": [[]] }),
            "messages[0]: expected an object, found an array",
        ),
        (
            json!({ "stream": "yes" }),
            "stream: expected true or false, found the string \"yes\"",
        ),
    ] {
        assert_eq!(client.ask("Hm?", settings).refused(400)["message"], said);
    }
    let whole = json!([[{ "role": "user", "content": "Hm?" }]]);
    assert_eq!(
        client.post(CHAT, &whole).refused(400)["message"],
        "the body: expected an object, found an array"
    );
    for (path, name) in [(CHAT, "messages"), ("/v1/completions", "prompt")] {
        let error = client.post(path, &json!({ "temperature": 0 })).refused(400);
        assert_eq!(
            (&error["param"], &error["code"]),
            (&json!(name), &json!("missing_required_parameter"))
        );
    }
    let error = client
        .ask("Hm?", json!({ "messages": [{ "content": "x" }] }))
        .refused(400);
    assert_eq!(error["param"], "messages[0].role");
    // Long values are truncated in error messages.
    let long = client
        .ask("Hm?", json!({ "temperature": "x".repeat(100_000) }))
        .refused(400);
    assert!(long["message"].as_str().unwrap().chars().count() <= 301);
}

#[test]
fn what_is_too_long_is_refused() {
    let client = shared();
    let error = client.ask(&"word ".repeat(5000), json!({})).refused(400);
    assert_eq!(
        (&error["code"], &error["param"]),
        (&json!("context_length_exceeded"), &json!("messages"))
    );
    let begin = Instant::now();
    client.ask(&"x".repeat(3_000_000), json!({})).refused(400);
    client.ask(&"ab ".repeat(1_000_000), json!({})).refused(400);
    assert!(
        begin.elapsed() < Duration::from_secs(60),
        "{:?}",
        begin.elapsed()
    );
    client.ask(&"x".repeat(5_000_000), json!({})).refused(413);
    // The server still answers.
    assert_eq!(
        client.answer("What is the capital of Japan?", json!({ "temperature": 0 })),
        "The capital of Japan is Tokyo."
    );
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    let server = start(Config {
        body_time: Duration::from_millis(300),
        ..Config::default()
    });
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    );
    let mut stream = server.client.send(head.as_bytes());
    let mut answer = [0; 64];
    let n = stream.read(&mut answer).unwrap();
    assert!(
        answer[..n].starts_with(b"HTTP/1.1 408"),
        "{}",
        String::from_utf8_lossy(&answer[..n])
    );
    // Silent and slow connections do not delay the shutdown.
    let _silent = server.client.send(b"");
    let _slow = server.client.send(b"GET / HT");
}

#[test]
fn a_foreign_name_for_loopback_is_refused() {
    let client = shared();
    let ask = |host: &str| {
        client
            .exchange(format!("GET /health HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes())
            .status
    };
    for host in [
        "localhost",
        "localhost:8080",
        "127.0.0.1:1",
        "[::1]:8080",
        "LOCALHOST",
    ] {
        assert_eq!(ask(host), 200, "{host}");
    }
    for host in [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "10.0.0.1:80",
    ] {
        assert_eq!(ask(host), 403, "{host}");
    }
}

#[test]
fn a_host_that_two_readers_may_read_differently_is_refused() {
    let client = shared();
    let ask = |line: &str, headers: &[u8]| {
        let head = [
            line.as_bytes(),
            b"\r\nConnection: close\r\n",
            headers,
            b"\r\n",
        ]
        .concat();
        client.exchange(&head)
    };
    let get = "GET /health HTTP/1.1";
    assert_eq!(ask(get, b"Host: localhost\r\n").status, 200);
    assert_eq!(
        ask(
            "GET http://localhost/health HTTP/1.1",
            b"Host: localhost\r\n"
        )
        .status,
        200
    );
    // An HTTP/1.0 probe need not name a host; browsers, which the check is about, do.
    assert_eq!(ask("GET /health HTTP/1.0", b"").status, 200);
    for (line, headers) in [
        (get, b"".as_slice()),
        (get, b"Host: localhost\r\nHost: evil.example\r\n"),
        (get, b"Host: evil.example\r\nHost: localhost\r\n"),
        (get, b"Host: evil.example\xff\r\n"),
        (get, b"Host: localhost@evil.example\r\n"),
        (
            "GET http://localhost/health HTTP/1.1",
            b"Host: evil.example\r\n",
        ),
        (
            "GET http://evil.example/health HTTP/1.1",
            b"Host: localhost\r\n",
        ),
    ] {
        let error = ask(line, headers).refused(400);
        assert_eq!(
            error["code"],
            "invalid_host",
            "{line} {}",
            String::from_utf8_lossy(headers)
        );
    }
    for (line, headers) in [
        (get, b"Host:\r\n".as_slice()),
        (
            "GET http://evil.example/health HTTP/1.1",
            b"Host: evil.example\r\n",
        ),
        ("GET http://evil.example/health HTTP/1.0", b""),
    ] {
        ask(line, headers).refused(403);
    }
}

#[test]
fn a_body_of_no_type_is_json_unless_a_page_sends_it() {
    let client = shared();
    let body = asking("What is the capital of Japan?", json!({ "max_tokens": 1 })).to_string();
    let send = |origin: &str| {
        let head = format!(
            "POST {CHAT} HTTP/1.0\r\nHost: localhost\r\n{origin}Content-Length: {}\r\n\r\n",
            body.len()
        );
        client.exchange(format!("{head}{body}").as_bytes())
    };
    assert_eq!(send("").status, 200);
    send("Origin: http://localhost\r\n").refused(415);
}

#[test]
fn a_full_queue_refuses_at_once() {
    let server = start(Config {
        queue: 2,
        ..Config::default()
    });
    let client = &server.client;
    let long = asking(
        "Tell me a story.",
        json!({ "stream": true, "ignore_eos": true }),
    );
    let bytes = long.to_string();
    let head = format!(
        "POST {CHAT} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        bytes.len()
    );
    let mut held = Vec::new();
    let begin = Instant::now();
    // Some requests finish meanwhile, so more are sent than the queue holds.
    let refused = loop {
        let mut stream = client.send(head.as_bytes());
        stream.write_all(bytes.as_bytes()).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        if status.ends_with(b"429") {
            break stream;
        }
        held.push(stream);
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "nobody was refused"
        );
    };
    let mut rest = String::new();
    (&refused).read_to_string(&mut rest).unwrap();
    assert!(
        rest.contains("retry-after") && rest.contains("queue_full"),
        "{rest}"
    );
    // Disconnected clients make room as soon as the server notices, long before their answers would
    // have ended.
    drop(held);
    let left = Instant::now();
    let answer = loop {
        let answer = client.ask("What is the capital of Japan?", json!({ "temperature": 0 }));
        if answer.status != 429 {
            break answer.ok();
        }
        assert!(
            left.elapsed() < Duration::from_secs(60),
            "those who left are still waited for"
        );
        std::thread::sleep(Duration::from_millis(10));
    };
    let abandoned = client.metric("gristmill_requests_abandoned_total");
    assert!(abandoned > 0.0, "their answers came to an end");
    assert_eq!(
        answer["choices"][0]["message"]["content"],
        "The capital of Japan is Tokyo."
    );
}

/// Strategy of arbitrary JSON values.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|x| json!(x)),
        "\\PC{0,12}".prop_map(Value::from),
        proptest::sample::select(vec![
            "user", "system", "function", "object", "string", "auto", "text"
        ])
        .prop_map(Value::from),
    ];
    let keys = proptest::sample::select(vec![
        "role",
        "content",
        "type",
        "function",
        "name",
        "parameters",
        "text",
        "schema",
        "properties",
        "enum",
        "$ref",
        "x",
    ]);
    leaf.prop_recursive(4, 24, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::vec((keys.clone(), inner), 0..5).prop_map(|pairs| pairs
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect()),
        ]
    })
}

#[test]
fn no_request_brings_the_server_down() {
    const FIELDS: &[&str] = &[
        "messages",
        "model",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "stop",
        "seed",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "repeat_last_n",
        "logit_bias",
        "batch_invariant",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "reasoning_effort",
        "chat_template_kwargs",
        "prompt",
        "echo",
        "unknown",
    ];
    let client = shared();
    let changes = proptest::collection::vec(
        (proptest::sample::select(FIELDS.to_vec()), any_json()),
        1..4,
    );
    let request = (changes, any::<bool>()).prop_map(|(changes, chat)| {
        let mut body = match chat {
            true => asking("Hm?", json!({})),
            false => json!({ "prompt": "Hm" }),
        };
        // Requests that are not refused should be short.
        body["max_tokens"] = 3.into();
        for (key, value) in changes {
            body[key] = value;
        }
        (if chat { CHAT } else { "/v1/completions" }, body)
    });
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let run = runner.run(&request, |(path, body)| {
        let response = client.post(path, &body);
        match response.status {
            200 => {}
            400..500 => drop(response.refused(response.status)),
            _ => prop_assert!(false, "{body} gives {response:?}"),
        }
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
    let bytes = proptest::collection::vec(any::<u8>(), 0..200);
    let run = runner.run(&bytes, |bytes| {
        client
            .post_bytes(CHAT, "application/json", &bytes)
            .refused(400);
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(client.get("/health").ok(), json!({ "status": "ok" }));
}
