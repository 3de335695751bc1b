//! Fake hub with injected faults, and the same files as on a plain HTTP server.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Fault of one answer with a file's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The body ends after this number of bytes.
    Cut(usize),
    /// The range is ignored: the body begins at the start.
    NoRanges,
    /// The body has this number of additional bytes.
    More(usize),
    /// The answer is this status, without a file.
    Status(u16),
    /// The body comes byte by byte, with pauses.
    Drip,
}

/// A received request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Request {
    pub path: String,
    /// First offset of the requested range.
    pub from: Option<usize>,
    /// Value of `If-Range`.
    pub of: Option<String>,
    /// Bearer token.
    pub token: Option<String>,
}

/// Served files and received requests.
#[derive(Default)]
pub struct State {
    /// Path, bytes and announced checksum of each file.
    pub files: Vec<(String, Vec<u8>, Option<String>)>,
    /// Validator of all files on the plain HTTP server: a header and its value.
    pub mark: Option<(&'static str, String)>,
    /// Faults of the next answers, in order; later answers have none.
    pub faults: VecDeque<Fault>,
    pub requests: Vec<Request>,
}

/// The server; it runs until the test's process ends.
pub struct Server {
    /// URL: `http://ADDRESS`.
    pub endpoint: String,
    pub state: Arc<Mutex<State>>,
}

/// Name of the only repository.
pub const REPOSITORY: &str = "some/models";
/// Prefix of files as on a plain HTTP server.
pub const PLAIN: &str = "/plain/";
/// `/hops/N/FILE` redirects N times, and then to the file under `PLAIN`.
pub const HOPS: &str = "/hops/";
/// `/away/HOST/FILE` redirects to `http://HOST/FILE`.
pub const AWAY: &str = "/away/";
const COMMIT: &str = "0123abcd";
/// Target of the hub's redirections for large files.
pub const ELSEWHERE: &str = "/elsewhere/";

impl Server {
    /// Starts a server of these files on a free port.
    pub fn start(files: Vec<(String, Vec<u8>, Option<String>)>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let state = Arc::new(Mutex::new(State {
            files,
            ..State::default()
        }));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                // Errors of a disconnected client are ignored.
                std::thread::spawn(move || answer(&stream, &shared));
            }
        });
        Server { endpoint, state }
    }
    /// Sets the faults of the next answers.
    pub fn faults(&self, faults: &[Fault]) {
        self.state.lock().expect("whole").faults = faults.iter().copied().collect();
    }
    /// Returns the requests since the last call, in order.
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.lock().expect("whole").requests)
    }
    /// Returns the first offset of each request for bytes since the last call.
    pub fn starts(&self) -> Vec<usize> {
        let bytes = self
            .requests()
            .into_iter()
            .filter(|r| r.path.starts_with(ELSEWHERE) || r.path.starts_with(PLAIN));
        bytes.map(|r| r.from.unwrap_or(0)).collect()
    }
}

fn answer(mut stream: &TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or(Ok(String::new()))?;
    let mut request = Request {
        path: first.split(' ').nth(1).unwrap_or("").to_owned(),
        ..Request::default()
    };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                request.from = value
                    .trim()
                    .strip_prefix("bytes=")
                    .and_then(|r| r.split('-').next()?.parse().ok())
            }
            "if-range" => request.of = Some(value.trim().to_owned()),
            "authorization" => {
                request.token = value.trim().strip_prefix("Bearer ").map(str::to_owned)
            }
            _ => {}
        }
    }
    let (status, headers, body, drips) = {
        let mut state = state.lock().expect("whole");
        let before = state.faults.len();
        let drips = state.faults.front() == Some(&Fault::Drip);
        let (status, headers, body) = respond(&mut state, request);
        (status, headers, body, drips && state.faults.len() < before)
    };
    write!(
        stream,
        "HTTP/1.1 {status} x\r\nconnection: close\r\n{headers}\r\n"
    )?;
    if drips {
        return body.iter().try_for_each(|byte| {
            std::thread::sleep(Duration::from_millis(5));
            stream.write_all(&[*byte])
        });
    }
    stream.write_all(&body)
}

fn respond(state: &mut State, request: Request) -> (u16, String, Vec<u8>) {
    let text = |status, body: String| {
        (
            status,
            format!("content-length: {}\r\n", body.len()),
            body.into_bytes(),
        )
    };
    state.requests.push(request.clone());
    let files = format!("/{REPOSITORY}/resolve/{COMMIT}/");
    if request.path == format!("/api/models/{REPOSITORY}/revision/main?blobs=true") {
        let sibling = |(path, bytes, sha256): &(String, Vec<u8>, Option<String>)| match sha256 {
            Some(sha256) => format!(
                r#"{{"rfilename":"{path}","size":{n},"blobId":"x","lfs":{{"sha256":"{sha256}","size":{n},"pointerSize":134}}}}"#,
                n = bytes.len()
            ),
            None => format!(
                r#"{{"rfilename":"{path}","size":{},"blobId":"x"}}"#,
                bytes.len()
            ),
        };
        let siblings: Vec<String> = state.files.iter().map(sibling).collect();
        return text(
            200,
            format!(
                r#"{{"id":"{REPOSITORY}","sha":"{COMMIT}","siblings":[{}]}}"#,
                siblings.join(",")
            ),
        );
    }
    if let Some(path) = request.path.strip_prefix(&files) {
        return (
            302,
            format!("location: {ELSEWHERE}{path}\r\ncontent-length: 0\r\n"),
            vec![],
        );
    }
    let sends_on = |to: &str| {
        (
            302,
            format!("location: {to}\r\ncontent-length: 0\r\n"),
            vec![],
        )
    };
    if let Some((count, file)) = request
        .path
        .strip_prefix(HOPS)
        .and_then(|rest| rest.split_once('/'))
    {
        return match count.parse::<usize>() {
            Ok(0) | Err(_) => sends_on(&format!("{PLAIN}{file}")),
            Ok(n) => sends_on(&format!("{HOPS}{}/{file}", n - 1)),
        };
    }
    if let Some(place) = request.path.strip_prefix(AWAY) {
        return sends_on(&format!("http://{place}"));
    }
    let plain = request
        .path
        .strip_prefix(PLAIN)
        .map(|path| path.split('?').next().unwrap_or_default());
    let Some(path) = plain.or(request.path.strip_prefix(ELSEWHERE)) else {
        return text(404, "no".into());
    };
    let Some(bytes) = state
        .files
        .iter()
        .find(|f| f.0 == path)
        .map(|f| f.1.clone())
    else {
        return text(404, "no".into());
    };
    // A request for a file's first bytes never has a fault.
    let is_look = plain.is_some() && request.from == Some(0);
    let fault = if is_look {
        None
    } else {
        state.faults.pop_front()
    };
    let mark = state.mark.as_ref().filter(|_| plain.is_some());
    let is_other = request.of.is_some() && request.of.as_ref() != mark.map(|(_, value)| value);
    let from = request
        .from
        .filter(|_| fault != Some(Fault::NoRanges) && !is_other);
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
        headers.push_str(&format!(
            "content-range: bytes {from}-{}/{}\r\n",
            from + rest.len() - 1,
            bytes.len()
        ));
    }
    let body = match fault {
        Some(Fault::Cut(n)) => rest[..n.min(rest.len())].to_vec(),
        _ => rest,
    };
    (if from.is_some() { 206 } else { 200 }, headers, body)
}
