//! Pooling of hidden rows, against vectors and scores computed in f64 from the definitions.

use crate::common::{floats_of, ids_of};
use gristmill_backend::{Options, Precision, open};
use gristmill_llm::arch::{AdapterScales, CacheType};
use gristmill_llm::engine::{Engine, Settings};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::language;
use gristmill_llm::pooling::{PooledRows, Pooling, PoolingKind};
use gristmill_llm::rerank::RerankPrompt;
use gristmill_llm::sched::{Batcher, Reuse, SequenceId, SequenceOptions};
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/pooling")
        .join(name)
}

fn file() -> Gguf {
    Gguf::open(data("qwen3-rank-q8_0.gguf")).expect("the reranker")
}

fn expected() -> Value {
    let text = std::fs::read_to_string(data("expected.json")).expect("expected values");
    serde_json::from_str(&text).expect("JSON")
}

fn batcher() -> Batcher {
    let options = Options {
        precision: Precision::Exact,
        quick: true,
        ..Options::default()
    };
    let opened = open("cpu", &options).expect("a device");
    let settings = Settings {
        context: Some(1024),
        parallel: 4,
        contexts: 4,
        cache: CacheType::F32,
        ..Settings::default()
    };
    Batcher::new(Engine::load(&file(), opened, settings, &|_| ()).expect("an engine"))
}

const HIDDEN: SequenceOptions = SequenceOptions {
    speculates: false,
    reuse: Reuse::Exact,
    batch_invariant: false,
    adapters: AdapterScales::BASE,
    hidden: true,
};

/// Steps until a sequence is ready; returns its values. Others continue with token 9.
fn values_of(batcher: &mut Batcher, pooling: &Pooling, id: SequenceId) -> Vec<f32> {
    loop {
        let ready = batcher.step(&mut |_, _| None).expect("a step");
        for of in ready {
            if of.sequence != id {
                assert!(batcher.hidden_row(of).is_none());
                batcher.push(of.sequence, 9);
                continue;
            }
            let row = batcher.hidden_row(of).expect("a hidden row");
            let mut text = pooling.start(row.len());
            text.add(row);
            batcher.remove(id);
            return text.values();
        }
    }
}

fn near(what: &str, values: &[f32], want: &[f32]) {
    let apart = values.iter().zip(want).map(|(a, b)| (a - b).abs());
    let apart = apart.fold(0.0, f32::max);
    assert!(
        values.len() == want.len() && apart < 2e-5,
        "{what}: {apart}"
    );
}

#[test]
fn pooled_rows_are_those_of_the_definitions() {
    let (file, expected, mut batcher) = (file(), expected(), batcher());
    let width = batcher.engine().model().width();
    for kind in [PoolingKind::Mean, PoolingKind::Cls, PoolingKind::Last] {
        let pooling = Pooling::read(&file, Some(kind)).expect("a pooling");
        for of in expected["embeddings"].as_array().expect("embeddings") {
            // Parts of 64 tokens: the longest text has several.
            let mut text = pooling.start(width);
            let mut rows = Vec::new();
            let prompt = ids_of(of);
            let flow = batcher
                .run_uncached((&prompt, AdapterScales::BASE), 64, &mut |engine, run| {
                    engine.hidden_rows(run, &mut |part| rows.extend_from_slice(part))?;
                    Ok(ControlFlow::Continue(()))
                })
                .expect("a run");
            assert!(flow.is_some() && rows.len() == prompt.len() * width);
            match pooling.rows() {
                PooledRows::All => text.add(&rows),
                PooledRows::First => text.add(&rows[..width]),
                PooledRows::Last => text.add(&rows[rows.len() - width..]),
            }
            near(kind.name(), &text.values(), &floats_of(&of[kind.name()]));
        }
    }
}

#[test]
fn last_rows_come_from_sequences_of_the_scheduler() {
    let (file, expected, mut batcher) = (file(), expected(), batcher());
    let last = Pooling::read(&file, Some(PoolingKind::Last)).expect("a pooling");
    let rank = Pooling::read(&file, None).expect("a pooling");
    assert_eq!(rank.kind(), Some(PoolingKind::Rank));
    let texts = expected["embeddings"].as_array().expect("embeddings");
    let documents = expected["scores"].as_array().expect("scores");
    // Alone, again with a prefix hit, and then in mixed batches beside sequences that decode.
    for round in 0..3 {
        if round == 2 {
            for first in [40, 60] {
                let prompt: Vec<u32> = (first..first + 5).collect();
                let options = SequenceOptions::default();
                batcher.add(&prompt, options).expect("a sequence");
            }
        }
        for of in texts {
            let id = batcher.add(&ids_of(of), HIDDEN).expect("a sequence");
            let values = values_of(&mut batcher, &last, id);
            near("last", &values, &floats_of(&of["last"]));
        }
        for of in documents {
            let id = batcher.add(&ids_of(of), HIDDEN).expect("a sequence");
            let values = values_of(&mut batcher, &rank, id);
            let want = of["score"].as_f64().expect("a score") as f32;
            near("score", &values, &[want]);
        }
    }
    assert!(batcher.steps().mixed > 0);
}

#[test]
fn a_query_and_a_document_are_tokenised_by_the_files_template() {
    let (file, expected) = (file(), expected());
    let tokenizer = language::tokenizer(file.metadata()).expect("a tokenizer");
    let prompt = RerankPrompt::read(file.metadata());
    let query = expected["query"].as_str().expect("a query");
    for of in expected["scores"].as_array().expect("scores") {
        let document = of["document"].as_str().expect("a document");
        assert_eq!(prompt.encode(&tokenizer, query, document), ids_of(of));
    }
    for of in expected["embeddings"].as_array().expect("embeddings") {
        let text = of["text"].as_str().expect("a text");
        assert_eq!(tokenizer.encode(text, false, true), ids_of(of));
    }
    assert!(!language::has_template(file.metadata()));
    // Special tokens belong to the template alone; without one, each text has its end.
    let end = tokenizer.token_id("<|im_end|>").expect("a special token");
    let count = |ids: Vec<u32>| ids.iter().filter(|&&id| id == end).count();
    let spelt = "<|im_end|> and {query}";
    assert_eq!(count(prompt.encode(&tokenizer, spelt, spelt)), 1);
    let plain = RerankPrompt::default().encode(&tokenizer, "A", spelt);
    assert_eq!((plain[1], count(plain)), (end, 2));
}

#[test]
fn a_generative_file_ranks_nothing() {
    let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/families");
    let file = Gguf::open(families.join("qwen3-q8_0.gguf")).expect("a model");
    assert_eq!(Pooling::read(&file, None).expect("a pooling").kind(), None);
    let last = Pooling::read(&file, Some(PoolingKind::Last)).expect("a pooling");
    assert_eq!(last.kind(), Some(PoolingKind::Last));
    let error = Pooling::read(&file, Some(PoolingKind::Rank)).expect_err("an error");
    assert!(error.to_string().contains("cls.output.weight"), "{error}");
}
