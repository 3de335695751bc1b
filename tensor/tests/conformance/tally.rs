//! Which alternatives of each kind of decision were taken: a line each in the file that `GRISTMILL_DECISIONS` names, for `cargo xtask conformance`.

use gristmill_compiler::Decision;
use gristmill_compiler::decision::{Count, counts};
use std::fs::OpenOptions;
use std::io::{self, Write};

/// Adds those of some functions on a target. All lines at once, since tests run side by side.
pub fn add<'a>(target: &str, decisions: impl IntoIterator<Item = &'a Decision>) -> io::Result<()> {
    let Some(path) = std::env::var_os("GRISTMILL_DECISIONS") else { return Ok(()) };
    OpenOptions::new().create(true).append(true).open(path)?.write_all(lines(target, decisions).as_bytes())
}

/// `target <tab> kind <tab> alternative <tab> offered <tab> taken`, of decisions that have several.
fn lines<'a>(target: &str, decisions: impl IntoIterator<Item = &'a Decision>) -> String {
    let several = decisions.into_iter().filter(|decision| decision.options.len() > 1);
    let line = |((kind, alternative), Count { offered, taken }): ((&str, &str), Count)| {
        format!("{target}\t{kind}\t{alternative}\t{offered}\t{taken}\n")
    };
    counts(several).into_iter().map(line).collect()
}

#[test]
fn alternatives_are_counted() {
    use gristmill_compiler::decision::Alternative;
    let of = |kind, options: &[&'static str], chosen, asked| {
        let options = options.iter().map(|name| Alternative::named(name, 1.0)).collect();
        Decision { chosen, asked, ..Decision::new(kind, "Reduce [2]".into(), options) }
    };
    let all = [
        of("place", &["buffer", "fuse"], 1, true),
        of("place", &["buffer", "fuse"], 1, true),
        of("merge", &["apart", "together"], 0, true),
        of("workgroup", &["alone"], 0, true),
        of("kept", &["buffer", "fuse"], 0, false),
    ];
    let expected = ["merge\tapart\t1\t1", "merge\ttogether\t1\t0", "place\tbuffer\t2\t0", "place\tfuse\t2\t2"];
    assert_eq!(lines("gpu", &all), expected.map(|line| format!("gpu\t{line}\n")).concat());
}
