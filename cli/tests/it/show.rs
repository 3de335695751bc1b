//! Commands inspect, kernels, devices, doctor and synth.

use super::serve::browser;
use super::{DEMO, gristmill, outcome, run};
use serde_json::Value;
use std::collections::HashMap;

#[test]
fn inspect_shows_what_is_in_a_file() {
    let out = run(&["inspect", DEMO]).ok();
    for part in [
        "general.name = \"demo-glm\"",
        "(2048 × string)",
        "blk.5.ffn_down_exps.weight",
        "256 × 256 × 8",
        "all       106 tensors",
        "8, of which 2 are used",
        "2040 <|endoftext|>",
    ] {
        assert!(out.contains(part), "{part} in\n{out}");
    }
    assert!(!run(&["inspect", DEMO, "--brief"]).ok().contains("TENSORS"));
    // A synthetic model has metadata only.
    let out = run(&["inspect", "synth:glm-4.7-flash:q4_0", "--brief"]).ok();
    assert!(
        out.contains("47, of which the first 1 are dense")
            && out.contains("64, of which 4 are used"),
        "{out}"
    );
}

#[test]
fn what_a_file_says_does_not_steer_the_terminal() {
    let mut bytes = std::fs::read(DEMO).unwrap();
    let at = bytes.windows(8).position(|w| w == b"demo-glm").unwrap();
    bytes[at..at + 8].copy_from_slice(b"\x1b[2J\x07\x9b\r\n");
    let at = bytes
        .windows(19)
        .position(|w| w == b"blk.0.attn_k_b.weig")
        .unwrap();
    bytes[at + 6] = 0x1b;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("steering.gguf");
    std::fs::write(&file, bytes).unwrap();
    let outcome = run(&["inspect", file.to_str().unwrap()]);
    // The renamed tensor is missing.
    assert!(
        outcome.stderr.contains("blk.0.attn_k_b.weight is missing"),
        "{}",
        outcome.stderr
    );
    let control = |text: &str| text.chars().any(|c| c.is_control() && c != '\n');
    assert!(!control(&outcome.stdout) && !control(&outcome.stderr));
    assert!(
        outcome.stdout.contains("blk.0.\\u{1b}ttn_k_b"),
        "{}",
        outcome.stdout
    );
    outcome.failed();
}

#[test]
fn kernels_come_with_their_prices() {
    let out = run(&["kernels", DEMO]).ok();
    for part in [
        "deepseek2.moe.one × 5",
        "deepseek2.dense.chunk512 × 1",
        "critical path",
        "*fuse",
        "step, decode: ",
    ] {
        assert!(out.contains(part), "{part}");
    }
    let stage =
        |stage: &str| run(&["kernels", DEMO, "--function", "dense.one", "--stage", stage]).ok();
    for (name, part) in [
        ("tensor", " = Gather "),
        ("kernel", "kind=global"),
        ("linear", "<- Fma "),
        ("source", "void r_"),
    ] {
        let text = stage(name);
        assert!(
            text.contains(part) || name == "tensor" && text.contains(" = Attention "),
            "{name}:\n{text}"
        );
        assert!(!text.contains("chunk512"), "{name}");
    }
    let how = stage("decisions");
    for part in [
        "decisions (* marks the choice)",
        "*fuse",
        "rules that fired",
        "x + 0 -> x",
        "sum(a*b) of bytes -> sum(dot4(words))",
    ] {
        assert!(how.contains(part), "{part} in {how}");
    }
    let out = run(&[
        "kernels",
        "synth:glm-4.7-flash:q4_0",
        "--device",
        "null:gpu",
    ])
    .ok();
    assert!(
        out.contains("deepseek2.moe.one × 46") && out.contains("gpu-h200"),
        "{out}"
    );
    let out = run(&["kernels", DEMO, "--device", "null:l4"]).ok();
    assert!(out.contains("gpu-l4"), "{out}");
    let unknown = run(&["kernels", DEMO, "--device", "null:none"]);
    assert!(
        unknown.code == 2 && unknown.stderr.contains("null:NAME"),
        "{}",
        unknown.stderr
    );
    assert!(
        run(&["kernels", DEMO, "--function", "none such"])
            .failed()
            .contains("deepseek2.moe.one")
    );
    // Needs no C compiler.
    assert!(
        outcome(gristmill(&["kernels", DEMO]).env("CC", "/nonexistent"))
            .ok()
            .contains("step, decode: ")
    );
}

