//! Generation: tokens, parameters and errors.

use super::grpc_client::{Generated, greedy, with};
use super::{start, tokens};
use gristmill_grpc::messages::vllm::{
    ChoiceConstraint, Constraint, GenerateRequest, Present, PromptInput,
};
use gristmill_server::Config;
use serde_json::json;
use tonic::Code;

const STORY: &str = "Once upon a time there was a wolf who";

/// Returns the tokens of the chunks of an output.
fn streamed(generated: &Generated, index: u32) -> Vec<u32> {
    let chunks = generated.chunks.iter().filter(|chunk| chunk.index == index);
    chunks.flat_map(|chunk| chunk.token_ids.clone()).collect()
}

#[test]
fn tokens_are_those_of_the_http_interface() {
    let (server, grpc) = start(Config::default());
    let prompt = tokens(&server, STORY);
    let body = json!({ "prompt": prompt, "temperature": 0, "max_tokens": 24 });
    let answer = server.client.post("/v1/completions", &body).ok();
    let text = &answer["choices"][0]["text"];

    let whole = grpc.generate(greedy(&prompt, 24)).expect("an output");
    let [complete] = &whole.complete[..] else {
        panic!("{whole:?}")
    };
    assert!(whole.chunks.is_empty());
    assert_eq!(complete.finish_reason, "length");
    assert_eq!(
        (complete.output_ids.len(), complete.completion_tokens),
        (24, 24)
    );
    assert_eq!(complete.prompt_tokens as usize, prompt.len());
    let detokenized = json!({ "tokens": complete.output_ids });
    let detokenized = server.client.post("/detokenize", &detokenized).ok();
    assert_eq!(&detokenized["content"], text);

    let request = GenerateRequest {
        stream: true,
        ..greedy(&prompt, 24)
    };
    let parts = grpc.generate(request).expect("an output");
    assert_eq!(streamed(&parts, 0), complete.output_ids);
    assert_eq!(parts.complete[0].output_ids, complete.output_ids);
    assert!(
        parts
            .chunks
            .iter()
            .all(|chunk| chunk.output_logprobs.is_none())
    );
    // A text is tokenised here.
    let text = GenerateRequest {
        input: Some(PromptInput::Text(STORY.into())),
        ..greedy(&[], 24)
    };
    let of_text = grpc.generate(text).expect("an output");
    assert_eq!(of_text.complete[0].output_ids, complete.output_ids);
}

#[test]
fn stops_choices_and_log_probabilities() {
    let (server, grpc) = start(Config::default());
    let prompt = tokens(&server, STORY);
    let free = grpc.generate(greedy(&prompt, 16)).expect("an output");
    let ids = &free.complete[0].output_ids;
    let last = ids[9];
    let first = ids.iter().position(|&id| id == last).expect("the token");
    let stopped = with(greedy(&prompt, 16), |params| {
        params.stop_token_ids = vec![last]
    });
    let stopped = grpc.generate(stopped).expect("an output");
    assert_eq!(stopped.complete[0].finish_reason, "stop");
    assert_eq!(stopped.complete[0].output_ids, ids[..first]);

    let asked = with(greedy(&prompt, 6), |params| {
        (params.n, params.logprobs, params.prompt_logprobs) = (2, Some(3), Some(1));
    });
    let stream = GenerateRequest {
        stream: true,
        ..asked.clone()
    };
    for generated in [grpc.generate(asked), grpc.generate(stream)] {
        let generated = generated.expect("outputs");
        assert_eq!(generated.complete.len(), 2);
        let chunks = generated.chunks.iter();
        let in_chunks = chunks.filter_map(|chunk| chunk.output_logprobs.as_ref());
        let whole = generated.complete.iter();
        let whole = whole.filter_map(|complete| complete.output_logprobs.as_ref());
        let all: Vec<_> = in_chunks.chain(whole).collect();
        let logprobs = all.iter().flat_map(|logprobs| &logprobs.token_logprobs);
        assert!(logprobs.clone().all(|&logprob| logprob <= 0.0));
        assert_eq!(logprobs.count(), 12);
        let mut tops = all.iter().flat_map(|logprobs| &logprobs.top_logprobs);
        assert!(tops.all(|top| top.token_ids.len() == 3));
        let chunks = generated
            .chunks
            .iter()
            .filter_map(|chunk| chunk.input_logprobs.as_ref());
        let whole = generated.complete.iter();
        let whole = whole.filter_map(|complete| complete.input_logprobs.as_ref());
        let inputs: Vec<_> = chunks.chain(whole).collect();
        assert_eq!(inputs.len(), 2, "one for each output");
        assert_eq!(inputs[0].token_ids, prompt);
        assert_eq!(inputs[0].token_logprobs[0].value, None);
    }

    let choices = vec!["red".to_owned(), "blue".to_owned()];
    let constrained = with(greedy(&prompt, 16), |params| {
        params.constraint = Some(Constraint::Choice(ChoiceConstraint { choices }));
    });
    let constrained = grpc.generate(constrained).expect("an output");
    let detokenized = json!({ "tokens": constrained.complete[0].output_ids });
    let detokenized = server.client.post("/detokenize", &detokenized).ok();
    assert!(["red", "blue"].contains(&detokenized["content"].as_str().expect("text")));
}

#[test]
fn requests_that_are_not_possible_are_refused() {
    let (server, grpc) = start(Config {
        body: 64 << 10,
        ..Config::default()
    });
    let prompt = tokens(&server, STORY);
    let refused = |request: GenerateRequest, code: Code, why: &str| {
        let status = grpc.generate(request).expect_err(why);
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(why), "{status}");
    };
    let plain = || greedy(&prompt, 4);
    let empty = GenerateRequest::default();
    refused(empty, Code::InvalidArgument, "input");
    refused(greedy(&[], 4), Code::InvalidArgument, "prompt");
    refused(greedy(&[1 << 30], 4), Code::InvalidArgument, "token");
    refused(greedy(&[5; 4000], 4), Code::InvalidArgument, "too long");
    refused(greedy(&[5; 70_000], 4), Code::OutOfRange, "message length");
    let unsupported = Code::InvalidArgument;
    refused(
        with(plain(), |p| p.min_tokens = 3),
        unsupported,
        "min_tokens",
    );
    refused(
        with(plain(), |p| p.temperature = Some(-1.0)),
        unsupported,
        "temperature",
    );
    refused(
        with(plain(), |p| p.stop_token_ids = vec![1; 65]),
        unsupported,
        "stop_token_ids",
    );
    refused(with(plain(), |p| p.n = 1000), unsupported, "n is 1000");
    let schema = Some(Constraint::JsonSchema("{".into()));
    refused(
        with(plain(), |p| p.constraint = schema),
        unsupported,
        "not JSON",
    );
    let images = GenerateRequest {
        mm_inputs: Some(Present {}),
        ..plain()
    };
    refused(images, unsupported, "mm_inputs");
    let name = GenerateRequest {
        request_id: "x".repeat(300),
        ..plain()
    };
    refused(name, unsupported, "request_id");
    assert!(grpc.generate(plain()).is_ok());
}
