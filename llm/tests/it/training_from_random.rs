//! Training of small models from random weights.

use crate::common::data;
use crate::training_support::{Rows, batch, trainer};
use gristmill_llm::gguf::Gguf;
use gristmill_llm::synth::ModelConfig;
use gristmill_llm::train::{FullError, Trainer, initial_weights, write_model};

/// Two blocks in the shape of the demo model: one dense, one of four experts.
const DEEPSEEK2: &str = r#"{
    "tokenizer": "demo", "type": "f32", "tensors": ["output.weight", "exp_probs_b.bias"],
    "metadata": {
        "general.architecture": "deepseek2", "deepseek2.block_count": 2,
        "deepseek2.context_length": 64, "deepseek2.embedding_length": 64,
        "deepseek2.feed_forward_length": 96, "deepseek2.leading_dense_block_count": 1,
        "deepseek2.attention.head_count": 2, "deepseek2.attention.head_count_kv": 1,
        "deepseek2.attention.layer_norm_rms_epsilon": 1e-5,
        "deepseek2.attention.q_lora_rank": 32, "deepseek2.attention.kv_lora_rank": 32,
        "deepseek2.attention.key_length": 48, "deepseek2.attention.value_length": 32,
        "deepseek2.attention.key_length_mla": 32, "deepseek2.attention.value_length_mla": 16,
        "deepseek2.rope.dimension_count": 16, "deepseek2.rope.freq_base": 10000.0,
        "deepseek2.expert_feed_forward_length": 32, "deepseek2.expert_count": 4,
        "deepseek2.expert_used_count": 2, "deepseek2.expert_shared_count": 1,
        "deepseek2.expert_weights_scale": 1.8, "deepseek2.expert_weights_norm": true,
        "deepseek2.expert_gating_func": 2
    }
}"#;

/// One block of the architecture `llama`, with a tied embedding and matrices in bf16.
const LLAMA: &str = r#"{
    "tokenizer": "demo", "type": "bf16",
    "metadata": {
        "general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 64,
        "llama.embedding_length": 64, "llama.feed_forward_length": 128,
        "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.dimension_count": 16
    }
}"#;

/// Metadata of a vocabulary of 2,048 tokens comes from the demo model.
fn initial(config: &str, seed: u64) -> Gguf {
    let demo = Gguf::open(data("demo-glm-Q4_K_M.gguf")).expect("a model");
    let config = ModelConfig::parse(config).expect("a configuration");
    let file = config.initial_model(demo.metadata(), seed);
    file.expect("a model with random weights")
}

/// An error of reading initial weights into a trainer.
#[derive(Debug)]
#[expect(dead_code, reason = "shown by a panic")]
enum Failed {
    File(FullError),
    Device(gristmill_llm::engine::Error),
}

impl From<FullError> for Failed {
    fn from(error: FullError) -> Failed {
        Failed::File(error)
    }
}

/// Trains on two rows; returns the losses and the trainer.
fn train(file: &Gguf, steps: usize) -> (Vec<f32>, Trainer) {
    let row = |from: u32| (0..24).map(|i| from + 7 * (i % 6)).collect::<Vec<u32>>();
    let rows = Rows {
        tokens: vec![row(300), row(900)],
        is_target: vec![vec![1; 24]; 2],
    };
    let mut trainer = trainer(file, "cpu", None, &rows);
    let places = trainer.places().clone();
    initial_weights(file, &places, |name, values| {
        trainer.set_parameter(name, values).map_err(Failed::Device)
    })
    .expect("initial weights");
    let batch = batch(&rows);
    let step = |_| {
        trainer.accumulate(&batch)?;
        let loss = trainer.finish_gradients()?.loss;
        trainer.update(5e-3)?;
        Ok::<_, gristmill_llm::engine::Error>(loss)
    };
    let losses = (0..steps).map(step).collect::<Result<_, _>>();
    (losses.expect("steps"), trainer)
}

#[test]
fn a_model_learns_from_random_weights() {
    for config in [DEEPSEEK2, LLAMA] {
        let (losses, trainer) = train(&initial(config, 1), 30);
        let uniform = 2048f32.ln();
        assert!((losses[0] - uniform).abs() < 0.1, "{losses:?}");
        assert!(losses[29] < 0.1 * losses[0], "{losses:?}");
        let (again, same) = train(&initial(config, 1), 30);
        assert_eq!(again, losses);
        let of = |trainer: &Trainer| trainer.parameters().expect("parameters");
        assert!(of(&trainer) == of(&same));
        assert_ne!(train(&initial(config, 2), 1).0[0], losses[0]);
    }
}

#[test]
fn a_trained_model_is_written_with_its_metadata() {
    let file = initial(LLAMA, 3);
    let (_, trainer) = train(&file, 1);
    let (mut out, values) = (Vec::new(), trainer.parameters().expect("parameters"));
    write_model(&file, trainer.places(), &values, &|_| true, &mut out).expect("a model");
    let written = Gguf::from_bytes(out).expect("a GGUF file");
    let metadata = written.metadata();
    assert_eq!(metadata.u32("llama.vocab_size").unwrap(), Some(2048));
    assert_eq!(metadata.u32("general.file_type").unwrap(), Some(32));
    assert!(metadata.contains("tokenizer.chat_template"));
    let names =
        |file: &Gguf| -> Vec<String> { file.tensors().iter().map(|t| t.name.clone()).collect() };
    assert_eq!(names(&written), names(&file));
    assert!(names(&file).iter().all(|name| name != "output.weight"));
}

#[test]
fn configurations_that_cannot_be_used_say_why() {
    let demo = Gguf::open(data("demo-glm-Q4_K_M.gguf")).expect("a model");
    let message = |config: &str| match ModelConfig::parse(config) {
        Err(error) => error.to_string(),
        Ok(config) => match config.initial_model(demo.metadata(), 0) {
            Err(error) => error.to_string(),
            Ok(_) => String::new(),
        },
    };
    for (old, new, expected) in [
        ("\"type\"", "\"kind\"", "unknown field `kind`"),
        ("\"bf16\"", "\"b16\"", "no quantisation named b16"),
        ("\"llama\"", "\"lama\"", "lama"),
        (
            "\"llama.block_count\": 1",
            "\"llama.block_count\": null",
            "the value of llama.block_count",
        ),
        ("\"llama.block_count\": 1, ", "", "llama.block_count"),
        (
            "\"llama.block_count\": 1",
            "\"tokenizer.ggml.pre\": \"x\"",
            "tokenizer.ggml.pre cannot",
        ),
        (
            "\"llama.embedding_length\": 64",
            "\"llama.embedding_length\": 0",
            "llama.embedding_length",
        ),
        ("{", "", "not a configuration"),
    ] {
        let text = LLAMA.replacen(old, new, 1);
        assert!(text != LLAMA, "{old}");
        let found = message(&text);
        assert!(found.contains(expected), "{new}: {found}");
    }
}
