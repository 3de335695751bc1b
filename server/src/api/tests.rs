//! Runs every encoder on replies of every kind, split at every size: the streamed and the whole
//! response must be equal.

use crate::api::anthropic::messages::Messages;
use crate::api::interface::{Interface, ResponseEncoder};
use crate::api::openai::chat::Chat;
use crate::api::openai::completions::Completions;
use crate::api::responses::request::Responses;
use crate::api::serve::EncodedStream;
use crate::api::{ollama, openai};
use crate::core::channel::channel;
use crate::core::event::{Chosen, Delta, Event, Finish, Usage};
use crate::core::model::{Served, demo};
use crate::core::output::{FinishedReply, Outputs, ToolCall};
use crate::net::stream::{Chunk, ChunkSource};
use futures_util::FutureExt;
use gristmill_llm::chat::reply::{Begins, Reply, Schemas};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::sync::{Arc, LazyLock};

static SERVED: LazyLock<Arc<Served>> = LazyLock::new(|| Arc::new(demo()));

/// Outputs of a reply that arrives in pieces of `size` characters, each a token.
fn outputs(text: &str, size: usize, markup: bool, finish: &Finish) -> Outputs {
    let (sender, receiver) = channel(usize::MAX);
    let characters: Vec<char> = text.chars().collect();
    sender.send(Event::Waiting(2)).unwrap();
    sender.send(Event::Prompt(usage())).unwrap();
    for piece in characters.chunks(size) {
        let tokens = vec![Chosen {
            token: 12,
            logprob: Some(-1.0),
            top: vec![(12, -1.0)],
        }];
        let delta = Delta {
            text: piece.iter().collect(),
            tokens,
            ..Delta::default()
        };
        sender.send(Event::Delta(delta)).unwrap();
    }
    sender
        .send(Event::Finish {
            choice: 0,
            reason: finish.clone(),
        })
        .unwrap();
    sender.send(Event::End(usage())).unwrap();
    let weather = json!({ "properties": { "city": { "type": "string" } } });
    let schemas = Schemas::new([("f", Some(&weather))].into_iter());
    let reply = markup.then(|| Reply::new(SERVED.markup, Begins::Open, Some(schemas), false));
    Outputs::new(receiver, vec![reply], true)
}

fn usage() -> Usage {
    Usage {
        prompt: 9,
        cached: 4,
        answer: 7,
        ..Usage::default()
    }
}

/// Encoder that an interface creates for this request body.
fn encoder<I: Interface>(body: Value) -> I::Encoder {
    I::request(serde_json::from_value(body).unwrap(), &SERVED)
        .unwrap()
        .1
}

/// Returns all chunks of a stream except comments.
fn streamed<E: ResponseEncoder>(outputs: Outputs, encoder: E) -> Vec<Chunk> {
    let mut encoding = EncodedStream::new(outputs, encoder);
    let mut all = Vec::new();
    while let Some(Some(chunks)) = encoding.next().now_or_never() {
        all.extend(
            chunks
                .into_iter()
                .filter(|chunk| !matches!(chunk, Chunk::Comment(_))),
        );
    }
    all
}

fn data(chunks: &[Chunk]) -> Vec<&Value> {
    chunks
        .iter()
        .filter_map(|chunk| {
            if let Chunk::Data(_, data) = chunk {
                Some(data)
            } else {
                None
            }
        })
        .collect()
}

