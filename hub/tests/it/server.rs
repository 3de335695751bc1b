//! A hub of the tests' own, with its faults: one repository, answered as the real one does; and the same files as a server
//! has them that is no hub.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// What the next answers with a file's bytes do wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// They end after so many bytes.
    Cut(usize),
    /// They begin at the start, whatever was asked for.
    NoRanges,
    /// There are so many more than there should be.
    More(usize),
    /// There is none: this status instead.
    Status(u16),
}

/// A request, as it was seen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Request {
    /// Its path.
    pub path: String,
    /// Where the range it asks for begins.
    pub from: Option<usize>,
    /// The version that this range shall be of.
    pub of: Option<String>,
    /// What it is asked with.
    pub token: Option<String>,
}

/// What is served, and what came in.
#[derive(Default)]
pub struct State {
    /// Path, bytes, checksum as it is announced.
    pub files: Vec<(String, Vec<u8>, Option<String>)>,
    /// What a server that is no hub says of their version: a header and its value.
    pub mark: Option<(&'static str, String)>,
    /// For the answers to come, in order; then all goes well.
    pub faults: VecDeque<Fault>,
    /// All requests.
    pub requests: Vec<Request>,
}

/// The server; it lives as long as the test's process.
pub struct Server {
    /// `http://ADDRESS`.
    pub endpoint: String,
    /// Shared with it.
    pub state: Arc<Mutex<State>>,
}

/// The one repository.
pub const REPOSITORY: &str = "some/models";
/// Where files lie as on a server that is no hub: path and query as they are, with a mark of their version.
pub const PLAIN: &str = "/plain/";
/// `/hops/N/FILE` sends on N times, and then to the file there.
pub const HOPS: &str = "/hops/";
/// `/away/HOST/FILE` sends on to `http://HOST/FILE`.
pub const AWAY: &str = "/away/";
const COMMIT: &str = "0123abcd";
/// Where large files lie, as the hub's do.
pub const ELSEWHERE: &str = "/elsewhere/";

impl Server {
    /// Serves these files.
    pub fn start(files: Vec<(String, Vec<u8>, Option<String>)>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let state = Arc::new(Mutex::new(State { files, ..State::default() }));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                // A client that leaves is its own affair.
                std::thread::spawn(move || answer(&stream, &shared));
            }
        });
        Server { endpoint, state }
    }
    /// Lets the next answers go wrong.
    pub fn faults(&self, faults: &[Fault]) {
        self.state.lock().expect("whole").faults = faults.iter().copied().collect();
    }
    /// The requests since the last call, in order.
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.lock().expect("whole").requests)
    }
    /// Of these, those for bytes: where each began.
    pub fn starts(&self) -> Vec<usize> {
        let bytes = self.requests().into_iter().filter(|r| r.path.starts_with(ELSEWHERE) || r.path.starts_with(PLAIN));
        bytes.map(|r| r.from.unwrap_or(0)).collect()
    }
}

fn answer(mut stream: &TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or(Ok(String::new()))?;
    let mut request = Request { path: first.split(' ').nth(1).unwrap_or("").to_owned(), ..Request::default() };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                request.from = value.trim().strip_prefix("bytes=").and_then(|r| r.split('-').next()?.parse().ok())
            }
            "if-range" => request.of = Some(value.trim().to_owned()),
            "authorization" => request.token = value.trim().strip_prefix("Bearer ").map(str::to_owned),
            _ => {}
        }
    }
    let (status, headers, body) = {
        let mut state = state.lock().expect("whole");
        respond(&mut state, request)
    };
    write!(stream, "HTTP/1.1 {status} x\r\nconnection: close\r\n{headers}\r\n")?;
    stream.write_all(&body)
}

fn respond(state: &mut State, request: Request) -> (u16, String, Vec<u8>) {
    let text = |status, body: String| (status, format!("content-length: {}\r\n", body.len()), body.into_bytes());
    state.requests.push(request.clone());
    let files = format!("/{REPOSITORY}/resolve/{COMMIT}/");
    if request.path == format!("/api/models/{REPOSITORY}/revision/main?blobs=true") {
        let sibling = |(path, bytes, sha256): &(String, Vec<u8>, Option<String>)| match sha256 {
            Some(sha256) => format!(
                r#"{{"rfilename":"{path}","size":{n},"blobId":"x","lfs":{{"sha256":"{sha256}","size":{n},"pointerSize":134}}}}"#,
                n = bytes.len()
            ),
            None => format!(r#"{{"rfilename":"{path}","size":{},"blobId":"x"}}"#, bytes.len()),
        };
        let siblings: Vec<String> = state.files.iter().map(sibling).collect();
        return text(200, format!(r#"{{"id":"{REPOSITORY}","sha":"{COMMIT}","siblings":[{}]}}"#, siblings.join(",")));
    }
    if let Some(path) = request.path.strip_prefix(&files) {
        return (302, format!("location: {ELSEWHERE}{path}\r\ncontent-length: 0\r\n"), vec![]);
    }
    let sends_on = |to: &str| (302, format!("location: {to}\r\ncontent-length: 0\r\n"), vec![]);
    if let Some((count, file)) = request.path.strip_prefix(HOPS).and_then(|rest| rest.split_once('/')) {
        return match count.parse::<usize>() {
            Ok(0) | Err(_) => sends_on(&format!("{PLAIN}{file}")),
            Ok(n) => sends_on(&format!("{HOPS}{}/{file}", n - 1)),
        };
    }
    if let Some(place) = request.path.strip_prefix(AWAY) {
        return sends_on(&format!("http://{place}"));
    }
    let plain = request.path.strip_prefix(PLAIN).map(|path| path.split('?').next().unwrap_or_default());
    let Some(path) = plain.or(request.path.strip_prefix(ELSEWHERE)) else { return text(404, "no".into()) };
    let Some(bytes) = state.files.iter().find(|f| f.0 == path).map(|f| f.1.clone()) else {
        return text(404, "no".into());
    };
    // Who looks at the first bytes of a file is answered as it is.
    let is_look = plain.is_some() && request.from == Some(0);
    let fault = if is_look { None } else { state.faults.pop_front() };
    let mark = state.mark.as_ref().filter(|_| plain.is_some());
    let is_other = request.of.is_some() && request.of.as_ref() != mark.map(|(_, value)| value);
    let from = request.from.filter(|_| fault != Some(Fault::NoRanges) && !is_other);
    if let Some(Fault::Status(status)) = fault {
        return text(status, "no".into());
    }
    let mut rest = bytes[from.unwrap_or(0)..].to_vec();
    if let Some(Fault::More(n)) = fault {
        rest.resize(rest.len() + n, 0);
    }
    if is_look {
        rest.truncate(4);
    }
    let mut headers = format!("content-length: {}\r\n", rest.len());
    headers.extend(mark.map(|(name, value)| format!("{name}: {value}\r\n")));
    if let Some(from) = from {
        headers.push_str(&format!("content-range: bytes {from}-{}/{}\r\n", from + rest.len() - 1, bytes.len()));
    }
    let body = match fault {
        Some(Fault::Cut(n)) => rest[..n.min(rest.len())].to_vec(),
        _ => rest,
    };
    (if from.is_some() { 206 } else { 200 }, headers, body)
}
