//! Load test: many concurrent clients, a third of which disconnect. It runs in a process of its
//! own, so that the memory is that of the server and its clients only.
//!
//! The long run is `GRISTMILL_LOAD_REQUESTS=10000 cargo test -p gristmill-server --test load --
//! --nocapture`.

#[path = "it/client.rs"]
#[expect(dead_code, reason = "it uses its part")]
mod client;
#[path = "it/running.rs"]
#[expect(dead_code, reason = "it uses its part")]
mod running;

use client::{Client, asking, joined};
use gristmill_server::Config;
use running::start;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const CLIENTS: usize = 64;
/// Number of requests by default; `GRISTMILL_LOAD_REQUESTS` overrides it.
const REQUESTS: usize = 600;
/// Number of distinct requests.
const KINDS: usize = 24;
/// Allowed difference of the memory at the end in kilobytes: the allocator keeps some.
const SLACK_KB: u64 = 24 << 10;

/// Returns the resident memory of this process in kilobytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|text| text.trim().split(' ').next()?.parse().ok())
        .unwrap_or(0)
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Number of moments at which a client may disconnect.
const MOMENTS: u64 = 5;

/// Sends a request and disconnects at a moment derived from `chance`: before all is sent, before
/// the answer, or within it.
fn leave(client: &Client, body: &Value, chance: u64) {
    let moment = chance / MOMENTS;
    match chance % MOMENTS {
        0 => {
            let text = body.to_string();
            let request = client.request(
                "POST",
                "/v1/chat/completions",
                "application/json",
                text.as_bytes(),
            );
            drop(client.send(&request[..moment as usize % request.len()]));
        }
        1 => {
            let text = body.to_string();
            let request = client.request(
                "POST",
                "/v1/chat/completions",
                "application/json",
                text.as_bytes(),
            );
            let stream = client.send(&request);
            std::thread::sleep(Duration::from_millis(moment % 64));
            drop(stream);
        }
        _ => client.hang_up(body, moment as usize % 16),
    }
}

/// Returns the `i`-th number of a deterministic pseudo-random sequence (SplitMix64).
fn scattered(i: u64) -> u64 {
    let mut z = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn every_answer_is_complete_and_correct() {
    let server = start(Config::default());
    let client = &server.client;
    let body = |kind: usize, stream: bool| {
        let question = match kind % 3 {
            0 => "What is the capital of Japan?".to_owned(),
            1 => "Tell me a story.".to_owned(),
            _ => format!("Tell me a story about {}a frog.", "a fox and ".repeat(kind)),
        };
        asking(
            &question,
            json!({ "seed": kind, "temperature": 1, "max_tokens": 16, "stream": stream, "batch_invariant": true }),
        )
    };
    let expected: Vec<String> = (0..KINDS)
        .map(|kind| {
            client.chat(body(kind, false)).ok()["choices"][0]["message"]["content"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    let run = |requests: usize| {
        let (next, wrong) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        if i >= requests {
                            break;
                        }
                        let kind = i % KINDS;
                        if i % 3 == 2 {
                            leave(client, &body(kind, i % 2 == 0), scattered(i as u64));
                            continue;
                        }
                        let stream = i % 2 == 0;
                        let response = client.chat(body(kind, stream));
                        let text = match stream {
                            true => joined(&response.events()),
                            false => response.ok()["choices"][0]["message"]["content"]
                                .as_str()
                                .unwrap()
                                .to_owned(),
                        };
                        if text != expected[kind] {
                            eprintln!("{kind}: {text:?} should be {:?}", expected[kind]);
                            wrong.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let begin = Instant::now();
        while client.metric("gristmill_requests_running")
            + client.metric("gristmill_requests_waiting")
            > 0.0
        {
            assert!(
                begin.elapsed() < Duration::from_secs(20),
                "something is left running"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        wrong.into_inner()
    };
    // Load as routers read it: nothing is running, queued or held in the KV cache.
    let load = || client.get("/v1/loads").ok()["loads"].take();
    let idle = load();
    assert_eq!(
        (&idle[0]["num_total_reqs"], &idle[0]["num_used_tokens"]),
        (&json!(0), &json!(0)),
        "{idle}"
    );
    // A first run, for memory that is only allocated once.
    assert_eq!(run(4 * CLIENTS), 0);
    let (memory, tasks) = (resident(), threads());
    let requests = std::env::var("GRISTMILL_LOAD_REQUESTS")
        .map_or(REQUESTS, |text| text.parse().expect("a number"));
    let begin = Instant::now();
    assert_eq!(run(requests), 0);
    println!(
        "{requests} requests of {CLIENTS} clients in {:.1} s",
        begin.elapsed().as_secs_f64()
    );
    println!(
        "memory {memory} kB before, {} kB after; threads {tasks} before, {} after",
        resident(),
        threads()
    );
    assert!(
        resident() < memory + SLACK_KB,
        "{memory} kB before, {} kB after",
        resident()
    );
    assert_eq!(client.metric("gristmill_requests_failed_total"), 0.0);
    // No page is leaked.
    assert!(client.metric("gristmill_cache_pages") > 0.0);
    assert_eq!(client.metric("gristmill_cache_pages_used"), 0.0);
    assert_eq!(client.metric("gristmill_cache_pages_leaked"), 0.0);
    // Cancelled requests have released their pages, as completed ones have.
    assert_eq!(load(), idle);
    assert_eq!(client.metric("gristmill_cache_tokens"), 0.0);
    // Only the connection of this request is left.
    let begin = Instant::now();
    while client.metric("gristmill_connections") > 1.0 {
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "somebody is left"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