/// Returns the collected reply and the whole response.
fn whole<E: ResponseEncoder>(outputs: Outputs, encoder: E) -> (FinishedReply, Value) {
    let (answers, usage) = outputs.collect().now_or_never().unwrap().unwrap();
    let answer = answers[0].clone();
    let body = encoder.whole(answers, &usage).into_body();
    let bytes = axum::body::to_bytes(body, usize::MAX)
        .now_or_never()
        .unwrap()
        .unwrap();
    (answer, serde_json::from_slice(&bytes).unwrap())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Reasoning, text, and calls with arguments.
type Said = (String, String, Vec<(String, String)>);

fn said(answer: &FinishedReply) -> Said {
    let calls = answer
        .calls
        .iter()
        .map(|ToolCall { name, arguments }| (name.clone(), arguments.clone()));
    (
        answer.reasoning.clone(),
        answer.text.clone(),
        calls.collect(),
    )
}

/// Parses the arguments, for interfaces that send them as an object.
fn parsed(said: Said) -> (String, String, Vec<(String, Value)>) {
    let calls = said
        .2
        .into_iter()
        .map(|(name, text)| (name, serde_json::from_str(&text).unwrap_or(json!({}))));
    (said.0, said.1, calls.collect())
}

fn chat(chunks: &[Value]) -> (Said, usize) {
    let mut out = Said::default();
    let mut tokens = 0;
    for delta in chunks.iter().map(|chunk| &chunk["choices"][0]) {
        tokens += delta["logprobs"]["content"].as_array().map_or(0, Vec::len);
        let delta = if delta["delta"].is_null() {
            &delta["message"]
        } else {
            &delta["delta"]
        };
        out.0 += text(&delta["reasoning_content"]);
        out.1 += text(&delta["content"]);
        for (at, call) in delta["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
        {
            let index = call["index"].as_u64().map_or(at, |index| index as usize);
            if out.2.len() <= index {
                out.2.resize(index + 1, Default::default());
            }
            out.2[index].0 += text(&call["function"]["name"]);
            out.2[index].1 += text(&call["function"]["arguments"]);
        }
    }
    (out, tokens)
}

/// Rebuilds a message's blocks from its stream.
fn blocks(chunks: &[&Value]) -> Vec<Value> {
    let mut blocks: Vec<Value> = Vec::new();
    let mut open = false;
    for chunk in chunks {
        let index = chunk["index"].as_u64().map(|index| index as usize);
        match text(&chunk["type"]) {
            "content_block_start" => {
                assert!(!open && index == Some(blocks.len()), "{chunk}");
                blocks.push(chunk["content_block"].clone());
                open = true;
            }
            "content_block_delta" => {
                assert!(open && index == Some(blocks.len() - 1), "{chunk}");
                let block = blocks.last_mut().unwrap();
                let delta = &chunk["delta"];
                for (from, to) in [
                    ("text", "text"),
                    ("thinking", "thinking"),
                    ("partial_json", "json"),
                ] {
                    if delta[from].is_string() {
                        block[to] = format!("{}{}", text(&block[to]), text(&delta[from])).into();
                    }
                }
            }
            "content_block_stop" => {
                assert!(
                    std::mem::take(&mut open) && index == Some(blocks.len() - 1),
                    "{chunk}"
                );
            }
            _ => assert!(!open, "{chunk}"),
        }
    }
    blocks
}

fn message(blocks: &[Value]) -> (String, String, Vec<(String, Value)>) {
    let joined = |kind: &str, field: &str| {
        blocks
            .iter()
            .filter(|block| block["type"] == kind)
            .map(|block| text(&block[field]))
            .collect::<String>()
    };
    let calls = blocks
        .iter()
        .filter(|block| block["type"] == "tool_use")
        .map(|block| {
            let input = match block["json"].as_str() {
                Some(json) => serde_json::from_str(json).unwrap_or(json!({})),
                None => block["input"].clone(),
            };
            (text(&block["name"]).to_owned(), input)
        });
    (
        joined("thinking", "thinking"),
        joined("text", "text"),
        calls.collect(),
    )
}

fn items(items: &Value) -> Said {
    let mut out = Said::default();
    for item in items.as_array().unwrap() {
        match text(&item["type"]) {
            "reasoning" => out.0 += text(&item["content"][0]["text"]),
            "message" => out.1 += text(&item["content"][0]["text"]),
            _ => out.2.push((
                text(&item["name"]).to_owned(),
                text(&item["arguments"]).to_owned(),
            )),
        }
    }
    out
}

fn lines(lines: &[Value]) -> (String, String, Vec<(String, Value)>) {
    let mut out = (String::new(), String::new(), Vec::new());
    for said in lines.iter().map(|line| &line["message"]) {
        out.0 += text(&said["thinking"]);
        out.1 += text(&said["content"]);
        for call in said["tool_calls"].as_array().into_iter().flatten() {
            out.2.push((
                text(&call["function"]["name"]).to_owned(),
                call["function"]["arguments"].clone(),
            ));
        }
    }
    out
}

fn ask(more: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "x" }] });
    more.as_object()
        .into_iter()
        .flatten()
        .for_each(|(key, value)| body[key] = value.clone());
    body
}

