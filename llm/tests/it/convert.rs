//! Conversion of checkpoints: logits and token ids against transformers, forms of weights, and
//! malformed folders.

use crate::common::{data, forward};
use crate::convert_support::{Copied, RawTensor};
use crate::parity_support::tables::rms;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gristmill_backend::{Options, Precision, open};
use gristmill_llm::arch::CacheType;
use gristmill_llm::convert;
use gristmill_llm::engine::{Engine, Settings};
use gristmill_llm::gguf::{Gguf, Metadata};
use gristmill_llm::language;
use gristmill_llm::quantise::{Mix, Quantise, QuantiseOptions};
use safetensors::Dtype;
use serde_json::{Value, json};
use std::path::Path;

/// Families with a checkpoint in the test data; `convert/reference.py` makes those of all.
const FAMILIES: [&str; 6] = [
    "llama",
    "qwen3",
    "gemma3",
    "qwen3moe",
    "deepseek2",
    "gpt-oss",
];
/// RMS of the difference to transformers' logits in f64, in their standard deviations.
const EXACT: f64 = 1e-5;

fn converted(folder: &Path) -> Gguf {
    let converted = convert::open(folder).expect("a checkpoint");
    assert_eq!(converted.warnings, Vec::<String>::new());
    converted.file
}

fn expected(family: &str) -> Value {
    let text = std::fs::read_to_string(data(&format!("convert/{family}/expected.json")));
    serde_json::from_str(&text.expect("expected values")).expect("JSON")
}

fn ids(of: &Value) -> Vec<u32> {
    let ids = of.as_array().expect("ids").iter();
    ids.map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// Difference of a file's logits to those of transformers.
fn error(file: &Gguf, expected: &Value) -> f64 {
    let options = Options {
        precision: Precision::Exact,
        quick: true,
        ..Options::default()
    };
    let settings = Settings {
        context: Some(64),
        cache: CacheType::F32,
        ..Settings::default()
    };
    let opened = open("cpu", &options).expect("a device");
    let mut engine = Engine::load(file, opened, settings, &|_| ()).expect("a model");
    let tokens = ids(&expected["tokens"]);
    let found = forward(&mut engine, &tokens, 0, true);
    let vocabulary = found.len() / tokens.len();
    let rows = ids(&expected["rows"]);
    let rows = rows.iter().flat_map(|&row| {
        let row = row as usize * vocabulary;
        found[row..row + vocabulary].to_vec()
    });
    let wanted = expected["logits"].as_array().expect("rows").iter();
    let wanted: Vec<f32> = wanted
        .flat_map(|row| row.as_array().expect("a row"))
        .map(|v| v.as_f64().expect("a logit") as f32)
        .collect();
    rms(&rows.collect::<Vec<_>>(), &wanted)
}

fn written(file: &Gguf, name: &str) -> Gguf {
    let file_type = Mix::parse(name).expect("a type");
    let settings = QuantiseOptions {
        keep_quantised: true,
        ..QuantiseOptions::new(file_type, 2)
    };
    let quantise = Quantise::new(file, &settings).expect("types");
    let mut out = Vec::new();
    quantise.write(&mut out, &mut |_| true).expect("a file");
    Gguf::from_bytes(out).expect("a file")
}

fn bytes(file: &Gguf, name: &str) -> Vec<u8> {
    let info = file.tensor(name).unwrap_or_else(|| panic!("no {name}"));
    let mut bytes = vec![0; info.bytes as usize];
    file.read_tensor(info, &mut bytes).expect("data");
    bytes
}

fn floats(file: &Gguf, name: &str) -> Vec<f32> {
    let info = file.tensor(name).unwrap_or_else(|| panic!("no {name}"));
    let values = gristmill_tensor::evaluate::decode(info.encoding, &bytes(file, name));
    values.into_iter().map(|v| v as f32).collect()
}

/// Names and data of all tensors.
fn contents(file: &Gguf) -> Vec<(String, Vec<u8>)> {
    let names = file.tensors().iter().map(|tensor| tensor.name.clone());
    names
        .map(|name| (name.clone(), bytes(file, &name)))
        .collect()
}

fn check_equal(file: &Gguf, expected: &[(String, Vec<u8>)]) {
    let found = contents(file);
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!(found == expected, "{} differs", expected.0);
    }
}

