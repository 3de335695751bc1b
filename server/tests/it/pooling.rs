//! Embeddings by the kinds of pooling, and scores of a reranker.

use super::client::{Client, asking};
use super::running::{File, Running, processor, start_with};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use gristmill_llm::pooling::PoolingKind;
use gristmill_server::{Config, Offer};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::LazyLock;

const RERANKER: &str = "llm/tests/data/pooling/qwen3-rank-q8_0.gguf";

/// A text encoder, by its family.
fn encoder(family: &str) -> String {
    format!("llm/tests/data/families/{family}-q8_0.gguf")
}

/// A server of text encoders, of the reranker, and of the same file by other kinds of pooling.
fn shared() -> &'static Client {
    static SHARED: LazyLock<Running> = LazyLock::new(|| {
        start_with(Config::default(), || {
            let (cpu, kinds) = (processor(), PoolingKind::ALL);
            let spec =
                |kind: PoolingKind| File::pooled_spec(kind.name(), RERANKER, cpu.clone(), kind);
            let mut models: Vec<_> = kinds[..4].iter().map(|&kind| spec(kind)).collect();
            models.push(File::spec("reranker", RERANKER, cpu.clone()));
            let encoders = ["bert", "modern-bert", "nomic-bert"];
            models.extend(encoders.map(|family| File::spec(family, &encoder(family), cpu.clone())));
            Offer {
                models,
                devices: vec!["cpu".into()],
                most_loaded: None,
                available: Box::new(|| None),
            }
        })
    });
    &SHARED.client
}

fn expected() -> Value {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../llm/tests/data/pooling/expected.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("JSON")
}

fn floats(of: &Value) -> Vec<f64> {
    let all = of.as_array().expect("numbers").iter();
    all.map(|x| x.as_f64().expect("a number")).collect()
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn texts(of: &Value, name: &str) -> Vec<Value> {
    let all = of.as_array().expect("a list").iter();
    all.map(|one| one[name].clone()).collect()
}

/// Tokens of all texts of a list.
fn tokens(of: &Value) -> usize {
    let all = of.as_array().expect("a list").iter();
    all.map(|one| one["tokens"].as_array().expect("tokens").len())
        .sum()
}

#[test]
fn each_kind_of_pooling_embeds_by_its_definition() {
    let all = &expected()["embeddings"];
    for kind in ["mean", "cls", "last"] {
        for input in [texts(all, "text"), texts(all, "tokens")] {
            let body = json!({ "model": kind, "input": input });
            let answer = shared().post("/v1/embeddings", &body).ok();
            let data = answer["data"].as_array().expect("vectors");
            assert_eq!(data.len(), 3);
            for (number, (vector, want)) in data.iter().zip(texts(all, kind)).enumerate() {
                assert_eq!(vector["index"], number);
                let vector = floats(&vector["embedding"]);
                // The server's arithmetic rounds activations to int8.
                assert!((cosine(&vector, &vector) - 1.0).abs() < 1e-5, "{kind}");
                let like = cosine(&vector, &floats(&want));
                assert!(like > 0.995, "{kind} {number}: {like}");
            }
            let usage = &answer["usage"];
            assert_eq!(usage["prompt_tokens"], tokens(all));
            assert_eq!(usage["total_tokens"], usage["prompt_tokens"]);
        }
    }
}

#[test]
fn dimensions_are_cut_and_encoded() {
    let all = &expected()["embeddings"];
    let ask = |more: Value| {
        let mut body = json!({ "model": "last", "input": all[1]["text"] });
        let more = more.as_object().expect("fields").clone();
        body.as_object_mut().expect("an object").extend(more);
        shared().post("/v1/embeddings", &body)
    };
    let vector = |more: Value| ask(more).ok()["data"][0]["embedding"].clone();
    let whole = floats(&vector(json!({})));
    let cut = floats(&vector(json!({ "dimensions": 16 })));
    assert_eq!(cut.len(), 16);
    assert!((cosine(&cut, &cut) - 1.0).abs() < 1e-5);
    let length = cosine(&whole[..16], &whole[..16]).sqrt();
    assert!((cosine(&cut, &whole[..16]) / length - 1.0).abs() < 1e-5);
    assert_eq!(floats(&vector(json!({ "dimensions": 64 }))), whole);
    let text = vector(json!({ "dimensions": 16, "encoding_format": "base64" }));
    let bytes = BASE64_STANDARD.decode(text.as_str().expect("a text"));
    let bytes = bytes.expect("base64");
    let decoded = bytes.chunks_exact(4);
    let decoded = decoded.map(|x| f64::from(f32::from_le_bytes([x[0], x[1], x[2], x[3]])));
    assert!(decoded.zip(&cut).all(|(a, b)| (a - b).abs() < 1e-6));
    assert_eq!(bytes.len(), 64);
    for (more, cause) in [
        (json!({ "dimensions": 0 }), "1 to 64"),
        (json!({ "dimensions": 65 }), "1 to 64"),
        (json!({ "encoding_format": "hex" }), "encoding_format"),
    ] {
        let error = ask(more).refused(400);
        assert!(error.to_string().contains(cause), "{error}");
    }
    let body = json!({ "model": "mean", "input": "A tree.", "dimensions": 8 });
    let ollama = shared().post("/api/embed", &body).ok();
    assert_eq!(ollama["embeddings"][0].as_array().map(Vec::len), Some(8));
    for (model, embeds) in [("mean", true), ("reranker", false)] {
        let shown = shared().post("/api/show", &json!({ "model": model })).ok();
        let can = shown["capabilities"].as_array().expect("a list");
        assert_eq!(can.contains(&json!("embedding")), embeds, "{shown}");
    }
}

#[test]
fn errors_of_embeddings_name_the_cause() {
    let refused = |body: Value| shared().post("/v1/embeddings", &body).refused(400);
    let long = "there ".repeat(4000);
    for (body, param, cause) in [
        (
            json!({ "model": "reranker", "input": "A" }),
            "model",
            "/v1/rerank",
        ),
        (
            json!({ "model": "none", "input": "A" }),
            "model",
            "--pooling",
        ),
        (json!({ "model": "last", "input": [] }), "input", "empty"),
        (
            json!({ "model": "last", "input": vec!["A"; 2049] }),
            "input",
            "2049",
        ),
        (
            json!({ "model": "last", "input": [[1], [512]] }),
            "input[1]",
            "512",
        ),
        (
            json!({ "model": "last", "input": ["A", long] }),
            "input[1]",
            "1024",
        ),
    ] {
        let error = refused(body);
        assert_eq!(error["param"], param, "{error}");
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains(cause), "{error}");
    }
    // Ollama cuts a text to the context; the last token stays the end of the sequence.
    let body = json!({ "model": "last", "input": long });
    let cut = shared().post("/api/embed", &body).ok();
    assert_eq!(cut["prompt_eval_count"], 1023);
}

