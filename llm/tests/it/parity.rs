//! Whole models on devices: reference files of llama.cpp and PyTorch, and the golden tiny models
//! (`docs/deepseek2.md`, section 8).
//!
//! Files above 16 MiB are not in the repository: the feature `reference-tests` also tests those in
//! the folder named by `GRISTMILL_REFERENCE`, and requires them.

use crate::common::forward;
use crate::golden_support;
use gristmill_llm::arch::CacheType;

use crate::golden_support::{Fixture, Form, TOKENS, Tiny, Way};
use crate::parity_support::tables::{argmax, data, ids, npy, rms};
use crate::parity_support::{AsGiven, asset, far, file_of, on_device, schedules, truth};
use gristmill_backend::{Options, Precision, open};
use gristmill_compiler::{Cheapest, Perturb, Policy};
use gristmill_encodings::{BF16, F16, F32};
use gristmill_llm::engine::{Engine, Settings};
use gristmill_llm::gguf::Gguf;
use gristmill_uop::EncodingRef;
use std::path::{Path, PathBuf};

const VOCABULARY: usize = 2048;

/// Creates an engine compiled with full optimisation, for comparison with other engines' logits.
fn engine(file: &Gguf, device: &str, threads: Option<usize>, chunk: usize) -> Engine {
    engine_of(
        file,
        device,
        Options {
            threads,
            precision: Precision::Exact,
            ..Options::default()
        },
        chunk,
    )
}

/// Returns options for quick compilation, for comparison with a fully optimised engine.
fn quick(exact: bool) -> Options {
    Options {
        precision: if exact {
            Precision::Exact
        } else {
            Precision::Fast
        },
        quick: true,
        ..Options::default()
    }
}

fn engine_of(file: &Gguf, device: &str, options: Options, chunk: usize) -> Engine {
    let opened = open(device, &options).expect("a device");
    let settings = Settings {
        context: Some(256),
        cache: CacheType::F32,
        chunk,
        ..Settings::default()
    };
    Engine::load(file, opened, settings, &|_| ()).expect("a model")
}

fn by_steps(e: &mut Engine, tokens: &[u32]) -> Vec<f32> {
    tokens
        .iter()
        .enumerate()
        .flat_map(|(i, &t)| forward(e, &[t], i, true))
        .collect()
}

/// Limits of the difference between a file's logits and a reference.
struct Bounds {
    /// RMS of the difference, in standard deviations of the reference.
    rms: f64,
    /// Number of rows compared.
    rows: usize,
    /// Rows that must have the same argmax.
    same: usize,
}

/// Compares logits of 96 tokens, one at a time and in chunks, with a table.
fn check(file: &Path, logits: &Path, tokens: &[u32], bounds: &Bounds) {
    check_on("cpu", file, logits, tokens, bounds);
}

fn check_on(device: &str, file: &Path, logits: &Path, tokens: &[u32], bounds: &Bounds) {
    let file = Gguf::open(file).expect("a GGUF file");
    let expected = npy(logits);
    let compare = |name: &str, found: &[f32]| {
        let n = bounds.rows * VOCABULARY;
        let error = rms(&found[..n], &expected[..n]);
        let rows = found.chunks(VOCABULARY).zip(expected.chunks(VOCABULARY));
        let same = rows.filter(|(a, b)| argmax(a) == argmax(b)).count();
        println!(
            "{}, {name}: rms {error:.2e}, {same} of {} rows",
            logits.display(),
            tokens.len()
        );
        assert!(
            error <= bounds.rms,
            "{name}: rms {error} above {}",
            bounds.rms
        );
        assert!(
            same >= bounds.same,
            "{name}: {same} rows of {} agree",
            tokens.len()
        );
    };
    for (i, chunk) in [7, 32, 128].into_iter().enumerate() {
        let mut e = engine(&file, device, None, chunk);
        compare(
            &format!("chunks of {chunk}"),
            &forward(&mut e, tokens, 0, true),
        );
        if i == 0 {
            compare("a token at a time", &by_steps(&mut e, tokens));
        }
    }
}

/// Exact arithmetic: within a thousandth, and the same argmax everywhere.
const EXACT: Bounds = Bounds {
    rms: 1e-3,
    rows: 96,
    same: 96,
};

#[test]
fn tiny_q4_0_is_exact() {
    let tokens = ids(&data("tiny-tokens.txt"));
    check(
        &data("tiny-q4_0_pure.gguf"),
        &data("tiny-q4_0_pure-exact-logits.npy"),
        &tokens,
        &EXACT,
    );
}

