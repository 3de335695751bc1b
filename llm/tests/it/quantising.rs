//! Quantised models: types of tensors, files that run, importance matrices.

use crate::common::data;
use crate::merging::{distance, encoding, logits};
use gristmill_backend::{Options, open};
use gristmill_encodings::Quantiser;
use gristmill_llm::gguf::{Gguf, Metadata, TensorDecl, Writer};
use gristmill_llm::quantise::{
    Calibration, Importance, Mix, Quantise, QuantiseError, QuantiseOptions,
};
use gristmill_tensor::evaluate;
use std::collections::HashMap;

fn demo() -> Gguf {
    Gguf::open(data("demo-glm-Q4_K_M.gguf")).expect("a model")
}

fn options(name: &str) -> QuantiseOptions<'static> {
    let file_type = Mix::parse(name).expect("a file type");
    QuantiseOptions {
        requantise: true,
        ..QuantiseOptions::new(file_type, 2)
    }
}

fn quantised(file: &Gguf, options: &QuantiseOptions<'_>) -> Gguf {
    let quantise = Quantise::new(file, options).expect("a plan");
    let (mut bytes, mut last) = (Vec::new(), 0);
    let mut goes_on = |written| {
        last = written;
        true
    };
    quantise.write(&mut bytes, &mut goes_on).expect("a model");
    assert_eq!(last, quantise.bytes()[1]);
    Gguf::from_bytes(bytes).expect("a model")
}

/// Types of all tensors, by name.
fn types(file: &Gguf, options: &QuantiseOptions<'_>) -> HashMap<String, &'static str> {
    let quantise = Quantise::new(file, options).expect("a plan");
    let named =
        |of: &gristmill_llm::quantise::QuantisedTensor<'_>| (of.name().to_owned(), of.types()[1]);
    quantise.tensors().iter().map(named).collect()
}

/// A model of layers with matrices of one row, wide enough for all types.
fn shapes(layers: u32, heads: [u32; 2], width: u64, has_output: bool) -> Gguf {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "llama");
    metadata.insert("llama.block_count", layers);
    metadata.insert("llama.attention.head_count", heads[0]);
    metadata.insert("llama.attention.head_count_kv", heads[1]);
    let mut names = vec!["token_embd.weight".to_owned()];
    names.extend(has_output.then(|| "output.weight".to_owned()));
    let parts = [
        "attn_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
        "ffn_gate_inp",
    ];
    for layer in 0..layers {
        names.extend(parts.map(|part| format!("blk.{layer}.{part}.weight")));
    }
    let (matrix, row) = ([width, 2], [width]);
    let dims = |name: &str| {
        if name.contains("norm") {
            &row[..]
        } else {
            &matrix[..]
        }
    };
    let declared = names.iter().map(|name| TensorDecl {
        name,
        dims: dims(name),
        encoding: encoding(if name.contains("norm") { "f32" } else { "f16" }),
    });
    let declared: Vec<TensorDecl<'_>> = declared.collect();
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes, &metadata, &declared).expect("a header");
    for tensor in &declared {
        let elements: u64 = tensor.dims.iter().product();
        writer
            .data(&vec![0; elements as usize * tensor.encoding.bytes])
            .expect("its data");
    }
    writer.finish().expect("a file");
    Gguf::from_bytes(bytes).expect("a model")
}

/// Layers whose tensors of a part have a type.
fn layers(types: &HashMap<String, &str>, part: &str, of: &str) -> Vec<usize> {
    let is_of = |layer: &usize| {
        types
            .get(&format!("blk.{layer}.{part}.weight"))
            .is_some_and(|found| *found == of)
    };
    (0..types.len()).filter(is_of).collect()
}

