//! Clients that read slowly, and get all of it.

use super::client::{Client, asking};
use super::start;
use gristmill_server::Config;
use serde_json::{Value, json};
use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Bytes of an answer, at least: what is read slowly of it, and what Linux lets a socket hold unless it is told how much (`tcp_wmem`).
const LARGE: usize = 4 << 20;
/// What is read at a time.
const PIECE: usize = 16 << 10;

/// Asks for an answer of more than [`LARGE`] bytes, and waits until it has begun to come: it has been made by then.
fn asked(client: &Client) -> (TcpStream, Vec<u8>) {
    let settings =
        json!({ "n": 16, "logprobs": true, "top_logprobs": 20, "ignore_eos": true, "max_tokens": 200, "seed": 1 });
    let body = asking("Tell me a story.", settings).to_string();
    let mut stream = client.send(&client.request("POST", "/v1/chat/completions", "application/json", body.as_bytes()));
    let mut status = vec![0; 12];
    stream.read_exact(&mut status).expect("an answer");
    (stream, status)
}

/// Reads on at a number of bytes a second for that long.
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

/// Is that an answer, and all of it?
#[track_caller]
fn is_whole(told: Vec<u8>) {
    let told = String::from_utf8(told).expect("UTF-8");
    let (head, body) = told.split_once("\r\n\r\n").expect("a response");
    assert!(head.starts_with("HTTP/1.0 200"), "{head}");
    println!("{} bytes", body.len());
    assert!(body.len() > LARGE, "{} bytes", body.len());
    let answer: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{} bytes: {error}", body.len()));
    assert_eq!(answer["choices"].as_array().expect("choices").len(), 16);
}

/// A send buffer of 128 KiB has room again when a third of it was read; the receiving side adds pieces of 64 KiB on loopback. Four times both
/// in the time that a client has is slow for a socket that nobody bounds: it holds 4 MiB, of which a third is not read in twice the time.
#[test]
fn a_client_that_reads_slowly_but_steadily_gets_all_of_an_answer() {
    const TIME: Duration = Duration::from_secs(4);
    const STEP: usize = (128 << 10) / 3 + (64 << 10);
    let server = start(Config { write_time: TIME, ..Config::default() });
    let (mut stream, mut told) = asked(&server.client);
    read_slowly(&mut stream, &mut told, 4 * STEP / TIME.as_secs() as usize, 2 * TIME);
    stream.read_to_end(&mut told).expect("the connection is open");
    is_whole(told);
}

#[test]
fn a_server_that_ends_lets_answers_be_read() {
    let mut server = start(Config::default());
    let (mut stream, mut told) = asked(&server.client);
    server.end();
    // Once nobody is let in any more, connections are asked to end.
    while TcpStream::connect(server.client.address).is_ok() {
        std::thread::sleep(Duration::from_millis(10));
    }
    read_slowly(&mut stream, &mut told, 1 << 20, Duration::from_secs(3));
    stream.read_to_end(&mut told).expect("the connection is open");
    is_whole(told);
    // Nothing is left to wait for.
    let begin = Instant::now();
    drop(server);
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}