#[test]
fn tiny_q8_0_is_exact() {
    let tokens = ids(&data("tiny-tokens.txt"));
    check(
        &data("tiny-q8_0.gguf"),
        &data("tiny-q8_0-exact-logits.npy"),
        &tokens,
        &EXACT,
    );
}

#[test]
fn tiny_files_in_any_schedule() {
    for (file, logits) in [("q4_0_pure", "q4_0_pure-exact"), ("q8_0", "q8_0-exact")] {
        let (file, logits) = (
            format!("tiny-{file}.gguf"),
            format!("tiny-{logits}-logits.npy"),
        );
        schedules::check(&data(&file), &data(&logits), &data("tiny-tokens.txt"));
    }
}

/// llama.cpp quantises activations: 1 to 3 % of the standard deviation on the trained model.
const QUANTISED: Bounds = Bounds {
    rms: 0.03,
    rows: 96,
    same: 93,
};

#[test]
fn demo_q4_0_is_near_llama_cpp() {
    let tokens = ids(&data("demo-glm-tokens.txt"));
    check(
        &asset("demo-glm-Q4_0.gguf"),
        &data("demo-glm-Q4_0-logits.npy"),
        &tokens,
        &QUANTISED,
    );
}

#[test]
fn demo_q4_k_m_is_near_llama_cpp() {
    let tokens = ids(&data("demo-glm-tokens.txt"));
    check(
        &data("demo-glm-Q4_K_M.gguf"),
        &data("demo-glm-Q4_K_M-logits.npy"),
        &tokens,
        &QUANTISED,
    );
}

