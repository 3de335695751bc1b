//! Synthetic models have the sizes and types of the published ones, and are identical from a
//! file and from memory.

use gristmill_llm::engine::{self, CompiledModel, Settings, Weights};
use gristmill_llm::gguf::{Gguf, Metadata};
use gristmill_llm::synth::{self, Error};
use std::collections::{BTreeMap, HashSet};

#[test]
fn sizes_are_those_of_the_published_files() {
    // GB of tensor data, from docs/deepseek2.md, section 7.
    let sizes = [
        ("glm-4.7-flash", "q4_0", 16.947),
        ("glm-4.7-flash", "q4_k_s", 17.063),
        ("glm-4.7-flash", "q4_k_m", 18.123),
        ("glm-4.7-flash", "q8_0", 31.833),
        ("glm-4.7-flash", "bf16", 59.899),
        ("deepseek-v2-lite", "q4_0", 8.901),
        ("deepseek-v2-lite", "q4_k_m", 10.364),
        ("deepseek-v2-lite", "q8_0", 16.699),
        ("deepseek-v2-lite", "bf16", 31.420),
        ("youtu-llm-2b", "q4_0", 1.172),
        ("youtu-llm-2b", "q4_k_m", 1.228),
        ("youtu-llm-2b", "q8_0", 2.085),
        ("llama-3.1-8b", "q4_0", 4.653),
        ("llama-3.1-8b", "q4_k_m", 4.913),
        ("qwen3-8b", "q4_0", 4.769),
        ("qwen3-8b", "q4_k_m", 5.022),
    ];
    for (preset, quant, gb) in sizes {
        let found = synth::plan(preset, quant).unwrap().bytes() as f64 / 1e9;
        assert!(
            (found - gb).abs() < 0.0006,
            "{preset} {quant}: {found} GB, not {gb}"
        );
    }
}

fn counts(preset: &str, quant: &str) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for t in synth::plan(preset, quant).unwrap().tensors {
        *counts.entry(t.encoding.name).or_default() += 1;
    }
    counts
}

#[test]
fn types_are_those_of_the_published_files() {
    let found = counts("deepseek-v2-lite", "q4_k_m");
    assert_eq!(
        found,
        BTreeMap::from([
            ("q4_k", 229),
            ("q6_k", 13),
            ("q5_0", 41),
            ("q8_0", 13),
            ("f32", 108)
        ])
    );
    assert_eq!(counts("glm-4.7-flash", "mxfp4_moe")["mxfp4"], 3 * 46);
    for (preset, tensors) in [
        ("glm-4.7-flash", 844),
        ("deepseek-v2-lite", 404),
        ("youtu-llm-2b", 418),
        ("llama-3.1-8b", 292),
        ("qwen3-8b", 399),
    ] {
        assert_eq!(
            counts(preset, "q4_0").values().sum::<usize>(),
            tensors,
            "{preset}"
        );
    }
}

#[test]
fn parameters_are_those_of_the_published_models() {
    for (preset, n) in [
        ("glm-4.7-flash", 29_943_393_920u64),
        ("deepseek-v2-lite", 15_706_484_224),
        ("youtu-llm-2b", 1_961_560_064),
        ("llama-3.1-8b", 8_030_261_312),
        ("qwen2.5-7b", 7_615_616_512),
        ("phi-4-mini", 3_836_021_856),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-8b", 8_190_735_360),
        ("deepseek-v3", 671_026_419_200),
        ("kimi-k2", 1_026_408_232_448),
        ("glm-4.5-air", 106_852_251_264),
        ("minimax-m2", 228_689_764_864),
        ("gpt-oss-20b", 20_914_757_184),
        ("gemma-2-9b", 9_241_705_984),
        ("granite-3.3-8b", 8_170_864_640),
        ("olmo-2-7b", 7_298_617_344),
        ("gemma-3-12b", 11_766_034_176),
        ("gemma-4-26b-a4b", 25_233_142_046),
        ("qwen3.5-35b-a3b", 34_660_610_688),
    ] {
        let plan = synth::plan(preset, "q4_0").unwrap();
        assert_eq!(
            plan.tensors
                .iter()
                .map(|t| t.dims.iter().product::<u64>())
                .sum::<u64>(),
            n,
            "{preset}"
        );
    }
}

#[test]
fn every_preset_and_quantisation_opens() {
    for preset in synth::presets() {
        for quant in synth::quants() {
            let f = Gguf::synth(preset, quant).unwrap();
            let md = f.metadata();
            let tokens = md
                .need("tokenizer.ggml.tokens", Metadata::strings)
                .unwrap()
                .len();
            let dims = &f.tensor("token_embd.weight").unwrap().dims;
            assert_eq!(dims[1], tokens as u64, "{preset} {quant}");
            let mut norm = vec![0; 4 * dims[0] as usize];
            f.read_tensor(f.tensor("output_norm.weight").unwrap(), &mut norm)
                .unwrap();
            let values = norm
                .chunks(4)
                .map(|b| f32::from_le_bytes(b.try_into().unwrap()));
            assert!(values.into_iter().all(|x| (0.7..1.3).contains(&x)));
        }
    }
}

