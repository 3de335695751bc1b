//! Byte-level BPE vocabularies with the size and special tokens of published
//! ones, and invented words.

use crate::gguf::{Metadata, Strings};

/// Token types of `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

const CONSONANTS: &[u8] = b"bcdfghjklmnprstvwz";
const VOWELS: &[u8] = b"aeiou";

/// Parameters of one model's vocabulary.
pub(super) struct Vocab {
    pub size: u32,
    pre: &'static str,
    /// Id of the first of `specials`.
    first_special: u32,
    specials: &'static [&'static str],
    bos: u32,
    eos: u32,
    /// End-of-turn and end-of-message ids, if they differ from `eos`.
    eot_eom: Option<(u32, u32)>,
    padding: u32,
    add_bos: bool,
    template: &'static str,
}

pub(super) const GLM: Vocab = Vocab {
    size: 154_880,
    pre: "glm4",
    first_special: 154_820,
    specials: &[
        "<|endoftext|>",
        "[MASK]",
        "[gMASK]",
        "[sMASK]",
        "<sop>",
        "<eop>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|observation|>",
    ],
    bos: 154_822,
    eos: 154_820,
    eot_eom: Some((154_827, 154_829)),
    padding: 154_821,
    add_bos: false,
    template: "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}\
               {% if add_generation_prompt %}<|assistant|>{% endif %}",
};

pub(super) const DEEPSEEK: Vocab = Vocab {
    size: 102_400,
    pre: "deepseek-llm",
    first_special: 100_000,
    specials: &["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"],
    bos: 100_000,
    eos: 100_001,
    eot_eom: None,
    padding: 100_001,
    add_bos: true,
    template: "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ 'User: ' + m.content + '\n\n' }}\
               {% elif m.role == 'assistant' %}{{ 'Assistant: ' + m.content + eos_token }}\
               {% else %}{{ m.content + '\n\n' }}{% endif %}{% endfor %}\
               {% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
};

pub(super) const GLM_4_5: Vocab = Vocab {
    size: 151_552,
    first_special: 151_329,
    bos: 151_331,
    eos: 151_329,
    eot_eom: Some((151_336, 151_338)),
    padding: 151_330,
    ..GLM
};

/// In the published vocabulary the special tokens are the first three ids and some after the words;
/// here all of them are after the words.
pub(super) const DEEPSEEK_V3: Vocab = Vocab {
    size: 129_280,
    pre: "deepseek-v3",
    first_special: 128_800,
    specials: &[
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜▁pad▁｜>",
        "<｜User｜>",
        "<｜Assistant｜>",
    ],
    bos: 128_800,
    eos: 128_801,
    eot_eom: None,
    padding: 128_802,
    add_bos: true,
    template: "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}\
               {% elif m.role == 'assistant' %}{{ '<｜Assistant｜>' + m.content + eos_token }}\
               {% else %}{{ m.content }}{% endif %}{% endfor %}\
               {% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}",
};

pub(super) const KIMI: Vocab = Vocab {
    size: 163_840,
    pre: "kimi-k2",
    first_special: 163_584,
    specials: &[
        "[BOS]",
        "[EOS]",
        "<|im_end|>",
        "<|im_user|>",
        "<|im_assistant|>",
        "<|im_system|>",
        "<|im_middle|>",
    ],
    bos: 163_584,
    eos: 163_585,
    eot_eom: Some((163_586, 163_585)),
    padding: 163_585,
    add_bos: false,
    template: "{% for m in messages %}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>{{ m.content }}<|im_end|>{% endfor %}\
               {% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}",
};

/// Pre-tokenised like OpenAI's o200k, which has the same pattern as the model's own.
pub(super) const MINIMAX: Vocab = Vocab {
    size: 200_064,
    pre: "gpt-4o",
    first_special: 200_000,
    specials: &["]~!b[", "]~b]", "[e~["],
    bos: 200_000,
    eos: 200_002,
    eot_eom: None,
    padding: 200_002,
    add_bos: false,
    template: "]~!b[{% for m in messages %}]~b]{{ m.role }}\n{{ m.content }}[e~[\n{% endfor %}\
               {% if add_generation_prompt %}]~b]assistant\n{% endif %}",
};

