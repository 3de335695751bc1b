//! Small requests for large responses, and large requests with no useful content.

use super::client::{Client, asking};
use super::{shared, start};
use gristmill_llm::file::ModelFile;
use gristmill_llm::language;
use gristmill_llm::tokenizer::TokenKind;
use gristmill_server::Config;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

const STORY: &str = "Tell me a story.";

#[track_caller]
fn becomes_idle(client: &Client) {
    let begin = Instant::now();
    // Sockets hold megabytes of unread data, and a busy machine takes a while to write them.
    while client.metric("gristmill_requests_running") + client.metric("gristmill_requests_waiting")
        > 0.0
    {
        assert!(
            begin.elapsed() < Duration::from_secs(180),
            "something is left running"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn probabilities_of_everything_are_more_than_fits_at_once() {
    let server = start(Config {
        answer: 1 << 20,
        ..Config::default()
    });
    let client = &server.client;
    let bomb =
        json!({ "n": 16, "logprobs": true, "top_logprobs": 20, "ignore_eos": true, "seed": 1 });
    // Without a token limit the answer is as long as the budget.
    let answer = client.ask(STORY, bomb.clone());
    let length = answer.body.len();
    assert!((100_000..2 << 20).contains(&length), "{length}");
    let answer = answer.ok();
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 16);
    for choice in choices {
        assert_eq!(choice["finish_reason"], "length");
        assert!(choice["logprobs"]["content"].as_array().unwrap().len() > 10);
    }
    // With a token limit that exceeds the budget, the error names one that fits.
    let asked = |settings: Value| {
        let mut all = bomb.clone();
        settings
            .as_object()
            .unwrap()
            .iter()
            .for_each(|(key, value)| all[key] = value.clone());
        all
    };
    for name in ["max_tokens", "max_completion_tokens"] {
        let error = client.ask(STORY, asked(json!({ name: 1000 }))).refused(400);
        assert_eq!(
            (&error["param"], &error["code"]),
            (&json!("max_tokens"), &json!("answer_too_large"))
        );
        let message = error["message"].as_str().unwrap();
        let fitting = message
            .split_once("set max_tokens to ")
            .unwrap()
            .1
            .split(' ')
            .next()
            .unwrap();
        client
            .ask(
                STORY,
                asked(json!({ name: fitting.parse::<u64>().unwrap() })),
            )
            .ok();
    }
    let body = json!({ "prompt": "Once", "n": 16, "logprobs": 20, "max_tokens": 1000 });
    assert_eq!(
        client.post("/v1/completions", &body).refused(400)["code"],
        "answer_too_large"
    );
    // A stream has no such budget.
    let events = client
        .ask(
            STORY,
            asked(json!({ "max_tokens": 200, "n": 2, "stream": true })),
        )
        .events();
    let told = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(told.map(Vec::len).sum::<usize>(), 400);
}

#[test]
fn an_answer_that_grows_beyond_all_expectation_ends() {
    const BYTES: usize = 5_000;
    let server = start(Config {
        answer: BYTES,
        ..Config::default()
    });
    let client = &server.client;
    // The longest token of the vocabulary; the answer consists of it alone.
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo-glm-Q4_0.gguf");
    let tokenizer = language::tokenizer(ModelFile::open(&demo).unwrap().metadata()).unwrap();
    let words = (0..tokenizer.n_tokens() as u32)
        .filter(|&id| tokenizer.token_kind(id) == Some(TokenKind::Normal));
    let (length, id) = words
        .map(|id| (tokenizer.token_bytes(id).unwrap().len(), id))
        .max()
        .unwrap();
    assert!(length > 10, "{length}");
    let bias = json!({ id.to_string(): 100 });
    // With and without a token limit: limits in tokens do not bound the bytes of such a text.
    let completion = json!({ "prompt": [5], "max_tokens": 600, "ignore_eos": true, "temperature": 0, "logit_bias": bias });
    let answer = client.post("/v1/completions", &completion).ok();
    let settings = json!({ "n": 2, "ignore_eos": true, "temperature": 0, "logit_bias": bias });
    let chat = client.ask(STORY, settings).ok();
    let (answer, chat) = (&answer["choices"][0], chat["choices"].as_array().unwrap());
    let length = |text: &Value| text.as_str().unwrap().len();
    let lengths = [
        length(&answer["text"]),
        chat.iter()
            .map(|choice| length(&choice["message"]["content"]))
            .sum(),
    ];
    for length in lengths {
        assert!((BYTES..BYTES + 100).contains(&length), "{lengths:?}");
    }
    assert_eq!(answer["finish_reason"], "length");
    assert!(
        chat.len() == 2
            && chat
                .iter()
                .all(|choice| choice["finish_reason"] == "length")
    );
    becomes_idle(client);
}

#[test]
fn an_answer_that_nobody_reads_ends() {
    let server = start(Config {
        unread: 64 << 10,
        write_time: Duration::from_secs(600),
        ..Config::default()
    });
    let client = &server.client;
    let settings = json!({ "n": 16, "logprobs": true, "top_logprobs": 20, "ignore_eos": true, "stream": true });
    let body = asking(STORY, settings).to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut deaf = client.send(format!("{head}{body}").as_bytes());
    while client.metric("gristmill_requests_running") == 0.0 {
        std::thread::yield_now();
    }
    becomes_idle(client);
    assert_eq!(client.metric("gristmill_requests_abandoned_total"), 1.0);
    // A client that reads on gets the reason of the abort.
    let mut told = String::new();
    deaf.read_to_string(&mut told).expect("an end");
    assert!(
        told.contains("answer_unread") && told.trim_end().ends_with("[DONE]"),
        "{}",
        &told[told.len() - 300..]
    );
    client.answer(STORY, json!({ "max_tokens": 3 }));
}

#[test]
fn bodies_have_room_for_some() {
    let server = start(Config {
        bodies: 128 << 10,
        ..Config::default()
    });
    let client = &server.client;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 200000\r\n\r\n";
    let hold = || {
        let mut stream: TcpStream = client.send(head.as_bytes());
        stream.write_all(&[b' '; 185_000]).expect("room");
        stream
    };
    let large = || client.ask(&"x ".repeat(60_000), json!({}));
    let begin = Instant::now();
    let mut held = vec![hold()];
    // The large request may be refused for its length in tokens until another one holds the memory.
    while large().status != 503 {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "there is room for everything: {:?}",
            large()
        );
        held.push(hold());
    }
    assert_eq!(large().refused(503)["code"], "too_many_bodies");
    client.answer(STORY, json!({ "max_tokens": 3 }));
    drop(held);
    let begin = Instant::now();
    while large().status != 400 {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "there is no room again"
        );
    }
}

