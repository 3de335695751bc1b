//! The first minutes of a user: typed input, files that are no models, commands of other programs.

use super::serve::serve;
use super::terminal::pseudo_terminal;
use super::{DEMO, gristmill, outcome, piped, run};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Reads a terminal until `end` occurs `count` times, or the other end is closed.
fn read_until(terminal: &mut File, seen: &mut String, end: &str, count: usize) {
    let mut part = [0; 4096];
    while seen.matches(end).count() < count {
        match terminal.read(&mut part) {
            Ok(n) if n > 0 => seen.push_str(&String::from_utf8_lossy(&part[..n])),
            // A closed other end is an error on Linux.
            _ => return,
        }
    }
}

#[test]
fn lines_typed_early_are_all_answered() {
    run(&["run", "-p", "x", "-n", "1"]).ok();
    let (mut terminal, theirs) = pseudo_terminal();
    // While the model loads; the terminal buffers them.
    terminal.write_all(b"One?\rTwo?\rThree?\r").unwrap();
    let mut command = gristmill(&["chat", "--temp", "0", "-n", "2"]);
    command
        .stdin(theirs.try_clone().unwrap())
        .stdout(theirs.try_clone().unwrap())
        .stderr(theirs)
        .env("TERM", "xterm");
    let mut child = command.spawn().unwrap();
    // Closes the other end here.
    drop(command);
    let mut seen = String::new();
    let answered = "prompt tokens";
    read_until(&mut terminal, &mut seen, answered, 1);
    // Pasted while the second may be answered; a lost line would let /bye come first.
    terminal.write_all(b"Four?\rFive?\r/bye\r").unwrap();
    read_until(&mut terminal, &mut seen, answered, 6);
    assert!(child.wait().unwrap().success());
    assert_eq!(seen.matches(answered).count(), 5, "{seen}");
}

#[test]
fn commands_have_the_names_of_other_programs() {
    let said = piped(
        &["chat", "--temp", "0"],
        b"/?\nHello!\n/clear\n/bye\nnever\n",
    );
    assert_eq!(said.code, 0, "{}", said.stderr);
    assert!(
        said.stderr.contains("(also /bye, /quit)"),
        "{}",
        said.stderr
    );
    assert!(said.stderr.contains("new conversation"), "{}", said.stderr);
    assert_eq!(said.stderr.matches("prompt tokens").count(), 1);
    assert!(
        run(&["show", "demo", "--brief"])
            .ok()
            .contains("MODEL, deepseek2")
    );
    assert!(run(&["ls"]).ok().contains("SHORT NAMES"));
    let help = run(&["--help"]).ok();
    assert!(
        help.contains("[alias: ls]") && help.contains("[alias: show]"),
        "{help}"
    );
}

#[test]
fn ps_lists_the_models_of_a_server() {
    let server = serve(&["demo"]);
    let port = &server.address.rsplit(':').next().unwrap().to_owned();
    let table = run(&["ps", "--port", port]).ok();
    assert!(
        table.starts_with("NAME") || table.contains("no model is loaded"),
        "{table}"
    );
    for line in run(&["ps", "--port", port, "--json"]).ok().lines() {
        let model: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(model["name"], "demo");
    }
    drop(server);
    let failed = run(&["ps", "--port", port]).failed();
    assert!(
        failed.contains("no server answers") && failed.contains("gristmill serve"),
        "{failed}"
    );
}