pub(super) const YOUTU: Vocab = Vocab {
    size: 128_256,
    pre: "youtu",
    first_special: 128_000,
    specials: &[
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|User|>",
        "<|Assistant|>",
    ],
    bos: 128_000,
    eos: 128_001,
    eot_eom: None,
    padding: 128_001,
    add_bos: false,
    template: "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<|User|>' + m.content }}\
               {% elif m.role == 'assistant' %}{{ '<|Assistant|>' + m.content + eos_token }}\
               {% else %}{{ m.content }}{% endif %}{% endfor %}\
               {% if add_generation_prompt %}{{ '<|Assistant|>' }}{% endif %}",
};

pub(super) const LLAMA: Vocab = Vocab {
    size: 128_256,
    pre: "llama-bpe",
    first_special: 128_000,
    specials: &[
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|reserved_special_token_0|>",
        "<|reserved_special_token_1|>",
        "<|finetune_right_pad_id|>",
        "<|reserved_special_token_2|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
    ],
    bos: 128_000,
    eos: 128_009,
    eot_eom: Some((128_009, 128_008)),
    padding: 128_004,
    add_bos: true,
    template: "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}\
               <|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
};

pub(super) const GPT_OSS: Vocab = Vocab {
    size: 201_088,
    pre: "gpt-4o",
    first_special: 199_998,
    specials: &["<|startoftext|>", "<|endoftext|>"],
    bos: 199_998,
    eos: 199_999,
    eot_eom: None,
    padding: 199_999,
    add_bos: false,
    template: "{% for m in messages %}{{ m.content }}{% endfor %}",
};

/// Size of the published vocabulary, which is a SentencePiece one.
pub(super) const GEMMA: Vocab = Vocab {
    size: 262_208,
    pre: "llama-bpe",
    first_special: 262_144,
    specials: &["<bos>", "<eos>"],
    bos: 262_144,
    eos: 262_145,
    eot_eom: None,
    padding: 262_145,
    add_bos: true,
    template: "{% for m in messages %}{{ m.content }}{% endfor %}",
};