/// Checks for each interface that the stream of a reply, in pieces of `size` characters, equals the
/// whole response.
fn check(reply: &str, size: usize, finish: &Finish) {
    let told = |markup: bool| outputs(reply, size, markup, finish);
    let pieces = reply.chars().count().div_ceil(size);

    let body = || ask(json!({ "logprobs": true }));
    let stream = streamed(told(true), encoder::<Chat>(body()));
    let (answer, at_once) = whole(told(true), encoder::<Chat>(body()));
    let stream: Vec<Value> = data(&stream).into_iter().cloned().collect();
    assert_eq!(chat(&stream), (said(&answer), pieces));
    assert_eq!(
        chat(std::slice::from_ref(&at_once)),
        (said(&answer), pieces)
    );
    let reason = &stream[stream.len() - 1]["choices"][0]["finish_reason"];
    assert_eq!(
        (reason.is_string(), reason),
        (true, &at_once["choices"][0]["finish_reason"])
    );

    let body = || json!({ "prompt": "x", "echo": true, "logprobs": 1 });
    let stream = streamed(told(false), encoder::<Completions>(body()));
    let texts: String = data(&stream)
        .iter()
        .map(|chunk| text(&chunk["choices"][0]["text"]))
        .collect();
    let (plain, at_once) = whole(told(false), encoder::<Completions>(body()));
    assert_eq!(
        (texts.as_str(), text(&at_once["choices"][0]["text"])),
        (&*format!("x{}", plain.text), &*texts)
    );

    let body = || ask(json!({ "max_tokens": 9 }));
    let stream = streamed(told(true), encoder::<Messages>(body()));
    let (_, at_once) = whole(told(true), encoder::<Messages>(body()));
    assert_eq!(message(&blocks(&data(&stream))), parsed(said(&answer)));
    assert_eq!(
        message(at_once["content"].as_array().unwrap()),
        parsed(said(&answer))
    );

    let body = || json!({ "input": "x" });
    let stream = streamed(told(true), encoder::<Responses>(body()));
    let stream = data(&stream);
    let (_, at_once) = whole(told(true), encoder::<Responses>(body()));
    assert_eq!(
        items(&stream[stream.len() - 1]["response"]["output"]),
        said(&answer)
    );
    assert_eq!(items(&at_once["output"]), said(&answer));
    assert_eq!(items(&done(&stream)), said(&answer));

    let body = || ask(json!({ "model": "demo" }));
    let stream = streamed(told(true), encoder::<ollama::chat::OllamaChat>(body()));
    let (_, at_once) = whole(told(true), encoder::<ollama::chat::OllamaChat>(body()));
    let stream: Vec<Value> = data(&stream).into_iter().cloned().collect();
    assert_eq!(lines(&stream), parsed(said(&answer)));
    assert_eq!(lines(&[at_once]), parsed(said(&answer)));
}

/// Returns the completed items of a stream; the deltas of each must add up to its final text.
fn done(stream: &[&Value]) -> Value {
    let mut deltas: Map<String, Value> = Map::new();
    let mut items = Vec::new();
    for event in stream {
        if let Some(delta) = event["delta"].as_str() {
            let so_far = deltas.entry(text(&event["item_id"])).or_insert("".into());
            *so_far = format!("{}{delta}", text(so_far)).into();
        }
        if event["type"] == "response.output_item.done" {
            let item = &event["item"];
            let told = item["arguments"]
                .as_str()
                .unwrap_or_else(|| text(&item["content"][0]["text"]));
            assert_eq!(deltas.get(text(&item["id"])).map_or("", text), told);
            items.push(item.clone());
        }
    }
    items.into()
}

