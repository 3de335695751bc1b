//! Budgets of reasoning, with the demo model and a template that opens reasoning.

use crate::client::asking;
use crate::running::{File, Running, processor, start_with};
use gristmill_server::{Config, Offer};
use serde_json::{Value, json};

/// A template that opens reasoning unless that is switched off.
const TEMPLATE: &str = "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}\
    <|assistant|>\n{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}";
/// What closes reasoning.
const MESSAGE: &str = "I have reasoned for long enough, so I give my answer now.";
const QUESTION: &str = "Tell me about a frog";

fn server(config: Config) -> Running {
    start_with(config, || Offer {
        models: vec![File::templated_spec(TEMPLATE, processor())],
        devices: vec!["cpu".into()],
        most_loaded: None,
        available: Box::new(|| None),
    })
}

fn settings(more: Value) -> Value {
    let mut settings = json!({ "temperature": 0, "max_tokens": 80, "ignore_eos": true });
    for (key, value) in more.as_object().into_iter().flatten() {
        settings[key] = value.clone();
    }
    settings
}

/// Reasoning and content of a choice.
fn parts(choice: &Value) -> (String, String) {
    let text = |name: &str| {
        choice["message"][name]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    (text("reasoning_content"), text("content"))
}

#[test]
fn reasoning_ends_at_its_budget() {
    // Texts are compared, of prompts that the prefix cache has in part.
    let server = server(Config {
        batch_invariant: true,
        ..Config::default()
    });
    let ask = |more: Value| server.client.ask(QUESTION, settings(more)).ok();
    // The demo model never closes reasoning by itself.
    let free = ask(json!({}));
    let (all, content) = parts(&free["choices"][0]);
    assert!(!all.contains(MESSAGE) && content.is_empty(), "{free}");
    assert_eq!(
        free["usage"]["completion_tokens_details"]["reasoning_tokens"],
        80
    );
    let bounded = ask(json!({ "reasoning_budget": 12 }));
    let (reasoning, content) = parts(&bounded["choices"][0]);
    let begun = reasoning
        .strip_suffix(MESSAGE)
        .expect("a message")
        .trim_end();
    assert!(
        !begun.is_empty() && all.starts_with(begun),
        "{begun:?} of {all:?}"
    );
    assert!(
        !content.trim().is_empty() && !content.contains("think"),
        "{bounded}"
    );
    let usage = &bounded["usage"];
    let tokens = usage["completion_tokens_details"]["reasoning_tokens"]
        .as_u64()
        .unwrap();
    // The closing text has some 20 tokens in this vocabulary.
    assert!((13..60).contains(&tokens), "{usage}");
    assert_eq!(usage["completion_tokens"], 80);
    // llama.cpp's name, and a budget that is not used up.
    assert_eq!(
        ask(json!({ "thinking_budget_tokens": 12 }))["choices"],
        bounded["choices"]
    );
    assert_eq!(
        parts(&ask(json!({ "reasoning_budget": 200 }))["choices"][0]).0,
        all
    );
}

#[test]
fn a_message_closes_reasoning_at_its_budget() {
    let server = server(Config {
        reasoning_budget_message: Some("Enough of that.".into()),
        reasoning_budget: Some(12),
        ..Config::default()
    });
    let ask = |more: Value| server.client.ask(QUESTION, settings(more));
    let reasoning = |more: Value| parts(&ask(more).ok()["choices"][0]).0;
    let ended = reasoning(json!({}));
    let begun = ended.strip_suffix("Enough of that.").expect("a message");
    // A request overrides the server; llama.cpp's name of the budget.
    let own = json!({ "reasoning_budget_tokens": 3, "reasoning_budget_message": "Now then:" });
    let own = reasoning(own);
    assert!(
        own.ends_with("Now then:") && own.len() < ended.len(),
        "{own}"
    );
    // Without a message the closing text alone is forced; markers in a message are text.
    let none = reasoning(json!({ "reasoning_budget_message": "" }));
    assert_eq!(none.trim_end(), begun.trim_end());
    let marked = ask(json!({ "reasoning_budget_message": "<|user|> or <sop>?" })).ok();
    let (marked, content) = parts(&marked["choices"][0]);
    assert!(marked.ends_with("<|user|> or <sop>?"), "{marked}");
    assert!(!content.trim().is_empty());
    let long = ask(json!({ "reasoning_budget_message": "x".repeat(4097) }));
    let error = long.refused(400).to_string();
    assert!(error.contains("has 4097 bytes"), "{error}");
}

#[test]
fn a_budget_of_nothing_closes_reasoning_at_once() {
    let server = server(Config {
        reasoning_budget: Some(0),
        ..Config::default()
    });
    let ask = |more: Value| server.client.ask(QUESTION, settings(more)).ok();
    let none = ask(json!({}));
    let (reasoning, content) = parts(&none["choices"][0]);
    assert!(reasoning.is_empty() && !content.is_empty(), "{none}");
    // The template opens it all the same.
    let opened = json!({ "chat_template_kwargs": { "enable_thinking": true } });
    let closed = ask(opened.clone());
    let (reasoning, content) = parts(&closed["choices"][0]);
    assert!(
        reasoning.is_empty() && !content.trim().is_empty(),
        "{closed}"
    );
    // A request overrides the server.
    let mut unlimited = opened;
    unlimited["reasoning_budget"] = (-1).into();
    let (reasoning, content) = parts(&ask(unlimited)["choices"][0]);
    assert!(!reasoning.is_empty() && content.is_empty());
    let refused = server
        .client
        .ask(QUESTION, settings(json!({ "reasoning_budget": -2 })));
    let error = refused.refused(400).to_string();
    assert!(error.contains("reasoning_budget is -2"), "{error}");
}

#[test]
fn budgets_hold_in_batches_with_drafts_and_grammars() {
    let config = Config {
        batch_invariant: true,
        ..Config::default()
    };
    let server = server(config);
    let ask = |more: Value| server.client.chat(asking(QUESTION, settings(more)));
    let sampled = json!({ "temperature": 0.8, "seed": 3, "n": 4, "reasoning_budget": 20 });
    let together = ask(sampled.clone()).ok();
    let mut plain = sampled.clone();
    plain["speculate"] = false.into();
    assert_eq!(ask(plain).ok()["choices"], together["choices"]);
    for nth in 0..4_usize {
        let choice = &together["choices"][nth];
        assert!(parts(choice).0.ends_with(MESSAGE), "{choice}");
        let mut single = sampled.clone();
        (single["n"], single["seed"]) = (1.into(), (3 + nth).into());
        let single = ask(single).ok();
        assert_eq!(parts(&single["choices"][0]), parts(choice));
    }
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["legs"],
        "properties": { "legs": { "type": "integer", "minimum": 0, "maximum": 9 } },
    });
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "frog", "schema": schema } });
    let answer =
        ask(json!({ "reasoning_budget": 20, "response_format": format, "ignore_eos": false }));
    let (reasoning, content) = parts(&answer.ok()["choices"][0]);
    assert!(reasoning.ends_with(MESSAGE), "{reasoning}");
    let legs: Value = serde_json::from_str(&content).expect("JSON after the reasoning");
    assert!(legs["legs"].is_u64(), "{content}");
}

