//! Fuzz target for HTTP requests, from their text to the job for the engine.

use crate::Target;
use crate::targets::toy;
use gristmill_server::Config;
use gristmill_server::fuzzing::Door;
use std::cell::LazyCell;

/// Input: a line `METHOD PATH`, headers, an empty line, the body.
pub const TARGET: Target = Target {
    name: "request",
    about: "a request of HTTP: paths, headers, bodies of every endpoint, up to the job for the engine",
    run,
    seeds,
    words: &[
        "GET ",
        "POST ",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/api/chat",
        "/api/generate",
        "/api/show",
        "/api/embed",
        "/tokenize",
        "/detokenize",
        "/v1/models",
        "/health",
        "/metrics",
        "\r\n\r\n",
        "host: ",
        "content-type: ",
        "application/json",
        "authorization: Bearer ",
        "\"messages\":",
        "\"role\":",
        "\"user\"",
        "\"assistant\"",
        "\"tool\"",
        "\"system\"",
        "\"content\":",
        "\"type\":\"text\"",
        "\"text\":",
        "\"prompt\":",
        "\"input\":",
        "\"instructions\":",
        "\"system\":",
        "\"input_schema\":",
        "\"type\":\"tool_use\"",
        "\"type\":\"tool_result\"",
        "\"type\":\"function_call_output\"",
        "\"stop_sequences\":",
        "\"options\":",
        "\"num_predict\":",
        "\"format\":",
        "\"grammar\":",
        "\"guided_regex\":",
        "\"root ::= [a-z]+\"",
        "\"echo\":true",
        "\"best_of\":",
        "\"tools\":",
        "\"type\":\"function\"",
        "\"function\":",
        "\"name\":",
        "\"parameters\":",
        "\"tool_choice\":",
        "\"required\"",
        "\"tool_calls\":",
        "\"arguments\":",
        "\"tool_call_id\":",
        "\"response_format\":",
        "\"json_schema\"",
        "\"schema\":",
        "\"$ref\":\"#\"",
        "\"max_tokens\":",
        "\"max_completion_tokens\":",
        "\"temperature\":",
        "\"top_p\":",
        "\"top_k\":",
        "\"min_p\":",
        "\"seed\":",
        "\"n\":",
        "\"stop\":",
        "\"stream\":true",
        "\"logprobs\":true",
        "\"top_logprobs\":",
        "\"logit_bias\":",
        "\"presence_penalty\":",
        "\"frequency_penalty\":",
        "\"chat_template_kwargs\":",
        "\"enable_thinking\":",
        "\"reasoning_effort\":",
        "null",
        "true",
        "false",
        "{}",
        "[]",
        "1e999",
        "-1",
        "18446744073709551616",
        "0.5",
        "\\u0000",
        "\\ud800",
        ",",
        ":",
        "[",
        "{",
        "}",
        "]",
    ],
    longest: 8 << 10,
    tries: 1000,
};

/// Context length of the model, tokens.
const CONTEXT: usize = 512;

const TEMPLATE: &str = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% if m.tool_calls %}{% for call in m.tool_calls %}<tool_call>{{ \
    call.function.name }}{{ call.function.arguments|tojson }}</tool_call>{% endfor %}{% endif %}{% endfor %}{% if tools %}{{ tools|tojson }}{% endif %}{% if \
    add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and enable_thinking %}<think>{% endif %}{% endif %}";

