//! Sequences that choose adapters: each computes what a model with its adapter alone does, and
//! rows in the cache of one are not those of another.

use crate::common::{Random, devices};
use crate::conversation_support::ask_with;
use crate::parity_support::tables::{data, ids};
use gristmill_backend::{Options, Precision};
use gristmill_llm::arch::{AdapterScales, CacheType, Logits, load};
use gristmill_llm::engine::{Engine, Pages, Settings, TokenRun, WholePool};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::sched::{Batcher, Reuse};
use gristmill_llm::train::{Adapter, Targets, initial_adapter, stacked};

/// Largest difference of logits, relative to the largest.
const BOUND: f32 = 1e-4;

fn file(family: &str) -> Gguf {
    Gguf::open(data(&format!("families/{family}.gguf"))).expect("a GGUF file")
}

/// An adapter of all linear layers with random `B`.
fn adapter(file: &Gguf, rank: usize, seed: u64) -> Adapter {
    let model = load(file.metadata(), file).expect("a model");
    let weights = Targets::All.choose(model.as_ref());
    let mut adapter = initial_adapter(model.as_ref(), &weights, rank, 2.0, seed);
    let mut random = Random(seed + 1);
    for (name, tensor) in &mut adapter.tensors {
        if name.ends_with(".lora_b") {
            let value = |_: &f32| random.below(2001) as f32 / 1000.0 - 1.0;
            tensor.values = tensor.values.iter().map(value).map(|v| 0.5 * v).collect();
        }
    }
    adapter
}

fn engine(file: &Gguf) -> Engine {
    engine_on("cpu", file)
}

fn engine_on(device: &str, file: &Gguf) -> Engine {
    let options = Options {
        quick: true,
        precision: Precision::Exact,
        ..Options::default()
    };
    let (opened, placement) = devices(device, &options);
    let settings = Settings {
        context: Some(256),
        // Rows rounded to f16 would hide what is compared.
        cache: CacheType::F32,
        chunk: 64,
        parallel: 4,
        placement,
        ..Settings::default()
    };
    Engine::load(file, opened, settings, &|_| ()).expect("a model")
}

fn logits(engine: &mut Engine, tokens: &[u32], adapters: AdapterScales) -> Vec<f32> {
    let pool = WholePool::new(engine);
    let run = TokenRun {
        tokens,
        position: 0,
        pages: Pages {
            adapters,
            ..pool.pages()
        },
        contiguous: true,
    };
    engine.logits(run, Logits::All).expect("logits")
}

fn scales(of: [f32; 2]) -> AdapterScales {
    let mut scales = AdapterScales::default();
    scales.0[..2].copy_from_slice(&of);
    scales
}

/// Logits of one engine whose rows choose, and of engines with the adapters attached.
fn compare(family: &str) {
    compare_on("cpu", family);
}

fn compare_on(device: &str, family: &str) {
    let name = family.rsplit_once('-').expect("a name and a format").0;
    let tokens = ids(&data(&format!("families/{name}-tokens.txt")));
    let tokens = &tokens[..tokens.len().min(40)];
    let base = file(family);
    let adapters = [adapter(&base, 4, 5), adapter(&base, 2, 9)];
    let mut both = file(family);
    both.attach_choices(stacked(&adapters).to_file().expect("a file"), 2);
    let mut both = engine_on(device, &both);
    for chosen in [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.5, -1.0]] {
        let mut apart = file(family);
        for (adapter, scale) in adapters.iter().zip(chosen) {
            if scale != 0.0 {
                let file = adapter.to_file().expect("a file");
                apart.attach(file, adapter.alpha, scale);
            }
        }
        let expected = logits(&mut engine(&apart), tokens, AdapterScales::default());
        let found = logits(&mut both, tokens, scales(chosen));
        let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
        let wrong = expected
            .iter()
            .zip(&found)
            .map(|(a, b)| (a - b).abs())
            .fold(0f32, f32::max);
        assert!(
            wrong < BOUND * largest,
            "{family} on {device} {chosen:?}: {wrong} of {largest}"
        );
        if chosen != [0.0, 0.0] {
            let plain = logits(&mut both, tokens, AdapterScales::default());
            assert!(plain != found, "{family} {chosen:?} changes something");
        }
    }
}

#[test]
fn rows_choose_adapters_of_dense_layers() {
    compare("llama-q4_k_m");
}

#[test]
fn rows_choose_adapters_of_experts_and_latents() {
    compare("deepseek2-q8_0");
}

#[test]
fn rows_choose_adapters_of_layers_on_two_devices() {
    compare_on("cpu+cpu", "deepseek2-q8_0");
}

#[test]
fn cached_rows_belong_to_their_adapters() {
    let family = "deepseek2-q8_0";
    let tokens = ids(&data("families/deepseek2-tokens.txt"));
    let base = file(family);
    let mut both = file(family);
    let adapters = [adapter(&base, 4, 5), adapter(&base, 4, 9)];
    both.attach_choices(stacked(&adapters).to_file().expect("a file"), 2);
    let mut batcher = Batcher::new(engine(&both));
    let prompt = &tokens[..tokens.len().min(100)];
    let mut ask = |of| ask_with(&mut batcher, prompt, (Reuse::Any, scales(of)), 6);
    let first = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]].map(&mut ask);
    assert!(first.iter().all(|asked| asked.prefill.reused == 0));
    assert!(first[0].logits != first[1].logits && first[1].logits != first[2].logits);
    let again = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]].map(ask);
    for (first, again) in first.iter().zip(&again) {
        assert!(again.prefill.reused > 0);
        assert_eq!(first.answer, again.answer);
    }
}
