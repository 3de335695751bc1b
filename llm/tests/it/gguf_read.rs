//! Reads valid files: values, data, threads, shards; and round trips through the writer.

use gristmill_encodings::by_name;
use gristmill_llm::gguf::{Error, Gguf, Metadata, PerLayer, Strings, TensorDecl, Value, Writer};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file with the given keys and one `f32` row tensor per (name, numbers).
fn file(md: &Metadata, tensors: &[(&str, &[f32])]) -> Vec<u8> {
    let dims: Vec<[u64; 1]> = tensors.iter().map(|t| [t.1.len() as u64]).collect();
    let encoding = by_name("f32").unwrap();
    let decls: Vec<_> = tensors
        .iter()
        .zip(&dims)
        .map(|(t, d)| TensorDecl {
            name: t.0,
            dims: d,
            encoding,
        })
        .collect();
    let mut w = Writer::new(Vec::new(), md, &decls).unwrap();
    for (_, x) in tensors {
        w.data(&x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())
            .unwrap();
    }
    w.finish().unwrap()
}

fn numbers(f: &Gguf, name: &str) -> Vec<f32> {
    let t = f.tensor(name).unwrap();
    let mut data = vec![0; t.bytes as usize];
    f.read_tensor(t, &mut data).unwrap();
    data.chunks(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

#[test]
fn written_metadata_reads_back_in_order() {
    let mut md = Metadata::new();
    md.insert("z", 1u8)
        .insert("y", -2i8)
        .insert("x", 3u16)
        .insert("w", -4i16)
        .insert("v", 5u32)
        .insert("u", -6i32);
    md.insert("t", 7u64)
        .insert("s", -8i64)
        .insert("r", 0.5f32)
        .insert("q", 0.25f64)
        .insert("p", true);
    md.insert("o", "text")
        .insert("n", vec![1i32, 2])
        .insert("m", vec![1.5f32])
        .insert("l", Vec::<u64>::new());
    md.insert("k", ["a", "", "ccc"].into_iter().collect::<Strings>());
    let f = Gguf::from_bytes(file(&md, &[])).unwrap();
    assert!(md.iter().eq(f.metadata().iter()));
    assert_eq!(
        f.metadata().strings("k").unwrap().unwrap().get(2),
        Some(&b"ccc"[..])
    );
}

#[test]
fn values_are_shown_on_one_line() {
    let mut md = Metadata::new();
    md.insert("f", 1.8f32)
        .insert("a", vec![0.1f32; 9])
        .insert("s", "a\n\u{1b}[31m")
        .insert("long", "x".repeat(999));
    let shown: Vec<String> = md.iter().map(|(_, v)| v.to_string()).collect();
    assert_eq!(shown[0], "1.8");
    assert_eq!(shown[1], "[0.1, 0.1, 0.1, 0.1, 0.1, 0.1, …] (9 × f32)");
    assert_eq!(shown[2], r#""a\n\u{1b}[31m""#);
    assert!(shown[3].ends_with("(999 bytes)") && shown[3].len() < 200);
}

#[test]
fn getters_are_lenient_about_widths_only() {
    let mut md = Metadata::new();
    md.insert("i", 7i32)
        .insert("big", 1u64 << 40)
        .insert("minus", -1i64)
        .insert("f", 0.5f64)
        .insert("s", "7");
    md.insert("b", true).insert("a", vec![1u32, 2, 3]);
    assert_eq!(md.u32("i").unwrap(), Some(7));
    assert_eq!(md.f32("f").unwrap(), Some(0.5));
    assert_eq!(md.u32("absent").unwrap(), None);
    assert!(matches!(md.need("absent", Metadata::u32), Err(Error::Missing(k)) if k == "absent"));
    for key in ["big", "minus", "f", "s", "b", "a"] {
        assert!(matches!(md.u32(key), Err(Error::WrongType { .. })), "{key}");
    }
    for key in ["i", "s", "b", "a"] {
        assert!(matches!(md.f32(key), Err(Error::WrongType { .. })), "{key}");
    }
    assert!(
        md.bool("i").is_err()
            && md.str("i").is_err()
            && md.strings("a").is_err()
            && md.ints("i").is_err()
    );
    assert_eq!(md.ints("a").unwrap().unwrap(), [1, 2, 3]);
    assert_eq!(md.per_layer("i", 9).unwrap(), Some(PerLayer::All(7)));
    assert_eq!(
        md.per_layer("a", 2).unwrap(),
        Some(PerLayer::Each(vec![1, 2]))
    );
    assert!(md.per_layer("a", 4).is_err());
    assert_eq!(md.get("s"), Some(&Value::Str(b"7".to_vec())));
}

#[test]
fn only_models_have_an_architecture() {
    let mut md = Metadata::new();
    assert!(matches!(
        Gguf::from_bytes(file(&md, &[])).unwrap().architecture(),
        Err(Error::Missing(_))
    ));
    md.insert("general.architecture", "a")
        .insert("general.type", "adapter");
    assert!(matches!(
        Gguf::from_bytes(file(&md, &[])).unwrap().architecture(),
        Err(Error::NotAModel(_))
    ));
}

#[test]
fn all_kinds_of_memory_are_sources() {
    let bytes = file(
        Metadata::new().insert("general.alignment", 64u32),
        &[("a", &[1.0, 2.0]), ("b", &[3.0])],
    );
    let shared: Arc<[u8]> = bytes.clone().into();
    let fixed: &'static [u8] = bytes.clone().leak();
    for f in [
        Gguf::from_bytes(bytes),
        Gguf::from_bytes(shared),
        Gguf::from_bytes(fixed),
    ] {
        let f = f.unwrap();
        assert_eq!(
            (numbers(&f, "a"), numbers(&f, "b")),
            (vec![1.0, 2.0], vec![3.0])
        );
        assert!(f.tensors().iter().all(|t| t.offset % 64 == 0));
    }
}

#[test]
fn reads_outside_a_tensor_are_errors() {
    let f = Gguf::from_bytes(file(&Metadata::new(), &[("a", &[1.0, 2.0]), ("b", &[3.0])])).unwrap();
    let a = f.tensor("a").unwrap();
    let mut four = [0; 4];
    f.read_range(a, 4, &mut four).unwrap();
    assert_eq!(f32::from_le_bytes(four), 2.0);
    assert!(matches!(
        f.read_range(a, 5, &mut four),
        Err(Error::Range { .. })
    ));
    assert!(matches!(
        f.read_range(a, u64::MAX, &mut four),
        Err(Error::Range { .. })
    ));
    assert!(matches!(
        f.read_tensor(a, &mut four),
        Err(Error::Range { .. })
    ));
    let mut stray = a.clone();
    stray.shard = 3;
    assert!(matches!(
        f.read_range(&stray, 0, &mut four),
        Err(Error::Range { .. })
    ));
    (stray.shard, stray.offset) = (0, u64::MAX - 6);
    assert!(f.read_range(&stray, 4, &mut four).is_err());
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let f32 = by_name("f32").unwrap();
    let new = |name, dims: &[u64]| {
        let decl = TensorDecl {
            name,
            dims,
            encoding: f32,
        };
        Writer::new(
            Vec::new(),
            &Metadata::new(),
            &[
                decl,
                TensorDecl {
                    name: "b",
                    dims: &[1],
                    encoding: f32,
                },
            ],
        )
    };
    assert!(matches!(new("", &[1]), Err(Error::Empty { .. })));
    assert!(matches!(new("b", &[1]), Err(Error::DuplicateTensor(_))));
    assert!(matches!(new("a", &[1; 5]), Err(Error::Rank { .. })));
    assert!(matches!(new("a", &[0]), Err(Error::Dimension { .. })));
    assert!(matches!(
        new("a", &[1 << 61, 2]),
        Err(Error::Overflow { .. })
    ));
    let mut w = new("a", &[1]).unwrap();
    w.data(&[0; 5]).unwrap();
    assert!(matches!(
        w.data(&[0; 4]),
        Err(Error::DataLength {
            declared: 8,
            given: 9
        })
    ));
    assert!(matches!(
        new("a", &[1]).unwrap().finish(),
        Err(Error::DataLength {
            declared: 8,
            given: 0
        })
    ));
}

#[test]
fn the_reference_file_opens_and_threads_agree() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny-q4_0_pure.gguf");
    let (f, bytes) = (Gguf::open(&path).unwrap(), std::fs::read(&path).unwrap());
    assert_eq!(f.architecture().unwrap(), "deepseek2");
    assert_eq!((f.shards(), f.size()), (1, bytes.len() as u64));
    assert!(f.tensors().iter().any(|t| t.encoding.name == "q4_0"));
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for t in f.tensors() {
                    let mut data = vec![0; t.bytes as usize];
                    f.read_tensor(t, &mut data).unwrap();
                    assert!(
                        data == bytes[t.offset as usize..][..data.len()],
                        "{}",
                        t.name
                    );
                }
            });
        }
    });
    let last = f.tensors().last().unwrap();
    assert!(f.size() - (last.offset + last.bytes) < 32);
}

