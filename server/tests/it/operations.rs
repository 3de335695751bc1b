//! Interfaces for routers and operators, and graceful shutdown.

use super::client::{Client, Response, asking};
use super::{Running, start};
use gristmill_server::Config;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const STORY: &str = "Tell me a story.";
/// Time allowed for short operations on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A streamed answer in progress.
struct Telling(BufReader<TcpStream>);

impl Telling {
    /// Requests a stream and waits for the beginning of its text.
    fn begin(client: &Client, settings: Value) -> Telling {
        let mut telling = Telling::ask(client, settings);
        let mut line = String::new();
        while !line.contains("\"content\":\"") || line.contains("\"content\":\"\"") {
            line.clear();
            assert!(
                telling.0.read_line(&mut line).expect("an answer") > 0,
                "it ended"
            );
        }
        telling
    }
    fn ask(client: &Client, settings: Value) -> Telling {
        let mut body = asking(STORY, settings);
        body["stream"] = true.into();
        let body = body.to_string();
        let request = client.request(
            "POST",
            "/v1/chat/completions",
            "application/json",
            body.as_bytes(),
        );
        Telling(BufReader::new(client.send(&request)))
    }
    /// Reads the rest of the stream.
    fn rest(mut self) -> String {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).expect("an answer in time");
        rest
    }
}

#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a gauge of the demo model under vLLM's name.
#[track_caller]
fn vllm(client: &Client, name: &str) -> f64 {
    let metrics = client.get("/metrics").body;
    let start = format!("vllm:{name}{{model_name=\"demo\"}} ");
    let value = metrics
        .lines()
        .find_map(|line| line.strip_prefix(&start)?.parse().ok());
    value.unwrap_or_else(|| panic!("no {start}: {metrics}"))
}

fn load(client: &Client) -> Value {
    client.get("/v1/loads?include=core").ok()["loads"][0].take()
}

fn number(load: &Value, name: &str) -> u64 {
    load[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name}: {load}"))
}

/// Settings of a long answer.
fn long(tokens: usize) -> Value {
    json!({ "ignore_eos": true, "max_tokens": tokens })
}