#[test]
fn vocabularies_are_complete_and_without_duplicates() {
    const CONTROL: i64 = 3;
    for preset in synth::presets() {
        let md = synth::plan(preset, "q4_0").unwrap().metadata;
        let tokens = md.need("tokenizer.ggml.tokens", Metadata::strings).unwrap();
        let types = md
            .need("tokenizer.ggml.token_type", Metadata::ints)
            .unwrap();
        assert_eq!(tokens.len(), types.len(), "{preset}");
        assert_eq!(
            tokens.iter().collect::<HashSet<_>>().len(),
            tokens.len(),
            "{preset}"
        );
        assert!(
            tokens
                .iter()
                .all(|t| std::str::from_utf8(t).is_ok_and(|t| !t.is_empty())),
            "{preset}"
        );
        for key in ["bos", "eos", "padding"] {
            let id = md
                .need(&format!("tokenizer.ggml.{key}_token_id"), Metadata::u32)
                .unwrap();
            assert_eq!(types[id as usize], CONTROL, "{preset}: {key}");
        }
    }
}

#[test]
fn data_does_not_depend_on_how_it_is_read() {
    for quant in synth::quants() {
        let f = Gguf::synth("deepseek-v2-lite", quant).unwrap();
        let t = f.tensor("blk.1.attn_k_b.weight").unwrap();
        let mut whole = vec![0; t.bytes as usize];
        f.read_tensor(t, &mut whole).unwrap();
        assert!(whole.iter().any(|&b| b != 0));
        for (start, len) in [
            (0, 1),
            (1, 5),
            (17, 18),
            (1000, 4099),
            (t.bytes as usize - 3, 3),
            (7, 0),
        ] {
            let mut part = vec![0xAA; len];
            f.read_range(t, start as u64, &mut part).unwrap();
            assert!(part == whole[start..start + len], "{quant} {start} {len}");
        }
    }
}

/// Keeps the first bytes written and counts the rest.
struct Head {
    kept: Vec<u8>,
    room: usize,
    written: u64,
}

impl std::io::Write for Head {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = bytes.len().min(self.room - self.kept.len());
        self.kept.extend(&bytes[..n]);
        self.written += bytes.len() as u64;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_file_is_what_memory_generates() {
    let f = Gguf::synth("youtu-llm-2b", "q4_0").unwrap();
    let mut out = Head {
        kept: Vec::new(),
        room: 400 << 20,
        written: 0,
    };
    let last = std::cell::Cell::new((0, 0));
    synth::build("youtu-llm-2b", "q4_0", &mut out, &|done, total| {
        last.set((done, total))
    })
    .unwrap();
    assert_eq!(out.written, f.size().next_multiple_of(32));
    assert_eq!(last.get().0, last.get().1);
    for t in f
        .tensors()
        .iter()
        .filter(|t| t.offset + t.bytes <= out.room as u64)
    {
        let mut data = vec![0; t.bytes as usize];
        f.read_tensor(t, &mut data).unwrap();
        assert!(
            data == out.kept[t.offset as usize..][..data.len()],
            "{}",
            t.name
        );
    }
}

/// A model that fits no machine's memory is refused before compiling, with the names
/// of presets that fit.
#[test]
fn a_preset_that_does_not_fit_is_refused_with_those_that_do() {
    let file = Gguf::synth("kimi-k2", "bf16").unwrap();
    let opened = gristmill_backend::open(
        "cpu",
        &gristmill_backend::Options {
            quick: true,
            ..Default::default()
        },
    )
    .unwrap();
    let compiled = CompiledModel::new(
        &file,
        opened,
        Settings::default(),
        &Weights::default(),
        &|_| (),
    );
    let Err(error @ engine::Error::Weights { need, .. }) = compiled else {
        panic!("two terabytes fit")
    };
    assert_eq!(
        need,
        synth::plan("kimi-k2", "bf16").unwrap().bytes() / 1_000_000
    );
    assert!(
        error.hint().unwrap().contains("youtu-llm-2b:bf16"),
        "{:?}",
        error.hint()
    );
    let fitting = |bytes| synth::fitting(file.metadata(), bytes);
    assert_eq!(fitting(4_000_000_000), ["synth:youtu-llm-2b:bf16 (3.9 GB)"]);
    assert!(fitting(1_000_000).is_empty());
    assert!(
        synth::fitting(&Metadata::new(), u64::MAX).is_empty(),
        "not a preset"
    );
}

#[test]
fn names_are_checked_with_a_hint() {
    let error = synth::plan("gpt", "q4_0").unwrap_err();
    assert!(
        matches!(error, Error::UnknownPreset { .. })
            && error.hint().unwrap().contains("glm-4.7-flash")
    );
    let error = synth::plan("GLM-4.7-Flash", "q9").unwrap_err();
    assert!(
        matches!(error, Error::UnknownQuant { .. }) && error.hint().unwrap().contains("q4_k_m")
    );
    assert!(synth::plan("GLM-4.7-Flash", "Q4_K_M").is_ok());
    assert_eq!(synth::parse_name("synth:a:b"), Some(("a", "b")));
    assert_eq!(synth::parse_name("a.gguf"), None);
}