#[test]
fn logits_are_those_of_transformers() {
    for family in FAMILIES {
        let file = converted(&data(&format!("convert/{family}")));
        let error = error(&file, &expected(family));
        println!("{family}: rms {error:.1e}");
        assert!(error < EXACT, "{family}: rms {error}");
    }
}

#[test]
fn token_ids_are_those_of_transformers() {
    for family in FAMILIES {
        let file = converted(&data(&format!("convert/{family}")));
        let tokenizer = language::tokenizer(file.metadata()).expect("a tokenizer");
        let expected = expected(family);
        let text = expected["text"].as_str().expect("a text");
        assert_eq!(
            tokenizer.encode(text, true, true),
            ids(&expected["ids"]),
            "{family}"
        );
        assert_eq!(tokenizer.warnings(), Vec::<String>::new(), "{family}");
        let metadata = file.metadata();
        let template = metadata.str("tokenizer.chat_template").expect("a text");
        assert!(template.expect("a template").contains("<|assistant|>"));
        assert_eq!(metadata.f32("general.sampling.temp").unwrap(), Some(0.6));
    }
}

#[test]
fn a_written_file_has_the_numbers_of_the_checkpoint() {
    for (family, name, is_wide) in [
        ("llama", "F32", true),
        ("qwen3", "BF16", true),
        ("gemma3", "Q8_0", false),
    ] {
        let file = written(&converted(&data(&format!("convert/{family}"))), name);
        let error = error(&file, &expected(family));
        // Types with fewer bits than the checkpoint lose something, and not all.
        let most = if is_wide { EXACT } else { 0.2 };
        assert!(
            error < most && (is_wide || error > EXACT),
            "{family} {name}: rms {error}"
        );
        let file_type = file.metadata().u32("general.file_type").unwrap();
        assert_eq!(
            file_type,
            Some(match name {
                "F32" => 0,
                "BF16" => 32,
                _ => 7,
            })
        );
    }
}

#[test]
fn several_files_with_an_index_are_one_checkpoint() {
    let mut copied = Copied::of("qwen3");
    let whole = contents(&converted(copied.path()));
    copied.split();
    let split = converted(copied.path());
    check_equal(&split, &whole);
}

#[test]
fn experts_in_one_tensor_are_those_of_single_ones() {
    let mut copied = Copied::of("qwen3moe");
    let single = contents(&converted(copied.path()));
    let prefix = "model.layers.1.mlp.experts.";
    let of = |copied: &Copied, expert: usize, part: &str| {
        copied.part(&format!("{prefix}{expert}.{part}.weight"))
    };
    let (mut both, mut down) = (RawTensor::empty(), RawTensor::empty());
    for expert in 0..4 {
        both.append(&of(&copied, expert, "gate_proj"));
        both.append(&of(&copied, expert, "up_proj"));
        down.append(&of(&copied, expert, "down_proj"));
        for part in ["gate_proj", "up_proj", "down_proj"] {
            copied.remove(&format!("{prefix}{expert}.{part}.weight"));
        }
    }
    both.shape = vec![4, 32, 32];
    down.shape = vec![4, 32, 16];
    copied.add(&format!("{prefix}gate_up_proj"), both);
    copied.add(&format!("{prefix}down_proj"), down);
    copied.save();
    let fused = converted(copied.path());
    check_equal(&fused, &single);
}

