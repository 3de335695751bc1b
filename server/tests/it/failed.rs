//! An engine that has failed for good.

use super::client::asking;
use super::failing_support::around;
use super::running::start_on;
use super::start;
use gristmill_server::Config;
use serde_json::json;
use std::io::Read;
use std::sync::mpsc;

#[test]
fn a_server_whose_engine_is_gone_says_so() {
    let server = start(Config {
        queue: 4,
        ..Config::default()
    });
    let client = &server.client;
    assert_eq!(client.metric("gristmill_engine_failed"), 0.0);
    // 16 answers of the whole context; the client disconnects after it has read a part.
    let endless = asking(
        "Tell me a story.",
        json!({ "ignore_eos": true, "stream": true, "n": 16 }),
    )
    .to_string();
    let request = client.request(
        "POST",
        "/v1/chat/completions",
        "application/json",
        endless.as_bytes(),
    );
    let waiting = std::thread::scope(|scope| {
        let mut answered = client.send(&request);
        while client.metric("gristmill_requests_running") == 0.0 {
            std::thread::yield_now();
        }
        let waiting = scope.spawn(|| client.ask("Hm?", json!({})));
        while client.metric("gristmill_requests_waiting") == 0.0 {
            std::thread::yield_now();
        }
        server.engine_health.fail("the device was lost");
        // In this test the running answer is unaffected and continues; with a real failure it is
        // the one that fails.
        answered.read_exact(&mut [0; 4096]).expect("an answer");
        drop(answered);
        waiting.join().unwrap()
    });
    assert_eq!(waiting.refused(503)["code"], "engine_failed");
    let error = client.ask("Hm?", json!({})).refused(503);
    assert_eq!(
        error["message"],
        "the model cannot be run any more: the device was lost"
    );
    client
        .post("/v1/completions", &json!({ "prompt": "Hm" }))
        .refused(503);
    let health = client.get("/health");
    assert_eq!(
        (health.status, health.json()),
        (
            503,
            json!({ "status": "failed", "message": "the device was lost" })
        )
    );
    assert_eq!(client.metric("gristmill_engine_failed"), 1.0);
    assert_eq!(client.metric("gristmill_requests_waiting"), 0.0);
    client.get("/v1/models").ok();
}

#[test]
fn a_server_whose_device_is_lost_says_so() {
    for stream in [false, true] {
        let (tell, told) = mpsc::channel();
        let server = start_on(Config::default(), move |processor| {
            let (opened, calls) = around(processor, true);
            tell.send(calls).expect("somebody waits");
            opened
        });
        let client = &server.client;
        let calls = told.recv().expect("a device");
        client.ask("Hm?", json!({ "max_tokens": 3 })).ok();
        assert_eq!(client.get("/health").status, 200);
        // In the middle of an answer: each token takes a launch and a wait.
        calls.lose(20);
        let answer = client.ask(
            "Tell me a story.",
            json!({ "stream": stream, "ignore_eos": true }),
        );
        let error = match stream {
            true => answer.events().pop().expect("events")["error"].take(),
            false => answer.refused(500),
        };
        let message = error["message"].as_str().expect("a message");
        assert!(
            message.contains("the device is lost: ") && message.ends_with("; start again"),
            "{message}"
        );
        let health = client.get("/health");
        let why = health.json()["message"]
            .as_str()
            .expect("a reason")
            .to_owned();
        assert_eq!(
            (health.status, health.json()["status"].as_str()),
            (503, Some("failed"))
        );
        assert!(
            why.contains("the device is lost: ") && why.contains("did not end"),
            "{why}"
        );
        let error = client.ask("Hm?", json!({})).refused(503);
        assert_eq!(
            (
                error["code"].as_str(),
                client.metric("gristmill_engine_failed")
            ),
            (Some("engine_failed"), 1.0)
        );
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|message| message.contains(&why)),
            "{error}"
        );
    }
}
