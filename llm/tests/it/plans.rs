//! Kernel plans as values: their texts parse, alternatives give other kernels, a tuner's plan is
//! applied, and perturbed schedules take every alternative.

use crate::steps_support::step;
use gristmill_backend::{cpu, cuda};
use gristmill_compiler::decision::{Count, Pair, counts};
use gristmill_compiler::decompose::attention::plan::AttentionPlan;
use gristmill_compiler::decompose::matmul_variant::MatmulVariant;
use gristmill_compiler::ir::layout::Layout;
use gristmill_compiler::plan::{NestPlan, StagePlan, TilePlan, Workgroup};
use gristmill_compiler::{
    Cheapest, Compiled, Decision, Dialect, Listed, Perturb, Policy, check_plan, compile,
};
use gristmill_llm::arch::StepKind;
use gristmill_uop::fragment::AMX_BF16;
use gristmill_uop::function::Function;
use gristmill_uop::launch::LaunchPlan;
use gristmill_uop::machine::{Machine, MachineKind};
use gristmill_uop::target::Target;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Returns the functions of a step.
fn functions(preset: &str, tokens: StepKind) -> Vec<Arc<Function>> {
    let plan = step(preset, "q4_0", tokens);
    plan.functions().into_iter().cloned().collect()
}

fn machines() -> [(Target, &'static dyn Dialect); 4] {
    let amx = Target::new(Machine {
        fragments: &[AMX_BF16],
        ..Machine::cpu("amx", 16, 2)
    });
    [
        (amx, &cpu::dialect::C),
        (Target::named("h200"), &cuda::dialect::Cuda),
        (Target::cpu("avx512vnni", 16, 2), &cpu::dialect::C),
        (Target::cpu("plain", 4, 2), &cpu::dialect::C),
    ]
}

fn compiled(
    function: &Function,
    (target, dialect): &(Target, &'static dyn Dialect),
    policy: &mut dyn Policy,
) -> Compiled {
    compile(function, target, Some(*dialect), policy)
}

/// Returns whether the text of an option parses to itself.
fn parses(plan: &str) -> bool {
    let workgroup = plan
        .parse::<Workgroup>()
        .is_ok_and(|w| w.to_string() == plan);
    let attention = plan
        .parse::<AttentionPlan>()
        .is_ok_and(|a| a.to_string() == plan);
    let stages = plan
        .parse::<StagePlan>()
        .is_ok_and(|s| s.to_string() == plan);
    let launch = plan
        .parse::<LaunchPlan>()
        .is_ok_and(|l| l.to_string() == plan);
    let layout = plan.parse::<Layout>().is_ok_and(|l| l.to_string() == plan);
    let product = plan
        .parse::<MatmulVariant>()
        .is_ok_and(|form| form.to_string() == plan);
    let pair = Pair::ALL.iter().any(|pair| pair.has(plan));
    (workgroup
        || attention
        || pair
        || launch
        || stages
        || layout
        || product
        || plan
            .parse::<NestPlan>()
            .is_ok_and(|n| n.to_string() == plan))
        && check_plan(plan).is_ok()
}

#[test]
fn every_proposal_of_every_preset_has_a_text_that_parses() {
    let mut seen = 0;
    for preset in ["glm-4.7-flash", "deepseek-v2-lite", "youtu-llm-2b"] {
        for tokens in [StepKind::Decode, StepKind::Prefill { max: 512 }] {
            for function in functions(preset, tokens) {
                for machine in &machines() {
                    let made = compiled(&function, machine, &mut Listed);
                    // Forms of a function are described by its nodes, so a tuner never stores them.
                    let plans = made.decisions.iter().filter(|d| d.kind != "alternatives");
                    for option in plans
                        .flat_map(|d| &d.options)
                        .filter(|o| !o.plan.is_empty())
                    {
                        assert!(
                            parses(&option.plan),
                            "{preset}, {}: {}",
                            function.name,
                            option.plan
                        );
                        seen += 1;
                    }
                    for plan in made.plans.iter().flat_map(|plan| &plan.bodies) {
                        assert_eq!(
                            plan.to_string().parse::<TilePlan>().as_ref(),
                            Ok(plan),
                            "{preset}"
                        );
                    }
                }
            }
        }
    }
    assert!(seen > 3000, "{seen} texts");
}

/// Listing alternatives changes no kernel.
#[test]
fn listing_alternatives_keeps_the_kernels() {
    for machine in &machines() {
        for function in functions("deepseek-v2-lite", StepKind::Prefill { max: 64 }) {
            let sources = |policy: &mut dyn Policy| -> Vec<String> {
                compiled(&function, machine, policy)
                    .programs
                    .iter()
                    .map(|p| p.source.clone())
                    .collect()
            };
            assert_eq!(
                sources(&mut Cheapest),
                sources(&mut Listed),
                "{} on {}",
                function.name,
                machine.0.name
            );
        }
    }
}

/// The cost model chooses smaller workgroups for V2-Lite's MoE layer and keeps GLM's proposal; the
/// other option gives other workgroups in either case.
#[test]
fn few_workgroups_are_smaller_where_the_fused_kernel_is_cheaper() {
    let taken = |preset: &str| {
        let machine: (Target, &'static dyn Dialect) = (Target::named("h200"), &cuda::dialect::Cuda);
        let functions = functions(preset, StepKind::Decode);
        let function = functions
            .iter()
            .find(|f| f.name.contains("moe"))
            .expect("a layer with experts");
        let made = compiled(function, &machine, &mut Listed);
        let decision = made
            .decisions
            .iter()
            .find(|d| d.kind == "shapes")
            .expect("few workgroups");
        let [proposed, smaller] = [0, 1].map(|i| decision.options[i].seconds);
        assert_eq!(
            decision.chosen == 1,
            smaller < proposed * (1.0 - decision.margin),
            "{}",
            decision.explain()
        );
        let mut other = machine.clone();
        other.0.plans.insert(
            decision.key(),
            decision.options[1 - decision.chosen].plan.clone(),
        );
        let shapes = |c: &Compiled| {
            c.plans
                .iter()
                .flat_map(|plan| &plan.bodies)
                .map(|p| p.workgroup.to_string())
                .collect::<Vec<_>>()
        };
        assert_ne!(
            shapes(&made),
            shapes(&compiled(function, &other, &mut Cheapest)),
            "{preset}"
        );
        decision.chosen == 1
    };
    assert!(taken("deepseek-v2-lite"));
    assert!(!taken("glm-4.7-flash"));
}

/// Returns the alternatives of a decision as a tuner would store them.
fn left_by_a_tuner(decision: &Decision) -> impl Iterator<Item = (String, &str)> {
    decision
        .options
        .iter()
        .skip(1)
        .map(|o| (o.plan.clone(), o.name))
}

#[test]
fn a_plan_that_a_tuner_left_is_taken_and_is_another_kernel() {
    for machine in machines() {
        let mut taken = 0;
        for function in functions("youtu-llm-2b", StepKind::Prefill { max: 64 }) {
            let first = compiled(&function, &machine, &mut Listed);
            let texts = |c: &Compiled| {
                c.programs
                    .iter()
                    .map(|p| p.source.clone())
                    .collect::<Vec<_>>()
            };
            for kind in [
                "workgroup",
                "stages",
                "nest",
                "launch",
                "attention",
                "product",
            ] {
                let Some(decision) = first
                    .decisions
                    .iter()
                    .find(|d| d.kind == kind && d.options.len() > 2)
                else {
                    continue;
                };
                for (plan, name) in left_by_a_tuner(decision) {
                    let mut tuned = machine.clone();
                    tuned.0.plans.insert(decision.key(), plan.clone());
                    let second = compiled(&function, &tuned, &mut Cheapest);
                    let answer = second
                        .decisions
                        .iter()
                        .find(|d| d.key() == decision.key())
                        .expect("the same kernel");
                    assert_eq!(answer.options[answer.chosen].plan, plan, "{name}");
                    assert_ne!(
                        texts(&first),
                        texts(&second),
                        "{name} of {}",
                        decision.key()
                    );
                    taken += 1;
                }
            }
        }
        assert!(taken > 5, "{taken} on {}", machine.0.name);
        // A stored plan that matches no candidate is ignored.
        let mut strange = machine.clone();
        let function = &functions("youtu-llm-2b", StepKind::Decode)[0];
        let first = compiled(function, &machine, &mut Cheapest);
        for decision in &first.decisions {
            strange
                .0
                .plans
                .insert(decision.key(), "workgroup: a7 global".into());
        }
        let second = compiled(function, &strange, &mut Cheapest);
        assert_eq!(first.programs[0].source, second.programs[0].source);
    }
}

/// Fusion and merging of launches can be chosen by name. Each choice has a unique name, which
/// contains its function except for layouts.
#[test]
fn other_fusion_decisions_give_other_kernels() {
    let function = functions("deepseek-v2-lite", StepKind::Decode)
        .into_iter()
        .find(|f| f.name.contains("moe"));
    let function = function.expect("a layer with experts");
    for machine in machines() {
        let mut taken: BTreeSet<&str> = BTreeSet::new();
        let first = compiled(&function, &machine, &mut Listed);
        for decision in first
            .decisions
            .iter()
            .filter(|d| d.kind != "kept" && d.kind != "alternatives")
        {
            assert!(
                Decision::is_of(&decision.key(), &function.full_name()),
                "{}",
                decision.key()
            );
            let layout = decision.key().starts_with("layout ");
            assert_eq!(
                Decision::is_of(&decision.key(), "another"),
                layout,
                "{}",
                decision.key()
            );
        }
        for pair in &Pair::ALL {
            let all: Vec<&Decision> = first
                .decisions
                .iter()
                .filter(|d| d.kind == pair.kind)
                .collect();
            let keys: BTreeSet<String> = all.iter().map(|d| d.key()).collect();
            assert_eq!(keys.len(), all.len(), "{keys:?}");
            let Some(decision) = all.first() else {
                continue;
            };
            let other = &decision.options[1 - decision.chosen];
            let mut tuned = machine.clone();
            tuned.0.plans.insert(decision.key(), other.plan.clone());
            let second = compiled(&function, &tuned, &mut Cheapest);
            let answer = second
                .decisions
                .iter()
                .find(|d| d.key() == decision.key())
                .expect("the same choice");
            assert_eq!(answer.options[answer.chosen].plan, other.plan);
            let texts = |c: &Compiled| {
                c.programs
                    .iter()
                    .map(|p| p.source.clone())
                    .collect::<Vec<_>>()
            };
            assert_ne!(texts(&first), texts(&second), "{}", decision.key());
            taken.insert(pair.kind);
        }
        let kinds = if machine.0.machine.kind == MachineKind::Gpu {
            4
        } else {
            2
        };
        assert!(taken.len() >= kinds, "{taken:?} on {}", machine.0.name);
    }
}

/// Functions that bind one weight agree on its layout under any policy.
#[test]
fn perturbed_layouts_are_the_same_in_every_function() {
    for machine in &machines() {
        let mut taken = BTreeSet::new();
        for seed in 1..4 {
            let mut lies: BTreeMap<String, Layout> = BTreeMap::new();
            let mut policy = Perturb::new(0x9e37_79b9_7f4a_7c15 ^ seed);
            for tokens in [StepKind::Decode, StepKind::Prefill { max: 64 }] {
                for function in functions("deepseek-v2-lite", tokens) {
                    for &(slot, layout) in &compiled(&function, machine, &mut policy).layouts {
                        let weight = format!(
                            "{:?}",
                            (
                                function.slots[slot as usize].storage,
                                &function.slots[slot as usize].dims
                            )
                        );
                        assert_eq!(
                            *lies.entry(weight).or_insert(layout),
                            layout,
                            "{} of {}",
                            slot,
                            function.name
                        );
                    }
                }
            }
            taken.extend(lies.values().map(Layout::to_string));
        }
        assert!(taken.len() > 1, "{taken:?} on {}", machine.0.name);
    }
}

/// Returns alternatives that were offered more than eight times and never taken.
fn never_taken(all: &[Decision]) -> Vec<String> {
    let never = counts(all)
        .into_iter()
        .filter(|(_, Count { offered, taken })| *offered > 8 && *taken == 0);
    never.map(|of| format!("{of:?}")).collect()
}

/// Runs at least nine schedules of each function, and up to 39 until rarely
/// offered alternatives are taken.
#[test]
fn perturbed_schedules_take_every_alternative() {
    let mut all: Vec<Decision> = Vec::new();
    let steps = [StepKind::Decode, StepKind::Prefill { max: 64 }]
        .map(|tokens| functions("deepseek-v2-lite", tokens));
    for seed in 1..40 {
        for machine in &machines() {
            for (i, functions) in steps.iter().enumerate() {
                for function in functions {
                    let mut policy = Perturb::new(0x9e37_79b9_7f4a_7c15 ^ (seed + 100 * i as u64));
                    all.extend(compiled(function, machine, &mut policy).decisions);
                }
            }
        }
        if seed >= 9 && never_taken(&all).is_empty() {
            break;
        }
    }
    let kinds = counts(&all).len();
    assert!(kinds > 25, "{kinds} alternatives");
    let never = never_taken(&all);
    assert!(never.is_empty(), "{never:?}");
}