#[test]
fn packed_experts_keep_their_blocks() {
    let mut copied = Copied::of("gpt-oss");
    let (experts, rows, columns) = (4, 64, 32);
    let prefix = "model.layers.0.mlp.experts.gate_up_proj";
    copied.remove(prefix);
    // One block a row: its elements count up from the row's number.
    let element = |row: usize, column: usize| ((row + column) % 16) as u8;
    let exponent = |row: usize| 120 + (row % 16) as u8;
    let mut blocks = RawTensor::of_bytes(vec![experts, rows, 1, 16]);
    let mut scales = RawTensor::of_bytes(vec![experts, rows, 1]);
    for row in 0..experts * rows {
        let bytes = (0..16).map(|n| element(row, 2 * n) | element(row, 2 * n + 1) << 4);
        blocks.bytes.extend(bytes);
        scales.bytes.push(exponent(row));
    }
    copied.add(&format!("{prefix}_blocks"), blocks);
    copied.add(&format!("{prefix}_scales"), scales);
    copied.save();
    let file = converted(copied.path());
    let value = |row: usize, column: usize| {
        let steps = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let code = element(row, column);
        let size = steps[code as usize % 8] * f32::powi(2.0, i32::from(exponent(row)) - 127);
        if code < 8 { size } else { -size }
    };
    for (name, first) in [("ffn_gate_exps", 0), ("ffn_up_exps", 1)] {
        let name = format!("blk.0.{name}.weight");
        assert_eq!(file.tensor(&name).unwrap().encoding.name, "mxfp4");
        let rows = (0..experts * rows).filter(|row| row % 2 == first);
        let expected = rows.flat_map(|row| (0..columns).map(move |column| value(row, column)));
        assert_eq!(floats(&file, &name), expected.collect::<Vec<_>>(), "{name}");
    }
    let kept = written(&file, "Q8_0");
    assert_eq!(
        kept.tensor("blk.0.ffn_up_exps.weight")
            .unwrap()
            .encoding
            .name,
        "mxfp4"
    );
    assert_eq!(
        kept.tensor("blk.1.ffn_up_exps.weight")
            .unwrap()
            .encoding
            .name,
        "q8_0"
    );
    let file_type = written(&file, "BF16").metadata().u32("general.file_type");
    assert_eq!(file_type.unwrap(), Some(38), "MXFP4_MOE");
}

#[test]
fn eight_bit_floats_are_multiplied_by_their_scales() {
    let mut copied = Copied::of("deepseek2");
    copied.config(|config| {
        config["quantization_config"] =
            json!({"quant_method": "fp8", "weight_block_size": [24, 12]});
    });
    // Latent keys and values: 4 heads of 8 and 8 rows, 16 columns.
    let name = "model.layers.0.self_attn.kv_b_proj.weight";
    let code = |row: usize, column: usize| 0x30 + ((row * 5 + column * 3) % 24) as u8;
    let mut codes = RawTensor::of_bytes(vec![64, 16]);
    codes.dtype = Dtype::F8_E4M3;
    let scales: Vec<f32> = (0..3 * 2).map(|n| 0.25 + n as f32).collect();
    codes.bytes = (0..64)
        .flat_map(|row| (0..16).map(move |column| code(row, column)))
        .collect();
    copied.add(name, codes);
    copied.add(
        &format!("{name}_scale_inv"),
        RawTensor::of_floats(vec![3, 2], &scales),
    );
    copied.save();
    let file = converted(copied.path());
    let value = |row: usize, column: usize| {
        let code = code(row, column);
        let size = (1.0 + f32::from(code & 7) / 8.0) * f32::powi(2.0, i32::from(code >> 3) - 7);
        size * scales[row / 24 * 2 + column / 12]
    };
    let (keys, values) = (
        floats(&file, "blk.0.attn_k_b.weight"),
        floats(&file, "blk.0.attn_v_b.weight"),
    );
    for head in 0..4 {
        for (column, row) in (0..16).flat_map(|c| (0..8).map(move |r| (c, r))) {
            let key = keys[(head * 16 + column) * 8 + row];
            assert_eq!(
                key,
                value(head * 16 + row, column),
                "key {head} {row} {column}"
            );
            let found = values[(head * 8 + row) * 16 + column];
            assert_eq!(
                found,
                value(head * 16 + 8 + row, column),
                "value {head} {row} {column}"
            );
        }
    }
}

