//! Model families other than `deepseek2`: logits match reference files of llama.cpp in exact
//! arithmetic on the dequantised weights, in every kind of step.
//!
//! F32 files are not in the repository: the feature `reference-tests` also tests those in the
//! folder named by `GRISTMILL_REFERENCE`.

use crate::common::forward;
use crate::parity_support::tables::{argmax, data, ids, npy, rms};
use gristmill_backend::{Options, Precision, open};
use gristmill_llm::arch::CacheType;
use gristmill_llm::engine::{Engine, Settings};
use gristmill_llm::gguf::{Gguf, TensorDecl, Writer};
use gristmill_uop::encoding::EncodingRef;
use std::path::Path;

/// RMS of the difference, in standard deviations of the reference.
const EXACT: f64 = 1e-3;
/// Context in tokens; it determines the frequency factors of `phi3`.
const CONTEXT: usize = 256;

fn engine(device: &str, file: &Gguf, options: Options, cache: CacheType, chunk: usize) -> Engine {
    let opened = open(device, &options).expect("a device");
    let settings = Settings {
        context: Some(CONTEXT),
        cache,
        chunk,
        ..Settings::default()
    };
    Engine::load(file, opened, settings, &|_| ()).expect("a model")
}

fn exact() -> Options {
    Options {
        precision: Precision::Exact,
        quick: true,
        ..Options::default()
    }
}

fn by_steps(e: &mut Engine, tokens: &[u32]) -> Vec<f32> {
    tokens
        .iter()
        .enumerate()
        .flat_map(|(i, &t)| forward(e, &[t], i, true))
        .collect()
}

/// Checks logits of 96 tokens in one step, in chunks, and one at a time against the table.
fn check_files(device: &str, file: &Path, logits: &Path, tokens: &Path) {
    let (file, expected, tokens) = (
        Gguf::open(file).expect("a GGUF file"),
        npy(logits),
        ids(tokens),
    );
    let vocabulary = expected.len() / tokens.len();
    let compare = |name: &str, found: &[f32]| {
        let error = rms(found, &expected);
        let rows = found.chunks(vocabulary).zip(expected.chunks(vocabulary));
        let same = rows.filter(|(a, b)| argmax(a) == argmax(b)).count();
        println!(
            "{}, {name}: rms {error:.2e}, {same} of {} rows",
            logits.display(),
            tokens.len()
        );
        assert!(error <= EXACT, "{name}: rms {error}");
        assert_eq!(same, tokens.len(), "{name}: rows with the same argmax");
    };
    let mut whole = engine(device, &file, exact(), CacheType::F32, 128);
    compare("one step", &forward(&mut whole, &tokens, 0, true));
    let mut chunked = engine(device, &file, exact(), CacheType::F32, 7);
    compare("chunks of 7", &forward(&mut chunked, &tokens, 0, true));
    compare("a token at a time", &by_steps(&mut chunked, &tokens));
    let without = Options {
        without: vec!["alternatives".into()],
        ..exact()
    };
    let mut written = engine(device, &file, without, CacheType::F32, 128);
    compare(
        "in the forms that are written",
        &forward(&mut written, &tokens, 0, true),
    );
}

fn check(device: &str, family: &str, quant: &str) {
    let of = |end: &str| data(&format!("families/{family}-{end}"));
    check_files(
        device,
        &of(&format!("{quant}.gguf")),
        &of(&format!("{quant}-logits.npy")),
        &of("tokens.txt"),
    );
}

