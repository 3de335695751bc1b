//! Models on several devices: the reference logits of all families, placed at random.

use crate::common::{data, drawn, forward};
use crate::parity_support::tables::{argmax, ids, npy, rms};
use gristmill_backend::{Opened, Options, Precision, open};
use gristmill_llm::arch::CacheType;
use gristmill_llm::engine::{
    Engine, ExpertCacheStats, Settings, Step, TokenRun, TokenSource, WholePool,
};
use gristmill_llm::gguf::{Gguf, Role};
use gristmill_llm::placement::{LayerPlace, OtherDevice, Placement, PlacementRequest};
use gristmill_runtime::{CopySpan, Span};
use gristmill_uop::link::DeviceLink;

/// RMS of the difference, in standard deviations of the reference.
const EXACT: f64 = 1e-3;
/// Placements of each family.
const PLACEMENTS: u64 = if cfg!(feature = "reference-tests") {
    10
} else {
    2
};

const FAMILIES: &[(&str, &str)] = &[
    ("granite", "q8_0"),
    ("llama", "q4_k_m"),
    ("mistral", "q8_0"),
    ("mistral3", "q8_0"),
    ("olmo2", "q8_0"),
    ("olmo2-windows", "q8_0"),
    ("phi3", "q8_0"),
    ("qwen2", "q8_0"),
    ("qwen3", "q8_0"),
    ("qwen35", "q8_0"),
    ("qwen35moe", "q8_0"),
    ("qwen3moe", "q8_0"),
    ("gemma2", "q8_0"),
    ("gemma3", "q8_0"),
    ("gemma4", "q8_0"),
    ("gemma4-moe", "q8_0"),
    ("gpt-oss", "mxfp4"),
    ("glm4moe", "q8_0"),
    ("minimax-m2", "q8_0"),
    ("deepseek2", "q8_0"),
    ("deepseek2-kimi", "q8_0"),
    ("deepseek2-nextn", "q8_0"),
];

fn exact(device: &str) -> Opened {
    let options = Options {
        precision: Precision::Exact,
        quick: true,
        ..Options::default()
    };
    open(device, &options).expect("a device")
}

fn placed(file: &Gguf, devices: &[&str], placement: Placement, parallel: usize) -> Engine {
    let fixed = Some(placement);
    let request = PlacementRequest {
        fixed,
        ..PlacementRequest::default()
    };
    requested(file, devices, parallel, request)
}

fn requested(file: &Gguf, devices: &[&str], parallel: usize, of: PlacementRequest) -> Engine {
    let mut opened = devices.iter().map(|device| exact(device));
    let main = opened.next().expect("a main device");
    let settings = Settings {
        context: Some(256),
        cache: CacheType::F32,
        chunk: 32,
        long: Some(32),
        parallel,
        placement: PlacementRequest {
            others: opened.map(OtherDevice::from_opened).collect(),
            ..of
        },
        ..Settings::default()
    };
    Engine::load(file, main, settings, &|_| ()).expect("a model")
}

fn check(family: &str, quant: &str, devices: &[&str], placements: u64) {
    let file = Gguf::open(data(&format!("families/{family}-{quant}.gguf"))).expect("a GGUF file");
    let expected = npy(&data(&format!("families/{family}-{quant}-logits.npy")));
    let tokens = ids(&data(&format!("families/{family}-tokens.txt")));
    let vocabulary = expected.len() / tokens.len();
    let layers = gristmill_llm::arch::load(file.metadata(), &file)
        .expect("a model")
        .layers();
    for seed in 0..placements {
        let placement = drawn(seed + 1, layers, devices.len() as u64);
        // Every other placement copies experts to the main device for chunks.
        let stream = (seed % 2 == 1).then_some(2);
        let request = PlacementRequest {
            fixed: Some(placement.clone()),
            stream_from: stream,
            ..PlacementRequest::default()
        };
        let mut e = requested(&file, devices, 1, request);
        if stream.is_some() {
            assert_eq!(e.placement().stream_from, stream);
        }
        let whole = forward(&mut e, &tokens, 0, true);
        let count = 24.min(tokens.len());
        let by_token: Vec<f32> = (0..count)
            .flat_map(|i| forward(&mut e, &tokens[i..=i], i, true))
            .collect();
        let of = [
            (&whole[..], &expected[..]),
            (&by_token, &expected[..count * vocabulary]),
        ];
        for (found, expected) in of {
            let error = rms(found, expected);
            assert!(error <= EXACT, "{family} by {placement:?}: rms {error}");
            let rows = found.chunks(vocabulary).zip(expected.chunks(vocabulary));
            for (row, (a, b)) in rows.enumerate() {
                assert_eq!(argmax(a), argmax(b), "{family} by {placement:?}: row {row}");
            }
        }
    }
}

