//! Snapshots of the compiled functions of a model: a refactoring changes none, and a change of
//! kernels shows in review which kernels changed, their decisions, and their code. `cargo xtask
//! bless` updates the snapshots.
//!
//! A kernel is named by a hash of its text, so the lists of names reveal every change of a
//! kernel; the texts of one layer show the change itself. `cargo xtask kernels-diff` shows it for
//! models of real shape.

use gristmill_backend::{cpu, cuda};
use gristmill_compiler::alternatives::considered;
use gristmill_compiler::alternatives::{rules, saturate::Budget};
use gristmill_compiler::decision::Decider;
use gristmill_compiler::{Cheapest, Compiled, Dialect, compile};
use gristmill_llm::arch::CacheType;
use gristmill_llm::arch::{Functions, Logits, Model, Options, Pools, StepKind};
use gristmill_llm::engine::cache_rows;
use gristmill_llm::gguf::Gguf;
use gristmill_uop::function::Function;
use gristmill_uop::target::Target;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// The target machines, independent of the host.
fn machines() -> [(Target, &'static dyn Dialect); 4] {
    [
        (Target::named("h200"), &cuda::dialect::Cuda),
        (Target::cpu("avx512vnni", 16, 2), &cpu::dialect::C),
        (Target::cpu("avx2", 8, 2), &cpu::dialect::C),
        (Target::cpu("plain", 4, 2), &cpu::dialect::C),
    ]
}

/// The demo's functions: a decode step and a chunk, with f16 and int8 caches.
fn functions() -> Vec<Arc<Function>> {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/demo-glm-Q4_K_M.gguf");
    let file = Gguf::open(path).expect("a GGUF file");
    let model: Box<dyn Model> = gristmill_llm::arch::load(file.metadata(), &file).expect("a model");
    let (one, chunk) = (StepKind::Decode, StepKind::Prefill { max: 32 });
    let steps = [
        (one, CacheType::F16),
        (one, CacheType::Int8),
        (chunk, CacheType::F16),
    ];
    let mut shared = Functions::new();
    let mut out: Vec<Arc<Function>> = Vec::new();
    for (tokens, cache) in steps {
        let options = Options {
            tokens,
            rows: 192,
            pools: Pools::from_pages(192 / Options::PAGE),
            contiguous: true,
            depth: 192,
            cache,
            logits: Logits::Last,
            tile: Options::TILE,
            cached: None,
            draft: None,
        };
        for function in model.plan(&options, &mut shared).functions() {
            if !out.iter().any(|o| Arc::ptr_eq(o, function)) {
                out.push(function.clone());
            }
        }
    }
    out
}

fn compiled(function: &Function, target: &Target, dialect: &dyn Dialect) -> Compiled {
    compile(function, target, Some(dialect), &mut Cheapest)
}

/// Lists every kernel with its name, roots and modelled cost.
fn names(target: &Target, dialect: &dyn Dialect) -> String {
    let mut out = String::new();
    for function in functions() {
        let compiled = compiled(&function, target, dialect);
        let _ = writeln!(
            out,
            "{}: {:.2} us, arena {}",
            function.name,
            compiled.seconds * 1e6,
            compiled.arena
        );
        for (program, level) in compiled.programs.iter().zip(&compiled.levels) {
            let (us, kb) = (program.seconds * 1e6, program.estimate.weight_bytes / 1e3);
            let (title, roots) = (&program.title, program.notes.join("; "));
            let _ = writeln!(
                out,
                "  {level} {}: {title}: {roots}; {us:.2} us, {kb:.0} KB of weights",
                program.name
            );
        }
    }
    out
}

/// Returns the MoE layer of a decode step.
fn layer() -> Arc<Function> {
    functions()
        .into_iter()
        .find(|f| f.name.contains("moe.one"))
        .expect("a layer with experts")
}

fn source(target: &Target, dialect: &dyn Dialect) -> String {
    let compiled = compiled(&layer(), target, dialect);
    compiled
        .programs
        .iter()
        .map(|p| p.source.clone())
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn names_of_all_kernels() {
    for (target, dialect) in machines() {
        insta::assert_snapshot!(format!("names_{}", target.name), names(&target, dialect));
    }
}

#[test]
fn decisions_of_a_layer() {
    for (target, dialect) in machines() {
        let decisions = compiled(&layer(), &target, dialect).decisions;
        let lines: Vec<String> = decisions.iter().map(|d| d.explain()).collect();
        insta::assert_snapshot!(format!("decisions_{}", target.name), lines.join("\n"));
    }
}

#[test]
fn a_layer_for_a_gpu() {
    insta::assert_snapshot!(source(&Target::named("h200"), &cuda::dialect::Cuda));
}

#[test]
fn a_layer_for_avx512() {
    insta::assert_snapshot!(source(&Target::cpu("avx512vnni", 16, 2), &cpu::dialect::C));
}

/// Presets with latent attention.
const PRESETS: [&str; 3] = ["glm-4.7-flash", "deepseek-v2-lite", "youtu-llm-2b"];

/// Lists the forms of a preset's largest layer in these kinds of steps, over consecutive pages of
/// one sequence, or over pools with block tables.
fn forms(
    target: &Target,
    preset: &str,
    context: usize,
    classes: &[StepKind],
    paged: Option<Pools>,
) -> String {
    let file = Gguf::synth(preset, "q4_0").expect("a preset");
    let model = gristmill_llm::arch::load(file.metadata(), &file).expect("a model");
    let rows = cache_rows(context, 512);
    let (contiguous, pools) = (
        paged.is_none(),
        paged.unwrap_or(Pools::from_pages(rows / Options::PAGE)),
    );
    let (mut shared, mut out) = (Functions::new(), String::new());
    for &tokens in classes {
        let (cache, logits) = (CacheType::F16, Logits::Last);
        let logits = if matches!(tokens, StepKind::BatchedDecode { .. }) {
            Logits::All
        } else {
            logits
        };
        let options = Options {
            tokens,
            rows,
            pools,
            contiguous,
            depth: rows,
            cache,
            logits,
            tile: Options::TILE,
            cached: None,
            draft: None,
        };
        let plan = model.plan(&options, &mut shared);
        let layer = plan
            .functions()
            .into_iter()
            .max_by_key(|f| f.graph.len())
            .expect("functions");
        let mut decider = Decider {
            policy: &mut Cheapest,
            plans: &BTreeMap::new(),
            log: vec![],
        };
        let (_, report) = considered(layer, target, &mut decider, &rules::all(), Budget::USUAL);
        for site in report.sites {
            let chosen = &site.options[site.chosen].plan;
            let attention = chosen
                .split_inclusive(']')
                .skip_while(|part| !part.contains("attention"))
                .take(2);
            let attention: String = attention.collect();
            let _ = writeln!(
                out,
                "{preset} {context} {}: {}",
                layer.name,
                attention.trim_start_matches([',', ' '])
            );
        }
    }
    out
}

/// Few tokens attend in the latent space; prompts decompress values. Measured on an H200:
/// GLM-4.7-Flash, 512 tokens, a context of 1,024.
#[test]
fn forms_of_latent_attention() {
    for (target, _) in &machines()[..2] {
        let classes = [
            StepKind::Decode,
            StepKind::Prefill { max: 64 },
            StepKind::Prefill { max: 512 },
        ];
        let of_contexts = |preset| {
            [1024, 4096, 32_768]
                .map(|context| forms(target, preset, context, &classes, None))
                .concat()
        };
        let all = PRESETS.map(of_contexts).concat();
        insta::assert_snapshot!(format!("forms_{}", target.name), all);
    }
}

/// The same over a page pool: decode rows and short chunks attend in the latent space; for long
/// chunks the values of every head are decompressed.
#[test]
fn forms_of_latent_attention_over_pages() {
    for (target, _) in &machines()[..2] {
        let batches = [1, 8].map(|max| StepKind::BatchedDecode { max });
        let pieces = [64, 512].map(|max| StepKind::Prefill { max });
        let classes = [batches, pieces].concat();
        let of = |preset| {
            forms(
                target,
                preset,
                4096,
                &classes,
                Some(Pools::from_pages(4 * 4096 / Options::PAGE)),
            )
        };
        insta::assert_snapshot!(
            format!("paged_forms_{}", target.name),
            PRESETS.map(of).concat()
        );
    }
}
