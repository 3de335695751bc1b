//! Client programs under `tests/clients`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Returns the Python that has the client packages.
pub fn python() -> String {
    std::env::var("GRISTMILL_PYTHON").unwrap_or_else(|_| "python3".into())
}

/// Whether a program with the client packages is installed; prints or fails if not.
pub fn has_clients(program: &str, check: &[&str]) -> bool {
    let found = Command::new(program)
        .args(check)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        let what = format!("{program} with the clients that .ci/run installs");
        assert!(
            std::env::var_os("GRISTMILL_REQUIRE_CLIENTS").is_none(),
            "there is no {what}"
        );
        eprintln!("skipped: there is no {what}");
    }
    found
}

/// Runs a client script, which must pass at least `checks` checks.
pub fn script(program: &str, name: &str, arguments: &[&str], checks: usize) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/clients")
        .join(name);
    let output = Command::new(program)
        .arg(path)
        .args(arguments)
        .output()
        .expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    assert!(
        text(&output.stdout).lines().count() >= checks,
        "{}",
        text(&output.stdout)
    );
}
