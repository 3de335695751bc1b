//! Every pass alone, as text in and text out: a file under `tests/passes/PASS/` is a case. How one is written is said in CONTRIBUTING.md.
//!
//! What a pass makes of a case is compared with the file, is checked by the spec of its level, and is run beside what went in, on random values: the
//! evaluator judges the tensor level, `interp` the kernel level, so that what is blessed computes the same. The tests lie here and not in the compiler,
//! which may know neither of the two.
//!
//! `GRISTMILL_BLESS=1` rewrites what is expected, `GRISTMILL_CASE=text` runs only the cases whose paths contain the text.

#[path = "passes/apply.rs"]
mod apply;
#[path = "passes/case.rs"]
mod case;
#[path = "passes/context.rs"]
mod context;
#[path = "passes/judge.rs"]
mod judge;
#[path = "passes/kernels.rs"]
mod kernels;
#[path = "passes/linear.rs"]
mod linear;
#[path = "passes/memory.rs"]
mod memory;
#[path = "passes/show.rs"]
mod show;
#[path = "passes/tensors.rs"]
mod tensors;

use case::Case;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/passes")
}

/// Entries of a folder by name.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").path()).collect();
    all.sort();
    all
}

/// The folders of cases, one for each pass.
fn passes() -> Vec<PathBuf> {
    entries(&folder()).into_iter().filter(|p| p.is_dir()).collect()
}

/// Runs a case; the words for what is wrong with it.
fn run(path: &Path, bless: bool) -> Result<(), String> {
    let case = Case::read(path)?;
    let pass = apply::PASSES.iter().find(|p| p.0 == case.pass).ok_or_else(|| format!("no pass `{}`", case.pass))?;
    let applied = (pass.1)(&case)?;
    judge::judge(&case, &applied)?;
    case.all_read()?;
    case.compare(&applied.text, bless)
}

#[test]
fn every_case() {
    let only = std::env::var("GRISTMILL_CASE").unwrap_or_default();
    let bless = std::env::var_os("GRISTMILL_BLESS").is_some();
    let cases: Vec<PathBuf> = passes().iter().flat_map(|p| entries(p)).collect();
    let cases = cases.into_iter().filter(|p| p.to_string_lossy().contains(&only));
    let failed: Vec<String> = cases
        .filter_map(|path| {
            // A pass that panics fails its own case, not those after it.
            let result = std::panic::catch_unwind(|| run(&path, bless));
            let words = match result {
                Ok(result) => result.err()?,
                Err(_) => "panicked: the message is above".to_string(),
            };
            let name = path.strip_prefix(folder()).unwrap_or(&path).display().to_string();
            Some(format!("{name}: {words}"))
        })
        .collect();
    assert!(failed.is_empty(), "{} cases fail\n\n{}", failed.len(), failed.join("\n\n"));
}

#[test]
fn every_pass_has_cases_and_every_folder_is_a_pass() {
    let folders: Vec<String> =
        passes().iter().map(|p| p.file_name().expect("a name").to_string_lossy().into_owned()).collect();
    let mut names: Vec<&str> = apply::PASSES.iter().map(|p| p.0).collect();
    names.sort_unstable();
    assert_eq!(folders, names);
    for folder in passes() {
        assert!(!entries(&folder).is_empty(), "{} is empty", folder.display());
    }
}
