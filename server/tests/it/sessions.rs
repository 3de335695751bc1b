//! Sessions: prefix caching, cancellation, and texts that do not depend on other requests.

use super::client::{Client, asking};
use super::running::{File, processor, start_single, start_with};
use super::{shared, start};
use gristmill_server::{Config, Offer};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap()
}

#[test]
fn a_shared_prefix_is_not_run_again() {
    let server = start(Config::default());
    let story = |seed: u64| {
        let words: Vec<String> = (0..60)
            .map(|i| format!("{} is {}.", seed * 1000 + i, i * 7))
            .collect();
        words.join(" ")
    };
    let ask = |seed: u64| {
        server
            .client
            .ask(&story(seed), json!({ "max_tokens": 4, "seed": 1 }))
            .ok()
    };
    let first: Vec<Value> = (0..4).map(ask).collect();
    assert!(first.iter().all(|answer| cached(answer) < 40), "{first:?}");
    // The prefix cache holds several conversations.
    for (i, before) in first.iter().enumerate() {
        let again = ask(i as u64);
        let prompt = again["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!(cached(&again) + 40 > prompt && prompt > 300, "{again}");
        assert_eq!(again["choices"], before["choices"]);
    }
    assert!(server.client.metric("gristmill_prefix_cache_bytes") > 0.0);
    assert!(server.client.metric("gristmill_prompt_tokens_cached_total") > 1000.0);
}

#[test]
fn a_single_sequence_keeps_several_conversations() {
    let server = start_single(Config::default());
    let story = |seed: u64| {
        let words: Vec<String> = (0..60)
            .map(|i| format!("{} is {}.", seed * 1000 + i, i * 7))
            .collect();
        words.join(" ")
    };
    let ask = |seed: u64| {
        server
            .client
            .ask(&story(seed), json!({ "max_tokens": 4, "seed": 1 }))
            .ok()
    };
    // Longer than one context in total.
    let first: Vec<Value> = (0..8).map(ask).collect();
    let prompts: u64 = first
        .iter()
        .map(|answer| answer["usage"]["prompt_tokens"].as_u64().unwrap())
        .sum();
    assert!(prompts > 2048, "{prompts}");
    for (i, before) in first.iter().enumerate() {
        let again = ask(i as u64);
        let prompt = again["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!(cached(&again) + 40 + 64 > prompt && prompt > 300, "{again}");
        assert_eq!(again["choices"], before["choices"]);
    }
    // The pool itself holds them: on a CPU no page is copied to the host.
    assert_eq!(
        server.client.metric("gristmill_kv_pages_swapped_in_total"),
        0.0
    );
}

#[test]
fn a_single_sequence_serves_requests_in_turn() {
    let server = start_single(Config::default());
    let client = &server.client;
    assert_eq!(
        client.get("/v1/loads").ok()["loads"][0]["max_running_requests"],
        1
    );
    let several = json!({ "n": 3, "temperature": 0, "max_tokens": 12 });
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let answer = client
                    .ask("What is the capital of Japan?", several.clone())
                    .ok();
                let choices = answer["choices"].as_array().unwrap();
                assert_eq!(choices.len(), 3);
                let is_right = |choice: &Value| {
                    choice["message"]["content"]
                        .as_str()
                        .unwrap()
                        .contains("Tokyo")
                };
                assert!(choices.iter().all(is_right), "{answer}");
            });
        }
    });
    let scored = json!({ "prompt": "What is this?", "echo": true, "logprobs": 1, "max_tokens": 2 });
    client.post("/v1/completions", &scored).ok();
    let vectors = client
        .post("/v1/embeddings", &json!({ "input": ["one", "two"] }))
        .ok();
    assert_eq!(vectors["data"].as_array().unwrap().len(), 2);
    assert_eq!(client.metric("gristmill_requests_failed_total"), 0.0);
    assert_eq!(client.metric("gristmill_cache_pages_leaked"), 0.0);
}

#[test]
fn a_conversation_goes_on_where_it_was() {
    let server = start(Config::default());
    let mut messages = vec![json!({ "role": "user", "content": "Tell me a story." })];
    let mut run = Vec::new();
    for question in ["What is the capital of Japan?", "What is 17 plus 25?"] {
        let body = json!({ "messages": messages, "max_tokens": 150, "temperature": 0.5 });
        let answer = server.client.chat(body).ok();
        run.push(answer["usage"]["prompt_tokens"].as_u64().unwrap() - cached(&answer));
        messages.push(answer["choices"][0]["message"].clone());
        messages.push(json!({ "role": "user", "content": question }));
    }
    // The second prompt contains the first answer, which is a prefix hit.
    assert!(run[1] < 40, "{run:?}");
}