#[test]
fn blocks_for_draft_tokens_are_converted_where_a_family_has_them() {
    let mut copied = Copied::of("deepseek2");
    for name in copied.names() {
        if let Some(rest) = name.strip_prefix("model.layers.1.") {
            let part = copied.part(&name);
            copied.add(&format!("model.layers.2.{rest}"), part);
        }
    }
    let joined: Vec<f32> = (0..32 * 64).map(|n| n as f32).collect();
    copied.add(
        "model.layers.2.eh_proj.weight",
        RawTensor::of_floats(vec![32, 64], &joined),
    );
    copied.add(
        "model.layers.2.enorm.weight",
        RawTensor::of_floats(vec![32], &[1.0; 32]),
    );
    copied.add(
        "model.layers.2.hnorm.weight",
        RawTensor::of_floats(vec![32], &[1.0; 32]),
    );
    copied.save();
    let count = |file: &Gguf, key: &str| file.metadata().u32(&format!("deepseek2.{key}")).unwrap();
    let without = converted(copied.path());
    assert_eq!(count(&without, "block_count"), Some(2));
    assert!(without.tensor("blk.2.nextn.eh_proj.weight").is_none());
    copied.config(|config| config["architectures"] = json!(["Glm4MoeLiteForCausalLM"]));
    let with = converted(copied.path());
    assert_eq!(count(&with, "block_count"), Some(3));
    assert_eq!(count(&with, "nextn_predict_layers"), Some(1));
    assert_eq!(floats(&with, "blk.2.nextn.eh_proj.weight"), joined);
    assert!(error(&with, &expected("deepseek2")) < EXACT);
}

/// A checkpoint that is refused, and a part of the reason.
fn refused(family: &str, reason: &str, change: impl FnOnce(&mut Copied)) {
    let mut copied = Copied::of(family);
    change(&mut copied);
    let error = match convert::open(copied.path()) {
        Ok(_) => panic!("{reason}: it is accepted"),
        Err(error) => error,
    };
    let text = error.to_string();
    assert!(text.contains(reason), "{text} lacks {reason}");
    assert!(error.hint().is_some_and(|hint| !hint.is_empty()), "{text}");
}

#[test]
fn malformed_configurations_are_refused() {
    refused("qwen3", "has no config.json", |copied| {
        copied.delete("config.json")
    });
    refused("qwen3", "not a JSON object", |copied| {
        copied.write("config.json", b"[1]")
    });
    refused("qwen3", "names no architectures", |copied| {
        copied.write("config.json", b"{}")
    });
    let with = |name: &'static str, value: Value| {
        move |copied: &mut Copied| copied.config(|config| config[name] = value)
    };
    refused(
        "qwen3",
        "class GhostForCausalLM",
        with("architectures", json!(["GhostForCausalLM"])),
    );
    refused(
        "qwen3",
        "num_hidden_layers is -1",
        with("num_hidden_layers", json!(-1)),
    );
    refused(
        "qwen3",
        "num_hidden_layers is 100000",
        with("num_hidden_layers", json!(100_000)),
    );
    refused("qwen3", "not complete", with("num_hidden_layers", json!(3)));
    refused("qwen3", "not complete", with("hidden_size", json!(64)));
    refused(
        "llama",
        "64 rows are not those of 3 heads",
        with("num_attention_heads", json!(3)),
    );
    refused(
        "qwen3",
        "hidden_act relu2",
        with("hidden_act", json!("relu2")),
    );
    refused(
        "qwen3",
        "RoPE of type dynamic",
        with("rope_parameters", json!({"type": "dynamic"})),
    );
    refused(
        "qwen3",
        "quant_method \"awq\"",
        with("quantization_config", json!({"quant_method": "awq"})),
    );
    refused(
        "deepseek2",
        "64 rows are not those",
        with("v_head_dim", json!(1_u64 << 31)),
    );
    refused(
        "qwen3moe",
        "4 of 5 experts",
        with("num_local_experts", json!(5)),
    );
    refused(
        "gemma3",
        "layer_types has 3 entries",
        with("num_hidden_layers", json!(4)),
    );
}

