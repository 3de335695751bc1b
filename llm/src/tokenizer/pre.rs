//! Table of pre-tokenisers, which split text into pieces before merging.
//!
//! A new pre-tokeniser is one entry of [`PRE_TYPES`]; `split.rs` executes it. Patterns are as
//! published, with Hugging Face's semantics: code points, `\s` = White_Space, `\p{..}` = general
//! categories. Possessive quantifiers that change nothing are removed. llama.cpp folds the
//! letter categories into one for the camel-case patterns (youtu, gpt-4o), so rare differences
//! from it are expected there.

use SplitStep::{Match, Thousands};

/// One row of the table: a pre-tokeniser.
pub(super) struct PreType {
    /// Values of `tokenizer.ggml.pre`; the first is the usual one.
    pub names: &'static [&'static str],
    /// Applied in sequence, each to every piece of the previous step.
    pub steps: &'static [SplitStep],
    /// Looks the whole piece up in the vocabulary before merging.
    pub ignore_merges: bool,
    /// Default of the key `add_bos_token`.
    pub add_bos: bool,
}

/// A step that splits pieces further.
#[derive(Clone, Copy)]
pub(super) enum SplitStep {
    /// Splits into the matches of a pattern and the gaps between them.
    Match(&'static str),
    /// Like `Match`, and splits each match into groups of three characters, counted from its end.
    Thousands(&'static str),
}

macro_rules! contractions {
    () => {
        r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
    };
}

/// Common tail of the cl100k family; `$digits` and `$after` (the text allowed after
/// a punctuation run) vary.
macro_rules! words_and_spaces {
    ($digits:literal, $after:literal) => {
        concat!(
            "|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+",
            $after,
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

/// OpenAI's cl100k pattern, used by Llama 3, GLM-4 and Qwen2.
macro_rules! cl100k {
    ($digits:literal) => {
        cl100k!($digits, r"[\r\n]*")
    };
    ($digits:literal, $after:literal) => {
        concat!(
            "(?:",
            contractions!(),
            r")|[^\r\n\p{L}\p{N}]?\p{L}+",
            words_and_spaces!($digits, $after)
        )
    };
}

/// OpenAI's o200k pattern: splits words at a change from lower to upper case; contractions
/// stay with their word.
macro_rules! camel_case {
    ($upper:literal, $lower:literal, $digits:literal, $after:literal) => {
        camel_case!(
            concat!("(?:", contractions!(), ")?"),
            $upper,
            $lower,
            $digits,
            $after
        )
    };
    ($contraction:expr, $upper:literal, $lower:literal, $digits:literal, $after:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?",
            $upper,
            "*",
            $lower,
            "+",
            $contraction,
            r"|[^\r\n\p{L}\p{N}]?",
            $upper,
            "+",
            $lower,
            "*",
            $contraction,
            words_and_spaces!($digits, $after)
        )
    };
}

/// Letters of the scripts that DeepSeek's first tokenizers treat as words (with an
/// optional space before them).
const DEEPSEEK_WORD: &str = concat!(
    r"\s?[",
    r"\x{41}-\x{5A}\x{61}-\x{7A}\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}",
    r"\x{295}-\x{2AF}\x{370}-\x{373}\x{376}-\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}",
    r"\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}",
    r"\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}",
    r"\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}",
    r"\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}",
    r"\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}",
    r"\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}",
    r"\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}-\x{2184}\x{2C00}-\x{2C7B}",
    r"\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}-\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}",
    r"\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}",
    r"\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}",
    r"\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}",
    r"]+"
);

/// Ideographs, the range up to them, and Hangul (DeepSeek LLM and Coder).
const DEEPSEEK_CJK: &str = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+";

/// Pattern of GPT-2's tokenizer.
pub(super) const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Pattern of gpt-oss, OpenAI's o200k.
const O200K: &str = camel_case!(
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
    r"\p{N}{1,3}",
    r"[\r\n/]*"
);

/// BLOOM's words: everything except white space and marks that end a phrase.
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// DeepSeek-V3's words, punctuation and white space.
const DEEPSEEK_V3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Ideographs and kana characters.
const IDEOGRAPHS_AND_KANA: &str = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+";

/// A line, or a run of line breaks.
const LINES: &str = r"[^\n]+|[\n]+";

/// Creates a row with default flags.
const fn row(names: &'static [&'static str], steps: &'static [SplitStep]) -> PreType {
    PreType {
        names,
        steps,
        ignore_merges: false,
        add_bos: false,
    }
}

/// All supported pre-tokenisers. Sources: llama.cpp's `llama-vocab.cpp` and the models'
/// `tokenizer.json`; kimi-k2 from the `pat_str` of its `tokenization_kimi.py`. All names of a
/// row have identical behaviour.
pub(super) const PRE_TYPES: &[PreType] = &[
    row(
        &["glm4", "chatglm-bpe", "dbrx", "smaug-bpe"],
        &[Match(cl100k!(r"\p{N}{1,3}"))],
    ),
    PreType {
        ignore_merges: true,
        add_bos: true,
        ..row(
            &[
                "llama-bpe",
                "llama3",
                "llama-v3",
                "falcon3",
                "falcon-h1",
                "pixtral",
                "midm-2.0",
                "lfm2",
            ],
            &[Match(cl100k!(r"\p{N}{1,3}"))],
        )
    },
    PreType {
        ignore_merges: true,
        ..row(&["glm5"], &[Match(cl100k!(r"\p{N}{1,3}"))])
    },
    PreType {
        ignore_merges: true,
        ..row(
            &["minicpm5"],
            &[Match(r"\p{N}{1,3}"), Match(cl100k!(r"\p{N}+"))],
        )
    },
    row(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "megrez",
            "grok-2",
            "bailingmoe",
            "bailingmoe2",
            "llada-moe",
            "kormo",
            "f2llmv2",
        ],
        &[Match(cl100k!(r"\p{N}"))],
    ),
    row(
        &["qwen35"],
        &[Match(concat!(
            "(?:",
            contractions!(),
            r")|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ))],
    ),
    row(&["seed-coder"], &[Match(cl100k!(r"\p{N}", ""))]),
    row(
        &["ufakzeka"],
        &[Match(concat!(
            r"[^\r\n\p{L}\p{N}]?\p{L}+",
            words_and_spaces!(r"\p{N}", r"[\r\n]*")
        ))],
    ),
    row(&["laguna"], &[Match(LINES), Match(cl100k!(r"\p{N}"))]),
    row(
        &["exaone-moe"],
        &[Match(concat!(
            "(?:",
            contractions!(),
            r")|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
            words_and_spaces!(r"\p{N}", r"[\r\n/]?")
        ))],
    ),
    row(
        &[
            "gpt-2",
            "gpt2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
        ],
        &[Match(GPT2)],
    ),
    row(
        &[
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        &[Match(r"\p{N}"), Match(GPT2)],
    ),
    // llama.cpp's default for files without a name.
    row(
        &["default"],
        &[
            Match(r"[\p{P}$+<=>^~|]+"),
            Match(GPT2),
            Match(r"\p{N}+"),
            Match("[0-9][0-9][0-9]"),
        ],
    ),
    row(
        &["falcon"],
        &[
            Match(r"[\p{P}$+<=>^~|`]+"),
            Match(GPT2),
            Match("[0-9][0-9][0-9]"),
        ],
    ),
    row(&["bloom", "poro-chat", "gpt3-finnish"], &[Match(BLOOM)]),
    row(&["viking"], &[Match(BLOOM), Match(r"\p{N}")]),
    PreType {
        add_bos: true,
        ..row(
            &["chameleon"],
            &[
                Match("<sentinel:[0-9]+>"),
                Match("IMGIMG[A-I]{1,4}Z"),
                Match(r"[\t\n]|    |  "),
                Match(r"\p{N}"),
                Match(r"[\p{P}!-/:-@\[-`{-~]"),
                Match(GPT2),
            ],
        )
    },
    row(
        &["deepseek-llm"],
        &[
            Match(r"[\r\n]"),
            Match(DEEPSEEK_WORD),
            Match(
                r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
            ),
            Match(r"\s+$"),
            Match(DEEPSEEK_CJK),
            Match(r"\p{N}+"),
        ],
    ),
    row(
        &["deepseek-coder"],
        &[
            Match(r"[\r\n]"),
            Match(r"\s?\p{L}+"),
            Match(r"\s?\p{P}+"),
            Match(DEEPSEEK_CJK),
            Match(r"\p{N}"),
        ],
    ),
    row(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[
            Match(r"\p{N}{1,3}"),
            Match(IDEOGRAPHS_AND_KANA),
            Match(DEEPSEEK_V3),
        ],
    ),
    row(
        &["afmoe"],
        &[
            Thousands(r"\p{N}+"),
            Match(concat!(
                r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}",
                r"\x{2F00}-\x{2FDF}\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}",
                r"\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
            )),
            Match(DEEPSEEK_V3),
        ],
    ),
    PreType {
        ignore_merges: true,
        ..row(
            &["youtu"],
            &[
                Match(concat!(
                    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+",
                    r"|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}",
                    r"\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+",
                    r"|[\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
                )),
                Match(camel_case!(
                    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
                    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
                    r"\p{N}",
                    r"[\r\n/]*"
                )),
            ],
        )
    },
    row(
        &["gpt-4o", "llama4", "minimax-m2", "kanana2", "talkie"],
        &[Match(O200K)],
    ),
    row(&["superbpe"], &[Thousands(r"\p{N}+")]),
    PreType {
        ignore_merges: true,
        add_bos: true,
        ..row(
            &["tekken"],
            &[Match(camel_case!(
                "",
                r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
                r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
                r"\p{N}",
                r"[\r\n/]*"
            ))],
        )
    },
    row(
        &["kimi-k2"],
        &[Match(concat!(
            r"\p{Han}+|",
            camel_case!(
                r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
                r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
                r"\p{N}{1,3}",
                r"[\r\n]*"
            )
        ))],
    ),
];

/// Pieces of `gemma4`: lines, because it merges characters across words.
pub(super) const GEMMA4: PreType = PreType {
    add_bos: true,
    ..row(&["gemma4"], &[Match(LINES)])
};

/// Returns all names of the table.
pub(super) fn supported_names() -> Vec<&'static str> {
    PRE_TYPES
        .iter()
        .flat_map(|pre| pre.names)
        .copied()
        .collect()
}
