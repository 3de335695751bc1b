//! `tiktoken.model`: tokens of a byte-level BPE with their ranks, and no merges (Kimi).
//!
//! A token's merge is that of the two parts that merges of lower ranks make of it.

use super::error::ConvertError;
use super::folder::{CheckpointFolder, Object};
use crate::tokenizer::Tokenizer;
use crate::tokenizer::bytes::byte_to_char;
use crate::tokenizer::detect::patterns;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value as Json, json};
use std::collections::HashMap;

const FILE: &str = "tiktoken.model";
/// Pre-tokeniser of the models that have such a file, whose pattern is in a program of theirs.
const PRE: &str = "kimi-k2";
/// Longest file in bytes: Kimi K2's has 3 MB.
const LONGEST: usize = 16 << 20;
/// Longest token in bytes; the time for its merge is the square of it.
const LONGEST_TOKEN: usize = 1024;
/// Rank of a pair that is no token.
const NONE: u32 = u32::MAX;

/// Reads the file, with the added tokens of `settings`, in the form of `tokenizer.json`; `None` if
/// there is no such file.
pub(super) fn read(
    folder: &CheckpointFolder,
    settings: &Object,
) -> Result<Option<Object>, ConvertError> {
    let Some(text) = folder.text(FILE)? else {
        return Ok(None);
    };
    let tokens = tokens(&text)?;
    let ranks: HashMap<&[u8], u32> = tokens.iter().map(|(t, rank)| (&t[..], *rank)).collect();
    let mut by_rank: Vec<_> = tokens.iter().collect();
    by_rank.sort_by_key(|token| token.1);
    let merge = |(token, rank): &(Vec<u8>, u32)| {
        let (left, right) = token.split_at(last_merge(token, *rank, &ranks)?);
        Some(json!([mapped(left), mapped(right)]))
    };
    let merges: Vec<Json> = by_rank.iter().filter_map(|token| merge(token)).collect();
    let vocab: Object = by_rank
        .iter()
        .map(|(token, rank)| (mapped(token), (*rank).into()))
        .collect();
    let steps = patterns(PRE).into_iter().flatten().map(|pattern| {
        json!({ "type": "Split", "behavior": "Isolated", "pattern": { "Regex": pattern } })
    });
    let mut steps: Vec<Json> = steps.collect();
    steps.push(json!({ "type": "ByteLevel", "use_regex": false }));
    let fields = [
        (
            "model",
            json!({ "type": "BPE", "vocab": vocab, "merges": merges }),
        ),
        (
            "pre_tokenizer",
            json!({ "type": "Sequence", "pretokenizers": steps }),
        ),
        ("added_tokens", added(settings)),
    ];
    let fields = fields
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    Ok(Some(fields.collect()))
}

/// Tokens and their ranks: lines of base64 and a number.
fn tokens(text: &str) -> Result<Vec<(Vec<u8>, u32)>, ConvertError> {
    let malformed = |problem: String| ConvertError::malformed(FILE, problem);
    if text.len() > LONGEST {
        return Err(malformed(format!(
            "it has {} bytes, more than {LONGEST}",
            text.len()
        )));
    }
    let lines = text.lines().filter(|line| !line.is_empty());
    Tokenizer::admit(lines.clone().count(), 0).map_err(|error| malformed(error.to_string()))?;
    let token = |line: &str| {
        let (token, rank) = line.split_once(' ')?;
        let token = STANDARD.decode(token).ok()?;
        let rank = rank.parse().ok().filter(|&rank| rank != NONE)?;
        let is_token = (1..=LONGEST_TOKEN).contains(&token.len());
        is_token.then_some((token, rank))
    };
    let parsed = lines.enumerate().map(|(number, line)| {
        let problem = || malformed(format!("line {} is no token and its rank", number + 1));
        token(line).ok_or_else(problem)
    });
    parsed.collect()
}

/// Returns where the two parts meet that merges below `rank` make of a token; `None` if there are
/// more or fewer.
fn last_merge(token: &[u8], rank: u32, ranks: &HashMap<&[u8], u32>) -> Option<usize> {
    let mut bounds: Vec<usize> = (0..=token.len()).collect();
    let pair = |bounds: &[usize], at: usize| -> u32 {
        let end = bounds.get(at + 2).copied();
        let found = end.and_then(|end| ranks.get(&token[bounds[at]..end]));
        found.copied().filter(|&of| of < rank).unwrap_or(NONE)
    };
    let mut pairs: Vec<u32> = (0..token.len()).map(|at| pair(&bounds, at)).collect();
    while bounds.len() > 3 {
        let (at, least) = pairs.iter().enumerate().min_by_key(|(_, rank)| **rank)?;
        if *least == NONE {
            return None;
        }
        bounds.remove(at + 1);
        pairs.remove(at + 1);
        pairs[at] = pair(&bounds, at);
        if at > 0 {
            pairs[at - 1] = pair(&bounds, at - 1);
        }
    }
    (bounds.len() == 3).then(|| bounds[1])
}

/// Text of a token in a vocabulary of bytes.
fn mapped(token: &[u8]) -> String {
    token.iter().map(|&byte| byte_to_char(byte)).collect()
}

/// Added tokens by their ids in `tokenizer_config.json`.
fn added(settings: &Object) -> Json {
    let by_id = settings
        .get("added_tokens_decoder")
        .and_then(Json::as_object);
    let tokens = by_id.into_iter().flatten().filter_map(|(id, token)| {
        let id: u32 = id.parse().ok()?;
        let special = token.get("special").and_then(Json::as_bool);
        Some(json!({
            "id": id, "content": token.get("content")?, "special": special == Some(true),
        }))
    });
    tokens.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_follow_from_ranks() {
        let tokens = [
            "a", "b", "c", "ab", "bc", "abc", "abab", "ababc", "cc", "xa",
        ];
        let ranks: HashMap<&[u8], u32> =
            (0..).zip(tokens).map(|(r, t)| (t.as_bytes(), r)).collect();
        let split = |token: &str| last_merge(token.as_bytes(), ranks[token.as_bytes()], &ranks);
        assert_eq!(split("a"), None);
        assert_eq!(split("ab"), Some(1));
        // ab comes before bc.
        assert_eq!(split("abc"), Some(2));
        assert_eq!(split("abab"), Some(2));
        // abab, c: abc has a lower rank than abab.
        assert_eq!(split("ababc"), Some(2));
        // x is no token, but a part all the same.
        assert_eq!(split("xa"), Some(1));
    }

    #[test]
    fn malformed_lines_are_refused() {
        for (text, is_good) in [
            ("YQ== 0\nYg== 1\n", true),
            ("", true),
            ("YQ==", false),
            ("YQ== x", false),
            ("?? 0", false),
            (" 0", false),
            ("YQ== 4294967295", false),
        ] {
            assert_eq!(tokens(text).is_ok(), is_good, "{text:?}");
        }
        let long = STANDARD.encode([b'a'; LONGEST_TOKEN + 1]);
        assert!(tokens(&format!("{long} 0")).is_err());
    }
}