#[test]
fn a_file_truncated_while_open_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let bytes = file(&Metadata::new(), &[("a", &[1.0; 1000])]);
    std::fs::write(&path, &bytes).unwrap();
    let f = Gguf::open(&path).unwrap();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(bytes.len() as u64 - 100)
        .unwrap();
    assert!(matches!(
        f.read_tensor(&f.tensors()[0], &mut vec![0; 4000]),
        Err(Error::Io { .. })
    ));
}

#[test]
fn a_path_that_is_not_a_file_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let error = |path: &Path| match Gguf::open(path) {
        Err(Error::InFile { path: p, error }) if p == path => *error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(error(dir.path()), Error::NotAFile));
    assert!(matches!(
        error(&dir.path().join("absent")),
        Error::Io { .. }
    ));
}

/// Shards in a new folder: (split.no, split.count, split.tensors.count) and the
/// tensor names of each.
fn shards(all: &[(u16, u16, i32, &[&str])]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    for (i, &(no, count, total, names)) in all.iter().enumerate() {
        let mut md = Metadata::new();
        md.insert("split.no", no)
            .insert("split.count", count)
            .insert("split.tensors.count", total);
        // Each file has its own alignment.
        md.insert("general.alignment", 32u32 << i)
            .insert("only.here", i as u32);
        let tensors: Vec<_> = names.iter().map(|n| (*n, &[1.0f32, 2.0][..])).collect();
        let name = format!("m-{:05}-of-{:05}.gguf", i + 1, all.len());
        std::fs::write(dir.path().join(name), file(&md, &tensors)).unwrap();
    }
    let first = dir.path().join(format!("m-00001-of-{:05}.gguf", all.len()));
    (dir, first)
}

