//! Replicas: one model on several devices behind one queue.

use super::client::{Client, asking};
use super::failing_support::{Calls, around};
use super::running::{File, PARALLEL, Running, processor, start_with};
use gristmill_server::{Config, Offer};
use serde_json::{Value, json};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const JAPAN: &str = "What is the capital of Japan?";
const DEMO: &str = "assets/demo-glm-Q4_0.gguf";
/// Time allowed for short operations on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a server with replicas of the demo model on that many CPU devices that can be lost, and
/// waits until all of them serve.
fn start(replicas: usize) -> (Running, Vec<Arc<Calls>>) {
    let (tell, told) = mpsc::channel();
    let server = start_with(Config::default(), move || {
        let (opened, calls) = (0..replicas).map(|_| around(processor(), true)).unzip();
        tell.send(calls).expect("somebody waits");
        Offer {
            models: vec![File::spec_for("demo", DEMO, opened, PARALLEL)],
            devices: (0..replicas).map(|n| format!("cpu:{n}")).collect(),
            most_loaded: None,
            available: Box::new(|| None),
        }
    });
    let all: f64 = replicas as f64;
    wait_until("all replicas serve", || {
        (0..replicas)
            .map(|n| metric(&server.client, n, "up"))
            .sum::<f64>()
            == all
    });
    let calls = told.recv().expect("devices");
    (server, calls)
}

#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a value of `/metrics` of a replica of the demo model.
#[track_caller]
fn metric(client: &Client, replica: usize, name: &str) -> f64 {
    let text = client.get("/metrics").body;
    let start = format!(
        "gristmill_replica_{name}{{model=\"demo\",replica=\"{replica}\",device=\"cpu:{replica}\"}} "
    );
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(&start));
    let value = lines.next().and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("no {start}: {text}"))
}

fn requests(client: &Client) -> [f64; 2] {
    [0, 1].map(|n| metric(client, n, "requests_total"))
}

fn cached(answer: &Value) -> u64 {
    let details = &answer["usage"]["prompt_tokens_details"];
    details["cached_tokens"].as_u64().expect("usage")
}

fn long_question(seed: usize) -> String {
    let words: Vec<String> = (0..60)
        .map(|i| format!("{} is {}.", seed * 1000 + i, i * 7))
        .collect();
    words.join(" ")
}

#[test]
fn concurrent_requests_use_all_replicas_and_get_the_same_text() {
    let (server, _) = start(2);
    let client = &server.client;
    // Long answers, so that requests overlap on a fast machine too.
    let greedy = json!({
        "temperature": 0, "max_tokens": 200, "ignore_eos": true, "batch_invariant": true
    });
    let alone = super::shared().answer(JAPAN, greedy.clone());
    std::thread::scope(|scope| {
        let ask = || assert_eq!(client.answer(JAPAN, greedy.clone()), alone);
        (0..16).for_each(|_| _ = scope.spawn(ask));
    });
    let [first, second] = requests(client);
    assert_eq!(first + second, 16.0);
    assert!(first >= 4.0 && second >= 4.0, "{first} and {second}");
    assert_eq!(client.metric("gristmill_requests_total"), 16.0);
    let generated = [0, 1].map(|n| metric(client, n, "generated_tokens_total"));
    assert_eq!(
        generated.iter().sum::<f64>(),
        client.metric("gristmill_generated_tokens_total")
    );
}

#[test]
fn loads_and_models_list_the_replicas() {
    let (server, _) = start(2);
    let client = &server.client;
    let loads = client.get("/v1/loads").ok();
    let load = &loads["loads"][0];
    assert_eq!(load["max_running_requests"], 2 * PARALLEL);
    let replicas = loads["models"][0]["replicas"].as_array().expect("replicas");
    for (n, replica) in replicas.iter().enumerate() {
        assert_eq!(replica["device"], format!("cpu:{n}"));
        assert_eq!(replica["status"], "loaded");
        assert_eq!(replica["max_running_requests"], PARALLEL);
    }
    let room = |load: &Value| load["max_total_num_tokens"].as_u64().expect("tokens");
    assert_eq!(room(load), replicas.iter().map(room).sum::<u64>());
    let model = client.get("/v1/models/demo").ok();
    let status = &model["status"];
    let bytes = |of: &Value| of["bytes"].as_u64().expect("bytes");
    let replicas = status["replicas"].as_array().expect("replicas");
    assert_eq!(bytes(status), replicas.iter().map(bytes).sum::<u64>());
    assert_eq!(bytes(status) as f64, client.metric("gristmill_model_bytes"));
    assert_eq!(
        (replicas.len(), &replicas[1]["value"]),
        (2, &json!("loaded"))
    );
    let slots = client.metric("gristmill_requests_running_most");
    assert_eq!(slots, 2.0 * PARALLEL as f64);
    assert_eq!(client.metric("gristmill_model_loaded"), 1.0);
}