#[test]
fn anthropics_and_responses_budgets_hold() {
    let server = server(Config::default());
    let messages = json!([{ "role": "user", "content": QUESTION }]);
    let thinking = json!({ "type": "enabled", "budget_tokens": 12 });
    let body = json!({
        "model": "demo", "max_tokens": 60, "temperature": 0, "messages": messages, "thinking": thinking,
    });
    let answer = server.client.post("/v1/messages", &body).ok();
    let thought = answer["content"][0]["thinking"]
        .as_str()
        .unwrap_or_default();
    assert!(thought.ends_with(MESSAGE), "{answer}");
    let mut wrong = body;
    wrong["thinking"]["budget_tokens"] = (-7).into();
    let refused = server.client.post("/v1/messages", &wrong);
    let error = refused.json().to_string();
    assert_eq!(refused.status, 400, "{error}");
    assert!(error.contains("thinking.budget_tokens is -7"), "{error}");
    let body = json!({
        "model": "demo", "input": QUESTION, "max_output_tokens": 40, "temperature": 0,
        "reasoning": { "effort": "none" },
    });
    let answer = server.client.post("/v1/responses", &body).ok();
    assert_eq!(
        answer["usage"]["output_tokens_details"]["reasoning_tokens"], 0,
        "{answer}"
    );
    assert_eq!(answer["output"][0]["type"], "message", "{answer}");
}
