//! Compares tokenizers of real vocabularies with other engines' ids.

use crate::common;
use gristmill_llm::gguf::Gguf;
use gristmill_llm::language;
use gristmill_llm::tokenizer::{Decoder, Tokenizer, TokenizerSpec};

fn tokenizer_of(name: &str) -> Tokenizer {
    let file = Gguf::open(common::data(name)).unwrap();
    language::tokenizer(file.metadata()).unwrap()
}

/// Compares a tokenizer with llama.cpp's ids of its test texts, which are in two files of that
/// name; `id` maps their ids to those of the tokenizer.
fn agrees_with_llama_cpp(tokenizer: &Tokenizer, files: &std::path::Path, id: impl Fn(u32) -> u32) {
    let read = |extension: &str| {
        std::fs::read_to_string(format!("{}.{extension}", files.display())).unwrap()
    };
    let (texts, ids) = (read("inp"), read("out"));
    let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
    let ids: Vec<&str> = ids.lines().collect();
    // If a separator also follows the last text, the last case is an empty text without a
    // line of its own.
    let unlisted = usize::from(texts.last() == Some(&""));
    assert!(
        texts.len() == ids.len() + unlisted && ids.len() >= 46,
        "{} {}",
        texts.len(),
        ids.len()
    );
    for (text, line) in texts.iter().zip(ids.iter().chain([&""])) {
        let expected: Vec<u32> = line
            .split_whitespace()
            .map(|it| id(it.parse().unwrap()))
            .collect();
        assert_eq!(tokenizer.encode(text, false, false), expected, "{text:?}");
        assert_eq!(tokenizer.decode(&expected, false), *text);
    }
}

#[test]
fn vocabularies_agree_with_llama_cpp_on_all_cases() {
    for name in ["ggml-vocab-deepseek-llm", "ggml-vocab-llama-spm"] {
        let file = format!("vocab/{name}.gguf");
        agrees_with_llama_cpp(&tokenizer_of(&file), &common::data(&file), |id| id);
    }
}

/// Vocabularies too large for the repository, cut to the tokens and merges of the test texts, which
/// keep the results equal.
#[test]
fn cut_vocabularies_agree_with_llama_cpp_on_all_cases() {
    for name in ["gemma-4", "qwen35", "starcoder"] {
        let (spec, ids) = common::vocabulary(&format!("vocab/{name}-cut.json"));
        let tokenizer = Tokenizer::new(spec).unwrap();
        let place = |id: u32| ids.binary_search(&id).unwrap() as u32;
        agrees_with_llama_cpp(&tokenizer, &common::data(&format!("vocab/{name}")), place);
    }
}

/// Compares with llama.cpp on whole vocabularies, and on the text in the vocabulary of every
/// family.
#[cfg(feature = "reference-tests")]
#[test]
fn whole_vocabularies_agree_with_llama_cpp() {
    let folder = std::env::var_os("GRISTMILL_REFERENCE")
        .map(std::path::PathBuf::from)
        .expect("GRISTMILL_REFERENCE names the folder");
    let open =
        |path: &std::path::Path| language::tokenizer(Gguf::open(path).unwrap().metadata()).unwrap();
    for name in ["gemma-4", "llama-spm", "qwen35", "starcoder"] {
        let file = folder.join(format!("vocab/ggml-vocab-{name}.gguf"));
        agrees_with_llama_cpp(&open(&file), &file, |id| id);
    }
    let mut families = 0;
    for family in std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
    {
        let Ok(text) = std::fs::read_to_string(family.join("text.txt")) else {
            continue;
        };
        let tokenizer = open(&family.join("model-f32.gguf"));
        agrees_on(&tokenizer, &text, &family.join("text-tokens.txt"));
        families += 1;
    }
    assert!(families >= 18, "{families}");
}

/// Compares the ids of a text, with the special tokens that a file requests, with
/// those in another file.
fn agrees_on(tokenizer: &Tokenizer, text: &str, ids: &std::path::Path) {
    let expected = std::fs::read_to_string(ids).unwrap();
    let expected: Vec<u32> = expected
        .split_whitespace()
        .map(|id| id.parse().unwrap())
        .collect();
    assert_eq!(tokenizer.encode(text, true, true), expected, "{ids:?}");
    assert_eq!(tokenizer.decode(&expected, false), text, "{ids:?}");
}

