//! Vocabularies for the tests, in one place: to be replaced by the GGUF reader.
#![allow(dead_code, reason = "each test binary uses its part")]

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
    let bytes = std::fs::read(data("vocab/ggml-vocab-deepseek-llm.gguf")).unwrap();
    let mut reader = Reader(&bytes[24..]);
    let n_kv = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    let mut spec = TokenizerSpec::default();
    for _ in 0..n_kv {
        let key = String::from_utf8(reader.string()).unwrap();
        let kind = reader.number(4);
        let values = reader.value(kind);
        let number = || values[0].number as u32;
        match key.strip_prefix("tokenizer.ggml.").unwrap_or("") {
            "model" => spec.model = String::from_utf8(values[0].text.clone()).unwrap(),
            "pre" => spec.pre = String::from_utf8(values[0].text.clone()).unwrap(),
            "bos_token_id" => spec.bos = Some(number()),
            "eos_token_id" => spec.eos = Some(number()),
            "padding_token_id" => spec.pad = Some(number()),
            "add_bos_token" => spec.add_bos = Some(number() != 0),
            "add_eos_token" => spec.add_eos = Some(number() != 0),
            "tokens" => spec.tokens = values.into_iter().map(|v| v.text).collect(),
            "token_type" => spec.token_types = Some(values.iter().map(|v| v.number as i32).collect()),
            "merges" => spec.merges = values.into_iter().map(|v| String::from_utf8(v.text).unwrap()).collect(),
            _ => {}
        }
    }
    spec
}

#[derive(Default)]
struct Value {
    number: u64,
    text: Vec<u8>,
}

/// Just enough of GGUF's metadata: scalars as little-endian numbers, strings, arrays of both.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self, size: usize) -> u64 {
        let (head, rest) = self.0.split_at(size);
        self.0 = rest;
        head.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte))
    }

    fn string(&mut self) -> Vec<u8> {
        let len = self.number(8) as usize;
        let (head, rest) = self.0.split_at(len);
        self.0 = rest;
        head.to_vec()
    }

    fn value(&mut self, kind: u64) -> Vec<Value> {
        const SIZES: [usize; 13] = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
        match kind {
            8 => vec![Value { text: self.string(), ..Value::default() }],
            9 => {
                let (kind, count) = (self.number(4), self.number(8));
                (0..count).flat_map(|_| self.value(kind)).collect()
            }
            _ => vec![Value { number: self.number(SIZES[kind as usize]), ..Value::default() }],
        }
    }
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