#[test]
fn who_hangs_up_is_not_answered_further() {
    let server = start(Config::default());
    let client = &server.client;
    let before = client.metric("gristmill_generated_tokens_total");
    let endless = asking(
        "Tell me a story.",
        json!({ "stream": true, "ignore_eos": true, "timings_per_token": true }),
    );
    for _ in 0..5 {
        client.hang_up(&endless, 12);
    }
    let begin = Instant::now();
    while client.metric("gristmill_requests_running") + client.metric("gristmill_requests_waiting")
        > 0.0
    {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "somebody is still being answered"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(client.metric("gristmill_requests_abandoned_total"), 5.0);
    // Each client read about ten of 2,000 tokens; the rest was generated before the server noticed,
    // within one or two flush intervals of 20 ms.
    let tokens = client.metric("gristmill_generated_tokens_total") - before;
    println!("{tokens} tokens for five who left");
    assert!(tokens < 5.0 * 400.0, "{tokens}");
    // Clients that wait for a whole response may disconnect, too.
    let whole = asking("Tell me a story.", json!({ "ignore_eos": true, "n": 16 }));
    let begin = Instant::now();
    drop(client.send(&{
        let body = whole.to_string();
        format!("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }));
    std::thread::sleep(Duration::from_millis(50));
    while client.metric("gristmill_requests_running") + client.metric("gristmill_requests_waiting")
        > 0.0
    {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "it is still being answered"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn answers_are_made_side_by_side() {
    let server = start(Config::default());
    let client = &server.client;
    let endless = asking(
        "Tell me a story.",
        json!({ "stream": true, "ignore_eos": true, "max_tokens": 1800 }),
    )
    .to_string();
    let request = client.request(
        "POST",
        "/v1/chat/completions",
        "application/json",
        endless.as_bytes(),
    );
    let first = client.send(&request);
    while client.metric("gristmill_requests_running") == 0.0 {
        std::thread::yield_now();
    }
    let other = client
        .ask(
            "What is the capital of Japan?",
            json!({ "temperature": 0, "max_tokens": 12 }),
        )
        .ok();
    assert!(
        other["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .contains("Tokyo"),
        "{other}"
    );
    assert_eq!(
        client.metric("gristmill_requests_running"),
        1.0,
        "the other answer has not ended meanwhile"
    );
    assert!(client.metric("gristmill_cache_pages_used") > 0.0);
    drop(first);
    let begin = Instant::now();
    while client.metric("gristmill_cache_pages_used") > 0.0 {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "pages of somebody who has gone"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_seed_repeats_a_text_alone_also_from_the_prefix_cache() {
    let server = start(Config::default());
    let question = format!("Tell me a story about {}a frog.", "a fox and ".repeat(40));
    for settings in [
        json!({ "seed": 3, "temperature": 1.2 }),
        json!({ "seed": 3, "temperature": 0 }),
    ] {
        let mut settings = settings;
        settings["max_tokens"] = 60.into();
        // The first answer puts rows of another step kind into the prefix cache.
        server
            .client
            .ask(&question, json!({ "temperature": 1, "max_tokens": 20 }))
            .ok();
        let first = server.client.ask(&question, settings.clone()).ok();
        let again = server.client.ask(&question, settings).ok();
        assert!(cached(&again) >= 64, "{again}");
        assert_eq!(again["choices"], first["choices"]);
    }
}

#[test]
fn batch_invariance_is_asked_for_in_each_interface() {
    let server = start(Config::default());
    let client = &server.client;
    let messages = json!([{ "role": "user", "content": "Tell me a story about a frog." }]);
    let options = json!({ "temperature": 0, "num_predict": 40 });
    // Without load: the steps have one row unless they are batch-invariant.
    let texts = |client: &Client| {
        let answer = |path: &str, body: Value| client.post(path, &body).ok();
        let body = json!({ "messages": messages, "model": "demo", "temperature": 0, "max_tokens": 40, "batch_invariant": true });
        let chat = answer("/v1/chat/completions", body.clone());
        let anthropic = answer("/v1/messages", body);
        let body = json!({ "input": messages, "temperature": 0, "max_output_tokens": 40, "batch_invariant": true });
        let response = answer("/v1/responses", body);
        let mut body =
            json!({ "model": "demo", "messages": messages, "options": options, "stream": false });
        body["batch_invariant"] = true.into();
        let ollama = answer("/api/chat", body.clone());
        body.as_object_mut().unwrap().remove("batch_invariant");
        body["options"]["batch_invariant"] = true.into();
        let option = answer("/api/chat", body);
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        [
            text(&chat["choices"][0]["message"]["content"]),
            text(&anthropic["content"][0]["text"]),
            text(&response["output"][0]["content"][0]["text"]),
            text(&ollama["message"]["content"]),
            text(&option["message"]["content"]),
        ]
    };
    let alone = texts(client);
    assert!(alone.iter().all(|text| *text == alone[0]), "{alone:?}");
    // Under load: the steps have several rows.
    let busy = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let busy = &busy;
            scope.spawn(move || {
                while busy.load(Ordering::Relaxed) {
                    client
                        .ask(
                            "Tell me a story.",
                            json!({ "seed": seed, "max_tokens": 60 }),
                        )
                        .ok();
                }
            });
        }
        let loaded = std::panic::catch_unwind(|| texts(client));
        busy.store(false, Ordering::Relaxed);
        assert_eq!(loaded.expect("answers"), alone);
    });
    let refused = client
        .ask("Hm?", json!({ "batch_invariant": "yes" }))
        .refused(400);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("batch_invariant"),
        "{refused}"
    );
}

#[test]
fn a_batch_invariant_seed_gives_a_text_whatever_else_runs() {
    let client = shared();
    let questions: Vec<String> = (0..6)
        .map(|i| format!("Tell me a story about {}.", "a frog and ".repeat(i * 5)))
        .collect();
    let ask = |i: usize| {
        client.answer(
            &questions[i],
            json!({ "seed": i, "temperature": 1.2, "max_tokens": 60 }),
        )
    };
    let alone: Vec<String> = (0..questions.len()).map(ask).collect();
    let fresh = start(Config {
        batch_invariant: true,
        ..Config::default()
    });
    std::thread::scope(|scope| {
        for round in 0..4 {
            let (alone, questions, ask) = (&alone, &questions, &ask);
            let fresh = &fresh.client;
            scope.spawn(move || {
                for k in 0..questions.len() {
                    let i = (k + round) % questions.len();
                    // Other requests in between, with rows that are not exact.
                    client
                        .ask(&questions[i], json!({ "temperature": 1, "max_tokens": 20 }))
                        .ok();
                    assert_eq!(ask(i), alone[i], "{i}");
                    let settings = json!({ "seed": i, "temperature": 1.2, "max_tokens": 60 });
                    assert_eq!(fresh.answer(&questions[i], settings), alone[i], "{i}");
                }
            });
        }
    });
}

#[test]
fn a_server_ends_while_it_is_busy() {
    let server = start(Config {
        drain: Duration::ZERO,
        ..Config::default()
    });
    let client = server.client.clone();
    let endless = asking(
        "Tell me a story.",
        json!({ "stream": true, "ignore_eos": true, "n": 16 }),
    );
    let asking = std::thread::spawn(move || client.chat(endless));
    while server.client.metric("gristmill_requests_running") == 0.0 {
        std::thread::yield_now();
    }
    let begin = Instant::now();
    drop(server);
    assert!(
        begin.elapsed() < Duration::from_secs(60),
        "{:?}",
        begin.elapsed()
    );
    let events = asking.join().unwrap().events();
    assert_eq!(events.last().unwrap()["error"]["type"], "server_error");
}

/// Drafts of a server change no text, and are counted.
#[test]
fn drafts_change_no_text() {
    let config = Config {
        batch_invariant: true,
        ..Config::default()
    };
    let server = start_with(config, || Offer {
        models: vec![File::drafting_demo(processor())],
        devices: vec!["cpu".into()],
        most_loaded: None,
        available: Box::new(|| None),
    });
    let client = &server.client;
    const QUESTION: &str = "Tell me about a frog";
    // Of all sources and places.
    let sum = |name: &str| -> f64 {
        let (text, start) = (client.get("/metrics").body, format!("{name}{{"));
        let lines = text.lines().filter(|line| line.starts_with(&start));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum()
    };
    let mut drafted = 0.0;
    for settings in [
        json!({ "temperature": 0 }),
        json!({ "temperature": 0.8, "seed": 3 }),
    ] {
        let mut with = settings.clone();
        with["max_tokens"] = 300.into();
        with["ignore_eos"] = true.into();
        let mut without = with.clone();
        without["speculate"] = false.into();
        let plain = client.chat(asking(QUESTION, without)).json();
        assert_eq!(sum("gristmill_draft_tokens_total"), drafted);
        let answer = client.chat(asking(QUESTION, with)).json();
        let text = |of: &Value| of["choices"][0]["message"]["content"].clone();
        assert_eq!(text(&answer), text(&plain), "{settings}");
        let usage = |of: &Value, name: &str| of["usage"]["completion_tokens_details"][name].clone();
        assert_eq!(usage(&plain, "accepted_prediction_tokens"), Value::Null);
        let kept = usage(&answer, "accepted_prediction_tokens").as_f64();
        let lost = usage(&answer, "rejected_prediction_tokens").as_f64();
        let before = std::mem::replace(&mut drafted, sum("gristmill_draft_tokens_total"));
        assert_eq!(kept.zip(lost).map(|(a, b)| a + b), Some(drafted - before));
        assert_eq!(answer["timings"]["draft_n_accepted"].as_f64(), kept);
    }
    let kept = sum("gristmill_draft_tokens_accepted_total");
    assert!(drafted >= kept && kept > 0.0, "{kept} of {drafted}");
}
