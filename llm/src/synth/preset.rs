//! Presets with the hyper-parameters of published models. Their tensors follow from
//! the architecture's table.

use super::{Error, SynthPlan, TensorPlan, fill, vocab};
use crate::arch::{self, TensorSpec, Tensors};
use crate::gguf::types::FileType;
use crate::gguf::{self, Array, Metadata, Role, Value};
use gristmill_encodings::F32;
use gristmill_uop::encoding::EncodingRef;

/// Value of a metadata key.
#[derive(Clone, Copy)]
enum Key {
    U(u32),
    F(f32),
    B(bool),
    S(&'static str),
    /// One value per layer, repeated cyclically.
    Us(&'static [u32]),
    Bs(&'static [bool]),
}
use Key::{B, Bs, F, S, U, Us};

/// Hyper-parameters and vocabulary of one model.
pub(super) struct Preset {
    pub name: &'static str,
    title: &'static str,
    architecture: &'static str,
    /// Metadata keys without the architecture's prefix.
    keys: &'static [(&'static str, Key)],
    /// Optional tensors of this model, without the block prefix.
    has: &'static [&'static str],
    pub vocab: vocab::Vocab,
}

/// All presets. Sources: the models' published configurations.
pub(super) static PRESETS: &[Preset] = &[
    Preset {
        name: "glm-4.7-flash",
        title: "GLM-4.7-Flash (random weights)",
        architecture: "deepseek2",
        keys: &[
            ("block_count", U(47)),
            ("context_length", U(202_752)),
            ("embedding_length", U(2048)),
            ("feed_forward_length", U(10_240)),
            ("leading_dense_block_count", U(1)),
            ("attention.head_count", U(20)),
            ("attention.head_count_kv", U(1)),
            ("attention.layer_norm_rms_epsilon", F(1e-5)),
            ("attention.q_lora_rank", U(768)),
            ("attention.kv_lora_rank", U(512)),
            ("attention.key_length", U(576)),
            ("attention.value_length", U(512)),
            ("attention.key_length_mla", U(256)),
            ("attention.value_length_mla", U(256)),
            ("rope.dimension_count", U(64)),
            ("rope.freq_base", F(1e6)),
            ("expert_count", U(64)),
            ("expert_used_count", U(4)),
            ("expert_shared_count", U(1)),
            ("expert_feed_forward_length", U(1536)),
            ("expert_gating_func", U(2)),
            ("expert_weights_norm", B(true)),
            ("expert_weights_scale", F(1.8)),
            ("expert_group_count", U(1)),
            ("expert_group_used_count", U(1)),
        ],
        has: &["output.weight", "exp_probs_b.bias"],
        vocab: vocab::GLM,
    },
    Preset {
        name: "deepseek-v2-lite",
        title: "DeepSeek-V2-Lite (random weights)",
        architecture: "deepseek2",
        keys: &[
            ("block_count", U(27)),
            ("context_length", U(163_840)),
            ("embedding_length", U(2048)),
            ("feed_forward_length", U(10_944)),
            ("leading_dense_block_count", U(1)),
            ("attention.head_count", U(16)),
            ("attention.head_count_kv", U(1)),
            ("attention.layer_norm_rms_epsilon", F(1e-6)),
            ("attention.kv_lora_rank", U(512)),
            ("attention.key_length", U(576)),
            ("attention.value_length", U(512)),
            ("attention.key_length_mla", U(192)),
            ("attention.value_length_mla", U(128)),
            ("rope.dimension_count", U(64)),
            ("rope.freq_base", F(1e4)),
            ("rope.scaling.type", S("yarn")),
            ("rope.scaling.factor", F(40.0)),
            ("rope.scaling.original_context_length", U(4096)),
            ("rope.scaling.yarn_log_multiplier", F(0.0707)),
            ("expert_count", U(64)),
            ("expert_used_count", U(6)),
            ("expert_shared_count", U(2)),
            ("expert_feed_forward_length", U(1408)),
            ("expert_gating_func", U(1)),
            ("expert_weights_norm", B(false)),
            ("expert_weights_scale", F(1.0)),
        ],
        has: &["output.weight", "attn_q.weight"],
        vocab: vocab::DEEPSEEK,
    },
    Preset {
        name: "youtu-llm-2b",
        title: "Youtu-LLM-2B (random weights)",
        architecture: "deepseek2",
        keys: &[
            ("block_count", U(32)),
            ("context_length", U(131_072)),
            ("embedding_length", U(2048)),
            ("feed_forward_length", U(6144)),
            ("leading_dense_block_count", U(32)),
            ("attention.head_count", U(16)),
            ("attention.head_count_kv", U(1)),
            ("attention.layer_norm_rms_epsilon", F(1e-6)),
            ("attention.q_lora_rank", U(1536)),
            ("attention.kv_lora_rank", U(512)),
            ("attention.key_length", U(576)),
            ("attention.value_length", U(512)),
            ("attention.key_length_mla", U(192)),
            ("attention.value_length_mla", U(128)),
            ("rope.dimension_count", U(64)),
            ("rope.freq_base", F(1.6e6)),
            // Other loaders require these keys of dense models too.
            ("expert_shared_count", U(0)),
            ("expert_feed_forward_length", U(6144)),
            ("expert_weights_scale", F(1.0)),
        ],
        has: &[],
        vocab: vocab::YOUTU,
    },
    Preset {
        name: "llama-3.1-8b",
        title: "Llama-3.1-8B-Instruct (random weights)",
        architecture: "llama",
        keys: &[
            ("block_count", U(32)),
            ("context_length", U(131_072)),
            ("embedding_length", U(4096)),
            ("feed_forward_length", U(14_336)),
            ("attention.head_count", U(32)),
            ("attention.head_count_kv", U(8)),
            ("attention.key_length", U(128)),
            ("attention.value_length", U(128)),
            ("attention.layer_norm_rms_epsilon", F(1e-5)),
            ("rope.dimension_count", U(128)),
            ("rope.freq_base", F(500_000.0)),
        ],
        has: &["output.weight", "rope_freqs.weight"],
        vocab: vocab::LLAMA,
    },
    Preset {
        name: "qwen3-8b",
        title: "Qwen3-8B (random weights)",
        architecture: "qwen3",
        keys: &[
            ("block_count", U(36)),
            ("context_length", U(40_960)),
            ("embedding_length", U(4096)),
            ("feed_forward_length", U(12_288)),
            ("attention.head_count", U(32)),
            ("attention.head_count_kv", U(8)),
            ("attention.key_length", U(128)),
            ("attention.value_length", U(128)),
            ("attention.layer_norm_rms_epsilon", F(1e-6)),
            ("rope.dimension_count", U(128)),
            ("rope.freq_base", F(1e6)),
        ],
        has: &["output.weight"],
        vocab: vocab::QWEN,
    },
    Preset {
        name: "qwen2.5-7b",
        title: "Qwen2.5-7B-Instruct (random weights)",
        architecture: "qwen2",
        keys: &[
            ("block_count", U(28)),
            ("context_length", U(32_768)),
            ("embedding_length", U(3584)),
            ("feed_forward_length", U(18_944)),
            ("attention.head_count", U(28)),
            ("attention.head_count_kv", U(4)),
            ("attention.key_length", U(128)),
            ("attention.value_length", U(128)),
            ("attention.layer_norm_rms_epsilon", F(1e-6)),
            ("rope.dimension_count", U(128)),
            ("rope.freq_base", F(1e6)),
        ],
        has: &["output.weight"],
        vocab: vocab::QWEN_PADDED,
    },
    Preset {
        name: "phi-4-mini",
        title: "Phi-4-mini-instruct (random weights)",
        architecture: "phi3",
        keys: &[
            ("block_count", U(32)),
            ("context_length", U(131_072)),
            ("embedding_length", U(3072)),
            ("feed_forward_length", U(8192)),
            ("attention.head_count", U(24)),
            ("attention.head_count_kv", U(8)),
            ("attention.key_length", U(128)),
            ("attention.value_length", U(128)),
            ("attention.layer_norm_rms_epsilon", F(1e-5)),
            ("rope.dimension_count", U(96)),
            ("rope.freq_base", F(1e4)),
            ("rope.scaling.original_context_length", U(4096)),
            ("rope.scaling.attn_factor", F(1.190_238)),
        ],
        has: &[
            "attn_qkv.weight",
            "rope_factors_long.weight",
            "rope_factors_short.weight",
        ],
        vocab: vocab::PHI,
    },
    Preset {
        name: "qwen3-30b-a3b",
        title: "Qwen3-30B-A3B (random weights)",
        architecture: "qwen3moe",
        keys: &[
            ("block_count", U(48)),
            ("context_length", U(40_960)),
            ("embedding_length", U(2048)),
            ("feed_forward_length", U(6144)),
            ("attention.head_count", U(32)),
            ("attention.head_count_kv", U(4)),
            ("attention.key_length", U(128)),
            ("attention.value_length", U(128)),
            ("attention.layer_norm_rms_epsilon", F(1e-6)),
            ("rope.dimension_count", U(128)),
            ("rope.freq_base", F(1e6)),
            ("expert_count", U(128)),
            ("expert_used_count", U(8)),
            ("expert_feed_forward_length", U(768)),
        ],
        has: &["output.weight"],
        vocab: vocab::QWEN,
    },
    Preset {
        name: "deepseek-v3",
        title: "DeepSeek-V3 (random weights)",
        architecture: "deepseek2",
        keys: &[
            ("block_count", U(61)),
            ("context_length", U(163_840)),
            ("embedding_length", U(7168)),
            ("feed_forward_length", U(18_432)),
            ("leading_dense_block_count", U(3)),
            ("attention.head_count", U(128)),
            ("attention.head_count_kv", U(1)),
            ("attention.layer_norm_rms_epsilon", F(1e-6)),
            ("attention.q_lora_rank", U(1536)),
            ("attention.kv_lora_rank", U(512)),
            ("attention.key_length", U(576)),
            ("attention.value_length", U(512)),
            ("attention.key_length_mla", U(192)),
            ("attention.value_length_mla", U(128)),
            ("rope.dimension_count", U(64)),
            ("rope.freq_base", F(1e4)),
            ("rope.scaling.type", S("yarn")),
            ("rope.scaling.factor", F(40.0)),
            ("rope.scaling.original_context_length", U(4096)),
            ("rope.scaling.yarn_log_multiplier", F(0.1)),
            ("expert_count", U(256)),
            ("expert_used_count", U(8)),
            ("expert_shared_count", U(1)),
            ("expert_feed_forward_length", U(2048)),
            ("expert_gating_func", U(2)),
            ("expert_weights_norm", B(true)),
            ("expert_weights_scale", F(2.5)),
            ("expert_group_count", U(8)),
            ("expert_group_used_count", U(4)),
        ],
        has: &["output.weight", "exp_probs_b.bias"],
        vocab: vocab::DEEPSEEK_V3,
    },
    Preset {
        name: "kimi-k2",
        title: "Kimi-K2-Instruct (random weights)",
        architecture: "deepseek2",
        keys: &[
            ("block_count", U(61)),
            ("context_length", U(131_072)),
            ("embedding_length", U(7168)),
            ("feed_forward_length", U(18_432)),
            ("leading_dense_block_count", U(1)),
            ("attention.head_count", U(64)),
            ("attention.head_count_kv", U(1)),
            ("attention.layer_norm_rms_epsilon", F(1e-6)),
            ("attention.q_lora_rank", U(1536)),
            ("attention.kv_lora_rank", U(512)),
            ("attention.key_length", U(576)),
            ("attention.value_length", U(512)),
            ("attention.key_length_mla", U(192)),
            ("attention.value_length_mla", U(128)),
            ("rope.dimension_count", U(64)),
            ("rope.freq_base", F(5e4)),
            ("rope.scaling.type", S("yarn")),
            ("rope.scaling.factor", F(32.0)),
            ("rope.scaling.original_context_length", U(4096)),
            ("rope.scaling.yarn_log_multiplier", F(0.1)),
            ("expert_count", U(384)),
            ("expert_used_count", U(8)),
            ("expert_shared_count", U(1)),
            ("expert_feed_forward_length", U(2048)),
            ("expert_gating_func", U(2)),
            ("expert_weights_norm", B(true)),
            ("expert_weights_scale", F(2.827)),
            ("expert_group_count", U(1)),
            ("expert_group_used_count", U(1)),
        ],
        has: &["output.weight", "exp_probs_b.bias"],
        vocab: vocab::KIMI,
    },
    Preset {
        name: "glm-4.5-air",
        title: "GLM-4.5-Air (random weights)",
        architecture: "glm4moe",
        // Without the block for draft tokens.
        keys: &[
            ("block_count", U(46)),
            ("context_length", U(131_072)),
            ("embedding_length", U(4096)),
            ("feed_forward_length", U(10_944)),
            ("leading_dense_block_count", U(1)),
            ("attention.head_count", U(96)),
            ("attention.head_count_kv", U(8)),
            ("attention.key_length", U(128)),
            ("attention.value_length", U(128)),
            ("attention.layer_norm_rms_epsilon", F(1e-5)),
            ("rope.dimension_count", U(64)),
            ("rope.freq_base", F(1e6)),
            ("expert_count", U(128)),
            ("expert_used_count", U(8)),
            ("expert_shared_count", U(1)),
            ("expert_feed_forward_length", U(1408)),
            ("expert_gating_func", U(2)),
            ("expert_weights_norm", B(true)),
            ("expert_weights_scale", F(1.0)),
            ("expert_group_count", U(1)),
            ("expert_group_used_count", U(1)),
        ],
        has: &["output.weight"],
        vocab: vocab::GLM_4_5,
    },
    Preset {
        name: "minimax-m2",
        title: "MiniMax-M2 (random weights)",
        architecture: "minimax-m2",
        keys: &[
            ("block_count", U(62)),
            ("context_length", U(196_608)),
            ("embedding_length", U(3072)),
            ("feed_forward_length", U(1536)),
            ("attention.head_count", U(48)),
            ("attention.head_count_kv", U(8)),
            ("attention.key_length", U(128)),
            ("attention.value_length", U(128)),
            ("attention.layer_norm_rms_epsilon", F(1e-6)),
            ("rope.dimension_count", U(64)),
            ("rope.freq_base", F(5e6)),
            ("expert_count", U(256)),
            ("expert_used_count", U(8)),
            ("expert_feed_forward_length", U(1536)),
            ("expert_gating_func", U(2)),
        ],
        has: &["output.weight"],
        vocab: vocab::MINIMAX,
    },
    Preset {
        name: "gpt-oss-20b",
        title: "gpt-oss-20b (random weights)",
        architecture: "gpt-oss",
        keys: &[
            ("block_count", U(24)),
            ("context_length", U(131_072)),
            ("embedding_length", U(2880)),
            ("feed_forward_length", U(2880)),
            ("attention.head_count", U(64)),
            ("attention.head_count_kv", U(8)),
            ("attention.key_length", U(64)),
            ("attention.value_length", U(64)),
            ("attention.layer_norm_rms_epsilon", F(1e-5)),
            ("attention.sliding_window", U(128)),
            ("rope.dimension_count", U(64)),
            ("rope.freq_base", F(150_000.0)),
            ("rope.scaling.type", S("yarn")),
            ("rope.scaling.factor", F(32.0)),
            ("rope.scaling.original_context_length", U(4096)),
            ("expert_count", U(32)),
            ("expert_used_count", U(4)),
            ("expert_feed_forward_length", U(2880)),
        ],
        has: &["output.weight", "attn_output.bias"],
        vocab: vocab::GPT_OSS,
    },
    Preset {
        name: "gemma-2-9b",
        title: "Gemma-2-9B-it (random weights)",
        architecture: "gemma2",
        keys: &[
            ("block_count", U(42)),
            ("context_length", U(8192)),
            ("embedding_length", U(3584)),
            ("feed_forward_length", U(14_336)),
            ("attention.head_count", U(16)),
            ("attention.head_count_kv", U(8)),
            ("attention.key_length", U(256)),
            ("attention.value_length", U(256)),
            ("attention.layer_norm_rms_epsilon", F(1e-6)),
            ("attention.sliding_window", U(4096)),
            ("attn_logit_softcapping", F(50.0)),
            ("final_logit_softcapping", F(30.0)),
        ],
        has: &[],
        vocab: vocab::GEMMA_2,
    },
    Preset {
        name: "granite-3.3-8b",
        title: "Granite-3.3-8B-Instruct (random weights)",
        architecture: "granite",
        keys: &[
            ("block_count", U(40)),
            ("context_length", U(131_072)),
            ("embedding_length", U(4096)),
            ("feed_forward_length", U(12_800)),
            ("attention.head_count", U(32)),
            ("attention.head_count_kv", U(8)),
            ("attention.layer_norm_rms_epsilon", F(1e-5)),
            ("attention.scale", F(0.007_812_5)),
            ("embedding_scale", F(12.0)),
            ("residual_scale", F(0.22)),
            ("logit_scale", F(16.0)),
            ("rope.freq_base", F(1e7)),
        ],
        has: &[],
        vocab: vocab::GRANITE,
    },
    Preset {
        name: "olmo-2-7b",
        title: "OLMo-2-7B-Instruct (random weights)",
        architecture: "olmo2",
        keys: &[
            ("block_count", U(32)),
            ("context_length", U(4096)),
            ("embedding_length", U(4096)),
            ("feed_forward_length", U(11_008)),
            ("attention.head_count", U(32)),
            ("attention.head_count_kv", U(32)),
            ("attention.layer_norm_rms_epsilon", F(1e-6)),
            ("rope.freq_base", F(5e5)),
        ],
        has: &["output.weight"],
        vocab: vocab::OLMO,
    },
    Preset {
        name: "gemma-3-12b",
        title: "Gemma-3-12B-it (random weights)",
        architecture: "gemma3",
        keys: &[
            ("block_count", U(48)),
            ("context_length", U(131_072)),
            ("embedding_length", U(3840)),
            ("feed_forward_length", U(15_360)),
            ("attention.head_count", U(16)),
            ("attention.head_count_kv", U(8)),
            ("attention.key_length", U(256)),
            ("attention.value_length", U(256)),
            ("attention.layer_norm_rms_epsilon", F(1e-6)),
            ("attention.sliding_window", U(1024)),
            ("rope.freq_base", F(1e6)),
            ("rope.scaling.type", S("linear")),
            ("rope.scaling.factor", F(8.0)),
        ],
        has: &[],
        vocab: vocab::GEMMA,
    },
    Preset {
        name: "gemma-4-26b-a4b",
        title: "Gemma-4-26B-A4B-it (random weights)",
        architecture: "gemma4",
        keys: &[
            ("block_count", U(30)),
            ("context_length", U(262_144)),
            ("embedding_length", U(2816)),
            ("embedding_length_per_layer_input", U(0)),
            ("feed_forward_length", U(2112)),
            ("attention.head_count", U(16)),
            ("attention.head_count_kv", Us(&[8, 8, 8, 8, 8, 2])),
            ("attention.key_length", U(512)),
            ("attention.value_length", U(512)),
            ("attention.key_length_swa", U(256)),
            ("attention.value_length_swa", U(256)),
            ("attention.layer_norm_rms_epsilon", F(1e-6)),
            ("attention.sliding_window", U(1024)),
            (
                "attention.sliding_window_pattern",
                Bs(&[true, true, true, true, true, false]),
            ),
            ("attention.shared_kv_layers", U(0)),
            ("rope.dimension_count", U(512)),
            ("rope.dimension_count_swa", U(256)),
            ("rope.freq_base", F(1e6)),
            ("rope.freq_base_swa", F(1e4)),
            ("final_logit_softcapping", F(30.0)),
            ("expert_count", U(128)),
            ("expert_used_count", U(8)),
            ("expert_feed_forward_length", U(704)),
        ],
        has: &[
            "rope_freqs.weight",
            "ffn_gate_inp.weight",
            "ffn_gate_up_exps.weight",
            "layer_output_scale.weight",
        ],
        vocab: vocab::GEMMA_4,
    },
    Preset {
        name: "qwen3.5-35b-a3b",
        title: "Qwen3.5-35B-A3B (random weights)",
        architecture: "qwen35moe",
        keys: &[
            ("block_count", U(40)),
            ("context_length", U(262_144)),
            ("embedding_length", U(2048)),
            ("attention.head_count", U(16)),
            ("attention.head_count_kv", U(2)),
            ("attention.key_length", U(256)),
            ("attention.value_length", U(256)),
            ("attention.layer_norm_rms_epsilon", F(1e-6)),
            ("rope.dimension_count", U(64)),
            ("rope.freq_base", F(1e7)),
            ("full_attention_interval", U(4)),
            ("ssm.conv_kernel", U(4)),
            ("ssm.state_size", U(128)),
            ("ssm.group_count", U(16)),
            ("ssm.time_step_rank", U(32)),
            ("ssm.inner_size", U(4096)),
            ("expert_count", U(256)),
            ("expert_used_count", U(8)),
            ("expert_feed_forward_length", U(512)),
            ("expert_shared_feed_forward_length", U(512)),
        ],
        has: &["output.weight"],
        vocab: vocab::QWEN_35,
    },
];