/// Starts as many answers as run concurrently, and one more that is queued. On a busy machine the
/// answers may be over before all are started; then they are started again.
fn all_busy(client: &Client, tokens: usize) -> Vec<Telling> {
    let slots = number(&load(client), "max_running_requests");
    for _ in 0..20 {
        let mut asked: Vec<Telling> = (0..slots)
            .map(|_| Telling::begin(client, long(tokens)))
            .collect();
        asked.push(Telling::ask(client, long(tokens)));
        loop {
            let load = load(client);
            if number(&load, "num_running_reqs") < slots {
                break;
            }
            // Admitted requests hold no tokens before their prefill.
            let prefilled = number(&load, "num_used_tokens") >= 10 * slots;
            if number(&load, "num_waiting_reqs") == 1 && prefilled {
                return asked;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(asked);
        wait_until("none is answered", || {
            number(&load(client), "num_total_reqs") == 0
        });
    }
    panic!("the answers are always over too soon");
}

#[test]
fn routers_see_how_busy_it_is() {
    let server = start(Config::default());
    let client = &server.client;
    wait_until("somebody is there to answer", || {
        client.metric("gristmill_model_loaded") == 1.0
    });
    client.answer(STORY, json!({ "max_tokens": 1 }));
    wait_until("nobody is answered", || {
        number(&load(client), "num_total_reqs") == 0
    });
    let idle = load(client);
    let (slots, room) = (
        number(&idle, "max_running_requests"),
        number(&idle, "max_total_num_tokens"),
    );
    assert!(slots >= 1 && room >= 2048, "{idle}");
    assert_eq!(
        (
            &idle["num_used_tokens"],
            &idle["token_usage"],
            &idle["dp_rank"]
        ),
        (&json!(0), &json!(0.0), &json!(0))
    );

    // On a busy machine the answers may be over before all is read; then it is read again.
    let read = || {
        let asked = all_busy(client, 1900);
        let busy = load(client);
        let vllm = [
            "num_requests_running",
            "num_requests_waiting",
            "kv_cache_usage_perc",
        ]
        .map(|name| vllm(client, name));
        let tokens = client.metric("gristmill_cache_tokens");
        let named = client.get("/v1/loads?model=demo").ok();
        let all_run = |load: &Value| {
            number(load, "num_running_reqs") == slots && number(load, "num_waiting_reqs") == 1
        };
        let held = all_run(&busy) && all_run(&load(client));
        held.then_some((asked, busy, vllm, tokens, named))
    };
    let found = (0..20).find_map(|_| read());
    let (asked, busy, [running, waiting, usage], tokens, named) = found.expect("all busy");
    assert_eq!(number(&busy, "num_total_reqs"), slots + 1);
    let used = number(&busy, "num_used_tokens");
    assert!((10 * slots..=room).contains(&used), "{busy}");
    assert_eq!(busy["token_usage"], used as f64 / room as f64);
    assert_eq!([running, waiting], [slots as f64, 1.0]);
    // The load may have grown in between.
    assert!(usage >= used as f64 / room as f64);
    assert!(tokens >= used as f64);
    assert_eq!(client.metric("gristmill_cache_tokens_room"), room as f64);
    assert_eq!(
        (
            &named["models"][0]["model"],
            &named["models"][0]["num_waiting_reqs"]
        ),
        (&json!("demo"), &json!(1))
    );
    assert_eq!(
        client.get("/v1/loads?model=none").refused(404)["code"],
        "model_not_found"
    );
    drop(asked);
    wait_until("all is as it was", || load(client) == idle);
    assert_eq!(
        ["num_requests_running", "kv_cache_usage_perc"].map(|name| vllm(client, name)),
        [0.0, 0.0]
    );
}

#[test]
fn a_router_may_be_told_another_owner() {
    let server = start(Config {
        owned_by: "vllm".into(),
        ..Config::default()
    });
    let model = server.client.get("/v1/models").ok()["data"][0].take();
    assert_eq!(
        (&model["owned_by"], &model["max_model_len"]),
        (&json!("vllm"), &json!(2048))
    );
    assert_eq!(
        super::shared().get("/v1/models/demo").ok()["owned_by"],
        "gristmill"
    );
    assert_eq!(
        super::shared().get("/version").status,
        404,
        "routers take it for vLLM's"
    );
    let build = format!(
        "gristmill_build_info{{version=\"{}\"}} 1\n",
        env!("CARGO_PKG_VERSION")
    );
    assert!(super::shared().get("/metrics").body.contains(&build));
}

/// Returns the request identifier of a response.
fn id_of(response: &Response) -> &str {
    let mut ids = response
        .head
        .lines()
        .filter_map(|line| line.strip_prefix("x-request-id: "));
    ids.next()
        .unwrap_or_else(|| panic!("no identifier: {}", response.head))
}

#[test]
fn a_request_keeps_its_identifier() {
    let client = super::shared();
    let ask = |path: &str, id: &str| {
        client.exchange(
            format!("GET {path} HTTP/1.0\r\nHost: localhost\r\nX-Request-Id: {id}\r\n\r\n")
                .as_bytes(),
        )
    };
    for path in ["/health", "/v1/models", "/nowhere", "/v1/chat/completions"] {
        assert_eq!(
            id_of(&ask(path, "chatcmpl-8wcv.1")),
            "chatcmpl-8wcv.1",
            "{path}"
        );
    }
    let (one, other) = (client.get("/health"), client.get("/health"));
    assert!(
        id_of(&one).starts_with("req_") && id_of(&one) != id_of(&other),
        "{one:?}"
    );
    assert!(
        id_of(&ask("/health", "two words")).starts_with("req_"),
        "what could forge a line of the log is not taken"
    );
}

/// Begins a graceful shutdown with an idle connection open, and returns that connection.
fn asked_to_end(server: &mut Running) -> TcpStream {
    let kept = server.client.send(b"");
    server.end();
    wait_until("it says that it ends", || {
        server.client.get("/health").status == 503
    });
    kept
}

#[test]
fn who_was_let_in_is_answered_before_the_end() {
    const TOKENS: usize = 600;
    let mut server = start(Config {
        drain: Duration::from_secs(120),
        ..Config::default()
    });
    server.client.answer(STORY, json!({ "max_tokens": 1 }));
    let asked = all_busy(&server.client, TOKENS);
    let mut kept = asked_to_end(&mut server);
    let client = server.client.clone();
    assert_eq!(
        client.get("/health").json(),
        json!({ "status": "draining" })
    );
    let refused = client.ask(STORY, json!({}));
    assert!(
        refused.refused(503)["message"]
            .as_str()
            .unwrap()
            .contains("shutting down")
    );
    assert!(
        refused.head.contains("retry-after: 1") && refused.head.contains("connection: close"),
        "{}",
        refused.head
    );
    // Monitoring endpoints still work.
    assert!(client.metric("gristmill_requests_running") >= 1.0);
    kept.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("it is open");
    let mut told = String::new();
    kept.read_to_string(&mut told)
        .expect("it ends with the answer");
    assert!(
        told.starts_with("HTTP/1.1 503") && told.to_lowercase().contains("connection: close"),
        "{told}"
    );
    for answer in asked.into_iter().map(Telling::rest) {
        assert!(
            answer.ends_with("data: [DONE]\n\n") && !answer.contains("\"error\""),
            "{answer}"
        );
        assert!(answer.contains("\"finish_reason\":\"length\""), "{answer}");
    }
    let begin = Instant::now();
    drop(server);
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    assert!(TcpStream::connect(client.address).is_err());
}

#[test]
fn who_takes_too_long_is_broken_off() {
    const DRAIN: Duration = Duration::from_secs(1);
    let mut server = start(Config {
        drain: DRAIN,
        ..Config::default()
    });
    let running = Telling::begin(
        &server.client,
        json!({ "ignore_eos": true, "n": 16, "max_tokens": 1900 }),
    );
    let begin = Instant::now();
    drop(asked_to_end(&mut server));
    let rest = running.rest();
    assert!(rest.contains("shutting down"), "{rest}");
    assert!(begin.elapsed() >= DRAIN, "{:?}", begin.elapsed());
    drop(server);
    assert!(begin.elapsed() < DRAIN + PATIENCE, "{:?}", begin.elapsed());
}
