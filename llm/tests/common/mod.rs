//! Vocabularies for the tests, in one place.
#![allow(dead_code, reason = "each test binary uses its part")]

use gristmill_llm::gguf::Gguf;
use gristmill_llm::language;
use gristmill_llm::tokenizer::{Tokenizer, TokenizerSpec};

/// Path of a file in the test data.
pub fn data(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// The tokenizer of the demo model, from its text form.
pub fn demo_glm() -> Tokenizer {
    let text = std::fs::read_to_string(data("vocab/demo-glm.txt")).unwrap();
    let mut spec = TokenizerSpec { model: "gpt2".into(), ..TokenizerSpec::default() };
    let mut types = Vec::new();
    for line in text.lines() {
        let (key, value) = line.split_once(' ').unwrap();
        match key {
            "pre" => spec.pre = value.into(),
            "bos" => spec.bos = value.parse().ok(),
            "eos" => spec.eos = value.parse().ok(),
            "eot" => spec.eot = value.parse().ok(),
            "pad" => spec.pad = value.parse().ok(),
            "add_bos" => spec.add_bos = value.parse().ok(),
            "token" => {
                let (kind, text) = value.split_once(' ').unwrap();
                types.push(kind.parse().unwrap());
                spec.tokens.push(text.as_bytes().to_vec());
            }
            "merge" => spec.merges.push(value.into()),
            _ => panic!("{line}"),
        }
    }
    spec.token_types = Some(types);
    Tokenizer::new(spec).unwrap()
}

/// The description in the DeepSeek LLM vocabulary file.
pub fn deepseek_spec() -> TokenizerSpec {
    let file = Gguf::open(data("vocab/ggml-vocab-deepseek-llm.gguf")).expect("a GGUF file");
    language::tokenizer_spec(file.metadata()).expect("a tokenizer")
}

/// A small generator for random test inputs (xorshift64*), independent of the code under test.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }
}
