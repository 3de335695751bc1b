//! Compiles the kernels of common models by NVRTC: all for an H200, and those of decode steps for
//! every NVIDIA GPU in the machine table. No GPU is needed. No kernel may spill registers (except
//! those in [`KNOWN`]) or keep anything else in local memory, and there must be enough registers
//! for the threads of a workgroup, in decode steps for those of two.
//!
//! Each of the other GPUs is tested with one model, or with all models if `GRISTMILL_CARDS=all`
//! (800 kernels). Without libnvrtc the test passes with a message; with
//! `GRISTMILL_REQUIRE_NVRTC` set, as in the gate, it fails. Successful compilations are recorded
//! in the test's own store, so a second run compiles only new kernels. `GRISTMILL_CASE=text`
//! selects models by a part of their names.

use crate::side_by_side::each;
use crate::steps_support::{CHUNK, CONTEXT, functions_of_steps};
use gristmill_backend::cuda::{Nvrtc, dialect};
use gristmill_backend::{KernelText, Options, open};
use gristmill_encodings::by_name;
use gristmill_llm::arch::CacheType;
use gristmill_llm::arch::{self, Functions, Pools};
use gristmill_llm::engine::{
    CacheShape, GraphKey, StepLimits, batch_graph, cache_rows, mixed_graphs, plan_options,
    sequence_graphs,
};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::sampling::{self, SamplingMethod};
use gristmill_runtime::store::{Key, Store};
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::jit::{Jit, Ready};
use gristmill_uop::Scalar;
use gristmill_uop::function::Function;
use gristmill_uop::machine::{EARLY_LAUNCH_SINCE, Machine, NAMED};
use gristmill_uop::program::Program;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum registers of a thread.
const MOST: usize = 255;
/// Maximum registers of a thread in decode steps, so that two workgroups fit.
const MAX_ONE: usize = 128;
/// Bytes that the assembler may spill by its own choice, to stay below a register count at which
/// more warps run. It has done so at 32 and 64 registers.
const CHOSEN: usize = 16;
/// Kernels known to spill, by model and function, with maximum spilled bytes. Each row is open
/// work. The tiles of prefill products with six-bit scales are too high; one of V2-Lite's is at the
/// limit without a register for a dequantisation constant (docs/experiments/096). GLM's gate and up
/// on an A100, with three workgroups per multiprocessor, spill four values of the expert choice
/// while waiting for weights.
const KNOWN: &[(&str, &str, usize)] = &[
    ("q4_k_m", ".chunk512", 176),
    ("deepseek-v2-lite q4_0", ".chunk512", 24),
    ("a100: glm-4.7-flash q4_0", ".moe.one.2048", 32),
];
/// Kernels compiled as one text. More gain nothing, and leave a core idle at the end.
const TOGETHER: usize = 6;

/// Presets of which kernels are compiled.
const MODELS: [&str; 5] = [
    "glm-4.7-flash",
    "deepseek-v2-lite",
    "youtu-llm-2b",
    "llama-3.1-8b",
    "qwen3-8b",
];
/// Models with compiled prefill kernels, unless all are requested: the others would add 30
/// s to the gate.
const PROMPTS: [&str; 3] = ["glm-4.7-flash", "deepseek-v2-lite", "youtu-llm-2b"];

/// A kernel text, its target GPU, the threads of its workgroups, and its origin.
struct Case {
    text: KernelText,
    machine: Machine,
    threads: usize,
    place: String,
}

impl Case {
    /// Returns the maximum registers of a thread.
    fn most(&self) -> usize {
        if self.place.contains(".one") && sm(self) >= EARLY_LAUNCH_SINCE {
            MAX_ONE
        } else {
            MOST
        }
    }
}

