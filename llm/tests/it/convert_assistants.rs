//! Conversion of assistants, which draft tokens for another model: a checkpoint with the weights of
//! a file becomes that file.

use crate::common::data;
use gristmill_llm::convert;
use gristmill_llm::gguf::{Gguf, TensorInfo};
use gristmill_llm::quantise::{Mix, Quantise, QuantiseOptions};
use gristmill_tensor::evaluate::decode;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const ASSISTANT: &str = "families/gemma4-assistant-q8_0.gguf";
const ORDERING: &str = "masked_embd_ordering";

/// Names of transformers' `Gemma4AssistantForCausalLM`, and of GGUF files.
const NAMES: [(&str, &str); 7] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("pre_projection.weight", "nextn.pre_projection.weight"),
    ("post_projection.weight", "nextn.post_projection.weight"),
    (
        "masked_embedding.centroids.weight",
        "masked_embd_centroids.weight",
    ),
    ("masked_embedding.token_ordering", ORDERING),
    ("lm_head.weight", "token_embd.weight"),
];
/// The same within a layer.
const NAMES_IN_LAYER: [(&str, &str); 12] = [
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
    ("input_layernorm.weight", "attn_norm.weight"),
    (
        "post_attention_layernorm.weight",
        "post_attention_norm.weight",
    ),
    ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
    ("layer_scalar", "layer_output_scale.weight"),
    ("self_attn.rotary_emb.inv_freq", "attn_q_norm.weight"),
];