/// Quantised activations (int8) change the logits by at most 3 % from exact ones, in chunks and one
/// token at a time.
fn near_exact(device: &str) {
    let tokens = ids(&data("demo-glm-tokens.txt"));
    for path in [asset("demo-glm-Q4_0.gguf"), data("demo-glm-Q4_K_M.gguf")] {
        let file = Gguf::open(&path).expect("a GGUF file");
        let exact = forward(&mut engine(&file, "cpu", None, 128), &tokens, 0, true);
        for chunk in [7, 128] {
            let mut e = engine_of(&file, device, quick(false), chunk);
            let error = rms(&forward(&mut e, &tokens, 0, true), &exact);
            println!("{}, chunks of {chunk}: rms {error:.2e}", path.display());
            assert!(
                error > 1e-6 && error < 0.03,
                "{}, chunks of {chunk}: {error}",
                path.display()
            );
            if chunk == 7 {
                let error = rms(&by_steps(&mut e, &tokens), &exact);
                println!("{}, a token at a time: rms {error:.2e}", path.display());
                assert!(
                    error > 1e-6 && error < 0.03,
                    "{}, a token at a time: {error}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn integer_products_are_near_exact() {
    near_exact("cpu");
}

#[cfg(feature = "reference-tests")]
#[test]
fn large_reference_files() {
    let folder = crate::parity_support::reference();
    let (demo, tiny) = (
        ids(&data("demo-glm-tokens.txt")),
        ids(&data("tiny-tokens.txt")),
    );
    check(
        &folder.join("tiny-f32.gguf"),
        &folder.join("tiny-f32-logits.npy"),
        &tiny,
        &EXACT,
    );
    // Activations are rounded to f16 where weights are f16, as in llama.cpp: at token 45 that
    // decides a near tie of two experts.
    check(
        &folder.join("demo-glm-f16.gguf"),
        &folder.join("demo-glm-f16-logits.npy"),
        &demo,
        &EXACT,
    );
    check(
        &folder.join("demo-glm-Q8_0.gguf"),
        &folder.join("demo-glm-Q8_0-logits.npy"),
        &demo,
        &QUANTISED,
    );
}

/// Returns for each prompt how many tokens of PyTorch's greedy continuation this file predicts as
/// well, and their total. Each prediction follows the original's tokens.
fn greedy(device: &str, file: &Path) -> Vec<(usize, usize)> {
    let file = Gguf::open(file).expect("a GGUF file");
    let mut e = engine(&file, device, None, 128);
    let text = std::fs::read_to_string(data("vocab/demo-glm-prompts.json")).expect("prompts");
    let prompts: Vec<serde_json::Value> = serde_json::from_str(&text).expect("JSON");
    let list = |v: &serde_json::Value| -> Vec<u32> {
        v.as_array()
            .expect("ids")
            .iter()
            .map(|t| t.as_u64().expect("an id") as u32)
            .collect()
    };
    let follow = |p: &serde_json::Value| {
        let (prompt, expected) = (list(&p["ids"]), list(&p["continuation"]));
        let mut next = argmax(&forward(&mut e, &prompt, 0, false)) as u32;
        let mut same = 0;
        for (i, &want) in expected.iter().enumerate() {
            same += usize::from(next == want);
            next = argmax(&forward(&mut e, &[want], prompt.len() + i, false)) as u32;
        }
        println!("{}: {same} of {} tokens", p["prompt"], expected.len());
        (same, expected.len())
    };
    prompts.iter().map(follow).collect()
}

fn greedy_text(device: &str) {
    // Quantisation changes logits by 5 %, so stories diverge at near ties; sums and
    // facts do not change.
    for (same, all) in greedy(device, &asset("demo-glm-Q4_0.gguf")) {
        assert!(
            if all < 20 {
                same == all
            } else {
                10 * same >= 9 * all
            },
            "{same} of {all}"
        );
    }
}

#[test]
fn greedy_text_of_the_demo() {
    greedy_text("cpu");
}

#[cfg(feature = "reference-tests")]
#[test]
fn greedy_text_of_the_demo_in_f16_is_the_originals() {
    let file = crate::parity_support::reference().join("demo-glm-f16.gguf");
    assert!(greedy("cpu", &file).iter().all(|(same, all)| same == all));
}

/// Checks reference files on a GPU, as on a CPU.
#[cfg(any(feature = "cuda-tests", feature = "wgpu"))]
fn reference_files_on(device: &str) {
    let (demo, tiny) = (
        ids(&data("demo-glm-tokens.txt")),
        ids(&data("tiny-tokens.txt")),
    );
    for name in ["tiny-q4_0_pure", "tiny-q8_0"] {
        let logits = data(&format!("{name}-exact-logits.npy"));
        check_on(
            device,
            &data(&format!("{name}.gguf")),
            &logits,
            &tiny,
            &EXACT,
        );
    }
    check_on(
        device,
        &asset("demo-glm-Q4_0.gguf"),
        &data("demo-glm-Q4_0-logits.npy"),
        &demo,
        &QUANTISED,
    );
    check_on(
        device,
        &data("demo-glm-Q4_K_M.gguf"),
        &data("demo-glm-Q4_K_M-logits.npy"),
        &demo,
        &QUANTISED,
    );
    near_exact(device);
    greedy_text(device);
}

#[cfg(feature = "cuda-tests")]
#[test]
fn reference_files_on_cuda() {
    reference_files_on("cuda");
}

#[cfg(feature = "wgpu")]
#[test]
fn reference_files_on_wgpu() {
    reference_files_on("wgpu");
}

const EVERY: [Tiny; 4] = [Tiny::A, Tiny::B, Tiny::C, Tiny::D];

/// Checks tiny models as files on a device through the engine against the evaluator.
fn golden(device: &str, encoding: EncodingRef) {
    for tiny in EVERY {
        for split in [true, false] {
            let fixture = Fixture::new(tiny, split);
            let file = file_of(&fixture, encoding);
            let want = truth(&file, &TOKENS, None);
            let tokens = TOKENS.map(|t| t as u32);
            // One format with full optimisation; the conformance suite covers the C compiler's
            // handling of the other formats.
            let options = Options {
                quick: encoding.name != F32.name,
                ..quick(true)
            };
            let mut e = engine_of(&file, device, options, 5);
            for (name, found) in [
                ("a token at a time", by_steps(&mut e, &tokens)),
                ("chunks of 5", forward(&mut e, &tokens, 0, true)),
            ] {
                // F16 weights are multiplied by activations rounded to f16: a value within f32's
                // error of a tie rounds either way, by 2^-11 of its size. So that file uses the
                // limit of whole models instead of that of single logits.
                if encoding.name == F16.name {
                    let exact: Vec<f32> = want.iter().flatten().map(|&v| v as f32).collect();
                    let error = rms(&found, &exact);
                    assert!(
                        error <= EXACT.rms,
                        "{tiny:?} f16 {device}, split {split}, {name}: rms {error}"
                    );
                    for (f, w) in found.chunks(want[0].len()).zip(exact.chunks(want[0].len())) {
                        assert_eq!(
                            argmax(f),
                            argmax(w),
                            "{tiny:?} f16 {device}, split {split}, {name}"
                        );
                    }
                } else if let Some(error) = far(&found, &want, 1e-4) {
                    panic!(
                        "{tiny:?} {} {device}, split {split}, {name}: {error}",
                        encoding.name
                    );
                }
            }
        }
    }
}

#[test]
fn golden_models_on_cpu() {
    golden("cpu", &F32);
}

#[test]
fn golden_models_in_f16_on_cpu() {
    golden("cpu", &F16);
}

#[test]
fn golden_models_in_bf16_on_cpu() {
    golden("cpu", &BF16);
}

#[test]
fn golden_models_on_interp() {
    golden("interp", &F32);
}

/// The evaluator's golden values are tested in `golden_tiny`; this test checks that the
/// file equals the fixture.
#[test]
fn files_say_what_fixtures_say() {
    let fixture = Fixture::new(Tiny::A, true);
    let steps = Way {
        form: Form::Written,
        chunk: None,
        cache: CacheType::F32,
    };
    let want = golden_support::logits(&fixture, &TOKENS, steps);
    let found = truth(&file_of(&fixture, &F32), &TOKENS, None);
    let flat: Vec<f32> = found.iter().flatten().map(|&v| v as f32).collect();
    assert_eq!(far(&flat, &want, 1e-6), None);
}

/// Forms of a layer that are compiled one by one: absorbed, values or keys alone,
/// as written, and mixtures.
const FORMS: usize = 5;

/// Kinds of steps of [`forms`]: one token at a time, and chunks.
const CLASSES: [Option<usize>; 3] = [None, Some(3), Some(8)];

/// Checks the chosen form in every kind of step, and each other form in one kind, in rotation; with
/// an epsilon that no file can express.
fn forms(device: &str) {
    for (i, (tiny, latent_eps)) in [
        (Tiny::A, None),
        (Tiny::A, Some(1e-6)),
        (Tiny::B, None),
        (Tiny::C, None),
        (Tiny::D, None),
    ]
    .into_iter()
    .enumerate()
    {
        let file = file_of(&Fixture::new(tiny, true), &F32);
        let want = truth(&file, &TOKENS, latent_eps);
        // As written, and forms by number, so that the cost model need not choose them.
        let others = std::iter::once(Form::Written)
            .chain((0..FORMS).map(Form::Number))
            .enumerate();
        let others = others.map(|(n, form)| (form, true, CLASSES[(i + n) % CLASSES.len()]));
        let chosen = CLASSES.map(|chunk| (Form::Written, false, chunk));
        for (form, kept, chunk) in chosen.into_iter().chain(others) {
            let way = Way {
                form,
                chunk,
                cache: CacheType::F32,
            };
            let policy: &mut dyn Policy = if kept { &mut AsGiven } else { &mut Cheapest };
            let found = on_device(device, &file, &TOKENS, way, latent_eps, policy);
            if let Some(error) = far(&found, &want, 1e-4) {
                panic!("{tiny:?} {device} {form:?} {chunk:?} {latent_eps:?}: {error}");
            }
        }
    }
}

#[test]
fn forms_of_attention_on_cpu() {
    forms("cpu");
}

#[test]
fn forms_of_attention_on_interp() {
    forms("interp");
}

/// Checks perturbed schedules: any legal schedule is correct.
fn schedules(device: &str, seeds: std::ops::RangeInclusive<u64>) {
    for tiny in EVERY {
        let file = file_of(&Fixture::new(tiny, true), &F32);
        let want = truth(&file, &TOKENS, None);
        for seed in seeds.clone() {
            for chunk in [None, Some(8)] {
                let form = Form::Written;
                let way = Way {
                    form,
                    chunk,
                    cache: CacheType::F32,
                };
                let found = on_device(device, &file, &TOKENS, way, None, &mut Perturb::new(seed));
                if let Some(error) = far(&found, &want, 1e-4) {
                    panic!("{tiny:?} {device} {form:?}, seed {seed}: {error}");
                }
            }
        }
    }
}

#[test]
fn perturbed_schedules_on_cpu() {
    schedules("cpu", 1..=2);
}

#[test]
fn perturbed_schedules_on_interp() {
    schedules("interp", 1..=6);
}

#[test]
fn threads_make_no_difference() {
    let tokens = ids(&data("demo-glm-tokens.txt"));
    let file = Gguf::open(asset("demo-glm-Q4_0.gguf")).expect("a GGUF file");
    let with = |threads| {
        engine_of(
            &file,
            "cpu",
            Options {
                threads: Some(threads),
                ..Options::default()
            },
            32,
        )
    };
    let mut one = with(1);
    let (chunked, stepped) = (
        forward(&mut one, &tokens, 0, true),
        by_steps(&mut one, &tokens[..24]),
    );
    for threads in [2, 3] {
        let mut e = with(threads);
        assert!(
            forward(&mut e, &tokens, 0, true) == chunked,
            "{threads} threads, in chunks"
        );
        assert!(
            by_steps(&mut e, &tokens[..24]) == stepped,
            "{threads} threads, a token at a time"
        );
    }
}

/// An f16 cache changes the logits only slightly.
#[test]
fn a_half_precision_cache_is_near() {
    let tokens = ids(&data("demo-glm-tokens.txt"));
    let file = Gguf::open(asset("demo-glm-Q4_0.gguf")).expect("a GGUF file");
    let full = forward(&mut engine(&file, "cpu", None, 32), &tokens, 0, true);
    let opened = open("cpu", &quick(true)).expect("a device");
    let settings = Settings {
        context: Some(256),
        cache: CacheType::F16,
        chunk: 32,
        ..Settings::default()
    };
    let mut e = Engine::load(&file, opened, settings, &|_| ()).expect("a model");
    let error = rms(&forward(&mut e, &tokens, 0, true), &full);
    assert!(error > 0.0 && error < 5e-3, "{error}");
}

/// An int8 cache with scales changes the logits only slightly, in any kind of step.
#[test]
fn a_cache_of_bytes_is_near() {
    let tokens = ids(&data("demo-glm-tokens.txt"));
    let file = Gguf::open(asset("demo-glm-Q4_0.gguf")).expect("a GGUF file");
    let full = forward(&mut engine(&file, "cpu", None, 32), &tokens, 0, true);
    let opened = open("cpu", &quick(true)).expect("a device");
    let settings = Settings {
        context: Some(256),
        cache: CacheType::Int8,
        chunk: 32,
        ..Settings::default()
    };
    let mut e = Engine::load(&file, opened, settings, &|_| ()).expect("a model");
    let chunked = forward(&mut e, &tokens, 0, true);
    let stepped = by_steps(&mut e, &tokens);
    let errors = [
        rms(&chunked, &full),
        rms(&stepped, &full),
        rms(&stepped, &chunked),
    ];
    println!("chunked, stepped, one against the other: {errors:?}");
    assert!(
        errors[0] > 0.0 && errors.iter().all(|&e| e < 0.03),
        "{errors:?}"
    );
}

/// Integer scores over an int8 cache are as close as integer products and such a cache alone, in
/// any kind of step.
#[test]
fn integer_scores_are_near_exact() {
    let tokens = ids(&data("demo-glm-tokens.txt"));
    let file = Gguf::open(asset("demo-glm-Q4_0.gguf")).expect("a GGUF file");
    let exact = forward(&mut engine(&file, "cpu", None, 32), &tokens, 0, true);
    let floats = forward(
        &mut engine_of(&file, "cpu", quick(false), 32),
        &tokens,
        0,
        true,
    );
    let opened = open("cpu", &quick(false)).expect("a device");
    let settings = Settings {
        context: Some(256),
        cache: CacheType::Int8,
        chunk: 32,
        ..Settings::default()
    };
    let mut e = Engine::load(&file, opened, settings, &|_| ()).expect("a model");
    let chunked = forward(&mut e, &tokens, 0, true);
    let stepped = by_steps(&mut e, &tokens);
    for (class, found) in [("chunks", &chunked), ("a token at a time", &stepped)] {
        let errors = [rms(found, &exact), rms(found, &floats)];
        println!("{class}: rms {errors:.4?} of exact logits and of those with an f32 cache");
        assert!(
            errors.iter().all(|&e| e > 1e-6 && e < 0.03),
            "{class}: {errors:?}"
        );
    }
}

#[test]
fn every_device_by_name_runs_the_same_plan() {
    // The demo model is slow on the interpreter, so use a prompt of three tokens.
    let path: PathBuf = data("tiny-q4_0_pure.gguf");
    let file = Gguf::open(path).expect("a GGUF file");
    let tokens = &ids(&data("tiny-tokens.txt"))[..3];
    let (mut a, mut b) = (
        engine(&file, "cpu", None, 8),
        engine(&file, "interp", None, 8),
    );
    let (a, b) = (
        forward(&mut a, tokens, 0, true),
        forward(&mut b, tokens, 0, true),
    );
    assert!(rms(&b, &a) < 1e-4);
}
