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

/// Arguments of a short run of `model` with files in `folder`; the adapter is `out`.
fn arguments(model: &str, folder: &Path, out: &Path) -> Vec<String> {
    let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    std::fs::write(at("chats.jsonl"), CHATS).unwrap();
    let [data, log, out] = [&at("chats.jsonl"), &at("log.jsonl"), out.to_str().unwrap()];
    let files = ["--data", data, "-o", out, "--log", log];
    let small = ["--ctx", "32", "--batch", "1", "--rank", "4"];
    let all = [
        &["train", model],
        &files[..],
        &small,
        &["--schedule", "constant"],
    ]
    .concat();
    all.into_iter().map(str::to_owned).collect()
}

/// A short run of a model, with `more` arguments.
fn train_of(model: &str, folder: &Path, more: &[&str]) -> std::process::Command {
    let arguments = arguments(model, folder, &folder.join("adapter.gguf"));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    super::gristmill(&[&arguments[..], more].concat())
}

fn command(folder: &Path, more: &[&str]) -> std::process::Command {
    train_of(DEMO, folder, more)
}

/// A short run of the demo model with files in `folder`, and `more`.
pub fn train(folder: &Path, more: &[&str]) -> super::Outcome {
    command(folder, more).output().unwrap().into()
}

/// A short run whose adapter is `out`.
fn train_to(out: &str, folder: &Path, more: &[&str]) -> super::Outcome {
    let arguments = arguments(DEMO, folder, Path::new(out));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    run(&[&arguments[..], more].concat())
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

/// Runs `train` until the log has `lines` lines, then kills it.
fn killed(folder: &Path, more: &[&str], lines: usize) {
    let mut child = command(folder, more)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let log = folder.join("log.jsonl");
    let began = std::time::Instant::now();
    loop {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        if text.lines().count() >= lines {
            break;
        }
        let ended = child.try_wait().unwrap();
        assert_eq!(ended, None, "it ended before {lines} lines");
        assert!(began.elapsed().as_secs() < 300, "no {lines} lines");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    // SIGKILL: the process cannot write anything more.
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_killed_run_continues_with_equal_losses() {
    let folders = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let [whole, parts] = [0, 1].map(|i| folders[i].path());
    assert_eq!(train(whole, &["--steps", "60"]).code, 0);
    let checkpoint = parts.join("run").to_str().unwrap().to_owned();
    let kept = ["--steps", "60", "--checkpoint", &checkpoint];
    let kept = [&kept[..], &["--save-every", "4"]].concat();
    // Two steps after the second checkpoint, or some more.
    killed(parts, &kept, 10);
    let before = logged(parts, "step").len();
    assert!(
        (10..60).contains(&before),
        "killed too late: {before} steps"
    );
    let out = train(parts, &[&kept[..], &["--resume"]].concat());
    assert_eq!(out.code, 0, "{}", out.stderr);
    // Steps after the checkpoint are in the log once.
    assert_eq!(
        logged(parts, "step"),
        (1..=60).map(f64::from).collect::<Vec<_>>()
    );
    assert_eq!(logged(parts, "loss"), logged(whole, "loss"));
    let read = |folder: &Path| std::fs::read(folder.join("adapter.gguf")).unwrap();
    assert!(read(parts) == read(whole), "the adapters differ");
}

#[test]
fn a_full_disk_leaves_the_checkpoint_whole() {
    let folders = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let [whole, parts] = [0, 1].map(|i| folders[i].path());
    let run = parts.join("run");
    let kept = ["--checkpoint", run.to_str().unwrap(), "--save-every", "2"];
    assert_eq!(train(whole, &["--steps", "4"]).code, 0);
    assert_eq!(
        train(parts, &[&["--steps", "2"], &kept[..]].concat()).code,
        0
    );
    let file = run.join("checkpoint.gguf");
    let before = std::fs::read(&file).unwrap();
    // The next checkpoint is written to a device that is always full.
    std::os::unix::fs::symlink("/dev/full", run.join("checkpoint.gguf.tmp")).unwrap();
    let more = [&["--steps", "4", "--resume"], &kept[..]].concat();
    let failed = train(parts, &more);
    assert_eq!(failed.code, 1);
    for part in ["cannot write", "No space left on device", "is unchanged"] {
        assert!(failed.stderr.contains(part), "{}", failed.stderr);
    }
    assert!(
        std::fs::read(&file).unwrap() == before,
        "the checkpoint changed"
    );
    assert_eq!(train(parts, &more).code, 0);
    assert_eq!(logged(parts, "loss"), logged(whole, "loss"));
}

#[test]
fn a_checkpoint_is_bound_to_its_model_data_and_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = folder.join("run").to_str().unwrap().to_owned();
    let kept = ["--steps", "1", "--checkpoint", &run];
    assert_eq!(train(folder, &kept).code, 0);
    let resumed = ["--steps", "2", "--checkpoint", &run, "--resume"];
    for (more, expected) in [
        (
            &["--lr", "0.5"][..],
            "of another run: lr 0.0002 there and lr 0.5 here",
        ),
        (
            &["--alpha", "2"],
            "of another run: alpha 8 there and alpha 2 here",
        ),
        (&["--targets", "attn_output"], "of another run: parameters "),
        (
            &["--eval", "0.4"],
            "of another run: lines 3 there and lines 2 here",
        ),
    ] {
        let failed = train(folder, &[&resumed[..], more].concat());
        assert_eq!(failed.code, 1);
        assert!(failed.stderr.contains(expected), "{}", failed.stderr);
    }
    // Another file with equal tensors: one byte of the metadata differs.
    let mut bytes = std::fs::read(DEMO).unwrap();
    let name = b"general.name";
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap();
    bytes[at + name.len() + 4 + 8] ^= 1;
    let other = folder.join("other.gguf").to_str().unwrap().to_owned();
    std::fs::write(&other, bytes).unwrap();
    let failed = train_of(&other, folder, &resumed).output().unwrap();
    let stderr = String::from_utf8_lossy(&failed.stderr);
    assert!(stderr.contains("of another run: model "), "{stderr}");
    // The rest may change.
    let more = ["--save-every", "7", "--threads", "1"];
    assert_eq!(train(folder, &[&resumed[..], &more].concat()).code, 0);
}

#[test]
fn a_page_has_curves_settings_and_replies() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let page = folder.join("page.html").to_str().unwrap().to_owned();
    let more = ["--lr", "0.01", "--steps", "40", "--html", &page];
    let out = train(folder, &more);
    assert_eq!(out.code, 0, "{}", out.stderr);
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.starts_with("<!doctype html>"));
    for part in [
        "Gradient norm",
        "40 of 40 steps of training",
        "rank 4, alpha 8",
        "What is the owl like?",
        "Reply in the data",
        "Before training",
        "After training",
    ] {
        assert!(text.contains(part), "{part}");
    }
    assert_eq!(text.matches("<svg").count(), 3);
    // The reply after training is that of `run` with the adapter, and the one of the data.
    let replies: Vec<&str> = text.split("<h3>").skip(1).take(4).collect();
    assert!(!replies[2].contains("The owl is wise."), "{}", replies[2]);
    assert!(replies[3].contains("The owl is wise."), "{}", replies[3]);
    let adapter = folder.join("adapter.gguf").to_str().unwrap().to_owned();
    let asked = ["run", DEMO, "--lora", &adapter, "--temp", "0", "-n", "64"];
    let said = run(&[&asked[..], &["What is the owl like?"]].concat()).ok();
    assert!(replies[3].contains(said.trim()), "{said}: {}", replies[3]);
}