#[test]
fn file_types_are_llama_cpps_mixes() {
    // Written by hand from llama.cpp's rules for 16 layers without and with shared heads.
    let (plain, shared) = (shapes(16, [8, 8], 256, true), shapes(16, [8, 2], 256, true));
    let found = types(&plain, &options("q4_k_m"));
    let more = [0, 1, 4, 7, 10, 13, 14, 15];
    assert_eq!(layers(&found, "ffn_down", "q6_k"), more);
    assert_eq!(layers(&found, "attn_v", "q6_k"), more);
    assert_eq!(layers(&found, "attn_q", "q4_k").len(), 16);
    assert_eq!(layers(&found, "ffn_gate_inp", "f16").len(), 16);
    assert_eq!(layers(&found, "attn_norm", "f32").len(), 16);
    assert_eq!(
        (found["output.weight"], found["token_embd.weight"]),
        ("q6_k", "q4_k")
    );
    let found = types(&plain, &options("Q3_K_M"));
    assert_eq!(layers(&found, "attn_v", "q5_k"), [0, 1]);
    assert_eq!(layers(&found, "ffn_down", "q5_k"), [0]);
    assert_eq!(layers(&found, "attn_output", "q4_k").len(), 16);
    assert_eq!(layers(&found, "ffn_up", "q3_k").len(), 16);
    let of_values = |file: &Gguf, name: &str| types(file, &options(name))["blk.9.attn_v.weight"];
    assert_eq!(
        [of_values(&plain, "Q2_K"), of_values(&shared, "Q2_K")],
        ["q3_k", "q4_k"]
    );
    assert_eq!(
        [of_values(&plain, "IQ4_XS"), of_values(&shared, "IQ4_XS")],
        ["iq4_xs", "q5_k"]
    );
    let found = types(&plain, &options("IQ2_M"));
    assert_eq!(
        (found["output.weight"], found["token_embd.weight"]),
        ("q5_k", "iq3_s")
    );
    let found = types(&plain, &options("F16"));
    assert!(found.values().all(|of| ["f16", "f32"].contains(of)));
    // An embedding that is the output too has the output's type.
    let tied = shapes(2, [8, 8], 256, false);
    assert_eq!(types(&tied, &options("q4_0"))["token_embd.weight"], "q6_k");
    // Rows that are no whole blocks.
    let narrow = types(&shapes(8, [8, 8], 96, true), &options("q4_k_m"));
    assert_eq!(
        (
            narrow["blk.0.ffn_down.weight"],
            narrow["blk.1.attn_q.weight"]
        ),
        ("q8_0", "q5_0")
    );
    assert_eq!(
        types(&shapes(2, [8, 8], 8, true), &options("q4_0"))["blk.0.attn_q.weight"],
        "f16"
    );
}

#[test]
fn flags_override_mixes() {
    let file = shapes(4, [8, 8], 256, true);
    let pure = QuantiseOptions {
        pure: true,
        ..options("q4_k_m")
    };
    assert!(
        types(&file, &pure)
            .values()
            .all(|of| ["q4_k", "f32", "f16"].contains(of))
    );
    let some = QuantiseOptions {
        output: Some(encoding("q8_0")),
        embedding: Some(encoding("q5_k")),
        tensors: vec![
            (r"blk\.[01]\.ffn_down".into(), encoding("q3_k")),
            ("ffn_".into(), encoding("iq4_xs")),
        ],
        ..options("q4_k_m")
    };
    let found = types(&file, &some);
    assert_eq!(
        (found["output.weight"], found["token_embd.weight"]),
        ("q8_0", "q5_k")
    );
    assert_eq!(layers(&found, "ffn_down", "q3_k"), [0, 1]);
    assert_eq!(layers(&found, "ffn_down", "iq4_xs"), [2, 3]);
    let kept = QuantiseOptions {
        keep_output: true,
        ..options("q4_k_m")
    };
    assert_eq!(types(&file, &kept)["output.weight"], "f16");
    let copied = types(&file, &options("copy"));
    assert!(copied.values().all(|of| ["f16", "f32"].contains(of)));
    let pattern = QuantiseOptions {
        tensors: vec![("(".into(), encoding("q8_0"))],
        ..options("q4_0")
    };
    assert!(matches!(
        Quantise::new(&file, &pattern),
        Err(QuantiseError::Pattern { .. })
    ));
}

/// RMS difference of all matrices of two models, relative to those of the second.
fn weight_error(found: &Gguf, expected: &Gguf) -> f64 {
    let (mut error, mut squares, mut known) = (0.0, 0.0, HashMap::new());
    let matrices = expected.tensors().iter().filter(|info| info.dims.len() > 1);
    for info in matrices {
        let [a, b] = [found, expected].map(|file| decoded(file, &info.name, &mut known));
        for (&a, &b) in a.iter().zip(&b) {
            error += f64::from(a - b).powi(2);
            squares += f64::from(b).powi(2);
        }
    }
    (error / squares).sqrt()
}

/// Numbers of a tensor, by the derived decoder.
fn decoded(file: &Gguf, name: &str, known: &mut HashMap<&'static str, Quantiser>) -> Vec<f32> {
    let info = file.tensor(name).expect("a tensor");
    let mut bytes = vec![0; info.bytes as usize];
    file.read_tensor(info, &mut bytes).expect("its data");
    let mut out = vec![0.0; info.elements() as usize];
    let derive = || Quantiser::new(info.encoding).expect("a decoder");
    let quantiser = known.entry(info.encoding.name).or_insert_with(derive);
    quantiser.decode(&bytes, &mut out);
    out
}

