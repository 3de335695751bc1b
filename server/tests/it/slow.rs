//! Clients that are slow on purpose, and many of them.

use super::client::{Client, asking};
use super::start;
use gristmill_server::Config;
use serde_json::json;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Number of slow clients in a test.
const SLOW: usize = 300;
/// Maximum time of `/health` under load: less than the default timeouts of slow clients, and much
/// more than a busy machine takes.
const HEALTHY: Duration = Duration::from_secs(20);
const STORY: &str = "Tell me a story.";

/// Behaviour of a slow client.
#[derive(Clone, Copy)]
enum Kind {
    /// Sends a head byte by byte.
    Head,
    /// Sends a body byte by byte.
    Body,
    /// Requests far more than it reads.
    Deaf,
}

impl Kind {
    fn connect(self, client: &Client) -> TcpStream {
        let begin = match self {
            Kind::Head => "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ".to_owned(),
            Kind::Body => "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Content-Length: 100000\r\n\r\n"
                .to_owned(),
            Kind::Deaf => "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(2000),
        };
        let stream = TcpStream::connect(client.address).expect("a connection");
        stream.set_nonblocking(true).expect("a socket");
        // If the peer does not read, a write may be partial.
        let _ = (&stream).write(begin.as_bytes());
        stream
    }
}

/// Sends a byte to all streams at intervals, until `stop` is set.
fn drip(streams: &[TcpStream], stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        for mut stream in streams {
            // The server may have closed it.
            let _ = stream.write(b"x");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Stops dripping when dropped, also if a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[track_caller]
fn is_healthy(client: &Client) {
    let begin = Instant::now();
    assert_eq!(client.get("/health").ok(), json!({ "status": "ok" }));
    assert!(begin.elapsed() < HEALTHY, "{:?}", begin.elapsed());
}

/// Waits until only the connection of this request is open.
#[track_caller]
fn are_gone(client: &Client) {
    let begin = Instant::now();
    while client.metric("gristmill_connections") > 1.0 {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "{} are left",
            client.metric("gristmill_connections")
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn beside(config: Config, kinds: &[Kind]) {
    let server = start(config);
    let client = &server.client;
    let settings =
        json!({ "seed": 3, "temperature": 1, "max_tokens": 60, "batch_invariant": true });
    let alone = client.answer(STORY, settings.clone());
    let streams: Vec<TcpStream> = (0..SLOW)
        .map(|i| kinds[i % kinds.len()].connect(client))
        .collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| drip(&streams, &stop));
        for _ in 0..3 {
            is_healthy(client);
            assert_eq!(client.answer(STORY, settings.clone()), alone);
        }
        // They keep sending, and are closed nevertheless.
        are_gone(client);
    });
    for mut stream in &streams {
        let mut rest = [0; 1 << 14];
        let end = loop {
            match stream.read(&mut rest) {
                Ok(n) if n > 0 => {}
                end => break end,
            }
        };
        assert!(
            !matches!(end, Err(error) if error.kind() == ErrorKind::WouldBlock),
            "it is open"
        );
    }
}

fn quick() -> Config {
    let time = Duration::from_secs(2);
    Config {
        head_time: time,
        body_time: time,
        write_time: time,
        ..Config::default()
    }
}

#[test]
fn slow_clients_keep_nobody_from_an_answer() {
    beside(quick(), &[Kind::Head, Kind::Body, Kind::Deaf]);
}

#[test]
fn where_there_is_no_room_the_slow_ones_go() {
    // Their timeouts are far away.
    let server = start(Config {
        connections: 64,
        queue: 16,
        ..Config::default()
    });
    let client = &server.client;
    for kind in [Kind::Head, Kind::Body, Kind::Deaf] {
        let _streams: Vec<TcpStream> = (0..SLOW).map(|_| kind.connect(client)).collect();
        is_healthy(client);
        client.answer(STORY, json!({ "seed": 3, "max_tokens": 5 }));
        assert!(
            client.metric("gristmill_connections") <= 32.0,
            "an address has half of the room"
        );
    }
}

/// Reads a streamed answer until some of its text has arrived.
#[track_caller]
fn until_told(stream: &mut TcpStream) {
    const TEXT: &str = "\"content\":\"";
    let (mut told, mut piece) = (String::new(), [0; 4096]);
    while !told
        .split(TEXT)
        .skip(1)
        .any(|text| !text.is_empty() && !text.starts_with('"'))
    {
        let n = stream.read(&mut piece).expect("an answer");
        assert!(n > 0, "it ended: {told}");
        told += &String::from_utf8_lossy(&piece[..n]);
    }
}

#[test]
fn who_waits_for_an_answer_is_not_sent_away_for_another() {
    let server = start(Config {
        connections: 1,
        queue: 1,
        ..Config::default()
    });
    let body = asking(
        STORY,
        json!({ "stream": true, "ignore_eos": true, "n": 16 }),
    )
    .to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let begin = |server: &super::Running| {
        let mut stream = server.client.send(format!("{head}{body}").as_bytes());
        let mut status = [0; 12];
        stream.read_exact(&mut status).expect("a response");
        assert!(
            status.ends_with(b"200"),
            "{}",
            String::from_utf8_lossy(&status)
        );
        stream
    };
    // One address may have two connections: one is being answered and one is queued, which fills
    // the queue.
    let mut answered = begin(&server);
    until_told(&mut answered);
    let held = [answered, begin(&server)];
    let error = server.client.get("/health").refused(503);
    assert_eq!(error["code"], "too_many_connections");
    drop(held);
    let begin = Instant::now();
    while server.client.get("/health").status != 200 {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "there is room again"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_connection_is_kept_for_the_next_request_and_not_for_ever() {
    // Long enough for a busy machine to send the next request in time.
    let server = start(Config {
        head_time: Duration::from_secs(5),
        ..quick()
    });
    let mut stream = server.client.send(b"");
    // The time begins with the last request: between its answer and a look at the clock a busy
    // machine may let the whole time pass.
    let ask = |_| {
        let begin = Instant::now();
        stream
            .write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .expect("it is open");
        let mut answer = [0; 512];
        let n = stream.read(&mut answer).expect("an answer");
        assert!(
            answer[..n].starts_with(b"HTTP/1.1 200"),
            "{}",
            String::from_utf8_lossy(&answer[..n])
        );
        begin
    };
    let begin = (0..3).map(ask).last().expect("three requests");
    assert_eq!(stream.read(&mut [0; 512]).expect("an end"), 0);
    assert!(
        begin.elapsed() > Duration::from_secs(4),
        "a client may come back: {:?}",
        begin.elapsed()
    );
}

#[test]
fn heads_have_bounds() {
    let server = start(Config::default());
    let long = format!(
        "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: {}\r\n\r\n",
        "x".repeat(1 << 20)
    );
    let many = format!(
        "GET /health HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
        "X-Many: x\r\n".repeat(1000)
    );
    for head in [long, many] {
        let mut stream = server.client.send(head.as_bytes());
        let mut answer = [0; 12];
        // A client that is still sending may not get to read the refusal.
        if stream.read_exact(&mut answer).is_ok() {
            assert!(
                answer.ends_with(b"431"),
                "{}",
                String::from_utf8_lossy(&answer)
            );
        }
    }
    is_healthy(&server.client);
}
