//! Training an adapter of the demo model.

use super::{DEMO, run};
use serde_json::Value;
use std::path::Path;

const CHATS: &str = concat!(
    "{\"messages\": [{\"role\": \"user\", \"content\": \"What is the owl like?\"}, ",
    "{\"role\": \"assistant\", \"content\": \"The owl is wise.\"}]}\n",
    "\n",
    "{\"prompt\": \"Once\", \"completion\": \" upon a time.\"}\n",
    "{\"text\": \"The crow is clever.\"}\n",
);

/// Arguments of a short run with files in `folder`, and `more`.
pub fn train(folder: &Path, more: &[&str]) -> super::Outcome {
    let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    std::fs::write(at("chats.jsonl"), CHATS).unwrap();
    let (data, out, log) = (at("chats.jsonl"), at("adapter.gguf"), at("log.jsonl"));
    let fixed = ["train", DEMO, "--data", &data, "-o", &out, "--log", &log];
    let small = [
        "--ctx",
        "32",
        "--batch",
        "1",
        "--rank",
        "4",
        "--schedule",
        "constant",
    ];
    run(&[&fixed[..], &small, more].concat())
}

/// A field of every line of the log.
fn logged(folder: &Path, field: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(folder.join("log.jsonl")).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| line[field].as_f64()).collect()
}

#[test]
fn an_adapter_learns_and_is_applied() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let more = [
        "--lr",
        "0.01",
        "--steps",
        "12",
        "--eval",
        "0.4",
        "--save-every",
        "6",
    ];
    let out = train(folder, &more);
    assert_eq!(out.code, 0, "{}", out.stderr);
    assert!(out.stderr.contains("memory: "), "{}", out.stderr);
    let losses = logged(folder, "loss");
    assert_eq!(losses.len(), 12);
    assert!(
        losses[9..].iter().sum::<f64>() < 0.5 * losses[..3].iter().sum::<f64>(),
        "{losses:?}"
    );
    assert_eq!(logged(folder, "eval_loss").len(), 2);
    let adapter = folder.join("adapter.gguf").to_str().unwrap().to_owned();
    let perplexity = |more: &[&str]| -> f64 {
        let text = folder.join("text.txt");
        std::fs::write(&text, "What is the owl like?").unwrap();
        let arguments = [
            &["perplexity", DEMO, text.to_str().unwrap(), "--exact"],
            more,
        ]
        .concat();
        let out = run(&arguments).ok();
        let line = out
            .lines()
            .find_map(|line| line.strip_prefix("perplexity "));
        line.unwrap().trim().parse().unwrap()
    };
    let none = format!("{adapter}=0");
    let (before, after) = (perplexity(&[]), perplexity(&["--lora", &adapter]));
    assert!((perplexity(&["--lora", &none]) / before - 1.0).abs() < 1e-5);
    assert!((after / before - 1.0).abs() > 0.01, "{before} {after}");
}

#[test]
fn a_resumed_run_has_equal_losses() {
    let folders = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let [whole, parts] = [0, 1].map(|i| folders[i].path());
    assert_eq!(train(whole, &["--steps", "4"]).code, 0);
    let checkpoint = parts.join("run").to_str().unwrap().to_owned();
    let kept = ["--checkpoint", &checkpoint, "--save-every", "2"];
    assert_eq!(
        train(parts, &[&["--steps", "2"], &kept[..]].concat()).code,
        0
    );
    assert_eq!(
        train(parts, &[&["--steps", "4", "--resume"], &kept[..]].concat()).code,
        0
    );
    assert_eq!(logged(parts, "loss"), logged(whole, "loss"));
    let other = train(
        parts,
        &[&["--steps", "4", "--resume", "--seed", "1"], &kept[..]].concat(),
    );
    assert_eq!(other.code, 1);
    assert!(other.stderr.contains("of another run"), "{}", other.stderr);
}

#[test]
fn what_cannot_be_trained_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let bad = folder.join("bad.jsonl");
    std::fs::write(&bad, "{\"text\": \"a b c\"}\n{\"txt\": \"a\"}\n").unwrap();
    let out = folder.join("x.gguf");
    let base = [
        "train",
        DEMO,
        "--data",
        bad.to_str().unwrap(),
        "-o",
        out.to_str().unwrap(),
    ];
    let failed = run(&base);
    assert_eq!(failed.code, 1);
    assert!(failed.stderr.contains("line 2 of"), "{}", failed.stderr);
    let full = run(&[&base[..], &["--full", "--loss-on", "all"]].concat());
    assert!(full.stderr.contains("line 2 of"), "{}", full.stderr);
    for (more, expected) in [
        (
            &["--lr", "1e30", "--steps", "3", "--clip", "1e30"][..],
            "the first bad gradient is that of",
        ),
        (
            &["--targets", "none_such", "--steps", "1"],
            "no linear layer",
        ),
    ] {
        let failed = train(folder, more);
        assert_eq!(
            failed.code,
            1 + i32::from(expected == "no linear layer"),
            "{}",
            failed.stderr
        );
        assert!(failed.stderr.contains(expected), "{}", failed.stderr);
    }
}
