//! The families of models beside `deepseek2`: reference files with logits in exact arithmetic by llama.cpp on the dequantised weights, in every
//! class of step.
//!
//! Files of f32 are not in the repository: with the feature `reference-tests` those in the folder that `GRISTMILL_REFERENCE` names are tested too.

use crate::golden_support::{Form, Way};
use crate::parity_support::Run;
use crate::parity_support::tables::{argmax, data, ids, npy, rms};
use gristmill_backend::cpu::{Cc, CpuDevice, Isa, dialect};
use gristmill_backend::{Opened, Options, open};
use gristmill_compiler::Perturb;
use gristmill_llm::arch;
use gristmill_llm::engine::{Engine, Settings};
use gristmill_llm::gguf::Gguf;
use gristmill_runtime::store::Store;
use gristmill_uop::Scalar;
use std::path::Path;
use std::sync::Arc;

/// RMS of the difference, in standard deviations of the reference.
const EXACT: f64 = 1e-3;
/// Context: of `phi3` it chooses the factors of the frequencies.
const CONTEXT: usize = 256;

fn engine(device: &str, file: &Gguf, options: Options, cache: Scalar, chunk: usize) -> Engine {
    let opened = open(device, &options).expect("a device");
    let settings = Settings { context: Some(CONTEXT), cache, chunk, ..Settings::default() };
    Engine::load(file, opened, settings, &|_| ()).expect("a model")
}

fn exact() -> Options {
    Options { exact: true, quick: true, ..Options::default() }
}

fn by_steps(e: &mut Engine, tokens: &[u32]) -> Vec<f32> {
    tokens.iter().enumerate().flat_map(|(i, &t)| e.forward(&[t], i, true).expect("logits").to_vec()).collect()
}

/// Logits of 96 tokens in one step, in chunks and a token at a time, against the table.
fn check_files(device: &str, file: &Path, logits: &Path, tokens: &Path) {
    let (file, expected, tokens) = (Gguf::open(file).expect("a GGUF file"), npy(logits), ids(tokens));
    let vocabulary = expected.len() / tokens.len();
    let compare = |name: &str, found: &[f32]| {
        let error = rms(found, &expected);
        let rows = found.chunks(vocabulary).zip(expected.chunks(vocabulary));
        let same = rows.filter(|(a, b)| argmax(a) == argmax(b)).count();
        println!("{}, {name}: rms {error:.2e}, {same} of {} rows", logits.display(), tokens.len());
        assert!(error <= EXACT, "{name}: rms {error}");
        assert_eq!(same, tokens.len(), "{name}: rows with the same argmax");
    };
    let mut whole = engine(device, &file, exact(), Scalar::F32, 128);
    compare("one step", whole.forward(&tokens, 0, true).expect("logits"));
    let mut chunked = engine(device, &file, exact(), Scalar::F32, 7);
    compare("chunks of 7", chunked.forward(&tokens, 0, true).expect("logits"));
    compare("a token at a time", &by_steps(&mut chunked, &tokens));
    let without = Options { without: vec!["alternatives".into()], ..exact() };
    let mut written = engine(device, &file, without, Scalar::F32, 128);
    compare("in the forms that are written", written.forward(&tokens, 0, true).expect("logits"));
}

fn check(device: &str, family: &str, quant: &str) {
    let of = |end: &str| data(&format!("families/{family}-{end}"));
    check_files(device, &of(&format!("{quant}.gguf")), &of(&format!("{quant}-logits.npy")), &of("tokens.txt"));
}

macro_rules! families { ($($test:ident $family:literal $quant:literal;)*) => {
    $(#[test]
    fn $test() {
        check("cpu", $family, $quant);
    })*

    /// Whatever is decided: [`check_schedules`].
    mod in_any_schedule {
        $(#[test]
        fn $test() {
            super::check_schedules($family, $quant);
        })*
    }

    /// On the first GPU, as on a processor.
    #[cfg(feature = "cuda-tests")]
    #[test]
    fn families_on_cuda() {
        $(check("cuda", $family, $quant);)*
    }

    /// On the first adapter, be it a program.
    #[cfg(feature = "wgpu")]
    #[test]
    fn families_on_wgpu() {
        $(check("wgpu", $family, $quant);)*
    }

    #[cfg(feature = "reference-tests")]
    #[test]
    fn families_in_f32() {
        families_in_f32_on("cpu");
    }

    #[cfg(all(feature = "reference-tests", feature = "cuda-tests"))]
    #[test]
    fn families_in_f32_on_cuda() {
        families_in_f32_on("cuda");
    }

    #[cfg(feature = "reference-tests")]
    fn families_in_f32_on(device: &str) {
        let folder = std::env::var_os("GRISTMILL_REFERENCE").map(std::path::PathBuf::from).expect("GRISTMILL_REFERENCE names the folder");
        for family in [$($family),*] {
            let of = |name: &str| folder.join(family).join(name);
            check_files(device, &of("model-f32.gguf"), &of("model-f32-logits.npy"), &of("tokens.txt"));
        }
    }
} }