#[test]
fn an_adapter_in_the_layout_of_peft_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let peft = folder.join("peft/").to_str().unwrap().to_owned();
    let more = ["--lr", "0.01", "--steps", "3", "--targets", "attn_"];
    assert_eq!(train(folder, &more).code, 0);
    let out = train_to(&peft, folder, &more);
    assert_eq!(out.code, 0, "{}", out.stderr);
    let text = folder.join("text.txt").to_str().unwrap().to_owned();
    std::fs::write(&text, "What is the owl like?").unwrap();
    let adapter = folder.join("adapter.gguf").to_str().unwrap().to_owned();
    let perplexity = |lora: &[&str]| -> String {
        let out = run(&[&["perplexity", DEMO, &text], lora].concat()).ok();
        let mut lines = out.lines();
        let line = lines.find(|line| line.starts_with("perplexity "));
        line.unwrap().to_owned()
    };
    let file = folder.join("peft/adapter_model.safetensors");
    let theirs = perplexity(&["--lora", file.to_str().unwrap()]);
    assert_eq!(perplexity(&["--lora", &peft]), theirs);
    assert_eq!(perplexity(&["--lora", &adapter]), theirs);
    assert_ne!(perplexity(&[]), theirs);
    // Training continues with it.
    let more = ["--steps", "1", "--init", &peft];
    let folder = folder.join("more");
    std::fs::create_dir(&folder).unwrap();
    let arguments = arguments(DEMO, &folder, &folder.join("b.gguf"));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // The rank is that of the adapter.
    let at = arguments.iter().position(|a| *a == "--rank").unwrap();
    let out = run(&[&arguments[..at], &arguments[at + 2..], &more].concat());
    assert_eq!(out.code, 0, "{}", out.stderr);
    // Experts are refused before training.
    let failed = train_to(&peft, &folder, &["--steps", "1"]);
    assert_eq!(failed.code, 2);
    assert!(
        failed.stderr.contains("_exps.weight cannot be written"),
        "{}",
        failed.stderr
    );
}

