//! Completions with echo, prompt log-probabilities and several prompts.

use super::shared;
use serde_json::{Value, json};

const PROMPT: &str = "The capital of Japan is Tokyo.";

fn complete(body: Value) -> Value {
    shared().post("/v1/completions", &body).ok()
}

#[test]
fn a_prompt_is_echoed_with_how_probable_it_was() {
    let tokens = shared()
        .post("/tokenize", &json!({ "content": PROMPT }))
        .ok()["tokens"]
        .take();
    let count = tokens.as_array().unwrap().len();
    let asked =
        json!({ "prompt": tokens, "echo": true, "logprobs": 2, "max_tokens": 0, "temperature": 0 });
    let answer = complete(asked.clone());
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!(PROMPT), &json!("length"))
    );
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    let logprobs = &choice["logprobs"];
    let told = logprobs["token_logprobs"].as_array().unwrap();
    assert_eq!(
        (told.len(), &told[0], &logprobs["top_logprobs"][0]),
        (count, &Value::Null, &Value::Null)
    );
    assert!(
        told[1..]
            .iter()
            .all(|logprob| logprob.as_f64().is_some_and(|p| p <= 0.0))
    );
    assert_eq!(logprobs["text_offset"][0], 0);
    // With one token more, those of the prompt are the same, and the last one is the answer's.
    let mut one = asked.clone();
    one["max_tokens"] = 1.into();
    one["ignore_eos"] = true.into();
    let more = complete(one);
    let with_answer = more["choices"][0]["logprobs"]["token_logprobs"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(
        (with_answer.len(), &with_answer[..count]),
        (count + 1, &told[..])
    );
    // A stream has the same ones.
    let mut stream = asked;
    stream["stream"] = true.into();
    let events = shared().post("/v1/completions", &stream).events();
    let text: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(text, PROMPT);
    assert_eq!(
        events[0]["choices"][0]["logprobs"]["token_logprobs"],
        logprobs["token_logprobs"]
    );
}

#[test]
fn scores_are_what_the_tokens_would_have_been_chosen_by() {
    let asked = json!({ "prompt": [12, 13, 14], "max_tokens": 6, "temperature": 0, "logprobs": 1 });
    let answer = complete(asked);
    let chosen = answer["choices"][0]["logprobs"]["token_logprobs"]
        .as_array()
        .unwrap()
        .clone();
    let text = answer["choices"][0]["text"].as_str().unwrap();
    let before = shared()
        .post("/detokenize", &json!({ "tokens": [12, 13, 14] }))
        .ok()["content"]
        .take();
    let whole = format!("{}{text}", before.as_str().unwrap());
    let tokens = shared()
        .post("/tokenize", &json!({ "content": whole }))
        .ok()["tokens"]
        .take();
    assert_eq!(tokens.as_array().unwrap().len(), 9, "{tokens}");
    let scored =
        complete(json!({ "prompt": tokens, "echo": true, "logprobs": 1, "max_tokens": 0 }));
    let scores = &scored["choices"][0]["logprobs"]["token_logprobs"]
        .as_array()
        .unwrap()[3..];
    for (score, chosen) in scores.iter().zip(&chosen) {
        let (score, chosen) = (score.as_f64().unwrap(), chosen.as_f64().unwrap());
        // KV cache rows differ in their last bits depending on the step kind that computed them.
        assert!((score - chosen).abs() < 0.02, "{score} {chosen}");
    }
}

