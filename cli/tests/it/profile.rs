//! `gristmill profile`: tables, page and trace of the demo model.

use super::serve::browser;
use super::{DEMO, run};
use serde_json::Value;

/// Parses the JSON data of a page.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("type=\"application/json\">").expect("data");
    serde_json::from_str(rest.split_once("</script").expect("an end").0).expect("JSON")
}

#[test]
fn a_token_is_accounted_for() {
    let folder = tempfile::tempdir().unwrap();
    let (page, trace) = (
        folder.path().join("page.html"),
        folder.path().join("trace.json"),
    );
    let files = [
        "--html",
        page.to_str().unwrap(),
        "--trace",
        trace.to_str().unwrap(),
    ];
    let out = run(&[
        &["profile", DEMO, "-n", "5", "-d", "64", "--threads", "2"][..],
        &files,
    ]
    .concat())
    .ok();
    for part in [
        "decode step at context depth 64",
        "deepseek2.moe.one",
        "deepseek2.dense.one",
        "between kernels",
        "tokens a second",
        "The timers themselves",
    ] {
        assert!(out.contains(part), "{part} in\n{out}");
    }
    let page = std::fs::read_to_string(page).unwrap();
    let data = data(&page);
    let number = |v: &Value| v.as_f64().unwrap();
    let list = |v: &Value| v.as_array().unwrap().clone();
    let (kernels, launches, spans) = (
        list(&data["kernels"]),
        list(&data["launches"]),
        list(&data["spans"]),
    );
    // Every launch has spans, on both workers, none longer than the step.
    assert!(
        (0..launches.len()).all(|l| spans.iter().any(|s| s[0].as_u64() == Some(l as u64))),
        "{spans:?}"
    );
    assert!(
        spans
            .iter()
            .all(|s| number(&s[2]) <= number(&s[3]) && number(&s[3]) < 1e6)
    );
    assert!(spans.iter().any(|s| s[1] == 1));
    let calls: u64 = list(&data["rows"])
        .iter()
        .map(|r| r["calls"].as_u64().unwrap())
        .sum();
    assert_eq!(calls as usize, launches.len());
    // One of six layers is dense.
    let kinds: Vec<(String, u64)> = list(&data["kinds"])
        .iter()
        .map(|k| {
            (
                k["function"].as_str().unwrap().to_owned(),
                k["calls"].as_u64().unwrap(),
            )
        })
        .collect();
    assert!(
        kinds.contains(&("deepseek2.moe.one".into(), 5))
            && kinds.contains(&("deepseek2.dense.one".into(), 1)),
        "{kinds:?}"
    );
    // Bytes agree with `bench`, except for data that two kernels read.
    let bench = run(&[
        "bench", DEMO, "-p", "0", "-n", "1", "-d", "64", "-r", "1", "--json",
    ])
    .ok();
    let expected = number(&serde_json::from_str::<Value>(bench.trim()).unwrap()["bytes_per_token"]);
    let found = number(&data["bytes"]);
    assert!(
        (found / expected - 1.0).abs() < 0.03,
        "{found} and {expected}"
    );
    for kernel in &kernels {
        let stages: Vec<String> = list(&kernel["stages"])
            .iter()
            .map(|s| s["name"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(stages, ["tensor", "kernel", "linear", "source"]);
    }
    // The kernel that joins the chunks of attention is no softmax, which this model has none of.
    let named = |part: &str| {
        let about = |kernel: &Value| kernel["about"].as_str().unwrap().contains(part);
        kernels.iter().any(about)
    };
    assert!(
        named("attention combine") && !named("softmax"),
        "{kernels:?}"
    );
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    assert_eq!(
        list(&trace["traceEvents"])
            .iter()
            .filter(|e| e["ph"] == "X")
            .count(),
        spans.len()
    );
}

#[test]
fn the_page_of_a_profile_works_in_a_browser() {
    let Some(browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("profile.html");
    let page = page.to_str().unwrap();
    run(&["profile", DEMO, "-n", "2", "--html", page]).ok();
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/profile.cjs");
    let output = std::process::Command::new("node")
        .arg(path)
        .args([browser, page])
        .output()
        .expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        text(&output.stdout).contains("all passed"),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}

#[test]
fn one_kernel_and_its_text() {
    let all = run(&["profile", DEMO, "-n", "1", "--all"]).ok();
    let name = all
        .split_whitespace()
        .find(|word| word.starts_with("r_"))
        .unwrap();
    let one = run(&["profile", DEMO, "-n", "1", "--kernel", name]).ok();
    assert!(
        one.starts_with(name) && one.contains("modelled") && !one.contains("void "),
        "{one}"
    );
    assert!(
        run(&["profile", DEMO, "-n", "1", "--kernel", name, "--source"])
            .ok()
            .contains(&format!("void {name}"))
    );
    assert!(
        run(&["profile", DEMO, "-n", "1", "--kernel", "none"])
            .failed()
            .contains("r_")
    );
    assert_eq!(run(&["profile", DEMO, "--source"]).code, 2);
}

#[test]
fn prompts_and_other_devices() {
    let out = run(&["profile", DEMO, "-n", "1", "-p", "40"]).ok();
    assert!(
        out.contains("prefill chunk of 40 tokens") && out.contains("chunk64"),
        "{out}"
    );
    let out = run(&["profile", DEMO, "-n", "1", "--device", "interp"]).ok();
    assert!(
        out.contains("deepseek2.moe.one") && out.contains("interp"),
        "{out}"
    );
    let outcome = run(&["profile", DEMO, "-n", "1", "--trace", "-"]);
    assert!(
        outcome.stderr.contains("between kernels"),
        "{}",
        outcome.stderr
    );
    assert!(serde_json::from_str::<Value>(&outcome.ok()).unwrap()["traceEvents"].is_array());
    assert!(
        run(&["profile", DEMO, "-d", "5000"])
            .failed()
            .contains("5001")
    );
    assert!(
        run(&["profile", DEMO, "--html", "none/such.html"])
            .failed()
            .contains("cannot write")
    );
}