/// Size of the published vocabulary, which is a SentencePiece one; here the
/// special tokens come last.
pub(super) const GEMMA_2: Vocab = Vocab {
    size: 256_000,
    first_special: 255_900,
    specials: &["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
    bos: 255_900,
    eos: 255_901,
    eot_eom: Some((255_903, 255_901)),
    padding: 255_901,
    template: "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}\
               {% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    ..GEMMA
};

pub(super) const GRANITE: Vocab = Vocab {
    size: 49_159,
    pre: "refact",
    first_special: 49_152,
    specials: &[
        "<|end_of_text|>",
        "<|start_of_role|>",
        "<|end_of_role|>",
        "<|tool_call|>",
    ],
    bos: 49_152,
    eos: 49_152,
    eot_eom: None,
    padding: 49_152,
    add_bos: false,
    template: "{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>\n{% endfor %}\
               {% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}",
};

pub(super) const OLMO: Vocab = Vocab {
    size: 100_352,
    pre: "dbrx",
    first_special: 100_256,
    specials: &[
        "<|extra_id_0|>",
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
    ],
    bos: 100_257,
    eos: 100_257,
    eot_eom: None,
    padding: 100_256,
    add_bos: true,
    template: "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}\n{% endfor %}\
               {% if add_generation_prompt %}<|assistant|>\n{% endif %}",
};

/// Size of the published vocabulary, which merges characters; here the special tokens come last.
pub(super) const GEMMA_4: Vocab = Vocab {
    size: 262_144,
    first_special: 262_100,
    specials: &["<bos>", "<eos>", "<|turn>", "<turn|>"],
    bos: 262_100,
    eos: 262_101,
    eot_eom: Some((262_103, 262_101)),
    padding: 262_101,
    template: "{{ bos_token }}{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endfor %}\
               {% if add_generation_prompt %}<|turn>model\n{% endif %}",
    ..GEMMA
};

pub(super) const QWEN: Vocab = Vocab {
    size: 151_936,
    pre: "qwen2",
    first_special: 151_643,
    specials: &["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    bos: 151_643,
    eos: 151_645,
    eot_eom: None,
    padding: 151_643,
    add_bos: false,
    template: "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
               {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
};

pub(super) const QWEN_PADDED: Vocab = Vocab {
    size: 152_064,
    ..QWEN
};

pub(super) const QWEN_35: Vocab = Vocab {
    size: 248_320,
    pre: "qwen35",
    ..QWEN
};

pub(super) const PHI: Vocab = Vocab {
    size: 200_064,
    pre: "gpt-4o",
    first_special: 199_998,
    specials: &[
        "<|endofprompt|>",
        "<|endoftext|>",
        "<|assistant|>",
        "<|end|>",
        "<|user|>",
        "<|system|>",
    ],
    bos: 199_999,
    eos: 199_999,
    eot_eom: None,
    padding: 199_999,
    add_bos: false,
    template: "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}\
               {% if add_generation_prompt %}<|assistant|>{% endif %}",
};

/// Returns the code point that represents `byte` in byte-level BPE: printable bytes map to
/// themselves, the others to 256 and above.
fn mapped(byte: u8) -> char {
    let plain = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if plain(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&b| !plain(b)).count() as u32;
    char::from_u32(256 + rank).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Returns syllable number `i` of `CONSONANTS.len() * VOWELS.len()`.
fn syllable(i: usize) -> [char; 2] {
    let (c, v) = (i / VOWELS.len() % CONSONANTS.len(), i % VOWELS.len());
    [char::from(CONSONANTS[c]), char::from(VOWELS[v])]
}

impl Vocab {
    /// Adds the tokenizer's keys to the metadata.
    pub fn describe(&self, md: &mut Metadata) {
        let (tokens, types) = self.tokens();
        let syllables = (0..CONSONANTS.len() * VOWELS.len()).map(syllable);
        let merges: Strings = syllables.map(|[c, v]| format!("{c} {v}")).collect();
        md.insert("tokenizer.ggml.model", "gpt2");
        md.insert("tokenizer.ggml.pre", self.pre);
        md.insert("tokenizer.ggml.tokens", tokens);
        md.insert("tokenizer.ggml.token_type", types);
        md.insert("tokenizer.ggml.merges", merges);
        md.insert("tokenizer.ggml.bos_token_id", self.bos);
        md.insert("tokenizer.ggml.eos_token_id", self.eos);
        if let Some((eot, eom)) = self.eot_eom {
            md.insert("tokenizer.ggml.eot_token_id", eot);
            md.insert("tokenizer.ggml.eom_token_id", eom);
        }
        md.insert("tokenizer.ggml.padding_token_id", self.padding);
        md.insert("tokenizer.ggml.add_bos_token", self.add_bos);
        md.insert("tokenizer.ggml.add_eos_token", false);
        md.insert("tokenizer.chat_template", self.template);
    }

    /// Returns tokens and their types: bytes, syllables, invented words, special tokens, padding.
    fn tokens(&self) -> (Strings, Vec<i32>) {
        let syllables = CONSONANTS.len() * VOWELS.len();
        let (mut tokens, mut types) = (Strings::default(), Vec::new());
        for id in 0..self.size {
            let special = id.checked_sub(self.first_special).map(|i| i as usize);
            let word = (id as usize).saturating_sub(256 + syllables);
            let text = match special {
                Some(i) if i < self.specials.len() => self.specials[i].into(),
                Some(_) => format!("[PAD{id}]"),
                None if id < 256 => mapped(id as u8).to_string(),
                None if (id as usize) < 256 + syllables => {
                    syllable(id as usize - 256).iter().collect()
                }
                // Three syllables after a space: enough for any vocabulary, and all different.
                None => {
                    let parts = [word / syllables / syllables, word / syllables, word]
                        .map(|i| syllable(i % syllables));
                    std::iter::once(mapped(b' '))
                        .chain(parts.into_iter().flatten())
                        .collect()
                }
            };
            types.push(match special {
                Some(i) if i < self.specials.len() => CONTROL,
                Some(_) => UNUSED,
                None => NORMAL,
            });
            tokens.push(text);
        }
        (tokens, types)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn bytes_have_the_usual_code_points() {
        assert_eq!(mapped(0x0A), '\u{10A}');
        assert_eq!(mapped(0x20), '\u{120}');
        assert_eq!(mapped(0xAD), '\u{143}');
    }

    #[test]
    fn merged_tokens_exist() {
        let mut md = Metadata::new();
        GLM.describe(&mut md);
        let tokens: HashSet<_> = md
            .strings("tokenizer.ggml.tokens")
            .unwrap()
            .unwrap()
            .iter()
            .collect();
        for merge in md.strings("tokenizer.ggml.merges").unwrap().unwrap().iter() {
            let joined: Vec<u8> = merge.iter().copied().filter(|&b| b != b' ').collect();
            assert!(tokens.contains(&joined[..]));
        }
    }
}