#[test]
fn a_conversation_stays_where_its_pages_are() {
    let (server, _) = start(2);
    let client = &server.client;
    let ask = |seed: usize, more: &str| {
        let question = long_question(seed) + more;
        client.ask(&question, json!({ "max_tokens": 4 })).ok()
    };
    // Two conversations begin at the same time, one on each replica.
    std::thread::scope(|scope| {
        let begin = |seed| {
            let settings = json!({ "max_tokens": 300, "ignore_eos": true });
            client.ask(&long_question(seed), settings).ok()
        };
        (0..2).for_each(|seed| _ = scope.spawn(move || begin(seed)));
    });
    assert_eq!(requests(client), [1.0, 1.0]);
    for turn in 0..6 {
        let before = requests(client);
        let hits = [0, 1].map(|n| metric(client, n, "prompt_tokens_cached_total"));
        let answer = ask(turn % 2, " And then?");
        let prompt = answer["usage"]["prompt_tokens"].as_u64().expect("usage");
        assert!(cached(&answer) + 80 > prompt && prompt > 300, "{answer}");
        let taken = [0, 1].map(|n| requests(client)[n] - before[n]);
        let hits = [0, 1].map(|n| metric(client, n, "prompt_tokens_cached_total") - hits[n]);
        let by = usize::from(taken[1] == 1.0);
        assert_eq!(hits[by], cached(&answer) as f64);
        assert_eq!(taken[by], 1.0);
    }
    // Three turns of each conversation after its first.
    assert_eq!(requests(client), [4.0, 4.0]);
}

#[test]
fn a_lost_replica_fails_only_what_it_was_answering() {
    let (server, calls) = start(2);
    let client = &server.client;
    let endless = json!({ "ignore_eos": true, "max_tokens": 1500 });
    let answers = std::thread::scope(|scope| {
        let ask = || client.chat(asking("Tell me a story.", endless.clone()));
        let all: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        wait_until("both are busy", || {
            [0, 1]
                .iter()
                .all(|&n| metric(client, n, "requests_running") == 2.0)
        });
        calls[1].lose(1);
        all.into_iter()
            .map(|answer| answer.join().expect("an answer"))
            .collect::<Vec<_>>()
    });
    let (good, bad): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert_eq!((good.len(), bad.len()), (2, 2), "{bad:?}");
    for answer in bad {
        let error = answer.refused(500);
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains("the device is lost"), "{message}");
    }
    for answer in good {
        assert_eq!(answer.ok()["usage"]["completion_tokens"], 1500);
    }
    assert_eq!(client.metric("gristmill_requests_failed_total"), 2.0);
    let health = client.get("/health");
    assert_eq!(
        (health.status, health.json()),
        (200, json!({ "status": "ok", "lost_devices": ["cpu:1"] }))
    );
    let model = client.get("/v1/models/demo").ok();
    wait_until("the replica has left", || metric(client, 1, "up") == 0.0);
    assert_eq!(model["status"]["value"], "loaded");
    let loads = client.get("/v1/loads").ok();
    assert_eq!(loads["models"][0]["replicas"][1]["status"], "lost");
    assert_eq!(loads["loads"][0]["max_running_requests"], PARALLEL);
    // Later requests are answered, more at a time than one replica runs.
    std::thread::scope(|scope| {
        let ask = || client.answer(JAPAN, json!({ "max_tokens": 8 }));
        (0..2 * PARALLEL).for_each(|_| _ = scope.spawn(ask));
    });
    let [_, second] = requests(client);
    assert_eq!(second, 2.0);
    assert_eq!(client.metric("gristmill_engine_failed"), 0.0);
    // Without any device, the server has failed.
    calls[0].lose(1);
    client.ask(JAPAN, json!({})).refused(500);
    assert_eq!(client.get("/health").status, 503);
    client.ask(JAPAN, json!({})).refused(503);
    assert_eq!(client.metric("gristmill_engine_failed"), 1.0);
}

#[test]
fn replicas_leave_and_come_back_together() {
    let (server, _) = start(2);
    let client = &server.client;
    let unload = json!({ "model": "demo", "keep_alive": 0 });
    client.post("/api/generate", &unload).ok();
    wait_until("both have left", || {
        client.metric("gristmill_model_loaded") == 0.0
    });
    assert_eq!([0, 1].map(|n| metric(client, n, "up")), [0.0, 0.0]);
    assert_eq!(client.metric("gristmill_model_bytes"), 0.0);
    client.answer(JAPAN, json!({ "max_tokens": 4 }));
    wait_until("both are back", || {
        [0, 1].iter().all(|&n| metric(client, n, "up") == 1.0)
    });
    assert_eq!(client.metric("gristmill_model_loads_total"), 2.0);
}
