//! Merging an adapter into the demo model.

use super::train::train;
use super::{DEMO, run};

/// Perplexity of a text by a model.
fn perplexity(text: &str, model: &str, more: &[&str]) -> f64 {
    let out = run(&[&["perplexity", model, text, "--exact"][..], more].concat()).ok();
    let line = out
        .lines()
        .find_map(|line| line.strip_prefix("perplexity "));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn a_merged_model_is_the_model_with_its_adapter() {
    let folder = tempfile::tempdir().unwrap();
    let trained = train(folder.path(), &["--lr", "0.01", "--steps", "12"]);
    assert_eq!(trained.code, 0, "{}", trained.stderr);
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (text, adapter, merged) = (at("text.txt"), at("adapter.gguf"), at("merged.gguf"));
    std::fs::write(&text, "What is the owl like?").unwrap();
    let out = run(&["merge", DEMO, &adapter, "-o", &merged]);
    assert_eq!(out.code, 0, "{}", out.stderr);
    assert!(out.stderr.contains("adapters added to"), "{}", out.stderr);
    let applied = perplexity(&text, DEMO, &["--lora", &adapter]);
    let base = perplexity(&text, DEMO, &[]);
    // Rounding the changed weights to 4 bits costs a part of the effect.
    let rounded = perplexity(&text, &merged, &[]);
    let logarithm = |a: f64, b: f64| (a / b).ln().abs();
    assert!(
        logarithm(rounded, applied) < 0.5 * logarithm(base, applied),
        "{base} without, {applied} with the adapter, {rounded} merged"
    );
    let again = run(&["merge", DEMO, &adapter, "-o", &merged]).failed();
    assert!(
        again.contains("exists") && again.contains("--force"),
        "{again}"
    );
    let more = ["-o", &merged, "--force", "--quant", "F32"];
    let out = run(&[&["merge", DEMO, &adapter][..], &more].concat());
    assert_eq!(out.code, 0, "{}", out.stderr);
    let exact = perplexity(&text, &merged, &[]);
    assert!(
        logarithm(exact, applied) < 1e-3,
        "{exact}, {applied} with the adapter"
    );
    let halved = format!("{adapter}=0.5");
    let more = ["-o", &merged, "--force", "--quant", "f32"];
    assert_eq!(
        run(&[&["merge", DEMO, &halved, &halved][..], &more].concat()).code,
        0
    );
    let exact = perplexity(&text, &merged, &[]);
    assert!(
        logarithm(exact, applied) < 1e-3,
        "{exact}, {applied} with the adapter"
    );
    assert!(!folder.path().join("merged.gguf.tmp").exists());
}

#[test]
fn what_cannot_be_merged_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("x.gguf");
    let out = out.to_str().unwrap();
    let failed = run(&["merge", DEMO, DEMO, "-o", out]).failed();
    assert!(failed.contains("no LoRA adapter"), "{failed}");
    let unknown = run(&["merge", DEMO, DEMO, "-o", out, "--quant", "q9_9"]);
    assert_eq!(unknown.code, 2, "{}", unknown.stderr);
    assert!(
        unknown.stderr.contains("choose one of: f32"),
        "{}",
        unknown.stderr
    );
    assert_eq!(run(&["merge", DEMO, "-o", out]).code, 2);
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
}
