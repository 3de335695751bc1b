//! Text encoders: hidden rows and pooled vectors against transformers in f64 on the dequantised
//! weights, and token ids against its BertTokenizerFast.
//!
//! Files in f32 are not in the repository: the feature `reference-tests` tests those in the folder
//! `encoders` of `GRISTMILL_REFERENCE`.

use crate::common::{floats_of, ids_of};
use crate::golden_support::{Form, Way};
use crate::parity_support::Run;
use crate::parity_support::schedules::{interpreted, unoptimised};
use crate::parity_support::tables::{data, npy, rms};
use gristmill_backend::{Options, Precision, open};
use gristmill_compiler::Perturb;
use gristmill_llm::arch::{self, AdapterScales, CacheType, Logits};
use gristmill_llm::convert;
use gristmill_llm::engine::{Engine, Error, Settings};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::language;
use gristmill_llm::pooling::{Pooling, PoolingKind};
use gristmill_llm::quantise::{Mix, Quantise, QuantiseOptions};
use gristmill_llm::sched::Batcher;
use serde_json::Value;
use std::path::{Path, PathBuf};

const FAMILIES: [&str; 3] = ["bert", "modern-bert", "nomic-bert"];
/// RMS of the difference, in standard deviations of the reference.
const EXACT: f64 = 1e-3;

fn folder() -> PathBuf {
    data("families")
}

fn opened_file(folder: &Path, family: &str, quant: &str) -> Gguf {
    Gguf::open(folder.join(format!("{family}-{quant}.gguf"))).expect("a GGUF file")
}

fn exact() -> Options {
    Options {
        precision: Precision::Exact,
        quick: true,
        ..Options::default()
    }
}

fn engine(device: &str, file: &Gguf, options: &Options, cache: CacheType) -> Engine {
    let opened = open(device, options).expect("a device");
    let settings = Settings {
        cache,
        chunk: 100,
        ..Settings::default()
    };
    Engine::load(file, opened, settings, &|_| ()).expect("a model")
}

fn json(path: PathBuf) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("expected values");
    serde_json::from_str(&text).expect("JSON")
}

fn texts(folder: &Path, family: &str) -> Vec<Value> {
    json(folder.join(format!("{family}-texts.json")))
}

fn rows_of(engine: &mut Engine, texts: &[Vec<u32>]) -> Vec<f32> {
    let mut rows = Vec::new();
    let each = &mut |_, own: &[f32]| rows.extend_from_slice(own);
    engine.encode(texts, each).expect("rows");
    rows
}

/// Checks rows and pooled vectors of a family's file: texts in few steps, each alone, and in the
/// forms that are written.
fn check(device: &str, folder: &Path, family: &str, quant: &str) {
    let file = opened_file(folder, family, quant);
    let expected = npy(&folder.join(format!("{family}-{quant}-rows.npy")));
    let texts = texts(folder, family);
    let tokens: Vec<Vec<u32>> = texts.iter().map(ids_of).collect();
    let compare = |name: &str, found: &[f32]| {
        let error = rms(found, &expected);
        println!("{family} {quant}, {name}: rms {error:.2e}");
        assert!(error <= EXACT, "{family}, {name}: rms {error}");
    };
    let mut whole = engine(device, &file, &exact(), CacheType::F32);
    compare("together", &rows_of(&mut whole, &tokens));
    let alone = tokens.iter().flat_map(|text| {
        let one = std::slice::from_ref(text);
        rows_of(&mut whole, one)
    });
    compare("alone", &alone.collect::<Vec<_>>());
    let written = Options {
        without: vec!["alternatives".into()],
        ..exact()
    };
    let mut written = engine(device, &file, &written, CacheType::F32);
    compare("as written", &rows_of(&mut written, &tokens));
    let width = whole.model().width();
    for kind in [PoolingKind::Mean, PoolingKind::Cls, PoolingKind::Last] {
        let pooling = Pooling::read(&file, Some(kind)).expect("a pooling");
        let mut found = Vec::new();
        let each = &mut |_, rows: &[f32]| found.push(pooling.values(rows, width));
        whole.encode(&tokens, each).expect("rows");
        for (found, text) in found.iter().zip(&texts) {
            let error = rms(found, &floats_of(&text[kind.name()]));
            assert!(error <= EXACT, "{family}, {kind}: rms {error}");
        }
    }
}

