//! Hostile grammars: the process that checks them ends soon, in little memory.

use super::templates::measured;
use serde_json::{Value, json};
use std::fs::File;
use std::process::Command;
use std::time::Duration;

/// Limit of the processor time: the process's own two seconds, and the kernel's granularity.
const LONGEST: Duration = Duration::from_secs(4);
/// Memory limit in KiB: the process's own 512 MiB, and the program's.
const MOST: i64 = 700 << 10;

/// Checks a grammar in a process. Returns the answer; `None` if a limit ended the process.
fn check(grammar: &str) -> Option<Value> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("request");
    let request = json!({
        "vocabulary": { "tokens": 300, "end": 0, "specials": [[0, [255, 60, 101, 62]]] },
        "grammar": { "grammars": [{ "lark_grammar": grammar }] },
    });
    std::fs::write(&path, request.to_string()).unwrap();
    let run = measured(
        Command::new(env!("CARGO_BIN_EXE_gristmill"))
            .arg("check-grammar")
            .stdin(File::open(&path).unwrap()),
    );
    assert!(run.time < LONGEST, "{grammar}: {:?}", run.time);
    assert!(run.memory < MOST, "{grammar}: {} KiB", run.memory);
    serde_json::from_str(&run.outcome.stdout).ok()
}

#[test]
fn grammars_that_do_harm_are_stopped() {
    let intersection: Vec<String> = (10..40).map(|n| format!("/.*a.{{{n}}}/")).collect();
    let patterns = Value::from_iter((0..900).map(|i| (format!("^(a|b)*{i}$"), json!({}))));
    for grammar in [
        format!("start: A\nA: {}", intersection.join(" & ")),
        format!("start: %json {}", json!({ "patternProperties": patterns })),
        r#"start: %json {"type": "integer", "multipleOf": 999983}"#.to_owned(),
        "start: /x/ | (/y/ (/.*a.{300}/ & ~/.*b.{300}/ & /.*c.{300}/))".to_owned(),
    ] {
        let answer = check(&grammar);
        assert!(
            answer.is_none_or(|answer| answer.get("Err").is_some()),
            "{grammar}"
        );
    }
}

#[test]
fn grammars_that_do_no_harm_pass() {
    for grammar in [
        "start: /[a-z]{1,20}/ | <e>",
        r#"start: %json {"type": "object", "properties": {"a": {"type": "integer"}}}"#,
    ] {
        assert_eq!(check(grammar), Some(json!({ "Ok": null })), "{grammar}");
    }
    let answer = check("start: b").unwrap();
    assert!(answer["Err"].is_string(), "{answer}");
}