/// Returns the kernels of a model's steps and of sampling as the engine compiles them for a
/// machine; of decode steps, or of all.
fn kernels(machine: &str, preset: &str, quant: &str, all_steps: bool) -> Vec<Case> {
    let file = Gguf::synth(preset, quant).expect("a preset");
    let model = arch::load(file.metadata(), &file).expect("a model");
    let mut jit =
        Jit::new(open(&format!("null:{machine}"), &Options::default()).expect("a device"));
    let mut functions = Functions::new();
    let mut all = functions_of_steps(&*model, jit.target(), &mut functions, all_steps);
    // Sampling kernels differ only in the vocabulary size: test all of them for the largest.
    let choices: &[SamplingMethod] = match preset {
        _ if !all_steps => &[],
        "glm-4.7-flash" => &[
            SamplingMethod::Greedy,
            SamplingMethod::SmallTopK,
            SamplingMethod::TopK,
            SamplingMethod::TopP,
            SamplingMethod::All,
        ],
        _ => &[SamplingMethod::Greedy, SamplingMethod::SmallTopK],
    };
    let sample = |&choice: &SamplingMethod| {
        functions.share(sampling::sampling_function(choice, model.vocabulary()))
    };
    all.extend(choices.iter().map(sample));
    cases(&mut jit, &all, &format!("{machine}: {preset} {quant}"))
}

/// Returns the kernels of these functions.
fn cases(jit: &mut Jit, all: &[Arc<Function>], of: &str) -> Vec<Case> {
    let mut out = Vec::new();
    for ready in jit.prepare(all, &|_, _| ()).expect("scheduled") {
        for program in &ready.compiled.programs {
            let place = format!("{of}, {} of {}", program.name, ready.function.name);
            let machine = jit.device().target().machine.clone();
            out.push(Case {
                text: KernelText::from_program(program),
                machine,
                threads: program.threads,
                place,
            });
        }
    }
    out
}

/// Returns the kernels of batched decode steps, of prefill chunks alone and with seven decode rows,
/// and of batched sampling.
fn together(machine: &str, preset: &str, quant: &str) -> Vec<Case> {
    let file = Gguf::synth(preset, quant).expect("a preset");
    let model = arch::load(file.metadata(), &file).expect("a model");
    let mut jit =
        Jit::new(open(&format!("null:{machine}"), &Options::default()).expect("a device"));
    let (mut functions, rows) = (Functions::new(), cache_rows(CONTEXT, CHUNK));
    let pools = Pools::new(
        4 * rows / arch::Options::PAGE,
        model.cache_kinds(),
        64,
        CHUNK,
    );
    let cache = CacheShape {
        rows,
        pools,
        cache_type: CacheType::F16,
    };
    let batches = [1, 8, 64].map(|sequences| batch_graph(sequences, 64, rows));
    // Models with a window pool or recurrent states have no mixed batches.
    let mixed = pools.windows.is_none() && pools.states == 0;
    let limits = StepLimits {
        chunk: CHUNK,
        long: CHUNK,
    };
    let paged = |graph| GraphKey {
        contiguous: false,
        ..graph
    };
    let pieces = sequence_graphs(limits, &[rows]).into_iter().map(paged);
    let beside = if mixed {
        mixed_graphs(CHUNK, rows, 7)
    } else {
        Vec::new()
    };
    let mut all = Vec::new();
    for graph in batches.into_iter().chain(pieces).chain(beside) {
        let plan = model.plan(&plan_options(graph, cache, jit.target()), &mut functions);
        all.extend(plan.functions().into_iter().cloned());
    }
    for most in [1, 64] {
        let vocabulary = model.vocabulary();
        all.extend(
            [sampling::rows_function, sampling::candidates_function]
                .map(|of| functions.share(of(vocabulary, most))),
        );
    }
    cases(
        &mut jit,
        &all,
        &format!("{machine}: {preset} {quant}, pages"),
    )
}

