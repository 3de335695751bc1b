//! Assistants, which draft tokens by the KV cache of their model: their logits against references
//! by transformers (`families/assistant.py`), and texts with their drafts.

use crate::common::data;
use crate::parity_support::tables::{argmax, ids, npy, rms};
use gristmill_backend::{Options, Precision, open};
use gristmill_llm::arch::{self, CacheType, DraftSource};
use gristmill_llm::engine::{Engine, Settings, Step, TokenSource, WholePool};
use gristmill_llm::gguf::{Gguf, Metadata, OtherKind, TensorDecl, Writer};

/// RMS of the difference, in standard deviations of the reference.
const EXACT: f64 = 1e-3;
/// Positions of the reference, and drafts after each.
pub const POSITIONS: [usize; 18] = [
    1, 2, 7, 15, 16, 17, 18, 31, 33, 48, 62, 63, 64, 65, 66, 79, 80, 94,
];
pub const DRAFTS: usize = 3;
const VOCABULARY: usize = 512;

const TARGET: &str = "families/gemma4-q8_0.gguf";
const ASSISTANT: &str = "families/gemma4-assistant-q8_0.gguf";

/// Returns a copy of a file with other metadata, without the tensors that are not kept.
fn changed(file: &Gguf, change: &dyn Fn(&mut Metadata), keeps: &dyn Fn(&str) -> bool) -> Vec<u8> {
    let mut metadata = file.metadata().clone();
    change(&mut metadata);
    let tensors: Vec<_> = file.tensors().iter().filter(|t| keeps(&t.name)).collect();
    let decls: Vec<_> = tensors
        .iter()
        .map(|t| TensorDecl {
            name: &t.name,
            dims: &t.dims,
            encoding: t.encoding,
        })
        .collect();
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out, &metadata, &decls).expect("a header");
    for tensor in tensors {
        let mut bytes = vec![0; tensor.bytes as usize];
        file.read_tensor(tensor, &mut bytes).expect("a tensor");
        writer.data(&bytes).expect("data");
    }
    writer.finish().expect("a file");
    out
}

/// Returns the assistant's file, with or without the clusters of its head.
fn assistant(is_clustered: bool) -> Gguf {
    let file = Gguf::open(data(ASSISTANT)).expect("a GGUF file");
    let keeps = |name: &str| is_clustered || !name.starts_with("masked_embd");
    Gguf::from_bytes(changed(&file, &|_| (), &keeps)).expect("a file")
}

/// Returns the model with its assistant.
fn model(is_clustered: bool) -> Gguf {
    let mut file = Gguf::open(data(TARGET)).expect("a GGUF file");
    let side = assistant(is_clustered);
    file.attach_draft_block(side).expect("an assistant");
    file
}

fn engine(device: &str, is_clustered: bool, cache: CacheType) -> Engine {
    let options = Options {
        precision: Precision::Exact,
        quick: true,
        ..Options::default()
    };
    let settings = Settings {
        context: Some(512),
        cache,
        chunk: 32,
        parallel: 4,
        draft_block: true,
        ..Settings::default()
    };
    let opened = open(device, &options).expect("a device");
    let engine = Engine::load(&model(is_clustered), opened, settings, &|_| ()).expect("a model");
    assert!(engine.has_draft_block() && engine.shares_draft_cache());
    assert!(
        engine.cache().window_pages().is_some(),
        "windows have pages"
    );
    engine
}

/// Returns the RMS difference of the logits that the reference has.
fn error(found: &[f32], expected: &[f32]) -> f64 {
    let all = found.iter().zip(expected).filter(|of| of.1.is_finite());
    let (own, known): (Vec<f32>, Vec<f32>) = all.unzip();
    rms(&own, &known)
}

/// Drafts after the tokens at some of the reference's positions, with their prompt in the KV cache,
/// and compares the logits.
fn compare(
    engine: &mut Engine,
    (tokens, expected): (&[u32], &[f32]),
    (positions, contiguous): (&[usize], bool),
    from: &[Option<usize>],
    most: f64,
) {
    let pool = WholePool::new(engine);
    let mut next: Vec<u32> = positions.iter().map(|&at| tokens[at]).collect();
    let mut from = from.to_vec();
    for draft in 0..DRAFTS {
        let source = match draft {
            0 => DraftSource::Model,
            _ => DraftSource::Block,
        };
        let tokens = positions.iter().zip(&next);
        let rows: Vec<_> = tokens
            .map(|(&at, &token)| pool.row(TokenSource::Token(token), at))
            .collect();
        let step = Step {
            rows: &rows,
            contiguous,
            ..Step::default()
        };
        let output = engine.run_drafts(&step, source, &from).expect("drafts");
        let mut logits = Vec::new();
        for (row, at) in positions.iter().enumerate() {
            let nth = POSITIONS
                .iter()
                .position(|of| of == at)
                .expect("a position");
            let expected = &expected[(nth * DRAFTS + draft) * VOCABULARY..][..VOCABULARY];
            engine.row_logits(row, &mut logits).expect("logits");
            let error = error(&logits, expected);
            assert!(error <= most, "position {at}, draft {draft}: rms {error}");
            let best = argmax(expected) as u32;
            let is_best = output.chosen[row] == Some(best) || most > EXACT;
            assert!(is_best, "position {at}, draft {draft}");
            next[row] = best;
        }
        from = (0..positions.len()).map(Some).collect();
    }
}

