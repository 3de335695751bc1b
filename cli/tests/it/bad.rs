//! Bad input fails with a message, a hint and exit code 1; wrong usage with exit code 2.

use super::{DEMO, gristmill, outcome, run};
use gristmill_llm::gguf::Gguf;
use std::path::{Path, PathBuf};

/// Writes a changed copy of the demo model to `folder`.
fn changed(folder: &Path, name: &str, change: impl Fn(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = std::fs::read(DEMO).unwrap();
    change(&mut bytes);
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn put(bytes: &mut [u8], at: usize, new: &[u8]) {
    bytes[at..at + new.len()].copy_from_slice(new);
}

/// Offset of the value of a key, after its name and type.
fn value_of(bytes: &[u8], key: &str) -> usize {
    bytes
        .windows(key.len())
        .position(|w| w == key.as_bytes())
        .unwrap()
        + key.len()
        + 4
}

/// Name, change of the file, and part of the expected message.
type Case = (&'static str, fn(&mut Vec<u8>), &'static str);

const CASES: &[Case] = &[
    ("magic", |b| put(b, 0, b"PK\x03\x04"), "not a GGUF file"),
    ("version", |b| put(b, 4, &9u32.to_le_bytes()), "version 9"),
    ("tensors", |b| put(b, 8, &i64::MAX.to_le_bytes()), "tensors"),
    (
        "negative tensors",
        |b| put(b, 8, &(-1i64).to_le_bytes()),
        "-1 tensors",
    ),
    (
        "keys",
        |b| put(b, 16, &(1i64 << 62).to_le_bytes()),
        "header declares",
    ),
    (
        "key length",
        |b| put(b, 24, &u64::MAX.to_le_bytes()),
        "bytes at offset",
    ),
    ("empty", |b| b.clear(), "ends inside"),
    ("header cut", |b| b.truncate(30), "room for at most"),
    ("data cut", |b| b.truncate(b.len() - 4096), "of a file of"),
    (
        "architecture",
        |b| {
            let at = value_of(b, "general.architecture");
            put(b, at + 8, b"mystery99");
        },
        "mystery99 are not supported",
    ),
    (
        "heads",
        |b| {
            let at = value_of(b, "attention.head_count");
            put(b, at, &0u32.to_le_bytes());
        },
        "head_count",
    ),
    (
        "width",
        |b| {
            let at = value_of(b, "embedding_length");
            put(b, at, &512u32.to_le_bytes());
        },
        "has dims",
    ),
    (
        "tokenizer",
        |b| {
            let at = value_of(b, "tokenizer.ggml.model");
            put(b, at + 8, b"rwkv");
        },
        "rwkv",
    ),
    (
        "splitter",
        |b| {
            let at = value_of(b, "tokenizer.ggml.pre");
            put(b, at + 8, b"none");
        },
        "none",
    ),
    // If both are unknown, the architecture is reported.
    (
        "architecture and splitter",
        |b| {
            for (key, value) in [
                ("general.architecture", &b"deepseek9"[..]),
                ("tokenizer.ggml.pre", b"none"),
            ] {
                let at = value_of(b, key);
                put(b, at + 8, value);
            }
        },
        "the nearest that there is: deepseek2",
    ),
];

#[test]
fn malformed_files_are_refused_with_a_way_out() {
    let folder = tempfile::tempdir().unwrap();
    for (name, change, message) in CASES {
        let path = changed(folder.path(), name, change);
        let error = run(&["run", path.to_str().unwrap(), "-p", "x", "-n", "1"]).failed();
        assert!(error.contains(message), "{name}: {error}");
    }
    // A known but unsupported tensor type, and an unknown one.
    for (id, message) in [
        (41i32, "unsupported encoding q1_0"),
        (-1, "-1 is not a tensor type"),
    ] {
        let path = changed(folder.path(), "encoding", |b| {
            // Tensor record: name, rank, dims, type.
            let name = b"output_norm.weight";
            let at = b.windows(name.len()).position(|w| w == name).unwrap() + name.len();
            let rank = u32::from_le_bytes(b[at..at + 4].try_into().unwrap()) as usize;
            put(b, at + 4 + 8 * rank, &id.to_le_bytes());
        });
        let error = run(&["inspect", path.to_str().unwrap()]).failed();
        assert!(error.contains(message), "{error}");
    }
    assert!(
        run(&["run", "none/such.gguf", "-p", "x"])
            .failed()
            .contains("there is no file")
    );
    assert!(
        run(&["run", folder.path().to_str().unwrap(), "-p", "x"])
            .failed()
            .contains("not a regular file")
    );
    for name in [
        "synth:glm-4.7-flash",
        "synth:none:q4_0",
        "synth:glm-4.7-flash:none",
    ] {
        run(&["inspect", name]).failed();
    }
}

#[test]
fn a_model_that_computes_no_numbers_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let at = Gguf::open(DEMO)
        .unwrap()
        .tensor("output_norm.weight")
        .unwrap()
        .offset as usize;
    let path = changed(folder.path(), "nan.gguf", |b| {
        put(b, at, &f32::NAN.to_le_bytes())
    });
    let path = path.to_str().unwrap();
    let text = folder.path().join("text");
    std::fs::write(&text, "The capital of Japan is Tokyo.").unwrap();
    for arguments in [
        &["run", path, "-p", "x", "--temp", "0"][..],
        &["run", path, "-p", "x"],
        &["run", path, "-p", "x", "--exact"],
        &["perplexity", path, text.to_str().unwrap()],
    ] {
        let error = run(arguments).failed();
        assert!(
            error.contains("the logit of token") && error.contains("may be damaged"),
            "{arguments:?}: {error}"
        );
    }
    let table = folder.path().join("x.npy");
    let warned = run(&[
        "logits",
        path,
        "--tokens",
        "1,2",
        "-o",
        table.to_str().unwrap(),
    ]);
    assert!(
        warned.stderr.contains("warning: the logit of token"),
        "{}",
        warned.stderr
    );
    assert_eq!(warned.ok(), "");
}

#[test]
fn requests_that_cannot_be_met() {
    for (arguments, message) in [
        (
            &["run", "-p", "x", "--ctx", "100000"][..],
            "takes 1 to 2048",
        ),
        (
            &["run", "-p", "What is this?", "--ctx", "4"],
            "the prompt alone has",
        ),
        (&["run", "-p", "", "--raw"], "no tokens"),
        (
            &["logits", DEMO, "--tokens", "1,2048", "-o", "x.npy"],
            "2048 is not one of",
        ),
        (
            &["logits", DEMO, "--tokens", "1,2", "-o", "none/such.npy"],
            "cannot write",
        ),
        (
            &[
                "logits", DEMO, "--tokens", "1,2,3", "--ctx", "2", "-o", "x.npy",
            ],
            "context of 2 tokens is full",
        ),
        (&["perplexity", DEMO, "none/such.txt"], "cannot read"),
    ] {
        let error = run(arguments).failed();
        assert!(error.contains(message), "{arguments:?}: {error}");
    }
    assert!(!Path::new("x.npy").exists());
}

#[cfg(not(feature = "wgpu"))]
#[test]
fn a_device_that_is_not_in_the_build() {
    for device in ["wgpu", "wgpu:1", "wgpu:radeon"] {
        let error = run(&["run", "-p", "x", "--device", device]).failed();
        assert!(
            error.contains("not in this build") && error.contains("--features wgpu"),
            "{error}"
        );
    }
}

#[test]
fn a_machine_that_lacks_something() {
    let error = outcome(gristmill(&["run", "-p", "x"]).env("CC", "/nonexistent")).failed();
    assert!(
        error.contains("install gcc") && error.contains("--device interp"),
        "{error}"
    );
    let empty = tempfile::tempdir().unwrap();
    // A compiler named by CC must exist; without CC, cached kernels suffice.
    let nameless = |cache: &Path| {
        let mut command = gristmill(&["run", "-p", "x", "-n", "1"]);
        command.env_remove("CC").env("GRISTMILL_CACHE", cache);
        command
    };
    let bare = |cache: &Path| outcome(nameless(cache).env("PATH", "/nonexistent"));
    assert!(bare(empty.path()).failed().contains("no C compiler"));
    // Cached kernels run without a compiler, without HOME and on a read-only disk.
    outcome(&mut nameless(empty.path())).ok();
    assert!(!bare(empty.path()).stderr.contains("warning"));
    bare(empty.path()).ok();
    let homeless = outcome(nameless(empty.path()).env_remove("HOME"));
    assert!(!homeless.stderr.contains("warning"), "{}", homeless.stderr);
    homeless.ok();
    // Without a kernel cache it works, with a warning.
    let devices = outcome(gristmill(&["devices"]).env("GRISTMILL_CACHE", "/dev/null/cache")).ok();
    assert!(
        devices.contains("warning: compiled kernels are not kept")
            && devices.contains("GRISTMILL_CACHE"),
        "{devices}"
    );
    let error =
        outcome(gristmill(&["tune", "--reset"]).env("GRISTMILL_CACHE", "/dev/null/cache")).failed();
    assert!(error.contains("GRISTMILL_CACHE"), "{error}");
}

#[test]
fn wrong_usage_is_another_exit_code() {
    for arguments in [
        &[][..],
        &["none-such"],
        &["run"],
        &["run", "-p"],
        &["run", "-p", "x", "--device", "none-such"],
        &["run", "-p", "x", "--isa", "none-such"],
        &["run", "-p", "x", "--kv", "f8"],
        &["run", "-p", "x", "--threads", "0"],
        &["run", "-p", "x", "--ctx", "-1"],
        &["run", "-p", "x", "--temp", "warm"],
        &["run", "-p", "x", "--top-p", "2"],
        &["run", "-p", "x", "--raw", "--system", "y"],
        &["logits", DEMO, "--tokens", "1,x", "-o", "x.npy"],
        &["logits", DEMO, "-o", "x.npy"],
        &["bench"],
        &["bench", DEMO, "-d", "x"],
        &["bench", DEMO, "-p", "0", "-n", "0"],
        &["run", "-p", "x", "--device", "null"],
        &["serve", "--port", "0", "--device", "null:gpu"],
        &["serve", "--queue", "0"],
        &["serve", "--max-body", "0"],
        &["serve", "--host", "no such name"],
        &["profile", DEMO, "--trace", "-", "--html", "-"],
        &["kernels", DEMO, "--stage", "none-such"],
        &["tokenize"],
        &["synth", "glm-4.7-flash", "-o", "x"],
    ] {
        let outcome = run(arguments);
        assert_eq!(outcome.code, 2, "{arguments:?}: {}", outcome.stderr);
        assert!(outcome.stdout.is_empty() && !outcome.stderr.is_empty());
    }
}