/// Returns kernels of f16 and bf16 matrix products, with stored weights and with other activations.
fn products(machine: &str) -> Vec<Case> {
    let mut jit =
        Jit::new(open(&format!("null:{machine}"), &Options::default()).expect("a device"));
    let of = |name: &str, scalar: Scalar| {
        let c = Capture::new(name);
        let (a, b) = (
            c.input("a", dims![4, 512, 256], scalar),
            c.input("b", dims![4, 256, 300], scalar),
        );
        let w = c.weight("w", &[1024, 256], by_name(name).expect("an encoding"));
        c.output("activations", a.matmul(b));
        c.output("weight", a.cast(Scalar::F32).linear(w));
        Arc::new(c.finish())
    };
    let all = [of("f16", Scalar::F16), of("bf16", Scalar::BF16)];
    let ready = jit.prepare(&all, &|_, _| ()).expect("scheduled");
    let target = jit.device().target();
    let programs = ready
        .iter()
        .flat_map(|ready| ready.compiled.programs.iter().map(move |p| (ready, p)));
    let case = |(ready, program): (&Arc<Ready>, &Arc<Program>)| {
        let place = format!(
            "{machine}: products of {}, {}",
            ready.function.name, program.name
        );
        Case {
            text: KernelText::from_program(program),
            machine: target.machine.clone(),
            threads: program.threads,
            place,
        }
    };
    programs.map(case).collect()
}

/// Returns kernels of `scatter_add` with data-dependent rows, for each type and form.
fn scattered(machine: &str) -> Vec<Case> {
    let of = |scalar: Scalar| {
        let c = Capture::new(scalar.name());
        let n = c.var("n", 1, 512);
        let index = c.input("index", dims![n], Scalar::I32).clamp_index(999);
        let (x, rows) = (
            c.input("x", dims![1000, 256], scalar),
            c.input("rows", dims![n, 256], scalar),
        );
        c.output("y", x.scatter_add(rows, index));
        Arc::new(c.finish())
    };
    let all = [Scalar::F32, Scalar::F16, Scalar::I32].map(of);
    let form = |form: &str| {
        let mut opened = open(&format!("null:{machine}"), &Options::default()).expect("a device");
        opened.target.any_order = true;
        let plan = |f: &Arc<Function>| {
            (
                format!("scatter {} [1000, 256] by [n]", f.name),
                format!("scatter: {form}"),
            )
        };
        opened.target.plans.extend(all.iter().map(plan));
        cases(
            &mut Jit::new(opened),
            &all,
            &format!("{machine}: added {form}"),
        )
    };
    ["compared", "in order", "atomic"]
        .into_iter()
        .flat_map(form)
        .collect()
}

/// Parses the assembler's log of a kernel: registers, bytes of stack, bytes spilled.
fn taken(log: &str) -> Option<(usize, usize, usize)> {
    let before = |what: &str| -> Option<usize> {
        let end = log.find(what)?;
        log[..end].split_whitespace().next_back()?.parse().ok()
    };
    let spilled = before(" bytes spill stores")? + before(" bytes spill loads")?;
    Some((
        before(" registers")?,
        before(" bytes stack frame")?,
        spilled,
    ))
}

/// Returns the assembler's log of one kernel of a text.
fn of_kernel<'a>(log: &'a str, symbol: &str) -> Option<&'a str> {
    log.split("Compiling entry function '").find(|part| {
        part.strip_prefix(symbol)
            .is_some_and(|p| p.starts_with('\''))
    })
}

/// Returns the fault of each kernel, if any. The kernels have one architecture and are compiled as
/// one text, since the prelude costs a quarter of a kernel.
fn faults(compiler: &Nvrtc, cases: &[Case], prelude: &str) -> Vec<Option<String>> {
    let [first, ..] = cases else { return vec![] };
    let source = cases.iter().fold(prelude.to_owned(), |text, case| {
        format!("{text}\n#line 1\n{}", case.text.source)
    });
    let compiled = match compiler.compile(
        &first.text.symbol,
        &source,
        sm(first),
        &["--ptxas-options=-v"],
    ) {
        Ok(compiled) => compiled,
        Err(error) if cases.len() == 1 => return vec![Some(error.to_string())],
        // Compile each alone to find the faulty one.
        Err(_) => {
            return cases
                .chunks(1)
                .flat_map(|one| faults(compiler, one, prelude))
                .collect();
        }
    };
    if let Some(folder) = std::env::var_os("GRISTMILL_CUBIN") {
        let at =
            |end: &str| std::path::Path::new(&folder).join(format!("{}.{end}", first.text.symbol));
        std::fs::write(at("cu"), &source).expect("a folder");
        std::fs::write(at("cubin"), &compiled.cubin).expect("a folder");
        std::fs::write(at("log"), format!("{}\n{}", first.place, compiled.log)).expect("a folder");
    }
    cases
        .iter()
        .map(|case| fault(case, &compiled.log))
        .collect()
}

