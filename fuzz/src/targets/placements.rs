//! Random placements of small models on several devices: their logits are those of one device.
//!
//! The bytes of an input choose the model, the device of each layer and of its experts, the copied
//! and cached experts, and the length of steps. All devices are `interp`, which needs no compiler.

use crate::Target;
use crate::bytes::FuzzInput;
use gristmill_backend::interp::InterpDevice;
use gristmill_backend::{Opened, Precision};
use gristmill_llm::arch::{self, CacheType, Logits};
use gristmill_llm::engine::{Engine, Settings, TokenRun, WholePool};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::placement::{LayerPlace, OtherDevice, Placement, PlacementRequest};
use gristmill_uop::link::DeviceLink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Input: a byte string of choices.
pub const TARGET: Target = Target {
    name: "placements",
    about: "random placements of small models on three devices: logits as on one",
    run,
    seeds,
    words: &[],
    longest: 64,
    tries: 3,
};

/// Models with experts, layers of several kinds, recurrent states, windows.
const MODELS: [&str; 4] = ["qwen3moe", "deepseek2", "gemma4-moe", "qwen35moe"];
/// Weights outside of layers.
const OUTER: [&str; 3] = [
    "token_embd.weight",
    "per_layer_token_embd.weight",
    "output.weight",
];
/// Devices of a placement.
const DEVICES: usize = 3;
/// Tokens of the prompt, and decode steps after it.
const PROMPT: usize = 9;
const DECODED: usize = 3;
/// Difference of logits, as a share of the largest one.
const TOLERANCE: f32 = 1e-3;

/// A model and its logits on one device.
struct Known {
    file: Gguf,
    layers: usize,
    logits: Vec<f32>,
}

fn known(model: usize) -> &'static Known {
    static KNOWN: [OnceLock<Known>; MODELS.len()] = [const { OnceLock::new() }; MODELS.len()];
    KNOWN[model].get_or_init(|| {
        let file = Gguf::open(path(MODELS[model])).unwrap_or_else(|error| panic!("{error}"));
        let of = arch::load(file.metadata(), &file);
        let layers = of.unwrap_or_else(|error| unreachable!("{error}")).layers();
        let logits = logits(&file, PlacementRequest::default(), 32);
        Known {
            file,
            layers,
            logits,
        }
    })
}

/// Returns the file of a family: the one with the shortest name.
fn path(family: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../llm/tests/data/families");
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let of_family = |name: &String| {
        let rest = name
            .strip_prefix(family)
            .and_then(|rest| rest.strip_prefix('-'));
        rest.is_some_and(|rest| rest.ends_with(".gguf"))
    };
    let name = names.filter(of_family).min_by_key(String::len);
    folder.join(name.unwrap_or_else(|| panic!("no file of {family}")))
}

fn run(input: &[u8]) {
    let mut bytes = FuzzInput::new(input);
    let Known {
        file,
        layers,
        logits: expected,
    } = known(bytes.below(MODELS.len()));
    let stream_from = bytes.pick(&[None, Some(2), Some(5)]);
    let expert_cache = bytes.pick(&[None, Some(20_000), Some(200_000)]);
    let chunk = bytes.pick(&[2, 4, 32]);
    let place = |_| LayerPlace {
        layer: bytes.below(DEVICES),
        experts: bytes.below(DEVICES),
    };
    let mut placement = Placement::new((0..*layers).map(place).collect());
    for name in OUTER {
        placement = placement.with_outer([name.to_owned()], bytes.below(DEVICES));
    }
    // Steps wait for copies of missed experts if hand-overs take time.
    let handover = bytes.pick(&[None, Some(0.0)]);
    let request = PlacementRequest {
        fixed: Some(placement),
        stream_from,
        expert_cache,
        link: Some(DeviceLink {
            handover,
            ..DeviceLink::ASSUMED
        }),
        ..PlacementRequest::default()
    };
    let text = format!("{request:?}, chunks of {chunk}");
    let found = logits(file, request, chunk);
    let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
    let error = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let error = error.fold(0f32, f32::max);
    assert!(error <= TOLERANCE * largest, "{error} of {largest}: {text}");
}

/// Returns the logits of the prompt's last token and of decode steps.
fn logits(file: &Gguf, placement: PlacementRequest, chunk: usize) -> Vec<f32> {
    let device = || {
        let device = Arc::new(InterpDevice::new());
        Opened::new(device, None).with_precision(Precision::Exact)
    };
    let others = (1..DEVICES).map(|_| OtherDevice::from_opened(device()));
    let settings = Settings {
        context: Some(64),
        cache: CacheType::F32,
        chunk,
        long: Some(chunk),
        parallel: 1,
        placement: PlacementRequest {
            others: others.collect(),
            ..placement
        },
        ..Settings::default()
    };
    let engine = Engine::load(file, device(), settings, &|_| ());
    let mut engine = engine.unwrap_or_else(|error| panic!("{error}"));
    let tokens: Vec<u32> = (0..PROMPT + DECODED)
        .map(|i| (7 + 31 * i as u32) % 90)
        .collect();
    let pool = WholePool::new(&engine);
    let parts = std::iter::once(0..PROMPT).chain((PROMPT..tokens.len()).map(|i| i..i + 1));
    let run = |part: std::ops::Range<usize>| {
        let run = TokenRun {
            tokens: &tokens[part.clone()],
            position: part.start,
            pages: pool.pages(),
            contiguous: true,
        };
        let logits = engine.logits(run, Logits::Last);
        logits.unwrap_or_else(|error| panic!("{error}"))
    };
    parts.flat_map(run).collect()
}

fn seeds() -> Vec<Vec<u8>> {
    let mut random = crate::mutate::SplitMix(1);
    let bytes = |model: u8| {
        let choices = (0..24).map(|_| random.bits() as u8);
        std::iter::once(model).chain(choices).collect()
    };
    (0..MODELS.len() as u8).map(bytes).collect()
}