/// Keys of the assistant of Gemma-4-26B-A4B; the feed-forward width follows from the size of
/// published files.
const ASSISTANT: &[(&str, Key)] = &[
    ("block_count", U(4)),
    ("nextn_predict_layers", U(4)),
    ("context_length", U(262_144)),
    ("embedding_length", U(1024)),
    ("embedding_length_out", U(2816)),
    ("feed_forward_length", U(8192)),
    ("attention.head_count", U(16)),
    ("attention.head_count_kv", Us(&[8, 8, 8, 2])),
    ("attention.key_length", U(512)),
    ("attention.value_length", U(512)),
    ("attention.key_length_swa", U(256)),
    ("attention.value_length_swa", U(256)),
    ("attention.layer_norm_rms_epsilon", F(1e-6)),
    ("attention.sliding_window", U(1024)),
    (
        "attention.sliding_window_pattern",
        Bs(&[true, true, true, false]),
    ),
    ("attention.shared_kv_layers", U(4)),
    ("rope.dimension_count", U(512)),
    ("rope.dimension_count_swa", U(256)),
    ("rope.freq_base", F(1e6)),
    ("rope.freq_base_swa", F(1e4)),
];

impl Key {
    /// Returns the metadata value for a model of `blocks` blocks.
    fn value(self, blocks: usize) -> Value {
        match self {
            U(v) => v.into(),
            F(v) => v.into(),
            B(v) => v.into(),
            S(v) => v.into(),
            Us(each) => Value::Array(Array::U32(
                each.iter().copied().cycle().take(blocks).collect(),
            )),
            Bs(each) => Value::Array(Array::Bool(
                each.iter().copied().cycle().take(blocks).collect(),
            )),
        }
    }
}