/// Returns the fault of a kernel according to the assembler's log, if any.
fn fault(case: &Case, log: &str) -> Option<String> {
    let Some((registers, stack, spilled)) = of_kernel(log, &case.text.symbol).and_then(taken)
    else {
        return Some(format!("the assembler does not say what it takes: {log}"));
    };
    // Registers are allocated to warps, eight at a time for each thread.
    let fits =
        registers.next_multiple_of(8) * case.threads.next_multiple_of(32) <= case.machine.registers;
    let known = KNOWN.iter().filter(|(model, function, _)| {
        case.place.contains(model) && case.place.ends_with(function)
    });
    let allowed = known
        .map(|k| k.2)
        .max()
        .unwrap_or(if registers < MOST { CHOSEN } else { 0 });
    // The stack may hold only spilled registers: anything else is an array with an index known
    // only at run time.
    let good = spilled <= allowed && stack <= spilled && registers <= case.most() && fits;
    (!good).then(|| {
        format!(
            "{registers} registers of {} threads, {stack} bytes of stack, {spilled} spilled",
            case.threads
        )
    })
}

/// Returns the SM architecture.
fn sm(case: &Case) -> u32 {
    case.machine.sm.expect("an NVIDIA GPU")
}

/// Returns the models selected by the environment.
fn models() -> Vec<(&'static str, &'static str)> {
    let wanted = std::env::var("GRISTMILL_CASE").unwrap_or_default();
    let models = MODELS
        .iter()
        .flat_map(|preset| ["q4_0", "q4_k_m"].map(|quant| (*preset, quant)));
    let models: Vec<_> = models
        .filter(|(preset, quant)| format!("{preset} {quant}").contains(&wanted))
        .collect();
    assert!(!models.is_empty(), "no model's name contains {wanted}");
    models
}

/// Returns whether all combinations are requested, more than the gate has time for.
fn all_cards() -> bool {
    std::env::var("GRISTMILL_CARDS").is_ok_and(|cards| cards == "all")
}

#[test]
fn every_kernel_compiles_without_spills() {
    let models = models();
    compile(each(&models, |(preset, quant)| {
        kernels(
            "h200",
            preset,
            quant,
            all_cards() || PROMPTS.contains(preset),
        )
    }));
}

#[test]
fn other_gpus_decode_without_spills() {
    let (models, all) = (models(), all_cards());
    let others = NAMED
        .iter()
        .map(|row| row.name)
        .filter(|&name| name != "h200");
    let others =
        others.filter(|name| Machine::named(name).is_some_and(|machine| machine.sm.is_some()));
    let pairs = others.enumerate().flat_map(|(i, name)| {
        // In rotation, so that each model and each format is compiled for some GPU.
        let chosen = if all {
            models.clone()
        } else {
            vec![models[i % models.len()]]
        };
        chosen.into_iter().map(move |model| (name, model))
    });
    let pairs: Vec<_> = pairs.collect();
    assert!(pairs.len() > 4, "{pairs:?}");
    compile(each(&pairs, |(name, (preset, quant))| {
        kernels(name, preset, quant, false)
    }));
}