#[test]
fn a_page_tells_how_kernels_came_to_be() {
    let page = run(&["kernels", DEMO, "--function", ".one", "--html", "-"]).ok();
    let (_, rest) = page.split_once("type=\"application/json\">").expect("data");
    let data: Value =
        serde_json::from_str(rest.split_once("</script").expect("an end").0).expect("JSON");
    let list = |v: &Value| v.as_array().expect("a list").clone();
    let functions = list(&data["functions"]);
    let moe = functions
        .iter()
        .find(|f| f["name"] == "deepseek2.moe.one")
        .expect("the function");
    assert_eq!(moe["calls"], 5);
    // Every pass is recorded, with the nodes that it names.
    let passes = list(&moe["passes"]);
    assert_eq!(passes.len(), list(&data["passes"]).len());
    let nodes: HashMap<u64, Value> = list(&moe["nodes"])
        .into_iter()
        .map(|n| (n[0].as_u64().expect("a number"), n))
        .collect();
    let known = |n: &Value| nodes.contains_key(&n.as_u64().expect("a number"));
    assert!(
        passes
            .iter()
            .all(|pass| list(&pass["roots"]).iter().all(known))
    );
    assert!(nodes.values().all(|node| list(&node[5]).iter().all(known)));
    let rules: Vec<Value> = passes
        .iter()
        .flat_map(|pass| list(&pass["rules"]))
        .collect();
    let of = |name: &str| {
        rules
            .iter()
            .filter(|rule| rule["name"] == name)
            .cloned()
            .collect::<Vec<_>>()
    };
    assert!(
        of("x + 0 -> x (integers)")
            .iter()
            .any(|rule| rule["examples"][0].is_array()),
        "{rules:?}"
    );
    assert!(
        !of("sum(a*b) of bytes -> sum(dot4(words))").is_empty()
            || !of("sum(a*b) of rows in eight bits -> sum(signed dot4(words))").is_empty()
    );
    // Decisions have candidates, and kernels have the stages of the table.
    assert!(
        list(&moe["decisions"])
            .iter()
            .any(|d| d["kind"] == "place" && list(&d["options"]).len() == 2)
    );
    for kernel in list(&moe["kernels"]) {
        let stages: Vec<String> = list(&kernel["stages"])
            .iter()
            .map(|s| s["name"].as_str().expect("a name").to_owned())
            .collect();
        assert_eq!(stages, ["kernel", "linear", "source"]);
    }
    assert!(
        run(&["kernels", DEMO, "--html", "none/such.html"])
            .failed()
            .contains("cannot write")
    );
    assert_eq!(
        run(&["kernels", DEMO, "--html", "-", "--stage", "source"]).code,
        2
    );
}