#[test]
fn split_models_open_from_the_first_file() {
    let (_dir, first) = shards(&[
        (0, 3, 4, &[]),
        (1, 3, 4, &["a", "b"]),
        (2, 3, 4, &["c", "d"]),
    ]);
    let f = Gguf::open(&first).unwrap();
    assert_eq!((f.shards(), f.tensors().len()), (3, 4));
    assert_eq!(f.metadata().u32("only.here").unwrap(), Some(0));
    assert_eq!(
        (f.tensor("d").unwrap().shard, numbers(&f, "d")),
        (2, vec![1.0, 2.0])
    );
}

/// Opens a split model that must be refused.
fn split_error(all: &[(u16, u16, i32, &[&str])]) -> Error {
    let (_dir, first) = shards(all);
    match Gguf::open(&first) {
        Err(Error::InFile { error, .. }) => *error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn split_no_of_another_shard() {
    assert!(matches!(
        split_error(&[(0, 2, 2, &["a"]), (0, 2, 2, &["b"])]),
        Error::Split(_)
    ));
    let error = split_error(&[(1, 2, 2, &["a"]), (1, 2, 2, &["b"])]);
    assert!(error.to_string().contains("shard 2 of 2"), "{error}");
    assert!(error.hint().unwrap().contains("-00001-of-"));
}

#[test]
fn split_counts_that_differ() {
    assert!(matches!(
        split_error(&[(0, 2, 2, &["a"]), (1, 3, 2, &["b"])]),
        Error::Split(_)
    ));
}

#[test]
fn split_count_not_that_of_the_name() {
    assert!(matches!(
        split_error(&[(0, 3, 2, &["a"]), (1, 3, 2, &["b"])]),
        Error::Split(_)
    ));
}

#[test]
fn split_with_a_tensor_in_two_shards() {
    assert!(matches!(
        split_error(&[(0, 2, 2, &["a"]), (1, 2, 2, &["a"])]),
        Error::DuplicateTensor(_)
    ));
}

#[test]
fn split_with_tensors_missing() {
    assert!(matches!(
        split_error(&[(0, 2, 3, &["a"]), (1, 2, 3, &["b"])]),
        Error::Split(_)
    ));
}

#[test]
fn split_with_a_shard_missing() {
    let (dir, first) = shards(&[(0, 2, 2, &["a"]), (1, 2, 2, &["b"])]);
    std::fs::remove_file(dir.path().join("m-00002-of-00002.gguf")).unwrap();
    let error = Gguf::open(&first).unwrap_err();
    assert!(
        error.to_string().contains("m-00002-of-00002.gguf"),
        "{error}"
    );
}

#[test]
fn split_opened_under_another_name() {
    let (dir, first) = shards(&[(0, 2, 2, &["a"]), (1, 2, 2, &["b"])]);
    let renamed = dir.path().join("model.gguf");
    std::fs::rename(first, &renamed).unwrap();
    assert!(
        matches!(Gguf::open(&renamed), Err(Error::InFile { error, .. }) if matches!(*error, Error::Split(_)))
    );
}