/// Vocabularies cut from those of published models, on one text of many kinds, with the special
/// tokens that files request.
#[test]
fn families_agree_with_llama_cpp() {
    let text = std::fs::read_to_string(common::data("families/text.txt")).unwrap();
    let ids = |family: &str| common::data(&format!("families/{family}-text-tokens.txt"));
    for file in ["llama-q4_k_m", "mistral-q8_0", "qwen2-q8_0", "phi3-q8_0"] {
        let family = file.split('-').next().unwrap();
        agrees_on(
            &tokenizer_of(&format!("families/{file}.gguf")),
            &text,
            &ids(family),
        );
    }
    let families = [
        "deepseek2",
        "deepseek2-kimi",
        "gemma3",
        "gemma4",
        "glm4moe",
        "gpt-oss",
        "minimax-m2",
        "qwen35",
    ];
    for family in families {
        let (spec, _) = common::vocabulary(&format!("families/{family}-vocab.json"));
        agrees_on(&Tokenizer::new(spec).unwrap(), &text, &ids(family));
    }
}

/// Phi-3's special tokens, except three, strip the white space after them; the text that follows
/// then counts as a beginning and gets a space prepended.
#[test]
fn special_tokens_may_take_the_space_behind_them() {
    let tokenizer = tokenizer_of("families/phi3-q8_0.gguf");
    let ids = |text: &str| tokenizer.encode(text, true, false);
    let [user, end, bos] =
        ["<|user|>", "<|end|>", "<s>"].map(|text| tokenizer.token_id(text).unwrap());
    let word = ids("the");
    assert_eq!(
        ids("<|user|>\n the<|end|>\n"),
        [&[user], &word[..], &[end]].concat()
    );
    assert_eq!(ids("<|user|>\n<|end|> \t\n"), [user, end]);
    assert_eq!(ids("<s> the"), [&[bos], &ids(" the")[..]].concat());
    assert_ne!(ids(" the"), word);
    // Other vocabularies keep it.
    let (spec, _) = common::vocabulary("families/gemma3-vocab.json");
    let gemma = Tokenizer::new(spec).unwrap();
    let text = "<start_of_turn>\n the";
    assert_eq!(gemma.decode(&gemma.encode(text, true, false), true), text);
}

#[test]
fn characters_without_a_token_are_spelt_in_bytes() {
    let (spec, _) = common::vocabulary("families/gemma4-vocab.json");
    let tokenizer = Tokenizer::new(spec).unwrap();
    let named = |byte: u8| tokenizer.token_id(&format!("<0x{byte:02X}>")).unwrap();
    assert_eq!(
        tokenizer.encode("\u{1F600}", false, false),
        "\u{1F600}".bytes().map(named).collect::<Vec<_>>()
    );
    // Text that spells such a token stays text.
    let spelt = tokenizer.encode("<0x0A>", true, false);
    assert_eq!(tokenizer.decode(&spelt, false), "<0x0A>");
    assert!(spelt.len() > 1);
    let text = " a  b \u{2581}\n\n\n c\u{301} ";
    let plain = text.replace('\u{2581}', " ");
    assert_eq!(
        tokenizer.decode(&tokenizer.encode(text, true, false), false),
        plain
    );
}

/// In harmony an answer continues after the end of a message, in Gemma 4 after HTML.
#[test]
fn end_of_generation_tokens_depend_on_the_vocabulary() {
    let ends = |tokens: &[&str]| {
        let kinds = vec![3; tokens.len()];
        let tokens = tokens.iter().map(|text| text.as_bytes().to_vec()).collect();
        let spec = TokenizerSpec {
            model: "gpt2".into(),
            pre: "gpt-4o".into(),
            tokens,
            token_types: Some(kinds),
            ..TokenizerSpec::default()
        };
        let tokenizer = Tokenizer::new(spec).unwrap();
        tokenizer.eog().to_vec()
    };
    assert_eq!(ends(&["<|user|>", "<|end|>"]), [1]);
    assert_eq!(ends(&["<|end|>", "<|return|>", "<|call|>"]), [1, 2]);
    assert_eq!(ends(&["</s>", "<turn|>", "<|tool_response>"]), [1, 2]);
    assert_eq!(ends(&["</s>", "[EOT]", "[EOS]", "[e~["]), [0, 1, 2, 3]);
    assert_eq!(ends(&["<|fim_pad|>", "<|x|>", "<|file_sep|>"]), [0, 2]);
}