#[test]
fn quantised_models_run() {
    let file = demo();
    let expected = logits(&file);
    for (name, bound) in [
        ("f32", 0.0),
        ("q8_0", 0.006),
        ("q6_k", 0.02),
        ("q3_k_s", 0.18),
    ] {
        let of = quantised(&file, &options(name));
        let id = Mix::parse(name).expect("a file type").id;
        assert_eq!(
            of.metadata().u32("general.file_type").ok().flatten(),
            Some(id)
        );
        let (error, found) = (weight_error(&of, &file), distance(&logits(&of), &expected));
        println!("{name}: weights {error}, logits {found}");
        assert!(error <= bound, "{name}: {error}");
        // Tokens near the border of two experts go to another one.
        assert!(found <= 30.0 * bound, "{name}: {found}");
    }
    // Tensors that have their types already are copied.
    let same = quantised(&file, &options("copy"));
    let bytes = |file: &Gguf, name: &str| {
        let info = file.tensor(name).expect("a tensor");
        let mut bytes = vec![0; info.bytes as usize];
        file.read_tensor(info, &mut bytes).expect("its data");
        bytes
    };
    for info in file.tensors() {
        assert_eq!(
            bytes(&same, &info.name),
            bytes(&file, &info.name),
            "{}",
            info.name
        );
    }
}

#[test]
fn what_would_be_lost_is_refused() {
    let once = QuantiseOptions {
        requantise: false,
        ..options("q8_0")
    };
    let (file, mut nothing) = (demo(), Vec::new());
    let quantise = Quantise::new(&file, &once).expect("a plan");
    let refused = quantise.write(&mut nothing, &mut |_| true);
    assert!(
        matches!(refused, Err(QuantiseError::Requantised { .. })),
        "{refused:?}"
    );
    let quantise = Quantise::new(&file, &options("iq2_xxs")).expect("a plan");
    let refused = quantise.write(&mut nothing, &mut |_| true);
    assert!(
        matches!(refused, Err(QuantiseError::NeedsImportance { .. })),
        "{refused:?}"
    );
    let quantise = Quantise::new(&file, &options("q8_0")).expect("a plan");
    let stopped = quantise.write(Vec::new(), &mut |_| false);
    assert!(
        matches!(stopped, Err(QuantiseError::Stopped)),
        "{stopped:?}"
    );
    assert!(nothing.is_empty());
}

/// Numbers of a tensor.
fn numbers(file: &Gguf, name: &str) -> Vec<f64> {
    let info = file.tensor(name).expect("a tensor");
    let mut bytes = vec![0; info.bytes as usize];
    file.read_tensor(info, &mut bytes).expect("its data");
    evaluate::decode(info.encoding, &bytes)
}

const CHUNK: usize = 32;

fn measured(file: &Gguf) -> Importance {
    let opened = open("cpu", &Options::default()).expect("a device");
    let mut calibration = Calibration::load(file, opened, CHUNK, &|_| ()).expect("a model");
    for chunk in 0..2 {
        let tokens: Vec<u32> = (0..CHUNK as u32)
            .map(|i| (i * 37 + chunk * 11) % 2000)
            .collect();
        calibration.add(&tokens).expect("sums");
    }
    Importance {
        entries: calibration.entries().expect("sums"),
        datasets: vec!["text.txt".into()],
        chunks: 2,
        chunk_size: CHUNK as u32,
    }
}

#[test]
fn importance_is_the_squares_of_inputs() {
    let file = demo();
    let found = measured(&file);
    // Inputs of the first layer are normed rows of the embedding.
    let (rows, norm) = (
        numbers(&file, "token_embd.weight"),
        numbers(&file, "blk.0.attn_norm.weight"),
    );
    let width = norm.len();
    let mut expected = vec![0.0; width];
    for token in (0..2).flat_map(|chunk| (0..CHUNK).map(move |i| (i * 37 + chunk * 11) % 2000)) {
        let row = &rows[token * width..(token + 1) * width];
        let mean = row.iter().map(|x| x * x).sum::<f64>() / width as f64 + 1e-5;
        let squares = row
            .iter()
            .zip(&norm)
            .map(|(x, scale)| x * x / mean * scale * scale);
        expected
            .iter_mut()
            .zip(squares)
            .for_each(|(sum, square)| *sum += square);
    }
    let near = |a: &[f64], b: &[f64], name: &str| {
        for (a, b) in a.iter().zip(b) {
            assert!(
                (a - b).abs() <= 1e-4 * (a.abs() + 1e-3),
                "{name}: {a}, expected {b}"
            );
        }
    };
    let of = |name: &str| &found.entries[name];
    near(
        &of("blk.0.attn_q_a.weight").sums,
        &expected,
        "the first projection",
    );
    assert_eq!(of("blk.0.attn_q_a.weight").counts, [2.0 * CHUNK as f64]);
    // A token's rows go through two experts, and through the shared one.
    let (gate, up) = (
        of("blk.1.ffn_gate_exps.weight"),
        of("blk.1.ffn_up_exps.weight"),
    );
    assert_eq!(gate, up);
    assert_eq!(gate.counts.iter().sum::<f64>(), 2.0 * 2.0 * CHUNK as f64);
    assert_eq!(of("blk.1.ffn_down_exps.weight").counts, gate.counts);
    let mut all = vec![0.0; width];
    for expert in gate.sums.chunks_exact(width) {
        all.iter_mut().zip(expert).for_each(|(sum, of)| *sum += of);
    }
    let shared = &of("blk.1.ffn_gate_shexp.weight").sums;
    let twice: Vec<f64> = shared.iter().map(|sum| 2.0 * sum).collect();
    near(&all, &twice, "all experts");
    assert!(!found.entries.contains_key("output.weight"));
}

