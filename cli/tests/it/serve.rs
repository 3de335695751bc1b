//! `gristmill serve` with the official clients and a browser.

use super::clients::{has_clients, python, script};
use super::{gristmill, run};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The demo model in another quantisation.
const DEMO_K: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../llm/tests/data/demo-glm-Q4_K_M.gguf"
);

/// A server process, killed on drop.
pub struct Server {
    pub child: Child,
    pub address: String,
    /// Lines of standard error so far.
    said: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Returns the lines of standard error so far.
    pub fn said(&self) -> Vec<String> {
        self.said.lock().expect("lines").clone()
    }
    /// Sends a signal to the server.
    fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([name, &self.child.id().to_string()])
            .status()
            .expect("kill");
        assert!(sent.success());
    }
}

pub fn serve(arguments: &[&str]) -> Server {
    // Compiles the kernels first.
    run(&["run", "-p", "x", "-n", "1"]).ok();
    let mut command = gristmill(&[&["serve", "--port", "0"], arguments].concat());
    let mut child = command.stderr(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let said = Arc::new(Mutex::new(Vec::new()));
    let address = loop {
        let line = lines.next().expect("it says where it is").expect("text");
        if let Some((_, rest)) = line.split_once("chat: http://") {
            break rest.split('/').next().unwrap_or_default().to_owned();
        }
        said.lock().expect("lines").push(line);
    };
    // Drains standard error, so that the pipe never fills.
    let all = said.clone();
    std::thread::spawn(move || {
        lines
            .map_while(Result::ok)
            .for_each(|line| all.lock().expect("lines").push(line))
    });
    Server {
        child,
        address,
        said,
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Some tests have ended it already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn without_a_model_it_serves_the_demo_and_ends_when_asked() {
    let mut server = serve(&[]);
    assert!(get(&server.address, "/").contains("<title>Gristmill</title>"));
    assert!(get(&server.address, "/v1/models").contains("\"id\":\"demo\""));
    server.signal("-TERM");
    assert_eq!(server.child.wait().expect("it ends").code(), Some(0));
}

/// Requests a long streamed answer and waits for its first token.
fn long_answer(server: &Server) -> BufReader<TcpStream> {
    let body = r#"{"messages":[{"role":"user","content":"Tell me a story."}],"stream":true,"ignore_eos":true,"n":4,"max_tokens":400}"#;
    let mut stream = TcpStream::connect(&server.address).expect("a connection");
    let head = "Host: localhost\r\nX-Request-Id: story-1\r\nContent-Type: application/json";
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.0\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("sent");
    let (mut reader, mut line) = (BufReader::new(stream), String::new());
    while !line.contains("\"content\":\"") || line.contains("\"content\":\"\"") {
        line.clear();
        assert!(
            reader.read_line(&mut line).expect("an answer") > 0,
            "it ended"
        );
    }
    reader
}

#[test]
fn asked_to_end_it_answers_first_and_asked_again_it_does_not() {
    let mut server = serve(&["--shutdown-timeout", "300", "--log"]);
    let mut answer = long_answer(&server);
    server.signal("-TERM");
    let mut rest = String::new();
    answer.read_to_string(&mut rest).expect("the rest");
    assert!(
        rest.ends_with("data: [DONE]\n\n") && !rest.contains("shutting down"),
        "{rest}"
    );
    assert_eq!(server.child.wait().expect("it ends").code(), Some(0));
    let said = server.said().join("\n");
    assert!(
        said.contains("shutting down: waiting for 1 request, at most 300 s"),
        "{said}"
    );
    let line = server
        .said()
        .into_iter()
        .find(|line| line.contains("request client=127.0.0.1 id=\"story-1\""))
        .expect("a line");
    assert!(
        line.contains("path=\"/v1/chat/completions\" status=200") && line.ends_with("whole=true"),
        "{line}"
    );

    let mut server = serve(&["--drain", "300"]);
    let _answer = long_answer(&server);
    server.signal("-INT");
    while !server
        .said()
        .iter()
        .any(|line| line.starts_with("shutting down: "))
    {
        std::thread::sleep(Duration::from_millis(10));
    }
    server.signal("-INT");
    assert_eq!(server.child.wait().expect("it ends").code(), Some(130));
}

#[test]
fn it_listens_by_name_and_says_what_it_does() {
    let server = serve(&["--host", "localhost"]);
    assert!(
        server.address.starts_with("127.0.0.1:"),
        "{}",
        server.address
    );
    let port = server.address.rsplit(':').next().unwrap_or_default();
    let status = |host: &str| {
        let mut stream = TcpStream::connect(&server.address).expect("a connection");
        write!(
            stream,
            "GET /v1/models HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n"
        )
        .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(
        ["localhost", "127.0.0.1", "evil.example"].map(status),
        ["200", "200", "403"]
    );
    // Log lines before it was ready.
    assert!(
        server.said().iter().any(|line| line == "loading demo"),
        "{:?}",
        server.said()
    );
    let fresh = tempfile::tempdir().expect("a folder");
    let first = super::outcome(
        gristmill(&["run", "-p", "x", "-n", "1"]).env("GRISTMILL_CACHE", fresh.path()),
    );
    assert!(
        first.stderr.contains("compiling ") && first.stderr.contains("kept for the next start"),
        "{}",
        first.stderr
    );
}

#[test]
fn a_port_that_is_taken_is_no_riddle() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let error = run(&["serve", "--port", &port]).failed();
    assert!(
        error.contains("cannot listen") && error.contains("--port"),
        "{error}"
    );
}

fn url(server: &Server) -> String {
    format!("http://{}/v1", server.address)
}

/// Runs scripts against a server without and one with an API key, if the clients are installed.
fn clients(program: &str, check: &[&str], scripts: &[&str]) {
    if !has_clients(program, check) {
        return;
    }
    let (open, guarded) = (serve(&[]), serve(&["--api-key", "sesame"]));
    for name in scripts {
        script(program, name, &[&url(&open), &url(&guarded), "sesame"], 7);
    }
}

const PYTHON_CLIENTS: [&str; 2] = ["-c", "import openai, anthropic, ollama"];

#[test]
fn the_official_python_clients_work() {
    clients(
        &python(),
        &PYTHON_CLIENTS,
        &["client.py", "anthropic_client.py", "ollama_client.py"],
    );
}

#[test]
fn the_official_clients_choose_a_model_by_its_name() {
    if has_clients(&python(), &PYTHON_CLIENTS) {
        let server = serve(&["demo", DEMO_K, "--max-loaded-models", "1"]);
        script(&python(), "several_client.py", &[&url(&server)], 3);
    }
}

#[test]
fn a_folder_is_all_the_models_in_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let put =
        |name: &str, from: &str| std::fs::copy(from, folder.path().join(name)).expect("a copy");
    put("one.gguf", DEMO_K);
    put("mmproj-one.gguf", DEMO_K);
    std::fs::write(folder.path().join("broken.gguf"), "broken").expect("written");
    let path = folder.path().to_str().expect("text");
    let server = serve(&[path, "demo"]);
    let said = server.said().join("\n");
    assert!(
        said.contains("broken is left out: ")
            && said.contains("2 models, loaded on first request: one, demo"),
        "{said}"
    );
    let models = get(&server.address, "/v1/models");
    assert!(
        models.contains(r#""id":"one""#)
            && models.contains(r#""id":"demo""#)
            && !models.contains("mmproj"),
        "{models}"
    );
    // A file that is named must be valid.
    let broken = folder.path().join("broken.gguf");
    let error = run(&[
        "serve",
        "demo",
        broken.to_str().expect("text"),
        "--port",
        "0",
    ])
    .failed();
    assert!(error.contains("not a GGUF file"), "{error}");
    assert_eq!(
        run(&["serve", "demo", path, "--name", "x", "--port", "0"]).code,
        2
    );
    let empty = tempfile::tempdir().expect("a folder");
    let error = run(&["serve", empty.path().to_str().expect("text"), "--port", "0"]).failed();
    assert!(error.contains("there is no model in the folder"), "{error}");
}

#[test]
fn the_official_javascript_client_works() {
    let folder = std::env::var("GRISTMILL_NODE_MODULES").unwrap_or_else(|_| ".".into());
    let find = format!(
        "require('node:module').createRequire(require('node:path').resolve({folder:?}, 'x.js'))('openai')"
    );
    clients("node", &["-e", &find], &["client.cjs"]);
}

/// Finds a browser, if node is installed to drive it; prints or fails if not.
pub fn browser() -> Option<&'static str> {
    let has = |program: &str| {
        let version = Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        version.is_ok_and(|status| status.success())
    };
    let found = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| has(name));
    let found = found.filter(|_| has("node"));
    if found.is_none() {
        let what = "chromium or no node, which drives it; .ci/run installs both";
        assert!(
            std::env::var_os("GRISTMILL_REQUIRE_CLIENTS").is_none(),
            "there is no {what}"
        );
        eprintln!("skipped: there is no {what}");
    }
    found
}

#[test]
fn the_page_works_in_a_browser() {
    let Some(browser) = browser() else { return };
    let (open, guarded) = (serve(&[]), serve(&["--api-key", "sesame"]));
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients/page.cjs");
    let output = Command::new("node")
        .arg(path)
        .args([browser, &open.address, &guarded.address, "sesame"])
        .output();
    let output = output.expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    assert!(
        text(&output.stdout).contains("all passed"),
        "{}",
        text(&output.stdout)
    );
}
