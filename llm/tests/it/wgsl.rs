//! Every kernel of the presets in WGSL, for adapters that this machine need not have: naga
//! validates it and translates it for Metal and Direct3D 12. A kernel fails if naga cannot
//! translate it, or if it needs more buffers or shared memory than an adapter has. No GPU and
//! no driver is needed.
//!
//! `GRISTMILL_CASE=text` selects models by a part of their names. Each preset is compiled for one
//! adapter: its decode steps, and for every fourth preset also prefill. `GRISTMILL_CARDS=all`
//! compiles all steps for every adapter.

use crate::side_by_side::each;
use crate::steps_support::functions_of_steps;
use gristmill_backend::null::NullDevice;
use gristmill_backend::wgpu::dialect::{Wgsl, measuring, module, subgroup_order, words_of_tables};
use gristmill_backend::{KernelText, Opened};
use gristmill_llm::arch::{self, Functions};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::sampling::{self, SamplingMethod};
use gristmill_llm::synth;
use gristmill_tensor::jit::{Jit, Ready};
use gristmill_uop::adapter::{Adapter, AdapterKind};
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use naga::back::{hlsl, msl};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Quantisation of presets that differ from the default.
const QUANTS: [(&str, &str); 5] = [
    ("llama-3.1-8b", "q4_k_m"),
    ("qwen3-8b", "q8_0"),
    ("glm-4.7-flash", "q4_k_m"),
    ("gpt-oss-20b", "mxfp4_moe"),
    ("phi-4-mini", "q4_k_m"),
];
const MAX_ARE: &str = "q4_0";
/// Preset that is tested with decode steps only. It fits no adapter, and its prefill needs 64-bit
/// integers: partial attention results of 128 heads exceed 2 GiB.
const OF_ONE_TOKEN: &str = "deepseek-v3";

/// An Apple GPU, one of AMD, one of Intel with subgroups of at least eight threads, and one without
/// subgroup operations and cooperative matrices.
fn adapters() -> [Adapter; 4] {
    let of = |name: &str,
              kind,
              subgroup: Option<[i64; 2]>,
              cooperative,
              [threads, shared]: [usize; 2]| Adapter {
        name: name.into(),
        kind,
        subgroup: subgroup.map(|[fewest, _]| fewest),
        widest: subgroup.map_or(1, |[_, most]| most),
        cooperative,
        vector_parts: cooperative == Some(16),
        threads,
        shared,
        largest_binding: i32::MAX as usize,
        bindings: Adapter::MAX_BINDINGS,
        alignment: 256,
        measured: Default::default(),
    };
    [
        of(
            "Apple M3 Max",
            AdapterKind::Integrated,
            Some([32, 32]),
            Some(8),
            [1024, 32 << 10],
        ),
        of(
            "AMD Radeon RX 7900 XTX",
            AdapterKind::Discrete,
            Some([32, 64]),
            Some(16),
            [1024, 64 << 10],
        ),
        of(
            "Intel(R) Arc(tm) Graphics",
            AdapterKind::Integrated,
            Some([8, 32]),
            Some(16),
            [1024, 32 << 10],
        ),
        of(
            "an old one",
            AdapterKind::Integrated,
            None,
            None,
            [256, 16 << 10],
        ),
    ]
}

/// A program, and whether it may use 64-bit integers. Sampling uses some, and so do MoE layers, as
/// bounds of data-dependent indices are unknown. No other step of a model does.
type Kernel = (Arc<Program>, bool);

/// Returns the programs of a model's steps and of greedy sampling for a target; of decode
/// steps, or of all.
fn programs(target: Target, preset: &str, quant: &str, all_steps: bool) -> Vec<Kernel> {
    let file = Gguf::synth(preset, quant).expect("a preset");
    let model = arch::load(file.metadata(), &file).expect("a model");
    let mut jit = Jit::new(Opened::new(
        Arc::new(NullDevice::new("null", target)),
        Some(&Wgsl),
    ));
    let mut functions = Functions::new();
    let mut all = functions_of_steps(&*model, jit.target(), &mut functions, all_steps);
    all.push(functions.share(sampling::sampling_function(
        SamplingMethod::Greedy,
        model.vocabulary(),
    )));
    let ready = jit.prepare(&all, &|_, _| ()).expect("scheduled");
    let of = |ready: &Arc<Ready>| -> Vec<Kernel> {
        let programs = &ready.compiled.programs;
        let chooses = ready.function.name.starts_with("sample.")
            || programs.iter().any(|p| p.title.contains("_exps"));
        programs.iter().map(|p| (p.clone(), chooses)).collect()
    };
    ready.iter().flat_map(of).collect()
}

/// A kernel text, and whether it may use subgroups and 64-bit integers.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    source: String,
    shuffles: bool,
    long: bool,
}

