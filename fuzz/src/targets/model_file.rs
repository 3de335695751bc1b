//! Fuzz targets for model files, single and split.

use crate::Target;
use crate::targets::toy;
use gristmill_encodings::TABLE;
use gristmill_llm::arch::{self, CacheType, Functions, Logits, Model, Options, Pools, StepKind};
use gristmill_llm::gguf::{ByteSource, Gguf, Metadata, TensorDecl, Value, Writer};
use gristmill_llm::language;
use gristmill_uop::encoding::EncodingRef;
use std::fs;
use std::io;
use std::path::PathBuf;

/// Input: one GGUF file.
pub const FILE: Target = Target {
    name: "gguf",
    about: "a model file: header, metadata, tensors, tokenizer, template, sampling, the plan of a step",
    run: file,
    seeds: files,
    words: WORDS,
    longest: 16 << 10,
    tries: 3000,
};

/// Input: the files of a split model.
pub const SPLIT: Target = Target {
    name: "split",
    about: "the files of a split model, by their names in a folder",
    run: split,
    seeds: splits,
    words: WORDS,
    longest: 4 << 10,
    tries: 300,
};

const WORDS: &[&str] = &[
    "GGUF",
    "general.alignment",
    "general.architecture",
    "deepseek2.block_count",
    "deepseek2.context_length",
    "deepseek2.attention.head_count",
    "deepseek2.rope.dimension_count",
    "deepseek2.rope.scaling.type",
    "deepseek2.expert_count",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.token_type",
    "tokenizer.chat_template",
    "split.count",
    "split.no",
    "split.tensors.count",
    "token_embd.weight",
    "output_norm.weight",
    "blk.0.attn_q.weight",
    "\u{1}\0\0\0\0\0\0\0",
    "\0\0\0\0\0\0\0\u{1}",
];

/// Zeros appended to an input, so that a mutated header still has tensor data.
const ZEROS: u64 = 1 << 20;
/// Maximum layers, heads, experts and positions of a model that is planned; larger
/// ones only take longer.
const PLANNED: usize = 8;

struct Padded(Vec<u8>);

impl ByteSource for Padded {
    fn size(&self) -> u64 {
        self.0.len() as u64 + ZEROS
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset
            .checked_add(out.len() as u64)
            .is_none_or(|end| end > self.size())
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let start = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(self.0.len());
        let n = out.len().min(self.0.len() - start);
        out[..n].copy_from_slice(&self.0[start..start + n]);
        out[n..].fill(0);
        Ok(())
    }
}

fn file(input: &[u8]) {
    if let Ok(model) = Gguf::from_bytes(input.to_vec()) {
        read(&model);
    }
    if let Ok(model) = Gguf::from_source(Box::new(Padded(input.to_vec()))) {
        read(&model);
    }
}

/// Reads everything that a program reads from a file.
fn read(file: &Gguf) {
    let metadata = file.metadata();
    for (key, value) in metadata.iter() {
        let _ = (
            value.to_string(),
            metadata.u32(key),
            metadata.f32(key),
            metadata.bool(key),
            metadata.str(key),
        );
        let _ = (
            metadata.ints(key),
            metadata.strings(key),
            metadata.floats(key),
            metadata.per_layer(key, 3),
        );
    }
    for tensor in file.tensors() {
        let mut data = vec![0; tensor.bytes.min(4 << 10) as usize];
        assert!(tensor.elements() > 0, "{tensor:?}");
        file.read_range(tensor, tensor.bytes - data.len() as u64, &mut data)
            .expect("the end of a tensor");
        let beyond = file.read_range(tensor, tensor.bytes, &mut [0]);
        assert!(beyond.is_err(), "{tensor:?} has a byte beyond its last");
    }
    if let Ok(tokenizer) = language::tokenizer(metadata) {
        let ids = tokenizer.encode("Hello <|user|>\n", true, true);
        let _ = tokenizer.decode(&ids, true);
    }
    let _ = language::sampling(metadata);
    if let Ok(model) = arch::load(metadata, file) {
        plan(metadata, model.as_ref());
    }
}

