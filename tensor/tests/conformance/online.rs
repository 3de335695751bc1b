//! Online-softmax attention: one loop over chunks with a carried maximum and carried sums.
//!
//! Covers every case that offers it: prefill with rows per head or shared by heads, windows, sinks,
//! f16 and other values.

use super::harness::{Case, Way, check};
use super::ways::{linear_of, store};
use super::{attention, simulated};
use gristmill_backend::Opened;
use gristmill_backend::cuda::dialect::Cuda;
use gristmill_backend::interp::InterpDevice;
use gristmill_compiler::lower::{Statement, lower_program};
use gristmill_compiler::{Decision, Listed, compile};
use gristmill_uop::RangeKind;
use gristmill_uop::target::Target;
use std::sync::Arc;

/// A GPU with subgroup reductions and this workgroup size; 128 threads are four warps that share
/// MMA.
fn target(threads: usize) -> Target {
    Target {
        threads,
        int8: false,
        ..Target::named("h200")
    }
}

/// Workgroup sizes to test.
const THREADS: [usize; 2] = [64, 128];

fn cases() -> Vec<Case> {
    let prompts = [
        attention::prompts(),
        attention::long_prompts(),
        attention::long(),
    ];
    let all = prompts.into_iter().chain([
        attention::grouped_halves(),
        attention::window_halves(),
        attention::capped_halves(),
    ]);
    all.flatten().collect()
}

/// The decision for a case's attention, if `online` is an option.
fn offered(case: &Case, target: &Target) -> Option<Decision> {
    let decisions = compile(&case.function, target, None, &mut Listed).decisions;
    decisions
        .into_iter()
        .find(|d| d.kind == "attention" && d.options.iter().any(|o| o.name == "online"))
}

/// The target with a plan that selects `online` for a case.
fn in_one_loop(case: &Case, target: &Target) -> Option<Target> {
    let decision = offered(case, target)?;
    let online = decision
        .options
        .iter()
        .find(|o| o.name == "online")
        .expect("it is offered");
    let mut target = target.clone();
    target.plans.insert(decision.key(), online.plan.clone());
    Some(target)
}

/// The target with per-warp MMA for a case; `None` unless warps would share products.
fn by_themselves(case: &Case, target: &Target) -> Option<Target> {
    let mut alone = target.clone();
    let decisions = compile(&case.function, target, None, &mut Listed).decisions;
    for decision in decisions.iter().filter(|d| d.kind == "nest") {
        let option = decision
            .options
            .iter()
            .find(|o| o.name == "warps by themselves");
        alone
            .plans
            .extend(option.map(|o| (decision.key(), o.plan.clone())));
    }
    (alone.plans.len() > target.plans.len()).then_some(alone)
}

/// Compares every case with an online variant with its truth, and returns their number.
fn compare(device: &Opened, name: &str, seeds: &[u64]) -> usize {
    let mut compared = 0;
    for case in cases() {
        let Some(target) = in_one_loop(&case, &device.target) else {
            continue;
        };
        let alone = by_themselves(&case, &target);
        let device = Opened {
            target,
            ..device.clone()
        };
        let way = |seed: Option<u64>| {
            let name = seed.map_or(format!("{name}, online"), |s| {
                format!("{name}, online, seed {s}")
            });
            Way {
                name,
                device: device.clone(),
                seed,
                same_as: None,
            }
        };
        let apart = alone.map(|target| Way {
            name: format!("{name}, online, warps by themselves"),
            device: Opened {
                target,
                ..device.clone()
            },
            seed: None,
            same_as: None,
        });
        let ways = std::iter::once(None)
            .chain(seeds.iter().copied().map(Some))
            .map(way)
            .chain(apart)
            .collect();
        check(vec![case], ways);
        compared += 1;
    }
    compared
}

/// Number of cases that offer the online variant.
const ONLINE: usize = 10;

#[test]
fn as_nests() {
    for threads in THREADS {
        let device = Opened {
            target: target(threads),
            ..Opened::new(Arc::new(InterpDevice::new()), None)
        };
        assert_eq!(
            compare(&device, &format!("interp, {threads} threads"), &[1, 2]),
            ONLINE
        );
    }
}

#[test]
fn as_linear_code() {
    for way in linear_of(vec![
        ("64 threads", target(64)),
        ("128 threads", target(128)),
    ]) {
        assert_eq!(compare(&way.device, &way.name, &[1]), ONLINE);
    }
}

#[test]
fn as_threads() {
    for threads in THREADS {
        match simulated::Simulated::new(target(threads), store()) {
            Ok(device) => {
                let name = format!("{threads} threads");
                assert_eq!(
                    compare(&Opened::new(Arc::new(device), Some(&Cuda)), &name, &[1]),
                    ONLINE
                );
            }
            Err(missing) => simulated::skip(&missing),
        }
    }
}

/// On a GPU, with warp-group MMA that no CPU can simulate.
#[cfg(feature = "cuda-tests")]
#[test]
fn cuda_attention_in_one_loop() {
    let device = super::cuda().swap_remove(0).device;
    for threads in [64, 128, 256] {
        let target = Target {
            threads,
            ..device.target.clone()
        };
        let name = format!("cuda, {threads} threads");
        assert_eq!(
            compare(
                &Opened {
                    target,
                    ..device.clone()
                },
                &name,
                &[1]
            ),
            ONLINE
        );
    }
}

/// No per-chunk intermediate is materialised.
#[test]
fn keeps_nothing() {
    for case in attention::prompts() {
        let before = compile(&case.function, &target(64), None, &mut Listed);
        let online = in_one_loop(&case, &target(64)).expect("an attention of a prompt");
        let after = compile(&case.function, &online, None, &mut Listed);
        assert!(after.partial == 0 && before.partial > 0, "{}", case.name);
    }
}

/// With shared MMA, the loop has stages for queries, keys, values, maxima and sums only.
///
/// Scores and weights stay in registers, and there are three barriers in the loop.
#[test]
fn scores_stay_in_registers() {
    let case = attention::long_prompts().swap_remove(0);
    let target = in_one_loop(&case, &target(128)).expect("an attention of a prompt");
    let programs = compile(&case.function, &target, None, &mut Listed).programs;
    let bodies = programs.iter().flat_map(|program| {
        let (g, code) = lower_program(program, &target);
        let shared = |s: &Statement| matches!(s, Statement::Loop { range, .. } if g.range_kind(*range) == Some(RangeKind::Fused));
        code.bodies.into_iter().filter(move |body| body.statements.iter().any(&shared)).collect::<Vec<_>>()
    });
    let found: Vec<(usize, usize)> = bodies
        .map(|body| {
            let barriers = body
                .statements
                .iter()
                .filter(|s| **s == Statement::Barrier)
                .count();
            (body.locals.len(), barriers)
        })
        .collect();
    // One barrier stands before the loop and one after it.
    assert_eq!(found, [(5, 5)]);
}
