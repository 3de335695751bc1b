//! Fake HTTP server for tests: sockets and HTTP are here, answers come from the test.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An HTTP request as received.
pub struct Asked {
    pub head: String,
    /// JSON body; null if there is none.
    pub body: Value,
}

impl Asked {
    fn read(stream: &TcpStream) -> Result<Asked> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head)? > 0 {}
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        Ok(Asked { head, body: serde_json::from_slice(&body).unwrap_or_default() })
    }
    /// Whether method and path are `what`, such as `GET /metrics`.
    pub fn is(&self, what: &str) -> bool {
        self.head.starts_with(&format!("{what} "))
    }
}

/// Answers each connection in a thread of its own; returns the server's address. The server lives
/// as long as the test process.
pub fn serve(answer: impl Fn(&Asked, &mut TcpStream) -> Result<()> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let answer = answer.clone();
            // An error means that the client has disconnected.
            std::thread::spawn(move || Asked::read(&stream).and_then(|asked| answer(&asked, &mut stream)));
        }
    });
    url
}

/// Sends a complete answer that is not chunked.
pub fn whole(stream: &mut TcpStream, text: &str) -> Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len())
}

/// Refuses the request with status 429.
pub fn refuse(stream: &mut TcpStream) -> Result<()> {
    write!(stream, "HTTP/1.1 429 Busy\r\nContent-Length: 4\r\n\r\nbusy")
}

/// Returns one token per word, preceded by a start token.
pub fn tokenize(asked: &Asked, stream: &mut TcpStream) -> Result<()> {
    let id = |word: &str| word.bytes().fold(0, |id, byte| id * 31 % 65_521 + u64::from(byte));
    let words = asked.body["content"].as_str().unwrap().split(' ').map(id);
    let ids: Vec<u64> = std::iter::once(1).chain(words).collect();
    whole(stream, &json!({ "tokens": ids }).to_string())
}

/// Sends the head of an answer in [chunks](chunk).
pub fn begin(stream: &mut TcpStream) -> Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
}

/// Sends one chunk; an empty chunk is the last.
pub fn chunk(stream: &mut TcpStream, text: &str) -> Result<()> {
    // A single write, so that the chunk is not split.
    stream.write_all(format!("{:x};x=y\r\n{text}\r\n", text.len()).as_bytes())
}

/// Sends an event in two chunks, split within a line.
pub fn event(stream: &mut TcpStream, data: &Value) -> Result<()> {
    let data = format!("data: {data}\n\n");
    let (one, other) = data.split_at(9);
    chunk(stream, one)?;
    chunk(stream, other)
}

/// Ends a stream with a usage event and `[DONE]`.
pub fn end(stream: &mut TcpStream, usage: Value) -> Result<()> {
    let usage = json!({ "choices": [], "usage": usage });
    chunk(stream, &format!("data: {usage}\n\ndata: [DONE]\n\n"))?;
    chunk(stream, "")
}

/// Counts a request as in flight until it is dropped.
pub struct UnderWay<'a>(&'a AtomicUsize);

impl UnderWay<'_> {
    /// Increments the count; returns the guard and the new count.
    pub fn new(count: &AtomicUsize) -> (UnderWay<'_>, usize) {
        let now = count.fetch_add(1, Ordering::SeqCst) + 1;
        (UnderWay(count), now)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(clap::Parser)]
struct Line<T: clap::Args> {
    #[command(flatten)]
    options: T,
}

/// Parses a command's options from words separated by `|`.
pub fn options<T: clap::Args>(line: &str) -> T {
    <Line<T> as clap::Parser>::parse_from(line.split('|')).options
}