#[test]
fn malformed_weights_are_refused() {
    refused("qwen3", "has no model.safetensors", |copied| {
        copied.delete("model.safetensors")
    });
    refused("qwen3", "has no model.safetensors", |copied| {
        copied.delete("model.safetensors");
        copied.write("pytorch_model.bin", b"cos\nsystem\n");
    });
    refused("qwen3", "a header of", |copied| {
        copied.write("model.safetensors", &[255; 64])
    });
    refused("qwen3", "bytes of data", |copied| {
        let bytes = std::fs::read(copied.path().join("model.safetensors")).unwrap();
        copied.write("model.safetensors", &bytes[..bytes.len() - 4]);
    });
    refused(
        "qwen3",
        "no tensor of qwen3 models has that name",
        |copied| {
            copied.add(
                "model.layers.0.mlp.odd.weight",
                RawTensor::of_floats(vec![1], &[0.0]),
            );
            copied.save();
        },
    );
    refused("qwen3", "not complete", |copied| {
        copied.remove("model.layers.1.mlp.up_proj.weight");
        copied.save();
    });
    refused("qwen3", "type I64 is not read", |copied| {
        let mut part = RawTensor::of_bytes(vec![32]);
        (part.dtype, part.bytes) = (Dtype::I64, vec![0; 256]);
        copied.add("model.norm.weight", part);
        copied.save();
    });
    refused("deepseek2", "weight_scale_inv", |copied| {
        let name = "model.layers.0.self_attn.kv_b_proj.weight";
        let mut part = RawTensor::of_bytes(vec![64, 16]);
        (part.dtype, part.bytes) = (Dtype::F8_E4M3, vec![0; 1024]);
        copied.add(name, part);
        copied.save();
    });
    for (index, reason) in [
        (
            json!({"weight_map": {"x": "../model.safetensors"}}),
            "is no file name",
        ),
        (
            json!({"weight_map": {"x": "model.safetensors"}}),
            "no file has it",
        ),
        (
            json!({"weight_map": {"x": "absent.safetensors"}}),
            "cannot read",
        ),
        (json!({"weights": 1}), "has no weight_map"),
    ] {
        refused("qwen3", reason, |copied| {
            let text = index.to_string();
            copied.write("model.safetensors.index.json", text.as_bytes());
        });
    }
}

#[test]
fn malformed_tokenizers_are_refused() {
    refused("qwen3", "has no tokenizer.json", |copied| {
        copied.delete("tokenizer.json")
    });
    let with = |pointer: &'static str, value: Value| {
        move |copied: &mut Copied| {
            copied.json("tokenizer.json", |json| {
                *json.pointer_mut(pointer).unwrap() = value
            });
        }
    };
    refused(
        "qwen3",
        "token 9999, where",
        with("/added_tokens/0/id", json!(9999)),
    );
    refused(
        "qwen3",
        "added_tokens has another form",
        with("/added_tokens/0/id", json!("x")),
    );
    refused(
        "qwen3",
        "merges have another form",
        with("/model/merges/0", json!(["a"])),
    );
    refused(
        "qwen3",
        "type WordLevel",
        with("/model/type", json!("WordLevel")),
    );
    refused(
        "qwen3",
        "WordPiece with the normaliser",
        with("/model/type", json!("WordPiece")),
    );
    let pattern = "/pre_tokenizer/pretokenizers/0/pattern/Regex";
    refused("qwen3", "[aeiou]+", |copied| {
        with(pattern, json!("[aeiou]+"))(copied);
    });
    refused("qwen3", "tokenizer.json: ", with(pattern, json!("(((")));
    refused("gemma3", "no SentencePiece model", |copied| {
        copied.write("tokenizer.model", &[9; 40])
    });
    refused("gemma3", "more than", |copied| {
        copied.write("tokenizer.model", &vec![0; 17 << 20])
    });
}