#[test]
fn many_texts_are_embedded_beside_a_conversation() {
    let client = shared();
    std::thread::scope(|scope| {
        let body = json!({ "model": "last", "max_tokens": 200, "ignore_eos": true });
        scope.spawn(move || {
            client
                .post("/v1/chat/completions", &asking("Hm?", body))
                .ok()
        });
        let input: Vec<String> = (0..300).map(|i| format!("Number {i}.")).collect();
        let body = json!({ "model": "last", "input": input });
        let answer = client.post("/v1/embeddings", &body).ok();
        let data = answer["data"].as_array().expect("vectors");
        assert_eq!(data.len(), 300);
        let norms = data.iter().map(|one| floats(&one["embedding"]));
        let norms = norms.map(|vector| cosine(&vector, &vector));
        assert!(norms.into_iter().all(|norm| (norm - 1.0).abs() < 1e-5));
    });
    assert_eq!(
        client.metric_of("last", "gristmill_cache_pages_leaked"),
        0.0
    );
}

#[test]
fn documents_are_ranked_by_their_scores() {
    let expected = expected();
    let all = &expected["scores"];
    let mut order: Vec<(usize, f64)> = floats(&json!(texts(all, "score")))
        .into_iter()
        .enumerate()
        .collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    for path in ["/v1/rerank", "/rerank", "/v2/rerank"] {
        let documents = texts(all, "document");
        let objects: Vec<Value> = documents.iter().map(|d| json!({ "text": d })).collect();
        for documents in [documents.clone(), objects] {
            let body = json!({
                "model": "reranker", "query": expected["query"], "documents": documents,
                "return_documents": true,
            });
            let answer = shared().post(path, &body).ok();
            let results = answer["results"].as_array().expect("results");
            assert_eq!(results.len(), order.len());
            for (result, (index, score)) in results.iter().zip(&order) {
                assert_eq!(result["index"], *index);
                let apart = result["relevance_score"].as_f64().expect("a score") - score;
                assert!(apart.abs() < 0.02, "{result}: {score}");
                assert_eq!(result["document"]["text"], texts(all, "document")[*index]);
            }
            assert_eq!(answer["usage"]["prompt_tokens"], tokens(all));
            assert_eq!(answer["usage"]["total_tokens"], tokens(all));
            assert!(answer["id"].is_string() && answer["model"] == "reranker");
        }
    }
    let body = json!({
        "model": "reranker", "query": expected["query"], "documents": texts(all, "document"),
        "top_n": 2,
    });
    let best = shared().post("/v1/rerank", &body).ok();
    let best = best["results"].as_array().expect("results");
    assert_eq!(texts(&json!(best), "index"), [order[0].0, order[1].0]);
    assert!(best.iter().all(|result| result.get("document").is_none()));
    // Documents of one query share its pages.
    let cached = || shared().metric_of("reranker", "gristmill_prompt_tokens_cached_total");
    let before = cached();
    let query = "Is 17 there, or is it 25? ".repeat(10);
    let body = json!({ "model": "reranker", "query": query, "documents": ["A", "B", "C"] });
    let answer = shared().post("/v1/rerank", &body).ok();
    let tokens = answer["usage"]["prompt_tokens"].as_f64().expect("a number");
    assert!(
        cached() - before > tokens / 3.0,
        "{tokens}: {before} {}",
        cached()
    );
}

