//! Hostile vocabularies and texts: loading and encoding stay near linear.

use crate::common;
use std::time::Duration;

use crate::common::Random;
use gristmill_llm::chat::thread_time;
use gristmill_llm::tokenizer::{Tokenizer, TokenizerError, TokenizerSpec};

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// Limit of processor time, in a profile without optimisation; the attacks took 14 s and more.
const LONG: Duration = Duration::from_secs(if cfg!(debug_assertions) { 20 } else { 5 });

fn spec() -> TokenizerSpec {
    let mut spec = common::deepseek_spec();
    spec.pre = "glm4".into();
    let count = spec.tokens.len();
    spec.token_types
        .get_or_insert_with(|| vec![NORMAL; count])
        .resize(count, NORMAL);
    spec
}

fn with(special: impl Iterator<Item = String>, kind: i32) -> TokenizerSpec {
    let mut spec = spec();
    for text in special
        .map(String::into_bytes)
        .filter(|text| !spec.tokens.contains(text))
        .collect::<Vec<_>>()
    {
        spec.tokens.push(text);
        spec.token_types.as_mut().unwrap().push(kind);
    }
    spec
}

#[track_caller]
fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = thread_time();
    let result = work();
    let took = thread_time() - start;
    println!("{what}: {took:?}");
    assert!(took < LONG, "{what} took {took:?}");
    result
}

#[test]
fn special_tokens_of_every_length() {
    // 1,400 lengths, 1 MB, which took 5 s to load and minutes without finishing to search.
    for kind in [USER_DEFINED, CONTROL] {
        let spec = with((1..1400).map(|n| "q".repeat(n)), kind);
        let tokenizer = timed("load", || Tokenizer::new(spec).unwrap());
        let text = "q".repeat(1 << 20);
        for trusted in [true, false] {
            let ids = timed("encode", || tokenizer.encode(&text, trusted, false));
            assert_eq!(tokenizer.decode(&ids, true), text);
            let longest = tokenizer.token_id(&"q".repeat(1399)).unwrap();
            assert_eq!(
                ids.first() == Some(&longest),
                trusted || kind == USER_DEFINED
            );
        }
        // Every other byte from a user: no token may cross spans.
        let spans: Vec<(&str, bool)> = (0..1 << 16).map(|i| ("q", i % 2 == 0)).collect();
        let ids = timed("encode spans", || tokenizer.encode_spans(&spans, false));
        assert!(tokenizer.decode(&ids, true).bytes().all(|b| b == b'q'));
    }
    let error = Tokenizer::new(with((1..1500).map(|n| "q".repeat(n)), USER_DEFINED)).unwrap_err();
    assert!(
        matches!(
            error,
            TokenizerError::TooLarge {
                what: "bytes of special tokens",
                ..
            }
        ),
        "{error}"
    );
    assert!(error.hint().is_some());
}

#[test]
fn merges_of_nothing() {
    // Each merge invents two texts and a third; none is a token, so none ever applies.
    let mut spec = spec();
    let before = spec.merges.len();
    spec.merges
        .extend((0..1_000_000).map(|i| format!("x{i} y{i}")));
    let tokenizer = timed("load", || Tokenizer::new(spec).unwrap());
    let plain = Tokenizer::new(self::spec()).unwrap();
    for text in ["x1y1x22y22", "Hello, world", "xyxyxy"] {
        assert_eq!(
            tokenizer.encode(text, false, false),
            plain.encode(text, false, false),
            "{before}"
        );
    }
    for (tokens, merges) in [(5_000_000, 0), (0, 5_000_000)] {
        assert!(matches!(
            Tokenizer::admit(tokens, merges),
            Err(TokenizerError::TooLarge { .. })
        ));
    }
    Tokenizer::admit(200_000, 500_000).unwrap();
}

#[test]
fn texts_that_repeat_anything() {
    // The server accepts texts of four megabytes; a sixteenth without optimisation.
    let size = (4 << 20) / if cfg!(debug_assertions) { 16 } else { 1 };
    let units = [
        "a", "A", " ", "\n", "\r", "1", "!", "'", "中", "é", "\u{301}", "ʰ", "\u{a0}", "/", "가",
        "<", "😀", "s",
    ];
    let mut random = Random(11);
    let pres = [
        "glm4",
        "deepseek-llm",
        "youtu",
        "gpt-2",
        "deepseek-coder",
        "deepseek-v3",
        "gpt-4o",
        "kimi-k2",
        "qwen35",
        "exaone-moe",
        "bloom",
        "starcoder",
        "superbpe",
        "afmoe",
    ];
    let of = |pre: &str| {
        Tokenizer::new(TokenizerSpec {
            pre: pre.into(),
            ..common::deepseek_spec()
        })
        .unwrap()
    };
    let mut tokenizers: Vec<(&str, Tokenizer)> = pres.iter().map(|pre| (*pre, of(pre))).collect();
    // A tokenizer with lines as pre-tokens.
    tokenizers.push((
        "gemma4",
        Tokenizer::new(common::vocabulary("vocab/gemma-4-cut.json").0).unwrap(),
    ));
    for round in 0..48 {
        // Runs of one character, of a few in turn, and long runs that differ
        // in their last character.
        let unit: String = match round {
            n if n < units.len() => units[n].to_owned(),
            _ => {
                let of = |random: &mut Random| {
                    units[random.below(units.len())]
                        .repeat(1 + random.below(3) * random.below(2000))
                };
                (0..2 + random.below(3)).map(|_| of(&mut random)).collect()
            }
        };
        let text = unit.repeat(size / unit.len() + 1);
        // In rotation: two tokenizers for every text, six texts for every tokenizer.
        for (pre, tokenizer) in tokenizers.iter().skip(round % 8).step_by(8) {
            let head: String = unit.chars().take(8).collect();
            let ids = timed(
                &format!("{pre} {head:?}, {} bytes a unit", unit.len()),
                || tokenizer.encode(&text, false, false),
            );
            assert!(tokenizer.decode(&ids, true) == text, "{pre} {head:?}");
        }
    }
}
