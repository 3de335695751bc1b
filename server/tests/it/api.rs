//! Responses of every kind.

use super::client::{asking, joined};
use super::running::PARALLEL;
use super::{shared, start};
use gristmill_server::{Config, Server};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

const JAPAN: &str = "What is the capital of Japan?";
const STORY: &str = "Tell me a story.";

#[test]
fn a_chat_completion_has_its_form() {
    let answer = shared().ask(JAPAN, json!({ "temperature": 0 })).ok();
    assert_eq!(answer["object"], "chat.completion");
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(
        choice["message"]["content"],
        "The capital of Japan is Tokyo."
    );
    assert_eq!(
        (&choice["finish_reason"], &choice["index"]),
        (&json!("stop"), &json!(0))
    );
    let usage = &answer["usage"];
    assert!(
        usage["prompt_tokens"].as_u64().unwrap() > 5
            && usage["completion_tokens"].as_u64().unwrap() > 3
    );
    let total =
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], total);
}

#[test]
fn a_stream_tells_the_same_text() {
    let settings = json!({ "seed": 5, "max_tokens": 200 });
    let whole = shared().answer(STORY, settings.clone());
    let mut streaming = settings;
    streaming["stream"] = true.into();
    let events = shared().ask(STORY, streaming.clone()).events();
    assert_eq!(joined(&events), whole);
    assert!(events.len() > 3, "it is told in pieces");
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert!(events.iter().all(|event| event["object"] == "chat.completion.chunk" && event.get("usage").is_none()));
    let reasons: Vec<_> = events
        .iter()
        .map(|event| &event["choices"][0]["finish_reason"])
        .filter(|r| !r.is_null())
        .collect();
    assert_eq!(reasons.len(), 1);
    streaming["stream_options"] = json!({ "include_usage": true });
    let events = shared().ask(STORY, streaming).events();
    let (last, others) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert!(last["usage"]["completion_tokens"].as_u64().unwrap() > 20);
    assert!(others.iter().all(|event| event["usage"].is_null()));
}

#[test]
fn completions_go_on_with_a_text() {
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0 });
    let answer = shared().post("/v1/completions", &body).ok();
    assert_eq!(answer["object"], "text_completion");
    let text = answer["choices"][0]["text"].as_str().unwrap();
    assert!(text.starts_with(" there was a green frog"), "{text}");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 12);
    let mut streaming = body.clone();
    streaming["stream"] = true.into();
    let events = shared().post("/v1/completions", &streaming).events();
    let streamed: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(streamed, text);
    // Token lists and a list of one text are prompts too; by default an answer has 16 tokens.
    let ids = json!({ "prompt": [12, 13, 14], "temperature": 0 });
    assert_eq!(
        shared().post("/v1/completions", &ids).ok()["usage"]["completion_tokens"],
        16
    );
    let list = json!({ "prompt": ["Once upon a time"], "max_tokens": 12, "temperature": 0 });
    assert_eq!(
        shared().post("/v1/completions", &list).ok()["choices"][0]["text"],
        text
    );
}

#[test]
fn an_answer_ends_where_it_is_told_to() {
    let client = shared();
    let whole = client.answer(JAPAN, json!({ "temperature": 0 }));
    let stopped = client
        .ask(
            JAPAN,
            json!({ "temperature": 0, "stop": [" Japan", "never"] }),
        )
        .ok();
    assert_eq!(
        stopped["choices"][0]["message"]["content"],
        "The capital of"
    );
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let events = client
        .ask(
            JAPAN,
            json!({ "temperature": 0, "stop": "Tokyo", "stream": true }),
        )
        .events();
    assert_eq!(joined(&events), "The capital of Japan is ");
    for limit in ["max_tokens", "max_completion_tokens"] {
        let mut settings = json!({ "temperature": 0 });
        settings[limit] = 3.into();
        let cut = client.ask(JAPAN, settings).ok();
        assert_eq!(
            (
                &cut["choices"][0]["finish_reason"],
                &cut["usage"]["completion_tokens"]
            ),
            (&json!("length"), &json!(3))
        );
        assert!(whole.starts_with(cut["choices"][0]["message"]["content"].as_str().unwrap()));
    }
}

