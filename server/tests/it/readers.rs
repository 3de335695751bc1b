//! Clients that read slowly, and receive everything.

use super::client::asking;
use super::start;
use gristmill_server::Config;
use serde_json::{Value, json};
use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Maximum bytes of one read.
const PIECE: usize = 16 << 10;

/// Reads at `rate` bytes per second for `time`.
fn read_slowly(stream: &mut TcpStream, told: &mut Vec<u8>, rate: usize, time: Duration) {
    let (begin, before) = (Instant::now(), told.len());
    let mut piece = [0; PIECE];
    while begin.elapsed() < time {
        let due = Duration::from_secs_f64((told.len() - before) as f64 / rate as f64);
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
        match stream.read(&mut piece).expect("the connection is open") {
            0 => break,
            n => told.extend_from_slice(&piece[..n]),
        }
    }
}

/// A send buffer of 128 KiB reports free space once a third was read; on loopback the receiver adds
/// 64 KiB. Four times both within a client's time limit is slow for a socket without a bounded
/// buffer: it holds 4 MiB, a third of which is not read in twice the time.
#[test]
fn a_client_that_reads_slowly_but_steadily_gets_all_of_an_answer() {
    const TIME: Duration = Duration::from_secs(8);
    const STEP: usize = (128 << 10) / 3 + (64 << 10);
    let server = start(Config {
        write_time: TIME,
        ..Config::default()
    });
    let page = server.client.get("/").body;
    let ask = |ending: &str| format!("GET / HTTP/1.1\r\nHost: localhost\r\n{ending}\r\n");
    // More than is read slowly and Linux's default send buffer (`tcp_wmem`) together.
    let pages = (6 << 20) / page.len();
    let mut stream = server.client.send(
        [ask("").repeat(pages - 1), ask("Connection: close\r\n")]
            .concat()
            .as_bytes(),
    );
    let mut told = Vec::new();
    read_slowly(
        &mut stream,
        &mut told,
        4 * STEP / TIME.as_secs() as usize,
        2 * TIME,
    );
    stream
        .read_to_end(&mut told)
        .expect("the connection is open");
    assert_eq!(
        String::from_utf8(told)
            .expect("UTF-8")
            .matches(&page)
            .count(),
        pages
    );
}

#[test]
fn a_server_that_ends_lets_answers_be_read() {
    let mut server = start(Config::default());
    // 800 kB, a third of which sockets hold; all of it exists when the head arrives.
    let settings = json!({ "n": 16, "logprobs": true, "top_logprobs": 20, "ignore_eos": true, "max_tokens": 30, "seed": 1 });
    let body = asking("Tell me a story.", settings).to_string();
    let request = server.client.request(
        "POST",
        "/v1/chat/completions",
        "application/json",
        body.as_bytes(),
    );
    let mut stream = server.client.send(&request);
    let mut told = vec![0; 12];
    stream.read_exact(&mut told).expect("an answer");
    server.end();
    // The shutdown of connections begins once new ones are refused.
    while TcpStream::connect(server.client.address).is_ok() {
        std::thread::sleep(Duration::from_millis(10));
    }
    read_slowly(&mut stream, &mut told, 100 << 10, Duration::from_secs(4));
    stream
        .read_to_end(&mut told)
        .expect("the connection is open");
    let told = String::from_utf8(told).expect("UTF-8");
    let (head, body) = told.split_once("\r\n\r\n").expect("a response");
    assert!(
        head.starts_with("HTTP/1.0 200") && body.len() > 600_000,
        "{} bytes: {head}",
        body.len()
    );
    let answer: Value =
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{} bytes: {error}", body.len()));
    assert_eq!(answer["choices"].as_array().expect("choices").len(), 16);
    // No connection is left to wait for.
    let begin = Instant::now();
    drop(server);
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "{:?}",
        begin.elapsed()
    );
}