/// Tensor source for an architecture's table: the rows of the embedding, and the optional
/// tensors of a preset.
struct Wanted<'a> {
    preset: &'a Preset,
    draft_block: bool,
}

impl Tensors for Wanted<'_> {
    fn find(&self, name: &str) -> Option<(Vec<u64>, EncodingRef)> {
        let short = name
            .strip_prefix("blk.")
            .and_then(|n| n.split_once('.'))
            .map_or(name, |n| n.1);
        let of_block: &[&str] = match self.preset.has_assistant() {
            true => &[arch::ASSISTANT_PROJECTION, arch::ASSISTANT_HEAD],
            false => &[arch::DRAFT_PROJECTION],
        };
        let of_draft = self.draft_block && of_block.contains(&short);
        let of_preset = self.preset.has.contains(&short);
        let known = short == "token_embd.weight" || of_preset || of_draft;
        known.then(|| (vec![0, self.preset.vocab.size.into()], &F32 as EncodingRef))
    }
}

impl Preset {
    /// Returns the plan of a model, which may have a block that drafts tokens.
    pub fn plan(&self, file_type: &FileType, draft_block: bool) -> Result<SynthPlan, Error> {
        let mut plan = self.without_vocabulary(file_type, draft_block)?;
        self.vocab.describe(&mut plan.metadata);
        Ok(plan)
    }
    /// Returns the plan without the vocabulary, which takes longer than all the
    /// rest. Sufficient for sizes.
    pub fn without_vocabulary(
        &self,
        file_type: &FileType,
        draft_block: bool,
    ) -> Result<SynthPlan, Error> {
        let metadata = self.metadata(file_type, draft_block);
        let wanted = Wanted {
            preset: self,
            draft_block,
        };
        let specs = arch::tensors(&metadata, &wanted)?;
        let blocks = specs
            .iter()
            .filter_map(|s| s.layer)
            .max()
            .map_or(0, |last| last as u64 + 1);
        let tensors = specs
            .into_iter()
            .map(|s| tensor(s, file_type, blocks))
            .collect::<Result<_, _>>()?;
        Ok(SynthPlan { metadata, tensors })
    }
    /// Returns whether the model's tokens are drafted by an assistant.
    fn has_assistant(&self) -> bool {
        self.architecture == "gemma4"
    }
    /// Returns true if the metadata is that of this preset.
    pub fn is(&self, metadata: &Metadata) -> bool {
        metadata
            .str("general.name")
            .is_ok_and(|name| name == Some(self.title))
    }