fn plan(metadata: &Metadata, model: &dyn Model) {
    let name = model.architecture();
    let small = |key: &str| {
        metadata
            .u32(&format!("{name}.{key}"))
            .ok()
            .flatten()
            .unwrap_or(0) as usize
            <= PLANNED
    };
    let counts = [
        "attention.head_count",
        "expert_count",
        "expert_used_count",
        "expert_group_count",
    ];
    if model.layers() > PLANNED || !counts.into_iter().all(small) {
        return;
    }
    for table in model.rope_tables(PLANNED) {
        assert_eq!(table.rows(PLANNED).len() * 4, PLANNED * table.row_bytes());
    }
    for tokens in [StepKind::Decode, StepKind::Prefill { max: PLANNED }] {
        let rows = Options::rows_for(PLANNED, tokens.max());
        let cache = if tokens == StepKind::Decode {
            CacheType::F16
        } else {
            CacheType::Int4
        };
        let options = Options {
            tokens,
            rows,
            pools: Pools {
                states: 1,
                ..Pools::from_pages(rows / Options::PAGE)
            },
            contiguous: true,
            depth: rows,
            cache,
            logits: Logits::Last,
            tile: Options::TILE,
            cached: None,
            draft: None,
        };
        let plan = model.plan(&options, &mut Functions::new());
        assert!(!plan.calls.is_empty() && model.cache_tensors(cache).len() == model.layers());
    }
}

