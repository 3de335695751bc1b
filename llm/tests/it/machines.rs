//! Plans follow machine descriptions: decisions differ between machines because
//! a described fact differs.

use crate::steps_support::step;
use gristmill_backend::{cpu, cuda};
use gristmill_compiler::{Cheapest, Compiled, Dialect, compile};
use gristmill_llm::arch::StepKind;
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_uop::fragment::AMX_BF16;
use gristmill_uop::function::Function;
use gristmill_uop::machine::{Machine, MachineKind, NAMED};
use gristmill_uop::target::{FLAGS, Target};
use gristmill_uop::{Op, RangeKind, Scalar};
use std::sync::Arc;

/// Returns the largest function of a step: an MoE layer, or the only kind of layer.
fn layer(preset: &str, tokens: StepKind) -> Arc<Function> {
    let plan = step(preset, "q4_0", tokens);
    let largest = plan
        .functions()
        .into_iter()
        .max_by_key(|function| function.graph.len())
        .expect("functions");
    largest.clone()
}

/// Adds 512 rows of integers to 50,000 by index, in any order.
fn rows_added() -> Function {
    let c = Capture::new("rows added");
    let (index, rows) = (
        c.input("index", dims![512], Scalar::I32),
        c.input("rows", dims![512, 64], Scalar::I32),
    );
    let none = c.constant(0.0, Scalar::I32).expand(dims![50_000, 64]);
    c.output("sums", none.scatter_add(rows, index.clamp_index(49_999)));
    c.finish()
}

fn plan(function: &Function, machine: Machine) -> Compiled {
    compile(
        function,
        &Target::new(machine),
        Some(&cuda::dialect::Cuda),
        &mut Cheapest,
    )
}

fn h200() -> Machine {
    Machine::named("h200").expect("a row")
}

/// Returns whether the kernels contain an operation.
fn has(compiled: &Compiled, source: &str) -> bool {
    compiled.programs.iter().any(|p| p.source.contains(source))
}

/// Returns the maximum workgroups of each launch.
fn workgroups(compiled: &Compiled) -> Vec<i64> {
    compiled
        .programs
        .iter()
        .map(|p| p.graph.max_of(p.groups))
        .collect()
}

#[test]
fn every_named_machine_has_plans_that_fit_it() {
    for preset in ["glm-4.7-flash", "deepseek-v2-lite", "youtu-llm-2b"] {
        for tokens in [StepKind::Decode, StepKind::Prefill { max: 512 }] {
            let function = layer(preset, tokens);
            for row in NAMED {
                let machine = Machine::named(row.name).expect("a row");
                let compiled = plan(&function, machine.clone());
                for p in &compiled.programs {
                    let most = machine.shared_per_workgroup;
                    assert!(
                        p.scratch <= most,
                        "{preset} on {}: {} wants {} of {most}",
                        row.name,
                        p.name,
                        p.scratch
                    );
                }
                let matrices = has(&compiled, "mma");
                assert!(
                    !machine.fragments.is_empty() || !matrices,
                    "{preset} on {}",
                    row.name
                );
            }
        }
    }
}

#[test]
fn fewer_units_are_given_fewer_workgroups() {
    let function = layer("glm-4.7-flash", StepKind::Decode);
    let (many, few) = (
        plan(&function, h200()),
        plan(
            &function,
            Machine {
                units: 28,
                ..h200()
            },
        ),
    );
    let most = |compiled: &Compiled| workgroups(compiled).into_iter().max();
    assert!(
        most(&few) < most(&many),
        "{:?}, {:?}",
        workgroups(&few),
        workgroups(&many)
    );
}

#[test]
fn without_fragments_threads_add_products_up() {
    let function = layer("glm-4.7-flash", StepKind::Prefill { max: 512 });
    let (with, without) = (
        plan(&function, h200()),
        plan(
            &function,
            Machine {
                fragments: &[],
                ..h200()
            },
        ),
    );
    assert!(has(&with, "mma_") && !has(&without, "mma_"));
    assert!(
        has(&without, "dot4"),
        "packed weights are multiplied as bytes nevertheless"
    );
    assert!(
        without.seconds > with.seconds,
        "{} and {}",
        without.seconds,
        with.seconds
    );
}

