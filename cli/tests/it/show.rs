//! Commands that show things: inspect, kernels, devices, synth.

use super::{DEMO, gristmill, outcome, run};

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
    // Real shapes, no weights: at once.
    let out = run(&["inspect", "synth:glm-4.7-flash:q4_0", "--brief"]).ok();
    assert!(out.contains("47, of which the first 1 are dense") && out.contains("64, of which 4 are used"), "{out}");
}

#[test]
fn what_a_file_says_does_not_steer_the_terminal() {
    let mut bytes = std::fs::read(DEMO).unwrap();
    let at = bytes.windows(8).position(|w| w == b"demo-glm").unwrap();
    bytes[at..at + 8].copy_from_slice(b"\x1b[2J\x07\x9b\r\n");
    let at = bytes.windows(19).position(|w| w == b"blk.0.attn_k_b.weig").unwrap();
    bytes[at + 6] = 0x1b;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("steering.gguf");
    std::fs::write(&file, bytes).unwrap();
    let outcome = run(&["inspect", file.to_str().unwrap()]);
    // A tensor has another name, so the model lacks one.
    assert!(outcome.stderr.contains("blk.0.attn_k_b.weight is missing"), "{}", outcome.stderr);
    let control = |text: &str| text.chars().any(|c| c.is_control() && c != '\n');
    assert!(!control(&outcome.stdout) && !control(&outcome.stderr));
    assert!(outcome.stdout.contains("blk.0.\\u{1b}ttn_k_b"), "{}", outcome.stdout);
    outcome.failed();
}

#[test]
fn kernels_come_with_their_prices() {
    let out = run(&["kernels", DEMO]).ok();
    for part in ["deepseek2.moe.one × 5", "deepseek2.dense.chunk512 × 1", "critical path", "*fuse", "step of one token"]
    {
        assert!(out.contains(part), "{part}");
    }
    let stage = |stage: &str| run(&["kernels", DEMO, "--function", "dense.one", "--stage", stage]).ok();
    for (name, part) in
        [("tensor", " = Gather "), ("kernel", "kind=global"), ("linear", "<- Fma "), ("source", "void r_")]
    {
        let text = stage(name);
        assert!(text.contains(part) || name == "tensor" && text.contains(" = Attention "), "{name}:\n{text}");
        assert!(!text.contains("chunk512"), "{name}");
    }
    let how = stage("decisions");
    for part in [
        "decisions, * what was chosen",
        "*fuse",
        "rules that fired",
        "x + 0 -> x",
        "sum(a*b) of bytes -> sum(dot4(words))",
    ] {
        assert!(how.contains(part), "{part} in {how}");
    }
    let out = run(&["kernels", "synth:glm-4.7-flash:q4_0", "--device", "null:gpu"]).ok();
    assert!(out.contains("deepseek2.moe.one × 46") && out.contains("gpu-h200"), "{out}");
    let out = run(&["kernels", DEMO, "--device", "null:l4"]).ok();
    assert!(out.contains("gpu-l4"), "{out}");
    let unknown = run(&["kernels", DEMO, "--device", "null:none"]);
    assert!(unknown.code == 2 && unknown.stderr.contains("null:NAME"), "{}", unknown.stderr);
    assert!(run(&["kernels", DEMO, "--function", "none such"]).failed().contains("deepseek2.moe.one"));
    // No compiler is needed to look.
    assert!(outcome(gristmill(&["kernels", DEMO]).env("CC", "/nonexistent")).ok().contains("step of one token"));
}

#[test]
fn devices_say_what_they_are_or_lack() {
    let out = run(&["devices"]).ok();
    for part in
        ["cpu ", "cuda ", "device cuda cannot be used", "interp ", "null ", "null:gpu ", "null:rtx4090", "C compiler"]
    {
        assert!(out.contains(part), "{out}");
    }
    let out = outcome(gristmill(&["devices"]).env("CC", "/nonexistent")).ok();
    assert!(out.contains("not available: no C compiler") && out.contains("hint: install gcc"), "{out}");
}

#[test]
fn a_model_that_cannot_be_generated_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    let path = file.to_str().unwrap();
    assert!(run(&["synth", "none-such", "--quant", "q4_0", "-o", path]).failed().contains("glm-4.7-flash"));
    assert!(!file.exists());
    let nowhere = folder.path().join("none/such.gguf");
    assert!(
        run(&["synth", "youtu-llm-2b", "--quant", "q4_0", "-o", nowhere.to_str().unwrap()]).failed().contains("write")
    );
}
