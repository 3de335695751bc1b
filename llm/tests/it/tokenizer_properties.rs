//! Properties of tokenizers on random, long and malformed input.

use crate::common;
use std::time::Duration;

use crate::common::Random;
use gristmill_llm::chat::thread_time;
use gristmill_llm::tokenizer::{Tokenizer, TokenizerError, TokenizerSpec};

/// Characters with their class: `L`etter, `N`umber, `S`pace, line `B`reak, `O`ther
/// (from Python's unicodedata).
const POOL: &[(char, u8)] = &[
    ('a', b'L'),
    ('s', b'L'),
    ('S', b'L'),
    ('t', b'L'),
    ('R', b'L'),
    ('e', b'L'),
    ('l', b'L'),
    ('L', b'L'),
    ('v', b'L'),
    ('d', b'L'),
    ('é', b'L'),
    ('中', b'L'),
    ('ʰ', b'L'),
    ('ǅ', b'L'),
    ('\u{10400}', b'L'),
    ('1', b'N'),
    ('9', b'N'),
    ('½', b'N'),
    ('Ⅷ', b'N'),
    ('٣', b'N'),
    ('㊿', b'N'),
    (' ', b'S'),
    (' ', b'S'),
    ('\t', b'S'),
    ('\u{a0}', b'S'),
    ('\u{3000}', b'S'),
    ('\u{85}', b'S'),
    ('\n', b'B'),
    ('\r', b'B'),
    ('\'', b'O'),
    ('\'', b'O'),
    ('!', b'O'),
    ('-', b'O'),
    ('\u{301}', b'O'),
    ('😀', b'O'),
    ('\u{200b}', b'O'),
    ('\u{1}', b'O'),
    ('Ⓐ', b'O'),
    ('\u{e000}', b'O'),
];

fn class(c: char) -> u8 {
    POOL.iter().find(|(p, _)| *p == c).unwrap().1
}

/// The glm4 split as a scanner without regex, from the published alternatives.
fn glm4_pieces(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).map(|&c| class(c));
    let run =
        |from: usize, ok: &dyn Fn(u8) -> bool| (from..).find(|&i| !at(i).is_some_and(ok)).unwrap();
    let space = |k: u8| k == b'S' || k == b'B';
    let (mut pieces, mut p) = (Vec::new(), 0);
    while p < chars.len() {
        let rest: String = chars[p..].iter().take(3).collect::<String>().to_lowercase();
        let contraction = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"]
            .iter()
            .find(|c| rest.starts_with(**c));
        let other = p + usize::from(chars[p] == ' ');
        let spaces = run(p, &space);
        let end = if let Some(c) = contraction {
            p + c.len()
        } else if at(p) == Some(b'L') {
            run(p, &|k| k == b'L')
        } else if at(p) != Some(b'B') && at(p) != Some(b'N') && at(p + 1) == Some(b'L') {
            run(p + 1, &|k| k == b'L')
        } else if at(p) == Some(b'N') {
            run(p, &|k| k == b'N').min(p + 3)
        } else if at(other) == Some(b'O') {
            run(run(other, &|k| k == b'O'), &|k| k == b'B')
        } else if let Some(last) = (p..spaces).rev().find(|&i| at(i) == Some(b'B')) {
            last + 1
        } else if spaces < chars.len() && spaces - p > 1 {
            spaces - 1
        } else {
            spaces
        };
        pieces.push(chars[p..end].iter().collect());
        p = end;
    }
    pieces
}

/// A vocabulary of single bytes with whole-piece lookup; adding `pieces` makes pre-tokens visible.
fn alphabet() -> Vec<Vec<u8>> {
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut next = 255;
    let mut char_of = |b: u32| {
        if printable(b) {
            b
        } else {
            next += 1;
            next
        }
    };
    (0..256)
        .map(|b| char::from_u32(char_of(b)).unwrap().to_string().into_bytes())
        .collect()
}

fn bytes_only(pre: &str) -> TokenizerSpec {
    TokenizerSpec {
        model: "gpt2".into(),
        pre: pre.into(),
        tokens: alphabet(),
        ..TokenizerSpec::default()
    }
}

