//! End-of-generation tokens of a vocabulary.

use super::vocab::{TokenKind, Vocabulary};

/// Texts that end generation if they are control or user-defined tokens, in addition to the ids
/// that the file names.
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
    // Fill-in-the-middle: padding, and what begins the next file or repository.
    "<｜fim▁begin｜>",
    "<｜fim▁hole｜>",
    "<｜fim▁end｜>",
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<|fim_pad|>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|file_separator|>",
    "<fim_prefix>",
    "<fim_suffix>",
    "<fim_middle>",
    "<fim_pad>",
    "<fim_repo>",
    "<repo_name>",
    "<reponame>",
    "<file_sep>",
    "<filename>",
    "<fim-prefix>",
    "<fim-suffix>",
    "<fim-middle>",
    "<fim-pad>",
    "<fim-repo>",
    "▁<PRE>",
    "▁<SUF>",
    "▁<MID>",
    "▁<EOT>",
    "<PRE>",
    "<SUF>",
    "<MID>",
    "<REPO>",
    "[PREFIX]",
    "[SUFFIX]",
    "[MIDDLE]",
    "<|code_prefix|>",
    "<|code_suffix|>",
    "<|code_middle|>",
];

/// Texts that do not end generation if the vocabulary has all of the other tokens. Harmony ends
/// each message of a reply with `<|end|>`, and for Gemma 4 `</s>` is HTML.
const EXCEPTIONS: &[(&str, &[&str])] = &[
    ("<|end|>", &["<|return|>", "<|call|>"]),
    ("<|end|>", &["<|calls|>", "<|flush|>"]),
    ("</s>", &["<|tool_response>"]),
];

/// Returns the end-of-generation tokens, ascending: the ids that the file names, and the known
/// texts. With `typed`, only control and user-defined tokens count among the latter.
pub(super) fn end_tokens(
    vocabulary: &Vocabulary,
    named: [Option<u32>; 3],
    typed: bool,
) -> Vec<u32> {
    let special = |id: &u32| {
        !typed
            || matches!(
                vocabulary.kind(*id),
                Some(TokenKind::Control | TokenKind::UserDefined)
            )
    };
    let token = |text: &str| vocabulary.id(text.as_bytes()).filter(special);
    let excluded = |text: &str| {
        EXCEPTIONS
            .iter()
            .any(|(other, all)| *other == text && all.iter().all(|marker| token(marker).is_some()))
    };
    let known = END_OF_GENERATION
        .iter()
        .filter(|text| !excluded(text))
        .filter_map(|text| token(text));
    let mut ends: Vec<u32> = named.into_iter().flatten().chain(known).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}