families! {
    llama_with_divided_frequencies "llama" "q4_k_m";
    mistral_with_wide_heads "mistral" "q8_0";
    mistral3_with_a_temperature "mistral3" "q8_0";
    phi3_with_joined_matrices "phi3" "q8_0";
    qwen2_with_biases "qwen2" "q8_0";
    qwen3_with_norms_of_heads "qwen3" "q8_0";
    qwen35_with_states "qwen35" "q8_0";
    qwen35moe_with_states_and_experts "qwen35moe" "q8_0";
    qwen3moe_with_experts "qwen3moe" "q8_0";
    gemma3_with_windows "gemma3" "q8_0";
    gemma4_with_shared_caches_and_inputs_of_layers "gemma4" "q8_0";
    gemma4_with_experts_beside_a_dense_feed_forward "gemma4-moe" "q8_0";
    gpt_oss_with_sinks "gpt-oss" "mxfp4";
    glm4moe_with_a_shared_expert_behind_a_dense_layer "glm4moe" "q8_0";
    minimax_m2_with_norms_of_all_heads "minimax-m2" "q8_0";
    deepseek2_with_groups_of_experts_and_yarn "deepseek2" "q8_0";
    deepseek2_as_kimi_k2 "deepseek2-kimi" "q8_0";
    deepseek2_with_a_block_for_draft_tokens "deepseek2-nextn" "q8_0";
}

/// Perturbed schedules of each file, unless `GRISTMILL_PERTURB` asks for more: one of a token at a time, one of chunks.
const SEEDS: u64 = 2;
/// Tokens of a chunk of a perturbed schedule.
const CHUNK: usize = 32;
/// Tokens that `interp` runs, which takes a processor's thousandfold time.
const INTERPRETED: usize = 3;

/// Workers that perturbed schedules are planned for.
const WORKERS: usize = 4;

/// This processor, planned for more workers than it may have, so that what is chosen between is the same everywhere. What its compiler optimises is nothing: each kernel runs for a moment.
fn unoptimised() -> Opened {
    let store = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let store = Store::open(store, 1 << 30).expect("a store");
    let (isa, cc) = (Isa::parse("auto").expect("an instruction set"), Cc::find().expect("a C compiler"));
    let device = CpuDevice::with(2, isa, cc.with_flag("-O0"), store).expect("a cpu");
    let mut opened = Opened::new(Arc::new(device), Some(&dialect::C));
    opened.target = isa.target_of(WORKERS);
    opened.exact()
}

/// Logits of a file where every decision is answered at random, against the table: any legal schedule is correct. `interp` runs every other of them, of a few tokens.
fn check_schedules(family: &str, quant: &str) {
    let of = |end: &str| data(&format!("families/{family}-{end}"));
    let file = Gguf::open(of(&format!("{quant}.gguf"))).expect("a GGUF file");
    let model = arch::load(file.metadata(), &file).expect("a model");
    let (expected, tokens) = (npy(&of(&format!("{quant}-logits.npy"))), ids(&of("tokens.txt")));
    let tokens: Vec<i64> = tokens.into_iter().map(i64::from).collect();
    let asked = std::env::var("GRISTMILL_PERTURB").ok().and_then(|n| n.parse().ok());
    for seed in 1..=asked.unwrap_or(SEEDS) {
        // FNV-1a: other decisions in every family.
        let number = family.bytes().fold(seed, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)) | 1;
        let chunk = (seed % 2 == 0).then_some(CHUNK);
        for (opened, few) in [(Some(unoptimised()), tokens.len()), (interpreted(seed), INTERPRETED)] {
            let Some(opened) = opened else { continue };
            let (name, tokens) = (opened.device.name().to_string(), &tokens[..few]);
            let way = Way { form: Form::Written, chunk: chunk.map(|n| n.min(few)), cache: Scalar::F32 };
            let run = Run { model: model.as_ref(), file: &file, context: CONTEXT, tokens, way };
            let found = run.on(opened, &mut Perturb::new(number));
            let expected = &expected[..found.len()];
            let error = rms(&found, expected);
            let rows = found.chunks(model.vocabulary()).zip(expected.chunks(model.vocabulary()));
            let same = rows.filter(|(a, b)| argmax(a) == argmax(b)).count();
            println!("{family} on {name}, seed {seed}: rms {error:.2e}, {same} of {few} rows");
            assert!(error <= EXACT && same == few, "{family} on {name}, seed {seed}: rms {error}, {same} of {few} rows");
        }
    }
}

