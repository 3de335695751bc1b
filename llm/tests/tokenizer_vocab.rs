//! Tokenizers of real vocabularies against other engines' ids.

mod common;

use gristmill_llm::gguf::Gguf;
use gristmill_llm::language;
use gristmill_llm::tokenizer::{Decoder, Tokenizer};

fn tokenizer_of(name: &str) -> Tokenizer {
    let file = Gguf::open(common::data(name)).unwrap();
    language::tokenizer(file.metadata()).unwrap()
}

/// A vocabulary against llama.cpp's ids of its test texts.
fn agrees_with_llama_cpp(vocabulary: &str) {
    let tokenizer = tokenizer_of(&format!("vocab/{vocabulary}.gguf"));
    let texts = std::fs::read_to_string(common::data(&format!("vocab/{vocabulary}.gguf.inp"))).unwrap();
    let ids = std::fs::read_to_string(common::data(&format!("vocab/{vocabulary}.gguf.out"))).unwrap();
    let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
    let ids: Vec<&str> = ids.lines().collect();
    // A separator also follows the last text: the 47th case is the empty text after it, without a line of its own.
    assert_eq!((texts.len(), ids.len()), (47, 46));
    let mut checked = 0;
    for (text, line) in texts.iter().zip(ids.iter().chain([&""])) {
        let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
        assert_eq!(tokenizer.encode(text, false, false), expected, "{text:?}");
        assert_eq!(tokenizer.decode(&expected, false), *text);
        checked += 1;
    }
    assert_eq!(checked, 47);
}

#[test]
fn vocabularies_agree_with_llama_cpp_on_all_cases() {
    agrees_with_llama_cpp("ggml-vocab-deepseek-llm");
    agrees_with_llama_cpp("ggml-vocab-llama-spm");
}

/// Vocabularies cut from those of published models, on one text of many kinds, with the special tokens that files ask for.
#[test]
fn families_agree_with_llama_cpp() {
    let files = ["llama-q4_k_m", "mistral-q8_0", "qwen2-q8_0", "phi3-q8_0"];
    let text = std::fs::read_to_string(common::data("families/text.txt")).unwrap();
    for file in files {
        let tokenizer = tokenizer_of(&format!("families/{file}.gguf"));
        let family = file.split('-').next().unwrap();
        let expected = std::fs::read_to_string(common::data(&format!("families/{family}-text-tokens.txt"))).unwrap();
        let expected: Vec<u32> = expected.split_whitespace().map(|id| id.parse().unwrap()).collect();
        assert_eq!(tokenizer.encode(&text, true, true), expected, "{family}");
        assert_eq!(tokenizer.decode(&expected, false), text, "{family}");
    }
}

/// Text that a special token precedes begins with a space, as the first does; what spells a byte's token in the text is text.
#[test]
fn sentencepiece_puts_a_space_before_the_text() {
    let tokenizer = tokenizer_of("vocab/ggml-vocab-llama-spm.gguf");
    let plain = tokenizer.encode("Hello", true, false);
    assert_eq!(tokenizer.token_bytes(plain[0]), Some(&b" Hello"[..]));
    assert_eq!(tokenizer.encode("Hello</s>Hello", true, true), [&[1], &plain[..], &[2], &plain[..]].concat());
    let spelled = tokenizer.encode("<0x0A>", true, false);
    assert_eq!(tokenizer.decode(&spelled, false), "<0x0A>");
    assert_eq!(tokenizer.decode(&tokenizer.encode("\u{1F600}\n", false, false), false), "\u{1F600}\n");
}

#[test]
fn deepseek_llm_adds_one_bos_and_knows_its_end() {
    let tokenizer = Tokenizer::new(common::deepseek_spec()).unwrap();
    let bos = "<｜begin▁of▁sentence｜>";
    let plain = tokenizer.encode("Hello", false, false);
    assert_eq!(tokenizer.encode("Hello", true, true), [&[100_000], &plain[..]].concat());
    assert_eq!(tokenizer.encode(&format!("{bos}Hello"), true, true), [&[100_000], &plain[..]].concat());
    // As user text the marker is only text, and BOS is added in front of it.
    let spelled = tokenizer.encode(&format!("{bos}Hello"), false, true);
    assert!(spelled.len() > plain.len() + 3 && spelled[0] == 100_000 && !spelled[1..].contains(&100_000));
    assert_eq!(tokenizer.decode(&spelled, false), format!("{bos}Hello"));
    assert_eq!(tokenizer.eog(), [100_001]);
    assert_eq!(tokenizer.decode(&[100_000, plain[0], 100_001], false), "Hello");
    assert_eq!(tokenizer.decode(&[100_001], true), "<｜end▁of▁sentence｜>");
}

#[test]
fn the_demo_vocabulary_agrees_with_its_training_code() {
    let tokenizer = common::demo_glm();
    let prompts = std::fs::read_to_string(common::data("vocab/demo-glm-prompts.json")).unwrap();
    let prompts: serde_json::Value = serde_json::from_str(&prompts).unwrap();
    for case in prompts.as_array().unwrap() {
        let ids = |key: &str| -> Vec<u32> { serde_json::from_value(case[key].clone()).unwrap() };
        let prompt = case["prompt"].as_str().unwrap();
        assert_eq!(tokenizer.encode(prompt, true, true), ids("ids"), "{prompt:?}");
        let mut decoder = Decoder::new(&tokenizer);
        let mut text: String = ids("continuation").iter().map(|&id| decoder.push(id)).collect();
        text += &decoder.finish();
        assert_eq!(text, case["text"].as_str().unwrap());
    }
    assert_eq!(tokenizer.eog(), [2040, 2044]);
}

#[test]
fn spans_keep_words_whole_and_control_tokens_apart() {
    let tokenizer = common::demo_glm();
    let whole = tokenizer.encode("<|user|>\nTell me a story", true, false);
    assert_eq!(tokenizer.encode_spans(&[("<|user|>\nTell me", true), (" a story", false)], false), whole);
    let user = tokenizer.token_id("<|user|>").unwrap();
    let count = |spans: &[(&str, bool)]| {
        let ids = tokenizer.encode_spans(spans, false);
        assert_eq!(tokenizer.decode(&ids, true), spans.iter().map(|s| s.0).collect::<String>());
        ids.iter().filter(|&&id| id == user).count()
    };
    assert_eq!(count(&[("<|user|>", true), ("<|user|>", false), ("<|user|>", true)]), 2);
    // Half from the template, half from the user: no control token.
    assert_eq!(count(&[("<|us", true), ("er|>", false)]), 0);
    assert_eq!(count(&[("<|user", false), ("|>", true), ("", false)]), 0);
    assert_eq!(count(&[("<|us", true), ("er|>", true)]), 1);
}
