//! Converting checkpoints of transformers.

use super::run;

const FOLDER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../llm/tests/data/convert/qwen3"
);

#[test]
fn a_checkpoint_is_written_as_its_flags_say() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let out = at("out.gguf");
    let made = run(&["convert", FOLDER, "-o", &out]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let shown = run(&["inspect", &out]).ok();
    for text in [
        "general.architecture = \"qwen3\"",
        "general.file_type = 32",
        "tokenizer.ggml.pre = \"qwen2\"",
        "blk.1.ffn_up.weight       bf16",
    ] {
        assert!(shown.contains(text), "{shown} lacks {text}");
    }
    let again = run(&["convert", FOLDER, "-o", &out]).failed();
    assert!(again.contains("--force"), "{again}");
    let made = run(&["convert", FOLDER, "-o", &out, "--force", "--type", "q8_0"]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    assert!(run(&["inspect", &out]).ok().contains("q8_0"));
    let dry = run(&["convert", FOLDER, "--type", "F32", "--dry-run"]).ok();
    assert!(dry.contains("bf16 -> f32"), "{dry}");
    // A folder is a model as it is.
    let [of_folder, of_file] =
        [FOLDER, &out].map(|model| run(&["tokenize", model, "Don't panic: 42"]).ok());
    assert_eq!(of_folder, of_file);
    let unknown = run(&["convert", FOLDER, "-o", &out, "--type", "q9_9"]);
    assert_eq!(unknown.code, 2, "{}", unknown.stderr);
    let empty = run(&["convert", folder.path().to_str().unwrap(), "-o", &at("x")]).failed();
    assert!(empty.contains("has no config.json"), "{empty}");
}