/// A small model with the tokenizer of the demo model.
const CONFIG: &str = r#"{"tokenizer": "demo", "type": "f32", "metadata": {
    "general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 64,
    "llama.embedding_length": 64, "llama.feed_forward_length": 128,
    "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.dimension_count": 16}}"#;

#[test]
fn a_configuration_becomes_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let [config, data, model, log] = ["c.json", "d.jsonl", "m.gguf", "log.jsonl"].map(at);
    std::fs::write(&config, CONFIG).unwrap();
    std::fs::write(&data, CHATS).unwrap();
    let files = [
        "train", &config, "--data", &data, "-o", &model, "--log", &log,
    ];
    let adapter = run(&files);
    assert_eq!(adapter.code, 2, "{}", adapter.stderr);
    assert!(adapter.stderr.contains("--full"), "{}", adapter.stderr);
    let small = [
        "--full", "--ctx", "32", "--batch", "2", "--lr", "0.01", "--steps", "30",
    ];
    run(&[&files[..], &small].concat()).ok();
    let losses = logged(folder, "loss");
    assert!(losses[29] < 0.3 * losses[0], "{losses:?}");
    let reply = run(&[
        "run",
        &model,
        "--temp",
        "0",
        "-n",
        "8",
        "What is the owl like?",
    ])
    .ok();
    assert!(reply.contains("The owl is wise."), "{reply}");
    std::fs::write(&config, "{}").unwrap();
    let empty = run(&[&files[..], &small].concat());
    assert_eq!(empty.code, 1, "{}", empty.stderr);
    assert!(empty.stderr.contains("missing field"), "{}", empty.stderr);
}

/// `train --draft-block` adds a block to a model, whose answers stay, or writes the block alone.
#[test]
fn a_trained_block_drafts() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (data, out) = (at("chats.jsonl"), at("drafting.gguf"));
    std::fs::write(&data, CHATS).unwrap();
    let trained = run(&[
        "train",
        DEMO,
        "--draft-block",
        "--data",
        &data,
        "-o",
        &out,
        "--loss-on",
        "all",
        "--ctx",
        "32",
        "--batch",
        "1",
        "--lr",
        "0.003",
        "--steps",
        "20",
    ]);
    assert_eq!(trained.code, 0, "{}", trained.stderr);
    let (model, block) = (at("model.gguf"), at("mtp-model.gguf"));
    std::fs::copy(DEMO, &model).unwrap();
    let untrained = [
        "train",
        &out,
        "--draft-block",
        "--data",
        &data,
        "-o",
        &block,
        "--ctx",
        "32",
        "--batch",
        "1",
        "--steps",
        "0",
    ];
    run(&untrained).ok();
    let size = |path: &str| std::fs::metadata(path).unwrap().len();
    assert!(size(&model) + size(&block) < size(&out) + (1 << 20));
    let answer = |more: &[&str]| {
        let question = [
            "run",
            &model,
            "-n",
            "40",
            "--temp",
            "0",
            "What is the owl like?",
        ];
        run(&[&question[..], more].concat())
    };
    let (plain, drafted) = (answer(&[]), answer(&["--speculate", "mtp"]));
    assert_eq!((plain.code, drafted.code), (0, 0), "{}", drafted.stderr);
    assert_eq!(drafted.stdout, plain.stdout);
    // Whether drafts pay depends on measured times; the block runs in any case.
    let profiled = run(&["profile", &model, "--draft"]).ok();
    assert!(profiled.contains("draft step of 1 rows"), "{profiled}");
    let without = run(&["run", DEMO, "--speculate", "mtp", "Hello"]);
    assert_ne!(without.code, 0);
    let why = without.stderr;
    assert!(why.contains("no block for draft tokens"), "{why}");
}
