//! Engines of one file on one device share the weights with equal layouts.

use crate::common::forward;
use gristmill_backend::cpu::{Cc, CpuDevice, Isa, QUICK_FLAG, dialect};
use gristmill_backend::null::NullDevice;
use gristmill_backend::{Opened, Options as Device, open};
use gristmill_llm::arch::CacheType;
use gristmill_llm::engine::{CompiledModel, Engine, Progress, Settings, Weights};
use gristmill_llm::gguf::Gguf;
use gristmill_runtime::Buffer;
use gristmill_runtime::store::Store;
use gristmill_uop::target::{FLAGS, Target};
use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;

fn demo() -> Gguf {
    Gguf::open(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../assets/demo-glm-Q4_0.gguf"
    ))
    .expect("the demo model")
}

fn settings() -> Settings {
    Settings {
        context: Some(64),
        cache: CacheType::F32,
        chunk: 8,
        ..Settings::default()
    }
}

fn with(opened: &Opened, change: fn(&mut Target)) -> Opened {
    let mut opened = opened.clone();
    change(&mut opened.target);
    opened
}

fn compiled<'a>(file: &'a Gguf, opened: Opened, there: &Weights) -> CompiledModel<'a> {
    CompiledModel::new(file, opened, settings(), there, &|_| ()).expect("a model")
}

/// Returns the buffers of the weights.
fn places(weights: &Weights) -> HashSet<Buffer> {
    weights.buffers().cloned().collect()
}

/// Decode steps and steps of long prompts agree on weight layouts with any optimisation switched
/// off, on a GPU, where long prompts use another form of attention.
#[test]
fn a_model_loads_without_any_of_the_optimisations() {
    let file = demo();
    for flag in FLAGS {
        let device = Device {
            without: vec![flag.name.into()],
            ..Device::default()
        };
        let opened = open("null:h200", &device).expect("a device");
        let settings = Settings {
            context: Some(2048),
            chunk: 2048,
            ..Settings::default()
        };
        if let Err(error) = Engine::load(&file, opened, settings, &|_| ()) {
            panic!("without {}: {error}", flag.name);
        }
    }
}

#[test]
fn no_weight_is_there_twice_in_one_layout() {
    let file = demo();
    let device = Arc::new(NullDevice::new(
        "null",
        Isa::parse("auto").expect("a set").target(),
    ));
    let opened = Opened::new(device.clone(), Some(&dialect::C));
    let base = Engine::load(&file, opened.clone(), settings(), &|_| ()).expect("a model");
    let there = base.weights().clone();

    let alike = compiled(&file, with(&opened, |t| t.tuning.prefetch = 0), &there);
    assert_eq!(alike.missing(&there), 0);
    let alike = alike
        .load(there.clone(), &|p| {
            assert!(!matches!(p, Progress::Loading(_, 1..)))
        })
        .expect("a model");
    assert_eq!(places(&alike.weights().clone()), places(&there));
    drop(alike);

    // Another layout of most weights.
    let other = compiled(&file, with(&opened, |t| t.int8 = false), &there);
    let missing = other.missing(&there);
    let other = other.load(there.clone(), &|_| ()).expect("a model");
    let new: usize = places(&other.weights().clone())
        .difference(&places(&there))
        .map(Buffer::len)
        .sum();
    assert!(
        0 < missing && missing < other.weights().bytes(),
        "{missing} of {}",
        other.weights().bytes()
    );
    assert_eq!(new as u64, missing);
    drop((other, there));

    // Replacing the first model: its weights with other layouts are freed before loading starts.
    let there = base.weights().clone();
    drop(base);
    assert_eq!(
        device.allocated() as u64,
        there.bytes(),
        "nothing else of the first is left"
    );
    let other = compiled(&file, with(&opened, |t| t.int8 = false), &there);
    let most = Cell::new(0);
    let most_loading = |p| {
        if matches!(p, Progress::Loading(..)) {
            most.set(most.get().max(device.allocated() as u64));
        }
    };
    let other = other.load(there, &most_loading).expect("a model");
    assert_eq!(most.get(), other.weights().bytes());
}

#[test]
fn shared_weights_give_the_logits_of_own_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(folder.path().join("store"), 1 << 28).expect("a store");
    let isa = Isa::parse(&Device::default().isa).expect("an instruction set");
    let device = CpuDevice::with(
        2,
        isa,
        Cc::find().expect("a C compiler").with_flag(QUICK_FLAG),
        store,
    )
    .expect("a cpu");
    let opened = Opened::new(Arc::new(device), Some(&dialect::C));
    let file = demo();
    let base = Engine::load(&file, opened.clone(), settings(), &|_| ()).expect("a model");
    for change in [
        |t: &mut Target| t.tuning.prefetch = 0,
        |t: &mut Target| t.int8 = false,
    ] {
        let of = |there: Weights| {
            let compiled = compiled(&file, with(&opened, change), &there);
            let mut engine = compiled.load(there, &|_| ()).expect("a model");
            forward(&mut engine, &[1, 5, 9, 2, 7], 0, true)
        };
        assert_eq!(of(base.weights().clone()), of(Weights::default()));
    }
}
