//! The kernel budget: the number of launches of a decode step of real shape on a GPU, computed
//! without one. A bound on launches alone would be met by launches of a single workgroup, so the
//! modelled critical path is bounded too.

use crate::steps_support::step;
use gristmill_backend::{Options as Device, open};
use gristmill_compiler::{Cheapest, Compiled, compile};
use gristmill_llm::arch::{StepKind, load};
use gristmill_llm::engine::{Settings, StepLimits};
use gristmill_llm::gguf::Gguf;
use gristmill_uop::target::Target;

fn decode_step(preset: &str, quant: &str, device: &str) -> Vec<(String, usize, Compiled)> {
    compiled_step(preset, quant, device, StepKind::Decode)
}

/// Returns the functions of a step with their numbers of calls, compiled.
fn compiled_step(
    preset: &str,
    quant: &str,
    device: &str,
    tokens: StepKind,
) -> Vec<(String, usize, Compiled)> {
    let plan = step(preset, quant, tokens);
    let opened = open(device, &Device::default()).unwrap();
    plan.functions()
        .into_iter()
        .map(|f| {
            let calls = plan
                .calls
                .iter()
                .filter(|c| std::sync::Arc::ptr_eq(&c.function, f))
                .count();
            (
                f.name.clone(),
                calls,
                compile(f, opened.device.target(), opened.dialect, &mut Cheapest),
            )
        })
        .collect()
}

/// Returns the seconds of the step by the cost model. Launches form a chain, so their costs add up.
fn modelled(step: &[(String, usize, Compiled)]) -> f64 {
    step.iter()
        .map(|(_, calls, c)| *calls as f64 * c.seconds)
        .sum()
}

#[test]
fn glm_moe_layer_is_at_most_eleven_launches() {
    let step = decode_step("glm-4.7-flash", "q4_0", "null:gpu");
    let moe: Vec<_> = step.iter().filter(|s| s.0.contains("moe")).collect();
    assert_eq!(moe.len(), 1, "46 equal layers are one function");
    assert_eq!(moe[0].1, 46);
    let launches = moe[0].2.programs.len();
    // Ten launches, with the quantised activations of attention's output computed in every
    // workgroup that reads them, were 1 to 2 % slower on an H200 (docs/experiments/118).
    assert!(
        launches <= 11,
        "{launches} launches in a MoE layer:\n{}",
        explain(&moe[0].2)
    );
    // 2.1 GB at 4.6 TB/s take 0.46 ms. A launch costs 1.9 µs: 520 of them take 1 ms.
    let seconds = modelled(&step);
    assert!(seconds < 3.0e-3, "modelled {:.3} ms a token", seconds * 1e3);
}

#[test]
fn other_models_keep_the_budget() {
    for (preset, quant) in [
        ("deepseek-v2-lite", "q4_0"),
        ("deepseek-v2-lite", "q4_k_m"),
        ("glm-4.7-flash", "q4_k_m"),
        ("youtu-llm-2b", "q4_0"),
    ] {
        for (name, _, c) in decode_step(preset, quant, "null:gpu") {
            assert!(
                c.programs.len() <= 12,
                "{preset} {quant} {name}: {} launches\n{}",
                c.programs.len(),
                explain(&c)
            );
        }
    }
}

/// Checks the launches of a layer of each family on a GPU.
#[test]
fn layers_of_every_family_keep_their_launches() {
    for (preset, quant, most) in [
        ("llama-3.1-8b", "q4_0", 11),
        ("llama-3.1-8b", "q4_k_m", 10),
        ("qwen2.5-7b", "q4_0", 11),
        ("qwen3-8b", "q4_0", 11),
        ("phi-4-mini", "q4_0", 9),
        ("qwen3-30b-a3b", "q4_0", 12),
        ("glm-4.5-air", "q4_0", 14),
        ("minimax-m2", "q4_0", 14),
        ("deepseek-v3", "q4_k_m", 16),
        ("kimi-k2", "q4_0", 15),
        ("gpt-oss-20b", "mxfp4_moe", 12),
        ("gemma-2-9b", "q4_0", 12),
        ("granite-3.3-8b", "q4_0", 11),
        ("olmo-2-7b", "q4_0", 12),
        ("gemma-3-12b", "q4_0", 12),
        ("gemma-4-26b-a4b", "q4_0", 12),
        ("gemma-4-26b-a4b", "q4_k_m", 12),
        ("qwen3.5-35b-a3b", "q4_k_m", 14),
    ] {
        for (name, _, c) in decode_step(preset, quant, "null:h200") {
            println!(
                "{preset} {quant}, {name}: {} launches, {:.1} us",
                c.programs.len(),
                c.seconds * 1e6
            );
            // Weights of chosen experts are charged as memory reads like any others,
            // wherever their index is.
            for p in &c.programs {
                let read = p.estimate.weight_bytes / Target::named("h200").machine.bandwidth;
                assert!(
                    p.seconds > read,
                    "{preset} {quant}, {name}: {} s of {read}: {:?}",
                    p.seconds,
                    p.notes
                );
            }
            let layer = !name.contains(".embed.") && !name.contains(".head.");
            assert!(
                !layer || c.programs.len() <= most,
                "{preset} {quant}, {name}: {} launches\n{}",
                c.programs.len(),
                explain(&c)
            );
        }
    }
}

