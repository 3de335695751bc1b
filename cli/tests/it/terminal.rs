//! Output of models and files on a pseudo-terminal.

use super::{DEMO, gristmill, outcome, run};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a command with standard output and error on a terminal; returns success and output.
fn on_terminal(command: &mut Command) -> (bool, String) {
    at_terminal(command, None)
}

/// Runs a command on a terminal where `text` is typed.
pub fn typed_on_terminal(command: &mut Command, text: &str) -> (bool, String) {
    at_terminal(command, Some(text))
}

/// Opens a pseudo-terminal; returns the test's end and the program's.
pub fn pseudo_terminal() -> (File, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs = File::options()
        .read(true)
        .write(true)
        .open(name.to_str().unwrap())
        .unwrap();
    (File::from(ours), theirs)
}

fn at_terminal(command: &mut Command, typed: Option<&str>) -> (bool, String) {
    let (mut ours, theirs) = pseudo_terminal();
    if let Some(typed) = typed {
        command.stdin(theirs.try_clone().unwrap());
        // The terminal buffers it.
        ours.write_all(typed.as_bytes()).unwrap();
    }
    command
        .stdout(theirs.try_clone().unwrap())
        .stderr(theirs)
        .env("TERM", "xterm")
        .env_remove("NO_COLOR");
    let mut child = command.spawn().unwrap();
    // The command holds the other end too; reading ends when both are closed.
    let nothing = std::process::Stdio::null;
    command.stdin(nothing()).stdout(nothing()).stderr(nothing());
    let mut bytes = Vec::new();
    // A closed other end is an error on Linux, end of file elsewhere.
    let _ = ours.read_to_end(&mut bytes);
    let status = child.wait().unwrap();
    (status.success(), String::from_utf8(bytes).unwrap())
}

/// Writes the demo model with the text of a token replaced to `folder`.
fn model_that_says(folder: &Path, from: &str, to: &str) -> PathBuf {
    let mut bytes = std::fs::read(DEMO).unwrap();
    // A token in the file: length and text.
    let entry = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let (old, new) = (entry(from), entry(to));
    assert_eq!(old.len(), new.len());
    let at = bytes
        .windows(old.len())
        .position(|w| w == old)
        .expect("the token");
    bytes[at..at + new.len()].copy_from_slice(&new);
    let path = folder.join("steering.gguf");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// A token of the demo's answer in its byte-level vocabulary, as long as [`STEERS`].
const SAYS: &str = "ĠTokyo";
/// ESC c, which resets a terminal, and ESC [ m; ESC is `ě` in the vocabulary.
const STEERS: &str = "ěcě[m";

#[test]
fn an_answer_does_not_steer_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = model_that_says(folder.path(), SAYS, STEERS);
    let path = path.to_str().unwrap();
    let question = [
        "run",
        path,
        "--temp",
        "0",
        "-p",
        "What is the capital of Japan?",
    ];
    // A pipe gets the bytes unchanged.
    assert_eq!(run(&question).ok(), "The capital of Japan is\x1bc\x1b[m.");
    let (well, text) = on_terminal(&mut gristmill(&question));
    assert!(
        well && text.contains("Japan is\\u{1b}c\\u{1b}[m."),
        "{text:?}"
    );
    assert!(
        !text.contains("\x1bc") && !text.contains("\x1b[m"),
        "{text:?}"
    );
    let talk = folder.path().join("talk");
    std::fs::write(
        &talk,
        "/system \u{9b}2J\x1b]52;c;YQ==\x07\n/system\n/system -\nWhat is the capital of Japan?\n",
    )
    .unwrap();
    let mut chat = gristmill(&["chat", path, "--temp", "0"]);
    let (well, text) = on_terminal(chat.stdin(File::open(&talk).unwrap()));
    assert!(
        well && text.contains("Japan is\\u{1b}c\\u{1b}[m."),
        "{text:?}"
    );
    assert!(
        text.contains("\\u{9b}2J\\u{1b}]52;c;YQ==\\u{7}"),
        "{text:?}"
    );
    for steering in ["\x1bc", "\x1b[m", "\x1b]", "\x07", "\u{9b}"] {
        assert!(!text.contains(steering), "{steering:?} in {text:?}");
    }
}

#[test]
fn a_file_of_many_keys_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.gguf");
    let mut bytes = std::fs::read(DEMO).unwrap();
    let count = i64::from_le_bytes(bytes[16..24].try_into().unwrap());
    let more: i64 = 50_000;
    bytes[16..24].copy_from_slice(&(count + more).to_le_bytes());
    // Inserted before the first key; a multiple of 32 bytes keeps the alignment of the data.
    let keys: Vec<u8> = (0..more)
        .flat_map(|i| {
            let key = format!("{i:016}");
            [
                &16u64.to_le_bytes()[..],
                key.as_bytes(),
                &4u32.to_le_bytes(),
                &7u32.to_le_bytes(),
            ]
            .concat()
        })
        .collect();
    assert_eq!(keys.len() % 32, 0);
    bytes.splice(24..24, keys);
    std::fs::write(&file, bytes).unwrap();
    let path = file.to_str().unwrap();
    let out = run(&["inspect", path]).ok();
    let left = count + more - 256;
    assert!(
        out.contains(&format!("… {left} more keys; --all shows them"))
            && out.lines().count() < 1000,
        "{out}"
    );
    assert!(run(&["inspect", path, "--all"]).ok().lines().count() > 50_000);
    let long = outcome(&mut gristmill(&["inspect", DEMO]));
    assert!(!long.ok().contains("--all"));
}