#[test]
fn families_give_the_same_logits_wherever_their_parts_are() {
    for (family, quant) in FAMILIES {
        check(family, quant, &["cpu", "cpu"], PLACEMENTS);
    }
}

const WITH_EXPERTS: &[(&str, &str)] = &[
    ("qwen35moe", "q8_0"),
    ("qwen3moe", "q8_0"),
    ("gemma4-moe", "q8_0"),
    ("gpt-oss", "mxfp4"),
    ("glm4moe", "q8_0"),
    ("minimax-m2", "q8_0"),
    ("deepseek2", "q8_0"),
    ("deepseek2-kimi", "q8_0"),
];

/// A link over which copies take longer than computing on the other device: no step waits for one.
const WITHOUT_WAITS: DeviceLink = DeviceLink {
    upload: Some(1e9),
    handover: Some(0.0),
    ..DeviceLink::ASSUMED
};

/// Checks the logits of decode steps with half of the experts of each layer in slots, first with a
/// link over which missed experts are copied before their layer, then without such copies. Returns
/// how many experts were copied afterwards.
fn check_cached(family: &str, quant: &str, devices: &[&str], stream_from: Option<usize>) -> u64 {
    let with = |link| cached_steps(family, quant, devices, (stream_from, link));
    let stats = with(DeviceLink::ASSUMED);
    assert!(stats.waited > 0, "{family}: {stats:?}");
    let stats = with(WITHOUT_WAITS);
    assert_eq!(stats.waited, 0, "{family}: {stats:?}");
    stats.copied
}

fn cached_steps(
    family: &str,
    quant: &str,
    devices: &[&str],
    (stream_from, link): (Option<usize>, DeviceLink),
) -> ExpertCacheStats {
    let file = Gguf::open(data(&format!("families/{family}-{quant}.gguf"))).expect("a GGUF file");
    let expected = npy(&data(&format!("families/{family}-{quant}-logits.npy")));
    let tokens = ids(&data(&format!("families/{family}-tokens.txt")));
    let vocabulary = expected.len() / tokens.len();
    let away = LayerPlace {
        layer: 0,
        experts: 1,
    };
    let of_experts = file.tensors().iter().filter(|t| t.name.contains("_exps."));
    let request = PlacementRequest {
        fixed: Some(Placement::new(vec![away; 64])),
        stream_from,
        link: Some(link),
        expert_cache: Some(of_experts.map(|t| t.bytes).sum::<u64>() / 2),
        ..PlacementRequest::default()
    };
    let mut e = requested(&file, devices, 1, request);
    for i in 0..tokens.len() {
        let row = forward(&mut e, &tokens[i..=i], i, true);
        let wanted = &expected[i * vocabulary..(i + 1) * vocabulary];
        let error = rms(&row, wanted);
        assert!(error <= EXACT, "{family}, token {i}: rms {error}");
        assert_eq!(argmax(&row), argmax(wanted), "{family}, token {i}");
    }
    let stats = e.expert_cache().expect("experts are cached");
    let chosen = stats.hits + stats.misses;
    assert!(
        stats.hits > chosen / 8 && stats.misses > chosen / 8,
        "{family}: {stats:?}"
    );
    stats
}

#[test]
fn cached_experts_give_the_same_logits() {
    let mut copied = 0;
    for (family, quant) in WITH_EXPERTS {
        copied += check_cached(family, quant, &["cpu", "cpu"], None);
    }
    assert!(copied > 0, "no expert was copied");
    check_cached("qwen3moe", "q8_0", &["cpu", "cpu"], Some(2));
}

#[cfg(feature = "cuda-tests")]
#[test]
fn cached_experts_give_the_same_logits_on_cuda() {
    for (family, quant) in WITH_EXPERTS {
        check_cached(family, quant, &["cuda", "cpu"], Some(2));
    }
}