#[test]
fn several_answers_each_have_a_seed() {
    let settings = json!({ "n": 3, "seed": 40, "temperature": 1.5, "max_tokens": 30 });
    let answer = shared().ask(STORY, settings.clone()).ok();
    let texts: Vec<&str> = answer["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["message"]["content"].as_str().unwrap())
        .collect();
    assert_eq!(texts.len(), 3);
    for (i, text) in texts.iter().enumerate() {
        let alone = shared().answer(
            STORY,
            json!({ "seed": 40 + i, "temperature": 1.5, "max_tokens": 30 }),
        );
        assert_eq!(*text, alone, "{i}");
    }
    assert!(texts[0] != texts[1] && texts[1] != texts[2]);
    let mut streaming = settings;
    streaming["stream"] = true.into();
    let events = shared().ask(STORY, streaming).events();
    for (i, text) in texts.iter().enumerate() {
        let of_it = events
            .iter()
            .map(|event| &event["choices"][0])
            .filter(|choice| choice["index"] == i);
        let streamed: String = of_it
            .filter_map(|choice| choice["delta"]["content"].as_str())
            .collect();
        assert_eq!(streamed, *text, "{i}");
    }
}

#[test]
fn sampling_parameters_arrive() {
    let client = shared();
    let greedy = client.answer(STORY, json!({ "temperature": 0, "max_tokens": 40 }));
    for one in [
        json!({ "top_k": 1 }),
        json!({ "top_p": 0 }),
        json!({ "min_p": 1 }),
    ] {
        let mut settings = json!({ "temperature": 2, "max_tokens": 40, "seed": 3 });
        let same = one.as_object().unwrap().iter().next().unwrap();
        settings[same.0] = same.1.clone();
        assert_eq!(client.answer(STORY, settings), greedy, "{one}");
    }
    let plain = json!({ "temperature": 1, "seed": 11, "max_tokens": 60 });
    let text = client.answer(STORY, plain.clone());
    for one in [
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
    ] {
        let mut settings = plain.clone();
        settings[one] = 2.into();
        assert_ne!(client.answer(STORY, settings), text, "{one}");
    }
    let mut endless = json!({ "temperature": 0, "max_tokens": 50, "ignore_eos": true });
    let long = client.ask(JAPAN, endless.clone()).ok();
    assert_eq!(long["usage"]["completion_tokens"], 50);
    // The bias makes the first token of the answer impossible.
    endless["logprobs"] = true.into();
    let first = client
        .ask(
            JAPAN,
            json!({ "temperature": 0, "logprobs": true, "max_tokens": 1 }),
        )
        .ok();
    let token = first["choices"][0]["logprobs"]["content"][0]["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let ids: serde_json::Map<String, serde_json::Value> =
        (0..1400).map(|id| (id.to_string(), json!(-100))).collect();
    let other = client
        .ask(
            JAPAN,
            json!({ "temperature": 0, "logprobs": true, "max_tokens": 1, "logit_bias": ids }),
        )
        .ok();
    assert_ne!(
        other["choices"][0]["logprobs"]["content"][0]["token"],
        token
    );
}

#[test]
fn probabilities_are_told() {
    let answer = shared()
        .ask(
            JAPAN,
            json!({ "temperature": 0, "logprobs": true, "top_logprobs": 3 }),
        )
        .ok();
    let content = answer["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap();
    let text: String = content
        .iter()
        .map(|token| token["token"].as_str().unwrap())
        .collect();
    assert_eq!(text, "The capital of Japan is Tokyo.");
    for token in content {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["token"]), (3, &token["token"]));
        let logprob = token["logprob"].as_f64().unwrap();
        assert!(logprob <= 0.0 && logprob >= top[1]["logprob"].as_f64().unwrap());
    }
    let events = shared()
        .ask(
            JAPAN,
            json!({ "temperature": 0, "logprobs": true, "stream": true }),
        )
        .events();
    let streamed = events
        .iter()
        .filter_map(|e| e["choices"][0]["logprobs"]["content"].as_array())
        .map(Vec::len)
        .sum::<usize>();
    assert_eq!(streamed, content.len());
    let body =
        json!({ "prompt": "Once upon a time", "max_tokens": 4, "temperature": 0, "logprobs": 2 });
    let completion = shared().post("/v1/completions", &body).ok();
    let logprobs = &completion["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 4);
    assert_eq!(
        logprobs["text_offset"][1],
        logprobs["tokens"][0].as_str().unwrap().chars().count()
    );
}

#[test]
fn models_health_metrics_and_the_page() {
    let client = shared();
    let models = client.get("/v1/models").ok();
    assert_eq!(
        (&models["object"], &models["data"][0]["id"]),
        (&json!("list"), &json!("demo"))
    );
    assert_eq!(client.get("/v1/models/demo").ok()["object"], "model");
    assert_eq!(client.get("/health").ok(), json!({ "status": "ok" }));
    client.answer(JAPAN, json!({ "temperature": 0 }));
    let metrics = client.get("/metrics");
    assert!(
        metrics.head.contains("openmetrics-text") && metrics.body.ends_with("# EOF\n"),
        "{metrics:?}"
    );
    assert!(client.metric("gristmill_generated_tokens_total") >= 5.0);
    assert!(client.metric("gristmill_first_token_seconds_count") >= 1.0);
    let page = client.get("/");
    assert!(
        page.head.contains("text/html") && page.head.contains("content-security-policy"),
        "{}",
        page.head
    );
    assert!(
        !page.head.contains("unsafe-inline") && page.body.contains("</html>"),
        "{}",
        page.head
    );
    let script = client.get("/page/main.js");
    assert!(
        script.status == 200 && script.head.contains("text/javascript"),
        "{}",
        script.head
    );
    assert_eq!(client.get("/page/none.js").status, 404);
}

#[test]
fn a_key_is_asked_for_where_there_is_one() {
    let server = start(Config {
        api_key: Some("open sesame".into()),
        ..Config::default()
    });
    assert_eq!(
        server.client.get("/v1/models").ok()["data"][0]["id"],
        "demo"
    );
    for key in [
        None,
        Some("open".to_owned()),
        Some("open sesame!".to_owned()),
    ] {
        let stranger = super::Client {
            key,
            ..server.client.clone()
        };
        for path in ["/v1/models", "/metrics"] {
            assert_eq!(stranger.get(path).refused(401)["code"], "invalid_api_key");
        }
        assert_eq!(
            stranger.ask(JAPAN, json!({})).refused(401)["type"],
            "invalid_request_error"
        );
        assert_eq!(
            (stranger.get("/health").status, stranger.get("/").status),
            (200, 200)
        );
    }
}

#[test]
fn while_the_model_is_loaded_the_server_says_so() {
    /// Bytes of a body that no buffer of a socket holds.
    const LARGE: usize = 16 << 20;
    let server = Server::bind(Config {
        port: 0,
        ..Config::default()
    })
    .expect("a port");
    let client = super::Client {
        address: server.address(),
        key: None,
    };
    let health = client.get("/health");
    assert_eq!(
        (health.status, health.json()),
        (503, json!({ "status": "loading" }))
    );
    assert!(health.head.contains("application/json"), "{}", health.head);
    for response in [
        client.ask(JAPAN, json!({})),
        client.get("/v1/models"),
        client.get("/"),
    ] {
        assert!(response.head.contains("retry-after"), "{}", response.head);
        assert_eq!(response.refused(503)["code"], "model_loading");
    }
    // Each interface gets its own error format, and a browser the page.
    assert!(client.post("/api/chat", &json!({})).json()["error"].is_string());
    assert_eq!(
        client.post("/v1/messages", &json!({})).json()["error"]["type"],
        "overloaded_error"
    );
    let page =
        client.exchange(b"GET / HTTP/1.0\r\nHost: localhost\r\nAccept: text/html,*/*\r\n\r\n");
    assert!(
        page.status == 503 && page.body.contains("<title>Gristmill</title>"),
        "{}",
        page.head
    );
    assert_eq!(client.get("/page/main.js").status, 200);
    // A large body is read before the refusal; the client would see a reset connection otherwise.
    for path in ["/v1/chat/completions", "/v1/messages"] {
        let mut stream = client.send(b"");
        let head = format!(
            "POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {LARGE}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("a head");
        let piece = [b' '; 1 << 20];
        for _ in 0..LARGE / piece.len() {
            stream.write_all(&piece).expect("the body is read");
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.0 503"), "{answer}");
        assert!(
            answer.contains("overloaded") || answer.contains("model_loading"),
            "{answer}"
        );
    }
    server.loading().set("loading weights", 3, 7);
    let progress =
        json!({ "status": "loading", "message": "loading weights", "done": 3, "total": 7 });
    assert_eq!(client.get("/health").json(), progress);
}

#[test]
fn pages_elsewhere_and_names_of_proxies_are_let_in_where_they_were_named() {
    let config = Config {
        cors: vec!["http://localhost:3000".into()],
        allowed_hosts: vec!["models.example".into()],
        ..Config::default()
    };
    let server = start(config);
    let ask = |client: &super::Client, method: &str, host: &str, origin: &str| {
        let head = format!(
            "{method} /v1/models HTTP/1.0\r\nHost: {host}\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: POST\r\n\r\n"
        );
        client.exchange(head.as_bytes())
    };
    let allowed = "access-control-allow-origin: http://localhost:3000";
    for method in ["GET", "OPTIONS"] {
        let named = ask(&server.client, method, "localhost", "http://localhost:3000");
        assert!(
            named.status == 200 && named.head.contains(allowed),
            "{}",
            named.head
        );
        let other = ask(&server.client, method, "localhost", "http://evil.example");
        assert!(
            !other.head.contains("access-control-allow-origin"),
            "{}",
            other.head
        );
        let closed = ask(shared(), method, "localhost", "http://localhost:3000");
        assert!(!closed.head.contains("access-control"), "{}", closed.head);
    }
    assert_eq!(
        ask(&server.client, "GET", "Models.example", "null").status,
        200
    );
    assert_eq!(
        ask(&server.client, "GET", "evil.example", "null").status,
        403
    );
}

/// While all sequences of the batch are running, the next request is queued and gets its position.
#[test]
fn who_waits_is_told_behind_how_many() {
    let server = start(Config::default());
    let client = &server.client;
    let long = json!({ "prompt": "Once", "max_tokens": 2000, "ignore_eos": true, "stream": true })
        .to_string();
    let request = client.request(
        "POST",
        "/v1/completions",
        "application/json",
        long.as_bytes(),
    );
    let begun = Instant::now();
    let until = |name: &str, n: usize| {
        while client.metric(name) < n as f64 {
            assert!(
                begun.elapsed() < Duration::from_secs(120),
                "{name} stays below {n}"
            );
            std::thread::yield_now();
        }
    };
    let answered: Vec<_> = (0..PARALLEL).map(|_| client.send(&request)).collect();
    until("gristmill_requests_running", PARALLEL);
    let second = client.send(&request);
    until("gristmill_requests_waiting", 1);
    let short = asking(
        JAPAN,
        json!({ "temperature": 0, "stream": true, "max_tokens": 2 }),
    );
    let told = std::thread::scope(|scope| {
        let third = scope.spawn(|| client.chat(short));
        until("gristmill_requests_waiting", 2);
        drop((answered, second));
        third.join().expect("an answer")
    });
    assert!(
        told.body.starts_with(": waiting behind 1\n\n"),
        "{}",
        told.body
    );
    assert!(!told.events().is_empty());
}

#[test]
fn how_much_of_a_long_prompt_has_been_run_is_told() {
    let client = shared();
    let settings = json!({ "temperature": 0, "stream": true, "max_tokens": 2 });
    let told = client.chat(asking(&"one two three ".repeat(200), settings.clone()));
    let prompt = |body: &str| {
        body.lines().find_map(|line| {
            Some(line.strip_prefix(": prompt ")?.split_once(" of ")?)
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
        })
    };
    let (done, total) = prompt(&told.body).expect("a comment");
    let (done, total): (usize, usize) = (
        done.parse().expect("a number"),
        total.parse().expect("a number"),
    );
    assert!(
        done > 0 && done < total && total < 2048,
        "{done} of {total}"
    );
    // A short prompt has no progress to report.
    assert_eq!(prompt(&client.chat(asking(JAPAN, settings)).body), None);
}

/// Streaming and log-probabilities do not affect the sampled text.
#[test]
fn a_seed_gives_one_text_however_it_is_told() {
    let client = shared();
    for sampling in [
        json!({ "temperature": 1.2, "top_k": 0, "top_p": 1, "min_p": 0 }),
        json!({ "temperature": 1.2, "top_k": 0, "top_p": 0.9 }),
        json!({ "temperature": 1.2, "top_k": 100, "top_p": 1 }),
        json!({ "temperature": 1.5, "top_k": 20 }),
        json!({ "temperature": 0 }),
    ] {
        let with = |more: Value| {
            let mut settings = sampling.clone();
            settings["seed"] = 11.into();
            settings["max_tokens"] = 40.into();
            more.as_object()
                .unwrap()
                .iter()
                .for_each(|(key, value)| settings[key] = value.clone());
            asking("Tell me a story.", settings)
        };
        let text = |more: Value| {
            let answer = client.chat(with(more)).ok();
            answer["choices"][0]["message"]["content"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        let plain = text(json!({}));
        assert!(plain.len() > 20, "{sampling}: {plain}");
        assert_eq!(
            text(json!({ "logprobs": true })),
            plain,
            "{sampling}, with logprobs"
        );
        assert_eq!(
            text(json!({ "logprobs": true, "top_logprobs": 5 })),
            plain,
            "{sampling}, with top_logprobs"
        );
        assert_eq!(
            text(json!({ "logit_bias": { "100": 0 } })),
            plain,
            "{sampling}, with a bias of 0"
        );
        assert_eq!(
            joined(&client.chat(with(json!({ "stream": true }))).events()),
            plain,
            "{sampling}, streamed"
        );
        let two = client.chat(with(json!({ "n": 2 }))).ok();
        assert_eq!(
            two["choices"][0]["message"]["content"], *plain,
            "{sampling}, with another answer"
        );
    }
}

/// Time to first token is observed once for a request, regardless of the number of its choices.
#[test]
fn the_time_of_the_first_token_is_one_of_a_request() {
    let server = start(Config::default());
    server
        .client
        .ask(JAPAN, json!({ "n": 3, "max_tokens": 4 }))
        .ok();
    assert_eq!(
        server.client.metric("gristmill_first_token_seconds_count"),
        1.0
    );
}