/// Text after a special token begins with a space, like the first text; text that spells a
/// byte token stays text.
#[test]
fn sentencepiece_puts_a_space_before_the_text() {
    let tokenizer = tokenizer_of("vocab/ggml-vocab-llama-spm.gguf");
    let plain = tokenizer.encode("Hello", true, false);
    assert_eq!(tokenizer.token_bytes(plain[0]), Some(&b" Hello"[..]));
    assert_eq!(
        tokenizer.encode("Hello</s>Hello", true, true),
        [&[1], &plain[..], &[2], &plain[..]].concat()
    );
    let spelled = tokenizer.encode("<0x0A>", true, false);
    assert_eq!(tokenizer.decode(&spelled, false), "<0x0A>");
    assert_eq!(
        tokenizer.decode(&tokenizer.encode("\u{1F600}\n", false, false), false),
        "\u{1F600}\n"
    );
}

#[test]
fn deepseek_llm_adds_one_bos_and_knows_its_end() {
    let tokenizer = Tokenizer::new(common::deepseek_spec()).unwrap();
    let bos = "<｜begin▁of▁sentence｜>";
    let plain = tokenizer.encode("Hello", false, false);
    assert_eq!(
        tokenizer.encode("Hello", true, true),
        [&[100_000], &plain[..]].concat()
    );
    assert_eq!(
        tokenizer.encode(&format!("{bos}Hello"), true, true),
        [&[100_000], &plain[..]].concat()
    );
    // As user text the marker is only text, and BOS is added in front of it.
    let spelled = tokenizer.encode(&format!("{bos}Hello"), false, true);
    assert!(
        spelled.len() > plain.len() + 3
            && spelled[0] == 100_000
            && !spelled[1..].contains(&100_000)
    );
    assert_eq!(tokenizer.decode(&spelled, false), format!("{bos}Hello"));
    assert_eq!(tokenizer.eog(), [100_001]);
    assert_eq!(
        tokenizer.decode(&[100_000, plain[0], 100_001], false),
        "Hello"
    );
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
        assert_eq!(
            tokenizer.encode(prompt, true, true),
            ids("ids"),
            "{prompt:?}"
        );
        let mut decoder = Decoder::new(&tokenizer);
        let mut text: String = ids("continuation")
            .iter()
            .map(|&id| decoder.push(id))
            .collect();
        text += &decoder.finish();
        assert_eq!(text, case["text"].as_str().unwrap());
    }
    assert_eq!(tokenizer.eog(), [2040, 2044]);
}

#[test]
fn spans_keep_words_whole_and_control_tokens_apart() {
    let tokenizer = common::demo_glm();
    let whole = tokenizer.encode("<|user|>\nTell me a story", true, false);
    assert_eq!(
        tokenizer.encode_spans(&[("<|user|>\nTell me", true), (" a story", false)], false),
        whole
    );
    let user = tokenizer.token_id("<|user|>").unwrap();
    let count = |spans: &[(&str, bool)]| {
        let ids = tokenizer.encode_spans(spans, false);
        assert_eq!(
            tokenizer.decode(&ids, true),
            spans.iter().map(|s| s.0).collect::<String>()
        );
        ids.iter().filter(|&&id| id == user).count()
    };
    assert_eq!(
        count(&[("<|user|>", true), ("<|user|>", false), ("<|user|>", true)]),
        2
    );
    // Half from the template, half from the user: no control token.
    assert_eq!(count(&[("<|us", true), ("er|>", false)]), 0);
    assert_eq!(count(&[("<|user", false), ("|>", true), ("", false)]), 0);
    assert_eq!(count(&[("<|us", true), ("er|>", true)]), 1);
}
