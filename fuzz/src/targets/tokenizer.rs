//! Fuzz target for tokenizers: construction from metadata, encoding and decoding.

use crate::Target;
use crate::bytes::FuzzInput;
use crate::targets::toy;
use gristmill_llm::language;
use gristmill_llm::tokenizer::{Decoder, TokenKind, Tokenizer};

/// Input: tokens and merges, one per line; an empty line; the text.
pub const TARGET: Target = Target {
    name: "tokenizer",
    about: "a vocabulary with merges and special tokens, and a text: encoded, decoded, streamed",
    run,
    seeds,
    words: &[
        "\n",
        "<|user|>",
        "<|",
        "|>",
        "\u{120}",
        "a b",
        "\u{120} a",
        "ab",
        "aa",
        "é",
        "\u{301}",
        "中",
        "🙂",
        " ",
        "'s",
        "12345",
        "\r\n",
        "\t",
        "\u{200d}",
        "\u{85}",
    ],
    longest: 8 << 10,
    tries: 1500,
};

/// Names of pre-tokenisers, and one unknown name.
const PRE: &[&str] = &[
    "glm4",
    "deepseek-llm",
    "youtu",
    "llama-bpe",
    "qwen2",
    "gpt-2",
    "deepseek-coder",
    "deepseek-v3",
    "gpt-4o",
    "nobody",
];

fn run(input: &[u8]) {
    let mut input = FuzzInput::new(input);
    let pre = input.pick(PRE);
    let switches = input.byte();
    let (mut tokens, mut merges) = (Vec::new(), Vec::new());
    while !input.is_empty() {
        let line = input.until(b'\n');
        match line {
            [] => break,
            [b'm', merge @ ..] => merges.push(merge.to_vec()),
            // A token type from normal to byte, or an invalid one.
            [kind @ b'0'..=b'9', token @ ..] => {
                tokens.push((token.to_vec(), i32::from(kind - b'0')))
            }
            token => tokens.push((token.to_vec(), 1)),
        }
    }
    let mut metadata = toy::metadata(pre, &tokens, &merges);
    let id = u32::from(input.byte());
    for (bit, key) in [
        (1, "bos_token_id"),
        (2, "eos_token_id"),
        (4, "unknown_token_id"),
    ] {
        if switches & bit != 0 {
            metadata.insert(format!("tokenizer.ggml.{key}"), id + 200);
        }
    }
    metadata.insert("tokenizer.ggml.add_bos_token", switches & 8 != 0);
    let Ok(tokenizer) = language::tokenizer(&metadata) else {
        return;
    };
    let text = String::from_utf8_lossy(input.rest()).into_owned();
    check(&tokenizer, &text);
}

fn check(tokenizer: &Tokenizer, text: &str) {
    let known = |ids: &[u32]| ids.iter().all(|&id| (id as usize) < tokenizer.n_tokens());
    let plain = tokenizer.encode(text, false, false);
    // Every byte has a token, so decoding is lossless.
    assert_eq!(tokenizer.decode(&plain, true), text, "by way of {plain:?}");
    let control = |id: &u32| matches!(tokenizer.token_kind(*id), Some(TokenKind::Control));
    assert!(
        known(&plain) && !plain.iter().any(control),
        "text spelt a control token: {plain:?}"
    );
    let special = tokenizer.encode(text, true, true);
    assert!(known(&special));
    let mut decoder = Decoder::new(tokenizer).show_special(true);
    let mut streamed: String = special.iter().map(|&id| decoder.push(id)).collect();
    streamed.push_str(&decoder.finish());
    assert_eq!(
        streamed,
        tokenizer.decode(&special, true),
        "streamed otherwise than at once"
    );
    // Span boundaries do not matter if everything is trusted; untrusted text yields no control
    // tokens.
    let half = (0..=text.len() / 2)
        .rev()
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(0);
    let (a, b) = text.split_at(half);
    assert_eq!(
        tokenizer.encode_spans(&[(a, true), (b, true)], true),
        special,
        "spans of trusted text"
    );
    assert_eq!(
        tokenizer.encode_spans(&[(a, false), (b, false)], false),
        tokenizer.encode_spans(&[(text, false)], false)
    );
    let mixed = tokenizer.encode_spans(&[(a, true), (b, false)], false);
    assert_eq!(tokenizer.decode(&mixed, true), text, "by way of {mixed:?}");
}

fn seeds() -> Vec<Vec<u8>> {
    let vocabulary = "hell\nhe\nll\nhello\n3<|user|>\n4user\n4a\n4aa\n4aaa\n2<unk>\n5unused\n6<0x0A>\nmh e\nml l\nmhe ll\nmhell o\n\n";
    let texts = [
        "*hello <|user|> world\n 12345 it's aaaa",
        " \u{1F642}é中文 \r\n\t",
        "*<unk>unused\u{301}",
    ];
    let mut out = Vec::new();
    for (pre, text) in texts.iter().enumerate() {
        out.push([&[pre as u8, 0x0F], vocabulary.as_bytes(), text.as_bytes()].concat());
    }
    out
}