/// The interpreter, for every other seed, in turn of a token at a time and of chunks.
fn interpreted(seed: u64) -> Option<Opened> {
    let seldom = seed % 4 == 2 || seed % 4 == 3;
    seldom.then(|| open("interp", &exact()).expect("a device"))
}

/// Logits of a family's file, in chunks of 32, and a token at a time.
fn logits(device: &str, family: &str, quant: &str, options: &Options, cache: Scalar) -> [Vec<f32>; 2] {
    let file = Gguf::open(data(&format!("families/{family}-{quant}.gguf"))).expect("a GGUF file");
    let tokens = ids(&data(&format!("families/{family}-tokens.txt")));
    let mut e = engine(device, &file, options.clone(), cache, 32);
    [e.forward(&tokens, 0, true).expect("logits").to_vec(), by_steps(&mut e, &tokens)]
}

/// Caches of halves and of bytes move the logits a little, and activations in eight bits a little more, in every class of step. Random models amplify:
/// llama.cpp's logits with activations in eight bits are about as far from exact ones.
#[test]
fn caches_and_integer_products_are_near() {
    for (family, quant) in [("qwen2", "q8_0"), ("llama", "q4_k_m"), ("gemma3", "q8_0"), ("gemma4", "q8_0")] {
        let expected = npy(&data(&format!("families/{family}-{quant}-logits.npy")));
        for (what, options, cache, most) in [
            ("a cache of halves", exact(), Scalar::F16, 5e-3),
            ("a cache of bytes", exact(), Scalar::I8, 0.05),
            ("integer products", Options { quick: true, ..Options::default() }, Scalar::F16, 0.1),
        ] {
            let errors = logits("cpu", family, quant, &options, cache).map(|found| rms(&found, &expected));
            println!("{family}, {what}: {errors:.4?}");
            assert!(errors.iter().all(|&e| e > 1e-6 && e < most), "{family}, {what}: {errors:?}");
        }
    }
}

/// gpt-oss with another number of experts that a token uses, of 5.
fn gpt_oss_with(used: u32) -> Gguf {
    let mut bytes = std::fs::read(data("families/gpt-oss-mxfp4.gguf")).expect("a file");
    let key = b"gpt-oss.expert_used_count";
    let at = bytes.windows(key.len()).position(|w| w == key).expect("the key") + key.len();
    // Behind the key come the type, u32, and the value.
    assert_eq!(bytes[at..at + 4], 4u32.to_le_bytes());
    bytes[at + 4..at + 8].copy_from_slice(&used.to_le_bytes());
    Gguf::from_bytes(bytes).expect("a GGUF file")
}

/// Where a token uses all experts a cache of bytes is as near as in other models. Where it chooses, most rows are, and a few choose others: of these random experts
/// one in place of another moves the logits by all of their deviation.
#[test]
fn a_cache_of_bytes_changes_choices_of_experts_alone() {
    let tokens = ids(&data("families/gpt-oss-tokens.txt"));
    let rows = |used| {
        let file = gpt_oss_with(used);
        let of = |cache| engine("cpu", &file, exact(), cache, 128).forward(&tokens, 0, true).expect("logits").to_vec();
        let (found, exact) = (of(Scalar::I8), of(Scalar::F32));
        let mut rows: Vec<f64> = found.chunks(512).zip(exact.chunks(512)).map(|(f, e)| rms(f, e)).collect();
        rows.sort_by(f64::total_cmp);
        println!("{used} of 5 experts: rms {:.4}, by rows {rows:.3?}", rms(&found, &exact));
        (rms(&found, &exact), rows)
    };
    let ((all, _), (_, chosen)) = (rows(5), rows(3));
    assert!(all > 1e-6 && all < 0.05, "{all}");
    assert!(chosen[tokens.len() / 2] < 0.05, "{chosen:?}");
}

#[test]
fn the_interpreter_agrees() {
    let file = Gguf::open(data("families/qwen3moe-q8_0.gguf")).expect("a GGUF file");
    let tokens = &ids(&data("families/qwen3moe-tokens.txt"))[..3];
    let of = |device| engine(device, &file, exact(), Scalar::F32, 8).forward(tokens, 0, true).expect("logits").to_vec();
    assert!(rms(&of("interp"), &of("cpu")) < 1e-4);
}
