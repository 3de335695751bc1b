//! An engine that is gone for good.

use super::client::asking;
use super::start;
use gristmill_server::Config;
use serde_json::json;

#[test]
fn a_server_whose_engine_is_gone_says_so() {
    let server = start(Config { queue: 4, ..Config::default() });
    let client = &server.client;
    assert_eq!(client.metric("gristmill_engine_failed"), 0.0);
    let waiting = std::thread::scope(|scope| {
        let endless = asking("Tell me a story.", json!({ "ignore_eos": true, "stream": true }));
        let answered = scope.spawn(|| client.chat(endless));
        while client.metric("gristmill_requests_running") == 0.0 {
            std::thread::yield_now();
        }
        let waiting = scope.spawn(|| client.ask("Hm?", json!({})));
        while client.metric("gristmill_requests_waiting") == 0.0 {
            std::thread::yield_now();
        }
        server.condition.fail("the device was lost");
        // The answer in progress does not know of it here; in earnest it is what has failed.
        answered.join().unwrap().events();
        waiting.join().unwrap()
    });
    assert_eq!(waiting.refused(503)["code"], "engine_failed");
    let error = client.ask("Hm?", json!({})).refused(503);
    assert_eq!(error["message"], "the model cannot be run any more: the device was lost");
    client.post("/v1/completions", &json!({ "prompt": "Hm" })).refused(503);
    let health = client.get("/health");
    assert_eq!((health.status, health.json()), (503, json!({ "status": "failed", "message": "the device was lost" })));
    assert_eq!(client.metric("gristmill_engine_failed"), 1.0);
    assert_eq!(client.metric("gristmill_requests_waiting"), 0.0);
    client.get("/v1/models").ok();
}