fn check(device: &str, is_clustered: bool, (cache, most): (CacheType, f64)) {
    let mut of = engine(device, is_clustered, cache);
    let tokens = ids(&data("families/gemma4-tokens.txt"));
    let name = if is_clustered {
        "clustered-logits"
    } else {
        "logits"
    };
    let expected = npy(&data(&format!("families/gemma4-assistant-q8_0-{name}.npy")));
    let known = (&tokens[..], &expected[..]);
    // A token at a time, so that every window has its pages.
    let pool = WholePool::new(&of);
    let mut begun = 0;
    for position in POSITIONS {
        for at in begun..position {
            of.run(&pool.step(&tokens[at..=at], at)).expect("a step");
        }
        begun = position;
        for contiguous in [true, false] {
            // The row after the cache's last one is that of a draft that was refused.
            compare(&mut of, known, (&[position], contiguous), &[Some(0)], most);
        }
    }
    // Rows of a batch, after hidden rows of one step.
    for group in [[15, 16, 17], [62, 63, 64], [64, 65, 66]] {
        let first = group[0] - 2;
        let rows: Vec<_> = (first..group[2])
            .map(|at| pool.row(TokenSource::Token(tokens[at]), at))
            .collect();
        let step = Step {
            rows: &rows,
            ..Step::default()
        };
        of.run(&step).expect("a step");
        let from = group.map(|at| Some(at - 1 - first));
        compare(&mut of, known, (&group, false), &from, most);
    }
}

#[test]
fn an_assistant_drafts_as_its_reference() {
    check("cpu", false, (CacheType::F32, EXACT));
    check("cpu", false, (CacheType::F16, 0.01));
    check("cpu", false, (CacheType::Int8, 0.1));
}
#[test]
fn a_clustered_head_scores_the_tokens_of_the_nearest_clusters() {
    check("cpu", true, (CacheType::F32, EXACT));
}
#[test]
fn an_assistant_drafts_as_its_reference_by_the_interpreter() {
    check("interp", true, (CacheType::F32, EXACT));
}
#[cfg(feature = "cuda-tests")]
#[test]
fn an_assistant_drafts_as_its_reference_on_cuda() {
    check("cuda", false, (CacheType::F32, EXACT));
    check("cuda", true, (CacheType::F32, EXACT));
}

/// Files that do not fit the model are refused, and say why.
#[test]
fn an_assistant_of_another_model_is_refused() {
    let file = assistant(false);
    let attached = |keys: &[&str], value: u32| {
        let change = |metadata: &mut Metadata| {
            for key in keys {
                metadata.insert(format!("gemma4-assistant.{key}"), value);
            }
        };
        let side = Gguf::from_bytes(changed(&file, &change, &|_| true)).expect("a file");
        let mut model = Gguf::open(data(TARGET)).expect("a GGUF file");
        let attached = model.attach_draft_block(side);
        attached.map_err(|error| error.to_string()).and_then(|()| {
            let loaded = arch::load(model.metadata(), &model);
            loaded.map(|_| ()).map_err(|error| error.to_string())
        })
    };
    let of_heads = [
        "attention.key_length",
        "attention.value_length",
        "rope.dimension_count",
    ];
    let cases: [(&[&str], u32, &str); 5] = [
        (
            &["embedding_length_out"],
            256,
            "width 256, and this one's is 128",
        ),
        (&of_heads, 32, "key_length is 32, not 64"),
        (
            &["attention.sliding_window"],
            32,
            "sliding_window is 32, not 16",
        ),
        (&["attention.head_count_kv"], 2, "head_count_kv is 2, not 1"),
        (&["feed_forward_length"], 64, "ffn_gate.weight has dims"),
    ];
    for (keys, value, says) in cases {
        let why = attached(keys, value).expect_err("an error");
        assert!(why.contains(says), "{keys:?}: {why}");
    }
    attached(&["embedding_length_out"], 128).expect("the model's assistant");
    // Of a model of another architecture, or alone.
    let mut other = Gguf::open(data("families/gemma3-q8_0.gguf")).expect("a GGUF file");
    let why = other
        .attach_draft_block(assistant(false))
        .expect_err("an error");
    assert!(why.to_string().contains("another architecture"), "{why}");
    let kind = file.metadata().other_kind().expect("a kind");
    assert_eq!(kind, Some(OtherKind::Assistant));
}