#[test]
fn pieces_become_merges_with_the_same_ids() {
    // A tokenizer.json of merges, as newer checkpoints of Gemma have instead of tokenizer.model.
    let file = converted(&data("convert/gemma3"));
    let metadata = file.metadata();
    let tokens = metadata
        .need("tokenizer.ggml.tokens", Metadata::strings)
        .unwrap();
    let scores = metadata.floats("tokenizer.ggml.scores").unwrap().unwrap();
    let texts: Vec<String> = tokens
        .iter()
        .map(|text| String::from_utf8_lossy(text).into_owned())
        .collect();
    let vocab: serde_json::Map<String, Value> = texts
        .iter()
        .enumerate()
        .map(|(id, text)| (text.clone(), json!(id)))
        .collect();
    let mut merges: Vec<(f32, [String; 2])> = Vec::new();
    for (text, score) in texts
        .iter()
        .zip(&scores)
        .filter(|(_, score)| **score > -1000.0)
    {
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if vocab.contains_key(left) && vocab.contains_key(right) && !text.starts_with('<') {
                merges.push((*score, [left.into(), right.into()]));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0));
    let merges: Vec<_> = merges.into_iter().map(|merge| json!(merge.1)).collect();
    let added = |id: usize| json!({"id": id, "content": texts[id], "special": id < 3});
    let tokenizer = json!({
        "added_tokens": [added(0), added(1), added(2), added(3)],
        "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "vocab": vocab, "merges": merges},
        "decoder": {"type": "Sequence", "decoders": []},
    });
    let copied = Copied::of("gemma3");
    copied.delete("tokenizer.model");
    copied.write("tokenizer.json", tokenizer.to_string().as_bytes());
    let merged = language::tokenizer(converted(copied.path()).metadata()).expect("a tokenizer");
    let expected = expected("gemma3");
    let text = expected["text"].as_str().expect("a text");
    assert_eq!(merged.encode(text, true, true), ids(&expected["ids"]));
}

#[test]
fn ranks_of_tiktoken_become_merges() {
    let copied = Copied::of("deepseek2");
    let strings = |file: &Gguf, key: &str| -> Vec<String> {
        let all = file.metadata().need(key, Metadata::strings).expect(key);
        let text = |token: &[u8]| String::from_utf8(token.to_vec()).expect("a text");
        all.iter().map(text).collect()
    };
    let keys = ["tokenizer.ggml.tokens", "tokenizer.ggml.merges"];
    let before = converted(copied.path());
    let before = keys.map(|key| strings(&before, key));
    // Its ids are ranks, and added tokens come last.
    let json = std::fs::read_to_string(copied.path().join("tokenizer.json")).expect("a file");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let vocab = json["model"]["vocab"].as_object().expect("a vocabulary");
    let mut lines = String::new();
    let tokenizer = language::tokenizer(converted(copied.path()).metadata()).expect("a tokenizer");
    for id in vocab.values() {
        let token = tokenizer.token_bytes(id.as_u64().unwrap() as u32);
        let token = STANDARD.encode(token.expect("a token"));
        lines += &format!("{token} {id}\n");
    }
    copied.write("tiktoken.model", lines.as_bytes());
    copied.delete("tokenizer.json");
    let added: serde_json::Map<String, Value> = json["added_tokens"]
        .as_array()
        .expect("added tokens")
        .iter()
        .map(|token| (token["id"].to_string(), token.clone()))
        .collect();
    copied.json("tokenizer_config.json", |config| {
        config["added_tokens_decoder"] = added.into();
    });
    let after = converted(copied.path());
    assert_eq!(keys.map(|key| strings(&after, key)), before);
    let pre = after.metadata().str("tokenizer.ggml.pre").unwrap();
    assert_eq!(pre, Some("kimi-k2"));
    // The pattern splits this text as that of the other file.
    let text = "Tell me in your own words: the fork <|eot|>";
    let again = language::tokenizer(after.metadata()).expect("a tokenizer");
    assert_eq!(
        again.encode(text, true, false),
        tokenizer.encode(text, true, false)
    );
}
