//! Models by name: pull, list, rm and MODEL arguments, against a local hub.

#[path = "../../../hub/tests/it/server.rs"]
#[expect(dead_code, reason = "the hub's own tests use the rest")]
mod server;

use super::terminal::typed_on_terminal;
use super::{DEMO, gristmill, outcome};
use server::{Fault, REPOSITORY, Server};
use sha2::{Digest, Sha256};
use std::process::Command;

struct Case {
    server: Server,
    folder: tempfile::TempDir,
}

impl Case {
    /// Starts a hub with the demo model, and an empty model folder.
    fn new() -> Case {
        let bytes = std::fs::read(DEMO).unwrap();
        let sum: String = Sha256::digest(&bytes)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let files = vec![
            ("demo-Q4_0.gguf".to_owned(), bytes, Some(sum)),
            ("other-Q8_0.gguf".to_owned(), b"other".to_vec(), None),
        ];
        Case {
            server: Server::start(files),
            folder: tempfile::tempdir().unwrap(),
        }
    }
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = gristmill(arguments);
        command
            .env("GRISTMILL_MODELS", self.folder.path())
            .env("HF_ENDPOINT", &self.server.endpoint);
        command.env_remove("HF_TOKEN");
        for proxy in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
            command.env_remove(proxy);
        }
        command
    }
    fn run(&self, arguments: &[&str]) -> super::Outcome {
        outcome(&mut self.command(arguments))
    }
}

#[test]
fn a_model_is_fetched_listed_run_and_removed() {
    let case = Case::new();
    let name = format!("hf:{REPOSITORY}:demo-Q4_0.gguf");
    let short = format!("hf:{REPOSITORY}:q4_0");
    assert!(case.run(&["list"]).ok().contains("none yet"));
    let pulled = case.run(&["pull", &short]);
    assert!(
        pulled.stderr.contains(&name) && pulled.stderr.contains("downloaded 7.6 MB"),
        "{}",
        pulled.stderr
    );
    assert!(
        pulled.stderr.contains("downloading demo-Q4_0.gguf, "),
        "{}",
        pulled.stderr
    );
    // Standard output has the path.
    let path = pulled.ok();
    assert_eq!(
        std::fs::read(path.trim_end()).unwrap(),
        std::fs::read(DEMO).unwrap()
    );
    assert!(
        case.run(&["pull", &short])
            .stderr
            .contains("already downloaded")
    );
    let list = case.run(&["list"]).ok();
    assert!(
        list.contains(&name) && list.contains("glm-4.7-flash") && !list.contains("incomplete"),
        "{list}"
    );
    let line: serde_json::Value =
        serde_json::from_str(case.run(&["list", "--json"]).ok().trim()).unwrap();
    assert_eq!(
        (line["name"].as_str(), line["whole"].as_bool()),
        (Some(name.as_str()), Some(true))
    );
    // A stored model needs no request to the hub.
    case.server.requests();
    let text = outcome(
        case.command(&["run", &short, "--temp", "0", "-p", "What is 17 plus 25?"])
            .env("HF_ENDPOINT", "http://127.0.0.1:1"),
    );
    assert_eq!(text.ok(), "17 plus 25 is 42.");
    // Other forms of the name, as in Ollama and browsers.
    for name in [
        format!("{REPOSITORY}:Q4_0"),
        format!("hf.co/{REPOSITORY}:q4_0"),
        format!("https://hf.co/{REPOSITORY}/blob/main/demo-Q4_0.gguf"),
    ] {
        assert!(
            case.run(&["inspect", &name, "--brief"])
                .ok()
                .contains("deepseek2"),
            "{name}"
        );
    }
    assert_eq!(
        case.run(&[
            "tokenize",
            &format!("hf:{REPOSITORY}"),
            "<|user|>",
            "--special"
        ])
        .ok(),
        "2044\n"
    );
    let repository = format!("{REPOSITORY}:Q4_0");
    assert_eq!(
        case.run(&["tokenize", "-hf", &repository, "<|user|>", "--special"])
            .ok(),
        "2044\n"
    );
    assert_eq!(case.server.requests(), []);
    assert!(case.run(&["rm", &short]).stderr.contains("removed"));
    assert_eq!(std::fs::read_dir(case.folder.path()).unwrap().count(), 0);
    assert!(
        case.run(&["rm", &short])
            .failed()
            .contains("gristmill list")
    );
}

