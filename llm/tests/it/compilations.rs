//! Tests how often functions are compiled: each kind of block once, and none at a second start.

use crate::common::forward;
use crate::golden_support::{Fixture, Tiny};
use crate::parity_support;
use gristmill_backend::cpu::{Cc, CpuDevice, Isa, QUICK_FLAG, dialect};
use gristmill_backend::{Opened, Options as Device, open};
use gristmill_encodings::F32;
use gristmill_llm::arch::CacheType;
use gristmill_llm::arch::{Functions, Logits, Options, Plan, Pools, StepKind, load};
use gristmill_llm::engine::{Engine, Progress, Settings};
use gristmill_llm::gguf::Gguf;
use gristmill_runtime::store::Store;
use gristmill_tensor::jit::Jit;
use gristmill_uop::function::Function;
use std::sync::Arc;

fn plan(file: &Gguf, tokens: StepKind) -> Plan {
    let model = load(file.metadata(), file).expect("a model");
    let options = Options {
        tokens,
        rows: 1024,
        pools: Pools::from_pages(1024 / Options::PAGE),
        contiguous: true,
        depth: 1024,
        cache: CacheType::F16,
        logits: Logits::Last,
        tile: Options::TILE,
        cached: None,
        draft: None,
    };
    model.plan(&options, &mut Functions::new())
}

fn all(plan: &Plan) -> Vec<Arc<Function>> {
    plan.calls.iter().map(|c| c.function.clone()).collect()
}

#[test]
fn glm_has_two_kinds_of_block() {
    for (preset, blocks, kinds) in [
        ("glm-4.7-flash", 47, 2),
        ("deepseek-v2-lite", 27, 2),
        ("youtu-llm-2b", 32, 1),
    ] {
        let file = Gguf::synth(preset, "q4_0").expect("a preset");
        let mut jit = Jit::new(open("null", &Device::default()).expect("a device"));
        for (class, compiled) in [
            (StepKind::Decode, kinds + 2),
            (StepKind::Prefill { max: 64 }, 2 * (kinds + 2)),
        ] {
            let step = plan(&file, class);
            assert_eq!(
                step.calls.len(),
                blocks + 2,
                "{preset}: embedding, blocks, head"
            );
            assert_eq!(step.functions().len(), kinds + 2, "{preset}");
            jit.prepare(&all(&step), &|_, _| ()).expect("compiled");
            assert_eq!(jit.compiled(), compiled, "{preset} {class:?}");
            // Another engine's plan consists of new functions with equal graphs.
            let kernels = std::cell::Cell::new(0);
            jit.prepare(&all(&plan(&file, class)), &|_, total| {
                kernels.set(kernels.get().max(total))
            })
            .expect("compiled");
            assert_eq!(
                (jit.compiled(), kernels.get()),
                (compiled, 0),
                "{preset} {class:?}: a second plan compiles nothing"
            );
        }
    }
}

#[test]
fn a_second_start_compiles_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = parity_support::file_of(&Fixture::new(Tiny::A, true), &F32);
    let mut before = Vec::new();
    for start in 0..2 {
        let store = Store::open(folder.path().join("store"), 1 << 28).expect("a store");
        let isa = Isa::parse("auto").expect("an instruction set");
        let device = Arc::new(
            CpuDevice::with(
                2,
                isa,
                Cc::find().expect("a C compiler").with_flag(QUICK_FLAG),
                store,
            )
            .expect("a cpu"),
        );
        let opened = Opened::new(device.clone(), Some(&dialect::C));
        let settings = Settings {
            context: Some(64),
            cache: CacheType::F32,
            chunk: 8,
            ..Settings::default()
        };
        let mut e = Engine::load(&file, opened, settings, &|_| ()).expect("a model");
        // A decode step and its sampling; chunks without logits and with the
        // last, which share blocks.
        let kinds = 2;
        assert_eq!(e.compiled(), (kinds + 3) + (kinds + 2), "start {start}");
        let logits = forward(&mut e, &[1, 5, 9], 0, false);
        match start {
            0 => {
                assert!(device.compiled() > 0);
                before = logits;
            }
            _ => {
                assert_eq!(device.compiled(), 0, "the store has every unit");
                assert_eq!(logits, before);
            }
        }
    }
}

#[test]
fn kernels_that_a_first_prompt_does_not_need_come_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = parity_support::file_of(&Fixture::new(Tiny::A, true), &F32);
    let tokens: Vec<u32> = (1..12).collect();
    let mut seen = Vec::new();
    for first_prompt in [None, Some(1)] {
        let store = Store::open(folder.path().join(format!("{first_prompt:?}")), 1 << 28);
        let isa = Isa::parse("auto").expect("an instruction set");
        let cc = Cc::find().expect("a C compiler").with_flag(QUICK_FLAG);
        let device = CpuDevice::with(2, isa, cc, store.expect("a store")).expect("a cpu");
        let opened = Opened::new(Arc::new(device), Some(&dialect::C));
        let settings = Settings {
            context: Some(256),
            cache: CacheType::F32,
            chunk: 128,
            first_prompt,
            ..Settings::default()
        };
        let awaited = std::cell::Cell::new(0);
        let mut e = Engine::load(&file, opened, settings, &|progress| {
            if let Progress::Compiling(_, total) = progress {
                awaited.set(awaited.get().max(total));
            }
        })
        .expect("a model");
        // A step of the few kernels, then one that waits for the others.
        let few = forward(&mut e, &tokens, 0, false);
        let long: Vec<u32> = (0..100).map(|i| 1 + i % 12).collect();
        let many = forward(&mut e, &long, 0, false);
        seen.push((awaited.get(), e.compiled(), few, many));
    }
    let [all, first] = &seen[..] else {
        unreachable!()
    };
    assert!(first.0 < all.0, "{} of {} kernels before", first.0, all.0);
    assert_eq!((first.1, &first.2, &first.3), (all.1, &all.2, &all.3));
}
