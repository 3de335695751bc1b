//! Several models: selection by name, loading on demand, and eviction.

use super::client::{Client, asking, joined};
use super::running::{File, Running, processor, start_with};
use gristmill_llm::engine::{Engine, Progress};
use gristmill_server::{Config, LoadError, ModelPlan, ModelSource, ModelSpec, ModelText, Offer};
use serde_json::{Value, json};
use std::io::Read;
use std::sync::Arc;

const JAPAN: &str = "What is the capital of Japan?";

/// A model that cannot be loaded.
struct Broken;

impl ModelSource for Broken {
    fn plan(&self) -> Result<ModelPlan, LoadError> {
        let message = "its weights take 900000 MB, and 8000 MB are available".into();
        Err(LoadError {
            message,
            hint: Some("try a smaller one".into()),
            too_large: true,
            lost: false,
        })
    }
    fn text(&self) -> Result<ModelText, LoadError> {
        Err(LoadError::default())
    }
    fn load(&self, _: usize, _: usize, _: &dyn Fn(Progress)) -> Result<Engine, LoadError> {
        Err(LoadError::default())
    }
}

/// The demo model in two files, and one that is too large. `memory` returns the bytes available for
/// models, given the sizes of the first two.
fn several(most_loaded: Option<usize>, memory: impl Fn(&[u64]) -> u64 + Send + 'static) -> Running {
    start_with(Config::default(), move || {
        let opened = processor();
        let files = [
            ("demo", "assets/demo-glm-Q4_0.gguf"),
            ("demo-k", "llm/tests/data/demo-glm-Q4_K_M.gguf"),
        ];
        let mut models: Vec<ModelSpec> = files
            .map(|(name, path)| File::spec(name, path, opened.clone()))
            .into();
        models[1].aliases.push("hf:some/models:Q4_K_M".into());
        let bytes: Vec<u64> = models
            .iter()
            .map(|model| model.plan.as_ref().expect("a plan").bytes)
            .collect();
        let room = memory(&bytes);
        models.push(ModelSpec {
            name: "huge".into(),
            aliases: Vec::new(),
            adapters: Vec::new(),
            plan: Broken.plan(),
            source: Arc::new(Broken),
        });
        Offer {
            models,
            devices: vec!["cpu".into()],
            most_loaded,
            available: Box::new(move || Some(room)),
        }
    })
}

fn text(client: &Client, model: &str) -> String {
    client.answer(
        JAPAN,
        json!({ "model": model, "temperature": 0, "max_tokens": 12 }),
    )
}

/// Returns the names of the loaded models.
fn loaded(client: &Client) -> Vec<String> {
    let models = client.get("/api/ps").ok()["models"].take();
    models
        .as_array()
        .expect("a list")
        .iter()
        .map(|model| model["name"].as_str().expect("a name").to_owned())
        .collect()
}

fn status(client: &Client, model: &str) -> Value {
    client.get(&format!("/v1/models/{model}")).ok()["status"].take()
}