#[test]
fn steps_of_several_sequences_compile_without_spills() {
    let all = [
        ("glm-4.7-flash", "q4_0"),
        ("gpt-oss-20b", "mxfp4_moe"),
        ("qwen3-8b", "q4_k_m"),
    ];
    let most = if all_cards() { all.len() } else { 1 };
    compile(each(&all[..most], |(preset, quant)| {
        together("h200", preset, quant)
    }));
}

#[test]
fn products_of_matrices_compile_without_spills() {
    let of = ["t4", "a100", "h200"].map(products);
    for (cases, name) in of.iter().zip(["mma_halves_8(", "mma_bf16(", "mma_halves("]) {
        assert!(
            cases.iter().any(|case| case.text.source.contains(name)),
            "{name} is in no kernel"
        );
    }
    compile(of.into());
}

#[test]
fn scattered_sums_compile_without_spills() {
    let of = ["t4", "a100", "h200"].map(scattered);
    for (cases, name) in of
        .iter()
        .flat_map(|of| ["add_f32(", "add_f16_pair(", "add_i32("].map(|name| (of, name)))
    {
        assert!(
            cases.iter().any(|case| case.text.source.contains(name)),
            "{name} is in no kernel"
        );
    }
    compile(of.into());
}

/// Compiles kernels not compiled before, and fails if any has a fault.
fn compile(cases: Vec<Vec<Case>>) {
    let compiler = match Nvrtc::find() {
        Ok(compiler) => compiler,
        Err(error) => {
            let needed = std::env::var_os("GRISTMILL_REQUIRE_NVRTC").is_some();
            assert!(!needed, "GRISTMILL_REQUIRE_NVRTC is set, but {error}");
            eprintln!("skipped: {error}");
            return;
        }
    };
    let mut different = BTreeMap::new();
    for case in cases.into_iter().flatten() {
        different
            .entry((sm(&case), case.text.key.hex()))
            .or_insert(case);
    }
    let store = Store::open(
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("nvrtc"),
        1 << 26,
    )
    .expect("a store");
    let (prelude, count) = (dialect::prelude(), different.len());
    let key = |case: &Case| {
        let shape = format!(
            "{} threads, {} registers, sm_{}",
            case.threads,
            case.most(),
            sm(case)
        );
        Key::from_parts([&compiler.describe(), &shape, &prelude, &case.text.source])
    };
    let is_new = |case: &Case| store.get(&key(case)).expect("a store").is_none();
    let new: Vec<Case> = different.into_values().filter(is_new).collect();
    // One kernel per text if sources and binaries are to be written.
    let together = if std::env::var_os("GRISTMILL_CUBIN").is_some() {
        1
    } else {
        TOGETHER
    };
    let parts: Vec<&[Case]> = new
        .chunk_by(|a, b| sm(a) == sm(b))
        .flat_map(|of| of.chunks(together))
        .collect();
    let faults = each(&parts, |cases| {
        let judged = cases.iter().zip(faults(&compiler, cases, &prelude));
        let of = |(case, fault): (&Case, Option<String>)| match fault {
            Some(fault) => Some(format!("{}: {fault}", case.place)),
            None => {
                store.put(&key(case), b"sound").expect("a store");
                None
            }
        };
        judged.filter_map(of).collect::<Vec<String>>()
    });
    let faults: Vec<String> = faults.concat();
    println!("{count} kernels, {} of them compiled now", new.len());
    assert!(
        faults.is_empty(),
        "{} kernels:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

#[test]
fn assembler_output_is_parsed() {
    let log = "ptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function 'k' for 'sm_90a'\nptxas info    : Function properties for k\n    \
               16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\nptxas info    : Used 40 registers, used 1 barriers\n\
               ptxas info    : Compiling entry function 'kk' for 'sm_90a'\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill \
               loads\nptxas info    : Used 20 registers";
    let of = |symbol: &str| of_kernel(log, symbol).and_then(taken);
    assert_eq!(
        [of("k"), of("kk"), of("kkk")],
        [Some((40, 16, 12)), Some((20, 0, 0)), None]
    );
    assert_eq!(taken("nothing"), None);
}