#[test]
fn less_shared_memory_holds_less() {
    let function = layer("glm-4.7-flash", StepKind::Decode);
    let small = Machine {
        shared_per_unit: 100 << 10,
        shared_per_workgroup: 99 << 10,
        ..h200()
    };
    let scratch = |compiled: &Compiled| compiled.programs.iter().map(|p| p.scratch).max();
    let (large, small) = (
        scratch(&plan(&function, h200())),
        scratch(&plan(&function, small)),
    );
    assert!(
        small < large && small <= Some(99 << 10),
        "{small:?} and {large:?}"
    );
}

#[test]
fn a_subgroup_s_width_is_that_of_shared_rows() {
    let function = layer("youtu-llm-2b", StepKind::Decode);
    let lanes = |subgroup: i64| {
        let compiled = plan(
            &function,
            Machine {
                subgroup,
                fragments: &[],
                ..h200()
            },
        );
        let of = |p: &gristmill_uop::program::Program| {
            let ranges = p.graph.toposort(&[p.root]).into_iter();
            let lanes = ranges.filter(|&n| p.graph.range_kind(n) == Some(RangeKind::VectorReduce));
            lanes
                .map(|n| p.graph.max_of(p.graph[n].src[0]))
                .collect::<Vec<_>>()
        };
        let packed = |p: &gristmill_uop::program::Program| {
            p.graph
                .any(p.root, |_, n| n.op == Op::SignedDot4 || n.op == Op::Dot4)
        };
        compiled
            .programs
            .iter()
            .filter(|p| packed(p))
            .flat_map(|p| of(p))
            .filter(|&l| l <= 64)
            .max()
    };
    let found = [16, 32, 64].map(lanes);
    assert!(
        found[0] <= found[1] && found[1] <= found[2] && found[0] < found[2],
        "{found:?}"
    );
}

/// Interleaved rows are the lanes of a vector: a narrower vector would read a part of each line,
/// with instructions that a machine may lack.
#[test]
fn interleaved_rows_are_multiplied_by_whole_vectors() {
    let avx2 = Machine {
        pairs: true,
        signed_bytes: true,
        ..Machine::cpu("avx2", 8, 2)
    };
    let machines = [Machine::cpu("avx512vnni", 16, 2), avx2];
    let presets = [
        ("gpt-oss-20b", "mxfp4_moe"),
        ("glm-4.7-flash", "q4_0"),
        ("gemma-4-26b-a4b", "q4_0"),
        ("minimax-m2", "q4_0"),
        ("llama-3.1-8b", "q4_k_m"),
    ];
    for (preset, quant) in presets {
        let plan = step(preset, quant, StepKind::Decode);
        for (function, machine) in plan
            .functions()
            .into_iter()
            .flat_map(|f| machines.iter().map(move |m| (f, m)))
        {
            let target = Target::new(machine.clone());
            let compiled = compile(function, &target, Some(&cpu::dialect::C), &mut Cheapest);
            for p in compiled
                .programs
                .iter()
                .filter(|p| p.estimate.weight_bytes > 1e6)
            {
                let narrow = [1, 2, 4, 8]
                    .into_iter()
                    .filter(|&lanes| lanes < machine.lanes);
                let of = |lanes| {
                    ["dot4_any", "dot4_small", "dot2"].map(|name| format!("{name}_{lanes}("))
                };
                let found = narrow.flat_map(of).find(|name| p.source.contains(name));
                let (place, name) = (&p.notes, &machine.name);
                assert!(
                    found.is_none(),
                    "{preset} {quant}, {name}, {}: {found:?} in {place:?}",
                    function.name
                );
            }
        }
    }
}

