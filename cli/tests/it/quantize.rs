//! Quantising the demo model, with and without an importance matrix.

use super::{DEMO, run};

#[test]
fn a_model_is_quantised_as_its_flags_say() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (text, imatrix, out) = (at("text.txt"), at("imatrix.gguf"), at("out.gguf"));
    std::fs::write(
        &text,
        "The owl sleeps in the old oak until the moon is up. ".repeat(20),
    )
    .unwrap();
    let made = run(&[
        "imatrix", DEMO, "-f", &text, "-o", &imatrix, "-c", "32", "--chunks", "3",
    ]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    assert!(
        made.stderr.contains("3 of 3 chunks of 32 tokens"),
        "{}",
        made.stderr
    );
    let refused = run(&["quantize", DEMO, "-o", &out, "--type", "q3_k_s"]).failed();
    assert!(refused.contains("--allow-requantize"), "{refused}");
    let refused = run(&[
        "quantize",
        DEMO,
        "-o",
        &out,
        "--type",
        "iq2_s",
        "--allow-requantize",
    ])
    .failed();
    assert!(refused.contains("gristmill imatrix"), "{refused}");
    let small = [
        "--type",
        "iq2_s",
        "--imatrix",
        &imatrix,
        "--allow-requantize",
    ];
    let mla = ["--tensor-type", "attn_[kv]_b=q4_0"];
    let made = run(&[&["quantize", DEMO, "-o", &out][..], &small, &mla].concat());
    assert_eq!(made.code, 0, "{}", made.stderr);
    assert!(made.stderr.contains("bits a weight"), "{}", made.stderr);
    let shown = run(&["inspect", &out]).ok();
    assert!(
        shown.contains("iq2_xs") && shown.contains("quantize.imatrix.file"),
        "{shown}"
    );
    let again = run(&[&["quantize", DEMO, "-o", &out][..], &small, &mla].concat()).failed();
    assert!(again.contains("--force"), "{again}");
    // llama-quantize's order of arguments.
    let made = run(&[
        "quantize",
        "--allow-requantize",
        DEMO,
        &at("q8.gguf"),
        "Q8_0",
        "2",
    ]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let dry = run(&["quantize", DEMO, "Q5_K_M", "--dry-run"]).ok();
    assert!(dry.contains("-> q5_k") && dry.contains("-> q6_k"), "{dry}");
    let unknown = run(&["quantize", DEMO, "-o", &out, "--type", "q9_9"]);
    assert_eq!(unknown.code, 2, "{}", unknown.stderr);
    assert!(
        unknown.stderr.contains("choose one of: "),
        "{}",
        unknown.stderr
    );
    assert_eq!(run(&["quantize", DEMO, "-o", &out]).code, 2);
    assert_eq!(
        run(&[
            "imatrix", DEMO, "-f", &text, "-o", &out, "-c", "1024", "--force"
        ])
        .code,
        1
    );
    assert!(!folder.path().join("out.gguf.tmp").exists());
}