/// Several sequences of which each misses other experts.
#[test]
fn batches_share_cached_experts() {
    let file = Gguf::open(data("families/deepseek2-q8_0.gguf")).expect("a GGUF file");
    let tokens = ids(&data("families/deepseek2-tokens.txt"));
    let chosen = |expert_cache: Option<u64>, batch_invariant: bool| {
        let away = LayerPlace {
            layer: 0,
            experts: 1,
        };
        let request = PlacementRequest {
            fixed: Some(Placement::new(vec![away; 64])),
            stream_from: Some(1000),
            link: Some(WITHOUT_WAITS),
            expert_cache,
            ..PlacementRequest::default()
        };
        // The graph of the largest batch, which is that of batch-invariant steps, has none.
        let mut e = requested(&file, &["cpu", "cpu"], 4, request);
        let pools = [0, 1].map(|nth| WholePool::share(&e, [nth, 2], 2));
        let mut chosen = Vec::new();
        for position in 0..40 {
            let rows: Vec<_> = pools
                .iter()
                .enumerate()
                .map(|(i, pool)| pool.row(TokenSource::Token(tokens[7 * i + position]), position))
                .collect();
            let step = Step {
                rows: &rows,
                batch_invariant,
                ..Step::default()
            };
            chosen.extend(e.run(&step).expect("a step").chosen);
        }
        (chosen, e.expert_cache())
    };
    let (plain, none) = chosen(Some(0), false);
    let (cached, stats) = chosen(Some(150_000), false);
    assert_eq!(none, None);
    let stats = stats.expect("experts are cached");
    assert!(stats.hits > 0 && stats.misses > 0, "{stats:?}");
    assert_eq!(cached, plain);
    let (invariant, stats) = chosen(Some(150_000), true);
    assert_eq!(invariant, plain);
    assert!(
        stats.is_some_and(|of| of.hits + of.misses == 0),
        "{stats:?}"
    );
}

#[test]
fn parts_may_be_interpreted() {
    for family in ["qwen3moe", "gemma4"] {
        check(family, "q8_0", &["cpu", "interp", "cpu"], 1);
    }
}

#[cfg(feature = "wgpu")]
#[test]
fn families_are_placed_on_wgpu_and_cpu() {
    for family in ["qwen3moe", "deepseek2"] {
        check(family, "q8_0", &["wgpu", "cpu"], 2);
    }
}

/// A prompt of many steps on two devices, each with half of the layers, and decode steps after it.
fn check_divided(family: &str, quant: &str, devices: &[&str]) {
    let file = Gguf::open(data(&format!("families/{family}-{quant}.gguf"))).expect("a GGUF file");
    let tokens = ids(&data(&format!("families/{family}-tokens.txt")));
    let tokens: Vec<u32> = tokens.iter().cycle().take(230).copied().collect();
    let model = gristmill_llm::arch::load(file.metadata(), &file).expect("a model");
    let layers = model.layers();
    let at = |layer: usize| LayerPlace {
        layer: usize::from(layer >= layers / 2),
        experts: usize::from(layer >= layers / 2),
    };
    let rows = |placement: Placement| {
        let request = PlacementRequest {
            fixed: Some(placement),
            ..PlacementRequest::default()
        };
        let mut e = requested(&file, devices, 1, request);
        let mut rows = forward(&mut e, &tokens[..200], 0, false);
        let decoded = (200..230).map(|i| forward(&mut e, &tokens[i..=i], i, false));
        rows.extend(decoded.flatten().collect::<Vec<f32>>());
        let pool = WholePool::new(&e);
        let run = TokenRun {
            tokens: &tokens[..70],
            position: 0,
            pages: pool.pages(),
            contiguous: true,
        };
        let mut hidden = Vec::new();
        let read = e.hidden_rows(run, &mut |rows| hidden.extend_from_slice(rows));
        read.expect("hidden rows");
        (rows, hidden)
    };
    let whole = rows(Placement::default());
    let divided = rows(Placement::new((0..layers).map(at).collect()));
    for (found, expected) in [(&divided.0, &whole.0), (&divided.1, &whole.1)] {
        assert_eq!(found.len(), expected.len());
        let error = rms(found, expected);
        assert!(error <= EXACT, "{family}: rms {error}");
    }
}

#[test]
fn a_prompt_of_many_steps_is_divided_among_devices() {
    for (family, quant) in [
        ("deepseek2", "q8_0"),
        ("gemma3", "q8_0"),
        ("qwen35", "q8_0"),
    ] {
        check_divided(family, quant, &["cpu", "cpu"]);
    }
}

/// Two contexts of one GPU, which queue the copies between their steps.
#[cfg(feature = "cuda-tests")]
#[test]
fn layers_are_divided_among_contexts_of_a_gpu() {
    for (family, quant) in FAMILIES {
        check_divided(family, quant, &["cuda", "cuda"]);
        check(family, quant, &["cuda", "cuda", "cpu"], 3);
    }
}