    fn metadata(&self, file_type: &FileType, draft_block: bool) -> Metadata {
        let mut md = Metadata::new();
        md.insert("general.architecture", self.architecture);
        md.insert("general.type", "model");
        md.insert("general.name", self.title);
        md.insert("general.file_type", file_type.id);
        md.insert("general.quantization_version", 2u32);
        md.insert(format!("{}.vocab_size", self.architecture), self.vocab.size);
        let blocks = self.keys.iter().find_map(|(key, value)| match value {
            U(blocks) if *key == "block_count" => Some(*blocks as usize),
            _ => None,
        });
        for (key, value) in self.keys {
            md.insert(
                format!("{}.{key}", self.architecture),
                value.value(blocks.unwrap_or(0)),
            );
        }
        if draft_block && self.has_assistant() {
            let layers = ASSISTANT.iter().find_map(|(key, value)| match value {
                U(layers) if *key == "block_count" => Some(*layers as usize),
                _ => None,
            });
            for (key, value) in ASSISTANT {
                let key = format!("{}-assistant.{key}", self.architecture);
                md.insert(key, value.value(layers.unwrap_or(0)));
            }
        } else if let Some(blocks) = blocks.filter(|_| draft_block) {
            let key = |name: &str| format!("{}.{name}", self.architecture);
            md.insert(key("block_count"), blocks as u32 + 1);
            md.insert(key("nextn_predict_layers"), 1u32);
        }
        md
    }
}

