//! Which tokens end a generation.

use super::vocab::{TokenKind, Vocabulary};

/// Texts that end a generation wherever they are control or user-defined tokens, besides the ids the file names.
const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<｜end▁of▁sentence｜>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
];

/// Texts that end no generation where the vocabulary has all of the others: harmony ends each of an answer's messages with `<|end|>`, and
/// to Gemma 4 `</s>` is HTML.
const UNLESS: &[(&str, &[&str])] = &[
    ("<|end|>", &["<|return|>", "<|call|>"]),
    ("<|end|>", &["<|calls|>", "<|flush|>"]),
    ("</s>", &["<|tool_response>"]),
];

/// The tokens that end a generation, ascending: those that the file names, and the well-known ones. Where the file has types, it knows
/// what is special.
pub(super) fn ends(vocabulary: &Vocabulary, named: [Option<u32>; 3], typed: bool) -> Vec<u32> {
    let special =
        |id: &u32| !typed || matches!(vocabulary.kind(*id), Some(TokenKind::Control | TokenKind::UserDefined));
    let token = |text: &str| vocabulary.id(text.as_bytes()).filter(special);
    let excluded = |text: &str| {
        UNLESS.iter().any(|(other, all)| *other == text && all.iter().all(|marker| token(marker).is_some()))
    };
    let known = END_OF_GENERATION.iter().filter(|text| !excluded(text)).filter_map(|text| token(text));
    let mut ends: Vec<u32> = named.into_iter().flatten().chain(known).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}
