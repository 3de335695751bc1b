//! Tests the text form and the specs on all functions and kernels of the golden tiny models.

use crate::golden_support::{Fixture, Tiny};
use gristmill_backend::{Options as Device, open};
use gristmill_compiler::testing::{every_form, rules_of_tensors};
use gristmill_compiler::{Cheapest, Perturb, Policy, compile};
use gristmill_encodings::by_name;
use gristmill_llm::arch::CacheType;
use gristmill_llm::arch::{Functions, Logits, Model, Options, Pools, StepKind};
use gristmill_llm::gguf::Gguf;
use gristmill_tensor::function::ContentKey;
use gristmill_uop::function::Function;
use gristmill_uop::spec::{self, Level};
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, text};
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

/// Returns every function of a model: both kinds of step, all logits and the last, three cache
/// types; and some alternative forms, with the first cache type.
fn functions(model: &dyn Model) -> Vec<Arc<Function>> {
    let mut shared = Functions::new();
    let (mut out, mut written): (Vec<Arc<Function>>, Vec<Arc<Function>>) = Default::default();
    for tokens in [StepKind::Decode, StepKind::Prefill { max: 8 }] {
        for (logits, cache) in [
            (Logits::Last, CacheType::F16),
            (Logits::All, CacheType::F32),
            (Logits::Last, CacheType::Int8),
        ] {
            let pools = Pools::from_pages(192 / Options::PAGE);
            let options = Options {
                tokens,
                rows: 192,
                pools,
                contiguous: true,
                depth: 192,
                cache,
                logits,
                tile: Options::TILE,
                cached: None,
                draft: None,
            };
            for f in model.plan(&options, &mut shared).functions() {
                if !out.iter().any(|o| Arc::ptr_eq(o, f)) {
                    out.push(f.clone());
                    written.extend(
                        (cache == CacheType::F16 && f.name.contains(".chunk")).then(|| f.clone()),
                    );
                }
            }
        }
    }
    // Alternative forms are printed and parsed too.
    let plain = Target::cpu("plain", 4, 2);
    let forms = |f: &Arc<Function>| {
        every_form(f, &plain, &rules_of_tensors(), 4)
            .into_iter()
            .map(Arc::new)
    };
    out.extend(written.iter().flat_map(forms));
    out
}

/// Prints, parses and prints again: the text must be the same, and the graph valid at its level.
fn round_trip(g: &Graph, roots: &[Id], level: Level, what: &str) {
    let printed = text::print(g, roots);
    let (parsed, again) =
        text::parse(&printed, &by_name).unwrap_or_else(|e| panic!("{what}: {e}\n{printed}"));
    assert!(
        text::print(&parsed, &again) == printed,
        "{what}: another text after parsing\n{printed}"
    );
    for (g, roots) in [(g, roots), (&parsed, &again[..])] {
        for &root in roots {
            spec::check(g, root, level).unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }
}

/// Returns every distinct function of the golden models and a quantised one. Computed
/// once for all tests.
fn all() -> &'static [(String, Arc<Function>)] {
    static ALL: OnceLock<Vec<(String, Arc<Function>)>> = OnceLock::new();
    ALL.get_or_init(found)
}

fn found() -> Vec<(String, Arc<Function>)> {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/demo-glm-Q4_K_M.gguf");
    let file = Gguf::open(path).expect("a GGUF file");
    let demo = gristmill_llm::arch::load(file.metadata(), &file).expect("a model");
    let mut all = Vec::new();
    let mut known = HashSet::new();
    let mut add = |name: &str, model: &dyn Model| {
        let new = functions(model)
            .into_iter()
            .filter(|f| known.insert(f.key()));
        all.extend(new.map(|f| (format!("{name} {}", f.name), f)));
    };
    for tiny in [Tiny::A, Tiny::B, Tiny::C, Tiny::D] {
        add(
            &format!("{tiny:?}"),
            Fixture::new(tiny, true).model.as_ref(),
        );
    }
    add(
        "A, the older format",
        Fixture::new(Tiny::A, false).model.as_ref(),
    );
    add("demo", demo.as_ref());
    all
}

/// Checks the kernels of every function for a target: every second one as planned, the others
/// perturbed; alternating by target.
fn check_kernels(turn: usize, device: &str, isa: &str) {
    let options = Device {
        threads: Some(2),
        isa: isa.into(),
        ..Device::default()
    };
    let target: Target = open(device, &options)
        .expect("a device")
        .device
        .target()
        .clone();
    // Many functions share kernels.
    let mut known = HashSet::new();
    for (i, (what, f)) in all().iter().enumerate() {
        let mut perturbed = Perturb::new(7);
        let policy: &mut dyn Policy = if (i + turn).is_multiple_of(2) {
            &mut Cheapest
        } else {
            &mut perturbed
        };
        for p in compile(f, &target, None, policy).programs {
            if known.insert(text::print(&p.graph, &[p.root])) {
                round_trip(
                    &p.graph,
                    &[p.root],
                    Level::Kernel,
                    &format!("{what}, {} for {}", p.name, target.name),
                );
            }
        }
    }
}

#[test]
fn functions_of_models() {
    let all = all();
    assert!(all.len() > 100, "{} functions", all.len());
    for (what, f) in all {
        let roots: Vec<Id> = f.outputs.iter().map(|o| o.1).collect();
        round_trip(&f.graph, &roots, Level::Tensor, what);
    }
}

// One test for each target, so that they run in parallel.
#[test]
fn kernels_for_this_processor() {
    check_kernels(0, "null", "auto");
}

#[test]
fn kernels_for_a_plain_processor() {
    check_kernels(1, "null", "plain");
}

#[test]
fn kernels_for_a_gpu() {
    check_kernels(2, "null:gpu", "auto");
}

#[test]
fn kernels_for_the_interpreter() {
    check_kernels(3, "interp", "auto");
}