/// Returns the plan of a tensor as a quantiser stores it, in a model of `blocks` blocks. Matrices
/// preserve the scale of their input: standard deviation 1/√in.
fn tensor(spec: TensorSpec, file_type: &FileType, blocks: u64) -> Result<TensorPlan, Error> {
    let row = spec.dims.last().copied().unwrap_or(1);
    let distribution = match spec.role {
        // Negative, so that the recurrent state decays.
        _ if spec.short == "ssm_a" => (-1.0, 0.05),
        Role::Norm => (1.0, 0.05),
        Role::Bias => (0.0, 0.01),
        _ => (0.0, 1.0 / (row as f32).sqrt()),
    };
    planned(spec, file_type, blocks, distribution)
}

/// Returns the plan of a tensor with this mean and standard deviation; its seed is that of its
/// name.
pub(super) fn planned(
    spec: TensorSpec,
    file_type: &FileType,
    blocks: u64,
    (mean, sigma): (f32, f32),
) -> Result<TensorPlan, Error> {
    let TensorSpec {
        name, dims, role, ..
    } = spec;
    let dims: Vec<u64> = dims.iter().rev().map(|&n| n as u64).collect();
    let encoding = file_type.choose(role, dims[0], blocks).ok_or_else(|| {
        let (tensor, encoding) = (name.clone(), file_type.name);
        gguf::Error::PartialBlock {
            tensor,
            row: dims[0],
            encoding,
        }
    })?;
    let (seed, bytes) = (
        fill::seed(&name),
        gguf::tensor_bytes(&name, &dims, encoding)?,
    );
    Ok(TensorPlan {
        name,
        dims,
        encoding,
        bytes,
        mean,
        sigma,
        seed,
        skew: 0.0,
    })
}