/// Writes a GGUF file of text keys and no tensors.
fn file_of(folder: &Path, name: &str, pairs: &[(&str, &str)]) -> PathBuf {
    let text = |t: &str| [&(t.len() as u64).to_le_bytes()[..], t.as_bytes()].concat();
    let mut bytes = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend((pairs.len() as u64).to_le_bytes());
    for (key, value) in pairs {
        bytes.extend([text(key), 8u32.to_le_bytes().to_vec(), text(value)].concat());
    }
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn files_that_are_no_models_are_called_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let architecture = "general.architecture";
    for (name, pairs, named) in [
        (
            "mmproj-m.gguf",
            &[(architecture, "clip")][..],
            "mmproj-m.gguf is a vision or audio projector",
        ),
        (
            "lora.gguf",
            &[(architecture, "llama"), ("general.type", "adapter")],
            "lora.gguf is a LoRA adapter",
        ),
        (
            "embed.gguf",
            &[(architecture, "jina-bert-v2")],
            "embed.gguf is an embedding model",
        ),
    ] {
        let path = file_of(folder.path(), name, pairs);
        for command in ["run", "bench", "perplexity"] {
            let text = if command == "bench" {
                vec![]
            } else {
                vec![DEMO]
            };
            let arguments = [vec![command, path.to_str().unwrap()], text].concat();
            // A text for `perplexity`, which reads it first.
            let arguments = match command {
                "perplexity" => [
                    &arguments[..2],
                    &[concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")],
                ]
                .concat(),
                _ => arguments,
            };
            let failed = run(&arguments).failed();
            assert!(failed.contains(named), "{command}: {failed}");
            assert!(!failed.contains("damaged"), "{command}: {failed}");
        }
    }
}

#[test]
fn a_text_encoder_generates_nothing() {
    let families = concat!(env!("CARGO_MANIFEST_DIR"), "/../llm/tests/data/families");
    let path = format!("{families}/bert-q8_0.gguf");
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for arguments in [
        &["run", &path, "A tree."][..],
        &["bench", &path, "-p", "16", "-n", "4"],
        &["perplexity", &path, text],
    ] {
        let failed = run(arguments).failed();
        assert!(failed.contains("a text encoder"), "{arguments:?}: {failed}");
        assert!(failed.contains("/v1/embeddings"), "{arguments:?}: {failed}");
    }
    let inspected = run(&["inspect", &path]).ok();
    assert!(inspected.contains("MODEL, bert"), "{inspected}");
    assert!(inspected.contains("bidirectional"), "{inspected}");
}

#[test]
fn a_blob_of_ollama_is_a_model_by_its_title() {
    let folder = tempfile::tempdir().unwrap();
    let blob = |digit: &str| folder.path().join(format!("sha256-{}", digit.repeat(64)));
    std::fs::copy(DEMO, blob("a")).unwrap();
    let blob_path = blob("a");
    let said = outcome(&mut gristmill(&[
        "run",
        blob_path.to_str().unwrap(),
        "-p",
        "x",
        "-n",
        "1",
    ]));
    assert!(!said.stderr.contains("aaaaaaaa"), "{}", said.stderr);
    said.ok();
    std::fs::write(blob("b"), "{\"stop\": [\"x\"]}").unwrap();
    let failed = run(&["run", blob("b").to_str().unwrap(), "-p", "x"]).failed();
    assert!(
        failed.contains("application/vnd.ollama.image.model"),
        "{failed}"
    );
}

#[test]
fn llama_cpp_counts_halves_of_windows() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    std::fs::write(&text, "The capital of France is Paris. ".repeat(40)).unwrap();
    let path = text.to_str().unwrap();
    let counted = |more: &[&str]| {
        let out = run(&[&["perplexity", DEMO, path, "--ctx", "64"], more].concat()).ok();
        let of = |line: &str| -> usize {
            let line = out
                .lines()
                .find_map(|l| l.strip_prefix(line))
                .expect("a line");
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        (of("tokens "), of("predicted "))
    };
    let (tokens, predicted) = counted(&["--compat", "llama.cpp"]);
    assert_eq!(predicted, tokens / 64 * 31);
    assert!(counted(&[]).1 > 2 * predicted - 64);
    let short = run(&[
        "perplexity",
        DEMO,
        path,
        "--ctx",
        "2048",
        "--compat",
        "llama.cpp",
    ])
    .failed();
    assert!(
        short.contains("two windows of 2048") && short.contains("--ctx "),
        "{short}"
    );
}