#[test]
fn importance_is_read_as_written_and_used() {
    let file = demo();
    let importance = measured(&file);
    let mut bytes = Vec::new();
    importance.write(&mut bytes).expect("a file");
    let read = Gguf::from_bytes(bytes).expect("a file");
    assert_eq!(
        read.metadata().str("general.type").ok().flatten(),
        Some("imatrix")
    );
    let sums = read
        .tensor("blk.1.ffn_down_exps.weight.in_sum2")
        .expect("sums");
    assert_eq!(sums.dims, [256, 8]);
    let counts = read
        .tensor("blk.1.ffn_down_exps.weight.counts")
        .expect("counts");
    assert_eq!(counts.dims, [1, 8]);
    let again = Importance::from_gguf(&read).expect("an importance matrix");
    assert_eq!(again.entries.len(), importance.entries.len());
    assert_eq!((again.chunks, again.chunk_size), (2, CHUNK as u32));
    // Types that need one are written with it.
    let of_all = QuantiseOptions {
        importance: Some(&again),
        importance_path: Some("imatrix.gguf".into()),
        tensors: vec![("attn_[kv]_b".into(), encoding("q4_k"))],
        ..options("iq2_s")
    };
    let small = quantised(&file, &of_all);
    let metadata = small.metadata();
    assert_eq!(
        metadata.str("quantize.imatrix.dataset").ok().flatten(),
        Some("text.txt")
    );
    assert_eq!(
        metadata.u32("quantize.imatrix.chunks_count").ok().flatten(),
        Some(2)
    );
    assert!(logits(&small).iter().all(|x| x.is_finite()));
    let other = shapes(4, [8, 8], 256, true);
    let mut wrong = again.clone();
    let entry = wrong.entries["blk.1.ffn_down_exps.weight"].clone();
    wrong.entries.insert("blk.1.ffn_down.weight".into(), entry);
    let wrong = QuantiseOptions {
        importance: Some(&wrong),
        ..options("q4_0")
    };
    let refused = Quantise::new(&other, &wrong).err();
    assert!(
        matches!(refused, Some(QuantiseError::ImportanceSize { .. })),
        "{refused:?}"
    );
}

#[test]
fn the_older_layout_is_read() {
    let mut bytes = 2i32.to_le_bytes().to_vec();
    for (name, calls, values) in [
        ("a.weight", 4i32, [4.0f32, 8.0]),
        ("b.weight", 1, [0.5, 1.5]),
    ] {
        bytes.extend((name.len() as i32).to_le_bytes());
        bytes.extend(name.bytes());
        bytes.extend(calls.to_le_bytes());
        bytes.extend((values.len() as i32).to_le_bytes());
        values.iter().for_each(|v| bytes.extend(v.to_le_bytes()));
    }
    bytes.extend(7i32.to_le_bytes());
    bytes.extend(4i32.to_le_bytes());
    bytes.extend(*b"text");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("imatrix.dat");
    std::fs::write(&path, &bytes).expect("a file");
    let found = Importance::open(&path).expect("an importance matrix");
    assert_eq!(found.entries["a.weight"].sums, [4.0, 8.0]);
    assert_eq!(found.entries["a.weight"].counts, [4.0]);
    assert_eq!(
        (found.chunks, &found.datasets[..]),
        (7, &["text".to_owned()][..])
    );
    for end in 0..bytes.len() - 16 {
        std::fs::write(&path, &bytes[..end]).expect("a file");
        assert!(Importance::open(&path).is_err(), "{end} bytes");
    }
}