#[test]
fn the_page_of_kernels_works_in_a_browser() {
    let Some(browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("kernels.html");
    let page = page.to_str().unwrap();
    run(&["kernels", DEMO, "--html", page]).ok();
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/viewer.cjs");
    let output = std::process::Command::new("node")
        .arg(path)
        .args([browser, page])
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
        text(&output.stdout).contains("all passed"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn devices_say_what_they_are_or_lack() {
    let out = run(&["devices"]).ok();
    for part in [
        "cpu ",
        "cuda ",
        "device cuda cannot be used",
        "interp ",
        "null ",
        "null:gpu ",
        "null:rtx4090",
        "C compiler",
    ] {
        assert!(out.contains(part), "{out}");
    }
    assert!(out.contains("link with cpu: "), "{out}");
    let out = outcome(gristmill(&["devices"]).env("CC", "/nonexistent")).ok();
    assert!(
        out.contains("not available: no C compiler") && out.contains("hint: install gcc"),
        "{out}"
    );
}

#[test]
fn a_measured_link_is_shown_and_kept() {
    let store = tempfile::tempdir().unwrap();
    let devices = |flags: &[&str]| {
        let all = [&["devices"], flags].concat();
        outcome(gristmill(&all).env("GRISTMILL_CACHE", store.path())).ok()
    };
    let before = devices(&[]);
    assert!(
        before.contains("link with cpu: not measured: run `gristmill devices --measure`"),
        "{before}"
    );
    devices(&["--measure"]);
    let after = devices(&[]);
    let link = |line: &&str| line.contains("link with cpu: upload ");
    let line = after.lines().find(link).expect("a measured link");
    assert!(
        line.contains(" GB/s, download ") && line.contains(" GB/s, hand-over "),
        "{line}"
    );
}

#[test]
fn kernels_say_where_parts_would_be() {
    let decision = |flags: &[&str]| {
        let model = [
            "kernels",
            "synth:qwen3-30b-a3b:q4_k_m",
            "--device",
            "null:gpu",
        ];
        let stage = ["--stage", "decisions", "-c", "4096"];
        let out = run(&[&model[..], &stage, flags].concat()).ok();
        let line = out.lines().find(|line| line.contains("placement by"));
        line.unwrap_or_else(|| panic!("{out}")).to_owned()
    };
    let line = decision(&["--gpu-memory", "8000"]);
    for part in [
        "placement by a request, ",
        " MB for weights, link to cpu with upload 25 GB/s, download 25 GB/s, hand-over 65 us: ",
        "*experts (embedding and experts of ",
        " of 48 layers on cpu: decode ",
        " ms, prefill of 512 tokens ",
        ", layers (",
        ", none (all layers on the main device: ",
        " MB, too large) ",
    ] {
        assert!(line.contains(part), "{part} in\n{line}");
    }
    let line = decision(&["--gpu-memory", "8000", "--for", "decode"]);
    assert!(line.contains("placement by a decode step, "), "{line}");
    let line = decision(&["--gpu-layers", "40"]);
    assert!(line.contains("*layers (8 of 48 layers on cpu: "), "{line}");
}

#[test]
fn doctor_reports_what_a_device_computes_and_how_fast() {
    let out = run(&[
        "doctor", "--device", "cpu", "--model", "demo", "-p", "4", "-n", "4",
    ])
    .ok();
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert!(
        checks.len() == 4 && checks.iter().all(|check| check["passed"] == true),
        "{out}"
    );
    assert!(
        checks[0]["rms"].as_f64().unwrap() < 1e-4 && report["device"] == "cpu",
        "{out}"
    );
    let copies = &report["copies"];
    for figure in [
        "upload_gb_per_second",
        "download_gb_per_second",
        "hand_over_us",
    ] {
        assert!(copies[figure].as_f64().unwrap() > 0.0, "{copies}");
    }
    assert!(
        copies["with"] == "cpu" && report["warnings"] == serde_json::json!([]),
        "{out}"
    );
    let rate = |name: &str| report["measured"][name].as_f64().unwrap();
    assert!(
        rate("prompt_tokens_per_second") > 0.0 && rate("generated_tokens_per_second") > 0.0,
        "{out}"
    );
    assert!(
        run(&["doctor", "--device", "cpu", "--model", "no-such-file.gguf"])
            .failed()
            .contains("no-such-file.gguf")
    );
    let refused = run(&["doctor", "--device", "null"]);
    assert!(
        refused.code == 2 && refused.stderr.contains("computes nothing"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_model_that_cannot_be_generated_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    let path = file.to_str().unwrap();
    assert!(
        run(&["synth", "none-such", "--quant", "q4_0", "-o", path])
            .failed()
            .contains("glm-4.7-flash")
    );
    assert!(!file.exists());
    let nowhere = folder.path().join("none/such.gguf");
    assert!(
        run(&[
            "synth",
            "youtu-llm-2b",
            "--quant",
            "q4_0",
            "-o",
            nowhere.to_str().unwrap()
        ])
        .failed()
        .contains("write")
    );
}