#[test]
fn every_optimisation_acts_on_every_machine_that_has_it() {
    // A decode step of the second model has sums of few rows, the third a softmax that its
    // experts' kernels read one after the other, the fourth queries that keys recompute. No model
    // adds rows by index.
    let functions = [
        Arc::new(rows_added()),
        layer("glm-4.7-flash", StepKind::Decode),
        layer("gemma-4-26b-a4b", StepKind::Decode),
        layer("qwen3-30b-a3b", StepKind::Decode),
        layer("deepseek-v2-lite", StepKind::Decode),
        layer("glm-4.7-flash", StepKind::Prefill { max: 512 }),
    ];
    let avx512 = Machine::cpu("avx512vnni", 16, 2);
    let avx2 = Machine {
        pairs: true,
        signed_bytes: true,
        ..Machine::cpu("avx2", 8, 2)
    };
    let names = |target: &Target, dialect: &dyn Dialect| -> Vec<String> {
        let compiled = functions
            .iter()
            .flat_map(|f| compile(f, target, Some(dialect), &mut Cheapest).programs);
        compiled.map(|p| p.name.clone()).collect()
    };
    let amx = Machine {
        fragments: &[AMX_BF16],
        ..Machine::cpu("amx", 16, 2)
    };
    let machines: [(Machine, &dyn Dialect); 4] = [
        (h200(), &cuda::dialect::Cuda),
        (amx, &cpu::dialect::C),
        (avx512, &cpu::dialect::C),
        (avx2, &cpu::dialect::C),
    ];
    let mut acted: Vec<(&str, MachineKind)> = Vec::new();
    // Also with float products: some optimisations for them do not apply to integer products.
    let targets = machines.into_iter().flat_map(|(machine, dialect)| {
        let on = Target::new(machine);
        [
            (
                Target {
                    int8: false,
                    ..on.clone()
                },
                dialect,
            ),
            (on, dialect),
        ]
    });
    for (on, dialect) in targets {
        let with = names(&on, dialect);
        // A flag that acted on one machine of a kind need not act on the next.
        let kind = on.machine.kind;
        for flag in FLAGS.iter().filter(|flag| flag.acts_on(kind)) {
            if acted.contains(&(flag.name, kind)) {
                continue;
            }
            let mut off = on.clone();
            (flag.off)(&mut off);
            if names(&off, dialect) != with {
                acted.push((flag.name, kind));
            }
        }
    }
    for flag in FLAGS {
        for kind in [MachineKind::Cpu, MachineKind::Gpu]
            .into_iter()
            .filter(|&kind| flag.acts_on(kind))
        {
            assert!(
                acted.contains(&(flag.name, kind)),
                "{} changes no kernel of a {kind:?}",
                flag.name
            );
        }
    }
}

#[test]
fn machines_that_differ_have_plans_that_do() {
    let function = layer("glm-4.7-flash", StepKind::Decode);
    let names = [
        "h200",
        "a100",
        "rtx4090",
        "rtx3060",
        "l4",
        "t4",
        "m3-max",
        "rx7900xtx",
        "arc-b580",
    ];
    let mut decided: Vec<String> = names
        .map(|name| {
            let compiled = plan(&function, Machine::named(name).expect("a row"));
            compiled
                .programs
                .iter()
                .map(|p| p.name.clone())
                .collect::<Vec<_>>()
                .join(" ")
        })
        .into();
    decided.sort();
    decided.dedup();
    assert!(
        decided.len() >= 6,
        "machines as different as these share {} plans",
        decided.len()
    );
}

/// Rows without expert tiles: as many as choose no more experts than there are, and twice as many.
/// The number of tiles is read from memory, and a rule that drops its bound must leave one.
#[test]
fn kernels_of_experts_have_a_bound() {
    for (preset, quant, max) in [
        ("gpt-oss-20b", "mxfp4_moe", 8),
        ("glm-4.7-flash", "q4_0", 16),
        ("qwen3-30b-a3b", "q4_0", 16),
    ] {
        for max in [max, 2 * max] {
            let plan_of = step(preset, quant, StepKind::BatchedDecode { max });
            for function in plan_of.functions() {
                let most = workgroups(&plan(function, h200())).into_iter().max();
                assert!(most <= Some(1 << 20), "{preset}, {max} rows: {most:?}");
            }
        }
    }
}