#[test]
fn rows_and_vectors_are_those_of_transformers() {
    for family in FAMILIES {
        check("cpu", &folder(), family, "q8_0");
    }
}

#[cfg(feature = "cuda-tests")]
#[test]
fn rows_and_vectors_on_cuda() {
    for family in FAMILIES {
        check("cuda", &folder(), family, "q8_0");
    }
}

#[cfg(feature = "wgpu")]
#[test]
fn rows_and_vectors_on_wgpu() {
    for family in FAMILIES {
        check("wgpu", &folder(), family, "q8_0");
    }
}

#[cfg(feature = "reference-tests")]
#[test]
fn rows_and_vectors_in_f32() {
    let folder = std::env::var_os("GRISTMILL_REFERENCE").map(PathBuf::from);
    let folder = folder
        .expect("GRISTMILL_REFERENCE names the folder")
        .join("encoders");
    for family in FAMILIES {
        check("cpu", &folder, family, "f32");
    }
    let whole = Gguf::open(folder.join("ggml-vocab-bert-bge.gguf")).expect("a vocabulary");
    check_ids(&whole, &folder);
}

/// Halves and quantised activations change the rows slightly.
#[test]
fn rows_of_halves_and_of_integer_products_are_near() {
    for family in FAMILIES {
        let folder = folder();
        let file = opened_file(&folder, family, "q8_0");
        let expected = npy(&folder.join(format!("{family}-q8_0-rows.npy")));
        let tokens: Vec<Vec<u32>> = texts(&folder, family).iter().map(ids_of).collect();
        let fast = Options {
            quick: true,
            ..Options::default()
        };
        for (options, cache, most) in [
            (exact(), CacheType::F16, 5e-3),
            (exact(), CacheType::Int8, 5e-3),
            (fast, CacheType::F16, 0.2),
        ] {
            let found = rows_of(&mut engine("cpu", &file, &options, cache), &tokens);
            let error = rms(&found, &expected);
            println!(
                "{family}, {cache:?}, {:?}: rms {error:.2e}",
                options.precision
            );
            assert!(error <= most, "{family}, {cache:?}: rms {error}");
        }
    }
}

#[test]
fn rows_are_right_in_any_schedule() {
    for (family, own) in FAMILIES.into_iter().zip(1..) {
        let file = opened_file(&folder(), family, "q8_0");
        let model = arch::load(file.metadata(), &file).expect("a model");
        let expected = npy(&folder().join(format!("{family}-q8_0-rows.npy")));
        let tokens: Vec<Vec<u32>> = texts(&folder(), family).iter().map(ids_of).collect();
        for seed in 1..=2 {
            let few = &tokens[..2];
            let devices = [(Some(unoptimised()), &tokens[..]), (interpreted(seed), few)];
            for (opened, texts) in devices {
                let Some(opened) = opened else { continue };
                let device = opened.device.name().to_string();
                let run = Run {
                    model: model.as_ref(),
                    file: &file,
                    context: 256,
                    tokens: &[],
                    way: Way {
                        form: Form::Written,
                        chunk: None,
                        cache: CacheType::F32,
                    },
                };
                let found = run.encoded(opened, &mut Perturb::new(17 * own + seed), texts);
                let error = rms(&found, &expected[..found.len()]);
                println!("{family} on {device}, seed {seed}: rms {error:.2e}");
                assert!(error <= EXACT, "{family} on {device}, seed {seed}: {error}");
            }
        }
    }
}