#[test]
fn many_of_anything_are_refused_at_once() {
    let client = shared();
    let messages: Vec<Value> = vec![json!({ "role": "user", "content": "" }); 100_000];
    let parts: Vec<Value> = vec![json!({ "type": "text", "text": "" }); 80_000];
    let bias: Value = (0..200_000)
        .map(|i| (format!("{i:06}"), json!(1)))
        .collect();
    let parameters: Value = (0..50_000).map(|i| (format!("p{i}"), json!({}))).collect();
    let tool = json!({ "type": "function", "function": { "name": "a", "parameters": { "properties": parameters } } });
    let metadata: Value = vec![json!([]); 1_000_000].into();
    for (settings, status) in [
        (json!({ "messages": messages }), 400),
        (
            json!({ "messages": [{ "role": "user", "content": parts }], "max_tokens": 1 }),
            200,
        ),
        (json!({ "logit_bias": bias }), 400),
        (json!({ "logit_bias": { "007": 1 } }), 400),
        (json!({ "logit_bias": { "+7": 1 } }), 400),
        (json!({ "tools": [tool] }), 400),
        (
            json!({ "tools": vec![json!({ "type": "function", "function": { "name": "a" } }); 100_000] }),
            413,
        ),
        (json!({ "stop": vec!["x"; 300_000] }), 400),
        (json!({ "metadata": metadata, "max_tokens": 1 }), 200),
    ] {
        let begin = Instant::now();
        let response = client.ask(STORY, settings);
        assert_eq!(
            response.status,
            status,
            "{}",
            &response.body[..response.body.len().min(300)]
        );
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "{:?}: {}",
            begin.elapsed(),
            response.body
        );
    }
    for prompt in [
        json!(vec![json!([]); 1_000_000]),
        json!(vec![0; 1_000_000]),
        json!(vec!["x"; 500_000]),
    ] {
        client
            .post("/v1/completions", &json!({ "prompt": prompt }))
            .refused(400);
    }
}