#[test]
fn each_is_loaded_when_it_is_asked_for_and_the_least_recently_used_leaves() {
    // Memory for either of the two, not for both.
    let server = several(None, |bytes| bytes[0].max(bytes[1]) * 3 / 2);
    let client = &server.client;
    assert_eq!(client.get("/health").status, 200);
    let all = client.get("/v1/models").ok();
    let names: Vec<&str> = all["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["id"].as_str().unwrap())
        .collect();
    assert_eq!(
        (names, &all["first_id"], &all["last_id"]),
        (
            vec!["demo", "demo-k", "huge"],
            &json!("demo"),
            &json!("huge")
        )
    );
    assert_eq!(all["data"][0]["status"], json!({ "value": "unloaded" }));
    assert_eq!(all["data"][0]["max_model_len"], 2048);
    assert_eq!(
        client.get("/api/tags").ok()["models"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    assert!(loaded(client).is_empty());
    // Requests that need no engine do not load one.
    assert_eq!(
        client.post("/api/show", &json!({ "model": "demo" })).ok()["details"]["family"],
        "deepseek2"
    );
    client
        .post("/tokenize", &json!({ "model": "demo-k", "content": "Hm" }))
        .ok();
    assert_eq!(
        client.get("/props?model=demo%2Dk").ok()["model_alias"],
        "demo-k"
    );
    assert_eq!(client.get("/props").ok()["models_loaded"], json!([]));
    assert!(loaded(client).is_empty());
    // The requested model answers, regardless of which was loaded before.
    assert!(text(client, "demo").contains("Tokyo"));
    assert_eq!(
        (loaded(client), status(client, "demo")["value"].as_str()),
        (vec!["demo".into()], Some("loaded"))
    );
    let other = client
        .ask(
            JAPAN,
            json!({ "model": "hf:some/models:Q4_K_M", "temperature": 0, "max_tokens": 12 }),
        )
        .ok();
    assert_eq!(
        (loaded(client), other["model"].as_str()),
        (vec!["demo-k".into()], Some("demo-k"))
    );
    assert!(text(client, "DEMO:latest").contains("Tokyo"));
    assert_eq!(loaded(client), ["demo"]);
    for (model, loads, now) in [("demo", 2.0, 1.0), ("demo-k", 1.0, 0.0)] {
        assert_eq!(
            client.metric_of(model, "gristmill_model_loads_total"),
            loads,
            "{model}"
        );
        assert_eq!(
            client.metric_of(model, "gristmill_model_loaded"),
            now,
            "{model}"
        );
    }
    assert_eq!(client.metric_of("demo", "gristmill_requests_total"), 2.0);
    assert_eq!(client.metric_of("demo-k", "gristmill_requests_total"), 1.0);
    // Ollama's clients load a model with an empty request.
    let asked = client
        .post("/api/generate", &json!({ "model": "demo-k" }))
        .ok();
    assert_eq!(
        (asked["done_reason"].as_str(), loaded(client)),
        (Some("load"), vec!["demo-k".to_owned()])
    );
}

#[test]
fn a_model_stays_as_long_as_ollamas_clients_ask_for() {
    let server = several(None, |_| u64::MAX / 2);
    let client = &server.client;
    let is_gone = |model: &str| {
        let begun = std::time::Instant::now();
        while loaded(client).iter().any(|name| name == model) {
            assert!(begun.elapsed().as_secs() < 30, "{model} is still there");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    let generate = |more: Value| {
        let mut body = json!({ "model": "demo", "prompt": JAPAN, "stream": false, "options": { "temperature": 0 } });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        client.post("/api/generate", &body)
    };
    let expires = || {
        client.get("/api/ps").ok()["models"][0]["expires_at"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    // The keep-alive starts after the answer, when the worker waits for the next request.
    let expires_at = |is_expected: &dyn Fn(&str) -> bool| {
        let begun = std::time::Instant::now();
        loop {
            let at = expires();
            if is_expected(&at) {
                return at;
            }
            assert!(begun.elapsed().as_secs() < 30, "still {at}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    // Without a keep-alive the model stays.
    assert!(
        generate(json!({})).ok()["response"]
            .as_str()
            .unwrap()
            .contains("Tokyo")
    );
    assert_eq!(expires(), "9999-12-31T23:59:59Z");
    // A keep-alive restarts with every answer; a request without one leaves it unchanged.
    generate(json!({ "keep_alive": "1h" })).ok();
    let hour = expires_at(&|at| at.starts_with("20"));
    generate(json!({})).ok();
    expires_at(&|at| at.starts_with("20") && at >= hour.as_str());
    generate(json!({ "keep_alive": -1 })).ok();
    expires_at(&|at| at == "9999-12-31T23:59:59Z");
    // A keep-alive of 0: the model answers, and is unloaded.
    assert!(
        generate(json!({ "keep_alive": 0 })).ok()["response"]
            .as_str()
            .unwrap()
            .contains("Tokyo")
    );
    is_gone("demo");
    // An unloaded model forgets its keep-alive.
    generate(json!({})).ok();
    assert_eq!(expires(), "9999-12-31T23:59:59Z");
    // An empty prompt loads or unloads the model.
    for (path, empty) in [
        ("/api/generate", json!({ "prompt": "" })),
        ("/api/chat", json!({ "messages": [] })),
    ] {
        let ask = |model: &str, keep: Value| {
            let mut body = empty.clone();
            (body["model"], body["keep_alive"]) = (model.into(), keep);
            client.post(path, &body).ok()["done_reason"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        assert_eq!(
            (ask("demo-k", json!("10m")).as_str(), loaded(client).len()),
            ("load", 2)
        );
        assert_eq!(ask("demo-k", json!(0)), "unload");
        is_gone("demo-k");
        assert_eq!(
            (ask("demo-k", json!("0s")).as_str(), loaded(client).len()),
            ("unload", 1)
        );
    }
    client
        .post(
            "/api/embed",
            &json!({ "model": "demo-k", "input": "x", "keep_alive": "20ms" }),
        )
        .ok();
    is_gone("demo-k");
    assert_eq!(
        client.metric_of("demo-k", "gristmill_model_loads_total"),
        3.0
    );
    let refused = client.post(
        "/api/chat",
        &json!({ "model": "demo", "messages": [], "keep_alive": "soon" }),
    );
    assert_eq!(refused.status, 400);
    assert!(
        refused.json()["error"].as_str().unwrap().contains("5m"),
        "{refused:?}"
    );
}

#[test]
fn nobody_leaves_while_it_answers_and_nobody_waits_for_ever() {
    let server = several(Some(1), |_| u64::MAX / 2);
    let client = &server.client;
    let endless = json!({ "model": "demo", "stream": true, "max_tokens": 600, "ignore_eos": true, "temperature": 0 });
    let endless = asking("Tell me a story.", endless).to_string();
    let request = client.request(
        "POST",
        "/v1/chat/completions",
        "application/json",
        endless.as_bytes(),
    );
    let mut answer = client.send(&request);
    while client.metric("gristmill_requests_running") == 0.0 {
        std::thread::yield_now();
    }
    // The other model is loaded after the running answer; a later request for the first one comes
    // after that.
    let (mut whole, other, later) = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            client.ask(
                JAPAN,
                json!({ "model": "demo-k", "stream": true, "max_tokens": 4 }),
            )
        });
        while status(client, "demo-k")["value"] != "loading" {
            std::thread::yield_now();
        }
        let later = scope.spawn(|| client.ask(JAPAN, json!({ "stream": true, "temperature": 0 })));
        let mut whole = String::new();
        answer.read_to_string(&mut whole).expect("an answer");
        (whole, other.join().unwrap(), later.join().unwrap())
    });
    whole.retain(|c| c != '\r');
    assert!(
        whole.contains("\"finish_reason\":\"length\"") && whole.ends_with("data: [DONE]\n\n"),
        "{whole}"
    );
    assert!(
        other.body.contains(": waiting to be loaded\n"),
        "{}",
        other.body
    );
    assert!(
        other.body.contains(": loading weights ") && other.events().len() > 3,
        "{}",
        other.body
    );
    assert_eq!(joined(&later.events()), "The capital of Japan is Tokyo.");
    assert_eq!(client.metric_of("demo", "gristmill_model_loads_total"), 2.0);
    assert_eq!(loaded(client), ["demo"]);
}

#[test]
fn two_answer_side_by_side_where_there_is_room() {
    let server = several(None, |_| u64::MAX / 2);
    let client = &server.client;
    assert!(text(client, "demo").contains("Tokyo"));
    let long = json!({ "model": "demo", "stream": true, "n": 16, "ignore_eos": true });
    let long = asking("Tell me a story.", long).to_string();
    let answer = client.send(&client.request(
        "POST",
        "/v1/chat/completions",
        "application/json",
        long.as_bytes(),
    ));
    while client.metric("gristmill_requests_running") == 0.0 {
        std::thread::yield_now();
    }
    text(client, "demo-k");
    assert_eq!(
        client.metric("gristmill_requests_running"),
        1.0,
        "nobody has waited for that one"
    );
    assert_eq!(loaded(client), ["demo", "demo-k"]);
    drop(answer);
}

#[test]
fn a_name_that_is_none_and_a_model_that_cannot_be_had_are_told_in_each_interface() {
    let server = several(None, |bytes| bytes[0] / 2);
    let client = &server.client;
    let error = client.ask("Hm?", json!({ "model": "dmo" })).refused(404);
    let message = error["message"].as_str().unwrap();
    assert_eq!(
        (error["code"].as_str(), error["param"].as_str()),
        (Some("model_not_found"), Some("model"))
    );
    assert_eq!(
        message,
        "the model `dmo` does not exist here; did you mean `demo`? this server has `demo`, `demo-k`, `huge`"
    );
    let body = |model: &str| json!({ "model": model, "messages": [{ "role": "user", "content": "Hm?" }], "max_tokens": 4 });
    let anthropic = client.post("/v1/messages", &body("dmo"));
    assert_eq!(
        (anthropic.status, anthropic.json()["error"]["type"].as_str()),
        (404, Some("not_found_error"))
    );
    let ollama = client.post(
        "/api/chat",
        &json!({ "model": "dmo", "messages": [{ "role": "user", "content": "Hm?" }] }),
    );
    assert_eq!(
        (ollama.status, ollama.json()["error"].as_str()),
        (404, Some(message))
    );
    client
        .post("/v1/responses", &json!({ "model": "dmo", "input": "Hm?" }))
        .refused(404);
    client
        .post("/v1/embeddings", &json!({ "model": "dmo", "input": "Hm?" }))
        .refused(404);
    client.get("/v1/models/dmo").refused(404);
    client.get("/tokenizer_info?model=dmo").refused(404);
    // Several models, and none is named.
    let error = client
        .post("/v1/completions", &json!({ "prompt": "Hm" }))
        .refused(400);
    assert_eq!(
        (error["code"].as_str(), error["param"].as_str()),
        (Some("missing_required_parameter"), Some("model"))
    );
    // Too large in principle, and too large for the memory: a retry is useless, and other models
    // are unaffected.
    for (model, why) in [("huge", "900000 MB"), ("demo", "memory for models")] {
        let error = client.ask("Hm?", json!({ "model": model })).refused(400);
        let message = error["message"].as_str().unwrap();
        assert!(
            error["code"] == "model_too_large"
                && message.contains(why)
                && message.contains("try a smaller"),
            "{error}"
        );
        let status = status(client, model);
        assert_eq!(
            (status["value"].as_str(), status["failed"].as_bool()),
            (Some("unloaded"), Some(true)),
            "{status}"
        );
    }
    let anthropic = client.post("/v1/messages", &body("huge"));
    assert_eq!(
        (anthropic.status, anthropic.json()["error"]["type"].as_str()),
        (400, Some("invalid_request_error"))
    );
    let ollama = client.post("/api/generate", &json!({ "model": "demo" }));
    assert!(
        ollama.status == 400
            && ollama.json()["error"]
                .as_str()
                .unwrap()
                .contains("cannot be loaded"),
        "{ollama:?}"
    );
    // A request for a stream gets the error in the stream.
    let streamed = client
        .ask("Hm?", json!({ "model": "demo-k", "stream": true }))
        .events();
    assert_eq!(streamed.last().unwrap()["error"]["code"], "model_too_large");
    assert_eq!(
        client.metric_of("demo", "gristmill_model_load_failures_total"),
        2.0
    );
    assert_eq!(client.get("/health").status, 200);
}