/// Checkpoints as transformers saves them: rows, token ids, and pooling.
#[test]
fn converted_checkpoints_have_the_rows_of_transformers() {
    for family in FAMILIES {
        let folder = data(&format!("convert/{family}"));
        let converted = convert::open(&folder).expect("a checkpoint");
        assert_eq!(converted.warnings, Vec::<String>::new(), "{family}");
        let file = converted.file;
        let expected = std::fs::read_to_string(folder.join("expected.json"));
        let expected: Value = serde_json::from_str(&expected.expect("a file")).expect("JSON");
        let tokens = ids_of(&expected);
        let tokenizer = language::tokenizer(file.metadata()).expect("a tokenizer");
        let text = expected["text"].as_str().expect("a text");
        assert_eq!(tokenizer.encode(text, false, true), tokens, "{family}");
        let rows = expected["hidden"].as_array().expect("rows").iter();
        let rows: Vec<f32> = rows.flat_map(floats_of).collect();
        let mut engine = engine("cpu", &file, &exact(), CacheType::F32);
        let error = rms(&rows_of(&mut engine, &[tokens]), &rows);
        println!("{family}, converted: rms {error:.2e}");
        assert!(error <= 1e-5, "{family}: rms {error}");
        let settings = QuantiseOptions::new(Mix::parse("q8_0").expect("a type"), 1);
        let quantise = Quantise::new(&file, &settings).expect("types");
        let mut small = Vec::new();
        quantise.write(&mut small, &mut |_| true).expect("a file");
        let small = Gguf::from_bytes(small).expect("a file");
        let mut engine = self::engine("cpu", &small, &exact(), CacheType::F32);
        let error = rms(&rows_of(&mut engine, &[ids_of(&expected)]), &rows);
        println!("{family}, quantised: rms {error:.2e}");
        assert!(error <= 0.1, "{family}, quantised: rms {error}");
        let pooling = Pooling::read(&file, None).expect("a pooling");
        assert_eq!(pooling.kind(), Some(PoolingKind::Mean));
        assert!(pooling.is_of_encoder());
    }
}

/// Compares token ids with those of transformers.
fn check_ids(file: &Gguf, folder: &Path) {
    let tokenizer = language::tokenizer(file.metadata()).expect("a tokenizer");
    for of in json(folder.join("bert-ids.json")) {
        let text = of["text"].as_str().expect("a text");
        assert_eq!(tokenizer.encode(text, false, true), ids_of(&of), "{text:?}");
    }
}

#[test]
fn words_are_cut_as_by_transformers() {
    let file = opened_file(&folder(), "bert", "q8_0");
    check_ids(&file, &folder());
    let tokenizer = language::tokenizer(file.metadata()).expect("a tokenizer");
    for family in ["bert", "nomic-bert"] {
        for of in texts(&folder(), family) {
            let text = of["text"].as_str().expect("a text");
            assert_eq!(tokenizer.encode(text, false, true), ids_of(&of), "{text:?}");
        }
    }
    let ids = tokenizer.encode("The sea is there.", false, true);
    assert_eq!(tokenizer.decode(&ids, false), "the sea is there .");
    // Control tokens in trusted text.
    let cls = tokenizer.token_id("[CLS]").expect("a special token");
    assert_eq!(tokenizer.encode("[CLS]", true, false), [cls]);
    assert_ne!(tokenizer.encode("[CLS]", false, false), [cls]);
}

#[test]
fn texts_of_an_encoder_are_refused_with_the_reason() {
    let file = opened_file(&folder(), "bert", "q8_0");
    let mut engine = engine("cpu", &file, &exact(), CacheType::F32);
    let context = engine.context();
    assert_eq!(context, 200);
    let mut error = |text: Vec<u32>| {
        let error = engine.encode(&[text], &mut |_, _| ());
        error.expect_err("a refusal")
    };
    let long = error(vec![5; context + 1]);
    assert!(
        long.to_string().contains("201") && long.hint().is_some(),
        "{long}"
    );
    assert!(matches!(error(Vec::new()), Error::Empty));
    assert!(matches!(error(vec![1 << 20]), Error::Token { .. }));
    // The whole context may be used.
    let whole = vec![vec![5; context], vec![6; 3]];
    let mut lengths = Vec::new();
    engine
        .encode(&whole, &mut |number, rows| {
            lengths.push((number, rows.len()))
        })
        .expect("rows");
    let width = engine.model().width();
    assert_eq!(lengths, [(0, context * width), (1, 3 * width)]);
    let mut batcher = Batcher::new(engine);
    let error = batcher.run_uncached((&[1, 2], AdapterScales::BASE), 64, &mut |engine, run| {
        engine.logits(run, Logits::Last)?;
        unreachable!("an encoder has no logits")
    });
    let error = error.expect_err("a refusal").to_string();
    assert!(error.contains("text encoder"), "{error}");
}