/// Input format: each file is preceded by its length in two bytes.
fn split(input: &[u8]) {
    let mut rest = input;
    let mut files: Vec<&[u8]> = Vec::new();
    while let Some((&[low, high], after)) = rest.split_first_chunk::<2>() {
        let (file, after) =
            after.split_at(usize::from(u16::from_le_bytes([low, high])).min(after.len()));
        files.push(file);
        rest = after;
        if files.len() == 4 {
            break;
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = |i: usize| -> PathBuf {
        folder
            .path()
            .join(format!("m-{:05}-of-{:05}.gguf", i + 1, files.len()))
    };
    for (i, file) in files.iter().enumerate() {
        fs::write(path(i), file).expect("written");
    }
    if !files.is_empty()
        && let Ok(model) = Gguf::open(path(0))
    {
        read(&model);
    }
}

/// Returns the first encoding with that number of elements per block.
fn encoding(elements: usize) -> EncodingRef {
    TABLE
        .iter()
        .find(|e| e.elements == elements)
        .unwrap_or_else(|| unreachable!("no encoding of {elements} elements"))
}

/// A small model with multi-head latent attention (MLA), a tokenizer and a template.
fn tiny() -> (Metadata, Vec<(String, Vec<u64>, EncodingRef)>) {
    (tiny_metadata(), tiny_tensors())
}

fn tiny_metadata() -> Metadata {
    let mut m = toy::metadata(
        "glm4",
        &[(b"<|user|>".to_vec(), 3), (b"he".to_vec(), 1)],
        &[b"h e".to_vec()],
    );
    m.insert("general.architecture", "deepseek2")
        .insert("tokenizer.chat_template", "{{ messages[0].content }}");
    for (key, n) in [
        ("block_count", 2u32),
        ("context_length", 64),
        ("embedding_length", 32),
        ("feed_forward_length", 32),
        ("leading_dense_block_count", 1),
        ("attention.head_count", 2),
        ("attention.q_lora_rank", 32),
        ("attention.kv_lora_rank", 32),
        ("attention.key_length", 24),
        ("attention.value_length", 16),
        ("rope.dimension_count", 8),
        ("expert_count", 2),
        ("expert_used_count", 1),
        ("expert_shared_count", 1),
        ("expert_feed_forward_length", 32),
    ] {
        m.insert(format!("deepseek2.{key}"), n);
    }
    m.insert("deepseek2.attention.layer_norm_rms_epsilon", 1e-6f32)
        .insert("general.sampling.temp", 0.5f32);
    m
}

fn tiny_tensors() -> Vec<(String, Vec<u64>, EncodingRef)> {
    let mut tensors: Vec<(String, Vec<u64>, EncodingRef)> = Vec::new();
    let mut add = |name: &str, dims: &[u64]| {
        let encoding = if dims.len() > 1 {
            encoding(32)
        } else {
            encoding(1)
        };
        tensors.push((name.to_owned(), dims.to_vec(), encoding));
    };
    add("token_embd.weight", &[32, 258]);
    add("output_norm.weight", &[32]);
    for layer in 0..2 {
        let mut add = |name: &str, dims: &[u64]| add(&format!("blk.{layer}.{name}.weight"), dims);
        add("attn_norm", &[32]);
        add("attn_kv_a_mqa", &[32, 40]);
        add("attn_kv_a_norm", &[32]);
        add("attn_output", &[32, 32]);
        add("ffn_norm", &[32]);
        add("attn_q_a", &[32, 32]);
        add("attn_q_a_norm", &[32]);
        add("attn_q_b", &[32, 48]);
        add("attn_kv_b", &[32, 64]);
        if layer == 0 {
            [
                ("ffn_gate", [32, 32]),
                ("ffn_up", [32, 32]),
                ("ffn_down", [32, 32]),
            ]
            .iter()
            .for_each(|(n, d)| add(n, d));
            continue;
        }
        add("ffn_gate_inp", &[32, 2]);
        ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"]
            .iter()
            .for_each(|n| add(n, &[32, 32, 2]));
        ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"]
            .iter()
            .for_each(|n| add(n, &[32, 32]));
    }
    tensors
}

/// Header of a file, without its data.
fn header(metadata: &Metadata, tensors: &[(String, Vec<u64>, EncodingRef)]) -> Vec<u8> {
    let declared: Vec<TensorDecl<'_>> = tensors
        .iter()
        .map(|&(ref name, ref dims, encoding)| TensorDecl {
            name,
            dims,
            encoding,
        })
        .collect();
    let mut out = Vec::new();
    let _ = Writer::new(&mut out, metadata, &declared).expect("a header");
    out
}

fn with_data(mut header: Vec<u8>, bytes: usize) -> Vec<u8> {
    header.resize(header.len() + bytes, 0x11);
    header
}

fn every_kind_of_value() -> Metadata {
    let mut m = Metadata::new();
    for (i, value) in [
        Value::U8(1),
        Value::I8(-1),
        Value::U16(2),
        Value::I16(-2),
        Value::U32(3),
        Value::I32(-3),
        Value::F32(0.5),
        Value::Bool(true),
        Value::from("text"),
        Value::U64(4),
        Value::I64(-4),
        Value::F64(0.25),
    ]
    .into_iter()
    .enumerate()
    {
        m.insert(format!("key.{i}"), value);
    }
    m.insert("general.alignment", 64u32);
    m
}

fn files() -> Vec<Vec<u8>> {
    let (metadata, tensors) = tiny();
    let plain = vec![
        ("a".to_owned(), vec![4, 2], encoding(1)),
        ("b".to_owned(), vec![32, 3], encoding(32)),
    ];
    vec![
        header(&metadata, &tensors),
        with_data(header(&every_kind_of_value(), &plain), 192),
    ]
}

fn splits() -> Vec<Vec<u8>> {
    let shard = |no: u16, name: &str| {
        let mut m = Metadata::new();
        m.insert("split.no", no)
            .insert("split.count", 2u16)
            .insert("split.tensors.count", 2i32);
        with_data(header(&m, &[(name.to_owned(), vec![4], encoding(1))]), 32)
    };
    let prefixed = |file: Vec<u8>| [&(file.len() as u16).to_le_bytes()[..], &file].concat();
    vec![[prefixed(shard(0, "a")), prefixed(shard(1, "b"))].concat()]
}
