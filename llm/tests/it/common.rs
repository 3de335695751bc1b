//! Shared test helpers: vocabularies, and the logits of one sequence.

use gristmill_backend::{Opened, Options, open};
use gristmill_llm::arch::Logits;
use gristmill_llm::engine::{Engine, TokenRun, WholePool};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::language;
use gristmill_llm::placement::{LayerPlace, OtherDevice, Placement, PlacementRequest};
use gristmill_llm::tokenizer::{Tokenizer, TokenizerSpec};
use serde_json::Value;

/// Returns the path of a file in the test data.
pub fn data(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

/// Opens a device, or several such as `cpu+cpu`, over which the parts of a model are placed at
/// random.
pub fn devices(names: &str, options: &Options) -> (Opened, PlacementRequest) {
    let mut opened = names
        .split('+')
        .map(|name| open(name, options).expect("a device"));
    let main = opened.next().expect("a main device");
    let others: Vec<_> = opened.map(OtherDevice::from_opened).collect();
    let fixed = (!others.is_empty()).then(|| drawn(3, MOST_LAYERS, others.len() as u64 + 1));
    let request = PlacementRequest {
        others,
        fixed,
        ..PlacementRequest::default()
    };
    (main, request)
}

/// Layers of the largest model that tests place.
const MOST_LAYERS: usize = 64;

/// Weights outside of layers that a placement may move; the last one is of the head.
pub const OUTER: [&str; 3] = [
    "token_embd.weight",
    "per_layer_token_embd.weight",
    "output.weight",
];

/// Returns a placement of every part on one of `devices` devices, with at least one away.
pub fn drawn(seed: u64, layers: usize, devices: u64) -> Placement {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) % devices
    };
    loop {
        let place = |_| LayerPlace {
            layer: next() as usize,
            experts: next() as usize,
        };
        let mut placement = Placement::new((0..layers).map(place).collect());
        for name in OUTER {
            placement = placement.with_outer([name.to_owned()], next() as usize);
        }
        if !placement.is_whole() {
            return placement;
        }
    }
}

/// Returns the tokenizer of the demo model, from its text form.
pub fn demo_glm() -> Tokenizer {
    let text = std::fs::read_to_string(data("vocab/demo-glm.txt")).unwrap();
    let mut spec = TokenizerSpec {
        model: "gpt2".into(),
        ..TokenizerSpec::default()
    };
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

/// Reads a vocabulary from JSON: the keys of a model file, and in `special` the types of tokens
/// that are not normal. Also returns the original ids of the tokens of a vocabulary that was cut.
pub fn vocabulary(name: &str) -> (TokenizerSpec, Vec<u32>) {
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(data(name)).unwrap()).unwrap();
    let texts = |key: &str| -> Vec<String> {
        json[key]
            .as_array()
            .into_iter()
            .flatten()
            .map(|text| text.as_str().unwrap().to_owned())
            .collect()
    };
    let id = |key: &str| json[key].as_u64().map(|id| id as u32);
    let tokens = texts("tokens");
    let mut types = vec![1; tokens.len()];
    for (id, kind) in json["special"].as_object().unwrap() {
        types[id.parse::<usize>().unwrap()] = kind.as_i64().unwrap() as i32;
    }
    let spec = TokenizerSpec {
        model: json["model"].as_str().unwrap().into(),
        pre: json["pre"].as_str().unwrap_or_default().into(),
        tokens: tokens.into_iter().map(String::into_bytes).collect(),
        token_types: Some(types),
        merges: texts("merges"),
        scores: json["scores"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|s| s.as_f64().unwrap() as f32)
            .collect(),
        add_space_prefix: json["add_space_prefix"].as_bool(),
        bos: id("bos"),
        eos: id("eos"),
        eot: id("eot"),
        unk: id("unknown"),
        pad: id("padding"),
        add_bos: json["add_bos_token"].as_bool(),
        add_eos: json["add_eos_token"].as_bool(),
        ..TokenizerSpec::default()
    };
    let ids = json["ids"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect();
    (spec, ids)
}

/// Returns logits of these tokens, all or those of the last, for one sequence that has
/// the whole page pool.
pub fn forward(engine: &mut Engine, tokens: &[u32], position: usize, all: bool) -> Vec<f32> {
    let pool = WholePool::new(engine);
    let run = TokenRun {
        tokens,
        position,
        pages: pool.pages(),
        contiguous: true,
    };
    engine
        .logits(run, if all { Logits::All } else { Logits::Last })
        .expect("logits")
}

/// Returns the tokenizer description in the DeepSeek LLM vocabulary file.
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

/// Returns the `tokens` of a JSON record.
pub fn ids_of(record: &Value) -> Vec<u32> {
    let ids = record["tokens"].as_array().expect("tokens").iter();
    ids.map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// Returns a JSON array of numbers.
pub fn floats_of(numbers: &Value) -> Vec<f32> {
    let all = numbers.as_array().expect("numbers").iter();
    all.map(|x| x.as_f64().expect("a number") as f32).collect()
}