/// Where several warps multiply staged rows, prefill attention is one loop without partial results
/// for chunks of the cache, so a long context does not shorten steps.
#[test]
fn prompts_on_a_large_gpu_leave_no_partial_results() {
    for preset in [
        "glm-4.7-flash",
        "deepseek-v2-lite",
        "youtu-llm-2b",
        "llama-3.1-8b",
        "qwen3-30b-a3b",
    ] {
        let mut found = 0;
        for (name, _, c) in
            compiled_step(preset, "q4_0", "null:h200", StepKind::Prefill { max: 512 })
        {
            for d in c.decisions.iter().filter(|d| d.kind == "attention") {
                let plan = &d.options[d.chosen].plan;
                assert!(plan.ends_with("online"), "{preset}, {name}: {plan}");
                found += 1;
            }
        }
        assert!(found > 0, "{preset} attends");
    }
}

/// Kernels that read many weights have workgroups for nearly every multiprocessor, and
/// at most one wave.
#[test]
fn experts_run_in_one_round() {
    let workers = Target::named("h200").machine.units as i64;
    for preset in ["glm-4.7-flash", "deepseek-v2-lite"] {
        let step = decode_step(preset, "q4_0", "null:gpu");
        let moe = step
            .iter()
            .find(|s| s.0.contains("moe"))
            .expect("there are MoE layers");
        let large: Vec<_> = moe
            .2
            .programs
            .iter()
            .filter(|p| p.estimate.weight_bytes > 6e6)
            .collect();
        assert_eq!(
            large.len(),
            2,
            "gate and up, and down:\n{}",
            explain(&moe.2)
        );
        for p in large {
            let groups = p.graph.max_of(p.groups);
            assert!(
                (3 * workers / 4..=3 * workers).contains(&groups),
                "{preset}: {groups} of {:?}",
                p.notes
            );
        }
    }
}

#[test]
fn every_decision_is_explained_with_prices() {
    let step = decode_step("glm-4.7-flash", "q4_0", "null:gpu");
    let decisions: Vec<String> = step
        .iter()
        .flat_map(|s| s.2.decisions.iter().map(|d| d.explain()))
        .collect();
    assert!(
        decisions
            .iter()
            .any(|d| d.starts_with("place ") && d.contains("*fuse") && d.contains(" us"))
    );
    assert!(
        decisions
            .iter()
            .any(|d| d.starts_with("merge ") && d.contains("*together"))
    );
}

fn explain(c: &Compiled) -> String {
    c.programs
        .iter()
        .zip(&c.levels)
        .map(|(p, l)| format!("level {l} {:?}\n", p.notes))
        .collect()
}

/// The number of recurrent-state kernels grows with the chunks of tokens, which is why steps of
/// long prompts keep the default size.
#[test]
fn steps_with_states_are_short() {
    let most = |preset: &str| {
        let file = Gguf::synth(preset, "q4_0").expect("a preset");
        let model = load(file.metadata(), &file).expect("a model");
        StepLimits::new(
            &Settings::default(),
            16_384,
            model.as_ref(),
            &Target::named("h200"),
        )
    };
    let (with, without) = (most("qwen3.5-35b-a3b"), most("qwen3-30b-a3b"));
    assert_eq!(with.long, with.chunk);
    assert!(without.long > without.chunk, "{without:?}");
}