fn mapped(piece: &str, alphabet: &[Vec<u8>]) -> Vec<u8> {
    piece
        .bytes()
        .flat_map(|b| alphabet[usize::from(b)].clone())
        .collect()
}

#[test]
fn the_glm4_regex_equals_the_scanner() {
    // llama-bpe has the same pattern and looks up whole pieces: with the expected pieces as tokens,
    // each is one id.
    let mut random = Random(42);
    let alphabet = alphabet();
    for _ in 0..2000 {
        let text: String = (0..random.below(24))
            .map(|_| POOL[random.below(POOL.len())].0)
            .collect();
        let pieces = glm4_pieces(&text);
        let mut spec = TokenizerSpec {
            add_bos: Some(false),
            ..bytes_only("llama-bpe")
        };
        for piece in &pieces {
            let token = mapped(piece, &alphabet);
            if !spec.tokens.contains(&token) {
                spec.tokens.push(token);
            }
        }
        let tokenizer = Tokenizer::new(spec).unwrap();
        let ids = tokenizer.encode(&text, false, true);
        let found: Vec<String> = ids
            .iter()
            .map(|&id| tokenizer.decode(&[id], false))
            .collect();
        assert_eq!(found, pieces, "{text:?}");
    }
}

#[test]
fn round_trips() {
    let mut random = Random(7);
    let tokenizers = [
        common::demo_glm(),
        Tokenizer::new(common::deepseek_spec()).unwrap(),
    ];
    for round in 0..400 {
        let text: String = (0..random.below(200))
            .map(|_| match round % 2 {
                0 => POOL[random.below(POOL.len())].0,
                _ => char::from_u32(random.below(0x11_0000) as u32).unwrap_or('x'),
            })
            .collect();
        for tokenizer in &tokenizers {
            assert_eq!(
                tokenizer.decode(&tokenizer.encode(&text, false, false), false),
                text
            );
            assert_eq!(
                tokenizer.decode(&tokenizer.encode(&text, true, false), true),
                text
            );
        }
    }
}

#[test]
fn megabytes_take_seconds() {
    // Except in the release profile only two tokenizers get the full size.
    const SIZE: usize = 2 << 20;
    let mut random = Random(3);
    let noise: Vec<u8> = (0..SIZE).map(|_| random.next() as u8).collect();
    let texts = [
        " ".repeat(SIZE),
        " ".repeat(SIZE) + "x",
        "a".repeat(SIZE),
        "A".repeat(SIZE),
        "\n".repeat(SIZE),
        "!".repeat(SIZE),
        "1".repeat(SIZE),
        " \n".repeat(SIZE / 2),
        "中".repeat(SIZE / 3),
        "a ".repeat(SIZE / 2),
        "<".repeat(SIZE),
        "<|user|>".repeat(SIZE / 8),
        String::from_utf8_lossy(&noise).into_owned(),
    ];
    let mut tokenizers = vec![("demo", common::demo_glm())];
    tokenizers.push((
        "deepseek-llm",
        Tokenizer::new(common::deepseek_spec()).unwrap(),
    ));
    for pre in [
        "youtu",
        "gpt-2",
        "deepseek-coder",
        "deepseek-v3",
        "gpt-4o",
        "kimi-k2",
    ] {
        let spec = common::deepseek_spec();
        tokenizers.push((
            pre,
            Tokenizer::new(TokenizerSpec {
                pre: pre.into(),
                ..spec
            })
            .unwrap(),
        ));
    }
    let limit = Duration::from_secs(if cfg!(debug_assertions) { 20 } else { 2 });
    for (name, tokenizer) in &tokenizers {
        for text in &texts {
            let full = !cfg!(debug_assertions) || matches!(*name, "demo" | "deepseek-llm");
            let text = if full {
                text
            } else {
                text.get(..SIZE / 16).unwrap_or("x")
            };
            let start = thread_time();
            let ids = tokenizer.encode(text, false, false);
            let took = thread_time() - start;
            let head: String = text.chars().take(4).collect();
            println!("{name} {head:?}: {} ids in {took:?}", ids.len());
            assert!(took < limit, "{name} {head:?} took {took:?}");
            assert_eq!(tokenizer.decode(&ids, true), text);
        }
    }
}