#[test]
fn what_cannot_go_on_is_told_in_the_stream() {
    let failed = || {
        let (sender, receiver) = channel(usize::MAX);
        sender
            .send(Event::Failed(crate::core::error::RequestError::closing()))
            .unwrap();
        Outputs::new(receiver, vec![None], true)
    };
    let last = |chunks: Vec<Chunk>| data(&chunks).last().copied().cloned().unwrap();
    let chat = streamed(failed(), encoder::<openai::chat::Chat>(ask(json!({}))));
    assert_eq!(chat.last(), Some(&Chunk::Text("[DONE]")));
    assert_eq!(last(chat)["error"]["type"], "server_error");
    let message = last(streamed(
        failed(),
        encoder::<Messages>(ask(json!({ "max_tokens": 1 }))),
    ));
    assert_eq!(
        (&message["type"], &message["error"]["type"]),
        (&json!("error"), &json!("overloaded_error"))
    );
    let response = last(streamed(
        failed(),
        encoder::<Responses>(json!({ "input": "x" })),
    ));
    assert_eq!(
        (&response["type"], &response["response"]["status"]),
        (&json!("response.failed"), &json!("failed"))
    );
    let line = last(streamed(
        failed(),
        encoder::<ollama::chat::OllamaChat>(ask(json!({ "model": "demo" }))),
    ));
    assert!(line["error"].is_string());
}

#[test]
fn replies_of_every_form_cut_at_every_position() {
    let call =
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"city\": \"New \\\"York\\\"\"}}</tool_call>";
    let tags = "<tool_call>f<arg_key>city</arg_key><arg_value>Rome\n</arg_value></tool_call>";
    let reply = format!("<think>Hm, é.</think>Well. {call}\n{tags} Done.");
    for finish in [Finish::Stop, Finish::Length, Finish::StopText("x".into())] {
        for size in [1, 2, 3, 5, 8, 13, 1000] {
            check(&reply, size, &finish);
        }
    }
    for end in (0..reply.len()).filter(|&end| reply.is_char_boundary(end)) {
        check(&reply[..end], 4, &Finish::Length);
    }
}

#[test]
fn every_interface_has_the_field_of_adapters() {
    fn chosen<I: Interface>(body: Value) -> Option<usize> {
        let request = I::request(serde_json::from_value(body).unwrap(), &SERVED);
        request.unwrap().0.sampling.lora.map(|list| list.len())
    }
    let lora = json!([{ "name": "sql" }, { "id": 1, "scale": 0.25 }]);
    let body = ask(json!({ "model": "demo", "lora": lora, "max_tokens": 9 }));
    assert_eq!(chosen::<Chat>(body.clone()), Some(2));
    assert_eq!(chosen::<Messages>(body), Some(2));
    let body = json!({ "input": "x", "lora": lora });
    assert_eq!(chosen::<Responses>(body), Some(2));
    let body = ask(json!({ "model": "demo", "options": { "lora": lora } }));
    assert_eq!(chosen::<ollama::chat::OllamaChat>(body), Some(2));
    let body = json!({ "model": "demo", "prompt": "x", "options": { "lora": [] } });
    assert_eq!(chosen::<ollama::generate::Generate>(body), Some(0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_interface_loses_or_invents_anything(
        words in proptest::collection::vec(
            prop_oneof![
                proptest::sample::select(vec![
                    "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
                    "</arg_value>", "{\"name\": \"f\"", ", \"arguments\": ", "{}", "}", "\"", "\\", "<", " ", "\n", "é",
                ]).prop_map(str::to_owned),
                "[a-z ]{0,5}",
            ],
            0..20,
        ),
        size in 1usize..6,
        cut: bool,
    ) {
        check(&words.concat(), size, if cut { &Finish::Length } else { &Finish::Stop });
    }
}