#[test]
fn errors_of_ranking_name_the_cause() {
    let long = "there ".repeat(4000);
    let huge = "there ".repeat(150);
    for (more, param, cause) in [
        (json!({ "model": "last" }), "model", "no reranker"),
        (json!({ "documents": [] }), "documents", "1 to 2048"),
        (json!({ "documents": vec!["A"; 2049] }), "documents", "2049"),
        (json!({ "documents": ["A", long] }), "documents[1]", "1024"),
        (json!({ "query": long }), "query", "1024"),
        (json!({ "top_n": 0 }), "top_n", "at least 1"),
        (json!({ "rank_fields": ["title"] }), "rank_fields", "text"),
        (
            json!({ "query": "there ".repeat(1300), "documents": vec![huge; 2000] }),
            "documents",
            "fewer",
        ),
    ] {
        let mut body = json!({ "model": "reranker", "query": "Q", "documents": ["A", "B"] });
        let more = more.as_object().expect("fields").clone();
        body.as_object_mut().expect("an object").extend(more);
        let error = shared().post("/v1/rerank", &body).refused(400);
        assert_eq!(error["param"], param, "{error}");
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains(cause), "{error}");
    }
    for body in [
        json!({}),
        json!({ "model": "reranker", "query": "Q", "documents": [7] }),
    ] {
        shared().post("/v1/rerank", &body).refused(400);
    }
}

/// Texts of an encoder's test data, with their vectors.
fn texts_of_encoder(family: &str) -> Value {
    let path = format!("../llm/tests/data/families/{family}-texts.json");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("JSON")
}

#[test]
fn encoders_embed_by_the_pooling_of_their_files() {
    for (family, kind) in [
        ("bert", "cls"),
        ("modern-bert", "mean"),
        ("nomic-bert", "mean"),
    ] {
        let all = texts_of_encoder(family);
        let mut inputs = vec![texts(&all, "tokens")];
        if family != "modern-bert" {
            inputs.push(texts(&all, "text"));
        }
        for input in inputs {
            // More texts than a step takes.
            let input: Vec<Value> = input.iter().cycle().take(30).cloned().collect();
            let body = json!({ "model": family, "input": input });
            let answer = shared().post("/v1/embeddings", &body).ok();
            let data = answer["data"].as_array().expect("vectors");
            assert_eq!(data.len(), 30);
            let expected = texts(&all, kind);
            for (number, (vector, want)) in data.iter().zip(expected.iter().cycle()).enumerate() {
                assert_eq!(vector["index"], number);
                let vector = floats(&vector["embedding"]);
                let like = cosine(&vector, &floats(want));
                assert!(like > 0.97, "{family} {number}: {like}");
            }
            let count = |of: &[Value]| of.iter().map(|one| one["tokens"].clone()).collect();
            let each: Vec<Value> = count(all.as_array().expect("a list"));
            let lengths = each.iter().map(|one| one.as_array().map_or(0, Vec::len));
            let tokens: usize = lengths.collect::<Vec<_>>().iter().cycle().take(30).sum();
            assert_eq!(answer["usage"]["prompt_tokens"], tokens);
        }
    }
}

#[test]
fn encoders_refuse_what_they_cannot_do() {
    let client = shared();
    let messages = json!([{ "role": "user", "content": "A tree." }]);
    for (path, body) in [
        (
            "/v1/chat/completions",
            json!({ "model": "bert", "messages": messages }),
        ),
        ("/v1/completions", json!({ "model": "bert", "prompt": "A" })),
    ] {
        let error = client.post(path, &body).refused(400);
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains("/v1/embeddings"), "{error}");
    }
    let long = "there ".repeat(250);
    let body = json!({ "model": "bert", "input": ["A", long] });
    let error = client.post("/v1/embeddings", &body).refused(400);
    assert_eq!(error["param"], "input[1]", "{error}");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("252 tokens > 200"), "{error}");
    // The whole context may be used, and Ollama cuts a text to it.
    let whole = json!({ "model": "bert", "input": "there ".repeat(198) });
    let answer = client.post("/v1/embeddings", &whole).ok();
    assert_eq!(answer["usage"]["prompt_tokens"], 200);
    let body = json!({ "model": "bert", "input": long });
    let cut = client.post("/api/embed", &body).ok();
    assert_eq!(cut["prompt_eval_count"], 200);
    let shown = client.post("/api/show", &json!({ "model": "bert" })).ok();
    assert_eq!(shown["capabilities"], json!(["embedding"]), "{shown}");
}