/// Returns the fault of a kernel's text, if any.
fn fault(
    &Case {
        ref source,
        shuffles,
        long,
    }: &Case,
) -> Option<String> {
    let source = module(source);
    let multiplies = source.contains("coop_mat");
    let module = match naga::front::wgsl::parse_str(&source) {
        Ok(module) => module,
        Err(error) => return Some(error.emit_to_string(&source)),
    };
    // Conversion of f16 is available wherever compute shaders are.
    let mut has = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    has.set(Capabilities::SUBGROUP, shuffles);
    has.set(Capabilities::SHADER_INT64, long);
    has.set(
        Capabilities::SHADER_FLOAT16 | Capabilities::COOPERATIVE_MATRIX,
        multiplies,
    );
    let info = match Validator::new(ValidationFlags::all(), has).validate(&module) {
        Ok(info) => info,
        Err(error) => return Some(error.emit_to_string(&source)),
    };
    let options = msl::Options {
        lang_version: (2, 4),
        fake_missing_bindings: true,
        ..msl::Options::default()
    };
    if let Err(error) =
        msl::write_string(&module, &info, &options, &msl::PipelineOptions::default())
    {
        return Some(format!("Metal: {error}"));
    }
    // Direct3D adapters report no cooperative matrices.
    if multiplies {
        return None;
    }
    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_4,
        fake_missing_bindings: true,
        ..hlsl::Options::default()
    };
    let (mut text, pipeline) = (String::new(), hlsl::PipelineOptions::default());
    let written = hlsl::Writer::new(&mut text, &options, &pipeline).write(&module, &info, None);
    written.err().map(|error| format!("Direct3D: {error}"))
}

#[test]
fn every_kernel_is_valid_and_is_written_for_metal_and_direct3d() {
    let wanted = std::env::var("GRISTMILL_CASE").unwrap_or_default();
    let all = std::env::var("GRISTMILL_CARDS").is_ok_and(|cards| cards == "all");
    let mut faults: BTreeMap<String, String> = BTreeMap::new();
    // Layers of a model share kernels; each is checked once.
    let mut cases: BTreeMap<Case, String> = BTreeMap::new();
    let (adapters, mut count) = (adapters(), 0);
    for (number, preset) in synth::presets()
        .enumerate()
        .filter(|(_, preset)| preset.contains(&wanted))
    {
        let quant = QUANTS
            .iter()
            .find(|of| of.0 == preset)
            .map_or(MAX_ARE, |of| of.1);
        let (round, of_round) = (number / adapters.len(), number % adapters.len());
        for (i, adapter) in adapters
            .iter()
            .enumerate()
            .filter(|(i, _)| all || *i == of_round)
        {
            let target = Target::new(adapter.machine());
            // Prefill is compiled for another adapter in each round.
            let prompts = preset != OF_ONE_TOKEN && (all || i == round % adapters.len());
            for (program, long) in programs(target, preset, quant, prompts) {
                let place = format!(
                    "{i}: {preset} {quant} for {}, {}",
                    adapter.name, program.title
                );
                let Program {
                    params,
                    threads,
                    scratch,
                    ..
                } = &*program;
                let source = KernelText::from_program(&program).source;
                let buffers = params.len() + usize::from(words_of_tables(&source).is_some());
                count += 1;
                if *scratch <= adapter.shared
                    && buffers <= adapter.bindings
                    && *threads <= adapter.threads
                {
                    let case = Case {
                        source,
                        shuffles: adapter.subgroup.is_some(),
                        long,
                    };
                    cases.entry(case).or_insert(place);
                } else {
                    let fault = format!(
                        "{buffers} buffers, {threads} threads, {scratch} bytes shared of {}",
                        adapter.shared
                    );
                    faults.entry(fault).or_insert(place);
                }
            }
        }
    }
    let cases: Vec<(Case, String)> = cases.into_iter().collect();
    for (fault, (_, place)) in each(&cases, |(case, _)| fault(case))
        .into_iter()
        .zip(&cases)
    {
        if let Some(fault) = fault {
            faults.entry(fault).or_insert_with(|| place.clone());
        }
    }
    println!("{count} kernels, {} texts", cases.len());
    assert!(
        count > 0 && faults.is_empty(),
        "{} faults, the first of them: {:#?}",
        faults.len(),
        faults
            .iter()
            .map(|(f, place)| (f.chars().take(600).collect::<String>(), place))
            .take(12)
            .collect::<Vec<_>>()
    );
}

/// The kernels with which a device determines its subgroup order and its speed.
#[test]
fn measuring_kernels_translate_to_metal_and_direct3d() {
    let [read, computed] =
        [measuring::READ, measuring::COMPUTE].map(|round| measuring::text("measure", 256, round));
    for source in [read, computed, subgroup_order::text(256, 32)] {
        let case = Case {
            source,
            shuffles: true,
            long: false,
        };
        assert_eq!(fault(&case), None, "{}", case.source);
    }
}