macro_rules! families { ($($test:ident $family:literal $quant:literal;)*) => {
    $(#[test]
    fn $test() {
        check("cpu", $family, $quant);
    })*

    /// With perturbed schedules.
    mod in_any_schedule {
        $(#[test]
        fn $test() {
            let of = |end: &str| super::data(&format!("families/{}-{end}", $family));
            let (file, logits) = (format!("{}.gguf", $quant), format!("{}-logits.npy", $quant));
            crate::parity_support::schedules::check(&of(&file), &of(&logits), &of("tokens.txt"));
        })*
    }

    /// On the first CUDA device, as on a CPU.
    #[cfg(feature = "cuda-tests")]
    #[test]
    fn families_on_cuda() {
        $(check("cuda", $family, $quant);)*
    }

    /// On the first adapter, which may be a software one.
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
    granite_with_factors "granite" "q8_0";
    llama_with_divided_frequencies "llama" "q4_k_m";
    mistral_with_wide_heads "mistral" "q8_0";
    mistral3_with_a_temperature "mistral3" "q8_0";
    olmo2_with_norms_behind "olmo2" "q8_0";
    olmo2_with_windows "olmo2-windows" "q8_0";
    phi3_with_joined_matrices "phi3" "q8_0";
    qwen2_with_biases "qwen2" "q8_0";
    qwen3_with_norms_of_heads "qwen3" "q8_0";
    qwen35_with_states "qwen35" "q8_0";
    qwen35moe_with_states_and_experts "qwen35moe" "q8_0";
    qwen3moe_with_experts "qwen3moe" "q8_0";
    gemma2_with_caps "gemma2" "q8_0";
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

/// Returns the logits of a family's file in chunks of 32, and one token at a time.
fn logits(
    device: &str,
    family: &str,
    quant: &str,
    options: &Options,
    cache: CacheType,
) -> [Vec<f32>; 2] {
    let file = Gguf::open(data(&format!("families/{family}-{quant}.gguf"))).expect("a GGUF file");
    let tokens = ids(&data(&format!("families/{family}-tokens.txt")));
    let mut e = engine(device, &file, options.clone(), cache, 32);
    [forward(&mut e, &tokens, 0, true), by_steps(&mut e, &tokens)]
}

/// F16 and int8 caches change the logits slightly, and quantised activations slightly more, in
/// every kind of step. Random models amplify errors: llama.cpp's logits with quantised activations
/// are about as far from exact ones.
#[test]
fn caches_and_integer_products_are_near() {
    for (family, quant) in [
        ("qwen2", "q8_0"),
        ("llama", "q4_k_m"),
        ("gemma2", "q8_0"),
        ("gemma3", "q8_0"),
        ("gemma4", "q8_0"),
    ] {
        let expected = npy(&data(&format!("families/{family}-{quant}-logits.npy")));
        for (what, options, cache, most) in [
            ("a cache of halves", exact(), CacheType::F16, 5e-3),
            ("a cache of bytes", exact(), CacheType::Int8, 0.05),
            ("a cache of 4 bits", exact(), CacheType::Int4, 0.5),
            ("a cache of fp8", exact(), CacheType::Fp8, 0.2),
            (
                "integer products",
                Options {
                    quick: true,
                    ..Options::default()
                },
                CacheType::F16,
                0.1,
            ),
        ] {
            let errors =
                logits("cpu", family, quant, &options, cache).map(|found| rms(&found, &expected));
            println!("{family}, {what}: {errors:.4?}");
            assert!(
                errors.iter().all(|&e| e > 1e-6 && e < most),
                "{family}, {what}: {errors:?}"
            );
        }
    }
}

/// Returns a family's file with every matrix scaled down by a power of two (stacked experts by one
/// each), and tensors with the inverse factors.
fn with_scales(family: &str) -> Gguf {
    let file = Gguf::open(data(&format!("families/{family}-q8_0.gguf"))).expect("a GGUF file");
    let mut tensors: Vec<(String, Vec<u64>, EncodingRef, Vec<u8>)> = Vec::new();
    for info in file.tensors() {
        let mut bytes = vec![0; info.bytes as usize];
        file.read_tensor(info, &mut bytes).expect("a tensor");
        let stem = info.name.strip_suffix(".weight").filter(|stem| {
            let matrix =
                info.dims.len() == 2 && (info.name.starts_with("blk.") || *stem == "output");
            let has_one = file.tensor(&format!("{stem}.scale")).is_some();
            info.encoding.name == "q8_0" && (matrix || stem.ends_with("_exps")) && !has_one
        });
        if let Some(stem) = stem {
            let experts = info.dims.get(2).copied().unwrap_or(1);
            let power = |expert: u64| 1 + (expert % 3) as i32;
            let blocks = bytes.len() as u64 / BLOCK as u64;
            for (i, block) in bytes.chunks_mut(BLOCK).enumerate() {
                let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
                let factor = 0.5f32.powi(power(i as u64 * experts / blocks));
                let less = half::f16::from_f32(scale * factor);
                assert_eq!(
                    less.to_f32(),
                    scale * factor,
                    "a scale that is normal still"
                );
                block[..2].copy_from_slice(&less.to_le_bytes());
            }
            let numbers = (0..experts)
                .flat_map(|e| 2f32.powi(power(e)).to_le_bytes())
                .collect();
            tensors.push((
                format!("{stem}.scale"),
                vec![experts],
                &gristmill_encodings::F32,
                numbers,
            ));
        }
        tensors.push((info.name.clone(), info.dims.clone(), info.encoding, bytes));
    }
    let declared: Vec<TensorDecl> = tensors
        .iter()
        .map(|(name, dims, encoding, _)| TensorDecl {
            name,
            dims,
            encoding,
        })
        .collect();
    let mut writer = Writer::new(Vec::new(), file.metadata(), &declared).expect("a header");
    tensors
        .iter()
        .for_each(|(.., bytes)| writer.data(bytes).expect("data"));
    Gguf::from_bytes(writer.finish().expect("a file")).expect("a GGUF file")
}

/// Bytes of a block of Q8_0, which begin with its scale.
const BLOCK: usize = 34;

/// Per-tensor scales, as in NVIDIA's format, multiply the matrices of layers, experts and the head.
#[test]
fn scales_of_whole_tensors_multiply_them() {
    for family in [
        "qwen2",
        "phi3",
        "qwen35",
        "qwen3moe",
        "deepseek2-kimi",
        "gemma4-moe",
    ] {
        let file = with_scales(family);
        let tokens = ids(&data(&format!("families/{family}-tokens.txt")));
        let expected = npy(&data(&format!("families/{family}-q8_0-logits.npy")));
        let mut e = engine("cpu", &file, exact(), CacheType::F32, 128);
        let error = rms(&forward(&mut e, &tokens, 0, true), &expected);
        println!("{family}: rms {error:.2e}");
        assert!(error <= EXACT, "{family}: rms {error}");
    }
}

/// Returns gpt-oss with another number of experts per token, of 5.
fn gpt_oss_with(used: u32) -> Gguf {
    let mut bytes = std::fs::read(data("families/gpt-oss-mxfp4.gguf")).expect("a file");
    let key = b"gpt-oss.expert_used_count";
    let at = bytes
        .windows(key.len())
        .position(|w| w == key)
        .expect("the key")
        + key.len();
    // The key is followed by the type u32 and the value.
    assert_eq!(bytes[at..at + 4], 4u32.to_le_bytes());
    bytes[at + 4..at + 8].copy_from_slice(&used.to_le_bytes());
    Gguf::from_bytes(bytes).expect("a GGUF file")
}

/// With all experts in use, an int8 cache is as close as in other models. With fewer, most
/// rows are close and a few choose other experts, which in this random model moves the logits
/// by a full standard deviation.
#[test]
fn a_cache_of_bytes_changes_choices_of_experts_alone() {
    let tokens = ids(&data("families/gpt-oss-tokens.txt"));
    let rows = |used| {
        let file = gpt_oss_with(used);
        let of = |cache| {
            forward(
                &mut engine("cpu", &file, exact(), cache, 128),
                &tokens,
                0,
                true,
            )
        };
        let (found, exact) = (of(CacheType::Int8), of(CacheType::F32));
        let mut rows: Vec<f64> = found
            .chunks(512)
            .zip(exact.chunks(512))
            .map(|(f, e)| rms(f, e))
            .collect();
        rows.sort_by(f64::total_cmp);
        println!(
            "{used} of 5 experts: rms {:.4}, by rows {rows:.3?}",
            rms(&found, &exact)
        );
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
    let of = |device| {
        forward(
            &mut engine(device, &file, exact(), CacheType::F32, 8),
            tokens,
            0,
            true,
        )
    };
    assert!(rms(&of("interp"), &of("cpu")) < 1e-4);
}