#[test]
fn merging_follows_rank_then_position() {
    let spec = |merges: &[&str], extra: &[&str]| {
        let mut spec = bytes_only("glm4");
        spec.tokens
            .extend(extra.iter().map(|t| t.as_bytes().to_vec()));
        spec.merges = merges.iter().map(|m| (*m).to_owned()).collect();
        Tokenizer::new(spec).unwrap()
    };
    let show = |t: &Tokenizer, text: &str| {
        let pieces: Vec<String> = t
            .encode(text, false, false)
            .iter()
            .map(|&id| t.decode(&[id], false))
            .collect();
        pieces.join("|")
    };
    assert_eq!(show(&spec(&["a a"], &["aa"]), "aaaaa"), "aa|aa|a");
    assert_eq!(show(&spec(&["b c", "a b"], &["ab", "bc"]), "abc"), "a|bc");
    assert_eq!(show(&spec(&["a b", "b c"], &["ab", "bc"]), "abc"), "ab|c");
    assert_eq!(
        show(&spec(&["a a", "aa aa"], &["aa", "aaaa"]), "aaaaaaa"),
        "aaaa|aa|a"
    );
    // `ab` is only an intermediate symbol of merges, and is never emitted.
    assert_eq!(show(&spec(&["a b", "ab c"], &["abc"]), "abcab"), "abc|a|b");
}

#[test]
fn malformed_descriptions_are_typed_errors() {
    let fails = |change: &dyn Fn(&mut TokenizerSpec)| {
        let mut spec = bytes_only("glm4");
        change(&mut spec);
        let error = Tokenizer::new(spec).unwrap_err();
        assert!(error.hint().is_some() && !error.to_string().is_empty());
        error
    };
    assert!(matches!(
        fails(&|s| s.model = "rwkv".into()),
        TokenizerError::UnsupportedModel { .. }
    ));
    assert!(matches!(
        fails(&|s| s.model = "llama".into()),
        TokenizerError::Scores { scores: 0, .. }
    ));
    assert!(matches!(
        fails(&|s| s.pre = "jais-2".into()),
        TokenizerError::UnsupportedPre { .. }
    ));
    assert!(matches!(
        fails(&|s| s.tokens.clear()),
        TokenizerError::EmptyVocabulary
    ));
    assert!(matches!(
        fails(&|s| s.token_types = Some(vec![1; 255])),
        TokenizerError::TokenTypes { .. }
    ));
    assert!(matches!(
        fails(&|s| s.tokens.push(b"a".to_vec())),
        TokenizerError::DuplicateToken { second: 256, .. }
    ));
    for line in ["", " ", "a", "a ", " a", "é", " é"] {
        assert!(
            matches!(
                fails(&|s| s.merges = vec![line.into()]),
                TokenizerError::BadMerge { index: 0, .. }
            ),
            "{line:?}"
        );
    }
}

#[test]
fn odd_but_harmless_descriptions_work() {
    let mut spec = bytes_only("glm4");
    spec.bos = Some(9999);
    spec.eos = Some(u32::MAX);
    spec.add_bos = Some(true);
    spec.token_types = Some(vec![77; 300]);
    spec.tokens[7] = vec![0xFF, 0xFE];
    let tokenizer = Tokenizer::new(spec).unwrap();
    assert_eq!(tokenizer.warnings().len(), 4, "{:?}", tokenizer.warnings());
    assert_eq!(tokenizer.encode("a\u{7}b", true, true), [97, 98]);
    assert_eq!(
        tokenizer.decode(&[97, 12345, 7, u32::MAX], true),
        "a\u{FFFD}\u{FFFD}"
    );
    assert_eq!(tokenizer.token_bytes(12345), None);
    assert!(tokenizer.eog().is_empty());
}
