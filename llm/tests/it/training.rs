//! Gradients of the demo model's adapters against PyTorch in f64.

use crate::common::demo_glm;
use crate::training_support::{Rows, batch, data, trainer};
use gristmill_llm::arch;
use gristmill_llm::chat::{ChatTemplate, Isolation, SpecialTexts};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::train::{Adapter, ExampleReader, LossOn, Trainer, TrainingBatch};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Largest error of a gradient, relative to its L2 norm; of an entry, to the largest entry.
const NORM: f64 = 1e-4;
const ENTRY: f64 = 1e-3;

/// A gradient by its norm and some entries: flat index and value.
#[derive(Deserialize)]
struct Gradient {
    norm: f64,
    entries: Vec<(usize, f64)>,
}

#[derive(Deserialize)]
struct Reference {
    loss: f64,
    total_norm: f64,
    tensors: BTreeMap<String, Gradient>,
}

fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> T {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("its fields")
}

/// Compares the gradients of a step with a reference; returns what differs.
fn differences(trainer: &mut Trainer, batch: &TrainingBatch, reference: &Path) -> Vec<String> {
    let reference: Reference = read(reference);
    trainer.accumulate(batch).expect("a pass");
    let step = trainer.finish_gradients().expect("a norm");
    let mut wrong = Vec::new();
    let mut near = |what: &str, found: f64, expected: f64, bound: f64| {
        if (found - expected).abs() > bound {
            wrong.push(format!(
                "{what}: {found}, expected {expected} within {bound}"
            ));
        }
    };
    near(
        "loss",
        step.loss.into(),
        reference.loss,
        NORM * reference.loss,
    );
    let norm = reference.total_norm;
    near("norm of all", step.gradient_norm.into(), norm, NORM * norm);
    let all = trainer.gradients().expect("gradients");
    for (name, expected) in &reference.tensors {
        let Some(place) = trainer.places().get(name) else {
            near(&format!("{name} is not trained"), 0.0, 1.0, 0.0);
            continue;
        };
        let found = &all[place.range.clone()];
        let squares: f64 = found.iter().map(|&g| f64::from(g) * f64::from(g)).sum();
        near(name, squares.sqrt(), expected.norm, NORM * expected.norm);
        let largest = expected
            .entries
            .iter()
            .map(|e| e.1.abs())
            .fold(0.0, f64::max);
        for &(at, value) in &expected.entries {
            near(
                &format!("{name}[{at}]"),
                found[at].into(),
                value,
                ENTRY * largest,
            );
        }
    }
    wrong
}

#[test]
fn gradients_of_adapters_are_pytorchs() {
    let file = Gguf::open(data("demo-glm-Q4_K_M.gguf")).expect("a model");
    let model = arch::load(file.metadata(), &file).expect("a model");
    let adapter = Gguf::open(data("training/adapter.gguf")).expect("an adapter");
    let adapter = Adapter::read(&adapter, model.as_ref()).expect("an adapter");
    let rows: Rows = read(&data("training/batch.json"));
    let mut trainer = trainer(&file, "cpu", Some(&adapter), &rows);
    let wrong = differences(
        &mut trainer,
        &batch(&rows),
        &data("training/gradients.json"),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn chats_become_the_reference_rows() {
    let tokenizer = demo_glm();
    let source = std::fs::read_to_string(data("demo-glm-template.jinja")).expect("a template");
    let specials = SpecialTexts::from(&tokenizer);
    let template = ChatTemplate::new(&source, &specials, &Isolation::InProcess);
    let reader = ExampleReader {
        tokenizer: &tokenizer,
        template: &template.expect("a template"),
        loss_on: LossOn::Replies,
    };
    let rows: Rows = read(&data("training/batch.json"));
    let text = std::fs::read_to_string(data("training/chats.jsonl")).expect("chats");
    for (i, line) in text.lines().enumerate() {
        let example = reader.read(line, 128).expect("a chat");
        let n = example.tokens.len();
        assert_eq!(example.tokens, rows.tokens[i][..n], "line {i}");
        let targets: Vec<u8> = example.is_target.iter().map(|&t| t.into()).collect();
        assert_eq!(targets, rows.is_target[i][..n], "line {i}");
        assert!(rows.is_target[i][n..].iter().all(|&t| t == 0));
    }
}

#[test]
fn lines_that_cannot_be_used_say_why() {
    let tokenizer = demo_glm();
    let specials = SpecialTexts::from(&tokenizer);
    let template = ChatTemplate::new(
        "{{ messages[0].content }}",
        &specials,
        &Isolation::InProcess,
    );
    let reader = ExampleReader {
        tokenizer: &tokenizer,
        template: &template.expect("a template"),
        loss_on: LossOn::Replies,
    };
    for (line, expected) in [
        ("[1]", "not a JSON object"),
        ("{\"txt\": \"a\"}", "expected \"messages\""),
        ("{\"text\": 5}", "\"text\" is no text"),
        (
            "{\"messages\": [{\"content\": \"a\"}]}",
            "a message has no role",
        ),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
            "it has no reply to learn",
        ),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}",
            "message 2: the chat template does not show the reply",
        ),
    ] {
        let error = reader.read(line, 128).expect_err(line).to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
    let pair = reader
        .read(
            "{\"prompt\": \"Once\", \"completion\": \" upon a time\"}",
            128,
        )
        .expect("a pair");
    let first = pair.is_target.iter().position(|&t| t).expect("a target");
    assert_eq!(tokenizer.decode(&pair.tokens[..first], true), "Once");
    assert_eq!(pair.tokens.last().copied(), tokenizer.eos());
}
