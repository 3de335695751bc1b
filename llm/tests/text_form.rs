//! The text form and the specs, on everything the golden tiny models capture and compile.

mod golden_support;

use golden_support::{Fixture, Tiny};
use gristmill_backend::{Options as Device, open};
use gristmill_compiler::{Cheapest, Perturb, Policy, compile};
use gristmill_encodings::by_name;
use gristmill_llm::arch::AttentionForm::{Absorbed, Expanded, Values};
use gristmill_llm::arch::{Functions, Logits, Model, Options, TokenClass};
use gristmill_llm::gguf::Gguf;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;
use gristmill_uop::spec::{self, Level};
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, text};
use std::sync::Arc;

/// Every function of a model: every form of attention, both classes of step, all logits and the last.
fn functions(model: &dyn Model) -> Vec<Arc<Function>> {
    let mut shared = Functions::new();
    let mut out: Vec<Arc<Function>> = Vec::new();
    for attention in [Absorbed, Values, Expanded] {
        for tokens in [TokenClass::One, TokenClass::Chunk { max: 8 }] {
            for (logits, cache) in [(Logits::Last, Scalar::F16), (Logits::All, Scalar::F32), (Logits::Last, Scalar::I8)]
            {
                let options = Options { tokens, rows: 192, depth: 192, cache, attention, logits, tile: Options::TILE };
                for f in model.plan(&options, &mut shared).functions() {
                    if !out.iter().any(|o| Arc::ptr_eq(o, f)) {
                        out.push(f.clone());
                    }
                }
            }
        }
    }
    out
}

/// Prints, parses and prints again: the same text, and a graph that keeps to its level.
fn round_trip(g: &Graph, roots: &[Id], level: Level, what: &str) {
    let printed = text::print(g, roots);
    let (parsed, again) = text::parse(&printed, &by_name).unwrap_or_else(|e| panic!("{what}: {e}\n{printed}"));
    assert!(text::print(&parsed, &again) == printed, "{what}: another text after parsing\n{printed}");
    for (g, roots) in [(g, roots), (&parsed, &again[..])] {
        for &root in roots {
            spec::check(g, root, level).unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }
}

fn check(model: &dyn Model, name: &str) {
    let open = |name: &str, isa: &str| {
        open(name, &Device { threads: Some(2), isa: isa.into(), ..Device::default() }).expect("a device")
    };
    let targets: Vec<Target> = [("null", "auto"), ("null", "plain"), ("null:gpu", "auto"), ("interp", "auto")]
        .map(|(device, isa)| open(device, isa).device.target().clone())
        .into();
    for f in functions(model) {
        let what = format!("{name} {}", f.name);
        let roots: Vec<Id> = f.outputs.iter().map(|o| o.1).collect();
        round_trip(&f.graph, &roots, Level::Tensor, &what);
        for target in &targets {
            let (mut cheapest, mut perturbed) = (Cheapest, Perturb(7));
            for policy in [&mut cheapest as &mut dyn Policy, &mut perturbed] {
                for p in compile(&f, target, None, policy).programs {
                    round_trip(&p.graph, &[p.root], Level::Kernel, &format!("{what}, {} for {}", p.name, target.name));
                }
            }
        }
    }
}

#[test]
fn golden_models() {
    for tiny in [Tiny::A, Tiny::B, Tiny::C, Tiny::D] {
        check(Fixture::new(tiny, true).model.as_ref(), &format!("{tiny:?}"));
    }
    check(Fixture::new(Tiny::A, false).model.as_ref(), "A, the older format");
}

#[test]
fn a_quantised_model() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/demo-glm-Q4_K_M.gguf");
    let file = Gguf::open(path).expect("a GGUF file");
    let model = gristmill_llm::arch::load(file.metadata(), &file).expect("a model");
    check(model.as_ref(), "demo");
}