#[test]
fn several_prompts_each_have_their_answers() {
    let prompts = ["Once upon a time", PROMPT, "Once upon a time"];
    let asked = |prompt: Value| json!({ "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true });
    let all = complete(asked(json!(prompts)));
    for (i, prompt) in prompts.iter().enumerate() {
        let alone = complete(asked(json!(prompt)));
        assert_eq!(
            all["choices"][i]["text"], alone["choices"][0]["text"],
            "{i}"
        );
        assert_eq!(all["choices"][i]["index"], i);
    }
    assert_eq!(all["usage"]["completion_tokens"], 24);
    let two = complete(json!({ "prompt": [[12, 13], [14]], "n": 2, "seed": 7, "max_tokens": 4 }));
    assert_eq!(two["choices"].as_array().unwrap().len(), 4);
}

#[test]
fn the_best_of_several_are_told() {
    let asked = |best: u64| json!({ "prompt": "Once upon a time", "seed": 3, "max_tokens": 8, "temperature": 1.5, "n": 2, "best_of": best, "logprobs": 0 });
    let mean = |choice: &Value| {
        let logprobs = choice["logprobs"]["token_logprobs"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_f64);
        let all: Vec<f64> = logprobs.collect();
        all.iter().sum::<f64>() / all.len() as f64
    };
    let best = complete(asked(6));
    let all = complete(
        json!({ "prompt": "Once upon a time", "seed": 3, "max_tokens": 8, "temperature": 1.5, "n": 6, "logprobs": 0 }),
    );
    let mut means: Vec<f64> = all["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(mean)
        .collect();
    means.sort_by(|a, b| b.total_cmp(a));
    let told: Vec<f64> = best["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(mean)
        .collect();
    assert_eq!(told, means[..2]);
    let plain = complete(json!({ "prompt": "Once upon a time", "best_of": 3, "max_tokens": 2 }));
    assert_eq!(
        (
            plain["choices"].as_array().unwrap().len(),
            &plain["choices"][0]["logprobs"]
        ),
        (1, &Value::Null)
    );
}

#[test]
fn no_bound_is_a_bound_too() {
    let answer = shared()
        .ask(
            "What is the capital of Japan?",
            json!({ "temperature": 0, "max_tokens": -1 }),
        )
        .ok();
    assert_eq!(answer["choices"][0]["message"]["content"], PROMPT);
}

/// Returns whether the text has exactly `many` digits.
fn digits(text: Option<&str>, many: usize) -> bool {
    text.is_some_and(|text| text.len() == many && text.bytes().all(|b| b.is_ascii_digit()))
}

#[test]
fn answers_follow_grammars_of_every_kind() {
    let client = shared();
    type Allowed = fn(&str) -> bool;
    let cases: [(Value, Allowed); 5] = [
        (
            json!({ "grammar": "root ::= animal \" \" [0-9]{2}\nanimal ::= \"cat\" | \"dog\"" }),
            |text| digits(text.strip_prefix("cat ").or(text.strip_prefix("dog ")), 2),
        ),
        (
            json!({ "grammar": "start: \"cat\" NUMBER\nNUMBER: /[0-9]{3}/" }),
            |text| digits(text.strip_prefix("cat"), 3),
        ),
        (json!({ "guided_regex": "[a-c]{4}/[0-9]" }), |text| {
            text.split_once('/').is_some_and(|(a, b)| {
                a.len() == 4 && a.bytes().all(|c| (b'a'..=b'c').contains(&c)) && digits(Some(b), 1)
            })
        }),
        (json!({ "guided_choice": ["yes", "no"] }), |text| {
            ["yes", "no"].contains(&text)
        }),
        (
            json!({ "guided_json": { "type": "object", "properties": { "x": { "type": "boolean" } }, "required": ["x"] } }),
            |text| ["{\"x\": true}", "{\"x\": false}"].contains(&text),
        ),
    ];
    for (settings, allowed) in cases {
        let mut settings = settings;
        settings["seed"] = 5.into();
        let text = client.answer("Hm?", settings.clone());
        assert!(allowed(&text), "{settings}: {text:?}");
        let mut body = settings;
        body["prompt"] = "Hm".into();
        body["max_tokens"] = 30.into();
        let text = complete(body.clone())["choices"][0]["text"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(allowed(&text), "{body}: {text:?}");
    }
    for (settings, field) in [
        (json!({ "grammar": "root ::= other" }), "grammar"),
        (json!({ "guided_regex": "(" }), "guided_regex"),
        (
            json!({ "guided_choice": ["a".repeat(100_000)] }),
            "guided_choice",
        ),
        (
            json!({ "guided_regex": "a".repeat(100_000) }),
            "guided_regex",
        ),
        (
            json!({ "grammar": "start: \"a\"", "guided_regex": "a" }),
            "guided_regex",
        ),
    ] {
        assert_eq!(client.ask("Hm?", settings).refused(400)["param"], field);
    }
    // Empty constraints are none.
    let none = json!({ "grammar": "", "guided_regex": "", "guided_choice": [], "guided_json": "", "max_tokens": 2 });
    client.ask("Hm?", none).ok();
}

#[test]
fn an_answer_that_has_begun_is_gone_on_with() {
    let messages = json!([
        { "role": "user", "content": "What is the capital of Japan?" }, { "role": "assistant", "content": "The capital of" },
    ]);
    let answer = shared()
        .chat(json!({ "messages": messages, "temperature": 0 }))
        .ok();
    assert_eq!(
        answer["choices"][0]["message"]["content"],
        " Japan is Tokyo."
    );
}