/// Returns the configuration of the assistant of the test data, as transformers saves it.
fn config() -> Value {
    let kinds = [
        "sliding_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
    ];
    json!({
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": 128,
        "use_ordered_embeddings": true,
        "num_centroids": 32,
        "centroid_intermediate_top_k": 5,
        "tie_word_embeddings": true,
        "text_config": {
            "model_type": "gemma4_text", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32,
            "global_head_dim": 64, "sliding_window": 16, "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "layer_types": kinds,
            "num_kv_shared_layers": 4, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0,
            "use_double_wide_mlp": false, "enable_moe_block": false, "attention_k_eq_v": false,
            "rope_parameters": {
                "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    })
}

fn bytes(file: &Gguf, tensor: &TensorInfo) -> Vec<u8> {
    let mut bytes = vec![0; tensor.bytes as usize];
    file.read_tensor(tensor, &mut bytes).expect("a tensor");
    bytes
}

fn floats(file: &Gguf, tensor: &TensorInfo) -> Vec<f32> {
    let values = decode(tensor.encoding, &bytes(file, tensor));
    values.into_iter().map(|v| v as f32).collect()
}

/// Name, type, shape and bytes of a tensor of a checkpoint.
type Part = (String, Dtype, Vec<usize>, Vec<u8>);

/// Returns the tensor of a checkpoint with the numbers of a tensor of a file.
fn part(file: &Gguf, name: String, tensor: &str) -> Part {
    let tensor = file.tensor(tensor).expect("a tensor");
    let shape: Vec<usize> = tensor.dims.iter().rev().map(|&n| n as usize).collect();
    if tensor.name == ORDERING {
        let words = bytes(file, tensor);
        let (words, _) = words.as_chunks::<4>();
        let ids = words
            .iter()
            .map(|&word| i64::from(i32::from_le_bytes(word)));
        return (
            name,
            Dtype::I64,
            shape,
            ids.flat_map(i64::to_le_bytes).collect(),
        );
    }
    let values = floats(file, tensor);
    let values = values.iter().flat_map(|v| v.to_le_bytes());
    (name, Dtype::F32, shape, values.collect())
}

/// Writes a checkpoint with the weights of the assistant of the test data.
fn checkpoint(file: &Gguf, to: &Path) {
    let globals = NAMES.map(|(name, tensor)| part(file, name.to_owned(), tensor));
    let layers = (0..4).flat_map(|layer| {
        NAMES_IN_LAYER.map(|(name, tensor)| {
            let name = format!("model.layers.{layer}.{name}");
            part(file, name, &format!("blk.{layer}.{tensor}"))
        })
    });
    let parts: Vec<Part> = globals.into_iter().chain(layers).collect();
    let views = parts.iter().map(|(name, dtype, shape, bytes)| {
        let view = TensorView::new(*dtype, shape.clone(), bytes);
        (name.as_str(), view.expect("a tensor"))
    });
    let weights = safetensors::serialize(views, None).expect("weights");
    fs::write(to.join("model.safetensors"), weights).expect("a file");
    fs::write(to.join("config.json"), config().to_string()).expect("a file");
}

/// The file of the test data has logits that were compared with transformers' (`assistants.rs`).
#[test]
fn a_checkpoint_becomes_the_file_of_its_assistant() {
    let folder = TempDir::new().expect("a folder");
    let expected = Gguf::open(data(ASSISTANT)).expect("a GGUF file");
    checkpoint(&expected, folder.path());
    let converted = convert::open(folder.path()).expect("a checkpoint");
    assert_eq!(converted.warnings, Vec::<String>::new());
    let found = converted.file;
    assert_eq!(found.tensors().len(), expected.tensors().len());
    for tensor in expected.tensors() {
        let own = found.tensor(&tensor.name).expect("a tensor");
        assert_eq!(own.dims, tensor.dims, "{}", tensor.name);
        let equal = match tensor.name.as_str() {
            ORDERING => bytes(&found, own) == bytes(&expected, tensor),
            _ => floats(&found, own) == floats(&expected, tensor),
        };
        assert!(equal, "{}", tensor.name);
    }
    let of_assistant = |key: &str| key.starts_with("gemma4-assistant.");
    for (key, value) in expected.metadata().iter().filter(|of| of_assistant(of.0)) {
        assert_eq!(found.metadata().get(key), Some(value), "{key}");
    }
}

/// A written assistant of fewer bits is added to its model.
#[test]
fn a_converted_assistant_is_added_to_its_model() {
    let folder = TempDir::new().expect("a folder");
    checkpoint(&Gguf::open(data(ASSISTANT)).expect("a file"), folder.path());
    let converted = convert::open(folder.path()).expect("a checkpoint").file;
    let options = QuantiseOptions::new(Mix::parse("Q8_0").expect("a type"), 2);
    let quantise = Quantise::new(&converted, &options).expect("types");
    let mut out = Vec::new();
    quantise.write(&mut out, &mut |_| true).expect("a file");
    let side = Gguf::from_bytes(out).expect("a file");
    let stored = side.tensor("blk.0.attn_q.weight").expect("a tensor");
    assert_eq!(stored.encoding.name, "q8_0");
    let mut model = Gguf::open(data("families/gemma4-q8_0.gguf")).expect("a file");
    model.attach_draft_block(side).expect("an assistant");
    gristmill_llm::arch::load(model.metadata(), &model).expect("a model");
}

/// A list of token ids that is none is refused by name.
#[test]
fn a_malformed_ordering_is_refused() {
    let folder = TempDir::new().expect("a folder");
    let file = Gguf::open(data(ASSISTANT)).expect("a GGUF file");
    let name = "masked_embedding.token_ordering";
    for (dtype, bytes) in [(Dtype::F32, vec![0; 4]), (Dtype::I64, vec![])] {
        checkpoint(&file, folder.path());
        let shape = vec![bytes.len() / 4];
        let view = TensorView::new(dtype, shape, &bytes).expect("a tensor");
        let weights = safetensors::serialize([(name, view)], None).expect("weights");
        fs::write(folder.path().join("model.safetensors"), weights).expect("a file");
        let error = convert::open(folder.path()).err().expect("an error");
        assert!(error.to_string().contains(name), "{error}");
    }
}
