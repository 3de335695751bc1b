//! Every kernel of the usual models as NVRTC compiles it for an H200: no GPU is needed. None may spill registers or keep anything in
//! local memory, and the threads of a workgroup must find registers enough.
//!
//! Where libnvrtc is not found the test says so and passes; with `GRISTMILL_REQUIRE_NVRTC` set, as in the gate, it fails. What was compiled
//! without a fault is remembered in the test's own store, so that a second run compiles only what is new; `GRISTMILL_CASE=text` selects
//! models whose names contain the text.

use gristmill_backend::cuda::{Compiler, dialect};
use gristmill_backend::{Options, Text, open};
use gristmill_llm::arch::{self, Functions};
use gristmill_llm::engine::{cache_rows, classes, plan_options};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::sampling::{self, Choice};
use gristmill_runtime::store::{Key, Store};
use gristmill_tensor::jit::Jit;
use gristmill_uop::Scalar;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The architecture, and the registers of one of its multiprocessors.
const SM: u32 = 90;
const REGISTERS: usize = 65536;
/// Registers that a thread can have.
const MOST: usize = 255;
const CONTEXT: usize = 4096;
const CHUNK: usize = 512;

/// A text, the threads of its workgroups, and where it is from.
struct Case {
    text: Text,
    threads: usize,
    place: String,
}

/// The kernels of a model's steps and of the choice of a token, as the engine compiles them for an H200.
fn kernels(preset: &str, quant: &str, choices: &[Choice], out: &mut BTreeMap<String, Case>) {
    let file = Gguf::synth(preset, quant).expect("a preset");
    let model = arch::load(file.metadata(), &file).expect("a model");
    let mut jit = Jit::new(open("null:gpu", &Options::default()).expect("a device"));
    let mut functions = Functions::new();
    let rows = cache_rows(CONTEXT, CHUNK);
    let mut all = Vec::new();
    for class in classes(CHUNK) {
        let plan = model.plan(&plan_options(class, rows, Scalar::F16), &mut functions);
        all.extend(plan.functions().into_iter().cloned());
    }
    let sample = |&choice: &Choice| functions.share(sampling::function(choice, model.vocabulary(), rows));
    all.extend(choices.iter().map(sample));
    for ready in jit.prepare(&all, &|_, _| ()).expect("scheduled") {
        for program in &ready.compiled.programs {
            let text = Text::of(program);
            let place = format!("{preset} {quant}, {} of {}", program.name, ready.function.name);
            out.entry(text.key.hex()).or_insert(Case { text, threads: program.threads, place });
        }
    }
}

/// What the assembler says of a kernel: registers, bytes of stack, bytes spilled.
fn taken(log: &str) -> Option<(usize, usize, usize)> {
    let before = |what: &str| -> Option<usize> {
        let end = log.find(what)?;
        log[..end].split_whitespace().next_back()?.parse().ok()
    };
    let spilled = before(" bytes spill stores")? + before(" bytes spill loads")?;
    Some((before(" registers")?, before(" bytes stack frame")?, spilled))
}

/// What is wrong with a kernel, if anything is.
fn fault(compiler: &Compiler, case: &Case, prelude: &str) -> Option<String> {
    let source = format!("{prelude}\n#line 1\n{}", case.text.source);
    let compiled = match compiler.compile(&case.text.symbol, &source, SM, &["--ptxas-options=-v"]) {
        Ok(compiled) => compiled,
        Err(error) => return Some(error.to_string()),
    };
    let Some((registers, stack, spilled)) = taken(&compiled.log) else {
        return Some(format!("the assembler does not say what it takes: {}", compiled.log));
    };
    // Registers are handed out to warps, eight at a time for each thread.
    let fits = registers.next_multiple_of(8) * case.threads.next_multiple_of(32) <= REGISTERS;
    let good = spilled == 0 && stack == 0 && registers <= MOST && fits;
    (!good).then(|| format!("{registers} registers of {} threads, {stack} bytes of stack, {spilled} spilled", case.threads))
}

#[test]
fn every_kernel_compiles_without_spills() {
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(error) => {
            let needed = std::env::var_os("GRISTMILL_REQUIRE_NVRTC").is_some();
            assert!(!needed, "GRISTMILL_REQUIRE_NVRTC is set, but {error}");
            eprintln!("skipped: {error}");
            return;
        }
    };
    let wanted = std::env::var("GRISTMILL_CASE").unwrap_or_default();
    let mut cases = BTreeMap::new();
    for preset in ["glm-4.7-flash", "deepseek-v2-lite", "youtu-llm-2b"] {
        for quant in ["q4_0", "q4_k_m"] {
            // Choices differ in the vocabulary alone; those of the largest, all of them.
            let choices: &[Choice] = match preset {
                "glm-4.7-flash" => &[Choice::Greedy, Choice::Best, Choice::First, Choice::Nucleus, Choice::All],
                _ => &[Choice::Greedy, Choice::Best],
            };
            if format!("{preset} {quant}").contains(&wanted) {
                kernels(preset, quant, choices, &mut cases);
            }
        }
    }
    let cases: Vec<Case> = cases.into_values().collect();
    assert!(!cases.is_empty(), "no model's name contains {wanted}");
    let store = Store::open(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("nvrtc"), 1 << 26).expect("a store");
    let prelude = dialect::prelude();
    let (next, compiled, faults) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let threads = case.threads.to_string();
                    let parts = [compiler.describe(), threads, prelude.clone(), case.text.source.clone()];
                    let key = Key::of(parts.iter().map(String::as_str));
                    if store.get(&key).expect("a store").is_some() {
                        continue;
                    }
                    compiled.fetch_add(1, Ordering::Relaxed);
                    match fault(&compiler, case, &prelude) {
                        None => store.put(&key, b"sound").expect("a store"),
                        Some(fault) => faults.lock().expect("no thread panicked").push(format!("{}: {fault}", case.place)),
                    }
                }
            });
        }
    });
    let faults = faults.into_inner().expect("no thread panicked");
    println!("{} kernels, {} of them compiled now", cases.len(), compiled.into_inner());
    assert!(faults.is_empty(), "{} kernels:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn what_the_assembler_says_is_read() {
    let log = "ptxas info    : 0 bytes gmem\nptxas info    : Function properties for k\n    16 bytes stack frame, 4 bytes spill stores, \
               8 bytes spill loads\nptxas info    : Used 40 registers, used 1 barriers";
    assert_eq!(taken(log), Some((40, 16, 12)));
    assert_eq!(taken("nothing"), None);
}