fn run(input: &[u8]) {
    thread_local! {
        static DOOR: LazyCell<Door> = LazyCell::new(|| Door::new(toy::text(TEMPLATE), CONTEXT, Config::default()).expect("a server"));
    }
    let (head, body) = match input.windows(4).position(|four| four == b"\r\n\r\n") {
        Some(at) => (&input[..at], &input[at + 4..]),
        None => (input, &[][..]),
    };
    let Ok(head) = std::str::from_utf8(head) else {
        return;
    };
    let mut lines = head.split("\r\n");
    let (method, path) = lines
        .next()
        .and_then(|line| line.split_once(' '))
        .unwrap_or_default();
    let headers: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(": ")).collect();
    let Some(response) = DOOR.with(|door| door.ask(method, path, &headers, body.to_vec())) else {
        return;
    };
    let text = String::from_utf8_lossy(&response.body);
    assert_ne!(response.status, 500, "{text}");
    if let Some(accepted) = response.accepted {
        // Invariants of an accepted request: room for at least one token, and bounded counts.
        assert!(
            accepted
                .prompts
                .iter()
                .all(|prompt| (1..CONTEXT).contains(prompt)),
            "{accepted:?}"
        );
        assert!(
            (1..=Config::default().choices).contains(&accepted.choices),
            "{accepted:?}"
        );
        assert!(
            accepted.logprobs.is_none_or(|top| top <= 20),
            "{accepted:?}"
        );
    } else {
        assert!(
            response.body.len() < 64 << 10,
            "{} bytes of refusal",
            response.body.len()
        );
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let post = |path: &str, body: &str| {
        format!("POST {path}\r\ncontent-type: application/json\r\n\r\n{body}").into_bytes()
    };
    let chat = |body: &str| post("/v1/chat/completions", body);
    let mut out: Vec<Vec<u8>> = [
        "/",
        "/health",
        "/metrics",
        "/v1/models",
        "/v1/models/toy",
        "/nowhere",
    ]
    .iter()
    .map(|path| format!("GET {path}\r\nhost: localhost:8080\r\n\r\n").into_bytes())
    .collect();
    out.extend([
        chat(r#"{"model":"toy","messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"Hello!"}]}"#),
        chat(
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"stream":true,"stream_options":{"include_usage":true},"n":2,"seed":7,"stop":["x","y"],"temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,"max_completion_tokens":9,"logit_bias":{"5":-100},"presence_penalty":1,"frequency_penalty":-1,"logprobs":true,"top_logprobs":5,"user":"me"}"#,
        ),
        chat(
            r##"{"messages":[{"role":"user","content":"w?"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Rome\"}"}}]},{"role":"tool","tool_call_id":"c1","content":"rain"}],"tools":[{"type":"function","function":{"name":"weather","description":"d","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"$ref":"#/$defs/n"}},"required":["city"],"$defs":{"n":{"type":"integer"}}}}}],"tool_choice":"required","parallel_tool_calls":false}"##,
        ),
        chat(
            r#"{"messages":[{"role":"user","content":"j"}],"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object","properties":{"a":{"enum":[1,"b",null]},"c":{"type":"array","items":{"type":"number"},"maxItems":3}},"additionalProperties":false}}},"reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true}}"#,
        ),
        post("/v1/completions", r#"{"prompt":"Once upon","max_tokens":5,"logprobs":3,"stream":true,"echo":false,"best_of":1}"#),
        post("/v1/completions", r#"{"prompt":[1,2,3],"stop":"x","n":1,"temperature":0}"#),
        post("/v1/completions", r#"{"prompt":["a","b"],"echo":true,"logprobs":1,"max_tokens":0,"best_of":2,"grammar":"root ::= \"a\" | [0-9]{2}"}"#),
        post(
            "/v1/messages",
            r#"{"max_tokens":9,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"w?"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":""},{"type":"tool_use","id":"t1","name":"f","input":{"x":1}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"r"}],"is_error":true}]}],"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"any"},"stop_sequences":["x"],"thinking":{"type":"enabled","budget_tokens":9}}"#,
        ),
        post("/v1/messages/count_tokens", r#"{"messages":[{"role":"user","content":"a"}]}"#),
        post(
            "/v1/responses",
            r#"{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"r"}],"instructions":"i","tools":[{"type":"function","name":"f","parameters":{}}],"text":{"format":{"type":"json_object"}},"max_output_tokens":9,"reasoning":{"effort":"none"}}"#,
        ),
        post(
            "/api/chat",
            r#"{"model":"toy","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"x":1}}}]},{"role":"tool","content":"r","tool_name":"f"}],"options":{"temperature":0.5,"num_predict":9,"stop":["x"]},"format":{"type":"object"},"think":false,"stream":false}"#,
        ),
        post("/api/generate", r#"{"model":"toy","prompt":"a","raw":true,"options":{"num_predict":3}}"#),
        post("/api/show", r#"{"model":"toy"}"#),
        post("/api/embed", r#"{"model":"toy","input":["a","b"]}"#),
        post("/v1/embeddings", r#"{"input":[[1,2],[3]],"encoding_format":"base64"}"#),
        post("/tokenize", r#"{"content":"a b","with_pieces":true}"#),
        post("/detokenize", r#"{"tokens":[1,2,3]}"#),
    ]);
    out
}
