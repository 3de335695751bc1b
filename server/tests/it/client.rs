//! Test client that can also send malformed requests.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Address and API key of a server.
#[derive(Clone)]
pub struct Client {
    pub address: SocketAddr,
    pub key: Option<String>,
}

/// A response as it was received.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Response {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
    /// Returns the body of a successful response.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }
    /// Returns the error object of a refusal.
    #[track_caller]
    pub fn refused(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        let error = self.json()["error"].take();
        assert!(
            error["message"].as_str().is_some_and(|m| !m.is_empty()),
            "{self:?}"
        );
        assert!(
            error["type"].is_string()
                && error.get("param").is_some()
                && error.get("code").is_some(),
            "{self:?}"
        );
        error
    }
    /// Returns the data of all events except the last one, `[DONE]`.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        assert!(self.head.contains("text/event-stream"), "{self:?}");
        let mut data: Vec<&str> = self
            .body
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{self:?}");
        data.iter()
            .map(|data| serde_json::from_str(data).expect("JSON"))
            .collect()
    }
}

impl Client {
    /// Sends bytes unchanged and returns the connection. Requests use HTTP/1.0, so that a body ends
    /// with its connection.
    pub fn send(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).expect("a connection");
        stream
            .set_read_timeout(Some(Duration::from_secs(120)))
            .expect("a timeout");
        // The server may refuse it before all is sent.
        let _ = stream.write_all(bytes);
        stream
    }
    /// Returns the bytes of a request.
    pub fn request(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> Vec<u8> {
        let key = self
            .key
            .as_ref()
            .map(|key| format!("Authorization: Bearer {key}\r\n"))
            .unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: {}\r\n{key}Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        [head.as_bytes(), body].concat()
    }
    pub fn exchange(&self, bytes: &[u8]) -> Response {
        let mut answer = Vec::new();
        let mut stream = self.send(bytes);
        stream.read_to_end(&mut answer).expect("an answer in time");
        let answer = String::from_utf8(answer).expect("UTF-8");
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("no response: {answer:?}"));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|s| s.parse().ok())
            .unwrap_or_else(|| panic!("{head:?}"));
        Response {
            status,
            head: head.to_lowercase(),
            body: body.to_owned(),
        }
    }
    pub fn get(&self, path: &str) -> Response {
        self.exchange(&self.request("GET", path, "text/plain", b""))
    }
    pub fn post_bytes(&self, path: &str, kind: &str, body: &[u8]) -> Response {
        self.exchange(&self.request("POST", path, kind, body))
    }
    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.post_bytes(path, "application/json", body.to_string().as_bytes())
    }
    pub fn chat(&self, body: Value) -> Response {
        self.post("/v1/chat/completions", &body)
    }
    /// Asks a question with additional settings.
    pub fn ask(&self, question: &str, settings: Value) -> Response {
        self.chat(asking(question, settings))
    }
    /// Returns the text of an answer.
    #[track_caller]
    pub fn answer(&self, question: &str, settings: Value) -> String {
        let answer = self.ask(question, settings).ok();
        answer["choices"][0]["message"]["content"]
            .as_str()
            .expect("text")
            .to_owned()
    }
    /// Requests a stream, reads `lines` lines of it, and disconnects.
    pub fn hang_up(&self, body: &Value, lines: usize) {
        let bytes = body.to_string();
        let stream = self.send(&self.request(
            "POST",
            "/v1/chat/completions",
            "application/json",
            bytes.as_bytes(),
        ));
        BufReader::new(stream).lines().take(lines).for_each(drop);
    }
    /// Returns a value of `/metrics`, of the demo model if the metric has a model label.
    #[track_caller]
    pub fn metric(&self, name: &str) -> f64 {
        self.metric_of("demo", name)
    }
    /// Returns a value of `/metrics`, of the given model if the metric has a model label.
    #[track_caller]
    pub fn metric_of(&self, model: &str, name: &str) -> f64 {
        let text = self.get("/metrics");
        let label = format!("{{model=\"{model}\"}}");
        let mut lines = text.body.lines().filter_map(|line| line.strip_prefix(name));
        let line =
            lines.find_map(|rest| rest.strip_prefix(&label).unwrap_or(rest).strip_prefix(' '));
        line.and_then(|value| value.parse().ok())
            .unwrap_or_else(|| panic!("no {name}: {}", text.body))
    }
}

/// Body of a chat request with the question and settings.
pub fn asking(question: &str, settings: Value) -> Value {
    let mut body =
        json!({ "model": "demo", "messages": [{ "role": "user", "content": question }] });
    for (key, value) in settings.as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    body
}

/// Returns the text of a stream of chat chunks.
pub fn joined(events: &[Value]) -> String {
    events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .collect()
}
