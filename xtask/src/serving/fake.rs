//! A server for tests: what it answers is the test's affair, sockets and HTTP are here.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A request as it came.
pub struct Asked {
    pub head: String,
    /// Null where there is none.
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
    /// The request's method and path are these.
    pub fn is(&self, what: &str) -> bool {
        self.head.starts_with(&format!("{what} "))
    }
}

/// Answers each request on a connection and in a thread of its own; the address of the server, which ends with the tests.
pub fn serve(answer: impl Fn(&Asked, &mut TcpStream) -> Result<()> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let answer = answer.clone();
            // Whoever has gone does not read it.
            std::thread::spawn(move || Asked::read(&stream).and_then(|asked| answer(&asked, &mut stream)));
        }
    });
    url
}

/// An answer that is told at once.
pub fn whole(stream: &mut TcpStream, text: &str) -> Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len())
}

/// Too many ask.
pub fn refuse(stream: &mut TcpStream) -> Result<()> {
    write!(stream, "HTTP/1.1 429 Busy\r\nContent-Length: 4\r\n\r\nbusy")
}

/// A token for every word, and one more for the first.
pub fn tokenize(asked: &Asked, stream: &mut TcpStream) -> Result<()> {
    let id = |word: &str| word.bytes().fold(0, |id, byte| id * 31 % 65_521 + u64::from(byte));
    let words = asked.body["content"].as_str().unwrap().split(' ').map(id);
    let ids: Vec<u64> = std::iter::once(1).chain(words).collect();
    whole(stream, &json!({ "tokens": ids }).to_string())
}

/// The beginning of an answer in [chunks](chunk).
pub fn begin(stream: &mut TcpStream) -> Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
}

/// One chunk; the empty one is the last.
pub fn chunk(stream: &mut TcpStream, text: &str) -> Result<()> {
    // In one piece, so that it is not sent in several.
    stream.write_all(format!("{:x};x=y\r\n{text}\r\n", text.len()).as_bytes())
}

/// An event of a stream, in two chunks, whose bounds are not those of lines.
pub fn event(stream: &mut TcpStream, data: &Value) -> Result<()> {
    let data = format!("data: {data}\n\n");
    let (one, other) = data.split_at(9);
    chunk(stream, one)?;
    chunk(stream, other)
}

/// The end of a stream.
pub fn end(stream: &mut TcpStream, usage: Value) -> Result<()> {
    let usage = json!({ "choices": [], "usage": usage });
    chunk(stream, &format!("data: {usage}\n\ndata: [DONE]\n\n"))?;
    chunk(stream, "")
}

/// Counts whatever is under way, as long as it is not dropped.
pub struct UnderWay<'a>(&'a AtomicUsize);

impl UnderWay<'_> {
    /// One more, and how many there are with it.
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

/// A command's options, of a line whose words are parted by `|`.
pub fn options<T: clap::Args>(line: &str) -> T {
    <Line<T> as clap::Parser>::parse_from(line.split('|')).options
}