#[cfg(feature = "cuda-tests")]
#[test]
fn families_are_placed_on_cuda_and_cpu() {
    for (family, quant) in FAMILIES {
        check(family, quant, &["cuda", "cpu"], 10);
    }
}

/// Greedy tokens of a sequence whose steps read the tokens that the steps before chose.
#[test]
fn chosen_tokens_are_those_of_one_device() {
    let file = Gguf::open(data("families/deepseek2-q8_0.gguf")).expect("a GGUF file");
    let tokens = ids(&data("families/deepseek2-tokens.txt"));
    let decode = |placement: Placement| {
        let mut e = placed(&file, &["cpu", "cpu"], placement, 2);
        let pool = WholePool::new(&e);
        let first = e.run(&pool.step(&tokens[..16], 0)).expect("a step").chosen;
        assert!(first.is_empty(), "a prefill chunk chooses no token");
        let mut chosen = vec![tokens[16]];
        for position in 16..40 {
            let token = TokenSource::Token(chosen[chosen.len() - 1]);
            let rows = [pool.row(token, position)];
            let step = Step {
                rows: &rows,
                contiguous: true,
                ..Step::default()
            };
            chosen.extend(e.run(&step).expect("a step").chosen.into_iter().flatten());
        }
        chosen
    };
    let whole = decode(Placement::default());
    let layers = 8;
    let experts = Placement::new(vec![
        LayerPlace {
            layer: 0,
            experts: 1
        };
        layers
    ]);
    assert_eq!(decode(experts), whole);
    assert_eq!(decode(drawn(7, layers, 2)), whole);
}

#[test]
fn a_traced_step_has_its_devices_and_copies() {
    let file = Gguf::open(data("families/qwen3moe-q8_0.gguf")).expect("a GGUF file");
    let tokens = ids(&data("families/qwen3moe-tokens.txt"));
    let away = LayerPlace {
        layer: 0,
        experts: 1,
    };
    // Chunks copy experts to the main device; decode steps compute them on the other one.
    let request = PlacementRequest {
        fixed: Some(Placement::new(vec![away; 8])),
        stream_from: Some(2),
        ..PlacementRequest::default()
    };
    let mut e = requested(&file, &["cpu", "interp"], 1, request);
    let pool = WholePool::new(&e);
    let chunk = e.run_traced(&pool.step(&tokens[..16], 0)).expect("a step");
    let token = e
        .run_traced(&pool.step(&tokens[16..17], 16))
        .expect("a step");
    let routes = |copies: &[CopySpan]| {
        let mut routes: Vec<_> = copies.iter().map(|c| (c.from, c.to)).collect();
        routes.sort_unstable();
        routes.dedup();
        routes
    };
    assert_eq!(routes(&chunk.copies), [(None, 0)]);
    assert!(chunk.devices.iter().all(|&device| device == 0));
    assert_eq!(routes(&token.copies), [(Some(0), 1), (Some(1), 0)]);
    for device in [0, 1] {
        let is_there = |span: &Span| token.devices[span.launch] == device;
        assert!(token.spans.iter().any(is_there), "{device}");
    }
    for copy in chunk.copies.iter().chain(&token.copies) {
        assert!(copy.bytes > 0 && copy.start <= copy.end, "{copy:?}");
    }
    // A part starts when the copy that it waits for has ended.
    let first = |device: usize| token.devices.iter().position(|&of| of == device);
    let launch = first(1).expect("a launch on the other device");
    let span = token.spans.iter().find(|span| span.launch == launch);
    assert!(span.expect("its span").start >= token.copies[0].end);
}

/// Names say which tensors are of routed experts, as adapters have no row in the tensor table.
#[test]
fn names_of_experts_agree_with_the_tensor_table() {
    let away = LayerPlace {
        layer: 0,
        experts: 1,
    };
    let placement = Placement::new(vec![away; 64]);
    let mut found = 0;
    for (family, quant) in FAMILIES {
        let path = data(&format!("families/{family}-{quant}.gguf"));
        let file = Gguf::open(path).expect("a GGUF file");
        let model = gristmill_llm::arch::load(file.metadata(), &file).expect("a model");
        for tensor in model.tensors() {
            let is_away = placement.weight(&tensor.name) == 1;
            match tensor.role {
                Role::Experts | Role::ExpertsDown(_) => {
                    assert!(is_away, "{family}: {}", tensor.name);
                    found += 1;
                }
                // Of experts or not.
                Role::Bias | Role::Norm => {}
                _ => assert!(!is_away, "{family}: {}", tensor.name),
            }
        }
    }
    assert!(found > 20, "{found}");
}
