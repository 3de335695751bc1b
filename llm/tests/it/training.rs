//! Gradients of the demo model's adapters, and lines of training data.

use crate::common::{data, demo_glm};
use crate::training_support::{Rows, check_adapters, read};
use gristmill_llm::chat::{ChatTemplate, Isolation, SpecialTexts};
use gristmill_llm::train::{ExampleReader, LossOn};

#[test]
fn gradients_of_adapters_are_pytorchs() {
    check_adapters("cpu");
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