#[test]
fn what_has_changed_is_refused_and_fetched_again() {
    let case = Case::new();
    let name = format!("hf:{REPOSITORY}:demo-Q4_0.gguf");
    let path = std::path::PathBuf::from(case.run(&["pull", &name]).ok().trim_end());
    assert!(case.run(&["list", "--verify"]).ok().contains("  verified"));
    let whole = std::fs::read(&path).unwrap();
    let mut bytes = whole.clone();
    bytes[100_000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    // A coarse clock may not show the change.
    let date = std::time::SystemTime::UNIX_EPOCH;
    std::fs::File::options()
        .append(true)
        .open(&path)
        .unwrap()
        .set_modified(date)
        .unwrap();
    let error = case.run(&["tokenize", &name, "a"]).failed();
    assert!(
        error.contains("differs from the fetched file")
            && error.contains(&format!("gristmill pull {name}")),
        "{error}"
    );
    let list = case.run(&["list", "--verify"]);
    assert!(
        list.stdout.contains("CHANGED since the download"),
        "{}",
        list.stdout
    );
    assert!(list.failed().contains("1 of 1 models have changed"));
    let json = case.run(&["list", "--verify", "--json"]).stdout;
    assert!(
        json.contains(r#""fetched":true"#) && json.contains(r#""verdict":"changed""#),
        "{json}"
    );
    let pulled = case.run(&["pull", &name]);
    assert!(
        pulled.stderr.contains("downloading it again"),
        "{}",
        pulled.stderr
    );
    pulled.ok();
    assert!(std::fs::read(&path).unwrap() == whole);
    // Files of the user stay and are listed.
    std::fs::write(path.with_file_name("own\u{1b}[2J.gguf"), "own").unwrap();
    std::fs::write(path.with_file_name("own.gguf"), "own").unwrap();
    let list = case.run(&["list"]);
    assert!(
        list.stdout.contains("own.gguf  not downloaded here")
            && list.stderr.contains("own\\u{1b}[2J.gguf"),
        "{}",
        list.stderr
    );
    list.ok();
    let removed = case.run(&["rm", &format!("hf:{REPOSITORY}")]);
    assert!(removed.stderr.contains("did not download it: ") && !removed.stderr.contains('\x1b'));
    removed.ok();
    assert!(!path.exists() && path.with_file_name("own.gguf").exists());
    assert!(
        case.run(&["rm", &format!("hf:{REPOSITORY}:own.gguf")])
            .failed()
            .contains("was not fetched")
    );
}

#[test]
fn what_is_not_here_is_fetched_when_it_is_asked_for() {
    let case = Case::new();
    case.server.faults(&[Fault::Cut(1 << 20)]);
    let outcome = case.run(&[
        "tokenize",
        &format!("hf:{REPOSITORY}:q4_0"),
        "<|user|>",
        "--special",
    ]);
    assert!(outcome.stderr.contains("retrying"), "{}", outcome.stderr);
    assert_eq!(outcome.ok(), "2044\n");
    assert_eq!(case.server.starts(), [0, 1 << 20]);
}

#[test]
fn a_file_of_any_server_is_a_model() {
    let case = Case::new();
    case.server.state.lock().unwrap().mark = Some(("etag", "\"x\"".into()));
    let address = format!("{}/plain/demo-Q4_0.gguf", case.server.endpoint);
    let arguments = ["tokenize", &address, "<|user|>", "--special"];
    let first = case.run(&arguments);
    assert!(
        first.stderr.contains("downloading plain/demo-Q4_0.gguf, "),
        "{}",
        first.stderr
    );
    assert!(
        first
            .stderr
            .contains("no checksum is known for plain/demo-Q4_0.gguf"),
        "{}",
        first.stderr
    );
    assert_eq!(first.ok(), "2044\n");
    case.server.requests();
    let second = case.run(&arguments);
    assert_eq!(
        (second.stderr.as_str(), case.server.requests()),
        ("", vec![])
    );
    assert!(case.run(&["list"]).ok().contains(&address));
    let again = case.run(&["pull", &address]);
    assert!(
        again.stderr.contains("already downloaded") && !again.stderr.contains("checksum"),
        "{}",
        again.stderr
    );
    assert!(case.run(&["rm", &address]).stderr.contains("removed"));
    // A truncated file is refused in spite of its header.
    let cut = std::fs::read(DEMO).unwrap()[..1 << 20].to_vec();
    case.server
        .state
        .lock()
        .unwrap()
        .files
        .push(("cut.gguf".into(), cut, None));
    let error = case
        .run(&["pull", &format!("{}/plain/cut.gguf", case.server.endpoint)])
        .failed();
    assert!(
        error.contains("is not a model") && error.contains("discarded"),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(case.folder.path()).unwrap().count(), 1);
}

#[test]
fn who_sits_at_a_terminal_is_asked_which() {
    let case = Case::new();
    let mut command = case.command(&["pull", REPOSITORY]);
    let (well, text) = typed_on_terminal(&mut command, "q5_0\nq4_0\n");
    assert!(
        well && text.contains("some/models has 2 models:"),
        "{text:?}"
    );
    assert!(
        text.contains("1  Q8_0        5 B") && text.contains("2  Q4_0     7.6 MB"),
        "{text:?}"
    );
    assert!(
        text.contains("there is no q5_0") && text.contains("demo-Q4_0.gguf"),
        "{text:?}"
    );
    // An empty line cancels.
    let (well, text) = typed_on_terminal(&mut case.command(&["pull", REPOSITORY]), "\n");
    assert!(
        !well && text.contains("choose a quantisation, hf:some/models:"),
        "{text:?}"
    );
}

#[test]
fn who_asks_is_told() {
    let case = Case::new();
    outcome(
        case.command(&["pull", &format!("hf:{REPOSITORY}:q4_0")])
            .env("HF_TOKEN", "secret"),
    )
    .ok();
    assert_eq!(case.server.requests()[0].token.as_deref(), Some("secret"));
}

#[test]
fn names_that_name_nothing() {
    let case = Case::new();
    for (arguments, message) in [
        (&["run", "hf:some", "-p", "x"][..], "does not name a model"),
        (
            &["run", "hf:some/none", "-p", "x"],
            "has no repository some/none",
        ),
        (&["pull", "hf:some/models"], "Q8_0 (5 B)"),
        (
            &["pull", "hf:some/models:q5_0"],
            "demo-Q4_0.gguf, other-Q8_0.gguf",
        ),
        (&["pull", "hf:some/models:../../x"], "not a path inside"),
        (
            &["inspect", "glm-4.7-flahs"],
            "the nearest short name is glm-4.7-flash",
        ),
        (&["inspect", "nomodel"], "`gristmill list`"),
        (&["inspect", "some/models"], "choose a quantisation"),
        (
            &["inspect", "some/other"],
            "there is no file some/other either",
        ),
        (
            &["inspect", "https://models.example/m.bin"],
            "does not end in .gguf",
        ),
        (
            &["inspect", "http://models.example/m.gguf"],
            "GRISTMILL_ALLOW_HTTP",
        ),
    ] {
        let error = case.run(arguments).failed();
        assert!(error.contains(message), "{arguments:?}: {error}");
    }
    case.server.faults(&[Fault::Status(403)]);
    assert!(
        case.run(&["pull", "hf:some/models:q4_0"])
            .failed()
            .contains("HF_TOKEN")
    );
    assert_eq!(case.run(&["pull", "demo.gguf"]).code, 2);
    let nobody = outcome(
        case.command(&["pull", "glm-4.7-flash"])
            .env("HF_ENDPOINT", "http://127.0.0.1:1"),
    )
    .failed();
    assert!(nobody.contains("HF_ENDPOINT"), "{nobody}");
    let nowhere = case.folder.path().join("file");
    std::fs::write(&nowhere, "").unwrap();
    let nowhere = outcome(
        case.command(&["pull", "hf:some/models:q4_0"])
            .env("GRISTMILL_MODELS", nowhere),
    )
    .failed();
    assert!(nowhere.contains("GRISTMILL_MODELS"), "{nowhere}");
}
