//! Tests of the xtask binary. They also make `cargo test`
//! build it, which the gate needs for `tidy`.

use std::process::{Command, Output};

fn tidy(arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_xtask"));
    program.arg("tidy").args(arguments).output().expect("it runs")
}

#[test]
fn checks_are_listed_by_name() {
    let listed = tidy(&["--list"]);
    let text = String::from_utf8_lossy(&listed.stdout);
    assert!(listed.status.success() && text.lines().any(|line| line.starts_with("manifests ")), "{text}");
}

#[test]
fn a_name_that_no_check_has_is_refused() {
    let refused = tidy(&["no-such-check"]);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("no check is named no-such-check"), "{text}");
    assert!(text.contains("hint:"), "{text}");
}
